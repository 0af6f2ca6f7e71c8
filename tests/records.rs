//! The rules of the record limit one by one, and what was tried against it.

#![cfg(feature = "records")]

mod support;

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use static_assertions::{assert_impl_all, assert_not_impl_any};
use support::{Hint, Script, Step, VARIANTS, drive::Drive, miri::usually};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};
use tower_body_limit::{
    BodyLimitExt, Error, LimitedBody, Outcome, RecordKind, RecordLimitLayer, RecordLimitedBody,
    RequestRecordLimitLayer, RequestSizeLimitLayer, Subject, TooLarge,
};

use RecordKind::{Lines, Sse};

type Reports = Arc<Mutex<Vec<TooLarge>>>;

type Polled<B> = Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>;

fn poll<B: Body + Unpin>(body: &mut B) -> Poll<Polled<B>> {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
}

/// The next frame of a body that is always ready, but for the turns that it gives to others.
fn next<B: Body + Unpin>(body: &mut B) -> Polled<B> {
    for _ in 0..1_000_000 {
        if let Poll::Ready(frame) = poll(body) {
            return frame;
        }
    }
    panic!("still pending")
}

fn text(step: &str) -> Step {
    Step::Data(Bytes::copy_from_slice(step.as_bytes()))
}

fn script<'a>(frames: impl IntoIterator<Item = &'a str>) -> Script {
    Script::new(frames.into_iter().map(text), Hint::Undeclared)
}

/// The data until the end or the error.
fn drain<B: Body<Data = Bytes, Error = Error> + Unpin>(body: &mut B) -> (String, Option<Error>) {
    let mut data = Vec::new();
    loop {
        match next(body) {
            Some(Ok(frame)) => data.extend(frame.into_data().unwrap_or_default()),
            Some(Err(error)) => return (String::from_utf8(data).unwrap(), Some(error)),
            None => return (String::from_utf8(data).unwrap(), None),
        }
    }
}

fn offset(error: &Option<Error>) -> Option<u64> {
    error.as_ref()?.too_large()?.record_offset()
}

/// Whether a stream passes: limit, stream, and where the record that is too large starts.
fn passes(kind: RecordKind, cases: &[(u64, &str, Option<u64>)]) {
    for &(limit, stream, breach) in cases {
        let mut body = script([stream]).limit_records(kind, limit);
        let (passed, error) = drain(&mut body);
        assert_eq!(offset(&error), breach, "{limit} {stream:?}");
        if breach.is_none() {
            assert_eq!(passed, stream);
        }
    }
}

#[test]
fn what_an_event_is_and_what_of_it_counts() {
    passes(
        Sse,
        &[
            (10, "data: 1234\n\n", None),
            (9, "data: 1234\n\n", Some(0)),
            (10, "data: 1234\r\n\r\n", None),
            (
                10,
                "data: 1234\r\rdata: 1234\n\rdata: 1234\r\n\ndata: 1234\n\n",
                None,
            ),
            (14, "data: 1\ndata: 2\n\n", None),
            (13, "data: 1\ndata: 2\n\n", Some(0)),
            (10, "data: 1234\n\ndata: 12345\n\n", Some(12)),
            (10, "data: 1234\r\n\r\ndata: 12345\r\n\r\n", Some(14)),
            (0, "\n\r\n\r\n\n", None),
            (0, "x", Some(0)),
            // Comments.
            (6, ": ping\n: ping\n: ping\n", None),
            (5, "\n: ping\n", Some(1)),
            (7, "data: 1\n: ping\n: ping\n\n", None),
            (7, "data: 1\n: a comment\n\n", Some(8)),
            (7, ": ping\ndata: 12\n\n", Some(7)),
            (6, "data:1\r:\r\n:\n\r", None),
            // The mark at the start, and only there, and only one.
            (7, "\u{feff}data: 1\n\n", None),
            (6, "\u{feff}: ping\n\n", None),
            (7, "\u{feff}\u{feff}data: 1\n\n", Some(3)),
            (7, "\n\u{feff}data: 1\n\n", Some(1)),
        ],
    );
}

#[test]
fn what_a_line_is_and_what_of_it_counts() {
    passes(
        Lines,
        &[
            (4, "abcd\nabcd\n", None),
            (4, "abcd\nabcde\n", Some(5)),
            (4, "abcd\r\nabcd\r\n", None),
            (4, "abcd\r\r\n", Some(0)),
            (4, "ab\rcd\n", Some(0)),
            (4, "abcd", None),
            (4, "abcd\r", None),
            (4, "abcde", Some(0)),
            (4, "\u{feff}a\n", None),
            (4, "\u{feff}ab\n", Some(0)),
            (0, "\n\r\n\n", None),
            (0, "a", Some(0)),
            // Blank lines and colons are nothing special.
            (4, "\n\n:\n\nabcd\n", None),
        ],
    );
}

