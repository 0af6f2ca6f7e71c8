use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    error::BoxError,
    macros::inner_service_accessors,
    policy::{Policy, lower_of},
    respond,
    response_body::ResponseBody,
};

/// Changes the limit of one request, from a place behind the layer that set it.
///
/// An [adjustable](crate::RequestSizeLimitLayer::adjustable) layer puts it into the extensions of the
/// request. A handler, an extractor, or a [`SetRequestLimitLayer`] on a route takes it from there.
/// The limit can be raised and lowered, up to the ceiling of the layer, until the body is read for
/// the first time.
///
/// # Examples
///
/// ```
/// use axum::{Router, body::Bytes, body::Body, extract::{FromRequest, Request}, routing::post};
/// use tower::ServiceExt;
/// use tower_body_limit::{LimitControl, RequestSizeLimitLayer};
///
/// async fn upload(request: Request) -> String {
///     let control = request.extensions().get::<LimitControl>().unwrap();
///     if request.headers().contains_key("x-plan-unlimited") {
///         control.set(1000).unwrap();
///     }
///     let bytes = Bytes::from_request(request, &()).await.unwrap_or_default();
///     bytes.len().to_string()
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let app = Router::new()
///     .route("/", post(upload))
///     .layer(RequestSizeLimitLayer::server(10).adjustable(1000));
///
/// let request = Request::post("/").header("x-plan-unlimited", "yes");
/// let request = request.body(Body::from("eleven byte")).unwrap();
/// let response = app.oneshot(request).await.unwrap();
/// assert_eq!(axum::body::to_bytes(response.into_body(), 100).await.unwrap(), "11");
/// # }
/// ```
#[derive(Clone)]
pub struct LimitControl(Arc<Mutex<Setting>>);

#[derive(Clone, Copy)]
struct Setting {
    limit: Option<u64>,
    ceiling: Option<u64>,
    frozen: bool,
}

impl LimitControl {
    pub(crate) fn new(limit: Option<u64>, ceiling: Option<u64>) -> Self {
        Self(Arc::new(Mutex::new(Setting {
            limit,
            ceiling,
            frozen: false,
        })))
    }

    /// Lets another adjustable layer take part: its limit, which is nearer to the handler, holds, as
    /// far as both ceilings allow. False if it is too late for that.
    pub(crate) fn join(&self, limit: Option<u64>, ceiling: Option<u64>) -> bool {
        let mut setting = self.lock();
        if !setting.frozen {
            setting.ceiling = lower_of(setting.ceiling, ceiling);
            setting.limit = lower_of(limit, setting.ceiling);
        }
        !setting.frozen
    }

    /// The limit as it is now, in bytes, `None` for no limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.lock().limit
    }

    /// The highest limit that can be set, in bytes, `None` for any.
    #[must_use]
    pub fn ceiling(&self) -> Option<u64> {
        self.lock().ceiling
    }

    /// Sets the limit, in bytes, `None` for no limit.
    ///
    /// # Errors
    ///
    /// [`SetLimitError::AboveCeiling`] and [`SetLimitError::Read`]; the limit stays as it is.
    pub fn set(&self, limit: impl Into<Option<u64>>) -> Result<(), SetLimitError> {
        let limit = limit.into();
        let mut setting = self.lock();
        match setting.ceiling {
            _ if setting.frozen => return Err(SetLimitError::Read),
            Some(ceiling) if lower_of(limit, Some(ceiling)) != limit => {
                return Err(SetLimitError::AboveCeiling { limit, ceiling });
            }
            _ => setting.limit = limit,
        }
        Ok(())
    }

    /// The limit that holds from now on.
    pub(crate) fn freeze(&self) -> Option<u64> {
        let mut setting = self.lock();
        setting.frozen = true;
        setting.limit
    }

    // Nothing that can panic happens under this lock.
    fn lock(&self) -> MutexGuard<'_, Setting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LimitControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting {
            limit,
            ceiling,
            frozen,
        } = *self.lock();
        f.debug_struct("LimitControl")
            .field("limit", &limit)
            .field("ceiling", &ceiling)
            .field("frozen", &frozen)
            .finish()
    }
}

/// Why a limit could not be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetLimitError {
    /// The layer that made the [`LimitControl`] does not allow that much.
    #[error(
        "a limit of {} is above the ceiling of {ceiling} bytes",
        limit.map_or_else(|| "none".to_owned(), |limit| format!("{limit} bytes"))
    )]
    AboveCeiling {
        /// The limit that was asked for.
        limit: Option<u64>,
        /// The highest that is allowed.
        ceiling: u64,
    },
    /// The body has been read from already.
    #[error("the body has been read from already")]
    Read,
    /// No adjustable layer stands outside.
    #[error("no adjustable limit stands outside")]
    NotAdjustable,
}

