use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::{
    document::TURN,
    engine::Engine,
    layer::Config,
    report::{FitReport, Unfit, UnfitReason},
    scan::Stop,
    settings::Fit,
};
use crate::{
    body::LimitedBody,
    error::{BoxError, Error},
    hold::Held,
    length::forget_the_whole,
    records::{finder::Seen, remnant::Remnant, sse::Sse},
    response_body::Rewrite,
    turns::Turns,
};

/// The most bytes that are held of the lines of an event that are not data, and of the comments in it.
const OTHERS: u64 = 64 * 1024;

/// Makes the events of a stream fit, one by one.
///
/// An event within the limit is held as it came. One that goes over it is read again from its start, and
/// what it holds is taken apart: the data for the [`Engine`], and the other lines.
#[derive(Debug)]
pub(super) struct Events {
    config: Arc<Config>,
    fit: Arc<Fit>,
    sse: Sse,
    /// What is to be read next, before anything else of the inner body.
    input: VecDeque<Bytes>,
    /// What may go out.
    ready: Held,
    /// The unfinished event as it came, as long as it is within the limit.
    raw: Held,
    event: Event,
    /// Whether the last byte was removed and was a CR, so that an LF after it has to go, too.
    removed_cr: bool,
    failed: Option<Error>,
}

/// The unfinished event.
#[derive(Debug, Default)]
struct Event {
    line: Line,
    /// How many bytes of data there are, of the lines and between them; None before the first one.
    data: Option<u64>,
    /// How many bytes of the line came before it was known which it is.
    unknown: u64,
    others: u64,
    comments: u64,
    /// Whether comments are left out, as there were too many of them.
    sheds: bool,
    /// None while it is within its limit.
    over: Option<Box<Over>>,
}

/// What is held of an event that is over its limit.
#[derive(Debug)]
struct Over {
    /// None once the outcome is known.
    engine: Option<Engine>,
    unfit: Option<(Unfit, Is)>,
    /// The other lines, before the data and after it.
    before: Vec<u8>,
    after: Vec<u8>,
    line: Vec<u8>,
    /// What is left of the other lines once there are too many of them.
    remnant: Option<Remnant>,
    /// Whether it was reported before its end.
    is_reported: bool,
}

/// What message an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Answer,
    Other,
}

impl Is {
    fn of(engine: &Engine) -> Self {
        if engine.is_answer() {
            Self::Answer
        } else {
            Self::Other
        }
    }
}

/// How far a chunk has been dealt with: what is before `start` is gone, what is before `released` may
/// go out, what is before `seen` is undecided.
struct Cut {
    chunk: Bytes,
    start: usize,
    released: usize,
    seen: usize,
}

impl Events {
    pub(super) fn new(config: Arc<Config>, fit: Arc<Fit>) -> Self {
        Self {
            config,
            fit,
            sse: Sse::new(),
            input: VecDeque::new(),
            ready: Held::default(),
            raw: Held::default(),
            event: Event::default(),
            removed_cr: false,
            failed: None,
        }
    }

