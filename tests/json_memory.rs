//! How much memory JSON fitting takes, and how often a byte is looked at.
#![cfg(feature = "json")]
#![allow(dead_code, unreachable_pub, missing_docs)]

#[path = "../src/json/report.rs"]
mod report;
#[path = "../src/json/scan.rs"]
mod scan;

use std::{
    convert::Infallible,
    io,
    pin::pin,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use http_body_util::StreamBody;
use scan::{Kind, Scanner, Sink, Stop};
use tower::{Layer, Service, service_fn};
use tower_body_limit::json::{Fit, JsonFitLayer, Pointer, fit};

const KIB: u64 = 1024;
/// What is not the document's: blocks that are not full, the services themselves.
const CHANGE: u64 = 5 * 16 * KIB;

/// The most that is allocated while a document of `len` bytes goes through the layer, and what comes
/// out. `next` makes the frames.
fn peak(fit: Fit, mut next: impl FnMut() -> Option<Bytes>) -> (u64, usize) {
    let mut len = 0;
    let info = allocation_counter::measure(|| {
        let frames =
            std::iter::from_fn(|| next().map(|data| Ok::<_, Infallible>(Frame::data(data))));
        let mut body = Some(StreamBody::new(futures_util::stream::iter(frames)));
        let inner = service_fn(|_: Request<()>| {
            let response = Response::builder().header(CONTENT_TYPE, "application/json");
            std::future::ready(Ok::<_, io::Error>(
                response.body(body.take().unwrap()).unwrap(),
            ))
        });
        let mut service = JsonFitLayer::server(fit).layer(inner);
        let mut cx = Context::from_waker(Waker::noop());
        let mut future = pin!(service.call(Request::new(())));
        let response = loop {
            if let Poll::Ready(response) = future.as_mut().poll(&mut cx) {
                break response.unwrap();
            }
        };
        let mut body = pin!(response.into_body());
        while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut cx) {
            len += frame.unwrap().into_data().unwrap().len();
        }
    });
    (info.bytes_max, len)
}

/// Frames of `frame` bytes, each made when it is asked for: head, then rows, then tail.
fn frames(
    frame: usize,
    head: &'static str,
    row: &'static str,
    rows: usize,
    tail: &'static str,
) -> impl FnMut() -> Option<Bytes> {
    let parts = std::iter::once(head)
        .chain(std::iter::repeat_n(row, rows))
        .chain([tail]);
    let mut bytes = parts.flat_map(str::bytes);
    move || {
        let mut data = Vec::with_capacity(frame);
        data.extend(bytes.by_ref().take(frame));
        (!data.is_empty()).then(|| data.into())
    }
}

