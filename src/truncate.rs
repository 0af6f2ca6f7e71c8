use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::CONTENT_RANGE, response::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    error::{BoxError, Error},
    length::{Declared, forget_the_whole, is_bodiless},
    macros::inner_service_accessors,
    media,
    policy::Policy,
};

/// Cuts the bodies of error responses to a prefix that is enough to read.
///
/// For diagnostics only, never for data that will be parsed: whoever reads the prefix cannot see from
/// the bytes that more was meant to come. The body ends cleanly after `limit` bytes, without another
/// poll of the inner body, so neither an endless error page nor a stalled peer holds up a client that
/// wants to report an error. How a body ended can be read from the [`TruncationHandle`] in the
/// response's extensions.
///
/// By default only responses whose status is an error (4xx, 5xx) are cut, and of these no JSON, no
/// event stream, and nothing with a `Content-Encoding` other than `identity`. Zero keeps nothing, and does not poll the
/// inner body at all. If the declared length is over the limit, the headers that describe the whole
/// (`Content-Length`, digests, `ETag`, `Accept-Ranges`, of a 206 `Content-Range`) are removed.
///
/// A limit of size is not a limit of time: a peer that stalls *before* the limit is waited for. Put a
/// timeout outside.
///
/// # Examples
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::{BodyExt, Full};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_body_limit::{TruncateLayer, Truncation, TruncationHandle};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let failing = service_fn(async |_: Request<()>| {
///     let page = Full::<Bytes>::from("upstream is down, and here is a long story");
///     Ok::<_, std::io::Error>(Response::builder().status(503).body(page).unwrap())
/// });
/// let client = TruncateLayer::new(16).layer(failing);
///
/// let response = client.oneshot(Request::new(())).await.unwrap();
/// let handle = response.extensions().get::<TruncationHandle>().unwrap().clone();
/// assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "upstream is down");
/// assert_eq!(handle.get(), Some(Truncation::Truncated));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TruncateLayer {
    policy: Policy<Parts>,
}

impl TruncateLayer {
    /// Keeps at most `limit` bytes of an error response that is neither JSON nor an event stream nor
    /// encoded.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self::new_with(move |head| is_diagnostic(head).then_some(limit))
    }

    /// Keeps at most as many bytes as `limit` says for the head of the response; `None` leaves the
    /// response alone.
    ///
    /// # Examples
    ///
    /// ```
    /// # use bytes::Bytes;
    /// # use http::{Request, Response};
    /// # use http_body_util::{BodyExt, Full};
    /// # use tower::{Layer, ServiceExt, service_fn};
    /// use tower_body_limit::TruncateLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// // Every server error, whatever its media type.
    /// let layer = TruncateLayer::new_with(|head| head.status.is_server_error().then_some(4));
    ///
    /// for (status, bytes) in [(503, 4), (404, 11)] {
    ///     # let upstream = service_fn(async |_: Request<()>| {
    ///     #     Response::builder().status(status).body(Full::<Bytes>::from("eleven byte"))
    ///     # });
    ///     let response = layer.layer(upstream).oneshot(Request::new(())).await.unwrap();
    ///     assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), bytes);
    /// }
    /// # }
    /// ```
    pub fn new_with<F>(limit: F) -> Self
    where
        F: Fn(&Parts) -> Option<u64> + Send + Sync + 'static,
    {
        Self {
            policy: Policy::by_head(limit),
        }
    }
}

fn is_diagnostic(head: &Parts) -> bool {
    let is_error = head.status.is_client_error() || head.status.is_server_error();
    is_error
        && !media::is_json(&head.headers)
        && !media::is_event_stream(&head.headers)
        && !media::is_encoded(&head.headers)
}

impl<S> Layer<S> for TruncateLayer {
    type Service = Truncate<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Truncate {
            inner,
            policy: self.policy.clone(),
        }
    }
}

/// The service of [`TruncateLayer`]; its examples are there.
#[derive(Clone, Debug)]
pub struct Truncate<S> {
    inner: S,
    policy: Policy<Parts>,
}

impl<S> Truncate<S> {
    inner_service_accessors!();
}

