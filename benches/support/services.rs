//! A service that reads its request, and the ways to put limits around it.

use std::{
    convert::Infallible,
    fmt,
    pin::pin,
    task::{Context, Poll, Waker},
};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST},
};
use http_body::Body;
use http_body_util::{BodyExt, Full, Limited};
use tower::{Layer, Service, ServiceBuilder, service_fn, util::MapResponseLayer};
use tower_body_limit::{RequestSizeLimitLayer, ResponseSizeLimitLayer};
use tower_http::limit::RequestBodyLimitLayer;

use super::{
    KIB,
    bodies::{Frames, read},
};

/// The limit of all of them.
pub const LIMIT: u64 = 64 * KIB;

pub const BARE: &str = "bare";
pub const OURS: &str = "request layer";
pub const TOWER_HTTP: &str = "tower-http";
pub const OURS_BOTH: &str = "both layers";
pub const PEERS_BOTH: &str = "tower-http + Limited";

pub const CONTENDERS: [&str; 5] = [BARE, OURS, TOWER_HTTP, OURS_BOTH, PEERS_BOTH];

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// A GET.
    WithoutBody,
    /// A POST of 1 KiB.
    WithBody,
    /// Over the limit by its `Content-Length`.
    RefusedEarly,
    /// Over the limit, and declares nothing.
    RefusedLate,
}

impl Case {
    pub const ALL: [Self; 4] = [
        Self::WithoutBody,
        Self::WithBody,
        Self::RefusedEarly,
        Self::RefusedLate,
    ];

    fn is_refused(self) -> bool {
        matches!(self, Self::RefusedEarly | Self::RefusedLate)
    }

    /// Who can be measured: a service without a limit refuses nothing.
    pub fn contenders(self) -> impl Iterator<Item = &'static str> {
        let bare_too = !self.is_refused();
        CONTENDERS
            .into_iter()
            .filter(move |&name| bare_too || name != BARE)
    }

    /// Makes requests of this kind.
    pub fn requests(self) -> impl Fn() -> Request<Frames> {
        let frames = match self {
            Self::WithoutBody => Frames::new(0, 0),
            Self::WithBody => Frames::new(1024, 1),
            Self::RefusedEarly => Frames::new(16 * 1024, 8),
            Self::RefusedLate => Frames::new(16 * 1024, 8).undeclared(),
        };
        let length = frames.size_hint().exact().filter(|&length| length > 0);
        let mut fields = vec![(HOST, "localhost".to_owned()), (ACCEPT, "*/*".to_owned())];
        if self != Self::WithoutBody {
            fields.push((CONTENT_TYPE, "text/plain".to_owned()));
        }
        fields.extend(length.map(|length| (CONTENT_LENGTH, length.to_string())));
        let target = "/some/path?query=1";
        let values = fields.iter().map(|(_, value)| value.as_str());
        let head: String = [target].into_iter().chain(values).collect();
        move || {
            // As hyper does it: the target and all values are slices of one buffer.
            let mut buffer = BytesMut::from(head.as_str());
            let mut take = |text: &str| buffer.split_to(text.len()).freeze();
            let mut request = Request::new(frames.clone());
            if self != Self::WithoutBody {
                *request.method_mut() = Method::POST;
            }
            *request.uri_mut() = Uri::from_maybe_shared(take(target)).expect("it is a path");
            for (name, value) in &fields {
                let value = HeaderValue::from_maybe_shared(take(value)).expect("it is ASCII");
                request.headers_mut().insert(name, value);
            }
            request
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WithoutBody => "accepted, no body",
            Self::WithBody => "accepted, 1 KiB",
            Self::RefusedEarly => "refused early",
            Self::RefusedLate => "refused late",
        })
    }
}

/// Takes a request through one of the [`CONTENDERS`], to the end of the response's body.
pub type Serve = Box<dyn FnMut(Request<Frames>) -> StatusCode>;

pub fn serve_as(contender: &str) -> Serve {
    let limit = LIMIT as usize;
    let request_layer = RequestSizeLimitLayer::server(LIMIT);
    match contender {
        BARE => serve(service_fn(handle)),
        OURS => serve(request_layer.layer(service_fn(handle))),
        TOWER_HTTP => serve(RequestBodyLimitLayer::new(limit).layer(service_fn(handle))),
        OURS_BOTH => {
            let service = ServiceBuilder::new()
                .layer(request_layer)
                .layer(ResponseSizeLimitLayer::server(LIMIT));
            serve(service.service_fn(handle))
        }
        PEERS_BOTH => {
            let limited =
                move |response: Response<_>| response.map(|body| Limited::new(body, limit));
            let service = ServiceBuilder::new()
                .layer(RequestBodyLimitLayer::new(limit))
                .layer(MapResponseLayer::new(limited));
            serve(service.service_fn(handle))
        }
        unknown => panic!("no such contender: {unknown}"),
    }
}

/// Makes it out of any service that never waits.
pub fn serve<S, B>(mut service: S) -> Serve
where
    S: Service<Request<Frames>, Response = Response<B>, Error = Infallible> + 'static,
    B: Body,
{
    Box::new(move |request| {
        let future = pin!(service.call(request));
        let Poll::Ready(Ok(response)) = future.poll(&mut Context::from_waker(Waker::noop())) else {
            unreachable!("nothing waits");
        };
        let (head, body) = response.into_parts();
        read(body);
        head.status
    })
}

/// Reads all of the request, and says 400 if that fails, as frameworks do.
pub async fn handle<B>(request: Request<B>) -> Result<Response<Full<Bytes>>, Infallible>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(request.into_body());
    let mut status = StatusCode::OK;
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            status = StatusCode::BAD_REQUEST;
            break;
        }
    }
    let mut response = Response::new(Full::from("a short answer"));
    *response.status_mut() = status;
    Ok(response)
}
