use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{
    Extensions, HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{CONNECTION, EXPECT},
    request::Parts,
};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    body::{Bound, LimitedBody},
    client_request::ClientRequestSizeLimitLayer,
    control::LimitControl,
    drain::DrainPolicy,
    error::{BoxError, Subject, TooLarge},
    length::Declared,
    macros::{inner_service_accessors, limit_settings, reporting_settings},
    policy::{Limits, Policy, higher_of},
    remainder::Remainder,
    respond::{Answer, Refusal, RequestHead},
    response_body::ResponseBody,
    watch::{BodyEnd, Callbacks, Watch, Watcher, is_complete},
};

/// Limits the bodies of requests that a server receives.
///
/// Counts bytes of body data as they pass the place where the layer stands: outside a decoder the
/// encoded ones, inside it the decoded ones. The limit is inclusive.
///
/// | the request | with a limit of 10 |
/// |---|---|
/// | declares or has 10 bytes | passes untouched |
/// | declares 11 | is answered with 413, the inner service is not called, the body not polled |
/// | declares nothing, has 11 | the body fails with [`TooLarge`], and the client gets a 413 whatever the inner service makes of that |
/// | declares nothing that can be parsed | is counted like one that declares nothing |
///
/// Frames pass uncopied and nothing is buffered. A request with a body costs one allocation, a
/// request without a body none. The answer can be [in your own words](Self::answer_with), and is sent so that it
/// [arrives](Self#method.drain).
///
/// For a client, [`client`](Self::client) makes the layer that fails the call.
///
/// # Examples
///
/// ```
/// use axum::{Router, body::Body, extract::DefaultBodyLimit, routing::post};
/// use http::Request;
/// use tower::ServiceExt;
/// use tower_body_limit::RequestSizeLimitLayer;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let app = Router::new()
///     .route("/upload", post(async |body: String| body))
///     .layer(RequestSizeLimitLayer::server(10))
///     .layer(DefaultBodyLimit::disable());
///
/// let request = Request::post("/upload").body(Body::from("ten bytes.")).unwrap();
/// assert_eq!(app.clone().oneshot(request).await.unwrap().status(), 200);
/// let request = Request::post("/upload").body(Body::from("eleven byte")).unwrap();
/// assert_eq!(app.oneshot(request).await.unwrap().status(), 413);
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "RequestBodyLimitLayer")]
#[doc(alias = "DefaultBodyLimit")]
#[doc(alias = "max_body_size")]
pub struct RequestSizeLimitLayer {
    config: Arc<Config>,
}

#[derive(Clone, Debug)]
struct Config {
    limits: Limits<Parts>,
    label: Option<&'static str>,
    answer: Answer,
    keeps_answers: bool,
    adjustable_to: Option<Option<u64>>,
    drain: Option<DrainPolicy>,
    callbacks: Arc<Callbacks>,
}

impl RequestSizeLimitLayer {
    /// At most `limit` bytes, `None` for no limit, or another [`Policy`].
    #[doc(alias = "ContentLengthLimit")]
    #[doc(alias = "client_max_body_size")]
    #[doc(alias = "bodyLimit")]
    pub fn server(limit: impl Into<Policy<Parts>>) -> Self {
        let config = Config {
            limits: Limits::new(limit.into()),
            label: None,
            answer: Answer::default(),
            keeps_answers: false,
            adjustable_to: None,
            drain: DrainPolicy::standard(),
            callbacks: Arc::default(),
        };
        Self {
            config: Arc::new(config),
        }
    }

    /// At most as many bytes as `limit` says for the head of the request, `None` for no limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{Router, body::Body, routing::post};
    /// use http::Request;
    /// use tower::ServiceExt;
    /// use tower_body_limit::RequestSizeLimitLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let length = post(async |body: String| body.len().to_string());
    /// let app = Router::new().route("/upload", length.clone()).route("/login", length).layer(
    ///     RequestSizeLimitLayer::server_with(|head| match head.uri.path() {
    ///         "/upload" => Some(1000),
    ///         _ => Some(10),
    ///     }),
    /// );
    /// for (path, status) in [("/upload", 200), ("/login", 413)] {
    ///     let request = Request::post(path).body(Body::from("eleven byte")).unwrap();
    ///     assert_eq!(app.clone().oneshot(request).await.unwrap().status(), status);
    /// }
    /// # }
    /// ```
    pub fn server_with<F>(limit: F) -> Self
    where
        F: Fn(&Parts) -> Option<u64> + Send + Sync + 'static,
    {
        Self::server(Policy::by_head(limit))
    }

