use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{
    control::LimitControl,
    drain::is_discarding,
    error::{BoxError, Error, Subject, TooLarge},
    length::Declared,
    watch::{BodyEnd, Outcome, Watcher},
};

pin_project! {
    /// A body that yields at most `limit` bytes of data, and fails with
    /// [`TooLarge`](crate::TooLarge) if there are more.
    ///
    /// | the wrapped body | with a limit of 10 |
    /// |---|---|
    /// | 10 bytes in any frames, trailers or none | passes as it is |
    /// | declares 11 bytes or more | error on the first poll, the wrapped body is not polled |
    /// | declares nothing, yields 4, 4, 4 bytes | 4, 4, error |
    /// | fails after 4 bytes | 4, its own error as [`Error::Body`](crate::Error::Body) |
    ///
    /// Frames pass uncopied, and nothing is allocated or read ahead. The frame that crosses the
    /// limit is dropped whole. The error comes once and is followed by the end, and the wrapped body
    /// is dropped at that moment, so whoever is sending it stops.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`](crate::Error::TooLarge) when the limit is exceeded, and
    /// [`Error::Body`](crate::Error::Body) when the wrapped body fails. After either the body is at
    /// its end.
    ///
    /// # Size hint
    ///
    /// The wrapped body's own, unless that already proves that the limit will be exceeded: then the
    /// hint says nothing, as a server would otherwise announce a length that never comes.
    ///
    /// # Examples
    ///
    /// ```
    /// use http_body_util::BodyExt;
    /// use tower_body_limit::{LimitedBody, TooLarge};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let body = LimitedBody::new(String::from("ten bytes."), 10);
    /// assert_eq!(body.collect().await.unwrap().to_bytes(), "ten bytes.");
    ///
    /// let body = LimitedBody::new(String::from("eleven byte"), 10);
    /// let error = body.collect().await.unwrap_err();
    /// assert_eq!(TooLarge::find(&error).unwrap().limit(), 10);
    /// # }
    /// ```
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        // None once the wrapped body has ended, has failed, or was given up.
        #[pin]
        inner: Option<B>,
        // Until the first poll has set `most`.
        unsettled: bool,
        read: u64,
        // The limit, or all that can be counted.
        most: u64,
        bound: Bound,
        declared: Declared,
        outlook: Outlook,
        watcher: Watcher<B>,
        // May still change the limit, until the first poll.
        control: Option<LimitControl>,
    }

    impl<B> PinnedDrop for LimitedBody<B> {
        fn drop(this: Pin<&mut Self>) {
            this.report_drop();
        }
    }
}

type PollFrame<D> = Poll<Option<Result<Frame<D>, Error>>>;

/// What the head of the message says about the body that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// It may or may not stay within the limit.
    Open,
    /// It is declared to be over the limit, so there is no use in polling it.
    Doomed,
    /// The message has no body, so its length is that of another message (HEAD, 304).
    Bodiless,
}

impl Outlook {
    fn of(bound: Bound, declared: Declared) -> Self {
        let doomed = bound.limit.is_some_and(|limit| declared.exceeds(limit));
        if doomed { Self::Doomed } else { Self::Open }
    }
}

/// A limit, and what its error will say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) limit: Option<u64>,
    pub(crate) subject: Subject,
    pub(crate) status: StatusCode,
    pub(crate) label: Option<&'static str>,
}

impl Bound {
    pub(crate) fn by_hand(limit: Option<u64>, subject: Subject) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self {
            limit,
            subject,
            status,
            label: None,
        }
    }

    /// The error if the declared length alone proves the breach.
    pub(crate) fn refuses(&self, declared: Declared) -> Option<TooLarge> {
        let limit = self.limit.filter(|&limit| declared.exceeds(limit))?;
        Some(self.breached(limit, declared, 0, false))
    }

    pub(crate) fn breached(
        &self,
        limit: u64,
        declared: Declared,
        read: u64,
        read_is_total: bool,
    ) -> TooLarge {
        let declared = declared.bytes();
        let Self {
            subject,
            status,
            label,
            ..
        } = *self;
        TooLarge {
            limit,
            declared,
            read,
            read_is_total,
            record_offset: None,
            subject,
            status,
            label,
        }
    }
}

