use std::{
    mem,
    ops::ControlFlow,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version, response::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    body::{Bound, LimitedBody},
    error::{BoxError, Error, Subject, TooLarge},
    flush::Flush,
    hold::Held,
    length::{Declared, is_bodiless, is_declared},
    macros::{inner_service_accessors, limit_settings, reporting_settings},
    media,
    policy::{Limits, Policy, ResponseLimit, higher_of},
    respond::{Answer, Refusal, RequestHead},
    response_body::ResponseBody,
    turns::Turns,
    watch::Callbacks,
};

/// Limits the bodies of responses, those that a server sends or those that a client receives.
///
/// Counts bytes of body data as they pass the place where the layer stands: outside a decoder the
/// decoded ones, inside it the encoded ones. The limit is inclusive, and each response counts for
/// itself.
///
/// | the response, with a limit of 10 | [`server`](Self::server) | [`client`](Self::client) |
/// |---|---|---|
/// | declares or has 10 bytes | passes untouched | passes untouched |
/// | declares 11 | 500 in its place | head as received, the body fails on its first poll |
/// | declares nothing, has 11 | breaks off visibly | the body fails |
/// | to HEAD, or 204, 304 | passes, whatever it declares | passes, whatever it declares |
///
/// Frames pass uncopied, and nothing is held, with one exception: a client that speaks HTTP/1.0
/// cannot tell a response that breaks off from one that ends, so there a body without a declared
/// length is held as if [`buffered`](Self::buffered) were set, unless it is an event stream or
/// `multipart/x-mixed-replace`.
///
/// # Errors
///
/// The body fails with [`Error::TooLarge`], after which it is at its end and the inner body is
/// dropped. The service's own errors are the inner service's.
///
/// # Examples
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::{BodyExt, Full};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_body_limit::{ResponseSizeLimitLayer, TooLarge};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let eleven = service_fn(async |_: Request<()>| {
///     Ok::<_, std::io::Error>(Response::new(Full::<Bytes>::from("eleven byte")))
/// });
///
/// let server = ResponseSizeLimitLayer::server(10).layer(eleven);
/// assert_eq!(server.oneshot(Request::new(())).await.unwrap().status(), 500);
///
/// let client = ResponseSizeLimitLayer::client(10).layer(eleven);
/// let response = client.oneshot(Request::new(())).await.unwrap();
/// assert_eq!(response.status(), 200);
/// let error = response.into_body().collect().await.unwrap_err();
/// assert_eq!(TooLarge::find(&error).unwrap().limit(), 10);
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "ResponseBodyLimitLayer")]
#[doc(alias = "max_body_size")]
#[doc(alias = "maxContentLength")]
pub struct ResponseSizeLimitLayer {
    config: Arc<Config>,
}

#[derive(Clone, Debug)]
struct Config {
    side: Side,
    limits: Limits<Parts>,
    label: Option<&'static str>,
    answer: Answer,
    buffered: bool,
    callbacks: Arc<Callbacks>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Gateway,
    Client,
}

impl ResponseSizeLimitLayer {
    /// On a server, at most `limit` bytes, `None` for no limit, or another [`Policy`].
    pub fn server(limit: impl Into<Policy<Parts>>) -> Self {
        Self::new(Side::Server, limit.into())
    }

    /// On a server, at most as many bytes as `limit` says for the head of the response, `None` for
    /// no limit.
    pub fn server_with<F>(limit: F) -> Self
    where
        F: Fn(&Parts) -> Option<u64> + Send + Sync + 'static,
    {
        Self::server(Policy::by_head(limit))
    }

    /// On a client, at most `limit` bytes, `None` for no limit, or another [`Policy`].
    pub fn client(limit: impl Into<Policy<Parts>>) -> Self {
        Self::new(Side::Client, limit.into())
    }

    /// On a client, at most as many bytes as `limit` says for the head of the response, `None` for
    /// no limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_body_limit::ResponseSizeLimitLayer;
    ///
    /// let layer = ResponseSizeLimitLayer::client_with(|head| {
    ///     if head.status.is_success() { Some(10 * 1024 * 1024) } else { Some(64 * 1024) }
    /// });
    /// ```
    pub fn client_with<F>(limit: F) -> Self
    where
        F: Fn(&Parts) -> Option<u64> + Send + Sync + 'static,
    {
        Self::client(Policy::by_head(limit))
    }

    fn new(side: Side, policy: Policy<Parts>) -> Self {
        let config = Config {
            side,
            limits: Limits::new(policy),
            label: None,
            answer: Answer::default(),
            buffered: false,
            callbacks: Arc::default(),
        };
        Self {
            config: Arc::new(config),
        }
    }

