//! How much memory is held at most, as the allocator counts it.
//!
//! ```sh
//! cargo bench --bench memory
//! ```

mod support;

use std::{
    cell::Cell,
    convert::Infallible,
    future::ready,
    io::Write,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{Request, Response, StatusCode, header::CONTENT_ENCODING};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Limited};
use support::{KIB, MIB, Settings, Table, complete};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_body_limit::{BodyLimitExt, ResponseSizeLimitLayer};
use tower_http::decompression::DecompressionLayer;

const FRAME: usize = 16 * 1024;

fn main() {
    let settings = Settings::from_args();
    settings.introduce("Memory", &support::PEERS);
    let mut table = Table::new(["what", "who", "held at most, KiB", "pulled, KiB", "outcome"]);
    let mut measure = |what: &str, who: &str, run: &dyn Fn(&Pulled) -> String| {
        let (pulled, mut outcome) = (Pulled::default(), String::new());
        let counted = allocation_counter::measure(|| outcome = run(&pulled));
        table.row([
            what.to_owned(),
            who.to_owned(),
            (counted.bytes_max / KIB).to_string(),
            (pulled.get() / KIB).to_string(),
            outcome,
        ]);
    };

    let what = "1 GiB, limit 1 MiB, collected";
    let body = |pulled: &Pulled| Fresh::new(pulled, 1024 * MIB);
    measure(what, "collect_limited", &|pulled| {
        outcome(complete(body(pulled).collect_limited(MIB)))
    });
    measure(what, "client layer, collect", &|pulled| {
        let service = upstream(body(pulled));
        let mut client = ResponseSizeLimitLayer::client(MIB).layer(service);
        let response = complete(client.call(Request::new(()))).expect("a head");
        outcome(complete(response.into_body().collect()))
    });
    measure(what, "Limited, collect", &|pulled| {
        outcome(complete(Limited::new(body(pulled), MIB as usize).collect()))
    });

    let what = "1 GiB, limit 1 MiB, polled until the end";
    measure(what, "LimitedBody", &|pulled| {
        until_end(body(pulled).limited(MIB))
    });
    measure(what, "Limited", &|pulled| {
        until_end(Limited::new(body(pulled), MIB as usize))
    });

    let what = "64 KiB prefix of an endless body";
    measure(what, "collect_prefix", &|pulled| {
        let prefix = complete(Fresh::new(pulled, u64::MAX).collect_prefix(64 * KIB));
        format!(
            "{} KiB, {:?}",
            prefix.bytes().len() as u64 / KIB,
            prefix.end()
        )
    });

    let in_flight = settings.pick(100, 5);
    let what = format!("{in_flight} in flight, 1 MiB each, frames of 16 KiB");
    measure(&what, "buffered", &|pulled| {
        buffered(pulled, in_flight, FRAME)
    });
    measure(&what, "collect", &|pulled| {
        collected(pulled, in_flight, FRAME)
    });
    let what = format!("{in_flight} in flight, 1 MiB each, frames of 64 B");
    measure(&what, "buffered", &|pulled| buffered(pulled, in_flight, 64));
    measure(&what, "collect", &|pulled| collected(pulled, in_flight, 64));

    let bomb = settings.pick(200 * MIB, 4 * MIB);
    let what = format!("gzip bomb of {} MiB, limit 1 MiB", bomb / MIB);
    measure(&what, "client layer, collect", &|pulled| {
        let mut client = ResponseSizeLimitLayer::client(MIB).layer(decoded(pulled, bomb));
        let response = complete(client.call(Request::new(()))).expect("a head");
        outcome(complete(response.into_body().collect()))
    });
    measure(&what, "no limit, collect", &|pulled| {
        let response = complete(decoded(pulled, bomb).oneshot(Request::new(()))).expect("a head");
        outcome(complete(response.into_body().collect()))
    });

    table.print("Peaks of one run (budgets: limit + one frame pulled; prefix + one frame held)");
}

type Pulled = Rc<Cell<u64>>;

/// Frames that are allocated when they are asked for, as those of a connection are.
struct Fresh {
    pulled: Pulled,
    left: u64,
    frame: usize,
    /// Pending once before its end: by then all of it is in flight.
    stalls: bool,
}

impl Fresh {
    fn new(pulled: &Pulled, length: u64) -> Self {
        Self {
            pulled: Rc::clone(pulled),
            left: length,
            frame: FRAME,
            stalls: false,
        }
    }

