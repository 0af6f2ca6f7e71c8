//! What the bodies and the layers allocate.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    pin::Pin,
    task::{Context, Poll},
};

use allocation_counter::{AllocationInfo, measure};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, Uri, header::ACCEPT};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty};
use tower::{Layer, Service};
use tower_body_limit::{
    BodyLimitExt, LimitedBody, RequestSizeLimitLayer, ResponseSizeLimitLayer, Truncation,
};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// More frames than anybody should ask for.
const ENDLESS: u64 = 4 * MIB;

/// Yields two buffers in turn, again and again, without allocating.
#[derive(Clone, Debug)]
struct Repeat {
    frames: [Bytes; 2],
    left: u64,
    declared: SizeHint,
}

impl Repeat {
    fn new(frame: Bytes, times: u64) -> Self {
        Self::in_turn([frame.clone(), frame], times)
    }

    fn in_turn(frames: [Bytes; 2], times: u64) -> Self {
        let declared = SizeHint::new();
        Self {
            frames,
            left: times,
            declared,
        }
    }

    fn declaring(self, declared: SizeHint) -> Self {
        Self { declared, ..self }
    }
}

impl Body for Repeat {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Poll::Ready(None);
        };
        self.left = left;
        self.frames.swap(0, 1);
        Poll::Ready(Some(Ok(Frame::data(self.frames[0].clone()))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::clone(&self.declared)
    }
}

fn block(len: u64) -> Bytes {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    Bytes::from_static(&ZEROS[..len as usize])
}

/// What a future allocates that is ready sooner or later.
fn allocated_by<F: Future>(future: impl FnOnce() -> F) -> (AllocationInfo, F::Output) {
    let mut output = None;
    let info = measure(|| {
        let mut future = Box::pin(future());
        output = std::iter::repeat_with(|| future.as_mut().now_or_never()).find_map(|ready| ready);
    });
    (info, output.expect("it repeats until then"))
}

/// Reads a body to its end, keeping nothing.
fn exhaust<B: Body + Unpin>(mut body: B) -> u64 {
    let mut frames = 0;
    while let Some(Ok(_)) = body.frame().now_or_never().expect("always ready") {
        frames += 1;
    }
    frames
}

#[test]
fn frames_pass_without_an_allocation() {
    let hints = [SizeHint::new(), SizeHint::with_exact(16 * MIB)];
    for (hint, limit) in hints.into_iter().zip([16 * MIB, u64::MAX]) {
        let body = Repeat::new(block(16 * KIB), 1024).declaring(hint);
        let info = measure(|| {
            assert_eq!(exhaust(LimitedBody::new(body, limit)), 1024);
        });
        assert_eq!(info.count_total, 0);
    }
}

#[test]
fn a_breach_costs_nothing_that_depends_on_the_body() {
    let body = Repeat::new(block(64 * KIB), ENDLESS);
    let info = measure(|| {
        assert_eq!(exhaust(LimitedBody::new(body, MIB)), 16);
    });
    assert_eq!(info.count_total, 0);
}

/// Answers every request with the same body, after it has read the request.
#[derive(Clone)]
struct Reads(Repeat);

impl<B> Service<Request<B>> for Reads
where
    B: Body + Unpin,
{
    type Response = Response<Repeat>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Repeat>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        black_box(exhaust(request.into_body()));
        ready(Ok(Response::new(self.0.clone())))
    }
}

/// A request whose head shares one buffer, as it does on a real connection.
fn request<B>(body: B) -> Request<B> {
    let mut wire = BytesMut::from("/search?q=everything text/html,application/xhtml+xml");
    let uri = Uri::from_maybe_shared(wire.split_to("/search?q=everything".len()).freeze());
    let accept = HeaderValue::from_maybe_shared(wire.split_off(1).freeze());
    let request = Request::builder()
        .uri(uri.unwrap())
        .header(ACCEPT, accept.unwrap());
    request.body(body).unwrap()
}

/// How many allocations a call makes, its response read to the end.
fn allocations<L, B, T>(layer: L, response: Repeat, body: B) -> u64
where
    L: Layer<Reads>,
    L::Service: Service<Request<B>, Response = Response<T>, Error: std::fmt::Debug>,
    T: Body + Unpin,
{
    let mut service = layer.layer(Reads(response));
    let request = request(body);
    let info = measure(|| {
        let response = service.call(request).now_or_never().expect("always ready");
        black_box(exhaust(response.unwrap().into_body()));
    });
    info.count_total
}

#[test]
fn an_accepted_message_costs_no_allocation() {
    let bodies = || {
        let body = Repeat::new(block(16 * KIB), 64);
        [body.clone(), body.declaring(SizeHint::with_exact(MIB))]
    };
    let nothing = || Repeat::new(Bytes::new(), 0);
    let server = RequestSizeLimitLayer::server(MIB).label("requests");
    let client = RequestSizeLimitLayer::client(MIB);
    assert_eq!(
        allocations(server.clone(), nothing(), Empty::<Bytes>::new()),
        0
    );
    assert_eq!(
        allocations(client.clone(), nothing(), Empty::<Bytes>::new()),
        0
    );
    // What it takes to adjust the limit is paid by all, what it takes to answer a breach is not.
    let adjustable = server.clone().adjustable(MIB);
    let without_body = allocations(adjustable.clone(), nothing(), Empty::<Bytes>::new());
    for body in bodies() {
        assert!(allocations(adjustable.clone(), nothing(), body) > without_body);
    }
    for body in bodies() {
        assert!(allocations(server.clone(), nothing(), body.clone()) <= 1);
        assert!(allocations(client.clone(), nothing(), body) <= 1);
    }
    for layer in [
        ResponseSizeLimitLayer::server(MIB),
        ResponseSizeLimitLayer::client(MIB),
    ] {
        assert_eq!(
            allocations(layer.clone(), nothing(), Empty::<Bytes>::new()),
            0
        );
        for body in bodies() {
            assert_eq!(allocations(layer.clone(), body, Empty::<Bytes>::new()), 0);
        }
    }
}