/// Sets the limit of the requests that pass it, on behalf of an adjustable layer outside.
///
/// To be put on a route. Does nothing by itself: the limit is enforced by the
/// [`RequestSizeLimitLayer`](crate::RequestSizeLimitLayer) that stands outside and is
/// [adjustable](crate::RequestSizeLimitLayer::adjustable).
///
/// # Errors
///
/// If the limit cannot be set, for one of the reasons in [`SetLimitError`], then the configuration
/// is wrong, and a smaller limit than was meant would hold without a sign. So the request is
/// answered with 500, and the reason is in the extensions of the response.
///
/// # Examples
///
/// 1 MiB everywhere, 256 MiB on one route, 64 KiB on another:
///
/// ```
/// use axum::{Router, body::{Body, Bytes}, extract::DefaultBodyLimit, routing::post};
/// use http::Request;
/// use tower::ServiceExt;
/// use tower_body_limit::{RequestSizeLimitLayer, SetRequestLimitLayer};
///
/// async fn length(body: Bytes) -> String {
///     body.len().to_string()
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let app = Router::new()
///     .route("/upload", post(length).layer(SetRequestLimitLayer::new(256 * 1024 * 1024)))
///     .route("/login", post(length).layer(SetRequestLimitLayer::new(64 * 1024)))
///     .route("/other", post(length))
///     .layer(RequestSizeLimitLayer::server(1024 * 1024).adjustable(256 * 1024 * 1024))
///     .layer(DefaultBodyLimit::disable());
///
/// for (path, bytes, status) in [
///     ("/upload", 1024 * 1024 + 1, 200),
///     ("/login", 64 * 1024 + 1, 413),
///     ("/other", 1024 * 1024, 200),
///     ("/other", 1024 * 1024 + 1, 413),
/// ] {
///     let request = Request::post(path).body(Body::from(vec![0; bytes])).unwrap();
///     assert_eq!(app.clone().oneshot(request).await.unwrap().status(), status);
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SetRequestLimitLayer {
    policy: Policy<Parts>,
}

impl SetRequestLimitLayer {
    /// At most `limit` bytes, `None` for no limit, or another [`Policy`].
    pub fn new(limit: impl Into<Policy<Parts>>) -> Self {
        Self {
            policy: limit.into(),
        }
    }

    /// At most as many bytes as `limit` says for the head of the request, `None` for no limit.
    pub fn new_with<F>(limit: F) -> Self
    where
        F: Fn(&Parts) -> Option<u64> + Send + Sync + 'static,
    {
        Self::new(Policy::by_head(limit))
    }
}

impl<S> Layer<S> for SetRequestLimitLayer {
    type Service = SetRequestLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SetRequestLimit {
            inner,
            policy: self.policy.clone(),
        }
    }
}

/// The service of [`SetRequestLimitLayer`]; its example is there.
#[derive(Clone, Debug)]
pub struct SetRequestLimit<S> {
    inner: S,
    policy: Policy<Parts>,
}

impl<S> SetRequestLimit<S> {
    inner_service_accessors!();

    fn set(&self, parts: &Parts) -> Result<(), SetLimitError> {
        let control = parts.extensions.get::<LimitControl>();
        control
            .ok_or(SetLimitError::NotAdjustable)?
            .set(self.policy.limit_for(parts))
    }
}

impl<S, ReqB, ResB> Service<Request<ReqB>> for SetRequestLimit<S>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    ResB: Body<Data = Bytes>,
    ResB::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<ResB>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let state = match self.set(&parts) {
            Ok(()) => State::Called {
                future: self.inner.call(Request::from_parts(parts, body)),
            },
            Err(error) => State::Misconfigured { error },
        };
        ResponseFuture { state }
    }
}

pin_project! {
    /// The future of [`SetRequestLimit`].
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
        Called { #[pin] future: F },
        Misconfigured { error: SetLimitError },
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Called { future } => {
                let response = ready!(future.poll(cx))?;
                Poll::Ready(Ok(response.map(ResponseBody::passing)))
            }
            StateProj::Misconfigured { error } => {
                let text = "The limit of this route is not configured correctly.\n";
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                let mut answer = respond::with_plain_text(status, text)
                    .map(|text| ResponseBody::answer(text, None));
                answer.extensions_mut().insert(*error);
                Poll::Ready(Ok(answer))
            }
        }
    }
}
