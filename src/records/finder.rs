use super::{lines::Lines, sse::Sse};

/// A record, finished or not: where it starts in the stream, and how many bytes of it count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) size: u64,
}

/// What one step over a chunk has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The end of the chunk, inside a line.
    Part,
    /// The end of a line of the unfinished record.
    Line,
    /// The end of a comment line. It is no part of the record that it may stand in.
    Comment(Span),
    /// The end of a byte order mark.
    Mark,
    /// The LF of a CRLF whose CR was taken for the end of a line before.
    Lf,
    /// The end of a record.
    Record(Span),
}

/// What was found in a chunk without looking at each of its lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Skimmed {
    /// So many bytes go to the end of the last record, or to the LF after its CR.
    pub(crate) whole: usize,
    /// So many bytes have been dealt with. Those beyond `whole` belong to an unfinished record.
    pub(crate) taken: usize,
}

/// Finds the records of a stream that comes in chunks.
#[derive(Debug)]
pub(crate) enum Finder {
    Sse(Sse),
    Lines(Lines),
}

/// Where a chunk has to be cut, as a record in it is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Breach {
    /// So many bytes of the chunk come before that record.
    pub(crate) cut: usize,
    /// So many bytes of the stream come before that record.
    pub(crate) start: u64,
}

impl Finder {
    /// Goes over a whole chunk unless there is a record of more than `max` bytes in it.
    pub(crate) fn check(&mut self, chunk: &[u8], max: u64) -> Option<Breach> {
        let base = self.offset();
        let mut rest = chunk;
        while !rest.is_empty() {
            let skimmed = self.skim(rest, self.room(max));
            rest = &rest[skimmed.taken..];
            if skimmed.taken > 0 {
                continue;
            }
            // Of a record that may be too large, each line is counted.
            while !rest.is_empty() {
                let (taken, seen) = self.step(rest);
                let finished = match seen {
                    Seen::Comment(span) | Seen::Record(span) => Some(span),
                    _ => None,
                };
                let mut spans = finished.into_iter().chain(self.unfinished());
                if let Some(span) = spans.find(|span| span.size > max) {
                    let cut = usize::try_from(span.start.saturating_sub(base)).unwrap_or(0);
                    let start = span.start;
                    return Some(Breach { cut, start });
                }
                rest = &rest[taken..];
                if matches!(seen, Seen::Record(_)) {
                    break;
                }
            }
        }
        None
    }

    /// Goes to the end of the last record within the next `room` bytes, and beyond it over what is
    /// certain to be unfinished. `room` has to be so small that no record in it can be too large.
    pub(crate) fn skim(&mut self, chunk: &[u8], room: u64) -> Skimmed {
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        match self {
            Self::Sse(sse) => sse.skim(chunk, room),
            Self::Lines(lines) => lines.skim(chunk, room),
        }
    }

    /// Goes to the end of the next line, or of the chunk: how many bytes that was, and what it is.
    pub(crate) fn step(&mut self, chunk: &[u8]) -> (usize, Seen) {
        match self {
            Self::Sse(sse) => sse.step(chunk),
            Self::Lines(lines) => lines.step(chunk),
        }
    }

    /// The unfinished comment line, and the unfinished record.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = Span> + use<> {
        self.comment().into_iter().chain(self.record())
    }

    /// The unfinished comment line.
    pub(crate) fn comment(&self) -> Option<Span> {
        match self {
            Self::Sse(sse) => sse.comment(),
            Self::Lines(_) => None,
        }
    }

    /// The unfinished record.
    pub(crate) fn record(&self) -> Option<Span> {
        match self {
            Self::Sse(sse) => sse.event(),
            Self::Lines(lines) => Some(lines.line()),
        }
    }

    pub(crate) fn is_sse(&self) -> bool {
        matches!(self, Self::Sse(_))
    }

    /// How many bytes may come before anything can be too large.
    fn room(&self, max: u64) -> u64 {
        let counted = match self {
            Self::Sse(_) => self.unfinished().map(|span| span.size).max(),
            // A CR counts once something else follows it.
            Self::Lines(lines) => Some(lines.len()),
        };
        max.saturating_sub(counted.unwrap_or(0))
    }

    /// How many bytes of the stream have been dealt with.
    fn offset(&self) -> u64 {
        match self {
            Self::Sse(sse) => sse.offset(),
            Self::Lines(lines) => lines.offset(),
        }
    }
}
