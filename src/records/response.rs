use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version, response::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    body::{RecordKind, RecordLimitedBody},
    config::Config,
};
use crate::{
    error::{BoxError, TooLarge},
    flush::Flush,
    length::{forget_the_whole, is_bodiless, is_declared},
    macros::{inner_service_accessors, reporting_settings},
    policy::Policy,
};

/// Limits each record of a response, a server-sent event or a line, and not their number.
///
/// For streams that may go on for ever. What is bounded is what a reader has to gather before it can
/// go on: one record. For a limit on the whole, put a
/// [`ResponseSizeLimitLayer`](crate::ResponseSizeLimitLayer) around it. On a server and on a client
/// alike; for the requests of a server there is [`RequestRecordLimitLayer`](crate::RequestRecordLimitLayer).
///
/// By default only responses of the fitting media type are looked at, and of these only those without
/// a `Content-Encoding` (other than `identity`): [`sse`](Self::sse) takes `text/event-stream`, [`lines`](Self::lines) takes
/// `application/ndjson`, `application/jsonl`, `application/jsonlines`, these three with `x-`, and
/// `application/stream+json`. Put the layer outside a decoder; a client that has none should not take
/// encoded streams, as nothing bounds their records.
///
/// # What is a record
///
/// The limit is inclusive and counts bytes:
///
/// | | `sse` | `lines` |
/// |---|---|---|
/// | a line ends with | LF, CR or CRLF | LF |
/// | a record ends with | a blank line | a line |
/// | counted | all bytes of its lines, field names too | all bytes of the line |
/// | not counted | line ends, comment lines | the LF, and one CR before it |
/// | a byte order mark at the start | is not counted | is data |
/// | what follows the last end | passes | is the last line |
///
/// A comment line (`:` and anything) is bounded by itself, whether it stands in an event or not. So a
/// stream that is kept alive by comments never comes to its limit, while a comment without an end
/// does.
///
/// | the stream | `sse` with a limit of 10 |
/// |---|---|
/// | `data: 1234⏎⏎data: 5678⏎⏎` | passes, two events of 10 bytes |
/// | `data: 12345⏎⏎` | 11 bytes, an error |
/// | `data: 1⏎data: 2⏎⏎` | 14 bytes, an error |
/// | `: ping⏎: ping⏎` and so on | passes |
/// | `data: 1⏎: ping⏎: ping⏎⏎` | passes, an event of 7 bytes |
///
/// # When a record is too large
///
/// The body fails, or goes on without the record if [`skip_oversized`](Self::skip_oversized) is set:
///
/// | | fail | skip |
/// |---|---|---|
/// | the record | what came of it before the frame that crosses the limit, at most `limit` bytes, has passed | is removed whole |
/// | the rest | the inner body is dropped | passes |
/// | frames | uncopied and at once, cut before the record | records that came in several frames are copied if these are small |
/// | held | nothing | the unfinished record: at most `limit` bytes, its line ends and a frame; of one that is too large its `id` and `retry`, at most twice `limit` |
/// | the head | unchanged | without `Content-Length`, digests, `ETag`, `Accept-Ranges` |
///
/// On HTTP/1.1 and later the body is Pending for a moment before its error, so that a server sends what
/// passed and the client sees a response that breaks off. A client that speaks HTTP/1.0 may take what
/// it got for the whole.
///
/// # Errors
///
/// The body fails with [`Error::TooLarge`](crate::Error::TooLarge), with
/// [`Subject::Record`](crate::Subject::Record) and the
/// [offset of the record](crate::TooLarge::record_offset), after which it is at its end. The
/// service's own errors are the inner service's. A client that reconnects at any error will get the
/// same event again: look for [`TooLarge::find`](crate::TooLarge::find) first.
///
/// # Examples
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response, header::CONTENT_TYPE};
/// use http_body_util::{BodyExt, Full};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_body_limit::{RecordLimitLayer, Subject, TooLarge};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let upstream = service_fn(async |_: Request<()>| {
///     let events = Full::<Bytes>::from("data: 1234\n\ndata: 12345\n\n");
///     Response::builder().header(CONTENT_TYPE, "text/event-stream").body(events)
/// });
/// let client = RecordLimitLayer::sse(10).layer(upstream);
///
/// let mut body = client.oneshot(Request::new(())).await.unwrap().into_body();
/// let frame = body.frame().await.unwrap().unwrap();
/// assert_eq!(frame.into_data().unwrap(), "data: 1234\n\n");
/// let error = body.frame().await.unwrap().unwrap_err();
/// let too_large = TooLarge::find(&error).unwrap();
/// assert_eq!((too_large.subject(), too_large.record_offset()), (Subject::Record, Some(12)));
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "LinesCodec")]
#[doc(alias = "max_line_length")]
#[doc(alias = "maxEventSize")]
pub struct RecordLimitLayer {
    config: Arc<Config<Parts>>,
}

impl RecordLimitLayer {
    /// At most `limit` bytes in each server-sent event of a `text/event-stream`.
    #[must_use]
    #[doc(alias = "EventSource")]
    #[doc(alias = "max_event_size")]
    pub fn sse(limit: u64) -> Self {
        Self::fitting(RecordKind::Sse, limit)
    }

    /// At most as many bytes in each server-sent event as `limit` says for the head of the response,
    /// `None` to leave the response alone.
    ///
    /// The closure decides alone, whatever the media type and the encoding.
    pub fn sse_with<F>(limit: F) -> Self
    where
        F: Fn(&Parts) -> Option<u64> + Send + Sync + 'static,
    {
        Self::by_head(RecordKind::Sse, limit)
    }