#[test]
fn a_byte_too_many_is_known_at_that_byte() {
    for (kind, stream) in [(Sse, "data: "), (Lines, "{\"a\": \""), (Sse, ": ")] {
        let frames = stream.bytes().chain(std::iter::repeat_n(b'x', 200));
        let frames = frames.map(|byte| Step::Data(Bytes::from(vec![byte])));
        let inner = Script::new(frames, Hint::Undeclared);
        let log = inner.log();
        let mut body = inner.limit_records(kind, 100);
        let (passed, error) = drain(&mut body);
        assert_eq!(passed.len(), 100);
        assert_eq!(log.polls(), 101);
        let error = error.unwrap();
        let error = error.too_large().unwrap();
        assert_eq!(
            (error.limit(), error.read(), error.record_offset()),
            (100, 101, Some(0))
        );
        assert_eq!(error.subject(), Subject::Record);
        assert_eq!(error.declared(), None);
        assert_eq!(
            error.to_string(),
            "the record at byte 0 is larger than its limit of 100 bytes"
        );
    }
}

#[test]
fn the_frame_is_cut_and_not_copied() {
    let frame = Bytes::from_static(b"data: 1\n\ndata: 2\n\ndata: too large\n\n");
    let inner = Script::new([Step::Data(frame.clone())], Hint::Undeclared);
    let log = inner.log();
    let mut body = inner.limit_records(Sse, 8);
    let passed = next(&mut body).unwrap().unwrap().into_data().unwrap();
    assert_eq!(passed, "data: 1\n\ndata: 2\n\n");
    assert_eq!(passed.as_ptr(), frame.as_ptr());
    assert!(
        log.dropped(),
        "given up at the breach, before what came before it is taken"
    );
    assert!(!body.is_end_stream());
    assert_eq!(
        (body.size_hint().lower(), body.size_hint().upper()),
        (0, None)
    );
    assert!(matches!(next(&mut body), Some(Err(Error::TooLarge(_)))));
    for _ in 0..5 {
        assert!(next(&mut body).is_none());
    }
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
    assert!(body.get_ref().is_none());
}

#[test]
fn frames_that_pass_are_the_same_frames() {
    for skips in [false, true] {
        for frame in [
            "data: 1\n\ndata: 2\r\n\r\n",
            "",
            ": ping\n",
            "\n",
            "data: 3\n: c\n\n",
        ] {
            let frame = Bytes::from(frame);
            let inner = Script::new([Step::Data(frame.clone())], Hint::Undeclared);
            let mut body = inner.limit_records(Sse, 12);
            if skips {
                body = body.skip_oversized();
            }
            let passed = next(&mut body).unwrap().unwrap().into_data().unwrap();
            assert_eq!(
                (passed.as_ptr(), passed.len()),
                (frame.as_ptr(), frame.len())
            );
        }
    }
}

#[test]
fn the_limit_and_the_inner_body_can_be_asked_for() {
    for variant in VARIANTS {
        let script = Script::new([text("ab\n"), text("efghi\n")], variant);
        let mut body = script.limit_records(Lines, 4);
        assert_eq!((body.limit(), body.read()), (Some(4), 0));
        assert!(next(&mut body).unwrap().is_ok());
        assert_eq!((body.limit(), body.read()), (Some(4), 3));
        assert_eq!(body.get_ref().unwrap().log().polls(), 1);
        assert!(body.get_mut().is_some());
        assert!(next(&mut body).unwrap().is_err());
        assert!(body.get_ref().is_none() && body.get_mut().is_none());
        assert!(body.into_inner().is_none());
    }
    assert_eq!(RecordLimitedBody::<String>::default().limit(), None);
}