    fn in_flight(pulled: &Pulled, frame: usize) -> Self {
        Self {
            frame,
            stalls: true,
            ..Self::new(pulled, MIB)
        }
    }
}

impl Body for Fresh {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            if std::mem::take(&mut self.stalls) {
                return Poll::Pending;
            }
            return Poll::Ready(None);
        }
        let length = self.left.min(self.frame as u64);
        self.left -= length;
        self.pulled.set(self.pulled.get() + length);
        Poll::Ready(Some(Ok(Frame::data(vec![b'x'; length as usize].into()))))
    }
}

/// Zeros, compressed as they are asked for.
struct Bomb {
    encoder: Option<GzEncoder<Vec<u8>>>,
    left: u64,
    pulled: Pulled,
}

impl Body for Bomb {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let Some(encoder) = &mut this.encoder else {
            return Poll::Ready(None);
        };
        while this.left > 0 && encoder.get_ref().len() < 4096 {
            this.left -= FRAME as u64;
            encoder
                .write_all(&[0; FRAME])
                .expect("memory does not fail");
        }
        let data = if this.left == 0 {
            let encoder = this.encoder.take();
            encoder.map(|it| it.finish().expect("memory does not fail"))
        } else {
            Some(std::mem::take(encoder.get_mut()))
        };
        let data = data.unwrap_or_default();
        this.pulled.set(this.pulled.get() + data.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(data.into()))))
    }
}

fn decoded(
    pulled: &Pulled,
    length: u64,
) -> impl Service<
    Request<()>,
    Response = Response<impl Body<Data = Bytes, Error = tower_http::BoxError> + use<>>,
    Error = Infallible,
> + use<> {
    let bomb = Bomb {
        encoder: Some(GzEncoder::new(Vec::new(), Compression::default())),
        left: length,
        pulled: Rc::clone(pulled),
    };
    let mut bomb = Some(bomb);
    let service = service_fn(move |_: Request<()>| {
        let mut response = Response::new(bomb.take().expect("called once"));
        let encoding = http::HeaderValue::from_static("gzip");
        response.headers_mut().insert(CONTENT_ENCODING, encoding);
        ready(Ok::<_, Infallible>(response))
    });
    DecompressionLayer::new().layer(service)
}

/// A service with one response.
fn upstream<B: Body>(
    body: B,
) -> impl Service<Request<()>, Response = Response<B>, Error = Infallible> {
    let mut body = Some(body);
    service_fn(move |_| {
        let body = body.take().expect("called once");
        ready(Ok(Response::new(body)))
    })
}

/// Holds all responses at the same time.
fn buffered(pulled: &Pulled, count: usize, frame: usize) -> String {
    let layer = ResponseSizeLimitLayer::server(MIB).buffered();
    let calls = (0..count).map(|_| {
        let mut service = layer.layer(upstream(Fresh::in_flight(pulled, frame)));
        Box::pin(async move { service.call(Request::new(())).await.map(|it| it.status()) })
    });
    let statuses = at_once(calls.collect(), pulled);
    assert!(statuses.iter().all(|status| *status == Ok(StatusCode::OK)));
    format!("{count} whole")
}

fn collected(pulled: &Pulled, count: usize, frame: usize) -> String {
    let bodies = (0..count).map(|_| Box::pin(Fresh::in_flight(pulled, frame).collect()));
    at_once(bodies.collect(), pulled);
    format!("{count} whole")
}

/// Polls all futures until each has pulled what it can, and only then lets them end.
fn at_once<F: Future + Unpin>(mut futures: Vec<F>, pulled: &Pulled) -> Vec<F::Output> {
    let mut cx = Context::from_waker(Waker::noop());
    for (index, future) in futures.iter_mut().enumerate() {
        // The layer gives way from time to time, so one poll is not enough.
        while pulled.get() < (index as u64 + 1) * MIB {
            assert!(Pin::new(&mut *future).poll(&mut cx).is_pending());
        }
    }
    futures.into_iter().map(complete).collect()
}

fn until_end<B: Body>(body: B) -> String {
    let mut body = pin!(body);
    let mut errors = 0;
    while let Some(frame) = complete(body.frame()) {
        errors += u64::from(frame.is_err());
        if errors == 1000 {
            return "1000 errors and no end".into();
        }
    }
    format!("{errors} error")
}

fn outcome<T, E>(result: Result<T, E>) -> String {
    if result.is_ok() { "whole" } else { "refused" }.into()
}
