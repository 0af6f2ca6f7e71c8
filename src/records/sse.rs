use super::{
    finder::{Seen, Skimmed, Span},
    search::{self, CR, LF, is_end},
};

const MARK: &[u8] = b"\xEF\xBB\xBF";

/// Finds the events of an event stream that comes in chunks, as the WHATWG standard delimits them.
///
/// Lines end with LF, CR or CRLF, and a blank line ends an event. When that ends with CR, the event
/// is over at once, and an LF that follows is reported by itself ([`Seen::Lf`]). Blank lines and
/// comment lines outside an event are passed over, the former as a record of no bytes.
///
/// [`step`](Self::step) goes line by line; [`skim`](Self::skim) does not and is faster. Either takes
/// the stream up where the other left it. To have whole events, gather what `step` goes over up to a
/// [`Seen::Record`].
#[derive(Debug)]
pub(crate) struct Sse {
    // How much of a byte order mark has come; all of it, once it is known whether there is one.
    mark: usize,
    before: u8,
    offset: u64,
    // Without an event there are no bytes that count: the lines of an event are not empty.
    event: Span,
    comment: Option<Span>,
}

impl Sse {
    /// At the start of a stream.
    pub(crate) fn new() -> Self {
        Self {
            mark: 0,
            ..Self::after_mark()
        }
    }

    /// Where a line starts.
    pub(crate) fn after_mark() -> Self {
        Self {
            mark: MARK.len(),
            before: LF,
            offset: 0,
            event: Span { start: 0, size: 0 },
            comment: None,
        }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The unfinished event, of which a comment line in it is no part.
    pub(crate) fn event(&self) -> Option<Span> {
        (self.event.size > 0).then_some(self.event)
    }

    /// The unfinished comment line.
    pub(crate) fn comment(&self) -> Option<Span> {
        self.comment
    }

    /// See [`Finder::step`](super::finder::Finder::step).
    pub(crate) fn step(&mut self, chunk: &[u8]) -> (usize, Seen) {
        let Some(&first) = chunk.first() else {
            return (0, Seen::Part);
        };
        if self.mark < MARK.len() {
            return self.step_mark(chunk);
        }
        if self.before == CR && first == LF {
            self.pass(&chunk[..1]);
            return (1, Seen::Lf);
        }
        if is_end(self.before) {
            let start = self.offset;
            if is_end(first) {
                self.pass(&chunk[..1]);
                let event = self.event().unwrap_or(Span { start, size: 0 });
                self.event.size = 0;
                return (1, Seen::Record(event));
            }
            if first == b':' {
                self.comment = Some(Span { start, size: 0 });
            } else if self.event.size == 0 {
                self.event.start = start;
            }
        }
        let end = search::line_end(chunk);
        let len = end.unwrap_or(chunk.len());
        let span = self.comment.as_mut().unwrap_or(&mut self.event);
        span.size = span.size.saturating_add(len as u64);
        let taken = end.map_or(len, |end| end + 1);
        self.pass(&chunk[..taken]);
        let seen = match end {
            None => Seen::Part,
            Some(_) => self.comment.take().map_or(Seen::Line, Seen::Comment),
        };
        (taken, seen)
    }

    /// A step over a byte order mark, of no bytes if there is nothing of one here.
    fn step_mark(&mut self, chunk: &[u8]) -> (usize, Seen) {
        let expected = &MARK[self.mark..];
        let pairs = chunk.iter().zip(expected);
        let len = pairs.take_while(|(byte, mark)| byte == mark).count();
        self.mark += len;
        self.offset += len as u64;
        if self.mark == MARK.len() {
            return (len, Seen::Mark);
        }
        if len < chunk.len() && self.mark > 0 {
            // What looked like a mark is the start of the first line.
            self.event.size = self.mark as u64;
            self.before = MARK[0];
        }
        if len < chunk.len() {
            self.mark = MARK.len();
        }
        (len, Seen::Part)
    }

    /// See [`Finder::skim`](super::finder::Finder::skim).
    pub(crate) fn skim(&mut self, chunk: &[u8], room: usize) -> Skimmed {
        if self.mark < MARK.len() || room == 0 {
            return Skimmed::default();
        }
        let mut skimmed = Skimmed::default();
        if self.before == CR && chunk.first() == Some(&LF) {
            self.pass(&chunk[..1]);
            skimmed.taken = 1;
            skimmed.whole = usize::from(self.event.size == 0);
        }
        let rest = &chunk[skimmed.taken..];
        let window = &rest[..rest.len().min(room - skimmed.taken)];
        let mut tail = search::tail(self.before, window);
        let mut unfinished = window;
        if let Some(start) = tail.start {
            self.pass(&window[..start]);
            self.event.size = 0;
            self.comment = None;
            unfinished = &window[start..];
            skimmed.taken += start;
            if self.before == CR && rest.get(start) == Some(&LF) {
                self.pass(&rest[start..=start]);
                skimmed.taken += 1;
                if let Some((_, after)) = unfinished.split_first() {
                    unfinished = after;
                    tail.ends -= 1;
                }
            }
            skimmed.whole = skimmed.taken;
        }
        // Nothing beyond the window is known, so a record that starts in it may get more room.
        let is_settled = window.len() == rest.len() || tail.start.is_none();
        if is_settled && !tail.has_comments && self.comment.is_none() && !unfinished.is_empty() {
            if self.event.size == 0 {
                self.event.start = self.offset;
            }
            let counted = (unfinished.len() - tail.ends) as u64;
            self.event.size = self.event.size.saturating_add(counted);
            self.pass(unfinished);
            skimmed.taken += unfinished.len();
        }
        skimmed
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.before = bytes.last().copied().unwrap_or(self.before);
        self.offset = self.offset.saturating_add(bytes.len() as u64);
    }
}