#[test]
fn hints_are_the_inner_ones_until_a_breach() {
    for hint in VARIANTS {
        let inner = Script::new([text("ab\n"), text("cd\n")], hint);
        let expected = inner.size_hint();
        let mut body = inner.limit_records(Lines, 2);
        assert_eq!(body.size_hint().exact(), expected.exact());
        assert!(!body.is_end_stream());
        let _ = next(&mut body);
        assert_eq!(body.size_hint().exact(), expected.exact().map(|_| 3));
    }
    let mut body = Script::new([text("ab"), text("c\nd"), text("e\n")], Hint::Declared)
        .limit_records(Lines, 2)
        .skip_oversized();
    assert_eq!(
        (body.size_hint().lower(), body.size_hint().upper()),
        (0, Some(7))
    );
    assert!(matches!(poll(&mut body), Poll::Ready(Some(Ok(_)))));
    assert!(body.is_end_stream());
    let huge = Script::new([text("a")], Hint::Fixed(SizeHint::with_exact(u64::MAX)));
    let body = huge.limit_records(Lines, 2).skip_oversized();
    assert_eq!(body.size_hint().upper(), Some(u64::MAX));
}

#[test]
fn trailers_and_failures_of_the_inner_body_pass() {
    for skips in [false, true] {
        for last in [Step::Trailers, Step::Fail] {
            let is_trailers = matches!(last, Step::Trailers);
            let inner = Script::new([text("abc\nde"), last], Hint::Undeclared);
            let mut body = inner.limit_records(Lines, 3);
            if skips {
                body = body.skip_oversized();
            }
            let mut data = Vec::new();
            let end = loop {
                match next(&mut body).unwrap() {
                    Ok(frame) if frame.is_data() => data.extend(frame.into_data().unwrap()),
                    end => break end,
                }
            };
            assert_eq!(data, b"abc\nde");
            match end {
                Ok(frame) => {
                    assert!(is_trailers);
                    let trailers = frame.into_trailers().unwrap();
                    let has_digest = trailers.contains_key("content-digest");
                    assert_eq!(
                        (trailers.len(), has_digest),
                        (2 - usize::from(skips), !skips)
                    );
                }
                Err(error) => assert!(!is_trailers && matches!(error, Error::Body(_))),
            }
            assert!(next(&mut body).is_none());
        }
    }
}

fn skipping(kind: RecordKind, limit: u64, inner: Script) -> (RecordLimitedBody<Script>, Reports) {
    let reports = Reports::default();
    let seen = Arc::clone(&reports);
    let body = inner
        .limit_records(kind, limit)
        .skip_oversized()
        .on_breach(move |error| seen.lock().unwrap().push(error.clone()));
    (body, reports)
}

fn sizes(reports: &Reports) -> Vec<(u64, bool)> {
    let reports = reports.lock().unwrap();
    reports
        .iter()
        .map(|error| (error.read(), error.read_is_total()))
        .collect()
}

#[test]
fn each_skipped_record_is_reported_once_with_its_size() {
    let frames = [
        "one too long\nok\ntwo too ",
        "long\nthree too long\nok\nfour too long",
    ];
    let (mut body, reports) = skipping(Lines, 4, script(frames));
    assert_eq!(drain(&mut body).0, "ok\nok\n");
    drop(body);
    assert_eq!(
        sizes(&reports),
        [(12, true), (12, true), (14, true), (13, true)]
    );
}

#[test]
fn a_record_that_is_never_finished_is_reported_when_the_body_goes() {
    for last in [Step::Fail, Step::Stall] {
        let inner = Script::new([text("ok\nfar too long"), last], Hint::Undeclared);
        let (mut body, reports) = skipping(Lines, 4, inner);
        assert!(matches!(poll(&mut body), Poll::Ready(Some(Ok(_)))));
        let _ = poll(&mut body);
        drop(body);
        assert_eq!(sizes(&reports), [(12, false)]);
    }
}

#[test]
fn what_was_reported_at_the_end_is_not_reported_at_the_drop() {
    for variant in VARIANTS {
        let inner = Script::new([text("data: 1\n: far too long")], variant);
        let (mut body, reports) = skipping(Sse, 7, inner);
        // The end of the wrapped body lets the event out.
        assert!(next(&mut body).unwrap().is_ok());
        assert!(body.get_ref().is_none());
        drop(body);
        assert_eq!(sizes(&reports), [(14, true)]);
    }
}

/// What is held may come, and so may what an event leaves behind.
/// A client ignores such an id, so the one before it stands, however little room there is.
#[test]
fn an_id_with_nul_is_none() {
    for (id, left) in [
        ("id:defghij\0k", "id:abc\n\n"),
        ("id:defghijklm\0", "id:abc\n\n"),
        ("id:defghijklm", ""),
        ("id:defghij", "id:defghij\n\n"),
    ] {
        let stream = format!("id:abc\n{id}\ndata:too large by far\n\n");
        for frame in 1..=stream.len() {
            let frames = stream.as_bytes().chunks(frame);
            let frames = frames.map(|chunk| Step::Data(Bytes::copy_from_slice(chunk)));
            let (mut body, _) = skipping(Sse, 12, Script::new(frames, Hint::Undeclared));
            let mut data = Vec::new();
            while let Some(frame) = next(&mut body) {
                data.extend(frame.unwrap().into_data().unwrap());
            }
            assert_eq!(String::from_utf8(data).unwrap(), left, "{id:?} {frame}");
        }
    }
}

