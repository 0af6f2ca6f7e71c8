use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, StatusCode, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    body::{Bound, LimitedBody},
    error::{BoxError, Error, Subject, TooLarge},
    length::Declared,
    macros::{inner_service_accessors, limit_settings, reporting_settings},
    policy::{Limits, Policy},
    watch::{BodyEnd, Callbacks, Watch, Watcher, is_complete},
};

/// Limits the bodies of requests that a client sends.
///
/// Made by [`RequestSizeLimitLayer::client`](crate::RequestSizeLimitLayer::client). Counts bytes of
/// body data as they pass the layer. The limit is inclusive.
///
/// # Errors
///
/// The service fails with [`Error::TooLarge`] without calling the inner service if the request
/// declares more than the limit, and as soon as the inner service ends if the request turned out to
/// have more. Any other error of the inner service is [`Error::Service`].
///
/// # Examples
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_body_limit::{LimitedBody, RequestSizeLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let client = service_fn(async |_: Request<LimitedBody<Full<Bytes>>>| {
///     Ok::<_, std::io::Error>(Response::new(Full::<Bytes>::default()))
/// });
/// let client = RequestSizeLimitLayer::client(10).layer(client);
///
/// let error = client.oneshot(Request::new(Full::from("eleven byte"))).await.unwrap_err();
/// assert_eq!(error.too_large().unwrap().declared(), Some(11));
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "maxBodyLength")]
pub struct ClientRequestSizeLimitLayer {
    config: Arc<Config>,
}

#[derive(Clone, Debug)]
struct Config {
    limits: Limits<Parts>,
    label: Option<&'static str>,
    callbacks: Arc<Callbacks>,
}

impl ClientRequestSizeLimitLayer {
    pub(crate) fn new(policy: Policy<Parts>) -> Self {
        Self {
            config: Arc::new(Config {
                limits: Limits::new(policy),
                label: None,
                callbacks: Arc::default(),
            }),
        }
    }

    limit_settings!("request", "RequestLimit", "RequestSizeLimitLayer::client");
}

impl<S> Layer<S> for ClientRequestSizeLimitLayer {
    type Service = ClientRequestSizeLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ClientRequestSizeLimit {
            inner,
            config: Arc::clone(&self.config),
        }
    }
}

/// The service of [`ClientRequestSizeLimitLayer`]; its examples are there.
#[derive(Clone, Debug)]
pub struct ClientRequestSizeLimit<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> ClientRequestSizeLimit<S> {
    inner_service_accessors!();
}

impl<S, B> Service<Request<B>> for ClientRequestSizeLimit<S>
where
    S: Service<Request<LimitedBody<B>>>,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let bound = Bound {
            limit: self.config.limits.take_for(&mut parts),
            subject: Subject::Request,
            status: StatusCode::PAYLOAD_TOO_LARGE,
            label: self.config.label,
        };
        let declared = Declared::by_message(&body.size_hint(), &parts.headers);
        let callbacks = &self.config.callbacks;
        if let Some(error) = bound.refuses(declared) {
            callbacks.refused(&error, bound);
            return ResponseFuture {
                state: State::Refused { error: Some(error) },
            };
        }
        // A body that is at its end has nothing to breach with.
        let may_breach = bound.limit.is_some() && !body.is_end_stream();
        let call = may_breach.then(|| Arc::new(Call::new(&self.config)));
        let watcher = match &call {
            Some(call) => Watcher(Some(Arc::clone(call) as _)),
            None => callbacks.watcher(),
        };
        let body = LimitedBody::bounded(body, bound, declared, watcher);
        let future = self.inner.call(Request::from_parts(parts, body));
        ResponseFuture {
            state: State::Called { future, call },
        }
    }
}

/// A request that the inner service is working on, shared with its body.
#[derive(Debug)]
struct Call {
    breach: OnceLock<TooLarge>,
    config: Arc<Config>,
}

impl Call {
    fn new(config: &Arc<Config>) -> Self {
        Self {
            breach: OnceLock::new(),
            config: Arc::clone(config),
        }
    }
}

impl<B: Body> Watch<B> for Call {
    fn breached(&self, error: &TooLarge, _: Pin<&mut Option<B>>) {
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

pin_project! {
    /// The future of [`ClientRequestSizeLimit`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProj]
    enum State<F> {
        Called { #[pin] future: F, call: Option<Arc<Call>> },
        Refused { error: Option<TooLarge> },
    }
}

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match self.project().state.project() {
            StateProj::Called { future, call } => {
                let result = ready!(future.poll(cx));
                match call.as_ref().and_then(|call| call.breach.get()) {
                    Some(error) => Err(error.clone().into()),
                    None => result.map_err(Error::from_service),
                }
            }
            StateProj::Refused { error } => {
                Err(error.take().expect("polled after completion").into())
            }
        })
    }
}
