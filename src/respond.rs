//! What a server sends in place of a message that is too large.
//!
//! An answer is a closure over the error and the [`RequestHead`]. The functions here are such
//! closures, to be given to `answer_with` of a layer or to be called from a closure of your own:
//!
//! | answer | status | body |
//! |---|---|---|
//! | [`plain_text`] | [`TooLarge::status`] | one sentence |
//! | [`problem_json`] | [`TooLarge::status`] | a problem (RFC 9457) |
//! | [`problem_json_with_limit`] | [`TooLarge::status`] | a problem with a member `limit` |
//! | [`grpc`] | 200, with `grpc-status: 8` (`RESOURCE_EXHAUSTED`) | none |
//! | [`standard`] (the default) | as | `grpc` to gRPC and gRPC-Web, `plain_text` to others |
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
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, Version,
    header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{
    body::LimitedBody,
    drain::Drain,
    error::{BoxError, Error, Subject, TooLarge},
    hold::Held,
    media,
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
    pub(crate) fn new(method: &Method, uri: &Uri, version: Version, headers: &HeaderMap) -> Self {
        Self {
            method: method.clone(),
            uri: uri.clone(),
            version,
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

/// What the layers answer with unless told otherwise: [`grpc`] to requests whose media type is
/// gRPC's, [`plain_text`] to others.
#[must_use]
pub fn standard(error: &TooLarge, head: &RequestHead) -> Response<Bytes> {
    match head.content_type() {
        Some(content_type) if media::is_grpc(content_type) => grpc(error, head),
        _ => plain_text(error, head),
    }
}

/// One sentence of plain text, with the status that fits the error.
///
/// # Examples
///
/// ```
/// use tower_body_limit::{RequestSizeLimitLayer, respond};
///
/// // Also to gRPC.
/// let layer = RequestSizeLimitLayer::server(1024 * 1024).answer_with(respond::plain_text);
/// ```
#[must_use]
pub fn plain_text(error: &TooLarge, _: &RequestHead) -> Response<Bytes> {
    let text = format!("{}\n", sentence(error));
    with_type(error.status(), "text/plain; charset=utf-8", text)
}

/// A problem in JSON (RFC 9457), with the status that fits the error.
///
/// # Examples
///
/// ```
/// use tower_body_limit::{ResponseSizeLimitLayer, respond};
///
/// let layer = ResponseSizeLimitLayer::server(1024 * 1024).answer_with(respond::problem_json);
/// ```
#[must_use]
pub fn problem_json(error: &TooLarge, _: &RequestHead) -> Response<Bytes> {
    problem(error, "")
}

/// A problem in JSON (RFC 9457) that states the limit, as the member `limit` in bytes.
///
/// # Examples
///
/// ```
/// use tower_body_limit::{RequestSizeLimitLayer, respond};
///
/// let layer =
///     RequestSizeLimitLayer::server(1024 * 1024).answer_with(respond::problem_json_with_limit);
/// ```
#[must_use]
pub fn problem_json_with_limit(error: &TooLarge, _: &RequestHead) -> Response<Bytes> {
    problem(error, &format!(r#","limit":{}"#, error.limit()))
}

/// A gRPC status in the head and no body ("trailers-only"): `RESOURCE_EXHAUSTED`.
///
/// # Examples
///
/// ```
/// use tower_body_limit::{RequestSizeLimitLayer, respond};
///
/// // Also to requests that do not look like gRPC.
/// let layer = RequestSizeLimitLayer::server(4 * 1024 * 1024).answer_with(respond::grpc);
/// ```
#[must_use]
pub fn grpc(error: &TooLarge, head: &RequestHead) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    let content_type = head
        .content_type()
        .filter(|content_type| media::is_grpc(content_type));
    let content_type = content_type.cloned();
    let default = || HeaderValue::from_static("application/grpc");
    headers.insert(CONTENT_TYPE, content_type.unwrap_or_else(default));
    headers.insert("grpc-status", HeaderValue::from_static("8"));
    // Nothing in these sentences needs the percent-encoding of a grpc-message.
    headers.insert("grpc-message", HeaderValue::from_static(sentence(error)));
    response
}

fn sentence(error: &TooLarge) -> &'static str {
    match error.subject() {
        Subject::Request => "The request body is too large.",
        Subject::Response => "The response body is too large.",
        Subject::Record => "A record is too large.",
        Subject::Body => "The body is too large.",
    }
}

fn problem(error: &TooLarge, more: &str) -> Response<Bytes> {
    let (status, detail) = (error.status(), sentence(error));
    let title = match status {
        // Its name in RFC 9110; the one in `http` is older.
        StatusCode::PAYLOAD_TOO_LARGE => "Content Too Large",
        _ => status.canonical_reason().unwrap_or_default(),
    };
    let status_code = status.as_u16();
    let text = format!(
        r#"{{"type":"about:blank","title":"{title}","status":{status_code},"detail":"{detail}"{more}}}"#
    );
    with_type(status, "application/problem+json", text)
}

pub(crate) fn with_type(
    status: StatusCode,
    content_type: &'static str,
    text: impl Into<Bytes>,
) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// What a layer answers with, and to which error.
pub(crate) struct Answer<E = TooLarge>(Arc<MakeAnswer<E>>);

type MakeAnswer<E> = dyn Fn(&E, &RequestHead) -> Response<Bytes> + Send + Sync;

impl<E> Answer<E> {
    pub(crate) fn new<F, T>(answer: F) -> Self
    where
        F: Fn(&E, &RequestHead) -> Response<T> + Send + Sync + 'static,
        T: Into<Bytes>,
    {
        Self(Arc::new(move |error, head| {
            answer(error, head).map(Into::into)
        }))
    }

    /// The whole answer, with what the closure may have left out, sent while `drain` lasts.
    pub(crate) fn make<B>(
        &self,
        error: E,
        head: &RequestHead,
        drain: Option<Drain>,
    ) -> Response<ResponseBody<B>>
    where
        E: Clone + Send + Sync + 'static,
    {
        let (mut parts, text) = (self.0)(&error, head).into_parts();
        if !text.is_empty() {
            parts.headers.insert(CONTENT_LENGTH, text.len().into());
        }
        parts.extensions.insert(error);
        parts.extensions.insert(Refusal);
        let text = if head.method == Method::HEAD {
            Bytes::new()
        } else {
            text
        };
        Response::from_parts(parts, ResponseBody::answer(text, drain))
    }
}

impl<E> Clone for Answer<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Marks an answer of ours, which other limits leave alone.
#[derive(Clone)]
pub(crate) struct Refusal;

impl Default for Answer {
    fn default() -> Self {
        Self::new(standard)
    }
}

impl<E> fmt::Debug for Answer<E> {
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

    pub(crate) fn answer(mut text: Bytes, drain: Option<Drain>) -> Self {
        let last = match drain {
            Some(_) => text.split_off(text.len().saturating_sub(1)),
            None => Bytes::new(),
        };
        Self {
            state: State::Answer { text, last, drain },
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
        };
        if mem::take(this.flush) {
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
                State::Answer { text, last, drain } => {
                    text.is_empty() && last.is_empty() && drain.is_none()
                }
            }
    }

    fn size_hint(&self) -> SizeHint {
        if self.failure.is_some() {
            return SizeHint::new();
        }
        match &self.state {
            State::Inner { body } => body.size_hint(),
            State::Held { held } => held.size_hint(),
            // An announced length of zero would end the answer, and with it the drain, at the head.
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