#[test]
fn while_records_are_skipped_the_hint_is_what_may_come() {
    let long = "x".repeat(9000);
    let cases: [(RecordKind, u64, &[&str], &[u64]); 4] = [
        // Held, then out at once, then held again.
        (Lines, 4, &["ab", "cd\ne", "f\n"], &[8, 8, 3, 3, 0, 0]),
        // Out in several frames.
        (
            Lines,
            18_000,
            &[&long, &long, "\n"],
            &[18_001, 18_001, 18_001, 9001, 1, 0, 0],
        ),
        (
            Sse,
            20,
            &["id: 7\nretry: 5\ndata: 1234567", "8\n", "\n"],
            &[31, 19, 17, 0, 0],
        ),
        (
            Sse,
            20,
            &["data: 12345678901234567890\nid: 7", "\n\n"],
            &[34, 10, 0, 0],
        ),
    ];
    for (kind, limit, frames, expected) in cases {
        let pauses = frames.iter().flat_map(|frame| [text(frame), Step::Pending]);
        let script = Script::new(pauses, Hint::Declared);
        let mut drive = Drive::new(script.limit_records(kind, limit).skip_oversized());
        let mut uppers = vec![drive.body.size_hint().upper().unwrap()];
        let mut passed = vec![0];
        while drive.step() != "end" {
            assert_eq!(drive.body.size_hint().lower(), 0);
            uppers.push(drive.body.size_hint().upper().unwrap());
            passed.push(drive.data().len() as u64);
        }
        let total = drive.data().len() as u64;
        for (upper, passed) in uppers.iter().zip(passed) {
            assert!(*upper >= total - passed, "{frames:?}");
        }
        assert_eq!(uppers, expected, "{frames:?}");
    }
}

#[test]
fn an_event_leaves_its_id_and_retry_behind() {
    let cases = [
        ("id: 1\ndata: far too long\n\n", "id: 1\n\n"),
        ("data: far too long\nid: 1\n\n", "id: 1\n\n"),
        ("id: 1\nid: 2\ndata: far too long\n\n", "id: 2\n\n"),
        ("id: 1\nid: \0\ndata: far too long\n\n", "id: 1\n\n"),
        ("id: 1\ndata: far too long\nid\n\n", "id\n\n"),
        (
            "retry: 10\r\nid: 1\r\ndata: far too long\r\n\r\n",
            "id: 1\nretry: 10\n\n",
        ),
        ("retry: 1x\ndata: far too long\n\n", ""),
        ("idle: 1\nretry\ndata: far too long\n\n", ""),
        ("id: this id is itself far too long\n\n", ""),
        ("id: 1\ndata: far too long", ""),
    ];
    for (stream, left) in cases {
        for cut in (0..=stream.len()).step_by(usually(1, 5)) {
            let (first, second) = stream.split_at(cut);
            let (mut body, reports) = skipping(Sse, 16, script([first, second]));
            assert_eq!(drain(&mut body).0, left, "{stream:?}");
            assert_eq!(reports.lock().unwrap().len(), 1);
        }
    }
}

#[test]
fn an_event_is_held_until_it_is_whole_and_comments_are_not() {
    let frames = [
        "data: 1\n",
        "data",
        ": 2\n",
        "\n",
        ": pi",
        "ng\n",
        "data: 3\r\n\r",
        "\n",
    ];
    let mut body = script(frames).limit_records(Sse, 100).skip_oversized();
    let mut passed = Vec::new();
    while let Some(frame) = next(&mut body) {
        passed.push(frame.unwrap().into_data().unwrap());
    }
    assert_eq!(
        passed,
        ["data: 1\ndata: 2\n\n", ": ping\n", "data: 3\r\n\r", "\n"]
    );
}

// What was tried against it.

/// How many frames it takes to see that something would go on for ever.
const MANY: usize = usually(100_000, 200);
/// A limit far below what they hold.
const FEW: u64 = usually(1000, 50);

