//! The curves behind the tables, by criterion, which keeps its samples in `target/criterion` and
//! compares them with those of the last run.
//!
//! ```sh
//! cargo bench --bench curves
//! ```

#![allow(missing_docs)]

mod support;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use http_body::Body;
use support::bodies::{CONTENDERS, Frames, Reader, read};
use tower_body_limit::LimitedBody;

const COUNT: u64 = 1024;

/// Reads a body under so many limits.
type ReadNested = fn(Frames) -> u64;

fn by_frame_size(c: &mut Criterion) {
    let mut group = c.benchmark_group("frame size");
    group.throughput(Throughput::Elements(COUNT));
    for size in [64, 1024, 16 * 1024, 1024 * 1024] {
        let frames = Frames::new(size, COUNT);
        for name in CONTENDERS {
            group.bench_with_input(BenchmarkId::new(name, size), &frames, |b, frames| {
                b.iter(|| Reader::Direct.read_as(name, frames.clone()));
            });
        }
    }
    group.finish();
}

fn by_nesting(c: &mut Criterion) {
    fn limit<B: Body>(body: B) -> LimitedBody<B> {
        LimitedBody::new(body, u64::MAX)
    }
    let levels: [(u32, ReadNested); 5] = [
        (0, read),
        (1, |body| read(limit(body))),
        (2, |body| read(limit(limit(body)))),
        (4, |body| read(limit(limit(limit(limit(body)))))),
        (8, |body| {
            let four = limit(limit(limit(limit(body))));
            read(limit(limit(limit(limit(four)))))
        }),
    ];
    let frames = Frames::new(1024, COUNT);
    let mut group = c.benchmark_group("nesting");
    group.throughput(Throughput::Elements(COUNT));
    for (levels, read) in levels {
        group.bench_with_input(
            BenchmarkId::new("LimitedBody", levels),
            &frames,
            |b, frames| {
                b.iter(|| read(frames.clone()));
            },
        );
    }
    group.finish();
}

criterion_group! {
    name = curves;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = by_frame_size, by_nesting
}
criterion_main!(curves);
