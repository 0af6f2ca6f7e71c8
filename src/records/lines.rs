use super::{
    finder::{Seen, Skimmed, Span},
    search::{self, CR},
};

/// Finds the lines of a stream that comes in chunks. A line ends with LF.
///
/// A CR alone does not end a line: a reader that knows only LF would gather line after line.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    offset: u64,
    // How many bytes of the line have come, and whether the last of them is a CR, which does not
    // count if the line ends after it.
    len: u64,
    has_cr: bool,
}

impl Lines {
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The unfinished line.
    pub(crate) fn line(&self) -> Span {
        let size = self.len - u64::from(self.has_cr);
        let start = self.offset.saturating_sub(self.len);
        Span { start, size }
    }

    /// How many bytes of it there are, a CR included.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// See [`Finder::step`](super::finder::Finder::step).
    pub(crate) fn step(&mut self, chunk: &[u8]) -> (usize, Seen) {
        let Some(end) = search::line_feed(chunk) else {
            self.pass(chunk);
            return (chunk.len(), Seen::Part);
        };
        self.pass(&chunk[..end]);
        let line = self.line();
        self.start_line(1);
        (end + 1, Seen::Record(line))
    }

    /// See [`Finder::skim`](super::finder::Finder::skim).
    pub(crate) fn skim(&mut self, chunk: &[u8], room: usize) -> Skimmed {
        let window = &chunk[..room.min(chunk.len())];
        let whole = search::last_line_feed(window).map_or(0, |end| end + 1);
        if whole > 0 {
            self.start_line(whole);
        }
        // Nothing beyond the window is known, so a line that starts in it may get more room.
        let is_settled = window.len() == chunk.len() || whole == 0;
        if is_settled {
            self.pass(&window[whole..]);
        }
        let taken = if is_settled { window.len() } else { whole };
        Skimmed { whole, taken }
    }

    /// Goes over `bytes` bytes, of which the last one ends a line.
    fn start_line(&mut self, bytes: usize) {
        self.offset = self.offset.saturating_add(bytes as u64);
        self.len = 0;
        self.has_cr = false;
    }

    /// Goes over bytes of one line.
    fn pass(&mut self, bytes: &[u8]) {
        let count = bytes.len() as u64;
        self.offset = self.offset.saturating_add(count);
        self.len = self.len.saturating_add(count);
        self.has_cr = bytes.last().map_or(self.has_cr, |&byte| byte == CR);
    }
}