/// Polls until `polls` frames were asked for, and says how many bytes passed and were allocated at
/// most at a time.
fn play(step: &str, kind: RecordKind, limit: u64, skips: bool, polls: usize) -> (u64, u64, usize) {
    let inner = Script::endless(text(step));
    let log = inner.log();
    let breaches = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&breaches);
    let mut body = inner.limit_records(kind, limit).on_breach(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    if skips {
        body = body.skip_oversized();
    }
    let memory = allocation_counter::measure(|| {
        while log.polls() < polls {
            if let Poll::Ready(None) = poll(&mut body) {
                break;
            }
        }
    });
    (
        body.read(),
        memory.bytes_max,
        breaches.load(Ordering::SeqCst),
    )
}

#[test]
fn nothing_grows_without_bound() {
    let attacks = [
        (Lines, "no line end "),
        (Lines, "aaaa\r"),
        (Sse, "no line end "),
        (Sse, "data: x\n"),
        (Sse, "data: x\r\n"),
        (Sse, "d\r"),
        (Sse, "id: 1\n"),
        (Sse, "id: for ever"),
        (Sse, "event: x\n"),
    ];
    for (kind, step) in attacks {
        let (passed, _, breaches) = play(step, kind, FEW, false, MANY);
        // Line ends pass, too, and are not counted.
        assert!(passed <= 3 * FEW, "{step:?}: {passed}");
        assert_eq!(breaches, 1, "{step:?}");

        let (passed, memory, _) = play(step, kind, FEW, true, MANY);
        assert_eq!(passed, 0, "{step:?}");
        assert!(memory < 64 * 1024, "{step:?}: {memory}");
    }
}

#[test]
fn comments_neither_pass_without_end_nor_stay() {
    // One that never ends.
    let mut body = Script::new([text(":")], Hint::Undeclared).limit_records(Sse, 0);
    assert!(drain(&mut body).1.is_some());
    let (passed, _, breaches) = play(": for ever", Sse, FEW, false, MANY);
    assert_eq!((passed, breaches), (FEW, 1));
    // Any number of them, in an event that never ends.
    let steps = std::iter::once(text("data: 1\n"))
        .chain((0..MANY).map(|_| Step::Data(Bytes::from_static(b": ping\r\n"))));
    let (mut body, reports) = skipping(Sse, FEW, Script::new(steps, Hint::Undeclared));
    let memory = allocation_counter::measure(|| {
        assert_eq!(drain(&mut body).0, "data: 1\n");
    });
    assert!(memory.bytes_max < 64 * 1024, "{}", memory.bytes_max);
    assert_eq!(sizes(&reports), []);
}

#[test]
fn an_event_that_loses_its_comments_comes_after_the_one_before_it() {
    for variant in VARIANTS {
        let frame = text("data: 1\n\ndata: 2\n:aaaaa\n:bbbbb\n\n");
        let body = Script::new([frame], variant).limit_records(Sse, 7);
        let drive = Drive::to_end(body.skip_oversized());
        assert_eq!(drive.data(), b"data: 1\n\ndata: 2\n\n");
    }
}

#[test]
fn what_is_harmless_passes() {
    let empty_lines = "\n".repeat(10 * MANY);
    let small_events = "data: small\n\n".repeat(MANY / 10);
    let small_lines = "{\"small\":1}\n".repeat(MANY / 10);
    for skips in [false, true] {
        for (kind, stream) in [
            (Sse, &empty_lines),
            (Lines, &empty_lines),
            (Sse, &small_events),
            (Lines, &small_lines),
        ] {
            let mut body = script([&**stream]).limit_records(kind, 11);
            if skips {
                body = body.skip_oversized();
            }
            let (passed, error) = drain(&mut body);
            assert!(error.is_none() && passed == *stream);
        }
        // A long silence with only pings.
        let (passed, _, breaches) = play(": ping\n\n", Sse, 10, skips, MANY);
        assert_eq!((passed, breaches), (8 * MANY as u64, 0));
    }
}

