//! How fast JSON documents are made to fit, and in how much memory, beside what serde_json does.
//!
//! ```text
//! cargo bench --features json --bench json [-- --quick]
//! ```
//!
//! The candidates take turns, so that whatever else the machine does falls on all of them. Each figure
//! is the median of the rounds, on one thread. Peak memory is what the candidate allocates beyond its
//! input at any one time, for the layer with the document coming in frames of 16 KiB. The allocator that
//! counts is there in the timed rounds, too: it costs a `Value`, which allocates most, a few per cent.

#![allow(missing_docs)]

mod support;

use std::{
    convert::Infallible,
    hint::black_box,
    io,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Instant,
};

use bytes::Bytes;
use http::{Request, Response, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use http_body_util::StreamBody;
use serde::de::IgnoredAny;
use support::Settings;
use tower::{Layer, Service, service_fn};
use tower_body_limit::json::{Fit, JsonFitLayer, fit};

fn main() {
    let asked = Settings::from_args();
    asked.introduce("JSON", &["serde_json", "serde-transcode"]);
    let (size, rounds) = asked.pick((30_000_000, 9), (2_000_000, 3));
    let documents = [
        ("records, compact", records(size, false)),
        ("records, pretty", records(size, true)),
        ("text-heavy", text(size)),
        ("number-heavy", numbers(size)),
    ];
    println!("GB/s (peak memory in KiB), limit 64 KiB, medians of {rounds} rounds\n");
    print!("{:18} {:>5}", "document", "MB");
    for (name, _) in CANDIDATES {
        print!(" {name:>22}");
    }
    println!(" {:>12} {:>8}", "/IgnoredAny", "/Value");
    for (name, document) in &documents {
        let mut seconds = CANDIDATES.map(|_| Vec::new());
        for _ in 0..rounds {
            for ((_, run), seconds) in CANDIDATES.iter().zip(&mut seconds) {
                let start = Instant::now();
                black_box(run(black_box(document)));
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        let speeds = seconds.map(|mut seconds| {
            seconds.sort_by(f64::total_cmp);
            document.len() as f64 / seconds[seconds.len() / 2] / 1e9
        });
        print!("{name:18} {:>5.1}", document.len() as f64 / 1e6);
        for ((_, run), speed) in CANDIDATES.iter().zip(speeds) {
            let memory = peak(|| run(document));
            print!(" {:>22}", format!("{speed:.2} ({})", memory / 1024));
        }
        println!(
            " {:>12.2} {:>8.1}",
            speeds[0] / speeds[2],
            speeds[0] / speeds[3]
        );
    }
    memory(&documents[0].1);
}

/// How much a layer takes for a limit that is not small.
fn memory(document: &Bytes) {
    for limit in [1024 * 1024, document.len() as u64 / 2] {
        let settings = [
            ("array_at", Fit::array_at(limit, "/result/rows")),
            ("largest_array_in", Fit::largest_array_in(limit, "")),
        ];
        for (name, fit) in settings {
            let peak = peak(|| by_layer(document, fit));
            println!(
                "the layer, {name}, limit {} KiB: peak {} KiB ({:.2} of the limit)",
                limit / 1024,
                peak / 1024,
                peak as f64 / limit as f64,
            );
        }
    }
}

type Run = fn(&Bytes) -> usize;

const CANDIDATES: [(&str, Run); 5] = [
    ("json::fit", |document| {
        let settings = Fit::array_at(64 * 1024, "/result/rows");
        fit(document, &settings).unwrap().bytes().len()
    }),
    ("JsonFitLayer", |document| {
        by_layer(document, Fit::array_at(64 * 1024, "/result/rows"))
    }),
    ("IgnoredAny", |document| {
        serde_json::from_slice::<IgnoredAny>(document).unwrap();
        0
    }),
    ("Value round trip", |document| {
        let value: serde_json::Value = serde_json::from_slice(document).unwrap();
        serde_json::to_vec(&value).unwrap().len()
    }),
    ("serde-transcode", |document| {
        let mut from = serde_json::Deserializer::from_slice(document);
        let mut to = Vec::new();
        serde_transcode::transcode(&mut from, &mut serde_json::Serializer::new(&mut to)).unwrap();
        to.len()
    }),
];

fn by_layer(document: &Bytes, fit: Fit) -> usize {
    let document = document.clone();
    let service = service_fn(move |_: Request<()>| {
        let mut rest = document.clone();
        let frames = std::iter::from_fn(move || {
            let next = rest.split_to(rest.len().min(16 * 1024));
            (!next.is_empty()).then(|| Ok::<_, Infallible>(Frame::data(next)))
        });
        let response = Response::builder().header(CONTENT_TYPE, "application/json");
        let body = StreamBody::new(futures_util::stream::iter(frames));
        std::future::ready(Ok::<_, io::Error>(response.body(body).unwrap()))
    });
    let mut service = JsonFitLayer::server(fit).layer(service);
    let mut cx = Context::from_waker(Waker::noop());
    let mut future = pin!(service.call(Request::new(())));
    let response = loop {
        if let Poll::Ready(response) = future.as_mut().poll(&mut cx) {
            break response.unwrap();
        }
    };
    assert_eq!(response.status(), 200);
    let (mut body, mut len) = (pin!(response.into_body()), 0);
    while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut cx) {
        len += frame.unwrap().into_data().unwrap().len();
    }
    len
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % most
    }
}

fn rows(size: usize, mut row: impl FnMut(&mut Random, &mut String)) -> String {
    let (mut random, mut text) = (
        Random(7),
        String::from("{\"result\":{\"took\":3,\"rows\":["),
    );
    while text.len() < size {
        row(&mut random, &mut text);
        text.push(',');
    }
    text.pop();
    text.push_str("],\"total\":9}}");
    text
}

fn records(size: usize, pretty: bool) -> Bytes {
    let row = |random: &mut Random, text: &mut String| {
        let (id, stars) = (random.below(1_000_000), random.below(100_000));
        let active = random.below(2) == 0;
        let cents = random.below(100);
        text.push_str(&format!(
            r#"{{"id":{id},"name":"user {id}","email":"user{id}@example.org","stars":{stars},"score":{stars}.{cents},"active":{active},"tags":["rust","http","limit"],"owner":{{"login":"octo{stars}","url":"https:\/\/example.org\/{id}"}},"note":null}}"#
        ));
    };
    let compact = rows(if pretty { size * 6 / 10 } else { size }, row);
    if !pretty {
        return compact.into();
    }
    let value: serde_json::Value = serde_json::from_str(&compact).unwrap();
    serde_json::to_vec_pretty(&value).unwrap().into()
}

fn text(size: usize) -> Bytes {
    let row = |random: &mut Random, text: &mut String| {
        text.push_str("{\"body\":\"");
        for _ in 0..40 + random.below(200) {
            let words = [
                "the limit ",
                "of a body ",
                "is counted ",
                "in bytes, ",
                "żółw ",
                "said.\\n",
            ];
            text.push_str(words[random.below(6) as usize]);
        }
        text.push_str("\"}");
    };
    rows(size, row).into()
}

fn numbers(size: usize) -> Bytes {
    let row = |random: &mut Random, text: &mut String| {
        let (a, b) = (random.below(1000), random.below(1_000_000_000));
        text.push_str(&format!("[{a}.{b},-{b},{a},{a}e-{}]", random.below(30)));
    };
    rows(size, row).into()
}

fn peak(run: impl FnOnce() -> usize) -> u64 {
    let run = || {
        black_box(run());
    };
    allocation_counter::measure(run).bytes_max
}
