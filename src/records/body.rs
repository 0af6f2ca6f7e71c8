use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{
    finder::{Finder, Span},
    lines::Lines,
    skip::Skip,
    sse::Sse,
};
use crate::{
    body::Bound,
    drain::is_discarding,
    error::{BoxError, Error, Subject, TooLarge},
    flush::{Failure, Flush},
    length::Declared,
    turns::Turns,
    watch::{BodyEnd, Callbacks, Outcome, is_complete},
};

/// What the records of a stream are.
///
/// What ends them and what of them counts is said [where the layer is](crate::RecordLimitLayer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordKind {
    /// Server-sent events, as the WHATWG standard delimits them.
    Sse,
    /// Lines, each ended by LF.
    Lines,
}

pin_project! {
    /// A body whose records have at most `limit` bytes each, while their number is not limited.
    ///
    /// Made by [`RecordLimitLayer`](crate::RecordLimitLayer), whose documentation says what a record
    /// is and what of it counts, or by hand.
    ///
    /// | the wrapped body, lines of at most 4 bytes | yields | with [`skip_oversized`](Self::skip_oversized) |
    /// |---|---|---|
    /// | `abcd⏎ef⏎` in any frames | the same frames | the same records |
    /// | `abcd⏎efghi⏎` in one frame | `abcd⏎`, error at byte 5 | `abcd⏎` |
    /// | `abcd⏎efg` `hi⏎j⏎` in two frames | `abcd⏎efg`, error at byte 5 | `abcd⏎` `j⏎` |
    ///
    /// Frames pass uncopied and at once, so part of a record may have passed before it is known to be
    /// too large, at most `limit` bytes of it. All records before it have passed by then. Which
    /// records pass, and what the error says, does not depend on frames.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`](crate::Error::TooLarge) when a record is too large, and
    /// [`Error::Body`](crate::Error::Body) when the wrapped body fails. After either the body is at
    /// its end, and the wrapped body was dropped as soon as it was known.
    ///
    /// # Size hint
    ///
    /// The wrapped body's own until a breach is known. While records are skipped only its upper bound
    /// holds.
    ///
    /// # Examples
    ///
    /// ```
    /// use http_body_util::BodyExt;
    /// use tower_body_limit::{RecordKind, RecordLimitedBody, TooLarge};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let body = RecordLimitedBody::new(String::from("abcd\nefghi\n"), RecordKind::Lines, 4);
    /// let mut body = std::pin::pin!(body);
    /// assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "abcd\n");
    ///
    /// let error = body.frame().await.unwrap().unwrap_err();
    /// let too_large = TooLarge::find(&error).unwrap();
    /// assert_eq!(too_large.limit(), 4);
    /// assert_eq!(too_large.record_offset(), Some(5));
    /// # }
    /// ```
    #[derive(Debug)]
    pub struct RecordLimitedBody<B> {
        // None once the wrapped body has ended, has failed, or was given up.
        #[pin]
        inner: Option<B>,
        bound: Bound,
        finder: Finder,
        // None if a record that is too large is an error.
        skip: Option<Box<Skip>>,
        read: u64,
        failure: Failure,
        // None once the end has been reported.
        callbacks: Option<Arc<Callbacks>>,
        is_complete: fn(&B) -> bool,
    }

    impl<B> PinnedDrop for RecordLimitedBody<B> {
        fn drop(this: Pin<&mut Self>) {
            this.report_drop();
        }
    }
}

impl<B: Body<Data = Bytes>> RecordLimitedBody<B> {
    /// Limits each record of `inner` to `limit` bytes.
    pub fn new(inner: B, kind: RecordKind, limit: u64) -> Self {
        Self::bounded(inner, kind, Bound::by_hand(Some(limit), Subject::Record))
    }
}

impl<B: Body> RecordLimitedBody<B> {
    pub(super) fn bounded(inner: B, kind: RecordKind, bound: Bound) -> Self {
        let finder = match kind {
            RecordKind::Sse => Finder::Sse(Sse::new()),
            RecordKind::Lines => Finder::Lines(Lines::default()),
        };
        Self {
            inner: Some(inner),
            bound,
            finder,
            skip: None,
            read: 0,
            failure: Failure::default(),
            callbacks: None,
            is_complete,
        }
    }
}