#[test]
fn a_large_record_leaves_no_large_memory_behind() {
    const LARGE: usize = usually(8 * 1024 * 1024, 64 * 1024);
    // Of one buffer, so that no frame is freed while the memory of the body is measured.
    let large = Bytes::from("x".repeat(LARGE));
    let frames = (0..large.len())
        .step_by(1024)
        .map(|at| large.slice(at..at + 1024));
    let steps = frames
        .map(Step::Data)
        .chain([text("\n"), text("a"), Step::Stall]);
    let (mut body, _) = skipping(
        Lines,
        2 * LARGE as u64,
        Script::new(steps, Hint::Undeclared),
    );
    let held = allocation_counter::measure(|| {
        let mut bytes = 0;
        while let Poll::Ready(Some(frame)) = {
            let mut polled = poll(&mut body);
            // One turn for the others, then on.
            for _ in 0..200 {
                if polled.is_ready() {
                    break;
                }
                polled = poll(&mut body);
            }
            polled
        } {
            bytes += frame.unwrap().into_data().unwrap().len();
        }
        assert_eq!(bytes, LARGE + 1);
    });
    let most = LARGE as u64 + 1024 * 1024;
    assert!(held.bytes_max < most, "{}", held.bytes_max);
    assert!(held.bytes_current < 24 * 1024, "{}", held.bytes_current);
}

#[test]
fn what_is_skipped_does_not_starve_others() {
    let inner = Script::endless(text("no line end "));
    let log = inner.log();
    let mut body = inner.limit_records(Lines, 10).skip_oversized();
    assert!(poll(&mut body).is_pending());
    assert!((1..1000).contains(&log.polls()));
    // Bytes one by one cost a poll of the inner body each, and no more.
    let inner = Script::new((0..MANY / 10).map(|_| text("x")), Hint::Undeclared);
    let log = inner.log();
    let _ = drain(&mut inner.limit_records(Lines, 10).skip_oversized());
    assert_eq!(log.polls(), MANY / 10 + 1);
}

#[test]
fn limits_up_to_the_largest_do_not_overflow() {
    for kind in [Sse, Lines] {
        for limit in [u64::MAX, u64::MAX - 1, u64::from(u32::MAX), 0] {
            for skips in [false, true] {
                let mut body =
                    script(["data: x\r\n", "\r", "\n", ":c", "\n"]).limit_records(kind, limit);
                if skips {
                    body = body.skip_oversized();
                }
                let (passed, error) = drain(&mut body);
                if limit > 0 {
                    assert!(error.is_none() && passed == "data: x\r\n\r\n:c\n");
                }
            }
        }
    }
}

// The layers.

fn answering(
    head: &'static [(header::HeaderName, &'static str)],
    stream: &'static str,
) -> impl tower::Service<Request<()>, Response = Response<Script>, Error = std::io::Error> + Clone {
    service_fn(move |_: Request<()>| async move {
        let mut response = Response::new(script([stream]));
        for (name, value) in head {
            response
                .headers_mut()
                .insert(name.clone(), value.parse().unwrap());
        }
        Ok(response)
    })
}

const TYPE: header::HeaderName = header::CONTENT_TYPE;

async fn breach_of(
    layer: RecordLimitLayer,
    head: &'static [(header::HeaderName, &'static str)],
) -> bool {
    let service = layer.layer(answering(head, "data: too large\n\n"));
    let response = service.oneshot(Request::new(())).await.unwrap();
    drain(&mut response.into_body()).1.is_some()
}

#[tokio::test]
async fn only_fitting_unencoded_messages_are_looked_at() {
    let sse = || RecordLimitLayer::sse(5);
    let lines = || RecordLimitLayer::lines(5);
    assert!(breach_of(sse(), &[(TYPE, "text/event-stream")]).await);
    assert!(breach_of(sse(), &[(TYPE, "Text/Event-Stream; charset=utf-8")]).await);
    assert!(!breach_of(sse(), &[(TYPE, "application/x-ndjson")]).await);
    assert!(!breach_of(sse(), &[]).await);
    const GZIP: &[(header::HeaderName, &str)] = &[
        (TYPE, "text/event-stream"),
        (header::CONTENT_ENCODING, "gzip"),
    ];
    assert!(!breach_of(sse(), GZIP).await);
    const PLAIN: &[(header::HeaderName, &str)] = &[
        (TYPE, "text/event-stream"),
        (header::CONTENT_ENCODING, "Identity"),
    ];
    assert!(breach_of(sse(), PLAIN).await);
    assert!(breach_of(lines(), &[(TYPE, "application/x-ndjson")]).await);
    assert!(breach_of(lines(), &[(TYPE, "application/jsonl; charset=utf-8")]).await);
    assert!(!breach_of(lines(), &[(TYPE, "application/json")]).await);
    assert!(!breach_of(lines(), &[(TYPE, "text/event-stream")]).await);
    // A closure decides alone.
    assert!(breach_of(RecordLimitLayer::sse_with(|_| Some(5)), &[]).await);
    assert!(breach_of(RecordLimitLayer::lines_with(|_| Some(5)), GZIP).await);
    let layer = RecordLimitLayer::sse_with(|head| head.status.is_client_error().then_some(5));
    assert!(!breach_of(layer, &[(TYPE, "text/event-stream")]).await);
}

