//! Every rule about records against a reference that reads the whole text at once, for any text, any
//! limit and any split into frames.

#![cfg(feature = "records")]

#[path = "support/records_model.rs"]
mod records_model;
mod support;

use proptest::{collection::vec, prelude::*, sample::select};
use records_model::{KINDS, check};
use support::miri::usually;
use tower_body_limit::RecordKind;

fn texts() -> impl Strategy<Value = Vec<u8>> {
    let tokens: &[&[u8]] = &[
        b"\n",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\r\r",
        b"\r\n\r\n",
        b":",
        b":c",
        b": ping\n",
        b"a",
        b"data: x",
        b"data: y\n",
        b"id: 1\n",
        b"id: 22",
        b"id",
        b"id:",
        b"id: \0",
        b"idx",
        b"retry: 5",
        b"retry:77\n",
        b"retry: x",
        b"ret",
        b"\xEF\xBB\xBF",
        b"\xEF",
        b"\xEF\xBB",
        b"\0",
    ];
    let token = prop_oneof![
        8 => select(tokens).prop_map(<[u8]>::to_vec),
        1 => (select(tokens), 1..150_usize).prop_map(|(token, times)| token.repeat(times)),
    ];
    vec(token, 0..24).prop_map(|tokens| tokens.concat())
}

fn limits() -> impl Strategy<Value = u64> {
    prop_oneof![0..12_u64, 0..200_u64, 0..3000_u64, Just(u64::MAX - 1)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn any_split_gives_what_the_whole_text_gives(
        text in texts(), max in limits(), cuts in vec(any::<usize>(), 0..12),
    ) {
        for kind in KINDS {
            check(&text, &cuts, kind, max);
        }
    }

    #[test]
    fn one_byte_frames_give_what_the_whole_text_gives(text in texts(), max in limits()) {
        let cuts: Vec<_> = (0..text.len()).collect();
        for kind in KINDS {
            check(&text, &cuts, kind, max);
        }
    }
}

/// Streams in the style of the WHATWG standard's examples and of what servers send.
const FIXTURES: &[&str] = &[
    "data: YHOO\ndata: +2\ndata: 10\n\n",
    ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
    "data\n\ndata\ndata\n\ndata:",
    "data:test\r\n\r\ndata: test\r\r",
    "\u{feff}event: add\r\ndata: 73857293\r\n\r\nevent: remove\r\ndata: 2153\r\n\r\n",
    "\u{feff}\u{feff}data: x\n\n",
    "\u{feff}: only a comment\r\r\n\n",
    "\n\n\r\n\r\r\n",
    "data: a\r\rdata: b\n\rdata: c\r\n\ndata: d\n\r\ndata: e",
    "id: 1\r\nretry: 100\r\ndata: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n: c\r\n\r\ndata: y\r\n\r\n",
    "data: a\n: ping\n: ping\n: ping\n: ping\n\ndata: b\r: ping\r: ping\r: ping\r\rid: 9\r\r",
    ": an oversized comment in front\rdata: a\n: an oversized comment inside\r\ndata: b\n\n:x",
];

#[test]
fn every_fixture_split_at_every_byte() {
    for text in FIXTURES.iter().map(|text| text.as_bytes()) {
        for kind in KINDS {
            for max in (0..=text.len() as u64).step_by(usually(1, 41)) {
                for first in (0..=text.len()).step_by(usually(1, 29)) {
                    check(text, &[first], kind, max);
                }
                let all: Vec<_> = (0..text.len()).collect();
                check(text, &all, kind, max);
            }
        }
    }
}

#[test]
fn every_fixture_split_at_every_two_bytes() {
    for text in FIXTURES.iter().map(|text| text.as_bytes()) {
        for first in (0..=text.len()).step_by(usually(1, 41)) {
            for second in (first..=text.len()).step_by(usually(1, 29)) {
                check(text, &[first, second], RecordKind::Sse, 12);
            }
        }
    }
}
