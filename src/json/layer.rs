use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    thread,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, Request, Response, StatusCode, header::CONTENT_LENGTH, response::Parts,
};
use http_body::{Body, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

#[cfg(feature = "records")]
use super::events::Events;
use super::{
    answer,
    document::{Document, End},
    report::{FitReport, Unfit},
    settings::{CAP_REASON, Fit, Marker},
};
use crate::{
    body::LimitedBody,
    error::{BoxError, Error},
    flush::Flush,
    hold::Held,
    length::{forget_the_whole, is_bodiless, is_declared},
    macros::inner_service_accessors,
    media,
    respond::{Answer, Refusal, RequestHead},
    response_body::ResponseBody,
};

/// Makes the JSON bodies of responses fit, and keeps them JSON.
///
/// | the response | what happens |
/// |---|---|
/// | is not `application/json`, `text/json` or `+json`, or is gRPC | passes untouched, frame by frame, but for [event streams](#event-streams) |
/// | has a `Content-Encoding` other than `identity`, status 206, or no body | passes untouched |
/// | declares a size within the limit by its size hint | passes untouched |
/// | has no more than the limit, but did not say so | is held to its end, then passes as it is |
/// | is larger, and can be made to [fit](Fit) | the document that fits, with the length of that |
/// | is larger, and cannot | see below |
///
/// A response that was changed has a [`FitReport`] in its extensions; its `Content-Length` is corrected,
/// digests, `ETag` and `Accept-Ranges` are gone, and trailers other than digests are kept. A body that cannot be made to
/// fit is given up as soon as that is settled. [`server`](Self::server) puts an
/// [answer](Self::answer_with) in its place, which has the [`Unfit`] in its extensions; with
/// [`client`](Self::client) the head stays, and the body fails.
///
/// # Event streams
///
/// With the feature `records` as well, the events of a `text/event-stream` are made to fit one by one,
/// unless its size is declared to be within the limit or a row above rules it out. The limit is that of
/// each event's data: of the lines of its data, joined by LF, and then of the JSON text in their place.
///
/// | the data of the event | what happens to the event |
/// |---|---|
/// | is within the limit, JSON or not | passes byte for byte |
/// | is larger, and can be made to fit | the document that fits, as one `data:` line |
/// | cannot, and answers a JSON-RPC request | a JSON-RPC error with that `id`, as [`rpc_error`](super::rpc_error) makes it |
/// | cannot, or is not JSON | is dropped; `id` and `retry` stay behind as an event without data |
///
/// That is so on servers and clients alike: the stream never fails or stops at an event, and
/// [`answer_with`](Self::answer_with) is not asked. A message answers a request if it has the top-level
/// members `jsonrpc`, `id` and `result` or `error`, and no `method`, as far as it could be read. Each event
/// over its limit is reported to [`on_fit`](Self::on_fit). The other fields of an event that is changed
/// stay where they were, before or after the data, each line ended by LF; its comments are dropped. At the
/// end of the stream an event that has no blank line is treated as one that has, and gets none. As the head
/// is sent before the first event, it has no [`FitReport`] and no markers, and loses its `Content-Length`,
/// digests, `ETag` and `Accept-Ranges` whether an event is changed or not.
///
/// An event is passed on once its blank line has come. Until then its data is held up to the limit, with
/// the names and ends of its lines; beyond the limit, what is held is what its [`Fit`] needs. Of its other
/// lines and of its comments 64 KiB each are held: if there are more, the comments are left out, and an
/// event with more of other lines counts as one that does not fit. An event with more data than
/// [`Fit::max_scan`] is answered or reported there, and the rest of it is thrown away as it comes.
///
/// ```
/// # #[cfg(feature = "records")] {
/// use bytes::Bytes;
/// use http::{Request, Response, header::CONTENT_TYPE};
/// use http_body_util::{BodyExt, Full};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_body_limit::json::{Fit, JsonFitLayer};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let tools = service_fn(async |_: Request<()>| {
///     let rows = "[1,2,3],".repeat(20);
///     let events = format!("id: 1\ndata: {{\"rows\": [{rows}0]}}\n\ndata: done\n\n");
///     let response = Response::builder().header(CONTENT_TYPE, "text/event-stream");
///     Ok::<_, std::io::Error>(response.body(Full::<Bytes>::from(events)).unwrap())
/// });
/// let server = JsonFitLayer::server(Fit::array_at(85, "/rows")).layer(tools);
///
/// let response = server.oneshot(Request::new(())).await.unwrap();
/// let events = response.into_body().collect().await.unwrap().to_bytes();
/// assert_eq!(
///     events,
///     "id: 1\n\
///      data:{\"rows\":[[1,2,3],[1,2,3]],\"truncated\":true,\"next_offset\":2,\"cap_reason\":\"size_limit\"}\n\n\
///      data: done\n\n"
/// );
/// # });
/// # }
/// ```
///
/// # Cost
///
/// Held for each response in flight are at most the limit and one frame, and twice the limit for
/// [`Fit::largest_array_in`]. A scan gives way to other tasks after 256 KiB.
///
/// # Errors
///
/// The body of a client's response fails with [`Error::Body`] that holds an [`Unfit`]. If the inner body
/// fails while it is held, the head goes on, with what was held of a document that was still within its
/// limit, and then that error.
///
/// # Examples
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response, header::CONTENT_TYPE};
/// use http_body_util::{BodyExt, Full};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_body_limit::json::{Fit, FitReport, JsonFitLayer};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let search = service_fn(async |_: Request<()>| {
///     let rows: Vec<_> = (0..1000).map(|id| format!(r#"{{"id":{id}}}"#)).collect();
///     let page = format!(r#"{{"rows":[{}],"took":3}}"#, rows.join(","));
///     let response = Response::builder().header(CONTENT_TYPE, "application/json");
///     Ok::<_, std::io::Error>(response.body(Full::<Bytes>::from(page)).unwrap())
/// });
/// let server = JsonFitLayer::server(Fit::array_at(110, "/rows")).layer(search);
///
/// let response = server.oneshot(Request::new(())).await.unwrap();
/// assert_eq!(response.extensions().get::<FitReport>().unwrap().next_offset(), Some(3));
/// assert_eq!(
///     response.into_body().collect().await.unwrap().to_bytes(),
///     r#"{"rows":[{"id":0},{"id":1},{"id":2}],"took":3,"truncated":true,"next_offset":3,"cap_reason":"size_limit"}"#
/// );
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "truncate_json")]
pub struct JsonFitLayer {
    config: Arc<Config>,
}

