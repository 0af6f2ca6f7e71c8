use std::{fmt, sync::Arc};

use http::{HeaderMap, StatusCode, request, response};

use crate::media;

/// Decides the limit for a message by its head.
///
/// | made from | decides |
/// |---|---|
/// | `u64` | the same limit for all |
/// | `Option<u64>` | the same, or no limit |
/// | [`MediaTypeLimits`] | by the media type |
/// | [`StatusLimits`] | by the status, for responses |
/// | a closure, with a constructor in `_with` or [`by_head`](Self::by_head) | by anything in the head |
///
/// `P` is [`http::request::Parts`] or [`http::response::Parts`].
///
/// # Examples
///
/// ```
/// use tower_body_limit::ResponseSizeLimitLayer;
///
/// ResponseSizeLimitLayer::client(10 * 1024 * 1024);
/// ResponseSizeLimitLayer::client(None);
/// let layer = ResponseSizeLimitLayer::client_with(|head| {
///     if head.headers.contains_key("x-report") { None } else { Some(64 * 1024) }
/// });
/// assert!(format!("{layer:?}").contains("decided for each message"));
/// ```
pub struct Policy<P>(Kind<P>);

enum Kind<P> {
    Fixed(Option<u64>),
    ByHead(Arc<Decide<P>>),
}

type Decide<P> = dyn Fn(&P) -> Option<u64> + Send + Sync;

impl<P> Policy<P> {
    /// As many bytes as `decide` says for the head of the message, `None` for no limit.
    ///
    /// To be part of [`StatusLimits`]. A layer has a constructor whose name ends in `_with`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use bytes::Bytes;
    /// # use http::{Request, Response};
    /// # use http_body_util::Full;
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// use http::response::Parts;
    /// use tower_body_limit::{Policy, ResponseSizeLimitLayer, StatusLimits};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let reports = Policy::by_head(|head: &Parts| {
    ///     if head.headers.contains_key("x-report") { None } else { Some(10) }
    /// });
    /// let layer = ResponseSizeLimitLayer::server(StatusLimits::new(1000).success(reports));
    ///
    /// for (field, status) in [("x-report", 200), ("x-other", 500)] {
    ///     # let handler = service_fn(async |_: Request<()>| {
    ///     #     Response::builder().header(field, "yes").body(Full::<Bytes>::from("eleven byte"))
    ///     # });
    ///     let response = layer.layer(handler).oneshot(Request::new(())).await.unwrap();
    ///     assert_eq!(response.status(), status);
    /// }
    /// # }
    /// ```
    pub fn by_head<F>(decide: F) -> Self
    where
        F: Fn(&P) -> Option<u64> + Send + Sync + 'static,
    {
        Self(Kind::ByHead(Arc::new(decide)))
    }

    pub(crate) fn limit_for(&self, head: &P) -> Option<u64> {
        match &self.0 {
            Kind::Fixed(limit) => *limit,
            Kind::ByHead(decide) => decide(head),
        }
    }
}

impl<P> From<u64> for Policy<P> {
    fn from(limit: u64) -> Self {
        Self(Kind::Fixed(Some(limit)))
    }
}

impl<P> From<Option<u64>> for Policy<P> {
    fn from(limit: Option<u64>) -> Self {
        Self(Kind::Fixed(limit))
    }
}

impl<P> Clone for Policy<P> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Kind::Fixed(limit) => Kind::Fixed(*limit),
            Kind::ByHead(decide) => Kind::ByHead(Arc::clone(decide)),
        })
    }
}

impl<P> fmt::Debug for Policy<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Fixed(Some(limit)) => write!(f, "{limit} bytes"),
            Kind::Fixed(None) => f.write_str("unlimited"),
            Kind::ByHead(_) => f.write_str("decided for each message"),
        }
    }
}

impl From<MediaTypeLimits> for Policy<request::Parts> {
    fn from(limits: MediaTypeLimits) -> Self {
        Self::by_head(move |head: &request::Parts| limits.limit_for(&head.headers))
    }
}

impl From<MediaTypeLimits> for Policy<response::Parts> {
    fn from(limits: MediaTypeLimits) -> Self {
        Self::by_head(move |head: &response::Parts| limits.limit_for(&head.headers))
    }
}

impl From<StatusLimits> for Policy<response::Parts> {
    fn from(limits: StatusLimits) -> Self {
        Self::by_head(move |head: &response::Parts| {
            limits
                .class_of(head.status)
                .unwrap_or(&limits.others)
                .limit_for(head)
        })
    }
}