impl<B> RecordLimitedBody<B> {
    pub(super) fn reported_to(mut self, callbacks: &Arc<Callbacks>) -> Self {
        self.callbacks = Some(Arc::clone(callbacks));
        self
    }

    pub(super) fn flushed(mut self, flush: Option<Flush>) -> Self {
        self.failure = Failure::new(flush);
        self
    }

    /// Removes records that are too large, and goes on: see
    /// [`RecordLimitLayer::skip_oversized`](crate::RecordLimitLayer::skip_oversized).
    ///
    /// To be set before the body is polled. Who wants to know what was removed sets
    /// [`on_breach`](Self::on_breach), too.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// use std::sync::Arc;
    /// use tower_body_limit::{BodyLimitExt, RecordKind};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let removed = Arc::new(AtomicU64::new(0));
    /// let count = Arc::clone(&removed);
    /// let body = String::from("abcd\nefghi\nj\n")
    ///     .limit_records(RecordKind::Lines, 4)
    ///     .skip_oversized()
    ///     .on_breach(move |error| { count.fetch_add(error.read(), Relaxed); });
    ///
    /// assert_eq!(body.collect_limited(100).await.unwrap().into_bytes(), "abcd\nj\n");
    /// assert_eq!(removed.load(Relaxed), 5);
    /// # }
    /// ```
    #[must_use]
    pub fn skip_oversized(mut self) -> Self {
        self.skip = Some(Box::default());
        self
    }

    /// Calls `f` for each record that is found to be too large.
    ///
    /// # Callbacks
    ///
    /// Runs in the task that reads the body; with [`skip_oversized`](Self::skip_oversized) at the end
    /// of the record, or in the task that drops the body before that. It does not run while the
    /// thread is panicking.
    #[must_use]
    pub fn on_breach<F>(mut self, f: F) -> Self
    where
        F: Fn(&TooLarge) + Send + Sync + 'static,
    {
        let callbacks = self.callbacks.get_or_insert_default();
        Arc::make_mut(callbacks).set_on_breach(f);
        self
    }

    /// The most bytes that a record of this body has, `None` for no limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.bound.limit
    }

    /// How many bytes it has yielded so far.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read
    }

    /// The wrapped body, `None` once that has ended, has failed, or was given up.
    #[must_use]
    pub fn get_ref(&self) -> Option<&B> {
        self.inner.as_ref()
    }

    /// The wrapped body, `None` once that has ended, has failed, or was given up.
    ///
    /// Data taken from it directly is not looked at.
    #[must_use]
    pub fn get_mut(&mut self) -> Option<&mut B> {
        self.inner.as_mut()
    }

    /// Gives the wrapped body back, `None` once that has ended, has failed, or was given up.
    ///
    /// What was read from it and is held is lost.
    #[must_use]
    pub fn into_inner(mut self) -> Option<B> {
        self.callbacks = None;
        self.inner.take()
    }

    /// What may go out of a frame right now: all of it, or a part, or nothing.
    fn judge(mut self: Pin<&mut Self>, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let this = self.as_mut().project();
        let Some(limit) = this.bound.limit.filter(|_| !is_discarding()) else {
            return Some(frame);
        };
        let mut data = match (frame.into_data(), this.skip.as_mut()) {
            (Ok(data), _) => data,
            (Err(frame), None) => return Some(frame),
            (Err(frame), Some(skip)) => {
                skip.take_trailers(frame);
                return None;
            }
        };
        if let Some(skip) = this.skip {
            let (bound, callbacks) = (&*this.bound, this.callbacks.as_deref());
            let report = |span| report(bound, callbacks, span, true);
            return skip.take(data, this.finder, limit, report).map(Frame::data);
        }
        let Some(breach) = this.finder.check(&data, limit) else {
            return Some(Frame::data(data));
        };
        let error = error(
            this.bound,
            limit,
            breach.start,
            limit.saturating_add(1),
            false,
        );
        if let Some(callbacks) = this.callbacks {
            callbacks.breach(&error);
        }
        self.end(Some(error.into()));
        data.truncate(breach.cut);
        (!data.is_empty()).then(|| Frame::data(data))
    }

    /// Gives the wrapped body up. What was read of it may still go out, and then the failure.
    fn end(self: Pin<&mut Self>, failure: Option<Error>) {
        let mut this = self.project();
        this.inner.set(None);
        if let Some(skip) = this.skip {
            let is_total = failure.is_none();
            report_unfinished(this.bound, this.callbacks.as_deref(), this.finder, is_total);
            skip.close();
        }
        if let Some(failure) = failure {
            this.failure.set(failure);
        }
    }

    fn finish(self: Pin<&mut Self>, outcome: Outcome) {
        let this = self.project();
        if let Some(callbacks) = this.callbacks.take() {
            callbacks.end(&BodyEnd::new(*this.bound, *this.read, outcome));
        }
    }

    /// Reports a body that goes before its end, as far as anybody polled it.
    fn report_drop(self: Pin<&mut Self>) {
        let this = self.as_ref();
        let inner = this.inner.as_ref();
        let is_over = inner.is_none_or(this.is_complete);
        if this.skip.is_some() && inner.is_some() {
            report_unfinished(
                &this.bound,
                this.callbacks.as_deref(),
                &this.finder,
                is_over,
            );
        }
        let outcome = if this.failure.is_waiting() {
            Outcome::Failed
        } else if is_over && this.skip.as_ref().is_none_or(|skip| skip.is_empty()) {
            Outcome::Complete
        } else {
            Outcome::Dropped
        };
        self.finish(outcome);
    }
}