    /// The layer for a client: see [`ClientRequestSizeLimitLayer`].
    pub fn client(limit: impl Into<Policy<Parts>>) -> ClientRequestSizeLimitLayer {
        ClientRequestSizeLimitLayer::new(limit.into())
    }

    /// The layer for a client, with a limit by the head: see [`ClientRequestSizeLimitLayer`].
    pub fn client_with<F>(limit: F) -> ClientRequestSizeLimitLayer
    where
        F: Fn(&Parts) -> Option<u64> + Send + Sync + 'static,
    {
        Self::client(Policy::by_head(limit))
    }

    /// What to answer with instead of [`standard`](crate::respond::standard): see
    /// [`respond`](crate::respond).
    #[must_use]
    pub fn answer_with<F, T>(mut self, answer: F) -> Self
    where
        F: Fn(&TooLarge, &RequestHead) -> Response<T> + Send + Sync + 'static,
        T: Into<Bytes>,
    {
        self.config_mut().answer = Answer::new(answer);
        self
    }

    /// Lets the inner service's answer stand, whatever its status, when a body breached while it was
    /// read.
    ///
    /// Without this, an error of the inner service, the statuses 400, 408, 422, 500 and 502, and a
    /// `grpc-status` other than zero are replaced, as frameworks make these of a body that fails.
    /// Other answers stand in any case, and have the [`TooLarge`] in their extensions. Requests that
    /// declare too much are answered by the layer all the same.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{Router, body::Body, routing::post};
    /// use http::Request;
    /// use tower::ServiceExt;
    /// use tower_body_limit::{RequestSizeLimitLayer, TooLarge};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let app = Router::new()
    ///     .route("/upload", post(async |body: String| body))
    ///     .layer(RequestSizeLimitLayer::server(10).keep_inner_answers());
    ///
    /// // A stream that declares no length.
    /// let body = Body::from_stream(futures_util::stream::iter([Ok::<_, axum::Error>("eleven byte")]));
    /// let response = app.oneshot(Request::post("/upload").body(body).unwrap()).await.unwrap();
    /// assert_eq!(response.status(), 400);
    /// assert_eq!(response.extensions().get::<TooLarge>().unwrap().limit(), 10);
    /// # }
    /// ```
    #[must_use]
    pub fn keep_inner_answers(mut self) -> Self {
        self.config_mut().keeps_answers = true;
        self
    }

    /// Reads and discards at most `budget` bytes of a refused request, until `deadline` at the latest.
    ///
    /// A client that is still writing when its connection closes sees a reset, and never the answer.
    /// So the head of the answer and its text go out at once, and only the last byte waits for the
    /// rest of the request. When nothing has come for a quarter of a second, the last byte goes out,
    /// too, as the client may have stopped writing to read; the drain then goes on in a task of its
    /// own. It ends with the request, or when the budget is used up or the deadline has passed.
    /// Nothing of what is read is kept.
    ///
    /// | on HTTP/1, what is left of the request | is drained | `Connection: close` |
    /// |---|---|---|
    /// | declared, within the budget | yes | no |
    /// | declared, beyond the budget | as far as the budget goes | yes |
    /// | not declared | as far as the budget goes | yes |
    /// | not yet sent (`Expect: 100-continue`) | no | yes |
    ///
    /// Later versions can end a stream and go on with the connection; there nothing is drained. The
    /// default is 16 MiB and five seconds with the feature `tokio`, and no drain without it. Outside
    /// of a tokio runtime, or in one without timers, nothing is drained. That there are no timers tokio
    /// says only by a panic; it is caught, but a program with `panic = "abort"` has to enable them.
    ///
    /// Drained is behind the answers of this layer, not behind one that a handler makes of the error.
    ///
    /// A timeout for the body of the *response*, outside of this layer, has to be longer than the
    /// deadline, or it breaks off the last byte. One for the body of the request ends the drain, and the
    /// answer arrives all the same.
    ///
    /// If a decoder stands outside this layer, what is drained would be decoded: use
    /// [`no_drain`](Self::no_drain) there.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_body_limit::RequestSizeLimitLayer;
    ///
    /// let layer = RequestSizeLimitLayer::server(1024 * 1024)
    ///     .drain(64 * 1024 * 1024, Duration::from_secs(10));
    /// assert!(format!("{layer:?}").contains("67108864 bytes in 10s"));
    /// ```
    #[cfg(feature = "tokio")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
    #[must_use]
    pub fn drain(mut self, budget: u64, deadline: Duration) -> Self {
        self.config_mut().drain = Some(DrainPolicy::by_tokio(budget, deadline));
        self
    }

