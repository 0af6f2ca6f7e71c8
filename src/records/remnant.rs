use bytes::Bytes;

use super::search::is_end;

/// What a client has to know of an event that it does not get: the `id`, from which it goes on when it
/// reconnects, and the `retry`.
///
/// Fed with the lines of the event, without its comments. Leaves at most `max` bytes behind: an id that
/// does not fit is lost. Holds at most twice as many, as an id stands until the end of the next one.
#[derive(Debug)]
pub(crate) struct Remnant {
    max: usize,
    id: Vec<u8>,
    retry: Vec<u8>,
    // The line so far, if it is kept.
    line: Vec<u8>,
    kind: Line,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Kept,
    /// An id that does not fit.
    Lost,
    /// Another field's, or one that a client ignores.
    Other,
}

const ID: &[u8] = b"id";
const RETRY: &[u8] = b"retry";
/// An id that has one is ignored.
const NUL: u8 = 0;

/// How many bytes of a line show that its field has one of these names.
const HEAD: usize = 6;

impl Remnant {
    pub(crate) fn new(max: u64) -> Self {
        Self {
            max: usize::try_from(max).unwrap_or(usize::MAX),
            id: Vec::new(),
            retry: Vec::new(),
            line: Vec::new(),
            kind: Line::Kept,
        }
    }

    /// Takes in a line with its end, or a part of a line, or the LF after the CR of its end.
    pub(crate) fn feed(&mut self, piece: &[u8]) {
        let (text, ends) = match piece.split_last() {
            Some((&last, text)) if is_end(last) => (text, true),
            _ => (piece, false),
        };
        if self.kind == Line::Lost && text.contains(&NUL) {
            self.kind = Line::Other;
        }
        if self.kind == Line::Kept {
            // The first bytes tell whether the others are wanted.
            let first = HEAD.saturating_sub(self.line.len()).min(text.len());
            let (head, rest) = text.split_at(first);
            self.line.extend_from_slice(head);
            if !may_be(&self.line, ID) && !may_be(&self.line, RETRY) {
                self.give_up(Line::Other);
            } else if ends || self.line.len() >= HEAD {
                self.push(rest);
            }
        }
        if ends {
            self.end_line();
        }
    }

    fn push(&mut self, text: &[u8]) {
        let is_id = self.line.starts_with(ID);
        // A new id replaces the old one.
        let kept = self.retry.len() + if is_id { 0 } else { self.id.len() };
        if kept + self.line.len() + text.len() <= self.max {
            return self.line.extend_from_slice(text);
        }
        let is_ignored = self.line.contains(&NUL) || text.contains(&NUL);
        self.give_up(if is_id && !is_ignored {
            Line::Lost
        } else {
            Line::Other
        });
    }

    fn give_up(&mut self, kind: Line) {
        self.line = Vec::new();
        self.kind = kind;
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if std::mem::replace(&mut self.kind, Line::Kept) == Line::Lost {
            self.id = Vec::new();
        } else if line == ID || (line.starts_with(b"id:") && !line.contains(&NUL)) {
            self.id = line;
        } else if line.strip_prefix(b"retry:").is_some_and(is_number) {
            self.retry = line;
        }
    }

    /// At most how many bytes the event that is left behind will have.
    pub(super) fn bytes(&self) -> u64 {
        (self.id.len() + self.retry.len() + self.line.len() + 3) as u64
    }

    /// An event without data, which no client dispatches; nothing if there is nothing to be known.
    pub(crate) fn into_event(self) -> Bytes {
        let mut event = Vec::with_capacity(self.id.len() + self.retry.len() + 3);
        for line in [self.id, self.retry] {
            if !line.is_empty() {
                event.extend_from_slice(&line);
                event.push(b'\n');
            }
        }
        if !event.is_empty() {
            event.push(b'\n');
        }
        event.into()
    }
}

/// Whether a line that starts with `start` may have the name `name`.
fn may_be(start: &[u8], name: &[u8]) -> bool {
    match start.strip_prefix(name) {
        Some(rest) => matches!(rest.first(), None | Some(b':')),
        None => name.starts_with(start),
    }
}

fn is_number(value: &[u8]) -> bool {
    let value = value.strip_prefix(b" ").unwrap_or(value);
    !value.is_empty() && value.iter().all(u8::is_ascii_digit)
}