    /// What a server answers with instead of [`standard`](crate::respond::standard): see
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

    /// Answers with 502 and not 500, as the fault is an upstream's.
    ///
    /// # Examples
    ///
    /// ```
    /// # use bytes::Bytes;
    /// # use http::{Request, Response};
    /// # use http_body_util::Full;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// # use tower_body_limit::ResponseSizeLimitLayer;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let proxy = service_fn(async |_: Request<()>| Ok::<_, std::io::Error>(Response::new(Full::<Bytes>::from("eleven byte"))));
    /// let proxy = ResponseSizeLimitLayer::server(10).gateway().layer(proxy);
    /// assert_eq!(proxy.oneshot(Request::new(())).await.unwrap().status(), 502);
    /// # }
    /// ```
    #[must_use]
    pub fn gateway(mut self) -> Self {
        if self.config.side == Side::Server {
            self.config_mut().side = Side::Gateway;
        }
        self
    }

    /// Holds each response on a server until its end, so that every breach becomes a whole answer.
    ///
    /// At most `limit` bytes are held for each response in flight, so the memory needed is the limit
    /// times the number of responses in flight, and up to 16 KiB more for each. Trailers are kept. If the inner body fails, the head
    /// and what was held go out first. Event streams, gRPC, NDJSON and `multipart/x-mixed-replace`
    /// are never held, nor is a response without a limit. What HTTP/1.0 needs is said
    /// [above](Self).
    ///
    /// # Examples
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Request, Response};
    /// use http_body_util::StreamBody;
    /// # use futures_util::stream;
    /// # use http_body::Frame;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// use tower_body_limit::ResponseSizeLimitLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let eleven_in_two_frames = service_fn(async |_: Request<()>| {
    ///     let frames = ["eleven", " byte"].map(|text| Ok(Frame::data(Bytes::from(text))));
    ///     Ok::<_, std::io::Error>(Response::new(StreamBody::new(stream::iter(frames))))
    /// });
    /// # let eleven_in_two_frames = tower::ServiceExt::<Request<()>>::map_response(eleven_in_two_frames, |response: Response<StreamBody<stream::Iter<std::array::IntoIter<Result<Frame<Bytes>, std::io::Error>, 2>>>>| response);
    /// let server = ResponseSizeLimitLayer::server(10).buffered().layer(eleven_in_two_frames);
    /// assert_eq!(server.oneshot(Request::new(())).await.unwrap().status(), 500);
    /// # }
    /// ```
    #[must_use]
    pub fn buffered(mut self) -> Self {
        self.config_mut().buffered = true;
        self
    }

    limit_settings!(
        "response",
        "ResponseLimit",
        "ResponseSizeLimitLayer::server"
    );
}

impl<S> Layer<S> for ResponseSizeLimitLayer {
    type Service = ResponseSizeLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ResponseSizeLimit {
            inner,
            config: Arc::clone(&self.config),
        }
    }
}

/// The service of [`ResponseSizeLimitLayer`]; its examples are there.
#[derive(Clone, Debug)]
pub struct ResponseSizeLimit<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> ResponseSizeLimit<S> {
    inner_service_accessors!();
}

impl<S, ReqB, ResB> Service<Request<ReqB>> for ResponseSizeLimit<S>
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

    fn call(&mut self, mut request: Request<ReqB>) -> Self::Future {
        let asked = request.extensions_mut().remove();
        let head = match self.config.side {
            // Nothing is answered, so nothing else is asked of it.
            Side::Client => RequestHead::without_fields(request.method(), request.version()),
            Side::Server | Side::Gateway => self.config.answer.head(
                request.method(),
                request.uri(),
                request.version(),
                request.headers(),
            ),
        };
        let future = self.inner.call(request);
        ResponseFuture {
            state: State::Called { future },
            config: Arc::clone(&self.config),
            head,
            asked,
        }
    }
}

impl Config {
    fn bound(&self, limit: Option<u64>) -> Bound {
        let status = match self.side {
            Side::Server => StatusCode::INTERNAL_SERVER_ERROR,
            Side::Gateway | Side::Client => StatusCode::BAD_GATEWAY,
        };
        Bound {
            limit,
            subject: Subject::Response,
            status,
            label: self.label,
        }
    }

