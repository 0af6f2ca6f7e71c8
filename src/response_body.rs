use std::{
    mem,
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

#[cfg(all(feature = "json", feature = "records"))]
use crate::json::Events;

/// Without the two features no events are changed.
#[cfg(not(all(feature = "json", feature = "records")))]
#[derive(Debug)]
enum Events {}

#[cfg(not(all(feature = "json", feature = "records")))]
impl Events {
    fn poll_frame<B>(
        &mut self,
        _: Pin<&mut LimitedBody<B>>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match *self {}
    }

    fn is_empty(&self) -> bool {
        match *self {}
    }
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
        Inner {
            #[pin]
            body: LimitedBody<B>,
            // What changes the events of a stream.
            events: Option<Box<Events>>,
        },
        Held { held: Held },
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
            state: State::Inner { body, events: None },
            failure: Failure::new(None, flush),
        }
    }

    /// The inner service's body, an event stream, with its events changed.
    #[cfg(all(feature = "json", feature = "records"))]
    pub(crate) fn events(body: LimitedBody<B>, events: Events, flush: Option<Flush>) -> Self {
        let events = Some(Box::new(events));
        Self {
            state: State::Inner { body, events },
            failure: Failure::new(None, flush),
        }
    }

    /// The inner service's body as it is.
    pub(crate) fn passing(body: B) -> Self {
        Self::inner(LimitedBody::unlimited(body), None)
    }

    /// What was held, and then the failure that ended it.
    pub(crate) fn held(held: Held, failure: Option<Error>, flush: Option<Flush>) -> Self {
        Self {
            state: State::Held { held },
            failure: Failure::new(failure, flush),
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
            StateProj::Inner { .. } if this.failure.is_waiting() => {}
            StateProj::Inner { body, events } => {
                let frame = match events {
                    Some(events) => events.poll_frame(body, cx),
                    None => body.poll_frame(cx),
                };
                match ready!(frame) {
                    Some(Err(failure)) => this.failure.set(failure),
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
                State::Inner { body, events } => {
                    body.is_end_stream() && events.as_ref().is_none_or(|events| events.is_empty())
                }
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
            // An answer in place of an event may be larger than that.
            State::Inner {
                events: Some(_), ..
            } if !self.is_end_stream() => SizeHint::new(),
            State::Inner { body, .. } => body.size_hint(),
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