    /// As [`drain`](Self#method.drain), with a timer other than tokio's.
    ///
    /// There is nothing to run a task of its own, so the drain ends when nothing has come for a
    /// quarter of a second.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_body_limit::RequestSizeLimitLayer;
    ///
    /// // `sleep` is any function from a duration to a future that ends after it.
    /// # use tokio::time::sleep;
    /// let layer = RequestSizeLimitLayer::server(1024 * 1024)
    ///     .drain_with(64 * 1024 * 1024, Duration::from_secs(10), sleep);
    /// assert!(format!("{layer:?}").contains("67108864 bytes in 10s"));
    /// ```
    #[must_use]
    pub fn drain_with<F, T>(mut self, budget: u64, deadline: Duration, sleep: F) -> Self
    where
        F: Fn(Duration) -> T + Send + Sync + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        self.config_mut().drain = Some(DrainPolicy::new(budget, deadline, sleep));
        self
    }

    /// Reads nothing more of a refused request.
    ///
    /// The answer says `Connection: close` on HTTP/1, and clients that are still writing may see the
    /// connection reset before they see the answer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use bytes::Bytes;
    /// # use http::{Request, Response};
    /// # use http_body_util::Full;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_body_limit::{LimitedBody, RequestSizeLimitLayer};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let service = service_fn(async |_: Request<LimitedBody<Full<Bytes>>>| Ok::<_, std::io::Error>(Response::new(Full::<Bytes>::default())));
    /// let service = RequestSizeLimitLayer::server(10).no_drain().layer(service);
    /// let refusal = service.oneshot(Request::new(Full::from("eleven byte"))).await.unwrap();
    /// assert_eq!(refusal.headers()["connection"], "close");
    /// # }
    /// ```
    #[must_use]
    pub fn no_drain(mut self) -> Self {
        self.config_mut().drain = None;
        self
    }

    /// Lets the limit of a request be changed after the layer, up to `ceiling`, `None` for any limit.
    ///
    /// The layer puts a [`LimitControl`] into the extensions of the request; see there, and
    /// [`SetRequestLimitLayer`](crate::SetRequestLimitLayer) for one limit a route. A request that
    /// declares more than the ceiling is refused at once. One that declares more than the limit is
    /// refused when its body is read, unless the limit has been raised by then.
    ///
    /// A second adjustable layer, further in, joins the control that it finds: its own limit then
    /// holds, up to the lower of both ceilings.
    #[must_use]
    pub fn adjustable(mut self, ceiling: impl Into<Option<u64>>) -> Self {
        self.config_mut().adjustable_to = Some(ceiling.into());
        self
    }

    limit_settings!("request", "RequestLimit", "RequestSizeLimitLayer::server");
}

impl<S> Layer<S> for RequestSizeLimitLayer {
    type Service = RequestSizeLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RequestSizeLimit {
            inner,
            config: Arc::clone(&self.config),
        }
    }
}

/// The service of [`RequestSizeLimitLayer`]; its examples are there.
#[derive(Clone, Debug)]
pub struct RequestSizeLimit<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> RequestSizeLimit<S> {
    inner_service_accessors!();
}

