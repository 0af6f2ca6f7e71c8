//! How many bytes the finders look at, counted and not timed: the finders are built here a second
//! time, upon searches that count.

#![cfg(feature = "records")]
#![allow(dead_code, unreachable_pub)]

#[path = "../src/records/finder.rs"]
mod finder;
#[path = "../src/records/lines.rs"]
mod lines;
#[path = "support/miri.rs"]
mod miri;
#[path = "../src/records/search.rs"]
mod searches;
#[path = "../src/records/sse.rs"]
mod sse;

/// The searches of the crate, each counted by the bytes that it looks at.
mod search {
    use std::cell::Cell;

    use super::searches;
    pub(super) use super::searches::{CR, LF, Tail, is_end};

    thread_local! {
        pub(super) static LOOKED_AT: Cell<u64> = const { Cell::new(0) };
    }

    fn look_at(bytes: usize) {
        LOOKED_AT.set(LOOKED_AT.get() + bytes as u64 + 1);
    }

    fn first(data: &[u8], found: Option<usize>) -> Option<usize> {
        look_at(found.map_or(data.len(), |at| at + 1));
        found
    }

    pub(super) fn tail(before: u8, data: &[u8]) -> Tail {
        let tail = searches::tail(before, data);
        look_at(data.len() - tail.start.map_or(0, |start| start - 1));
        tail
    }

    pub(super) fn line_end(data: &[u8]) -> Option<usize> {
        first(data, searches::line_end(data))
    }

    pub(super) fn line_feed(data: &[u8]) -> Option<usize> {
        first(data, searches::line_feed(data))
    }

    pub(super) fn last_line_feed(data: &[u8]) -> Option<usize> {
        let found = searches::last_line_feed(data);
        look_at(data.len() - found.unwrap_or(0));
        found
    }
}

use finder::Finder;
use miri::usually;
use proptest::{collection::vec, prelude::*, sample::select};

/// How many bytes are looked at in a stream in frames of a size.
fn looked_at(stream: &str, sse: bool, max: u64, frame: usize) -> u64 {
    let mut finder = finder(sse);
    search::LOOKED_AT.set(0);
    for frame in stream.as_bytes().chunks(frame) {
        assert_eq!(finder.check(frame, max), None);
    }
    search::LOOKED_AT.get()
}

fn finder(sse: bool) -> Finder {
    if sse {
        Finder::Sse(sse::Sse::new())
    } else {
        Finder::Lines(lines::Lines::default())
    }
}

/// The smallest limit that lets all of a stream pass.
fn smallest_limit(stream: &str, sse: bool) -> u64 {
    let (mut fails, mut passes) = (0, stream.len() as u64);
    while fails + 1 < passes {
        let max = (fails + passes) / 2;
        match finder(sse).check(stream.as_bytes(), max) {
            Some(_) => fails = max,
            None => passes = max,
        }
    }
    passes
}

/// Streams in which each of the ways through the finders has to be taken again and again.
fn streams() -> Vec<(&'static str, bool, String)> {
    let many = |part: &str, times: usize| part.repeat(times / usually(1, 500));
    let big = |line: &str, times: usize| many(line, times) + "\n";
    vec![
        ("short events", true, many("data: x\n\n", 5_000)),
        ("short events, CRLF", true, many("data: x\r\n\r\n", 5_000)),
        ("short events, CR", true, many("data: x\r\r", 5_000)),
        ("blank lines", true, many("\r\n", 25_000)),
        ("comments", true, many(": ping\r\n", 5_000)),
        (
            "comments in an event",
            true,
            big("data:\r\n:\r\n:c\r\n", 2_500),
        ),
        (
            "events with comments",
            true,
            many("data:\n: c\n: c\n: c\n\n", 2_500),
        ),
        ("one event of tiny lines", true, big("a\n", 12_000)),
        ("one event of tiny lines, CRLF", true, big("a\r\n", 12_000)),
        ("one event of one line", true, many("x", 25_000)),
        ("short lines", false, many("abc\n", 12_000)),
        ("blank lines", false, many("\n", 25_000)),
        ("one line", false, many("x", 25_000)),
        ("one line of CRs", false, many("\r", 25_000)),
    ]
}

#[test]
fn each_byte_is_looked_at_a_few_times_whatever_the_frames_and_the_limit() {
    for (name, sse, stream) in streams() {
        let max = smallest_limit(&stream, sse);
        for frame in [1, 2, 3, 100, 16_384, usize::MAX >> 1] {
            for max in [max, max + 1, max + 50, max * 2 + 10, u64::MAX] {
                let looked_at = looked_at(&stream, sse, max, frame);
                let bytes = stream.len() as u64;
                assert!(
                    looked_at <= 6 * bytes,
                    "{name}, {frame}, {max}: {looked_at} for {bytes}"
                );
            }
        }
    }
}

#[test]
fn of_short_records_in_a_large_frame_hardly_any_are_looked_at() {
    for (sse, stream) in [
        (true, "data: x\n\n".repeat(5_000)),
        (false, "abc\n".repeat(12_000)),
    ] {
        let looked_at = looked_at(&stream, sse, 16 * 1024 * 1024, 16 * 1024);
        assert!(looked_at < stream.len() as u64 / 100, "{looked_at}");
    }
}

/// What the search for the last blank line should find, byte by byte.
fn expected_tail(before: u8, data: &[u8]) -> searches::Tail {
    let previous = |at: usize| at.checked_sub(1).map_or(before, |at| data[at]);
    let is_end = |byte| matches!(byte, b'\r' | b'\n');
    let is_blank = |&at: &usize| {
        is_end(data[at]) && is_end(previous(at)) && (previous(at), data[at]) != (b'\r', b'\n')
    };
    let start = (0..data.len()).rev().find(is_blank).map(|at| at + 1);
    let tail = start.unwrap_or(0)..data.len();
    searches::Tail {
        start,
        ends: tail.clone().filter(|&at| is_end(data[at])).count(),
        has_comments: tail
            .into_iter()
            .any(|at| data[at] == b':' && is_end(previous(at))),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    // Long enough for the search by blocks, short enough lines to bring it about.
    #[test]
    fn the_last_blank_line_is_found(
        before in select(b"\r\nx".as_slice()),
        runs in vec((select(["x", "xx\n", "x\r\n", "xxxx\r"].as_slice()), 1..90_usize), 0..12),
        marks in vec((any::<usize>(), select(["\n\n", "\n:", "\r:", "\r\r", "\r\n"].as_slice())), 0..3),
    ) {
        let runs = runs.iter().map(|(text, times)| text.repeat(*times));
        let mut data = runs.collect::<String>().into_bytes();
        for (at, mark) in marks {
            let at = at % (data.len() + 1);
            data.splice(at..at, mark.bytes());
        }
        prop_assert_eq!(searches::tail(before, &data), expected_tail(before, &data));
    }
}