impl<S, ReqB, ResB> Service<Request<ReqB>> for Truncate<S>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    ResB: Body<Data = Bytes>,
    ResB::Error: Into<BoxError>,
{
    type Response = Response<TruncatedBody<ResB>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let method = request.method().clone();
        let future = self.inner.call(request);
        ResponseFuture {
            future,
            method,
            policy: self.policy.clone(),
        }
    }
}

pin_project! {
    /// The future of [`Truncate`].
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        future: F,
        method: http::Method,
        policy: Policy<Parts>,
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body<Data = Bytes>,
{
    type Output = Result<Response<TruncatedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (mut parts, body) = ready!(this.future.poll(cx))?.into_parts();
        let limit = match this.policy.limit_for(&parts) {
            Some(limit) if !is_bodiless(this.method, parts.status) => limit,
            _ => return Poll::Ready(Ok(Response::from_parts(parts, TruncatedBody::whole(body)))),
        };
        if Declared::by_message(&body.size_hint(), &parts.headers).exceeds(limit) {
            forget_the_whole(&mut parts.headers);
            if parts.status == StatusCode::PARTIAL_CONTENT {
                parts.headers.remove(CONTENT_RANGE);
            }
        }
        let body = TruncatedBody::new(body, limit);
        let mut handle = body.handle();
        handle.inner = parts.extensions.remove().map(Arc::new);
        parts.extensions.insert(handle);
        Poll::Ready(Ok(Response::from_parts(parts, body)))
    }
}

/// How a [`TruncatedBody`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Truncation {
    /// All of the wrapped body's data was passed on.
    Complete,
    /// There was more.
    Truncated,
    /// The limit was met exactly, and nothing says whether there was more; or the wrapped body
    /// failed.
    Unknown,
}

/// Tells how a [`TruncatedBody`] ended, after the body is gone.
///
/// Found in the extensions of a response that a [`TruncateLayer`] may cut. If several may, it speaks
/// for all of them.
#[derive(Clone, Debug, Default)]
pub struct TruncationHandle {
    end: Arc<OnceLock<Truncation>>,
    // That of a layer further in: what is whole to the outer may have been cut there.
    inner: Option<Arc<Self>>,
}

impl TruncationHandle {
    /// How the body ended, `None` while it has not.
    #[must_use]
    pub fn get(&self) -> Option<Truncation> {
        let end = *self.end.get()?;
        let inner = self.inner.as_ref().and_then(|inner| inner.get());
        match (end, inner) {
            (Truncation::Truncated, _) => Some(end),
            (_, Some(Truncation::Truncated | Truncation::Unknown)) => inner,
            _ => Some(end),
        }
    }
}

pin_project! {
    /// A body that ends cleanly after at most `limit` bytes of data.
    ///
    /// | the wrapped body | with a limit of 10 | [`TruncationHandle::get`] |
    /// |---|---|---|
    /// | 4 and 4 bytes, then its end, trailers or none | 4, 4, trailers | `Complete` |
    /// | 4, 4, 4 | 4, 4, 2 | `Truncated` |
    /// | 4, 6, and more is declared | 4, 6 | `Truncated` |
    /// | 4, 6, and nothing is declared | 4, 6 | `Unknown` |
    ///
    /// The wrapped body is dropped, and not polled again, as soon as `limit` bytes were passed on.
    /// Frames pass uncopied; the last one, if it has to be cut, is copied, so that a small prefix
    /// does not keep a large buffer alive. What the wrapped body declares is ignored.
    ///
    /// # Errors
    ///
    /// [`Error::Body`](crate::Error::Body) when the wrapped body fails before the limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use http_body_util::BodyExt;
    /// use tower_body_limit::{TruncatedBody, Truncation};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let body = TruncatedBody::new(String::from("eleven byte"), 10);
    /// let handle = body.handle();
    /// assert_eq!(body.collect().await.unwrap().to_bytes(), "eleven byt");
    /// assert_eq!(handle.get(), Some(Truncation::Truncated));
    /// # }
    /// ```
    #[derive(Debug)]
    #[doc(alias = "Take")]
    pub struct TruncatedBody<B> {
        // None once the wrapped body has ended, has failed, or was given up.
        #[pin]
        inner: Option<B>,
        // None for a body that is not to be cut.
        remaining: Option<u64>,
        end: Arc<OnceLock<Truncation>>,
    }
}