#[tokio::test]
async fn skipping_removes_what_the_head_says_of_the_whole() {
    const HEAD: &[(header::HeaderName, &str)] = &[
        (TYPE, "text/event-stream"),
        (header::CONTENT_LENGTH, "17"),
        (header::ETAG, "\"x\""),
        (header::VARY, "accept"),
    ];
    for (method, skips, left) in [("GET", true, 2), ("GET", false, 4), ("HEAD", true, 4)] {
        let mut layer = RecordLimitLayer::sse(5);
        if skips {
            layer = layer.skip_oversized();
        }
        let request = Request::builder().method(method).body(()).unwrap();
        let response = layer
            .layer(answering(HEAD, "data: too large\n\n"))
            .oneshot(request)
            .await
            .unwrap();
        assert_eq!(response.headers().len(), left, "{method} {skips}");
    }
}

#[tokio::test]
async fn of_a_request_the_head_is_changed_only_where_lines_may_be_removed() {
    let lines = || RequestRecordLimitLayer::lines(5);
    for (layer, media_type, stays) in [
        (lines().skip_oversized(), "application/x-ndjson", false),
        (lines().skip_oversized(), "text/plain", true),
        (lines(), "application/x-ndjson", true),
    ] {
        let service = service_fn(async |request: Request<RecordLimitedBody<Script>>| {
            let declares = request.headers().contains_key(header::CONTENT_LENGTH);
            Ok::<_, std::io::Error>(declares)
        });
        let request = Request::post("/")
            .header(TYPE, media_type)
            .header(header::CONTENT_LENGTH, 8)
            .body(script(["too long"]));
        let declares = layer.layer(service).oneshot(request.unwrap()).await;
        assert_eq!(declares.unwrap(), stays, "{media_type}");
    }
}

#[test]
fn readiness_is_the_inner_services() {
    fn is_ready<S: Service<Request<Script>>>(mut service: S) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        service.poll_ready(&mut cx).is_ready()
    }
    for (places, ready) in [(0, false), (1, true)] {
        let limited = ConcurrencyLimitLayer::new(places);
        let requests = service_fn(async |_: Request<RecordLimitedBody<Script>>| {
            Ok::<_, std::io::Error>(Response::new(String::new()))
        });
        let service = RequestRecordLimitLayer::lines(5).layer(limited.layer(requests));
        assert_eq!(is_ready(service), ready);
        let responses = service_fn(async |_: Request<Script>| {
            Ok::<_, std::io::Error>(Response::new(String::new()))
        });
        let service = RecordLimitLayer::lines(5).layer(limited.layer(responses));
        assert_eq!(is_ready(service), ready);
    }
}

#[tokio::test]
async fn callbacks_and_labels() {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let breaches = Reports::default();
    let (seen_ends, seen_breaches) = (Arc::clone(&ends), Arc::clone(&breaches));
    let layer = RecordLimitLayer::sse(10)
        .label("events")
        .on_end(move |end| {
            seen_ends
                .lock()
                .unwrap()
                .push((end.read(), end.outcome(), end.subject()));
        })
        .on_breach(move |error| seen_breaches.lock().unwrap().push(error.clone()));
    const HEAD: &[(header::HeaderName, &str)] = &[(TYPE, "text/event-stream")];
    let get = async |layer: &RecordLimitLayer, stream| {
        let service = layer.layer(answering(HEAD, stream));
        service.oneshot(Request::new(())).await.unwrap().into_body()
    };

    let mut body = get(&layer, "data: 1\n\n").await;
    assert!(drain(&mut body).1.is_none());
    let mut body = get(&layer, "data: 1\n\ndata: 23456\n\n").await;
    assert!(matches!(poll(&mut body), Poll::Ready(Some(Ok(_)))));
    // The turns in which a server sends what passed.
    assert!(poll(&mut body).is_pending());
    assert!(poll(&mut body).is_pending());
    let Poll::Ready(Some(Err(error))) = poll(&mut body) else {
        panic!()
    };
    let error = error.too_large().unwrap();
    assert_eq!(error.label(), Some("events"));
    assert_eq!(error.status(), StatusCode::BAD_GATEWAY);
    drop(get(&layer, "data: 1\n\n").await);

    assert_eq!(breaches.lock().unwrap().iter().collect::<Vec<_>>(), [error]);
    assert_eq!(
        *ends.lock().unwrap(),
        [
            (9, Outcome::Complete, Subject::Record),
            (9, Outcome::Failed, Subject::Record),
            (0, Outcome::Dropped, Subject::Record),
        ]
    );
}

