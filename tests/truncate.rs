//! Keeping a prefix: where it stops, how it says that it did, and its text.

mod support;

use std::{future::ready, io};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{
    HeaderMap, Method, Request, Response,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE},
};
use http_body::{Body, SizeHint};
use http_body_util::{BodyExt, Full};
use support::{
    Hint, Script,
    Step::{self, Fail, Pending, Stall, Trailers},
    VARIANTS, data,
    drive::{Drive, assert_gives_way},
    miri::usually,
};
use tower::{Layer, Service, service_fn};
use tower_body_limit::{
    BodyLimitExt, Error, Prefix, TooLarge, TruncateLayer, TruncatedBody,
    Truncation::{self, Complete, Truncated, Unknown},
    TruncationHandle,
};

const N: u64 = 10;

#[test]
fn it_stops_at_the_limit_with_a_clean_end_and_says_how() {
    // Steps; outline, number of polls and end where the length is declared; and where it is not.
    type Case = (
        Vec<Step>,
        (&'static str, usize, Truncation),
        (&'static str, usize, Truncation),
    );
    let table: Vec<Case> = vec![
        // Less than the limit.
        (vec![], ("end", 0, Complete), ("end", 1, Complete)),
        (
            vec![data(0)],
            ("0 end", 1, Complete),
            ("0 end", 2, Complete),
        ),
        (
            vec![data(4), data(4)],
            ("4 4 end", 2, Complete),
            ("4 4 end", 3, Complete),
        ),
        (
            vec![data(4), data(4), Trailers],
            ("4 4 trailers end", 3, Complete),
            ("4 4 trailers end", 4, Complete),
        ),
        (
            vec![Pending, data(4), Pending],
            ("pending 4 pending end", 4, Complete),
            ("pending 4 pending end", 4, Complete),
        ),
        // Exactly the limit: without a declared length nobody knows what would have come.
        (
            vec![data(10)],
            ("10 end", 1, Complete),
            ("10 end", 1, Unknown),
        ),
        (
            vec![data(4), data(6)],
            ("4 6 end", 2, Complete),
            ("4 6 end", 2, Unknown),
        ),
        (
            vec![data(10), data(0)],
            ("10 end", 1, Complete),
            ("10 end", 1, Unknown),
        ),
        (
            vec![data(10), Stall],
            ("10 end", 1, Complete),
            ("10 end", 1, Unknown),
        ),
        (
            vec![data(10), Fail],
            ("10 end", 1, Complete),
            ("10 end", 1, Unknown),
        ),
        // More.
        (
            vec![data(10), data(1)],
            ("10 end", 1, Truncated),
            ("10 end", 1, Unknown),
        ),
        (
            vec![data(11)],
            ("10 end", 1, Truncated),
            ("10 end", 1, Truncated),
        ),
        (
            vec![data(4), data(4), data(4)],
            ("4 4 2 end", 3, Truncated),
            ("4 4 2 end", 3, Truncated),
        ),
        (
            vec![data(4), data(9), Trailers],
            ("4 6 end", 2, Truncated),
            ("4 6 end", 2, Truncated),
        ),
        (
            vec![data(9), data(0), data(usually(1 << 20, 100))],
            ("9 0 1 end", 3, Truncated),
            ("9 0 1 end", 3, Truncated),
        ),
    ];
    for (steps, declared, undeclared) in table {
        for (variant, expected) in VARIANTS.into_iter().zip([declared, undeclared]) {
            let case = format!("{steps:?}, {variant:?}");
            let script = Script::new(steps.clone(), variant);
            let log = script.log();
            let body = TruncatedBody::new(script, N);
            let handle = body.handle();
            let drive = Drive::to_end(body);
            let (outline, polls, end) = expected;
            assert_eq!(drive.outline(), outline, "{case}");
            assert_eq!(log.polls(), polls, "{case}");
            assert!(log.dropped(), "{case}");
            drop(drive);
            assert_eq!(handle.get(), Some(end), "{case}");
        }
    }
}

#[test]
fn a_body_that_ends_before_the_limit_may_declare_anything() {
    let exact = |bytes| Hint::Fixed(SizeHint::with_exact(bytes));
    for (declared, polls) in [(0, 2), (3, 2), (8, 2), (1 << 40, 2), (u64::MAX, 2)] {
        let script = Script::new([data(4)], exact(declared));
        let log = script.log();
        let drive = Drive::to_end(script.truncated(N));
        assert_eq!((drive.outline().as_str(), log.polls()), ("4 end", polls));
        assert_eq!(drive.body.handle().get(), Some(Complete));
    }
    let script = Script::new([data(4), data(7)], exact(1));
    let drive = Drive::to_end(script.truncated(N));
    assert_eq!(drive.outline(), "4 6 end");
    assert_eq!(drive.body.handle().get(), Some(Truncated));
}

#[test]
fn zero_never_polls() {
    let lower = |bytes| {
        let mut hint = SizeHint::new();
        hint.set_lower(bytes);
        Hint::Fixed(hint)
    };
    let table = [
        (vec![], Hint::Declared, Complete),
        (vec![], Hint::Undeclared, Unknown),
        (vec![Stall], Hint::Undeclared, Unknown),
        (vec![data(1)], Hint::Declared, Truncated),
        (vec![data(1)], Hint::Undeclared, Unknown),
        (vec![data(1)], lower(1), Truncated),
    ];
    for (steps, hint, end) in table {
        let script = Script::new(steps, hint);
        let log = script.log();
        let body = script.truncated(0);
        let handle = body.handle();
        assert!(body.is_end_stream());
        assert_eq!(Drive::to_end(body).outline(), "end");
        assert_eq!((log.polls(), log.dropped()), (0, true));
        assert_eq!(handle.get(), Some(end));
    }
}

#[test]
fn a_stalled_peer_holds_it_only_before_the_limit() {
    for (steps, outline, polls, end) in [
        (vec![data(4), data(4), Stall], "4 4 end", 2, Unknown),
        (vec![data(4), data(5), Stall], "4 4 end", 2, Truncated),
        (vec![data(4), Stall], "4 stall", 2, Unknown),
    ] {
        let script = Script::new(steps, Hint::Undeclared);
        let log = script.log();
        let drive = Drive::to_end(script.truncated(8));
        assert_eq!((drive.outline().as_str(), log.polls()), (outline, polls));
        let stalled = outline.ends_with("stall");
        assert_eq!(drive.body.handle().get(), (!stalled).then_some(end));
    }
}

#[test]
fn an_endless_body_is_polled_no_further_than_needed() {
    for (frame, limit, polls) in [(1, 100, 100), (64, 100, 2), (1 << 20, 100, 1)] {
        let script = Script::endless(data(frame));
        let log = script.log();
        let drive = Drive::to_end(script.truncated(limit));
        assert_eq!((drive.data().len() as u64, log.polls()), (limit, polls));
    }
}

#[test]
fn an_inner_failure_before_the_limit_is_passed_on() {
    for variant in VARIANTS {
        let script = Script::new([data(4), Fail], variant);
        let log = script.log();
        let drive = Drive::to_end(script.truncated(N));
        assert_eq!(
            (drive.outline().as_str(), log.dropped()),
            ("4 failure end", true)
        );
        assert!(matches!(drive.error, Some(Error::Body(_))));
        assert_eq!(drive.body.handle().get(), Some(Unknown));
    }
}

#[test]
fn the_handle_says_nothing_before_the_end() {
    for variant in VARIANTS {
        let mut drive = Drive::new(Script::new([data(4), data(4)], variant).truncated(N));
        let handle = drive.body.handle();
        assert_eq!(handle.get(), None);
        drive.step();
        assert_eq!(handle.get(), None);
        drop(drive);
        assert_eq!(handle.get(), None);
    }
}

/// A server stops at `is_end_stream`.
#[test]
fn the_handle_knows_of_the_end_after_trailers() {
    let script = Script::new([data(4), Trailers], Hint::EndOnly);
    let mut drive = Drive::new(TruncatedBody::new(script, N));
    let handle = drive.body.handle();
    assert_eq!(drive.step(), "4");
    assert_eq!(handle.get(), None);
    assert_eq!(drive.step(), "trailers");
    assert!(drive.body.is_end_stream());
    assert_eq!(handle.get(), Some(Truncation::Complete));
}

#[test]
fn the_hint_is_no_larger_than_what_will_come() {
    let range = |lower, upper| {
        let mut hint = SizeHint::new();
        hint.set_upper(upper);
        hint.set_lower(lower);
        Hint::Fixed(hint)
    };
    let table = [
        (Hint::Declared, (10, Some(10)), (6, Some(6))),
        (Hint::Undeclared, (0, Some(10)), (0, Some(6))),
        (range(3, 7), (3, Some(7)), (3, Some(6))),
        (range(3, 100), (3, Some(10)), (3, Some(6))),
        (range(50, 100), (10, Some(10)), (6, Some(6))),
    ];
    for (hint, before, after) in table {
        let mut drive = Drive::new(Script::new([data(4), data(8)], hint).truncated(N));
        for expected in [before, after] {
            assert!(!drive.body.is_end_stream());
            let hint = drive.body.size_hint();
            assert_eq!((hint.lower(), hint.upper()), expected);
            drive.step();
        }
        assert_eq!(drive.body.size_hint().exact(), Some(0));
        assert!(drive.body.is_end_stream());
    }
}

#[test]
fn whole_frames_are_passed_uncopied_and_a_cut_one_is_a_copy() {
    for variant in VARIANTS {
        let frames = [vec![1; 4], vec![2; 1000]].map(Bytes::from);
        let script = Script::new(frames.clone().map(Step::Data), variant);
        let drive = Drive::to_end(script.truncated(N));
        assert_eq!(drive.frames[0].as_ptr(), frames[0].as_ptr());
        assert_eq!(drive.frames[1], frames[1][..6]);
        assert_ne!(drive.frames[1].as_ptr(), frames[1].as_ptr());
        // Nobody else holds the buffers any more.
        let [whole, cut] = frames;
        drop(drive);
        assert!(whole.try_into_mut().is_ok());
        assert!(cut.try_into_mut().is_ok());
    }
}

#[test]
fn the_limit_may_be_larger_than_memory() {
    for variant in VARIANTS {
        let drive = Drive::to_end(Script::new([data(4), data(4)], variant).truncated(u64::MAX));
        assert_eq!(drive.outline(), "4 4 end");
        assert_eq!(drive.body.handle().get(), Some(Complete));
    }
}

// The layer

/// Passes one response through the layer.
fn cut<B>(
    layer: &TruncateLayer,
    method: &Method,
    response: Response<B>,
) -> Response<TruncatedBody<B>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut response = Some(response);
    let inner = service_fn(move |_: Request<()>| ready(io::Result::Ok(response.take().unwrap())));
    let request = Request::builder().method(method).body(()).unwrap();
    let call = layer.layer(inner).call(request);
    call.now_or_never().expect("it did not wait").unwrap()
}

type Headers<'a> = &'a [(&'a str, &'a str)];

fn page(status: u16, headers: Headers<'_>, script: Script) -> Response<Script> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(script).unwrap()
}

#[test]
fn by_default_only_readable_errors_are_cut() {
    let ty = CONTENT_TYPE.as_str();
    let encoding = CONTENT_ENCODING.as_str();
    let table: [(u16, Headers<'_>, bool); 26] = [
        (500, &[], true),
        (500, &[(encoding, "identity")], true),
        (500, &[(encoding, "identity, Identity")], true),
        (500, &[(encoding, "")], true),
        (500, &[(encoding, "identity, br")], false),
        (500, &[(encoding, "identity"), (encoding, "gzip")], false),
        (400, &[], true),
        (404, &[(ty, "text/html; charset=utf-8")], true),
        (599, &[(ty, "application/jsonp")], true),
        (503, &[(ty, "application/octet-stream")], true),
        (503, &[(ty, "\"")], true),
        (500, &[(ty, "text/plain"), (ty, "application/json")], true),
        (500, &[(ty, "application/json"), (ty, "text/plain")], true),
        (200, &[], false),
        (302, &[(ty, "text/html")], false),
        (399, &[], false),
        (600, &[], false),
        (500, &[(ty, "application/json")], false),
        (500, &[(ty, "Application/JSON; charset=utf-8")], false),
        (500, &[(ty, "application/problem+json")], false),
        (500, &[(ty, "application/Problem+JSON;x=y")], false),
        (500, &[(ty, "text/json")], false),
        (500, &[(ty, "text/event-stream")], false),
        (500, &[(ty, "TEXT/event-stream;charset=utf-8")], false),
        (500, &[(encoding, "gzip")], false),
        (500, &[(ty, "text/html"), (encoding, "br")], false),
    ];
    for (status, headers, is_cut) in table {
        for variant in VARIANTS {
            let response = page(
                status,
                headers,
                Script::new([data(4), data(8), Trailers], variant),
            );
            let response = cut(&TruncateLayer::new(N), &Method::GET, response);
            let handle = response.extensions().get::<TruncationHandle>().cloned();
            assert_eq!(handle.is_some(), is_cut, "{status} {headers:?}");
            assert_eq!(response.status(), status);
            let outline = Drive::to_end(response.into_body()).outline();
            let expected = if is_cut {
                "4 6 end"
            } else {
                "4 8 trailers end"
            };
            assert_eq!(outline, expected, "{status} {headers:?}");
            assert!(handle.is_none_or(|handle| handle.get() == Some(Truncated)));
        }
    }
}

const OF_THE_WHOLE: [(&str, &str); 7] = [
    ("content-length", "12"),
    ("etag", "\"whole\""),
    ("accept-ranges", "bytes"),
    ("content-digest", "sha-256=:x:"),
    ("repr-digest", "sha-256=:x:"),
    ("digest", "sha-256=x"),
    ("content-md5", "x"),
];
const OF_ANY_PART: [(&str, &str); 2] = [("content-type", "text/html"), ("x-request-id", "7")];

#[test]
fn the_headers_of_the_whole_go_when_the_declared_length_is_over_the_limit() {
    for (declared, headers_stay) in [("10", true), ("11", false), (TWO_TO_THE_64, false)] {
        let headers = [
            &OF_THE_WHOLE[1..],
            &OF_ANY_PART,
            &[("content-length", declared)],
        ]
        .concat();
        let response = page(500, &headers, Script::new([data(10)], Hint::Undeclared));
        let before = response.headers().clone();
        let response = cut(&TruncateLayer::new(N), &Method::GET, response);
        check_headers(&before, response.headers(), headers_stay);
    }
    // What the body declares counts as well.
    for (variant, headers_stay) in VARIANTS.into_iter().zip([false, true]) {
        let headers = [&OF_THE_WHOLE[1..], &OF_ANY_PART].concat();
        let response = page(500, &headers, Script::new([data(4), data(8)], variant));
        let before = response.headers().clone();
        let response = cut(&TruncateLayer::new(N), &Method::GET, response);
        check_headers(&before, response.headers(), headers_stay);
    }
}

const TWO_TO_THE_64: &str = "18446744073709551616";

fn check_headers(before: &HeaderMap, after: &HeaderMap, all_stay: bool) {
    if all_stay {
        return assert_eq!(before, after);
    }
    for (name, _) in OF_THE_WHOLE {
        assert!(!after.contains_key(name), "{name}");
    }
    for (name, value) in OF_ANY_PART {
        assert_eq!(after[name], value);
    }
}

/// What is left is no longer that range. With 416 the field says how long the whole is.
#[test]
fn a_part_that_was_cut_is_not_the_range_it_was() {
    let all = TruncateLayer::new_with(|_| Some(N));
    for (status, range, stays) in [(206, "bytes 0-11/100", false), (416, "bytes */100", true)] {
        let script = Script::new([data(12)], Hint::Declared);
        let response = page(status, &[(CONTENT_RANGE.as_str(), range)], script);
        let response = cut(&all, &Method::GET, response);
        assert_eq!(response.headers().contains_key(CONTENT_RANGE), stays);
    }
    let whole = page(
        206,
        &[(CONTENT_RANGE.as_str(), "bytes 0-3/100")],
        Script::new([data(4)], Hint::Declared),
    );
    assert!(
        cut(&all, &Method::GET, whole)
            .headers()
            .contains_key(CONTENT_RANGE)
    );
}

#[test]
fn a_response_that_is_left_alone_keeps_all_headers() {
    let headers = [&OF_THE_WHOLE[..], &OF_ANY_PART].concat();
    let bodiless = [
        (Method::HEAD, 500),
        (Method::GET, 204),
        (Method::GET, 304),
        (Method::CONNECT, 200),
    ];
    let all = TruncateLayer::new_with(|_| Some(N));
    for (method, status) in bodiless {
        let response = page(status, &headers, Script::new([], Hint::Declared));
        let before = response.headers().clone();
        let response = cut(&all, &method, response);
        assert_eq!(response.headers(), &before, "{method} {status}");
        assert!(response.extensions().get::<TruncationHandle>().is_none());
    }
    let response = page(200, &headers, Script::new([data(12)], Hint::Declared));
    let before = response.headers().clone();
    let response = cut(&TruncateLayer::new(N), &Method::GET, response);
    assert_eq!(response.headers(), &before);
}

#[test]
fn the_declared_length_of_an_error_page_is_not_a_reason_to_fail() {
    for variant in VARIANTS {
        let script = Script::new([data(4), data(4), Stall], variant);
        let log = script.log();
        let response = page(404, &[("content-length", "10737418240")], script);
        let response = cut(&TruncateLayer::new(8), &Method::GET, response);
        assert!(!response.headers().contains_key(CONTENT_LENGTH));
        assert_eq!(Drive::to_end(response.into_body()).outline(), "4 4 end");
        assert_eq!(log.polls(), 2);
    }
}

#[test]
fn a_page_that_two_layers_may_cut_is_whole_only_if_neither_did() {
    for variant in VARIANTS {
        for (inner, outer, declared, undeclared) in [
            (3, 100, Truncated, Truncated),
            (100, 3, Truncated, Truncated),
            (3, 3, Truncated, Truncated),
            (8, 100, Complete, Unknown),
            (100, 8, Complete, Unknown),
            // The inner one is filled exactly, and the outer one cuts what it passes on.
            (4, 3, Truncated, Truncated),
            (3, 4, Truncated, Truncated),
            (100, 100, Complete, Complete),
        ] {
            let script = Script::new([data(4), data(4)], variant.clone());
            let response = page(404, &[], script);
            let response = cut(&TruncateLayer::new(inner), &Method::GET, response);
            let response = cut(&TruncateLayer::new(outer), &Method::GET, response);
            // A third layer that leaves it alone changes nothing.
            let others = TruncateLayer::new_with(|_| None);
            let response = cut(&others, &Method::GET, response);
            let handle = response.extensions().get::<TruncationHandle>().cloned();
            let handle = handle.unwrap();
            assert_eq!(handle.get(), None);
            Drive::to_end(response.into_body());
            let end = if matches!(variant, Hint::Declared) {
                declared
            } else {
                undeclared
            };
            assert_eq!(handle.get(), Some(end), "{inner}, {outer}, {variant:?}");
        }
    }
}

#[test]
fn which_responses_are_cut_can_be_chosen() {
    let layer = TruncateLayer::new_with(|head| match head.status.as_u16() {
        500..=599 => Some(4),
        400..=499 => Some(0),
        _ => None,
    });
    let json = [("content-type", "application/json")];
    for (status, outline, polls) in [(500, "4 end", 1), (404, "end", 0), (200, "6 6 end", 3)] {
        for variant in VARIANTS {
            let script = Script::new([data(6), data(6)], variant);
            let log = script.log();
            let response = cut(&layer, &Method::GET, page(status, &json, script));
            assert_eq!(Drive::to_end(response.into_body()).outline(), outline);
            assert_eq!(log.polls(), polls);
        }
    }
}

// Prefix and text

fn prefix(steps: impl IntoIterator<Item = Step>, hint: Hint, limit: u64) -> Prefix {
    let prefix = Script::new(steps, hint).collect_prefix(limit);
    prefix.now_or_never().expect("it waits")
}

fn prefix_of(bytes: &[u8], limit: u64) -> Prefix {
    let body = Full::new(Bytes::copy_from_slice(bytes));
    body.collect_prefix(limit).now_or_never().expect("it waits")
}

#[test]
fn a_prefix_is_the_first_bytes_and_how_they_ended() {
    for (limit, bytes, end) in [
        (0, "", Truncated),
        (4, "upst", Truncated),
        (10, "upstream i", Truncated),
        (19, "upstream is down...", Complete),
        (20, "upstream is down...", Complete),
        (u64::MAX, "upstream is down...", Complete),
    ] {
        let body = Script::new(
            ["upstream", " is ", "down..."].map(|text| Step::Data(text.into())),
            Hint::Declared,
        );
        let prefix = body.collect_prefix(limit).now_or_never().unwrap();
        assert_eq!((prefix.text().as_ref(), prefix.end()), (bytes, end));
        assert!(prefix.error().is_none());
        assert_eq!(prefix.into_bytes(), bytes);
    }
}

#[test]
fn a_prefix_has_three_ends() {
    let table = [
        (vec![data(4)], Complete, Complete),
        (vec![data(10)], Complete, Unknown),
        (vec![data(10), data(1)], Truncated, Unknown),
        (vec![data(11)], Truncated, Truncated),
    ];
    for (steps, declared, undeclared) in table {
        for (variant, end) in VARIANTS.into_iter().zip([declared, undeclared]) {
            assert_eq!(prefix(steps.clone(), variant, N).end(), end);
        }
    }
}

#[test]
fn an_inner_failure_keeps_what_was_read() {
    for variant in VARIANTS {
        let kept = prefix([data(4), data(2), Fail], variant, N);
        assert_eq!((kept.text().as_ref(), kept.end()), ("xxxxxx", Unknown));
        let error = kept.error().unwrap();
        assert!(matches!(error, Error::Body(_)));
        assert_eq!(TooLarge::find(error), None);
    }
}

#[test]
fn a_prefix_below_a_limit_says_that_it_was_that_limit() {
    for variant in VARIANTS {
        let body = Script::new([data(4), data(8)], variant.clone())
            .limited(10)
            .collect_prefix(100);
        let prefix = body.now_or_never().unwrap();
        assert_eq!(
            prefix.error().and_then(Error::too_large).unwrap().limit(),
            10
        );
        let read = if matches!(variant, Hint::Declared) {
            0
        } else {
            4
        };
        assert_eq!(prefix.bytes().len(), read);
    }
}

#[test]
fn a_prefix_of_endless_empty_frames_gives_way_to_other_tasks() {
    let script = Script::endless(data(0));
    let log = script.log();
    let prefix = Box::pin(script.collect_prefix(N));
    assert_gives_way(prefix, &log);
}

#[test]
fn text_is_cut_before_a_character_that_does_not_fit() {
    for character in ["é", "漢", "😀"] {
        let text = format!("abcdef{character}ghi");
        for limit in 0..=text.len() + 1 {
            let prefix = prefix_of(text.as_bytes(), limit as u64);
            let mut cut = limit.min(text.len());
            assert_eq!(prefix.bytes().len(), cut);
            while !text.is_char_boundary(cut) {
                cut -= 1;
            }
            assert_eq!(prefix.text(), text[..cut], "{limit}");
        }
    }
}

#[test]
fn text_does_not_depend_on_where_frames_are_cut() {
    let text = "aé漢😀b";
    for limit in 0..=text.len() as u64 {
        let bytewise = text
            .bytes()
            .map(|byte| Step::Data(Bytes::copy_from_slice(&[byte])));
        for variant in VARIANTS {
            let pieces = prefix(bytewise.clone(), variant.clone(), limit);
            assert_eq!(pieces.text(), prefix_of(text.as_bytes(), limit).text());
        }
    }
}

#[test]
fn text_that_is_no_utf_8_is_shown_as_far_as_it_goes() {
    let table: [(&[u8], u64, &str); 14] = [
        // Whole.
        (b"caf\xe9", 100, "caf\u{fffd}"),
        (b"\xff\xfeab", 100, "\u{fffd}\u{fffd}ab"),
        (b"\x80\x80\x80", 100, "\u{fffd}\u{fffd}\u{fffd}"),
        (b"ab\xe6\xbc", 100, "ab\u{fffd}"),
        // Never longer than the limit, although a replacement takes three bytes.
        (b"\x80\x80\x80", 3, "\u{fffd}"),
        (b"\x80\x80\x80", 2, ""),
        (b"\x80\x80\x80\x80", 3, "\u{fffd}"),
        (b"ab\xff", 4, "ab"),
        (b"a\xffbcdef", 7, "a\u{fffd}bcd"),
        ("a\u{e9}".as_bytes(), 2, "a"),
        (b"\xff\xc3\xa9\xc3\xa9", 5, "\u{fffd}\u{e9}"),
        (b"\xff\xc3\xa9\xc3\xa9", 4, "\u{fffd}"),
        (b"ab\xe6\xbc\x00", 4, "ab"),
        // Nothing follows a character that was left out.
        (b"\xff\xf0\x9d\x84\x9e\xff", 6, "\u{fffd}"),
    ];
    for (bytes, limit, text) in table {
        assert_eq!(prefix_of(bytes, limit).text(), text, "{bytes:?} {limit}");
    }
}

#[test]
fn text_goes_on_after_the_start_of_a_character_that_never_came() {
    // Latin-1: the é looks like the start of three bytes, but is in the middle and not at the cut.
    let page = b"caf\xe9 is closed until further notice";
    assert_eq!(prefix_of(page, 14).text(), "caf\u{fffd} is clos");
    assert_eq!(
        prefix_of(b"ab\xe6\xbcabc and more", 9).text(),
        "ab\u{fffd}abc "
    );
}

/// What a body sent before it failed may end with the start of a character, or with what is none.
#[test]
fn text_before_a_failure_leaves_out_only_the_start_of_a_character() {
    for (bytes, text) in [(&b"ab\xc3"[..], "ab"), (b"ab\xff", "ab\u{fffd}")] {
        for variant in VARIANTS {
            let kept = prefix([Step::Data(bytes.into()), Fail], variant, N);
            assert_eq!((kept.text().as_ref(), kept.end()), (text, Unknown));
        }
    }
}

#[test]
fn text_of_any_bytes_is_within_the_limit() {
    let pieces: [&[u8]; 8] = [
        b"a",
        b"\x80",
        b"\xe9",
        b"\xff",
        "é".as_bytes(),
        "漢".as_bytes(),
        "😀".as_bytes(),
        b"\xf0\x9f",
    ];
    for first in pieces {
        for second in pieces {
            for third in pieces {
                let bytes = [first, second, third, first].concat();
                for limit in (0..=bytes.len() as u64 + 3).step_by(usually(1, 5)) {
                    let prefix = prefix_of(&bytes, limit);
                    assert!(prefix.text().len() as u64 <= limit, "{bytes:?} {limit}");
                }
            }
        }
    }
}

#[test]
fn an_uncut_default_passes_everything() {
    let body = TruncatedBody::<Full<Bytes>>::default();
    assert_eq!(
        body.collect().now_or_never().unwrap().unwrap().to_bytes(),
        ""
    );
}

#[test]
fn the_inner_body_can_be_reached_until_it_ends() {
    for variant in VARIANTS {
        let script = || Script::new([data(4), data(8)], variant.clone());
        assert!(script().truncated(N).into_inner().is_some());
        let mut drive = Drive::new(script().truncated(N));
        drive.step();
        assert!(drive.body.get_ref().is_some());
        assert!(drive.body.get_mut().is_some());
        drive.step();
        assert!(drive.body.get_ref().is_none());
        assert!(drive.body.into_inner().is_none());
    }
    let mut service = TruncateLayer::new(N).layer(1);
    *service.get_mut() += 1;
    assert_eq!((*service.get_ref(), service.into_inner()), (2, 2));
}
