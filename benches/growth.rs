//! How costs grow: each table has a column that stays the same where they grow in a straight line.
//!
//! ```sh
//! cargo bench --all-features --bench growth
//! ```

mod support;

use std::{
    convert::Infallible,
    fs, hint,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures_util::stream;
use http::Request;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use serde::de::IgnoredAny;
use support::{
    Contender, KIB, MIB, Outcome, Settings, Table,
    bodies::{BARE, CONTENDERS, Frames, LIMITED, OURS, Reader, read},
    bytes, compete, complete, number,
    services::{self, Case, handle, serve},
};
use tower::{Layer, Service, service_fn};
use tower_body_limit::{
    BodyLimitExt, LimitedBody, RecordKind, RequestSizeLimit, RequestSizeLimitLayer,
    ResponseSizeLimit, ResponseSizeLimitLayer,
    json::{self, Fit},
};
use tower_http::limit::RequestBodyLimitLayer;

const LIMIT: u64 = u64::MAX / 2;

/// Reads a body under so many limits.
type ReadNested = fn(Frames) -> u64;

fn main() {
    let settings = Settings::from_args();
    settings.introduce("How costs grow", &support::PEERS);
    by_body_size(settings);
    by_frame_count(settings);
    by_nesting_of_bodies(settings);
    by_nesting_of_layers(settings);
    by_stalled_requests(settings);
    by_record_size(settings);
    by_json_size(settings);
    by_json_depth(settings);
}

fn by_body_size(settings: Settings) {
    let largest = settings.pick(1024 * MIB, MIB);
    let sizes = [KIB, 32 * KIB, MIB, 32 * MIB, 1024 * MIB];
    let mut table = Table::new(["body of", BARE, OURS, LIMITED, "ours, ns per frame"]);
    for size in sizes.into_iter().filter(|&size| size <= largest) {
        let count = size.div_ceil(16 * KIB);
        let frames = Frames::new(size.min(16 * KIB) as usize, count);
        let outcome = per_body(settings, &frames);
        let row = [BARE, OURS, LIMITED].map(|name| number(outcome.median(name)));
        let per_frame = number(outcome.median(OURS) / count as f64);
        table.row([bytes(size)].into_iter().chain(row).chain([per_frame]));
    }
    table.print("Body size, in frames of 16 KiB: ns per body");
}

fn by_frame_count(settings: Settings) {
    let mut table = Table::new(["frames", BARE, OURS, LIMITED, "ours, ns per frame"]);
    for count in [1, 16, 256, 4096, settings.pick(65_536, 4096)] {
        // The same number of bytes in fewer or more frames.
        let frames = Frames::new((MIB / count) as usize, count);
        let outcome = per_body(settings, &frames);
        let row = [BARE, OURS, LIMITED].map(|name| number(outcome.median(name)));
        let per_frame = number(outcome.median(OURS) / count as f64);
        table.row(
            [count.to_string()]
                .into_iter()
                .chain(row)
                .chain([per_frame]),
        );
    }
    table.print("Number of frames of a body of 1 MiB: ns per body");
}

fn per_body(settings: Settings, frames: &Frames) -> Outcome {
    let contenders = CONTENDERS.map(|name| {
        Contender::timed(name, settings, move || {
            Reader::Boxed.read_as(name, frames.clone());
            1
        })
    });
    compete(settings.pick(31, 3), contenders.into())
}

/// `wrap` around `inner`, once for each token that follows.
macro_rules! nest {
    ($wrap:expr, $inner:expr;) => { $inner };
    ($wrap:expr, $inner:expr; $_:tt $($rest:tt)*) => { $wrap(nest!($wrap, $inner; $($rest)*)) };
}

fn by_nesting_of_bodies(settings: Settings) {
    fn limit<B: Body>(body: B) -> LimitedBody<B> {
        LimitedBody::new(body, LIMIT)
    }
    let frames = Frames::new(1024, 1024);
    let levels: [(&str, ReadNested); 5] = [
        ("0", read),
        ("1", |body| read(nest!(limit, body; 1))),
        ("2", |body| read(nest!(limit, body; 1 2))),
        ("4", |body| read(nest!(limit, body; 1 2 3 4))),
        ("8", |body| read(nest!(limit, body; 1 2 3 4 5 6 7 8))),
    ];
    let contenders = levels.map(|(name, read)| {
        let frames = &frames;
        Contender::timed(name, settings, move || read(frames.clone()))
    });
    let outcome = compete(settings.rounds(), contenders.into());
    by_level(&outcome).print("Bodies in bodies: ns per frame");
}

fn by_nesting_of_layers(settings: Settings) {
    fn layer<S>(service: S) -> RequestSizeLimit<ResponseSizeLimit<S>> {
        let service = ResponseSizeLimitLayer::server(services::LIMIT).layer(service);
        RequestSizeLimitLayer::server(services::LIMIT).layer(service)
    }
    let make = Case::WithBody.requests();
    let levels = [
        ("0", serve(service_fn(handle))),
        ("1", serve(nest!(layer, service_fn(handle); 1))),
        ("2", serve(nest!(layer, service_fn(handle); 1 2))),
        ("4", serve(nest!(layer, service_fn(handle); 1 2 3 4))),
        (
            "8",
            serve(nest!(layer, service_fn(handle); 1 2 3 4 5 6 7 8)),
        ),
    ];
    let contenders = levels.map(|(name, mut serve)| {
        let batch = || (0..64).map(|_| make()).collect::<Vec<_>>();
        Contender::prepared(name, settings, batch, move |batch| {
            batch.into_iter().for_each(|request| {
                serve(request);
            });
            64
        })
    });
    let outcome = compete(settings.rounds(), contenders.into());
    by_level(&outcome).print("Both layers around both layers: ns per request of 1 KiB");
}

fn by_level(outcome: &Outcome) -> Table {
    let mut table = Table::new(["levels", "ns", "added by each level"]);
    for name in outcome.names() {
        let levels: f64 = name.parse().expect("a number of levels");
        let each = if levels > 0.0 {
            number(outcome.added(name, "0") / levels)
        } else {
            "-".into()
        };
        table.row([name.to_owned(), number(outcome.median(name)), each]);
    }
    table
}

/// A body that has yielded all that it will for a long time.
struct Stalled;

impl Body for Stalled {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

fn by_stalled_requests(settings: Settings) {
    let names = [services::BARE, services::OURS_BOTH, services::TOWER_HTTP];
    let mut table = Table::new(
        ["requests"]
            .into_iter()
            .chain(names)
            .chain(["ours adds", "ours, resident"]),
    );
    for count in [1, 10, 100, 1000, settings.pick(10_000, 1000)] {
        let held = names.map(|name| stall(name, count));
        let [bare, ours, _] = held;
        let mut row = vec![count.to_string()];
        row.extend(held.map(|held| held.counted.to_string()));
        row.push((ours.counted - bare.counted).to_string());
        row.push(ours.resident.map_or("-".into(), |bytes| bytes.to_string()));
        table.row(row);
    }
    table.print("Stalled in mid-body: bytes for each request, its future and its head included");
}

/// Bytes for each request.
#[derive(Clone, Copy)]
struct Held {
    counted: i64,
    resident: Option<i64>,
}

fn stall(contender: &str, count: usize) -> Held {
    let request_layer = RequestSizeLimitLayer::server(services::LIMIT);
    let response_layer = ResponseSizeLimitLayer::server(services::LIMIT);
    let peers = RequestBodyLimitLayer::new(services::LIMIT as usize);
    match contender {
        services::BARE => hold(service_fn(handle), count),
        services::OURS_BOTH => {
            let service = response_layer.layer(service_fn(handle));
            hold(request_layer.layer(service), count)
        }
        services::TOWER_HTTP => hold(peers.layer(service_fn(handle)), count),
        unknown => panic!("no such contender: {unknown}"),
    }
}

fn hold<S>(mut service: S, count: usize) -> Held
where
    S: Service<Request<Stalled>>,
{
    let make = Case::WithBody.requests();
    let mut held = Vec::with_capacity(count);
    // Before it is measured, what there is has to be in memory.
    held.resize_with(count, || None);
    let before = resident();
    let counted = allocation_counter::measure(|| {
        for slot in &mut held {
            let mut future = Box::pin(service.call(make().map(|_| Stalled)));
            let poll = future
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(poll.is_pending());
            *slot = Some(future);
        }
    });
    let each = |bytes: i64| bytes / count as i64;
    // Few requests fit into memory that the allocator already has.
    let grown = resident().zip(before).filter(|_| count >= 1000);
    Held {
        counted: each(counted.bytes_current),
        resident: grown.map(|(after, before)| each(after - before)),
    }
}

/// How much memory the process has, where the system says so.
fn resident() -> Option<i64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: i64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

/// Lines of one size, under a limit that none of them exceeds.
fn by_record_size(settings: Settings) {
    const FAILS: &str = "lines, fail";
    const SKIPS: &str = "lines, skip";
    const MISS: &str = "memchr, no hit";
    let total = settings.pick(16 * MIB, 2 * MIB);
    let mut table = Table::new(["lines of", MISS, FAILS, SKIPS, "fail, ns per line"]);
    for size in [16, 256, 4 * KIB, 64 * KIB, MIB] {
        let mut line = vec![b'x'; size as usize];
        line[size as usize - 1] = b'\n';
        let text = line.repeat((total / size) as usize);
        let frames: Vec<_> = text.chunks(16 * 1024).map(Bytes::copy_from_slice).collect();
        let frames = &frames;
        let body = || {
            let frames = frames.iter().cloned().map(Frame::data);
            StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)))
                .limit_records(RecordKind::Lines, 2 * MIB)
        };
        let contenders = vec![
            Contender::timed(MISS, settings, || {
                let hits = frames.iter().map(|frame| memchr::memchr(0, frame));
                hint::black_box(hits.flatten().count());
                total / KIB
            }),
            Contender::timed(FAILS, settings, || discard(body()) / KIB),
            Contender::timed(SKIPS, settings, || discard(body().skip_oversized()) / KIB),
        ];
        let outcome = compete(settings.pick(15, 3), contenders);
        let row = [MISS, FAILS, SKIPS].map(|name| number(outcome.median(name)));
        let per_line = number(outcome.median(FAILS) * size as f64 / KIB as f64);
        table.row([bytes(size)].into_iter().chain(row).chain([per_line]));
    }
    table.print("Record size, in frames of 16 KiB: ns per KiB");
}

