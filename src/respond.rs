//! What a server sends in place of a message that is too large.
//!
//! An answer is a closure over the error and the [`RequestHead`]. The functions here are such
//! closures, to be given to `answer_with` of a layer or to be called from a closure of your own:
//!
//! | answer | status | body |
//! |---|---|---|
//! | [`plain_text`] (the default) | [`TooLarge::status`] | one sentence |
//!
//! No answer states a number: a limit is nobody's business until you decide that it is. Whatever the
//! closure leaves out, the layer adds: `Content-Length`, an empty body for HEAD, and on HTTP/1
//! `Connection: close` if the connection cannot be used again.
//!
//! # Examples
//!
//! A server that speaks JSON-RPC:
//!
//! ```
//! use http::{Response, header::CONTENT_TYPE};
//! use tower_body_limit::{RequestSizeLimitLayer, TooLarge, respond::RequestHead};
//!
//! fn json_rpc(error: &TooLarge, _: &RequestHead) -> Response<String> {
//!     let message = format!("at most {} bytes", error.limit());
//!     Response::builder()
//!         .status(error.status())
//!         .header(CONTENT_TYPE, "application/json")
//!         .body(format!(
//!             r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":-32600,"message":"{message}"}}}}"#
//!         ))
//!         .unwrap()
//! }
//!
//! # use bytes::Bytes;
//! # use http::Request;
//! # use http_body_util::{BodyExt, Full};
//! # use tower::{Layer, ServiceExt, service_fn};
//! # use tower_body_limit::LimitedBody;
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! # let service = service_fn(async |_: Request<LimitedBody<Full<Bytes>>>| Ok::<_, std::io::Error>(Response::new(Full::<Bytes>::default())));
//! let layer = RequestSizeLimitLayer::server(10).answer_with(json_rpc);
//! let request = Request::new(Full::from("eleven byte"));
//! let response = layer.layer(service).oneshot(request).await.unwrap();
//! assert_eq!(response.status(), 413);
//! let text = response.into_body().collect().await.unwrap().to_bytes();
//! assert!(text.ends_with(br#""message":"at most 10 bytes"}}"#));
//! # }
//! ```

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, Uri, Version,
    header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{
    body::LimitedBody,
    error::{BoxError, Error, Subject, TooLarge},
    hold::Held,
};

/// The parts of a request's head that an answer may depend on.
///
/// Kept from the moment the request arrives, without allocating.
#[derive(Clone, Debug)]
pub struct RequestHead {
    method: Method,
    uri: Uri,
    version: Version,
    accept: Option<HeaderValue>,
    content_type: Option<HeaderValue>,
}

impl RequestHead {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            accept: headers.get(ACCEPT).cloned(),
            content_type: headers.get(CONTENT_TYPE).cloned(),
        }
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// The request target, query included.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The version of HTTP.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The first `Accept` field.
    #[must_use]
    pub fn accept(&self) -> Option<&HeaderValue> {
        self.accept.as_ref()
    }

    /// The `Content-Type` field.
    #[must_use]
    pub fn content_type(&self) -> Option<&HeaderValue> {
        self.content_type.as_ref()
    }
}

/// One sentence of plain text, with the status that fits the error.
///
/// # Examples
///
/// ```
/// use tower_body_limit::{RequestSizeLimitLayer, respond};
///
/// // What the layer does anyway.
/// let layer = RequestSizeLimitLayer::server(1024 * 1024).answer_with(respond::plain_text);
/// ```
#[must_use]
pub fn plain_text(error: &TooLarge, _: &RequestHead) -> Response<Bytes> {
    let text = match error.subject() {
        Subject::Request => "The request body is too large.\n",
        _ => "The response body is too large.\n",
    };
    let mut response = Response::new(Bytes::from_static(text.as_bytes()));
    *response.status_mut() = error.status();
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

/// What a layer answers with.
#[derive(Clone)]
pub(crate) struct Answer(Arc<MakeAnswer>);

type MakeAnswer = dyn Fn(&TooLarge, &RequestHead) -> Response<Bytes> + Send + Sync;

impl Answer {
    pub(crate) fn new<F, T>(answer: F) -> Self
    where
        F: Fn(&TooLarge, &RequestHead) -> Response<T> + Send + Sync + 'static,
        T: Into<Bytes>,
    {
        Self(Arc::new(move |error, head| {
            answer(error, head).map(Into::into)
        }))
    }

    /// The whole answer, with what the closure may have left out.
    pub(crate) fn make<B>(&self, error: TooLarge, head: &RequestHead) -> Response<ResponseBody<B>> {
        let (mut parts, text) = (self.0)(&error, head).into_parts();
        parts.headers.insert(CONTENT_LENGTH, text.len().into());
        parts.extensions.insert(error);
        let text = if head.method == Method::HEAD {
            Bytes::new()
        } else {
            text
        };
        Response::from_parts(parts, ResponseBody::answer(text))
    }
}

impl Default for Answer {
    fn default() -> Self {
        Self::new(plain_text)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
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
        // An error that waits for what came before it to be flushed.
        failure: Option<Error>,
        flush: bool,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProj]
    enum State<B> {
        Inner { #[pin] body: LimitedBody<B> },
        Held { held: Held },
        Answer { text: Bytes },
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn inner(body: LimitedBody<B>) -> Self {
        Self {
            state: State::Inner { body },
            failure: None,
            flush: false,
        }
    }

    /// What was held, and then the failure that ended it.
    pub(crate) fn held(held: Held, failure: Option<Error>) -> Self {
        Self {
            state: State::Held { held },
            failure,
            flush: false,
        }
    }

    pub(crate) fn answer(text: Bytes) -> Self {
        Self {
            state: State::Answer { text },
            failure: None,
            flush: false,
        }
    }

    /// Returns Pending once before an error, waking itself. A server then sends the head and what
    /// passed, so the client sees a response that breaks off and not a connection that closes
    /// without one, which it would take for a reason to repeat the request.
    pub(crate) fn flush_before_error(self) -> Self {
        Self {
            flush: true,
            ..self
        }
    }
}

impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::inner(LimitedBody::default())
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
        let failure = match this.state.project() {
            StateProj::Inner { body } => {
                if let Some(failure) = this.failure.take() {
                    return Poll::Ready(Some(Err(failure)));
                }
                match ready!(body.poll_frame(cx)) {
                    Some(Err(failure)) => failure,
                    frame => return Poll::Ready(frame),
                }
            }
            StateProj::Held { held } => match (held.pop(), this.failure.take()) {
                (Some(frame), failure) => {
                    *this.failure = failure;
                    return Poll::Ready(Some(Ok(frame)));
                }
                (None, Some(failure)) => failure,
                (None, None) => return Poll::Ready(None),
            },
            StateProj::Answer { text } => {
                let text = std::mem::take(text);
                let frame = (!text.is_empty()).then(|| Ok(Frame::data(text)));
                return Poll::Ready(frame);
            }
        };
        if std::mem::take(this.flush) {
            *this.failure = Some(failure);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(failure)))
    }

    fn is_end_stream(&self) -> bool {
        self.failure.is_none()
            && match &self.state {
                State::Inner { body } => body.is_end_stream(),
                State::Held { held } => held.is_empty(),
                State::Answer { text } => text.is_empty(),
            }
    }

    fn size_hint(&self) -> SizeHint {
        if self.failure.is_some() {
            return SizeHint::new();
        }
        match &self.state {
            State::Inner { body } => body.size_hint(),
            State::Held { held } => held.size_hint(),
            State::Answer { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}
