use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, StatusCode, request::Parts};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    body::{RecordKind, RecordLimitedBody},
    config::Config,
};
use crate::{
    error::TooLarge,
    length::forget_the_whole,
    macros::{inner_service_accessors, reporting_settings},
    policy::Policy,
};

/// Limits each line of a request, and not their number.
///
/// For uploads of one JSON text a line, of any length. By default only requests of the media types
/// that [`RecordLimitLayer`](crate::RecordLimitLayer) takes for lines are looked at, without a `Content-Encoding` (other than `identity`); all that is
/// said there about lines holds here. Put a [`RequestSizeLimitLayer`](crate::RequestSizeLimitLayer)
/// outside for a limit on the whole.
///
/// # Errors
///
/// The request's body fails with [`Error::TooLarge`](crate::Error::TooLarge), with
/// [`Subject::Record`](crate::Subject::Record). What the client gets is up to the inner service, which
/// may have answered by then; [`TooLarge::status`](crate::TooLarge::status) is 413.
///
/// # Examples
///
/// ```
/// use axum::{Router, body::Body, routing::post};
/// use http::{Request, StatusCode, header::CONTENT_TYPE};
/// use http_body_util::BodyExt;
/// use tower::ServiceExt;
/// use tower_body_limit::{RequestRecordLimitLayer, TooLarge};
///
/// async fn import(body: Body) -> StatusCode {
///     match body.collect().await {
///         Ok(_) => StatusCode::OK,
///         Err(error) => TooLarge::find(&error).map_or(StatusCode::BAD_REQUEST, TooLarge::status),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let app = Router::new()
///     .route("/import", post(import))
///     .layer(RequestRecordLimitLayer::lines(10));
///
/// let upload = |lines: &'static str| {
///     Request::post("/import")
///         .header(CONTENT_TYPE, "application/x-ndjson")
///         .body(Body::from(lines))
///         .unwrap()
/// };
/// let response = app.clone().oneshot(upload("\"12345678\"\n\"12345678\"\n")).await.unwrap();
/// assert_eq!(response.status(), 200);
/// let response = app.oneshot(upload("\"123456789\"\n")).await.unwrap();
/// assert_eq!(response.status(), 413);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RequestRecordLimitLayer {
    config: Arc<Config<Parts>>,
}

impl RequestRecordLimitLayer {
    /// At most `limit` bytes in each line of a request of one JSON text a line.
    #[must_use]
    #[doc(alias = "NDJSON")]
    #[doc(alias = "jsonl")]
    pub fn lines(limit: u64) -> Self {
        Self {
            config: Config::fitting(RecordKind::Lines, limit, StatusCode::PAYLOAD_TOO_LARGE),
        }
    }

    /// At most as many bytes in each line as `limit` says for the head of the request, `None` to leave
    /// the request alone.
    ///
    /// The closure decides alone, whatever the media type and the encoding.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{Router, body::Body, routing::post};
    /// use http::Request;
    /// use tower::ServiceExt;
    /// use tower_body_limit::RequestRecordLimitLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let app = Router::new()
    ///     .route("/csv", post(async |rows: String| rows))
    ///     .route("/text", post(async |text: String| text))
    ///     .layer(RequestRecordLimitLayer::lines_with(|head| match head.uri.path() {
    ///         "/csv" => Some(10),
    ///         _ => None,
    ///     }));
    ///
    /// // 400 is what axum makes of a body that fails.
    /// for (path, status) in [("/csv", 400), ("/text", 200)] {
    ///     let request = Request::post(path).body(Body::from("eleven,byte\n")).unwrap();
    ///     assert_eq!(app.clone().oneshot(request).await.unwrap().status(), status);
    /// }
    /// # }
    /// ```
    pub fn lines_with<F>(limit: F) -> Self
    where
        F: Fn(&Parts) -> Option<u64> + Send + Sync + 'static,
    {
        let policy = Policy::by_head(limit);
        Self {
            config: Config::new(
                RecordKind::Lines,
                policy,
                true,
                StatusCode::PAYLOAD_TOO_LARGE,
            ),
        }
    }

    /// Removes lines that are too large, and goes on: see [`RecordLimitLayer::skip_oversized`](crate::RecordLimitLayer::skip_oversized).
    #[must_use]
    pub fn skip_oversized(mut self) -> Self {
        self.config_mut().skips = true;
        self
    }

    reporting_settings!(
        Config<Parts>,
        "record",
        "request with a limit",
        "drops it before the end of a record that is skipped",
        "RequestRecordLimitLayer::lines"
    );
}

impl<S> Layer<S> for RequestRecordLimitLayer {
    type Service = RequestRecordLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RequestRecordLimit {
            inner,
            config: Arc::clone(&self.config),
        }
    }
}

/// The service of [`RequestRecordLimitLayer`]; its examples are there.
#[derive(Clone, Debug)]
pub struct RequestRecordLimit<S> {
    inner: S,
    config: Arc<Config<Parts>>,
}

impl<S> RequestRecordLimit<S> {
    inner_service_accessors!();
}

impl<S, B> Service<Request<B>> for RequestRecordLimit<S>
where
    S: Service<Request<RecordLimitedBody<B>>>,
    B: Body<Data = Bytes>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let limit = self.config.limit_for(&parts, &parts.headers);
        if limit.is_some() && self.config.skips {
            forget_the_whole(&mut parts.headers);
        }
        let body = self.config.body(body, limit);
        self.inner.call(Request::from_parts(parts, body))
    }
}