#[derive(Clone)]
pub(super) struct Config {
    fit: Arc<Fit>,
    ceiling: u64,
    // None on a client.
    answer: Option<Answer<Unfit>>,
    on_fit: Option<Arc<OnFit>>,
}

type OnFit = dyn Fn(Result<&FitReport, &Unfit>) + Send + Sync;

/// In a response's extensions, the limit in bytes for this response.
///
/// It is honoured up to the [ceiling](JsonFitLayer::override_ceiling) of the layer, which takes it out.
///
/// # Examples
///
/// ```
/// use http::Response;
/// use tower_body_limit::json::FitLimit;
///
/// let mut response = Response::new("a tool's long answer");
/// response.extensions_mut().insert(FitLimit::new(16 * 1024));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitLimit(u64);

impl FitLimit {
    /// At most so many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(bytes)
    }
}

/// In a response's extensions, or else in its request's, the offset of the first item of the document.
///
/// # Examples
///
/// ```
/// use http::Response;
/// use tower_body_limit::json::BaseOffset;
///
/// // What a handler that was asked for `?offset=40` says.
/// let mut response = Response::new(r#"{"rows":[]}"#);
/// response.extensions_mut().insert(BaseOffset::new(40));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseOffset(u64);

impl BaseOffset {
    /// So many items come before the first one.
    #[must_use]
    pub fn new(items: u64) -> Self {
        Self(items)
    }
}

impl JsonFitLayer {
    /// On a server: what cannot be made to fit is replaced by an answer.
    #[must_use]
    pub fn server(fit: Fit) -> Self {
        Self::new(fit, Some(Answer::new(answer::standard)))
    }

