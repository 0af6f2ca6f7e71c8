use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{
    body::LimitedBody,
    drain::Drain,
    error::{BoxError, Error},
    flush::{Failure, Flush},
    hold::Held,
};

/// What changes the data of a body as it passes.
pub(crate) trait Rewrite<B>: fmt::Debug + Send + Sync {
    fn poll_frame(
        &mut self,
        body: Pin<&mut LimitedBody<B>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>>;

    /// Whether nothing is held that may still go out.
    fn is_empty(&self) -> bool;
}

pin_project! {
    /// The body of every response of this crate's services: the inner service's, limited or not, or
    /// an answer of ours in its place.
    ///
    /// # Errors
    ///
    /// As [`LimitedBody`](crate::LimitedBody).
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        state: State<B>,
        failure: Failure,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProj]
    enum State<B> {
        // None once it has ended or has failed.
        Passing { #[pin] body: Option<B> },
        Inner { #[pin] body: LimitedBody<B> },
        // Boxed, as these are rare and large.
        Rewritten { body: Pin<Box<LimitedBody<B>>>, rewrite: Box<dyn Rewrite<B>> },
        Held { held: Box<Held> },
        Answer {
            text: Bytes,
            // Goes out when the request has been drained: a server that has sent all of its answer
            // closes the connection under a client that is still writing.
            last: Bytes,
            drain: Option<Drain>,
        },
    }
}

impl<B> ResponseBody<B> {
    /// The inner service's body, with what makes a server send what came before its error.
    pub(crate) fn inner(body: LimitedBody<B>, flush: Option<Flush>) -> Self {
        Self {
            state: State::Inner { body },
            failure: Failure::new(flush),
        }
    }

    /// The inner service's body, changed as it passes.
    #[cfg(all(feature = "json", feature = "records"))]
    pub(crate) fn rewritten(
        body: LimitedBody<B>,
        rewrite: impl Rewrite<B> + 'static,
        flush: Option<Flush>,
    ) -> Self {
        Self {
            state: State::Rewritten {
                body: Box::pin(body),
                rewrite: Box::new(rewrite),
            },
            failure: Failure::new(flush),
        }
    }

    /// The inner service's body as it is.
    pub(crate) fn passing(body: B) -> Self {
        Self {
            state: State::Passing { body: Some(body) },
            failure: Failure::default(),
        }
    }

    /// What was held, and then the failure that ended it.
    pub(crate) fn held(held: Box<Held>, error: Option<Error>, flush: Option<Flush>) -> Self {
        let mut failure = Failure::new(flush);
        if let Some(error) = error {
            failure.set(error);
        }
        Self {
            state: State::Held { held },
            failure,
        }
    }

    pub(crate) fn answer(mut text: Bytes, drain: Option<Drain>) -> Self {
        let last = match drain {
            Some(_) => text.split_off(text.len().saturating_sub(1)),
            None => Bytes::new(),
        };
        Self {
            state: State::Answer { text, last, drain },
            failure: Failure::default(),
        }
    }
}

impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::inner(LimitedBody::default(), None)
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.project();
        match this.state.project() {
            StateProj::Passing { body } => return poll_passing(body, cx),
            StateProj::Inner { .. } | StateProj::Rewritten { .. } if this.failure.is_waiting() => {}
            StateProj::Inner { body } => match ready!(body.poll_frame(cx)) {
                Some(Err(error)) => this.failure.set(error),
                frame => return Poll::Ready(frame),
            },
            StateProj::Rewritten { body, rewrite } => {
                match ready!(rewrite.poll_frame(body.as_mut(), cx)) {
                    Some(Err(error)) => this.failure.set(error),
                    frame => return Poll::Ready(frame),
                }
            }
            StateProj::Held { held } => {
                if let Some(frame) = held.pop() {
                    return Poll::Ready(Some(Ok(frame)));
                }
            }
            StateProj::Answer { text, last, drain } => {
                if text.is_empty() {
                    if let Some(drain) = drain {
                        ready!(drain.poll(cx));
                    }
                    *drain = None;
                    *text = mem::take(last);
                }
                let text = mem::take(text);
                return Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text))));
            }
        }
        Poll::Ready(ready!(this.failure.poll(cx)).map(Err))
    }

    fn is_end_stream(&self) -> bool {
        !self.failure.is_waiting()
            && match &self.state {
                State::Passing { body } => body.as_ref().is_none_or(B::is_end_stream),
                State::Inner { body } => body.is_end_stream(),
                State::Rewritten { body, rewrite } => body.is_end_stream() && rewrite.is_empty(),
                State::Held { held } => held.is_empty(),
                State::Answer { text, last, drain } => {
                    text.is_empty() && last.is_empty() && drain.is_none()
                }
            }
    }

    fn size_hint(&self) -> SizeHint {
        if self.failure.is_waiting() {
            return SizeHint::new();
        }
        match &self.state {
            State::Passing { body: Some(body) } => body.size_hint(),
            State::Passing { body: None } => SizeHint::with_exact(0),
            State::Inner { body } => body.size_hint(),
            State::Rewritten { .. } if self.is_end_stream() => SizeHint::with_exact(0),
            // What comes in place of something may be larger than that.
            State::Rewritten { .. } => SizeHint::new(),
            State::Held { held } => held.size_hint(),
            // An exact hint of zero would end the answer, and with it the drain, at the head.
            State::Answer {
                text,
                last,
                drain: Some(_),
            } if text.is_empty() && last.is_empty() => SizeHint::new(),
            State::Answer { text, last, .. } => {
                SizeHint::with_exact((text.len() + last.len()) as u64)
            }
        }
    }
}

fn poll_passing<B>(
    mut body: Pin<&mut Option<B>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, Error>>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let Some(inner) = body.as_mut().as_pin_mut() else {
        return Poll::Ready(None);
    };
    let end = match ready!(inner.poll_frame(cx)) {
        // Taken apart for the reason given in `LimitedBody`.
        Some(Ok(frame)) => {
            return Poll::Ready(Some(Ok(match frame.into_data() {
                Ok(data) => Frame::data(data),
                Err(frame) => frame,
            })));
        }
        Some(Err(error)) => Some(Err(Error::from_body(error))),
        None => None,
    };
    body.set(None);
    Poll::Ready(end)
}