    /// At most `limit` bytes in each line of a response of one JSON text a line.
    #[must_use]
    #[doc(alias = "NDJSON")]
    #[doc(alias = "jsonl")]
    pub fn lines(limit: u64) -> Self {
        Self::fitting(RecordKind::Lines, limit)
    }

    /// At most as many bytes in each line as `limit` says for the head of the response, `None` to
    /// leave the response alone.
    ///
    /// The closure decides alone, whatever the media type and the encoding.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::header::CONTENT_TYPE;
    /// use tower_body_limit::RecordLimitLayer;
    ///
    /// let layer = RecordLimitLayer::lines_with(|head| {
    ///     let content_type = head.headers.get(CONTENT_TYPE)?;
    ///     (content_type == "text/csv").then_some(64 * 1024)
    /// });
    /// ```
    pub fn lines_with<F>(limit: F) -> Self
    where
        F: Fn(&Parts) -> Option<u64> + Send + Sync + 'static,
    {
        Self::by_head(RecordKind::Lines, limit)
    }

    // The head has gone when a record is found to be too large, so the status is for whoever reads
    // the error: a client or a gateway.
    const STATUS: StatusCode = StatusCode::BAD_GATEWAY;

    fn fitting(kind: RecordKind, limit: u64) -> Self {
        Self {
            config: Config::fitting(kind, limit, Self::STATUS),
        }
    }

    fn by_head(
        kind: RecordKind,
        limit: impl Fn(&Parts) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        Self {
            config: Config::new(kind, Policy::by_head(limit), true, Self::STATUS),
        }
    }

    /// Removes records that are too large, and goes on.
    ///
    /// Each is reported at its end, with its [size](TooLarge::read), to [`on_breach`](Self::on_breach)
    /// and nowhere else. Nothing of it passes, so each record is held until its end has come. Of an
    /// event the `id` and the `retry` are left behind, as an event without data, which no client
    /// dispatches: without the id, a client that reconnects would be sent the same event again. An id
    /// that is itself too large is lost. A comment line that is too large is removed from the event
    /// that it stands in. An event that is within its limit, but not with its line ends and comment
    /// lines, passes without the latter.
    ///
    /// For streams of which a record can be missed. If a record is the answer that a caller waits for,
    /// as in JSON-RPC and MCP, it will wait for ever: let the body fail there.
    ///
    /// # Examples
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Request, Response, header::CONTENT_TYPE};
    /// use http_body_util::{BodyExt, Full};
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_body_limit::RecordLimitLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let upstream = service_fn(async |_: Request<()>| {
    ///     let events = Full::<Bytes>::from("id: 1\ndata: 12345\n\ndata: 1234\n\n");
    ///     Response::builder().header(CONTENT_TYPE, "text/event-stream").body(events)
    /// });
    /// let client = RecordLimitLayer::sse(10)
    ///     .skip_oversized()
    ///     .on_breach(|error| assert_eq!(error.read(), 16))
    ///     .layer(upstream);
    ///
    /// let response = client.oneshot(Request::new(())).await.unwrap();
    /// let events = response.into_body().collect().await.unwrap().to_bytes();
    /// assert_eq!(events, "id: 1\n\ndata: 1234\n\n");
    /// # }
    /// ```
    #[must_use]
    pub fn skip_oversized(mut self) -> Self {
        self.config_mut().skips = true;
        self
    }

    reporting_settings!(
        Config<Parts>,
        "record",
        "response with a limit",
        "drops it before the end of a record that is skipped",
        "RecordLimitLayer::sse"
    );
}

impl<S> Layer<S> for RecordLimitLayer {
    type Service = RecordLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RecordLimit {
            inner,
            config: Arc::clone(&self.config),
        }
    }
}

/// The service of [`RecordLimitLayer`]; its examples are there.
#[derive(Clone, Debug)]
pub struct RecordLimit<S> {
    inner: S,
    config: Arc<Config<Parts>>,
}

impl<S> RecordLimit<S> {
    inner_service_accessors!();
}

impl<S, ReqB, ResB> Service<Request<ReqB>> for RecordLimit<S>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    ResB: Body<Data = Bytes>,
    ResB::Error: Into<BoxError>,
{
    type Response = Response<RecordLimitedBody<ResB>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let (method, version) = (request.method().clone(), request.version());
        ResponseFuture {
            future: self.inner.call(request),
            config: Arc::clone(&self.config),
            method,
            version,
        }
    }
}

pin_project! {
    /// The future of [`RecordLimit`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        future: F,
        config: Arc<Config<Parts>>,
        method: Method,
        version: Version,
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body<Data = Bytes>,
{
    type Output = Result<Response<RecordLimitedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (mut parts, body) = ready!(this.future.poll(cx))?.into_parts();
        let limit = this.config.limit_for(&parts, &parts.headers);
        let flush = match limit {
            Some(_) => Flush::for_response(
                *this.version,
                is_declared(&body.size_hint(), &parts.headers),
            ),
            None => None,
        };
        let body = this.config.body(body, limit).flushed(flush);
        // A length in the head of a message without a body is another message's.
        let has_body = !is_bodiless(this.method, parts.status);
        if limit.is_some() && this.config.skips && has_body {
            forget_the_whole(&mut parts.headers);
        }
        Poll::Ready(Ok(Response::from_parts(parts, body)))
    }
}