    /// On a client: the body of what cannot be made to fit fails.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::error::Error;
    /// # use bytes::Bytes;
    /// # use http::{Request, Response, header::CONTENT_TYPE};
    /// # use http_body_util::{BodyExt, Full};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// use tower_body_limit::json::{Fit, JsonFitLayer, Unfit};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let upstream = service_fn(async |_: Request<()>| {
    /// #     let response = Response::builder().header(CONTENT_TYPE, "application/json");
    /// #     Ok::<_, std::io::Error>(response.body(Full::<Bytes>::from(r#""eleven bytes""#)).unwrap())
    /// # });
    /// let client = JsonFitLayer::client(Fit::compact(10)).layer(upstream);
    /// let response = client.oneshot(Request::new(())).await.unwrap();
    /// assert_eq!(response.status(), 200);
    /// let error = response.into_body().collect().await.unwrap_err();
    /// let unfit = error.source().unwrap().downcast_ref::<Unfit>().unwrap();
    /// assert_eq!((unfit.limit(), unfit.actual()), (10, 14));
    /// # }
    /// ```
    #[must_use]
    pub fn client(fit: Fit) -> Self {
        Self::new(fit, None)
    }

    fn new(fit: Fit, answer: Option<Answer<Unfit>>) -> Self {
        let config = Config {
            ceiling: fit.limit,
            fit: Arc::new(fit),
            answer,
            on_fit: None,
        };
        Self {
            config: Arc::new(config),
        }
    }

    /// What a server answers with instead of 500 and one sentence. Without effect on a client.
    ///
    /// [`rpc_error`](super::rpc_error) is such an answer.
    ///
    /// # Examples
    ///
    /// A language model sees the results of tools and not the errors of the protocol, so an MCP server
    /// may prefer a result that is an error:
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Request, Response, header::CONTENT_TYPE};
    /// # use http_body_util::{BodyExt, Full};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// use tower_body_limit::json::{Fit, JsonFitLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let layer = JsonFitLayer::server(Fit::compact(60)).answer_with(|unfit, _| {
    ///     let (id, limit) = (unfit.id().unwrap_or("null"), unfit.limit());
    ///     let text = format!("The result has more than {limit} bytes. Ask for fewer fields.");
    ///     Response::builder()
    ///         .header(CONTENT_TYPE, "application/json")
    ///         .body(format!(
    ///             r#"{{"jsonrpc":"2.0","id":{id},"result":{{"isError":true,"content":[{{"type":"text","text":"{text}"}}]}}}}"#
    ///         ))
    ///         .unwrap()
    /// });
    ///
    /// # let tool = service_fn(async |_: Request<()>| {
    /// #     let text = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"content":[{{"type":"text","text":"{}"}}]}}}}"#, "x".repeat(100));
    /// #     Ok::<_, std::io::Error>(Response::builder().header(CONTENT_TYPE, "application/json").body(Full::<Bytes>::from(text)).unwrap())
    /// # });
    /// let response = layer.layer(tool).oneshot(Request::new(())).await.unwrap();
    /// let text = response.into_body().collect().await.unwrap().to_bytes();
    /// assert!(text.starts_with(br#"{"jsonrpc":"2.0","id":7,"result":{"isError":true"#));
    /// # }
    /// ```
    #[must_use]
    pub fn answer_with<F, T>(mut self, answer: F) -> Self
    where
        F: Fn(&Unfit, &RequestHead) -> Response<T> + Send + Sync + 'static,
        T: Into<Bytes>,
    {
        let config = self.config_mut();
        if config.answer.is_some() {
            config.answer = Some(Answer::new(answer));
        }
        self
    }

    /// How far, in bytes, a [`FitLimit`] may raise the limit. Without this it can only lower it.
    #[must_use]
    pub fn override_ceiling(mut self, bytes: u64) -> Self {
        self.config_mut().ceiling = bytes;
        self
    }

    /// Calls `f` for each document that was over its limit, with what became of it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_body_limit::json::{Fit, JsonFitLayer};
    ///
    /// let layer = JsonFitLayer::server(Fit::array_at(64 * 1024, "/rows")).on_fit(|result| match result {
    ///     Ok(report) => println!("{} of {} bytes", report.len(), report.original()),
    ///     Err(unfit) => println!("{unfit}"),
    /// });
    /// assert!(format!("{layer:?}").contains("on_fit: true"));
    /// ```
    ///
    /// # Callbacks
    ///
    /// Runs in the task that calls the service, and for an event of a stream in the one that reads the
    /// body. It does not run while the thread is panicking.
    #[must_use]
    pub fn on_fit<F>(mut self, f: F) -> Self
    where
        F: Fn(Result<&FitReport, &Unfit>) + Send + Sync + 'static,
    {
        self.config_mut().on_fit = Some(Arc::new(f));
        self
    }

    fn config_mut(&mut self) -> &mut Config {
        Arc::make_mut(&mut self.config)
    }
}