impl<S, ReqB, ResB> Service<Request<ReqB>> for RequestSizeLimit<S>
where
    S: Service<Request<LimitedBody<ReqB>>, Response = Response<ResB>>,
    ReqB: Body<Data = Bytes> + Send + Unpin + 'static,
    ResB: Body<Data = Bytes>,
    ResB::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<ResB>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, ReqB, ResB>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let config = &self.config;
        let (mut parts, body) = request.into_parts();
        let bound = Bound {
            limit: config.limits.take_for(&mut parts),
            subject: Subject::Request,
            status: StatusCode::PAYLOAD_TOO_LARGE,
            label: config.label,
        };
        let declared = Declared::by_message(&body.size_hint(), &parts.headers);
        let control = config.control(bound.limit, &mut parts.extensions);
        let highest = Bound {
            limit: control.as_ref().map_or(bound.limit, LimitControl::ceiling),
            ..bound
        };
        let head = || {
            let answer = &config.answer;
            answer.head(&parts.method, &parts.uri, parts.version, &parts.headers)
        };
        let sends_unasked = || !expects_continue(parts.version, &parts.headers);
        if let Some(error) = highest.refuses(declared) {
            config.callbacks.refused(&error, highest);
            let rest = sends_unasked().then_some(body);
            let answer = Some(config.refuse(error, &head(), rest));
            return ResponseFuture {
                state: State::Refused { answer },
            };
        }
        let may_breach = if body.is_end_stream() {
            // It has nothing to breach with, but for what the head says when a control is settled.
            control.is_some() && declared.exceeds(0)
        } else {
            bound.limit.is_some() || control.is_some()
        };
        let call = may_breach.then(|| {
            // Only a control can make a body breach before anything was asked of the client.
            let sends_unasked = control.is_none() || sends_unasked();
            Arc::new(Call::new(config, head(), sends_unasked))
        });
        let watcher = match &call {
            Some(call) => Watcher(Some(Arc::clone(call) as _)),
            None => config.callbacks.watcher(),
        };
        let mut body = LimitedBody::bounded(body, bound, declared, watcher);
        if let Some(control) = control {
            body.set_control(control);
        }
        let future = self.inner.call(Request::from_parts(parts, body));
        ResponseFuture {
            state: State::Called { future, call },
        }
    }
}