#[test]
fn a_clone_of_a_layer_allocates_nothing() {
    let request = RequestSizeLimitLayer::server_with(|_| Some(MIB)).label("requests");
    let response = ResponseSizeLimitLayer::client_with(|_| Some(MIB));
    let info = measure(|| {
        black_box((request.clone(), response.clone()));
    });
    assert_eq!(info.count_total, 0);
}

#[test]
fn collecting_reserves_little_on_the_word_of_the_peer() {
    let tib = 1 << 40;
    let mut at_least = SizeHint::new();
    at_least.set_lower(tib);
    for hint in [SizeHint::with_exact(tib), at_least] {
        let body = Repeat::new(block(10), 2).declaring(SizeHint::clone(&hint));
        let (info, collected) = allocated_by(|| body.collect_limited(2 * tib));
        assert_eq!(collected.unwrap().bytes().len(), 20);
        assert!(info.bytes_max <= 65 * KIB, "{info:?}");
        let body = Repeat::new(block(64 * KIB), 2).declaring(hint);
        let (info, collected) = allocated_by(|| body.collect_limited(2 * tib));
        assert_eq!(collected.unwrap().bytes().len() as u64, 128 * KIB);
        assert!(info.bytes_max <= (128 + 65) * KIB, "{info:?}");
    }
}

#[test]
fn a_prefix_of_an_endless_body_is_all_that_lives() {
    // One frame is in flight; the future itself and the handle are the rest.
    for frame in [1000, 4 * KIB, 16 * KIB, 64 * KIB] {
        let body = Repeat::new(block(frame), ENDLESS);
        let (info, prefix) = allocated_by(|| body.collect_prefix(64 * KIB));
        assert_eq!(prefix.bytes().len() as u64, 64 * KIB);
        assert!(
            info.bytes_max <= 64 * KIB + frame + KIB,
            "frame {frame}: {info:?}"
        );
    }
}

#[test]
fn a_small_prefix_does_not_keep_a_large_buffer() {
    let large = Bytes::from(vec![0; MIB as usize]);
    let mut prefix = None;
    let info = measure(|| {
        let body = http_body_util::Full::new(large);
        let mut body = body.truncated(10);
        let frame = body.frame().now_or_never().unwrap().unwrap().unwrap();
        assert_eq!(body.handle().get(), Some(Truncation::Truncated));
        prefix = Some(frame.into_data().unwrap());
    });
    assert_eq!(prefix.unwrap().len(), 10);
    // The buffer was made outside, so its end counts and its beginning does not.
    assert!(info.bytes_current <= KIB as i64 - MIB as i64, "{info:?}");
}

#[test]
fn a_small_prefix_does_not_keep_the_room_for_a_large_one() {
    for frames in [1, 2] {
        let body = Repeat::new(block(10), frames);
        let (info, prefix) = allocated_by(|| body.collect_prefix(64 * KIB));
        assert_eq!(prefix.bytes().len() as u64, 10 * frames);
        assert!(info.bytes_current <= KIB as i64, "{info:?}");
    }
}

/// The most that lives while a buffered response is held, and the status that came of it.
fn held(body: Repeat, limit: u64) -> (u64, u16) {
    let layer = ResponseSizeLimitLayer::server(limit).buffered();
    let mut service = layer.layer(Reads(body));
    let request = request(Empty::<Bytes>::new());
    let (info, response) = allocated_by(|| service.call(request));
    (info.bytes_max, response.unwrap().status().as_u16())
}

#[test]
fn what_is_held_takes_little_more_memory_than_its_bytes() {
    let overhead = 16 * KIB + 8 * KIB;
    for len in [1, 7, 100] {
        let (most, status) = held(Repeat::new(block(len), MIB / len), MIB);
        assert_eq!(status, 200);
        assert!(most <= MIB + overhead, "{len}: {most}");
    }
    let (most, status) = held(Repeat::new(block(1), ENDLESS), MIB);
    assert_eq!(status, 500);
    assert!(most <= MIB + overhead, "{most}");
    // Large frames are kept as they are, and so is little of what stands between them.
    for between in [64 * KIB, 1] {
        let frames = [block(64 * KIB), block(between)];
        let (most, status) = held(Repeat::in_turn(frames, 16), MIB);
        assert_eq!(status, 200);
        assert!(most <= overhead, "{between}: {most}");
    }
}

#[test]
fn frames_of_any_size_are_held_in_little_more_memory_than_their_bytes() {
    for sizes in [
        [2000, 2000],
        [4097, 4097],
        [5462, 5462],
        [8191, 8191],
        [8191, 9],
    ] {
        let times = 2 * (MIB / sizes.iter().sum::<u64>());
        let (most, status) = held(Repeat::in_turn(sizes.map(block), times), MIB);
        assert_eq!(status, 200);
        assert!(most <= MIB + MIB / 8, "{sizes:?}: {most}");
    }
}