impl<S> Layer<S> for JsonFitLayer {
    type Service = JsonFit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        JsonFit {
            inner,
            config: Arc::clone(&self.config),
        }
    }
}

/// The service of [`JsonFitLayer`]; its examples are there.
#[derive(Clone, Debug)]
pub struct JsonFit<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> JsonFit<S> {
    inner_service_accessors!();
}

impl<S, ReqB, ResB> Service<Request<ReqB>> for JsonFit<S>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    ResB: Body<Data = Bytes>,
    ResB::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<ResB>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, ResB>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let head = match &self.config.answer {
            Some(answer) => answer.head(
                request.method(),
                request.uri(),
                request.version(),
                request.headers(),
            ),
            None => RequestHead::without_fields(request.method(), request.version()),
        };
        let offset = request.extensions().get().copied();
        let future = self.inner.call(request);
        ResponseFuture {
            state: State::Called { future },
            config: Arc::clone(&self.config),
            head,
            offset,
        }
    }
}

impl Config {
    /// The settings for one response.
    fn fit_for(&self, parts: &mut Parts, offset: Option<BaseOffset>) -> Arc<Fit> {
        let limit = parts.extensions.remove::<FitLimit>();
        let offset = parts.extensions.remove().or(offset);
        if limit.is_none() && offset.is_none() {
            return Arc::clone(&self.fit);
        }
        let mut fit = Fit::clone(&self.fit);
        if let Some(FitLimit(limit)) = limit {
            fit.limit = limit.min(self.ceiling.max(fit.limit));
        }
        if let Some(BaseOffset(offset)) = offset {
            fit.offset = Some(offset);
        }
        Arc::new(fit)
    }

    pub(super) fn report(&self, result: Result<&FitReport, &Unfit>) {
        if thread::panicking() {
            return;
        }
        #[cfg(feature = "tracing")]
        match result {
            Ok(report) => tracing::info!(
                limit = report.limit(),
                original = report.original(),
                len = report.len(),
                dropped = report.dropped(),
                "a JSON document was made to fit",
            ),
            Err(unfit) => tracing::warn!(
                limit = unfit.limit(),
                actual = unfit.actual(),
                reason = ?unfit.reason(),
                "a JSON document does not fit",
            ),
        }
        if let Some(on_fit) = &self.on_fit {
            on_fit(result);
        }
    }

    /// Makes the head that of the document that fits.
    fn mend(&self, parts: &mut Parts, report: FitReport, held: &Held) {
        let stated = parts.headers.contains_key(CONTENT_LENGTH);
        forget_the_whole(&mut parts.headers);
        // Trailers need a transfer coding, and that excludes a length.
        if let Some(len) = held.size_hint().exact().filter(|_| stated) {
            parts.headers.insert(CONTENT_LENGTH, len.into());
        }
        if let Some(cut) = report.cut.filter(|_| self.fit.marks_headers()) {
            for (marker, name) in self.fit.markers() {
                let value = match (marker, cut.next_offset) {
                    (Marker::Truncated, _) => "true".parse().ok(),
                    (Marker::CapReason, _) => CAP_REASON.parse().ok(),
                    (Marker::Total, _) => Some(cut.total.into()),
                    (Marker::NextOffset, Some(offset)) => Some(offset.into()),
                    (Marker::NextOffset, None) | (Marker::Note, _) => None,
                };
                let name = self.fit.full_name(name).parse::<HeaderName>();
                if let (Ok(name), Some(value)) = (name, value) {
                    parts.headers.insert(name, value);
                }
            }
        }
        parts.extensions.insert(report);
    }

    /// The response in place of one that does not fit.
    fn unfit<B>(
        &self,
        unfit: Unfit,
        parts: Parts,
        head: &RequestHead,
    ) -> Response<ResponseBody<B>> {
        self.report(Err(&unfit));
        match &self.answer {
            Some(answer) => answer.replace(unfit, head, &parts.headers),
            None => self.broken(parts, head, Held::default(), Error::from_body(unfit)),
        }
    }