/// A limit for each media type, in bytes, `None` for no limit.
///
/// Types match without their parameters and in any case. A message whose type is missing, cannot be
/// read, or is stated more than once gets the default.
///
/// | `Content-Type` | limit |
/// |---|---|
/// | `Application/JSON; charset=utf-8` | [`json`](Self::json) |
/// | `application/problem+json` | [`json`](Self::json) |
/// | `application/jsonp`, none, two of them | the default |
/// | `text/event-stream` | [`event_stream`](Self::event_stream) |
///
/// An exact type goes before `json`.
///
/// # Examples
///
/// ```
/// # use bytes::Bytes;
/// # use http::{Request, Response};
/// # use http_body_util::Full;
/// # use tower::{Layer, ServiceExt, service_fn};
/// use tower_body_limit::{MediaTypeLimits, ResponseSizeLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limits = MediaTypeLimits::new(10).json(11).event_stream(None).media_type("image/png", 12);
/// let layer = ResponseSizeLimitLayer::server(limits);
///
/// for (content_type, bytes, status) in [
///     ("text/html", 11, 500),
///     ("application/problem+json", 11, 200),
///     ("application/problem+json", 12, 500),
///     ("text/event-stream", 1000, 200),
///     ("image/png", 12, 200),
/// ] {
///     # let handler = service_fn(async |_: Request<()>| {
///     #     let response = Response::builder().header("content-type", content_type);
///     #     response.body(Full::<Bytes>::from(vec![0; bytes]))
///     # });
///     let response = layer.layer(handler).oneshot(Request::new(())).await.unwrap();
///     assert_eq!(response.status(), status);
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MediaTypeLimits {
    default: Option<u64>,
    json: Option<Option<u64>>,
    exact: Vec<(String, Option<u64>)>,
}

impl MediaTypeLimits {
    /// At most `default` bytes for the types that are not named.
    pub fn new(default: impl Into<Option<u64>>) -> Self {
        Self {
            default: default.into(),
            json: None,
            exact: Vec::new(),
        }
    }

    /// At most `limit` bytes of `application/json`, `text/json`, and types that end in `+json`.
    #[must_use]
    pub fn json(mut self, limit: impl Into<Option<u64>>) -> Self {
        self.json = Some(limit.into());
        self
    }

    /// At most `limit` bytes of `text/event-stream`, in total.
    ///
    /// Usually `None`, as such a stream goes on for as long as somebody listens.
    #[must_use]
    pub fn event_stream(self, limit: impl Into<Option<u64>>) -> Self {
        self.media_type("text/event-stream", limit)
    }

    /// At most `limit` bytes of a type such as `image/png`, which is matched as a whole: `image/*` is
    /// no type. Parameters are left out. The last one counts if a type is named twice.
    #[must_use]
    pub fn media_type(
        mut self,
        media_type: impl AsRef<str>,
        limit: impl Into<Option<u64>>,
    ) -> Self {
        let media_type = media::without_parameters(media_type.as_ref());
        self.exact.push((media_type.to_owned(), limit.into()));
        self
    }

    fn limit_for(&self, headers: &HeaderMap) -> Option<u64> {
        let is_meant = |(named, _): &&(String, _)| media::is_one_of(headers, &[named]);
        let exact = self
            .exact
            .iter()
            .rev()
            .find(is_meant)
            .map(|(_, limit)| *limit);
        exact
            .or(self.json.filter(|_| media::is_json(headers)))
            .unwrap_or(self.default)
    }
}

/// A limit for each class of status, for responses.
///
/// Each is a [`Policy`] of its own, so it may again depend on the media type.
///
/// # Examples
///
/// ```
/// # use bytes::Bytes;
/// # use http::{Request, Response};
/// # use http_body_util::Full;
/// # use tower::{Layer, ServiceExt, service_fn};
/// use tower_body_limit::{MediaTypeLimits, ResponseSizeLimitLayer, StatusLimits};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limits = StatusLimits::new(10)
///     .success(MediaTypeLimits::new(12).event_stream(None))
///     .server_error(11);
/// let layer = ResponseSizeLimitLayer::server(limits);
///
/// // Two pass, and one is replaced.
/// for (status, bytes, becomes) in [(200, 12, 200), (503, 11, 503), (404, 11, 500)] {
///     # let handler = service_fn(async |_: Request<()>| {
///     #     Response::builder().status(status).body(Full::<Bytes>::from(vec![0; bytes]))
///     # });
///     let response = layer.layer(handler).oneshot(Request::new(())).await.unwrap();
///     assert_eq!(response.status(), becomes);
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StatusLimits {
    others: Policy<response::Parts>,
    success: Option<Policy<response::Parts>>,
    client_error: Option<Policy<response::Parts>>,
    server_error: Option<Policy<response::Parts>>,
}

impl StatusLimits {
    /// The limit for the classes that are not named.
    pub fn new(others: impl Into<Policy<response::Parts>>) -> Self {
        Self {
            others: others.into(),
            success: None,
            client_error: None,
            server_error: None,
        }
    }

    /// The limit for 2xx.
    #[must_use]
    pub fn success(mut self, limit: impl Into<Policy<response::Parts>>) -> Self {
        self.success = Some(limit.into());
        self
    }