fn error(bound: &Bound, limit: u64, start: u64, size: u64, is_total: bool) -> TooLarge {
    TooLarge {
        record_offset: Some(start),
        ..bound.breached(limit, Declared::Nothing, size, is_total)
    }
}

fn report(bound: &Bound, callbacks: Option<&Callbacks>, span: Span, is_total: bool) {
    if let (Some(limit), Some(callbacks)) = (bound.limit, callbacks) {
        callbacks.breach(&error(bound, limit, span.start, span.size, is_total));
    }
}

/// Reports what was being removed when the wrapped body went.
fn report_unfinished(
    bound: &Bound,
    callbacks: Option<&Callbacks>,
    finder: &Finder,
    is_total: bool,
) {
    let is_over = |span: &Span| bound.limit.is_some_and(|limit| span.size > limit);
    for span in finder.unfinished().filter(is_over) {
        report(bound, callbacks, span, is_total);
    }
}

/// The default of the wrapped body, without a limit.
impl<B: Default> Default for RecordLimitedBody<B> {
    fn default() -> Self {
        Self {
            inner: Some(B::default()),
            bound: Bound::by_hand(None, Subject::Record),
            finder: Finder::Lines(Lines::default()),
            skip: None,
            read: 0,
            failure: Failure::default(),
            callbacks: None,
            is_complete: |_| false,
        }
    }
}

impl<B> Body for RecordLimitedBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let mut turns = Turns::default();
        loop {
            let mut this = self.as_mut().project();
            let ready = this.skip.as_mut().and_then(|skip| skip.pop());
            let frame = match ready {
                Some(frame) => Some(frame),
                None => {
                    if let Some(failure) = ready!(this.failure.poll(cx)) {
                        self.finish(Outcome::Failed);
                        return Poll::Ready(Some(Err(failure)));
                    }
                    let Some(inner) = this.inner.as_mut().as_pin_mut() else {
                        self.finish(Outcome::Complete);
                        return Poll::Ready(None);
                    };
                    ready!(turns.poll(cx));
                    match ready!(inner.poll_frame(cx)) {
                        Some(Ok(frame)) => self.as_mut().judge(frame),
                        Some(Err(error)) => {
                            self.as_mut().end(Some(Error::from_body(error)));
                            None
                        }
                        None => {
                            self.as_mut().end(None);
                            None
                        }
                    }
                }
            };
            if let Some(frame) = frame {
                let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
                let read = self.as_mut().project().read;
                *read = read.saturating_add(bytes);
                return Poll::Ready(Some(Ok(frame)));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        !self.failure.is_waiting()
            && self.inner.as_ref().is_none_or(B::is_end_stream)
            && self.skip.as_ref().is_none_or(|skip| skip.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        if self.failure.is_waiting() {
            return SizeHint::new();
        }
        let inner = match &self.inner {
            Some(inner) => inner.size_hint(),
            None => SizeHint::with_exact(0),
        };
        let Some(skip) = &self.skip else {
            return inner;
        };
        let mut hint = SizeHint::new();
        let upper = inner
            .upper()
            .and_then(|upper| upper.checked_add(skip.bytes()));
        if let Some(upper) = upper {
            hint.set_upper(upper);
        }
        hint
    }
}
