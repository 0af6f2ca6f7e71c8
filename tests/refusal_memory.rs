//! What a request costs that may be refused, and one that is.

mod support;
#[path = "support/witness.rs"]
mod witness;

use std::{convert::Infallible, future::pending, hint::black_box, iter, time::Duration};

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use futures_util::{FutureExt, stream};
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tower::{Layer, Service, service_fn};
use tower_body_limit::{LimitedBody, RequestSizeLimitLayer, respond};
use witness::Found;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

fn layers() -> [RequestSizeLimitLayer; 4] {
    let layer = || RequestSizeLimitLayer::server(MIB);
    [
        layer(),
        layer().no_drain().keep_inner_answers(),
        layer().drain_with(MIB, Duration::from_secs(5), |_| pending()),
        layer()
            .label("uploads")
            .answer_with(respond::problem_json)
            .on_breach(|_| {})
            .on_end(|_| {}),
    ]
}

/// Polls a body to its end, as often as it takes.
fn exhaust<B: Body>(body: B) -> Option<B::Error> {
    let mut body = Box::pin(body);
    let mut ready = || {
        iter::from_fn(|| Some(body.frame().now_or_never()))
            .flatten()
            .next()
    };
    loop {
        match ready().expect("it repeats until then") {
            Some(Ok(_)) => {}
            Some(Err(error)) => return Some(error),
            None => return None,
        }
    }
}

fn allocations<B>(layer: &RequestSizeLimitLayer, body: B) -> u64
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let mut service = layer.layer(service_fn(async |request: Request<LimitedBody<B>>| {
        let mut body = request.into_body();
        while let Some(frame) = body.frame().await {
            black_box(frame.unwrap());
        }
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let request = Request::new(body);
    let info = measure(|| {
        let response = service.call(request).now_or_never().unwrap();
        black_box(response.unwrap());
    });
    info.count_total
}

#[test]
fn a_request_that_is_accepted_costs_one_allocation_whatever_is_configured() {
    for layer in layers() {
        assert_eq!(allocations(&layer, Empty::new()), 0, "{layer:?}");
        let declared = Full::from(Bytes::from_static(b"ten bytes."));
        assert_eq!(allocations(&layer, declared), 1, "{layer:?}");
        let frame = || Ok(Frame::data(Bytes::from_static(b"ten bytes.")));
        let undeclared = StreamBody::new(stream::iter(iter::repeat_with(frame).take(100)));
        assert_eq!(allocations(&layer, undeclared), 1, "{layer:?}");
    }
}

/// What lives at most while a request of `frames` frames is refused and drained.
fn refused(found: Found, frames: usize) -> AllocationInfo {
    let layer =
        RequestSizeLimitLayer::server(10)
            .drain_with(u64::MAX, Duration::from_secs(5), |_| pending());
    let frame = || Ok::<_, Infallible>(Frame::data(Bytes::from(vec![0; 64 * KIB as usize])));
    let body = StreamBody::new(stream::iter(iter::repeat_with(frame).take(frames)));
    let request = found.post(body, u64::MAX);
    let inner = service_fn(async |request: Request<LimitedBody<_>>| {
        let read = request.into_body().collect().await;
        read.map(|_| Response::new(Full::<Bytes>::default()))
    });
    let mut service = found.by(layer).layer(inner);
    measure(|| {
        let response = service.call(request).now_or_never().unwrap().unwrap();
        assert_eq!(response.status(), 413);
        assert!(exhaust(response.into_body()).is_none());
    })
}

#[test]
fn a_drain_takes_no_more_than_the_frame_it_discards() {
    for found in Found::ALL {
        let few = refused(found, 10);
        let many = refused(found, 1000);
        assert!(many.bytes_max <= 64 * KIB + 4 * KIB, "{found:?}: {many:?}");
        // Each frame is made anew, and that is all.
        assert_eq!(many.count_total - few.count_total, 990, "{found:?}");
    }
}