#[tokio::test]
async fn a_body_that_still_holds_something_has_not_ended() {
    use Outcome::{Complete, Dropped};
    for (event, polls, outcome) in [
        ("data: 1\n\n", 0, Dropped),
        ("data: 1\n\n", 2, Complete),
        ("data: 1", 1, Dropped),
    ] {
        let service = service_fn(async |_: Request<()>| {
            let body = Script::new([text(event), Step::Pending], Hint::Declared);
            Ok::<_, std::io::Error>(Response::new(body))
        });
        let ends = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&ends);
        let layer = RecordLimitLayer::sse_with(|_| Some(10))
            .skip_oversized()
            .on_end(move |end| seen.lock().unwrap().push(end.outcome()));
        let response = layer.layer(service).oneshot(Request::new(())).await;
        let mut drive = Drive::new(response.unwrap().into_body());
        for _ in 0..polls {
            drive.step();
        }
        drop(drive);
        assert_eq!(*ends.lock().unwrap(), [outcome], "{event:?} {polls}");
    }
}

#[tokio::test]
async fn a_body_that_is_given_back_is_not_reported() {
    let ends = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ends);
    let layer = RecordLimitLayer::sse_with(|_| Some(10)).on_end(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let service = layer.layer(answering(&[], "data: 1\n\n"));
    let response = service.oneshot(Request::new(())).await.unwrap();
    let inner = response.into_body().into_inner().unwrap();
    assert!(!inner.log().dropped());
    assert_eq!(ends.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn lines_of_requests_below_a_size_limit() {
    let service = service_fn(async |mut request: Request<RecordLimitedBody<_>>| {
        let (data, error) = drain(request.body_mut());
        let status = error
            .as_ref()
            .and_then(Error::too_large)
            .map(TooLarge::status)
            .unwrap_or(StatusCode::OK);
        Ok::<_, std::io::Error>(Response::builder().status(status).body(data).unwrap())
    });
    let service =
        RequestSizeLimitLayer::server(1000).layer(RequestRecordLimitLayer::lines(4).layer(service));
    for (lines, status, passed) in [
        ("abcd\nef", 200, "abcd\nef"),
        ("abcd\nefghi\nj\n", 413, "abcd\n"),
    ] {
        let request = Request::post("/")
            .header(TYPE, "application/x-ndjson")
            .body(script([lines]))
            .unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status);
        let data = response
            .into_body()
            .collect_limited(100)
            .await
            .unwrap()
            .into_bytes();
        assert_eq!(data, passed);
    }
}

#[tokio::test]
async fn what_is_drained_through_a_record_limit_does_not_count_for_it() {
    let breaches = Reports::default();
    let seen = Arc::clone(&breaches);
    let service = service_fn(
        async |mut request: Request<LimitedBody<RecordLimitedBody<Script>>>| {
            let (_, error) = drain(request.body_mut());
            Err::<Response<String>, _>(error.unwrap())
        },
    );
    let service = RequestRecordLimitLayer::lines(4)
        .on_breach(move |error| seen.lock().unwrap().push(error.clone()))
        .layer(RequestSizeLimitLayer::server(6).layer(service));
    // The second frame is one too many for the size, and the third has a line that is too long.
    let body = script(["abcd\n", "ef\n", "ghijkl\n", "m\n"]);
    let log = body.log();
    let request = Request::post("/").header(TYPE, "application/x-ndjson");
    let response = service.oneshot(request.body(body).unwrap()).await.unwrap();
    assert_eq!(response.status(), 413);
    assert!(response.into_body().collect_limited(100).await.is_ok());
    assert_eq!(log.polls(), 5);
    assert!(breaches.lock().unwrap().is_empty());
}

// As the body inside: reqwest needs Sync.
assert_impl_all!(RecordLimitedBody<Script>: Send, Sync, Unpin);
assert_impl_all!(RecordLimitedBody<http_body_util::Full<Bytes>>: Default);
assert_not_impl_any!(RecordLimitedBody<std::rc::Rc<()>>: Send, Sync);
assert_not_impl_any!(RecordLimitedBody<std::marker::PhantomPinned>: Unpin);
assert_not_impl_any!(RecordLimitedBody<Script>: Clone);