impl<B: Body> LimitedBody<B> {
    /// Limits `inner` to `limit` bytes of data.
    pub fn new(inner: B, limit: u64) -> Self {
        let declared = Declared::by_hint(&inner.size_hint());
        let bound = Bound::by_hand(Some(limit), Subject::Body);
        Self::bounded(inner, bound, declared, Watcher::NOBODY)
    }
}

impl<B> LimitedBody<B> {
    pub(crate) fn bounded(inner: B, bound: Bound, declared: Declared, watcher: Watcher<B>) -> Self {
        Self {
            inner: Some(inner),
            unsettled: true,
            read: 0,
            most: 0,
            bound,
            declared,
            outlook: Outlook::of(bound, declared),
            watcher,
            control: None,
        }
    }

    pub(crate) fn set_control(&mut self, control: LimitControl) {
        self.outlook = Outlook::Open;
        self.control = Some(control);
    }

    /// For a body that only passes.
    pub(crate) fn unlimited(inner: B) -> Self {
        let bound = Bound::by_hand(None, Subject::Body);
        Self::bounded(inner, bound, Declared::Nothing, Watcher::NOBODY)
    }

    /// For a message that has no body, whatever it declares.
    pub(crate) fn bodiless(inner: B, bound: Bound, watcher: Watcher<B>) -> Self {
        let mut body = Self::bounded(inner, bound, Declared::Nothing, watcher);
        body.outlook = Outlook::Bodiless;
        body
    }