    /// The limit for 4xx.
    #[must_use]
    pub fn client_error(mut self, limit: impl Into<Policy<response::Parts>>) -> Self {
        self.client_error = Some(limit.into());
        self
    }

    /// The limit for 5xx.
    #[must_use]
    pub fn server_error(mut self, limit: impl Into<Policy<response::Parts>>) -> Self {
        self.server_error = Some(limit.into());
        self
    }

    fn class_of(&self, status: StatusCode) -> Option<&Policy<response::Parts>> {
        match status.as_u16() {
            200..=299 => self.success.as_ref(),
            400..=499 => self.client_error.as_ref(),
            500..=599 => self.server_error.as_ref(),
            _ => None,
        }
    }
}

/// Overrides the limit for one request.
///
/// Put into the extensions of the request by whoever makes or receives it, before it comes to a
/// layer that limits requests. The first such layer takes it out, so it does not reach the next hop.
/// It lowers the limit of that layer freely, and raises it up to its
/// [override ceiling](crate::RequestSizeLimitLayer::override_ceiling); more than that is cut to the
/// ceiling.
///
/// # Examples
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_body_limit::{LimitedBody, RequestLimit, RequestSizeLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let server = service_fn(async |_: Request<LimitedBody<Full<Bytes>>>| {
///     Ok::<_, std::io::Error>(Response::new(Full::<Bytes>::default()))
/// });
/// let server = RequestSizeLimitLayer::server(1000).layer(server);
///
/// let mut request = Request::new(Full::from("eleven byte"));
/// request.extensions_mut().insert(RequestLimit::new(10));
/// assert_eq!(server.oneshot(request).await.unwrap().status(), 413);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimit(Option<u64>);

impl RequestLimit {
    /// At most `limit` bytes, `None` for no limit.
    pub fn new(limit: impl Into<Option<u64>>) -> Self {
        Self(limit.into())
    }
}

/// Overrides the limit for one response.
///
/// Put into the extensions of the response by the inner service, or into those of the *request* by
/// whoever makes the call; the response's goes before. The first layer that limits responses takes
/// it out of where it comes by, so it does not reach the next hop. It lowers the limit of that layer
/// freely, and raises it up to its
/// [override ceiling](crate::ResponseSizeLimitLayer::override_ceiling); more than that is cut to the
/// ceiling.
///
/// # Examples
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::{BodyExt, Full};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_body_limit::{ResponseLimit, ResponseSizeLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let upstream = service_fn(async |_: Request<()>| {
///     Ok::<_, std::io::Error>(Response::new(Full::<Bytes>::from("eleven byte")))
/// });
/// let client = ResponseSizeLimitLayer::client(10).override_ceiling(1000).layer(upstream);
///
/// let mut request = Request::new(());
/// request.extensions_mut().insert(ResponseLimit::new(100));
/// let response = client.oneshot(request).await.unwrap();
/// assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "eleven byte");
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseLimit(Option<u64>);

impl ResponseLimit {
    /// At most `limit` bytes, `None` for no limit.
    pub fn new(limit: impl Into<Option<u64>>) -> Self {
        Self(limit.into())
    }
}

/// A policy and how far a message may go beyond it.
#[derive(Clone, Debug)]
pub(crate) struct Limits<P> {
    pub(crate) policy: Policy<P>,
    /// None: no further than the policy.
    pub(crate) override_ceiling: Option<Option<u64>>,
}

impl<P> Limits<P> {
    pub(crate) fn new(policy: Policy<P>) -> Self {
        Self {
            policy,
            override_ceiling: None,
        }
    }

    fn resolve(&self, head: &P, wanted: Option<Option<u64>>) -> Option<u64> {
        let usual = self.policy.limit_for(head);
        match (wanted, self.override_ceiling) {
            (None, _) => usual,
            (Some(wanted), None) => lower_of(wanted, usual),
            (Some(wanted), Some(ceiling)) => lower_of(wanted, higher_of(usual, ceiling)),
        }
    }
}

impl Limits<request::Parts> {
    /// The limit for a request, whose override is taken out.
    pub(crate) fn take_for(&self, head: &mut request::Parts) -> Option<u64> {
        let wanted = head.extensions.remove::<RequestLimit>();
        self.resolve(head, wanted.map(|RequestLimit(limit)| limit))
    }
}

impl Limits<response::Parts> {
    /// The limit for a response, whose override is taken out. `asked` is that of the request.
    pub(crate) fn take_for(
        &self,
        head: &mut response::Parts,
        asked: Option<ResponseLimit>,
    ) -> Option<u64> {
        let wanted = head.extensions.remove::<ResponseLimit>().or(asked);
        self.resolve(head, wanted.map(|ResponseLimit(limit)| limit))
    }
}

/// The lower of two limits, of which None is the highest.
pub(crate) fn lower_of(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (limit, None) | (None, limit) => limit,
    }
}

/// The higher of two limits, of which None is the highest.
pub(crate) fn higher_of(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    Some(a?.max(b?))
}
