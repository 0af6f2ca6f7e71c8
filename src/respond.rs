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
//! `Connection: close` if the connection cannot be used again. An answer of up to 64 KiB passes the
//! limits of this crate that stand further out, whatever these are.
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

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{
    Extensions, HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, Version,
    header::{ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE},
};

use crate::{
    drain::Drain,
    error::{Subject, TooLarge},
    length::values_of,
    media,
    response_body::ResponseBody,
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
    /// What is enough where nothing will be answered.
    pub(crate) fn without_fields(method: &Method, version: Version) -> Self {
        Self {
            method: method.clone(),
            uri: Uri::default(),
            version,
            accept: None,
            content_type: None,
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
    with_plain_text(error.status(), line(error))
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

fn line(error: &TooLarge) -> &'static str {
    match error.subject() {
        Subject::Request => "The request body is too large.\n",
        Subject::Response => "The response body is too large.\n",
        Subject::Record => "A record is too large.\n",
        Subject::Body => "The body is too large.\n",
    }
}

fn sentence(error: &TooLarge) -> &'static str {
    line(error).trim_end()
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

pub(crate) fn with_plain_text(status: StatusCode, text: impl Into<Bytes>) -> Response<Bytes> {
    with_type(status, "text/plain; charset=utf-8", text)
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
pub(crate) struct Answer<E = TooLarge> {
    make: Arc<MakeAnswer<E>>,
    // Whether it is the standard one, which asks nothing of the head but the media type.
    is_standard: bool,
}

type MakeAnswer<E> = dyn Fn(&E, &RequestHead) -> Response<Bytes> + Send + Sync;

impl<E> Answer<E> {
    pub(crate) fn new<F, T>(answer: F) -> Self
    where
        F: Fn(&E, &RequestHead) -> Response<T> + Send + Sync + 'static,
        T: Into<Bytes>,
    {
        Self {
            make: Arc::new(move |error, head| answer(error, head).map(Into::into)),
            is_standard: false,
        }
    }

    /// What has to be kept of a request's head for the answer.
    pub(crate) fn head(
        &self,
        method: &Method,
        uri: &Uri,
        version: Version,
        headers: &HeaderMap,
    ) -> RequestHead {
        let mut head = RequestHead::without_fields(method, version);
        head.content_type = headers.get(CONTENT_TYPE).cloned();
        if !self.is_standard {
            head.uri = uri.clone();
            head.accept = headers.get(ACCEPT).cloned();
        }
        head
    }
}

impl<E: Clone + Send + Sync + 'static> Answer<E> {
    /// The whole answer, with what the closure may have left out, sent while `drain` lasts.
    pub(crate) fn make<B>(
        &self,
        error: E,
        head: &RequestHead,
        drain: Option<Drain>,
    ) -> Response<ResponseBody<B>> {
        let (mut parts, text) = (self.make)(&error, head).into_parts();
        match text.len() {
            // A length of zero would end the answer, and with it the drain, at the head.
            0 => parts.headers.remove(CONTENT_LENGTH),
            len => parts.headers.insert(CONTENT_LENGTH, len.into()),
        };
        parts.extensions.insert(error);
        parts.extensions.insert(Refusal);
        let text = if head.method == Method::HEAD {
            Bytes::new()
        } else {
            text
        };
        Response::from_parts(parts, ResponseBody::answer(text, drain))
    }

    /// The whole answer in place of a response that had these headers. If the connection was to be
    /// closed behind that, it still is.
    pub(crate) fn replace<B>(
        &self,
        error: E,
        head: &RequestHead,
        old: &HeaderMap,
    ) -> Response<ResponseBody<B>> {
        let mut answer = self.make(error, head, None);
        let mut options = old.get_all(CONNECTION).iter().flat_map(values_of);
        if options.any(|option| option.eq_ignore_ascii_case(b"close")) {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(CONNECTION, close);
        }
        answer
    }
}

impl<E> Clone for Answer<E> {
    fn clone(&self) -> Self {
        Self {
            make: Arc::clone(&self.make),
            is_standard: self.is_standard,
        }
    }
}

/// Marks an answer of ours: other limits of ours neither replace it nor hold it back.
#[derive(Clone)]
pub(crate) struct Refusal;

impl Refusal {
    /// What an answer may have, in bytes, whatever the limit for responses. The mark stays when
    /// something between two layers changes the body.
    pub(crate) const LIMIT: u64 = 64 * 1024;

    pub(crate) fn is_in(extensions: &Extensions) -> bool {
        extensions.get::<Self>().is_some()
    }
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            is_standard: true,
            ..Self::new(standard)
        }
    }
}

impl<E> fmt::Debug for Answer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}
