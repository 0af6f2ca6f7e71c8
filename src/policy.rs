use std::{fmt, sync::Arc};

/// Decides the limit for a message by its head.
///
/// Made from a `u64` (the same limit for all), from an `Option<u64>` (`None` is no limit), or by the
/// constructors of the layers whose names end in `_with` (a closure over the head). `P` is
/// [`http::request::Parts`] or [`http::response::Parts`].
///
/// # Examples
///
/// ```
/// use tower_body_limit::ResponseSizeLimitLayer;
///
/// ResponseSizeLimitLayer::client(10 * 1024 * 1024);
/// ResponseSizeLimitLayer::client(None);
/// let layer = ResponseSizeLimitLayer::client_with(|head| {
///     if head.status.is_success() { Some(10 * 1024 * 1024) } else { Some(64 * 1024) }
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
    pub(crate) fn by_head(decide: impl Fn(&P) -> Option<u64> + Send + Sync + 'static) -> Self {
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
