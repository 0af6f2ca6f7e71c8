//! One request and one response through layers, in memory, and what a limit did to them.

#![allow(dead_code, missing_docs, unreachable_pub)]

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, request, response};
use http_body::Body;
use http_body_util::BodyExt;
use tower::{Layer, Service, ServiceExt};
use tower_body_limit::{Policy, RequestSizeLimitLayer, ResponseSizeLimitLayer, Subject, TooLarge};

use crate::support::{
    Hint, Script, VARIANTS, data,
    net::{AnyBody, AnyClient, BoxError, any_body, any_client},
};

/// A layer of any type.
#[derive(Clone)]
pub struct AnyLayer(Arc<dyn Fn(AnyClient) -> AnyClient + Send + Sync>);

impl AnyLayer {
    pub fn new<L, B>(layer: L) -> Self
    where
        L: Layer<AnyInner> + Send + Sync + 'static,
        L::Service: Service<Request<AnyBody>, Response = Response<B>, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Sync + 'static,
    {
        Self(Arc::new(move |inner| {
            any_client(layer.layer(AnyInner(inner)))
        }))
    }
}

impl fmt::Debug for AnyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyLayer")
    }
}

impl<S, B> Layer<S> for AnyLayer
where
    S: Service<Request<AnyBody>, Response = Response<B>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Sync + 'static,
{
    type Service = AnyClient;

    fn layer(&self, inner: S) -> AnyClient {
        (self.0)(any_client(inner))
    }
}

/// A service of any type, for requests with any body.
#[derive(Clone, Debug)]
pub struct AnyInner(AnyClient);

impl<B> Service<Request<B>> for AnyInner
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Sync + 'static,
{
    type Response = Response<AnyBody>;
    type Error = BoxError;
    type Future = <AnyClient as Service<Request<AnyBody>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.0.call(request.map(any_body))
    }
}

/// What is limited, where, and the layer that does it.
pub type Limiter = (Subject, &'static str, AnyLayer);

/// Each layer that has a limit, with this one. Without a ceiling it is as it comes.
pub fn limiters<P>(limit: P, ceiling: Option<Option<u64>>, label: &'static str) -> [Limiter; 4]
where
    P: Into<Policy<request::Parts>> + Into<Policy<response::Parts>> + Clone,
{
    macro_rules! limiter {
        ($subject:ident, $side:literal, $layer:expr) => {{
            let layer = $layer.label(label);
            let layer = match ceiling {
                Some(ceiling) => layer.override_ceiling(ceiling),
                None => layer,
            };
            (Subject::$subject, $side, AnyLayer::new(layer))
        }};
    }
    let [a, b, c, d] = std::array::from_fn(|_| limit.clone());
    [
        limiter!(Request, "server", RequestSizeLimitLayer::server(a)),
        limiter!(Request, "client", RequestSizeLimitLayer::client(b)),
        limiter!(Response, "server", ResponseSizeLimitLayer::server(c)),
        limiter!(Response, "client", ResponseSizeLimitLayer::client(d)),
    ]
}

/// A service that reads each request to its end and answers with the next of its responses.
#[derive(Clone, Debug)]
pub struct Reader(Arc<Mutex<Kept>>);

#[derive(Debug)]
struct Kept {
    answers: VecDeque<Response<Script>>,
    asked: Option<request::Parts>,
}

impl Reader {
    pub fn new(answers: impl IntoIterator<Item = Response<Script>>) -> Self {
        Self(Arc::new(Mutex::new(Kept {
            answers: answers.into_iter().collect(),
            asked: None,
        })))
    }
}

impl<B> Service<Request<B>> for Reader
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<Script>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Script>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (head, body) = request.into_parts();
        let mut kept = self.0.lock().unwrap();
        kept.asked = Some(head);
        let answer = kept.answers.pop_front().expect("an answer is left");
        Box::pin(async move {
            body.collect().await.map_err(Into::into)?;
            Ok(answer)
        })
    }
}

