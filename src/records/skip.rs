use std::mem;

use bytes::Bytes;
use http_body::Frame;

use super::{
    finder::{Finder, Seen, Span},
    remnant::Remnant,
    search::CR,
    sse::Sse,
};
use crate::{hold::Held, length::forget_the_whole};

/// Takes the records that are too large out of a stream, and holds each record until it is known
/// whether it is.
#[derive(Debug, Default)]
pub(super) struct Skip {
    // What may go out.
    ready: Held,
    // The unfinished record, or the unfinished comment line outside a record.
    held: Held,
    // Whether there are comment lines in the unfinished event.
    has_comments: bool,
    // Whether they are left out. They do not count, so an event that is not too large could otherwise
    // hold any number of them.
    sheds: bool,
    // What the event that is being removed leaves behind.
    remnant: Option<Remnant>,
    // Whether the last byte was removed and was a CR, so that an LF after it has to go, too.
    removed_cr: bool,
}

/// How far a chunk has been dealt with: what is before `start` is gone, what is before `released` may
/// go out, what is before `seen` is undecided.
struct Cut<'a> {
    chunk: &'a Bytes,
    start: usize,
    released: usize,
    seen: usize,
}

impl Skip {
    /// The next frame that may go out.
    pub(super) fn pop(&mut self) -> Option<Frame<Bytes>> {
        if self.ready.is_empty() {
            return None;
        }
        let frame = self.ready.pop();
        if self.ready.is_empty() {
            // A queue that was long keeps its room.
            self.ready = Held::default();
        }
        frame
    }

    /// At most how many bytes may still go out of those that came in.
    pub(super) fn bytes(&self) -> u64 {
        let remnant = self.remnant.as_ref().map_or(0, Remnant::bytes);
        self.ready.bytes() + self.held.bytes() + remnant
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.held.is_empty()
    }

    /// Lets go out what is held, as nothing will follow that could make it too large.
    pub(super) fn close(&mut self) {
        self.ready.append(&mut self.held);
        self.remnant = None;
    }

    /// Takes trailers in.
    pub(super) fn take_trailers(&mut self, mut trailers: Frame<Bytes>) {
        trailers.trailers_mut().map(forget_the_whole);
        self.close();
        self.ready.push(trailers);
    }

    /// Takes a chunk in. Gives it back if it may go out as it is; otherwise what may go out is to be
    /// [popped](Self::pop). Reports each record and comment line that was removed, at its end.
    pub(super) fn take(
        &mut self,
        chunk: Bytes,
        finder: &mut Finder,
        max: u64,
        mut report: impl FnMut(Span),
    ) -> Option<Bytes> {
        let mut cut = Cut {
            chunk: &chunk,
            start: 0,
            released: 0,
            seen: 0,
        };
        while cut.seen < chunk.len() {
            if !self.has_to_look(finder, max) {
                let room = max.saturating_sub(self.unfinished_bytes(&cut));
                let skimmed = finder.skim(&chunk[cut.seen..], room);
                if skimmed.whole > 0 {
                    self.start_record();
                    cut.seen += skimmed.whole;
                    self.release(&mut cut);
                }
                cut.seen += skimmed.taken - skimmed.whole;
                if skimmed.taken > 0 {
                    continue;
                }
            }
            while cut.seen < chunk.len() {
                let (taken, seen) = finder.step(&chunk[cut.seen..]);
                self.decide(&mut cut, taken, seen, finder, max, &mut report);
                if matches!(seen, Seen::Record(_)) {
                    break;
                }
            }
        }
        if cut.start == 0 && cut.released == chunk.len() && self.ready.is_empty() {
            return Some(chunk);
        }
        self.settle(&mut cut);
        None
    }

    /// Whether what is unfinished has to be followed line by line.
    fn has_to_look(&self, finder: &Finder, max: u64) -> bool {
        self.sheds || self.removed_cr || finder.unfinished().any(|span| span.size > max)
    }

    fn unfinished_bytes(&self, cut: &Cut<'_>) -> u64 {
        self.held.bytes() + (cut.seen - cut.released) as u64
    }