    /// The response with its events made to fit one by one.
    #[cfg(feature = "records")]
    fn events<B>(
        &self,
        mut parts: Parts,
        head: &RequestHead,
        body: LimitedBody<B>,
        events: Events,
    ) -> Response<ResponseBody<B>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        forget_the_whole(&mut parts.headers);
        let body = ResponseBody::rewritten(body, events, self.flush(&parts, head));
        Response::from_parts(parts, body)
    }

    /// What makes a server send the head before an error.
    fn flush(&self, parts: &Parts, head: &RequestHead) -> Option<Flush> {
        self.answer.as_ref()?;
        let is_declared = is_declared(&SizeHint::new(), &parts.headers);
        Flush::for_response(head.version(), is_declared)
    }

    /// The response with what there is of its body, and then the error that ended it.
    fn broken<B>(
        &self,
        parts: Parts,
        head: &RequestHead,
        held: Held,
        error: Error,
    ) -> Response<ResponseBody<B>> {
        let body = ResponseBody::held(Box::new(held), Some(error), self.flush(&parts, head));
        Response::from_parts(parts, body)
    }
}

/// Whether a body is one that can be made to fit if its type is right, and not known to fit anyway.
fn applies(head: &RequestHead, parts: &Parts, hint: &SizeHint, limit: u64) -> bool {
    parts.status != StatusCode::PARTIAL_CONTENT
        && !media::is_encoded(&parts.headers)
        && !is_bodiless(head.method(), parts.status)
        && !Refusal::is_in(&parts.extensions)
        && hint.upper().is_none_or(|upper| upper > limit)
}

/// Whether a body is one JSON document. Messages that are framed have the suffix too: `grpc+json`.
fn is_document(headers: &HeaderMap) -> bool {
    media::is_json(headers) && !media::is_streamed(headers)
}

pin_project! {
    /// The future of [`JsonFit`].
    #[derive(Debug)]
    pub struct ResponseFuture<F, B> {
        #[pin]
        state: State<F, B>,
        config: Arc<Config>,
        head: RequestHead,
        offset: Option<BaseOffset>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProj]
    enum State<F, B> {
        Called { #[pin] future: F },
        Reading { parts: Option<Parts>, #[pin] body: LimitedBody<B>, document: Document },
        Over,
    }
}

impl<F, B, E> Future for ResponseFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let config = &**this.config;
        let (end, mut parts) = loop {
            match this.state.as_mut().project() {
                StateProj::Called { future } => {
                    let (mut parts, body) = ready!(future.poll(cx))?.into_parts();
                    let fit = config.fit_for(&mut parts, *this.offset);
                    let hint = body.size_hint();
                    let applies = applies(this.head, &parts, &hint, fit.limit);
                    #[cfg(feature = "records")]
                    if applies && media::is_event_stream(&parts.headers) {
                        let body = LimitedBody::unlimited(body);
                        let events = Events::new(Arc::clone(this.config), fit);
                        return Poll::Ready(Ok(config.events(parts, this.head, body, events)));
                    }
                    if !applies || !is_document(&parts.headers) {
                        let body = ResponseBody::passing(body);
                        return Poll::Ready(Ok(Response::from_parts(parts, body)));
                    }
                    let document = Document::new(fit, &hint, &parts.headers);
                    let (parts, body) = (Some(parts), LimitedBody::unlimited(body));
                    this.state.set(State::Reading {
                        parts,
                        body,
                        document,
                    });
                }
                StateProj::Reading {
                    parts,
                    body,
                    document,
                } => {
                    let end = ready!(document.poll_read(body, cx));
                    break (end, parts.take().expect("polled after completion"));
                }
                StateProj::Over => panic!("polled after completion"),
            }
        };
        // The inner body goes before anything is said of it.
        this.state.set(State::Over);
        Poll::Ready(Ok(match end {
            End::Fits(held) => {
                Response::from_parts(parts, ResponseBody::held(Box::new(held), None, None))
            }
            End::Changed(report, held) => {
                config.report(Ok(&report));
                config.mend(&mut parts, report, &held);
                Response::from_parts(parts, ResponseBody::held(Box::new(held), None, None))
            }
            End::Unfit(unfit) => config.unfit(unfit, parts, this.head),
            End::Failed(held, error) => config.broken(parts, this.head, held, error),
        }))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("fit", &self.fit)
            .field("ceiling", &self.ceiling)
            .field("answer", &self.answer)
            .field("on_fit", &self.on_fit.is_some())
            .finish()
    }
}