    /// What becomes of a response, by its head: it goes out, or is held first.
    fn judge<B>(
        &self,
        response: Response<B>,
        head: &RequestHead,
        asked: Option<ResponseLimit>,
    ) -> ControlFlow<Response<ResponseBody<B>>, Box<Holding<B>>>
    where
        B: Body<Data = Bytes>,
    {
        let (mut parts, body) = response.into_parts();
        let mut limit = self.limits.take_for(&mut parts, asked);
        let is_refusal = Refusal::is_in(&parts.extensions);
        if is_refusal {
            limit = higher_of(limit, Some(Refusal::LIMIT));
        }
        let bound = self.bound(limit);
        let watcher = self.callbacks.watcher();
        if is_bodiless(head.method(), parts.status) {
            let body = LimitedBody::bodiless(body, bound, watcher);
            return ControlFlow::Break(Response::from_parts(
                parts,
                ResponseBody::inner(body, None),
            ));
        }
        let hint = body.size_hint();
        let declared = Declared::by_message(&hint, &parts.headers);
        if self.side != Side::Client {
            if let Some(error) = bound.refuses(declared) {
                drop(body);
                self.callbacks.refused(&error, bound);
                let answer = self.answer.replace(error, head, &parts.headers);
                return ControlFlow::Break(answer);
            }
        }
        let is_declared = is_declared(&hint, &parts.headers);
        let flush = match self.side {
            Side::Client => None,
            Side::Server | Side::Gateway => Flush::for_response(head.version(), is_declared),
        };
        let body = LimitedBody::bounded(body, bound, declared, watcher);
        if limit.is_some() && !is_refusal && self.holds(head, &parts.headers, is_declared) {
            return ControlFlow::Continue(Box::new(Holding {
                parts: Some(parts),
                body: Box::pin(body),
                held: Box::default(),
                flush,
            }));
        }
        ControlFlow::Break(Response::from_parts(
            parts,
            ResponseBody::inner(body, flush),
        ))
    }

    /// Whether a body has to be held because its breach could not be seen, or was asked to be.
    fn holds(&self, head: &RequestHead, headers: &HeaderMap, is_declared: bool) -> bool {
        let breach_is_unseen =
            head.version() < Version::HTTP_11 && !is_declared && !media::is_endless(headers);
        let asked_for = self.buffered && !media::is_streamed(headers);
        self.side != Side::Client && (breach_is_unseen || asked_for)
    }
}

/// A response that is held until its end.
#[derive(Debug)]
struct Holding<B> {
    parts: Option<Parts>,
    body: Pin<Box<LimitedBody<B>>>,
    held: Box<Held>,
    flush: Option<Flush>,
}

impl<B> Holding<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    /// The response, with what was held and the failure that ended it; the answer in its place, if
    /// that is a breach.
    fn poll(
        &mut self,
        answer: &Answer,
        head: &RequestHead,
        cx: &mut Context<'_>,
    ) -> Poll<Response<ResponseBody<B>>> {
        let end = ready!(self.poll_read(cx));
        let parts = self.parts.take().expect("polled after completion");
        let failure = match end {
            Err(Error::TooLarge(error)) => {
                return Poll::Ready(answer.replace(error, head, &parts.headers));
            }
            end => end.err(),
        };
        let body = ResponseBody::held(mem::take(&mut self.held), failure, self.flush);
        Poll::Ready(Response::from_parts(parts, body))
    }

    /// Reads the body to its end.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut turns = Turns::default();
        loop {
            ready!(turns.poll(cx));
            match ready!(self.body.as_mut().poll_frame(cx)?) {
                Some(frame) => self.held.push(frame),
                None => return Poll::Ready(Ok(())),
            }
        }
    }
}

pin_project! {
    /// The future of [`ResponseSizeLimit`].
    #[derive(Debug)]
    pub struct ResponseFuture<F, B> {
        #[pin]
        state: State<F, B>,
        config: Arc<Config>,
        head: RequestHead,
        // The override that came with the request.
        asked: Option<ResponseLimit>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProj]
    enum State<F, B> {
        Called { #[pin] future: F },
        // Boxed, as it is large and rare.
        Holding { holding: Box<Holding<B>> },
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
        let (config, head) = (&**this.config, &*this.head);
        loop {
            match this.state.as_mut().project() {
                StateProj::Called { future } => {
                    let response = ready!(future.poll(cx))?;
                    match config.judge(response, head, *this.asked) {
                        ControlFlow::Break(response) => return Poll::Ready(Ok(response)),
                        ControlFlow::Continue(holding) => {
                            this.state.set(State::Holding { holding })
                        }
                    }
                }
                StateProj::Holding { holding } => {
                    return holding.poll(&config.answer, head, cx).map(Ok);
                }
            }
        }
    }
}