/// A request, and the response of the inner service.
#[derive(Debug)]
pub struct Exchange {
    pub request: Request<Script>,
    pub response: Response<Script>,
}

/// What became of an exchange.
#[derive(Debug)]
pub struct After {
    pub breach: Option<TooLarge>,
    /// The head that the inner service got, if it was called.
    pub asked: Option<request::Parts>,
    /// The head that came out, if the call did not fail.
    pub answered: Option<response::Parts>,
}

impl Exchange {
    /// With `len` bytes in the one message, and none in the other.
    pub fn of(subject: Subject, len: usize, hint: Hint) -> Self {
        let (large, small) = (
            Script::new([data(len)], hint),
            Script::new([], Hint::Declared),
        );
        let (request, response) = match subject {
            Subject::Request => (large, small),
            _ => (small, large),
        };
        Self {
            request: Request::new(request),
            response: Response::new(response),
        }
    }

    pub async fn through<L, B>(self, layer: &L) -> After
    where
        L: Layer<Reader>,
        L::Service: Service<Request<AnyBody>, Response = Response<B>, Error: Into<BoxError>>,
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let reader = Reader::new([self.response]);
        let service = layer.layer(reader.clone());
        let result = service
            .oneshot(self.request.map(any_body))
            .await
            .map_err(Into::into);
        let (breach, answered) = read(result).await;
        let asked = reader.0.lock().unwrap().asked.take();
        After {
            breach,
            asked,
            answered,
        }
    }
}

/// Reads what a call came to, and says whether a limit was the end of it.
pub async fn read<B>(
    result: Result<Response<B>, BoxError>,
) -> (Option<TooLarge>, Option<response::Parts>)
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let found = |error: &BoxError| TooLarge::find(&**error).expect("it is a limit").clone();
    let (head, body) = match result {
        Ok(response) => response.into_parts(),
        Err(error) => return (Some(found(&error)), None),
    };
    let breach = match body.collect().await.map_err(Into::into) {
        Ok(_) => head.extensions.get().cloned(),
        Err(error) => Some(found(&error)),
    };
    if let Some(refusal) = head.extensions.get::<TooLarge>() {
        assert_eq!(head.status, refusal.status());
    }
    (breach, Some(head))
}

/// Lengths around a limit, and whether they pass.
pub fn around(limit: Option<u64>) -> Vec<(usize, bool)> {
    match limit {
        Some(limit) => vec![(limit as usize, true), (limit as usize + 1, false)],
        None => vec![(10_000, true)],
    }
}

/// Asserts that this limit is what holds for a message so prepared, whether it declares its length
/// or not, and says which layer it came from.
pub async fn assert_limit<L, B>(
    layer: &L,
    subject: Subject,
    limit: Option<u64>,
    prepare: impl Fn(&mut Exchange),
    case: &str,
) -> Option<&'static str>
where
    L: Layer<Reader>,
    L::Service: Service<Request<AnyBody>, Response = Response<B>, Error: Into<BoxError>>,
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    let mut label = None;
    for hint in VARIANTS {
        for (len, passes) in around(limit) {
            let case = format!("{case}, {subject:?}, {hint:?}, {len} bytes");
            let declared = matches!(hint, Hint::Declared).then_some(len as u64);
            let mut exchange = Exchange::of(subject, len, hint.clone());
            prepare(&mut exchange);
            let after = exchange.through(layer).await;
            assert_eq!(after.breach.is_none(), passes, "{case}: {:?}", after.breach);
            let Some(breach) = after.breach else {
                assert!(after.asked.is_some(), "{case}: it was not called");
                continue;
            };
            assert_eq!(Some(breach.limit()), limit, "{case}");
            assert_eq!(breach.subject(), subject, "{case}");
            assert_eq!(breach.declared(), declared, "{case}");
            label = breach.label();
        }
    }
    label
}
