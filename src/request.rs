use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode, Version, header::CONNECTION, request::Parts,
};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    body::{Bound, LimitedBody},
    client_request::ClientRequestSizeLimitLayer,
    error::{BoxError, Subject, TooLarge},
    length::Declared,
    policy::Policy,
    respond::{Answer, RequestHead, ResponseBody},
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
/// | declares nothing, has 11 | the inner service's body fails with [`TooLarge`] |
/// | declares nothing that can be parsed | is counted like one that declares nothing |
///
/// Frames pass uncopied and nothing is buffered.
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
    policy: Policy<Parts>,
    answer: Answer,
    label: Option<&'static str>,
}

impl RequestSizeLimitLayer {
    /// At most `limit` bytes, `None` for no limit, or another [`Policy`].
    pub fn server(limit: impl Into<Policy<Parts>>) -> Self {
        let config = Config {
            policy: limit.into(),
            answer: Answer::default(),
            label: None,
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
    /// use tower_body_limit::RequestSizeLimitLayer;
    ///
    /// let layer = RequestSizeLimitLayer::server_with(|head| match head.uri.path() {
    ///     "/upload" => Some(256 * 1024 * 1024),
    ///     _ => Some(1024 * 1024),
    /// });
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

    /// What to answer with instead of [`plain_text`](crate::respond::plain_text).
    #[must_use]
    pub fn answer_with<F, T>(mut self, answer: F) -> Self
    where
        F: Fn(&TooLarge, &RequestHead) -> Response<T> + Send + Sync + 'static,
        T: Into<Bytes>,
    {
        Arc::make_mut(&mut self.config).answer = Answer::new(answer);
        self
    }

    /// A name for this limit, to be found in its errors.
    #[must_use]
    pub fn label(mut self, label: &'static str) -> Self {
        Arc::make_mut(&mut self.config).label = Some(label);
        self
    }
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
    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Gives the inner service back.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, ReqB, ResB> Service<Request<ReqB>> for RequestSizeLimit<S>
where
    S: Service<Request<LimitedBody<ReqB>>, Response = Response<ResB>>,
    ReqB: Body<Data = Bytes>,
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
        let (parts, body) = request.into_parts();
        let bound = Bound {
            limit: self.config.policy.limit_for(&parts),
            subject: Subject::Request,
            status: StatusCode::PAYLOAD_TOO_LARGE,
            label: self.config.label,
        };
        let declared = Declared::by_message(&body.size_hint(), &parts.headers);
        let request = Request::from_parts(parts, body);
        let state = match bound.refuses(declared) {
            Some(error) => State::Refused {
                answer: Some(self.refuse(error, &request)),
            },
            None => {
                let request = request.map(|body| LimitedBody::bounded(body, bound, declared));
                State::Called {
                    future: self.inner.call(request),
                }
            }
        };
        ResponseFuture { state }
    }
}

impl<S> RequestSizeLimit<S> {
    #[cold]
    fn refuse<ReqB, ResB>(
        &self,
        error: TooLarge,
        request: &Request<ReqB>,
    ) -> Response<ResponseBody<ResB>> {
        let head = RequestHead::of(request);
        let mut answer = self.config.answer.make(error, &head);
        // What is left of the request on the connection is nothing that another could follow.
        if head.version() < Version::HTTP_2 {
            answer
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

pin_project! {
    /// The future of [`RequestSizeLimit`].
    #[derive(Debug)]
    pub struct ResponseFuture<F, ResB> {
        #[pin]
        state: State<F, ResB>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProj]
    enum State<F, ResB> {
        Called { #[pin] future: F },
        Refused { answer: Option<Response<ResponseBody<ResB>>> },
    }
}

impl<F, ResB, E> Future for ResponseFuture<F, ResB>
where
    F: Future<Output = Result<Response<ResB>, E>>,
{
    type Output = Result<Response<ResponseBody<ResB>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Called { future } => {
                let response = ready!(future.poll(cx))?;
                Poll::Ready(Ok(
                    response.map(|body| ResponseBody::inner(LimitedBody::unlimited(body)))
                ))
            }
            StateProj::Refused { answer } => {
                Poll::Ready(Ok(answer.take().expect("polled after completion")))
            }
        }
    }
}