    fn pop(&mut self) -> Option<Frame<Bytes>> {
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

    /// Takes a chunk in. Gives it back if it may go out as it is; otherwise what may go out is ready.
    fn take(&mut self, chunk: Bytes, budget: &mut usize) -> Option<Bytes> {
        let mut cut = Cut {
            chunk,
            start: 0,
            released: 0,
            seen: 0,
        };
        while cut.seen < cut.chunk.len() && *budget > 0 {
            let rest = &cut.chunk[cut.seen..];
            let (taken, seen) = self.sse.step(&rest[..rest.len().min(*budget)]);
            *budget -= taken;
            self.decide(&mut cut, taken, seen);
        }
        if cut.start == 0 && cut.released == cut.chunk.len() && self.ready.is_empty() {
            return Some(cut.chunk);
        }
        self.settle(&mut cut);
        if cut.seen < cut.chunk.len() {
            self.input.push_front(cut.chunk.slice(cut.seen..));
        }
        None
    }

    /// Decides what becomes of the next `taken` bytes, which are a line or a part of one.
    fn decide(&mut self, cut: &mut Cut, taken: usize, seen: Seen) {
        let is_inside = self.sse.event().is_some();
        let is_comment = matches!(seen, Seen::Comment(_)) || self.sse.comment().is_some();
        match seen {
            Seen::Lf if mem::take(&mut self.removed_cr) => return self.remove(cut, taken),
            Seen::Record(_) => {
                let event = mem::take(&mut self.event);
                let Some(over) = event.over else {
                    return self.release(cut, taken);
                };
                self.remove(cut, taken);
                return self.finish(*over, event.data.unwrap_or(0), true);
            }
            Seen::Mark => {
                self.event = Event::default();
                return self.release(cut, taken);
            }
            Seen::Lf => {}
            _ if is_comment => {
                if is_inside && (self.event.over.is_some() || self.event.sheds) {
                    return self.remove(cut, taken);
                }
                if is_inside {
                    self.event.comments += taken as u64;
                }
            }
            _ => return self.decide_line(cut, taken, matches!(seen, Seen::Line)),
        }
        self.removed_cr = false;
        if !is_inside {
            return self.release(cut, taken);
        }
        cut.seen += taken;
        if self.event.comments > OTHERS {
            let event = Event {
                sheds: true,
                ..Event::default()
            };
            self.replay(cut, event);
        }
    }

    /// The same for a line that is not a comment.
    fn decide_line(&mut self, cut: &mut Cut, taken: usize, ends: bool) {
        let piece = cut.chunk.slice(cut.seen..cut.seen + taken);
        let text = &piece[..taken - usize::from(ends)];
        let part = self.event.line(text, ends);
        let data = self.event.data.unwrap_or(0);
        let Some(over) = &mut self.event.over else {
            self.removed_cr = false;
            cut.seen += taken;
            if data > self.fit.limit || self.event.others > OTHERS {
                let over = Over::new(Engine::for_event(Arc::clone(&self.fit)));
                let event = Event {
                    over: Some(Box::new(over)),
                    ..Event::default()
                };
                self.replay(cut, event);
            }
            return;
        };
        let is_too_much = self.event.others > OTHERS;
        match part {
            Part::Data { joins, text } => {
                over.line.clear();
                if joins {
                    over.feed(b"\n");
                }
                over.feed(text);
            }
            Part::Other if is_too_much => {}
            Part::Other => over.keep(text, ends, self.event.data.is_some()),
        }
        let is_too_long = data > self.fit.max_scan || is_too_much;
        let to_report = is_too_long && !over.is_reported;
        self.remove(cut, taken);
        if to_report {
            self.report_early(data);
        }
        if let Some(over) = self.event.over.as_mut().filter(|_| is_too_much) {
            over.remnant().feed(&piece);
        }
    }

    /// Lets go out what is unfinished, and the next `taken` bytes.
    fn release(&mut self, cut: &mut Cut, taken: usize) {
        self.removed_cr = false;
        cut.seen += taken;
        if !self.raw.is_empty() {
            self.ready.append(&mut self.raw);
        }
        cut.released = cut.seen;
    }

    /// Puts what has been seen of the chunk where it belongs.
    fn settle(&mut self, cut: &mut Cut) {
        let slice = |from, to| Frame::data(cut.chunk.slice(from..to));
        self.ready.push(slice(cut.start, cut.released));
        self.raw.push(slice(cut.released, cut.seen));
        cut.start = cut.seen;
        cut.released = cut.seen;
    }

    /// Removes the next `taken` bytes.
    fn remove(&mut self, cut: &mut Cut, taken: usize) {
        self.settle(cut);
        cut.seen += taken;
        self.removed_cr = cut.chunk[..cut.seen].ends_with(b"\r");
        cut.start = cut.seen;
        cut.released = cut.seen;
    }

    /// Reads the unfinished event again, as `event`.
    fn replay(&mut self, cut: &mut Cut, event: Event) {
        self.settle(cut);
        let rest = cut.chunk.split_off(cut.seen);
        if !rest.is_empty() {
            self.input.push_front(rest);
        }
        let mut raw = mem::take(&mut self.raw);
        let blocks = std::iter::from_fn(|| raw.pop()?.into_data().ok());
        let blocks: Vec<_> = blocks.collect();
        for block in blocks.into_iter().rev() {
            self.input.push_front(block);
        }
        self.sse = Sse::after_mark();
        self.event = event;
    }

    /// Lets go out what there is of an event that has no end.
    fn close(&mut self) {
        let event = mem::take(&mut self.event);
        self.ready.append(&mut self.raw);
        if let Some(over) = event.over {
            self.finish(*over, event.data.unwrap_or(0), false);
        }
    }

    /// Lets go out what there is of an event that was not changed, before the error.
    fn fail(&mut self, error: Error) {
        let event = mem::take(&mut self.event);
        self.ready.append(&mut self.raw);
        self.failed = Some(error);
        // Of one that was being changed it may not even be known whether it fits.
        if let Some(over) = event.over.filter(|over| !over.is_reported) {
            if let Some((unfit, _)) = over.unfit {
                self.config.report(Err(&unfit));
            }
        }
    }

    /// Says what became of an event that is so long that its end is not waited for.
    fn report_early(&mut self, data: u64) {
        let Some(over) = &mut self.event.over else {
            return;
        };
        over.is_reported = true;
        if let Some(engine) = over.engine.take() {
            // It is the other lines that are too much, and they count as read.
            let stop = Stop {
                reason: UnfitReason::TooLarge,
                at: data.saturating_add(OTHERS + 1),
            };
            let is = Is::of(&engine);
            over.unfit = Some((engine.unfit(stop, None), is));
        }
        let Some((unfit, is)) = &over.unfit else {
            return;
        };
        self.config.report(Err(unfit));
        if *is == Is::Answer {
            let (before, after) = (mem::take(&mut over.before), mem::take(&mut over.after));
            let message = [unfit.rpc_message().into()];
            write(&mut self.ready, before, message, after, true);
        }
    }

    /// Puts in place of an event that was over its limit what is to be known of it.
    fn finish(&mut self, mut over: Over, data: u64, has_end: bool) {
        let result = match (over.unfit.take(), over.engine.take()) {
            (Some((unfit, is)), _) => Err((unfit, is)),
            (None, Some(engine)) => {
                let is = Is::of(&engine);
                engine.finish().map_err(|unfit| (unfit, is))
            }
            (None, None) => return,
        };
        let result: Result<(FitReport, Vec<Bytes>), _> = result.map_err(|(mut unfit, is)| {
            (unfit.actual, unfit.exact) = (data, true);
            (unfit, is)
        });
        if !over.is_reported {
            self.config.report(match &result {
                Ok((report, _)) => Ok(report),
                Err((unfit, _)) => Err(unfit),
            });
        }
        match result {
            Ok((_, blocks)) => write(&mut self.ready, over.before, blocks, over.after, has_end),
            Err((unfit, Is::Answer)) if !over.is_reported => {
                let message = [unfit.rpc_message().into()];
                write(&mut self.ready, over.before, message, over.after, has_end);
            }
            // A client takes an id only at the end of its event.
            Err(_) if !has_end => {}
            Err(_) => {
                let remnant = mem::replace(over.remnant(), Remnant::new(0));
                self.ready.push(Frame::data(remnant.into_event()));
            }
        }
    }
}

impl<B> Rewrite<B> for Events
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    fn poll_frame(
        &mut self,
        mut body: Pin<&mut LimitedBody<B>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let (mut turns, mut budget) = (Turns::default(), TURN);
        loop {
            if let Some(frame) = self.pop() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if let Some(error) = self.failed.take() {
                return Poll::Ready(Some(Err(error)));
            }
            let chunk = match self.input.pop_front() {
                Some(chunk) => chunk,
                None => {
                    ready!(turns.poll(cx));
                    match ready!(body.as_mut().poll_frame(cx)).transpose() {
                        Ok(Some(frame)) => match frame.into_data() {
                            Ok(chunk) => chunk,
                            Err(mut trailers) => {
                                trailers.trailers_mut().map(forget_the_whole);
                                self.close();
                                self.ready.push(trailers);
                                continue;
                            }
                        },
                        Ok(None) => {
                            self.close();
                            if self.ready.is_empty() {
                                return Poll::Ready(None);
                            }
                            continue;
                        }
                        Err(error) => {
                            self.fail(error);
                            continue;
                        }
                    }
                }
            };
            if budget == 0 {
                self.input.push_front(chunk);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some(chunk) = self.take(chunk, &mut budget) {
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.ready.is_empty()
            && self.raw.is_empty()
            && self.input.is_empty()
            && self.event.over.is_none()
            && self.failed.is_none()
    }
}

/// Writes an event with one line of data.
fn write(
    to: &mut Held,
    before: Vec<u8>,
    data: impl IntoIterator<Item = Bytes>,
    after: Vec<u8>,
    has_end: bool,
) {
    let (start, end) = (Bytes::from_static(b"data:"), Bytes::from_static(b"\n"));
    let blocks = [before.into(), start].into_iter().chain(data);
    let blocks = blocks.chain([end.clone(), after.into()]);
    for block in blocks.chain(has_end.then_some(end)) {
        to.push(Frame::data(block));
    }
}

impl Over {
    fn new(engine: Engine) -> Self {
        Self {
            engine: Some(engine),
            unfit: None,
            before: Vec::new(),
            after: Vec::new(),
            line: Vec::new(),
            remnant: None,
            is_reported: false,
        }
    }

    fn feed(&mut self, data: &[u8]) {
        if let Some(mut engine) = self.engine.take() {
            match engine.feed(data) {
                Ok(()) => self.engine = Some(engine),
                Err(stop) => {
                    let is = Is::of(&engine);
                    self.unfit = Some((engine.unfit(stop, None), is));
                }
            }
        }
    }

    /// What is to be known of the other lines. No more of them are kept.
    fn remnant(&mut self) -> &mut Remnant {
        let Self {
            before,
            after,
            line,
            remnant,
            ..
        } = self;
        remnant.get_or_insert_with(|| {
            let mut remnant = Remnant::new(OTHERS);
            for lines in [before, after] {
                let lines = mem::take(lines);
                for line in lines.split_inclusive(|&byte| byte == b'\n') {
                    remnant.feed(line);
                }
            }
            remnant.feed(&mem::take(line));
            remnant
        })
    }

    /// Keeps a part of a line that is not data.
    fn keep(&mut self, text: &[u8], ends: bool, is_after: bool) {
        self.line.extend_from_slice(text);
        if ends {
            self.line.push(b'\n');
            let lines = if is_after {
                &mut self.after
            } else {
                &mut self.before
            };
            lines.append(&mut self.line);
        }
    }
}

/// A part of a line.
enum Part<'a> {
    Data {
        /// Whether an LF comes before it.
        joins: bool,
        text: &'a [u8],
    },
    /// Another field, or what may become one.
    Other,
}

impl Event {
    /// Takes in a part of a line that is not a comment, without its end.
    fn line<'a>(&mut self, text: &'a [u8], ends: bool) -> Part<'a> {
        let goes_on = self.line.is_data();
        let value = self.line.feed(text, ends);
        let is_known = !matches!(self.line, Line::Name(_));
        self.unknown += text.len() as u64;
        let Some(text) = value else {
            if is_known || ends {
                self.others += mem::take(&mut self.unknown) + u64::from(ends);
            }
            if ends {
                self.line = Line::default();
            }
            return Part::Other;
        };
        self.unknown = 0;
        let joins = !goes_on && self.data.is_some();
        let len = text.len() as u64 + u64::from(joins);
        self.data = Some(self.data.unwrap_or(0).saturating_add(len));
        if ends {
            self.line = Line::default();
        }
        Part::Data { joins, text }
    }
}