/// Reads a body to its end, and says how many bytes it had.
fn discard(body: impl Body<Data = Bytes>) -> u64 {
    let mut body = pin!(body);
    let mut read = 0;
    while let Some(Ok(frame)) = complete(body.frame()) {
        read += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
    read
}

const FITTED: &str = "json::fit";
const IGNORED: &str = "IgnoredAny";

fn by_json_size(settings: Settings) {
    let name = "x".repeat(35);
    let item = format!(r#"{{"name":"{name}","count":12345}},"#);
    let mut table = Table::new(["document of", FITTED, IGNORED]);
    for size in [64 * KIB, MIB, 8 * MIB, settings.pick(48 * MIB, 8 * MIB)] {
        let outcome = per_kib_of_json(settings, &item, size);
        let row = [FITTED, IGNORED].map(|name| number(outcome.median(name)));
        table.row([bytes(size)].into_iter().chain(row));
    }
    table.print("JSON size, objects of one array made to fit into 16 KiB: ns per KiB");
}

fn by_json_depth(settings: Settings) {
    let mut table = Table::new(["levels", FITTED, IGNORED]);
    for depth in [1, 4, 16, 64, 120, 1000] {
        // Items of one length, whatever their depth.
        let fill = "1".repeat(2048 - 2 * depth);
        let item = format!("{}{fill}{},", "[".repeat(depth), "]".repeat(depth));
        let outcome = per_kib_of_json(settings, &item, settings.pick(8 * MIB, MIB));
        let row = [FITTED, IGNORED].map(|name| number(outcome.median(name)));
        table.row([depth.to_string()].into_iter().chain(row));
    }
    table.print("JSON depth, items of 2 KiB in one array made to fit into 16 KiB: ns per KiB");
}

/// Fits a document of so many bytes, which are one item again and again.
fn per_kib_of_json(settings: Settings, item: &str, size: u64) -> Outcome {
    let items = item.repeat((size / item.len() as u64) as usize);
    let document = format!(r#"{{"rows":[{}]}}"#, items.trim_end_matches(','));
    let (document, kib) = (document.as_bytes(), size / KIB);
    let fit = Fit::array_at(16 * KIB, "/rows");
    let ours = Contender::timed(FITTED, settings, move || {
        hint::black_box(json::fit(document, &fit).expect("an item fits"));
        kib
    });
    let ignored = Contender::timed(IGNORED, settings, move || {
        hint::black_box(serde_json::from_slice::<IgnoredAny>(document)).expect("it is JSON");
        kib
    });
    compete(settings.pick(15, 3), vec![ours, ignored])
}