#[test]
fn memory_is_the_limit_and_one_frame() {
    for frame in [100, 16 * 1024, 100_000] {
        for limit in [64 * KIB, 1024 * KIB] {
            let row = r#"{ "id": 123456, "name": "somebody" },"#;
            let page = || frames(frame, r#"{"rows": ["#, row, 60_000, r#"{}], "took": 3}"#);
            let (peak, len) = peak(Fit::array_at(limit, "/rows"), page());
            assert!(len as u64 <= limit && len as u64 > limit - 200);
            assert!(
                peak <= limit + frame as u64 + CHANGE,
                "{frame}, {limit}: {peak}"
            );
        }
    }
}

#[test]
fn room_for_what_comes_after_is_given_back() {
    let limit = 1024 * KIB;
    // The array fills all of it, and then most of it is wanted for the rest.
    let text = "tttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt";
    let (mut array, mut rest) = (
        frames(
            16 * 1024,
            r#"{"rows":["#,
            r#"[1,2,"\\"],"#,
            200_000,
            "0],\"rest\":\"",
        ),
        frames(16 * 1024, "", text, 15_000, "\"}"),
    );
    let (peak, len) = peak(Fit::array_at(limit, "/rows"), || array().or_else(&mut rest));
    assert!(len as u64 <= limit && len as u64 > limit - 200);
    assert!(peak <= limit + 16 * KIB + CHANGE, "{peak}");
}

#[test]
fn the_largest_array_takes_twice_the_limit() {
    let limit = 512 * KIB;
    let (mut small, mut large) = (
        frames(
            16 * 1024,
            r#"{"a":["#,
            r#""tttttttttttttttttttttttttttttt","#,
            15_000,
            "0],",
        ),
        frames(
            16 * 1024,
            r#""b":["#,
            r#""tttttttttttttttttttttttttttttt","#,
            60_000,
            "0]}",
        ),
    );
    let (peak, len) = peak(Fit::largest_array_in(limit, ""), || {
        small().or_else(&mut large)
    });
    assert!(len as u64 <= limit && len as u64 > limit - 200);
    assert!(peak <= 2 * limit + 16 * KIB + CHANGE, "{peak}");
}

#[test]
fn depth_takes_a_bit_a_level() {
    let (limit, depth) = (64 * KIB, 4_000_000);
    let (mut open, mut close) = (
        frames(4096, r#"{"rows":[1,"#, "[", depth, ""),
        frames(4096, "", "]", depth, "]}"),
    );
    let fit = Fit::array_at(limit, "/rows").max_depth(depth + 2);
    let (peak, len) = peak(fit, || open().or_else(&mut close));
    assert_eq!(
        len,
        r#"{"rows":[1],"truncated":true,"next_offset":1,"cap_reason":"size_limit"}"#.len()
    );
    // A vector of bits that doubles has been three times its half for a moment.
    assert!(peak <= limit + depth as u64 / 8 * 3 + CHANGE, "{peak}");
}

/// Counts what it is given.
#[derive(Default)]
struct Counting {
    calls: usize,
    bytes: usize,
}

impl Sink for Counting {
    fn watch(&self) -> usize {
        usize::MAX
    }

    fn text(&mut self, text: &[u8], at: u64) -> Result<(), Stop> {
        assert!(at >= self.bytes as u64);
        self.calls += 1;
        self.bytes += text.len();
        Ok(())
    }

    fn start(&mut self, _: Kind, _: usize, _: u64) -> Result<(), Stop> {
        self.calls += 1;
        Ok(())
    }

    fn end(&mut self, _: usize, _: u64) -> Result<(), Stop> {
        self.calls += 1;
        Ok(())
    }

    fn key_start(&mut self) {
        self.calls += 1;
    }

    fn key_end(&mut self, _: usize, _: u64) -> Result<(), Stop> {
        self.calls += 1;
        Ok(())
    }

    fn wants_items(&self) -> bool {
        true
    }

    fn comma(&mut self) {
        self.calls += 1;
    }
}

#[test]
fn a_string_that_trickles_is_looked_at_once() {
    for len in [1000, 100_000] {
        for inside in ["x", "\\n", "\\u00e9", "\u{e9}"] {
            let text = format!("\"{}\"", inside.repeat(len));
            let (mut scanner, mut sink) = (Scanner::new(1), Counting::default());
            let memory = allocation_counter::measure(|| {
                for byte in text.as_bytes() {
                    scanner.feed(std::slice::from_ref(byte), &mut sink).unwrap();
                }
            });
            scanner.finish(&mut sink).unwrap();
            // Every byte is handed on as it comes, once, and nothing is kept of it.
            assert_eq!((sink.bytes, memory.bytes_total), (text.len(), 0));
            assert_eq!(sink.calls, text.len() + 2);
        }
    }
}

#[test]
fn copies_are_taken_out_in_one_pass_however_many_there_are() {
    const COPIES: usize = 300;
    let text = format!(r#"{{"text":"{}"}},"#, "x".repeat(2000)).repeat(COPIES);
    let rows = format!("{},", "1".repeat(8999)).repeat(70);
    let document = format!(
        r#"{{"content":[{}],"rows":[{}]}}"#,
        text.trim_end_matches(','),
        rows.trim_end_matches(',')
    );
    let settings = Fit::array_at(640_000, "/rows").markers_in_headers();
    let settings = (0..COPIES).fold(settings, |settings, at| {
        let copy: Pointer = format!("/content/{at}/text").parse().unwrap();
        settings.copy_at(copy, "/rows")
    });
    let mut fitted = None;
    let info = allocation_counter::measure(|| fitted = fit(document.as_bytes(), &settings).ok());
    let kept = fitted.unwrap();
    assert!(
        kept.report().dropped().is_some_and(|dropped| dropped > 0) && kept.bytes().len() <= 640_000
    );
    // Once when it is held, once without the copies, and once as a whole.
    let most = 4 * document.len() as u64;
    assert!(info.bytes_total < most, "{} of {most}", info.bytes_total);
}

#[test]
fn a_long_note_is_written_a_few_times_however_much_gives_way_to_it() {
    let len = 60_000;
    let note = format!("{{kept}} {{dropped}} {{next_offset}} {}", "n".repeat(len));
    let string = format!(r#"{{"log":"{}"}}"#, "x".repeat(8 * len));
    let array = format!(r#"{{"rows":[1{}]}}"#, ",1".repeat(4 * len));
    for (document, settings) in [
        (
            string,
            Fit::string_at(2 * len as u64, "/log").markers_at(""),
        ),
        (array, Fit::array_at(2 * len as u64, "/rows")),
    ] {
        let settings = settings.note(&note);
        let mut fitted = None;
        let info =
            allocation_counter::measure(|| fitted = Some(fit(document.as_bytes(), &settings)));
        let fitted = fitted.unwrap().unwrap();
        assert!((2 * len - 100..=2 * len).contains(&fitted.bytes().len()));
        // A text grows by doubling.
        let most = 3 * document.len() + 30 * len;
        assert!(
            info.bytes_total < most as u64,
            "{} of {most}",
            info.bytes_total
        );
    }
}