    /// The most bytes that this body yields, `None` for no limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.control
            .as_ref()
            .map_or(self.bound.limit, LimitControl::limit)
    }

    /// How many bytes it has yielded so far.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read
    }

    /// How many bytes it may still yield, `None` for no limit.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.limit().map(|limit| limit.saturating_sub(self.read))
    }

    /// The wrapped body, `None` once that has ended, has failed, or was given up.
    #[must_use]
    pub fn get_ref(&self) -> Option<&B> {
        self.inner.as_ref()
    }

    /// The wrapped body, `None` once that has ended, has failed, or was given up.
    ///
    /// Data taken from it directly is not counted.
    #[must_use]
    pub fn get_mut(&mut self) -> Option<&mut B> {
        self.inner.as_mut()
    }

    /// Gives the wrapped body back, `None` once that has ended, has failed, or was given up.
    #[must_use]
    pub fn into_inner(mut self) -> Option<B> {
        self.inner.take()
    }

    /// The first poll, which settles the limit, and fails if that is enough to know that the body
    /// exceeds it.
    #[cold]
    #[inline(never)]
    fn poll_first(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PollFrame<B::Data>
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        let this = self.as_mut().project();
        if let Some(control) = this.control.take() {
            this.bound.limit = control.freeze();
            *this.outlook = Outlook::of(*this.bound, *this.declared);
        }
        *this.most = this.bound.limit.unwrap_or(u64::MAX);
        *this.unsettled = false;
        let doomed = *this.outlook == Outlook::Doomed && this.inner.is_some();
        match this.bound.limit.filter(|_| doomed && !is_discarding()) {
            Some(limit) => Poll::Ready(Some(Err(self.breach(limit, Some(0))))),
            None => {
                let poll = self.as_mut().poll_frame(cx);
                // Whoever reads on after a drain is still to be told.
                *self.project().unsettled = doomed;
                poll
            }
        }
    }

    /// What becomes of data with which more was read than the limit, or than can be counted: the
    /// breach, unless there is no limit or this is only a drain.
    #[cold]
    #[inline(never)]
    fn cross(self: Pin<&mut Self>, data: B::Data, read: Option<u64>) -> PollFrame<B::Data>
    where
        B: Body,
    {
        Poll::Ready(Some(match self.bound.limit {
            Some(limit) if !is_discarding() => Err(self.breach(limit, read)),
            _ => {
                *self.project().read = read.unwrap_or(u64::MAX);
                Ok(Frame::data(data))
            }
        }))
    }

    /// Gives the wrapped body up and passes its error on.
    #[cold]
    #[inline(never)]
    fn fail(self: Pin<&mut Self>, error: B::Error) -> Error
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        self.finish(Outcome::Failed);
        Error::from_body(error)
    }

    /// Gives the wrapped body up and says why.
    #[cold]
    fn breach(mut self: Pin<&mut Self>, limit: u64, read: Option<u64>) -> Error
    where
        B: Body,
    {
        let this = self.as_mut().project();
        let inner = this.inner.as_ref().get_ref().as_ref();
        let read_is_total =
            read.is_some_and(|read| read > 0) && inner.is_some_and(B::is_end_stream);
        let read = read.unwrap_or(u64::MAX);
        let error = this
            .bound
            .breached(limit, *this.declared, read, read_is_total);
        if let Watcher(Some(watcher)) = this.watcher {
            watcher.breached(&error, this.inner);
        }
        self.finish(Outcome::Failed);
        error.into()
    }

    // Not inlined, as the path of a frame is to stay short.
    #[inline(never)]
    fn finish(self: Pin<&mut Self>, outcome: Outcome) {
        let mut this = self.project();
        this.inner.set(None);
        if let Some(watcher) = this.watcher.0.take() {
            watcher.ended(BodyEnd::new(*this.bound, *this.read, outcome));
        }
    }

    /// Reports a body that goes before its end, as far as anybody polled it.
    fn report_drop(self: Pin<&mut Self>) {
        let limit = self.limit();
        let this = self.project();
        this.bound.limit = limit;
        let inner = this.inner.as_ref().get_ref().as_ref();
        let (Some(watcher), Some(inner)) = (this.watcher.0.take(), inner) else {
            return;
        };
        let complete = *this.outlook == Outlook::Bodiless
            || *this.declared == Declared::Exactly(*this.read)
            || watcher.is_complete(inner);
        let outcome = if complete {
            Outcome::Complete
        } else {
            Outcome::Dropped
        };
        watcher.ended(BodyEnd::new(*this.bound, *this.read, outcome));
    }

    /// Whether more than the limit is known to come.
    fn fails(&self, hint: &SizeHint) -> bool {
        match self.outlook {
            // A lower bound over the limit is proof, an upper bound is not.
            Outlook::Open => self
                .remaining()
                .is_some_and(|remaining| hint.lower() > remaining),
            Outlook::Doomed => true,
            Outlook::Bodiless => false,
        }
    }
}

/// The default of the wrapped body, without a limit.
impl<B: Default> Default for LimitedBody<B> {
    fn default() -> Self {
        Self::unlimited(B::default())
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = Error;

    #[inline]
    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PollFrame<B::Data> {
        if self.unsettled {
            return self.poll_first(cx);
        }
        let this = self.as_mut().project();
        let Some(inner) = this.inner.as_pin_mut() else {
            return Poll::Ready(None);
        };
        match ready!(inner.poll_frame(cx)) {
            // Taken apart, as a whole frame is three times as large as its data and would be copied.
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => match this.read.checked_add(data.remaining() as u64) {
                    Some(read) if read <= *this.most => {
                        *this.read = read;
                        Poll::Ready(Some(Ok(Frame::data(data))))
                    }
                    read => self.cross(data, read),
                },
                Err(frame) => Poll::Ready(Some(Ok(frame))),
            },
            Some(Err(error)) => Poll::Ready(Some(Err(self.fail(error)))),
            None => {
                self.finish(Outcome::Complete);
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Some(inner) => inner.is_end_stream() && !self.fails(&inner.size_hint()),
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Some(inner) => Some(inner.size_hint())
                .filter(|hint| !self.fails(hint))
                .unwrap_or_default(),
            None => SizeHint::with_exact(0),
        }
    }
}