    /// Decides what becomes of the next `taken` bytes, which are a line or a part of one.
    fn decide(
        &mut self,
        cut: &mut Cut<'_>,
        taken: usize,
        seen: Seen,
        finder: &Finder,
        max: u64,
        report: &mut impl FnMut(Span),
    ) {
        let record = finder.record();
        let comment = match seen {
            Seen::Comment(span) => Some(span),
            _ => finder.comment(),
        };
        let removed_cr = mem::take(&mut self.removed_cr);
        match (seen, comment) {
            (Seen::Lf, _) if removed_cr => return self.remove(cut, taken),
            (Seen::Record(span), _) if span.size > max => {
                report(span);
                let remnant = self.remnant.take();
                self.start_record();
                self.remove_record(cut, taken);
                let left = remnant.map(Remnant::into_event).unwrap_or_default();
                return self.ready.push(Frame::data(left));
            }
            (Seen::Record(_) | Seen::Mark, _) => {
                self.start_record();
                cut.seen += taken;
                return self.release(cut);
            }
            (_, Some(span)) => {
                let is_over = span.size > max;
                if is_over && matches!(seen, Seen::Comment(_)) {
                    report(span);
                }
                if self.sheds || self.remnant.is_some() {
                    return self.remove(cut, taken);
                }
                if is_over && record.is_none() {
                    return self.remove_record(cut, taken);
                }
                self.has_comments = record.is_some();
                cut.seen += taken;
            }
            (_, None) => {
                if let Some(remnant) = &mut self.remnant {
                    remnant.feed(&cut.chunk[cut.seen..cut.seen + taken]);
                    return self.remove(cut, taken);
                }
                if record.is_some_and(|record| record.size > max) {
                    return self.start_to_remove(cut, taken, finder, max);
                }
                cut.seen += taken;
            }
        }
        let is_outside = record.is_none() && matches!(seen, Seen::Comment(_) | Seen::Lf);
        if is_outside {
            self.release(cut);
        } else if self.has_comments && !self.sheds && self.unfinished_bytes(cut) > max {
            self.shed(cut);
        }
    }

    fn start_record(&mut self) {
        self.has_comments = false;
        self.sheds = false;
    }

    /// Lets go out what is unfinished, and the chunk as far as it has been seen.
    fn release(&mut self, cut: &mut Cut<'_>) {
        self.ready.append(&mut self.held);
        cut.released = cut.seen;
    }

    /// Puts what has been seen of the chunk where it belongs.
    fn settle(&mut self, cut: &mut Cut<'_>) {
        let slice = |from, to| Frame::data(cut.chunk.slice(from..to));
        self.ready.push(slice(cut.start, cut.released));
        self.held.push(slice(cut.released, cut.seen));
        cut.start = cut.seen;
        cut.released = cut.seen;
    }

    /// Removes the next `taken` bytes.
    fn remove(&mut self, cut: &mut Cut<'_>, taken: usize) {
        self.settle(cut);
        cut.seen += taken;
        self.removed_cr = cut.chunk[..cut.seen].ends_with(&[CR]);
        cut.start = cut.seen;
        cut.released = cut.seen;
    }

    /// Removes what is unfinished, and the next `taken` bytes.
    fn remove_record(&mut self, cut: &mut Cut<'_>, taken: usize) {
        self.remove(cut, taken);
        self.held = Held::default();
    }

    /// Removes what there is of a record that has become too large.
    fn start_to_remove(&mut self, cut: &mut Cut<'_>, taken: usize, finder: &Finder, max: u64) {
        if finder.is_sse() {
            let piece = cut.chunk.slice(cut.seen..cut.seen + taken);
            self.settle(cut);
            self.held.push(Frame::data(piece));
            let mut remnant = Remnant::new(max);
            each_piece(&mut self.held, |piece, kind| {
                if kind == Kind::Line {
                    remnant.feed(&piece);
                }
            });
            self.remnant = Some(remnant);
        }
        self.remove_record(cut, taken);
    }

    /// Removes the comment lines of the unfinished event, from now on.
    fn shed(&mut self, cut: &mut Cut<'_>) {
        self.settle(cut);
        let mut held = Held::default();
        let mut removed_cr = false;
        each_piece(&mut self.held, |piece, kind| {
            if kind == Kind::Comment || (kind == Kind::Lf && removed_cr) {
                removed_cr = piece.ends_with(&[CR]);
            } else {
                removed_cr = false;
                held.push(Frame::data(piece));
            }
        });
        self.held = held;
        self.sheds = true;
        self.removed_cr = removed_cr;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Line,
    Comment,
    Lf,
}

/// Goes over the lines and parts of lines of an unfinished event.
fn each_piece(event: &mut Held, mut f: impl FnMut(Bytes, Kind)) {
    let mut sse = Sse::after_mark();
    while let Some(Ok(mut block)) = event.pop().map(Frame::into_data) {
        while !block.is_empty() {
            let (taken, seen) = sse.step(&block);
            let kind = match seen {
                Seen::Comment(_) => Kind::Comment,
                Seen::Part if sse.comment().is_some() => Kind::Comment,
                Seen::Lf => Kind::Lf,
                _ => Kind::Line,
            };
            f(block.split_to(taken), kind);
        }
    }
}