const NAME: &[u8] = b"data:";

/// What is known of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// It starts with so many bytes of [`NAME`].
    Name(usize),
    /// It is data, and a space that comes next does not count.
    Colon,
    Data,
    Other,
}

impl Default for Line {
    fn default() -> Self {
        Self::Name(0)
    }
}

impl Line {
    fn is_data(self) -> bool {
        matches!(self, Self::Colon | Self::Data)
    }

    /// The data in a part of the line; `None` if it is no data line, or not known to be one.
    fn feed<'a>(&mut self, mut text: &'a [u8], ends: bool) -> Option<&'a [u8]> {
        if let Self::Name(known) = *self {
            let pairs = text.iter().zip(&NAME[known..]);
            let same = pairs.take_while(|(byte, name)| byte == name).count();
            text = &text[same..];
            *self = match known + same {
                len if len == NAME.len() => Self::Colon,
                // The name alone is a line of nothing.
                len if len + 1 == NAME.len() && text.is_empty() && ends => Self::Data,
                len if text.is_empty() => Self::Name(len),
                _ => Self::Other,
            };
        }
        if *self == Self::Colon && !text.is_empty() {
            text = text.strip_prefix(b" ").unwrap_or(text);
            *self = Self::Data;
        }
        self.is_data().then_some(text)
    }
}