/// Whether a client waits to be asked for its body. By HTTP/1.0 it does not, whatever it says (RFC
/// 9110, section 10.1.1).
fn expects_continue(version: Version, headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(EXPECT).iter();
    version >= Version::HTTP_11
        && values.any(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

impl Config {
    /// What the limit of an adjustable layer can be changed with, new or found.
    fn control(&self, limit: Option<u64>, extensions: &mut Extensions) -> Option<LimitControl> {
        let ceiling = higher_of(limit, self.adjustable_to?);
        // One that was read from belongs to a body that somebody has replaced.
        let found = extensions.get::<LimitControl>();
        if let Some(found) = found.filter(|found| found.join(limit, ceiling)) {
            return Some(found.clone());
        }
        let control = LimitControl::new(limit, ceiling);
        extensions.insert(control.clone());
        Some(control)
    }

    /// The answer in place of the inner service's, with what is left of the request, if that can be
    /// drained.
    #[cold]
    fn refuse<ReqB, ResB>(
        &self,
        error: TooLarge,
        head: &RequestHead,
        rest: Option<ReqB>,
    ) -> Response<ResponseBody<ResB>>
    where
        ReqB: Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let remainder = rest.as_ref().and_then(|rest| rest.size_hint().exact());
        let rest = rest.filter(|_| remainder != Some(0) && can_drain(head));
        let policy = self.drain.as_ref();
        let drain = policy
            .zip(rest)
            .and_then(|(policy, rest)| policy.start(rest));
        let can_follow = match remainder {
            Some(0) => true,
            Some(bytes) => drain.is_some() && policy.is_some_and(|policy| policy.covers(bytes)),
            None => false,
        };
        let mut answer = self.answer.make(error, head, drain);
        if head.version() < Version::HTTP_2 {
            // Or hyper keeps the connection of HTTP/1.0 alive.
            *answer.version_mut() = head.version();
            if !can_follow {
                answer
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
        }
        answer
    }
}

/// A request that the inner service is working on. Its body, which may be anywhere by the time it
/// turns out to be too large, shares this with the service.
#[derive(Debug)]
struct Call<B> {
    breach: OnceLock<TooLarge>,
    remainder: Remainder<B>,
    config: Arc<Config>,
    head: RequestHead,
    sends_unasked: bool,
}

impl<B> Call<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    fn new(config: &Arc<Config>, head: RequestHead, sends_unasked: bool) -> Self {
        let may_drain = config.drain.is_some() && !config.keeps_answers && can_drain(&head);
        Self {
            breach: OnceLock::new(),
            remainder: Remainder::new(may_drain),
            config: Arc::clone(config),
            head,
            sends_unasked,
        }
    }

    /// What the client gets, given what the inner service made of it.
    fn settle<ResB, E>(
        &self,
        result: Result<Response<ResB>, E>,
    ) -> Result<Response<ResponseBody<ResB>>, E> {
        let Some(error) = self.breach.get() else {
            return result.map(|response| response.map(ResponseBody::passing));
        };
        let replaced = match &result {
            // A response that was held has become an answer of ours, behind which nothing is drained.
            Ok(response) => reports_failure(response) || Refusal::is_in(response.extensions()),
            Err(_) => true,
        };
        if replaced && !self.config.keeps_answers {
            drop(result);
            // To read what the client only offers to send would invite it.
            let invited = self.sends_unasked || error.read() > 0;
            let rest = self.remainder.take().filter(|_| invited);
            return Ok(self.config.refuse(error.clone(), &self.head, rest));
        }
        let mut response = result?;
        response.extensions_mut().insert(error.clone());
        Ok(response.map(ResponseBody::passing))
    }
}

impl<B: Body + Send + Unpin> Watch<B> for Call<B> {
    fn breached(&self, error: &TooLarge, mut rest: Pin<&mut Option<B>>) {
        self.remainder.keep(&mut rest);
        let _ = self.breach.set(error.clone());
        self.config.callbacks.breach(error);
    }

    fn ended(&self, end: BodyEnd) {
        self.config.callbacks.end(&end);
    }

    fn is_complete(&self, inner: &B) -> bool {
        is_complete(inner)
    }
}

/// Whether the answer to a request has a body, behind which the request can be drained, and whether
/// there is a use in it: later versions end a stream without ending the connection.
fn can_drain(head: &RequestHead) -> bool {
    head.version() < Version::HTTP_2 && head.method() != Method::HEAD
}

/// Whether an answer is what frameworks and handlers make of a body that fails.
fn reports_failure<B>(response: &Response<B>) -> bool {
    let grpc_status = response.headers().get("grpc-status");
    matches!(response.status().as_u16(), 400 | 408 | 422 | 500 | 502)
        || grpc_status.is_some_and(|status| status != "0")
}

pin_project! {
    /// The future of [`RequestSizeLimit`].
    #[derive(Debug)]
    pub struct ResponseFuture<F, ReqB, ResB> {
        #[pin]
        state: State<F, ReqB, ResB>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProj]
    enum State<F, ReqB, ResB> {
        Called { #[pin] future: F, call: Option<Arc<Call<ReqB>>> },
        Refused { answer: Option<Response<ResponseBody<ResB>>> },
    }
}

impl<F, ReqB, ResB, E> Future for ResponseFuture<F, ReqB, ResB>
where
    F: Future<Output = Result<Response<ResB>, E>>,
    ReqB: Body<Data = Bytes> + Send + Unpin + 'static,
{
    type Output = Result<Response<ResponseBody<ResB>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match self.project().state.project() {
            StateProj::Called { future, call } => {
                let result = ready!(future.poll(cx));
                match call.take() {
                    Some(call) => call.settle(result),
                    None => result.map(|response| response.map(ResponseBody::passing)),
                }
            }
            StateProj::Refused { answer } => Ok(answer.take().expect("polled after completion")),
        })
    }
}