impl<B: Body> TruncatedBody<B> {
    /// Cuts `inner` to its first `limit` bytes.
    pub fn new(inner: B, limit: u64) -> Self {
        let known = end_of(&inner, limit);
        Self {
            inner: known.is_none().then_some(inner),
            remaining: Some(limit),
            end: Arc::new(known.map_or_else(OnceLock::new, OnceLock::from)),
        }
    }
}

impl<B> TruncatedBody<B> {
    fn whole(inner: B) -> Self {
        Self {
            inner: Some(inner),
            remaining: None,
            end: Arc::default(),
        }
    }

    /// Tells how this body ended, also when it is gone.
    #[must_use]
    pub fn handle(&self) -> TruncationHandle {
        TruncationHandle {
            end: Arc::clone(&self.end),
            inner: None,
        }
    }

    /// The wrapped body, `None` once that has ended, has failed, or was given up.
    #[must_use]
    pub fn get_ref(&self) -> Option<&B> {
        self.inner.as_ref()
    }

    /// The wrapped body, `None` once that has ended, has failed, or was given up.
    #[must_use]
    pub fn get_mut(&mut self) -> Option<&mut B> {
        self.inner.as_mut()
    }

    /// Gives the wrapped body back, `None` once that has ended, has failed, or was given up.
    #[must_use]
    pub fn into_inner(self) -> Option<B> {
        self.inner
    }

    fn finish(self: Pin<&mut Self>, end: Truncation) {
        let mut this = self.project();
        this.inner.set(None);
        let _ = this.end.set(end);
    }
}

/// Whether a body of which `remaining` bytes are wanted has been read far enough, and what is known
/// about the rest.
fn end_of<B: Body>(inner: &B, remaining: u64) -> Option<Truncation> {
    if inner.is_end_stream() {
        return Some(Truncation::Complete);
    }
    let hint = inner.size_hint();
    match (remaining, hint.lower(), hint.upper()) {
        (0, 0, Some(0)) => Some(Truncation::Complete),
        (0, 0, _) => Some(Truncation::Unknown),
        (0, ..) => Some(Truncation::Truncated),
        _ => None,
    }
}

/// The default of the wrapped body, uncut.
impl<B: Default> Default for TruncatedBody<B> {
    fn default() -> Self {
        Self::whole(B::default())
    }
}

impl<B> Body for TruncatedBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.as_mut().project();
        let Some(mut inner) = this.inner.as_pin_mut() else {
            return Poll::Ready(None);
        };
        let frame = match ready!(inner.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                self.finish(Truncation::Unknown);
                return Poll::Ready(Some(Err(Error::from_body(error))));
            }
            None => {
                self.finish(Truncation::Complete);
                return Poll::Ready(None);
            }
        };
        let Some(remaining) = this.remaining else {
            return Poll::Ready(Some(Ok(frame)));
        };
        let Some(data) = frame.data_ref() else {
            if inner.is_end_stream() {
                self.finish(Truncation::Complete);
            }
            return Poll::Ready(Some(Ok(frame)));
        };
        // A frame that is longer than what remains of a u64 does not fit in memory.
        if let Some(cut) = usize::try_from(*remaining)
            .ok()
            .filter(|&cut| cut < data.len())
        {
            let data = Bytes::copy_from_slice(&data[..cut]);
            *remaining = 0;
            self.finish(Truncation::Truncated);
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        *remaining -= data.len() as u64;
        if let Some(end) = end_of(&*inner, *remaining) {
            self.finish(end);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let Some(inner) = &self.inner else {
            return SizeHint::with_exact(0);
        };
        let mut hint = inner.size_hint();
        if let Some(remaining) = self.remaining {
            let (lower, upper) = (hint.lower(), hint.upper());
            hint = SizeHint::new();
            hint.set_upper(upper.map_or(remaining, |upper| upper.min(remaining)));
            hint.set_lower(lower.min(remaining));
        }
        hint
    }
}
