//! JSON in the events of a stream: what fits, what does not, and what is left alone.
#![cfg(all(feature = "json", feature = "records"))]

mod support;

use std::{
    convert::Infallible,
    io,
    pin::{Pin, pin},
    slice, str,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use axum::{
    Router,
    response::sse::{Event, Sse},
    routing::get,
};
use bytes::Bytes;
use eventsource_stream::Eventsource;
use futures_util::{FutureExt, StreamExt, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, StreamBody};
use proptest::prelude::*;
use support::{Hint, Log, Script, Step, VARIANTS, drive::Drive};
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt, service_fn};
use tower_body_limit::{
    Error, ResponseBody,
    json::{BaseOffset, Fit, FitLimit, FitReport, Fitted, JsonFitLayer, Unfit, UnfitReason, fit},
};

const KIB: u64 = 1024;

type Report = Result<FitReport, Unfit>;
type Reports = Arc<Mutex<Vec<Report>>>;

/// The layer on either side, and what it reports.
fn layers(fit: &Fit) -> [(JsonFitLayer, Reports); 2] {
    [JsonFitLayer::server, JsonFitLayer::client].map(|side| {
        let reports = Reports::default();
        let layer = side(fit.clone()).on_fit({
            let reports = Arc::clone(&reports);
            move |result| {
                let report = result.cloned().map_err(Clone::clone);
                reports.lock().unwrap().push(report);
            }
        });
        (layer, reports)
    })
}

fn head() -> HeaderMap {
    HeaderMap::from_iter([(header::CONTENT_TYPE, "text/event-stream".parse().unwrap())])
}

fn data(bytes: impl AsRef<[u8]>) -> Step {
    Step::Data(Bytes::copy_from_slice(bytes.as_ref()))
}

fn through(layer: &JsonFitLayer, script: Script) -> Response<ResponseBody<Script>> {
    let mut response = Response::new(script);
    *response.headers_mut() = head();
    answer(layer, Request::new(()), response)
}

fn answer<B>(
    layer: &JsonFitLayer,
    request: Request<()>,
    response: Response<B>,
) -> Response<ResponseBody<B>>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let response = Mutex::new(Some(response));
    let inner = service_fn(|_: Request<()>| {
        std::future::ready(Ok::<_, Infallible>(
            response.lock().unwrap().take().unwrap(),
        ))
    });
    let response = layer.layer(inner).oneshot(request).now_or_never();
    response.expect("the head waits for nothing").unwrap()
}

/// A stream in one frame, in frames of one byte, and in two frames cut at each byte.
fn cuts(stream: &[u8]) -> impl Iterator<Item = Vec<Step>> {
    let whole = vec![data(stream)];
    let bytes = stream.iter().map(|byte| data([*byte])).collect();
    let pairs = (0..=stream.len()).map(|at| vec![data(&stream[..at]), data(&stream[at..])]);
    [whole, bytes].into_iter().chain(pairs)
}

/// Asserts what comes of a stream and what is reported, however it is cut, on both sides.
#[track_caller]
fn check(fit: &Fit, stream: impl AsRef<[u8]>, expected: impl AsRef<[u8]>, reports: &[Report]) {
    let (stream, expected) = (stream.as_ref(), expected.as_ref());
    for steps in cuts(stream) {
        for hint in VARIANTS {
            for (layer, seen) in layers(fit) {
                let script = Script::new(steps.clone(), hint.clone());
                // As a server reads that polls no more once the body says that it is over.
                let mut drive = Drive::new(through(&layer, script).into_body());
                while !drive.body.is_end_stream() {
                    let left = expected.len().saturating_sub(drive.data().len()) as u64;
                    let hint = drive.body.size_hint();
                    let is_honest =
                        hint.lower() <= left && hint.upper().is_none_or(|upper| left <= upper);
                    assert!(is_honest, "{hint:?} of {left}");
                    drive.step();
                }
                assert_eq!(drive.body.size_hint().exact(), Some(0));
                assert_eq!(
                    String::from_utf8_lossy(&drive.data()),
                    String::from_utf8_lossy(expected),
                    "of {steps:?}"
                );
                assert!(drive.error.is_none());
                assert_eq!(*seen.lock().unwrap(), reports, "of {steps:?}");
            }
        }
    }
}

const PAGE: &str = r#"{"rows": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30], "took": 3}"#;
const CUT: &str =
    r#"{"rows":[1,2,3,4],"took":3,"truncated":true,"next_offset":4,"cap_reason":"size_limit"}"#;

fn rows() -> Fit {
    Fit::array_at(CUT.len() as u64, "/rows")
}

/// The report on a document that fits once it is changed.
fn fits(settings: &Fit, text: &str) -> Report {
    let fitted: Fitted = fit(text.as_bytes(), settings).unwrap();
    Ok(fitted.report().clone())
}

/// The report on one that does not.
fn does_not(settings: &Fit, text: &str, reason: UnfitReason) -> Report {
    let unfit = fit(text.as_bytes(), settings).unwrap_err();
    assert_eq!((unfit.reason(), unfit.actual_is_exact()), (reason, true));
    assert_eq!(unfit.actual(), text.len() as u64);
    Err(unfit)
}

#[test]
fn an_array_is_cut_and_its_event_keeps_its_fields_in_order() {
    let report = [fits(&rows(), PAGE)];
    assert_eq!(report[0].as_ref().unwrap().kept(), Some(4));
    for end in ["\n", "\r", "\r\n"] {
        let stream = format!(
            ": hi\n\nid: 1\nevent: page\ndata: {PAGE}\nretry: 5\nid:2\n\ndata: {{}}\n\n: bye\n"
        );
        // What is not changed keeps its line ends.
        let (start, rest) = (": hi\n\n", "data: {}\n\n: bye\n");
        let [start, rest, stream] = [start, rest, &stream].map(|text| text.replace('\n', end));
        let expected = format!("{start}id: 1\nevent: page\ndata:{CUT}\nretry: 5\nid:2\n\n{rest}");
        check(&rows(), stream, expected, &report);
    }
}

#[test]
fn line_ends_may_be_mixed_and_a_mark_comes_first() {
    let stream = format!("\u{feff}id: 1\rdata: {PAGE}\r\nevent:x\n\r\ndata: 7\n\n");
    let expected = format!("\u{feff}id: 1\ndata:{CUT}\nevent:x\n\ndata: 7\n\n");
    check(&rows(), stream, expected, &[fits(&rows(), PAGE)]);

    // The mark is no part of the event, and a second one is.
    let stream = format!("\u{feff}data:{PAGE}\n\n");
    check(
        &rows(),
        stream,
        format!("\u{feff}data:{CUT}\n\n"),
        &[fits(&rows(), PAGE)],
    );
    let stream = format!("\u{feff}\u{feff}data:{PAGE}\n\n");
    check(&rows(), &stream, &stream, &[]);
    // The start of a mark is the start of a field.
    let stream = [b"\xEF\xBBdata:1\n\n\xEF".as_slice(), b"\n\n"].concat();
    check(&rows(), &stream, &stream, &[]);
}

#[test]
fn the_lines_of_the_data_are_joined_by_line_feeds() {
    let page = PAGE.replace(", ", ",\n");
    for (name, end) in [("data: ", "\n"), ("data:", "\r\n"), ("data: ", "\r")] {
        let lines: String = page
            .split('\n')
            .map(|line| format!("{name}{line}{end}"))
            .collect();
        let stream = format!("{lines}id: 1{end}{end}");
        let expected = format!("data:{CUT}\nid: 1\n\n");
        check(&rows(), stream, expected, &[fits(&rows(), &page)]);
    }
    // Fields in between stay in order, after the line of data.
    let (start, end) = page.split_once('\n').unwrap();
    let end = end.replace('\n', "\ndata:");
    let stream = format!("id\ndata:{start}\nevent: a\ndata: {end}\nretry:1\n\n");
    let expected = format!("id\ndata:{CUT}\nevent: a\nretry:1\n\n");
    check(&rows(), stream, expected, &[fits(&rows(), &page)]);
}

#[test]
fn a_name_alone_is_a_line_of_nothing_and_one_space_does_not_count() {
    // An LF, five spaces, ten digits.
    let exact = "data\ndata:      1234567890\n\n";
    check(&Fit::compact(16), exact, exact, &[]);
    let fit = Fit::compact(15);
    let report = fits(&fit, "\n     1234567890");
    check(&fit, exact, "data:1234567890\n\n", &[report]);
    // Other names are no data.
    let stream = "data1:aaaaaaaaaaaaaaaaaaaaaa\nDATA:aaaaaaaaaaaaaaaaaaaaaaa\n dat:a\ndat\nd\n\n";
    check(&fit, stream, stream, &[]);
    // They are kept beside data, byte for byte.
    let stream = "dat\ndata: [ 1,  2,  3,  4 ]\ndata1: x\ndat:\n\n";
    let report = fits(&fit, "[ 1,  2,  3,  4 ]");
    check(
        &fit,
        stream,
        "dat\ndata:[1,2,3,4]\ndata1: x\ndat:\n\n",
        &[report],
    );
}

#[test]
fn an_event_of_exactly_the_limit_is_the_same_byte_for_byte() {
    let stream = format!("id: {PAGE}{PAGE}\n: a comment {PAGE}\ndata: {PAGE}\n\n");
    let fit = rows().limit(PAGE.len() as u64);
    check(&fit, &stream, &stream, &[]);
    let fit = fit.limit(PAGE.len() as u64 - 1);
    let fitted = tower_body_limit::json::fit(PAGE.as_bytes(), &fit).unwrap();
    let mut expected = format!("id: {PAGE}{PAGE}\ndata:").into_bytes();
    expected.extend_from_slice(fitted.bytes());
    expected.extend_from_slice(b"\n\n");
    check(&fit, &stream, expected, &[fits(&fit, PAGE)]);
}

#[test]
fn comments_outside_are_kept_and_inside_a_changed_event_dropped() {
    let stream = format!(
        ":a\r\n:b\r\n\r\nid: 1\r\n:c\r\ndata: {PAGE}\r\n:d\r\n\r\n:e\r\n\r\ndata: 1\r\n:f\r\n\r\n"
    );
    let expected = format!(":a\r\n:b\r\n\r\nid: 1\ndata:{CUT}\n\n:e\r\n\r\ndata: 1\r\n:f\r\n\r\n");
    check(&rows(), stream, expected, &[fits(&rows(), PAGE)]);
}

#[test]
fn an_answer_that_does_not_fit_becomes_an_error_with_its_id() {
    let fit = Fit::compact(60);
    let error = |id: &str, reason: &str, sentence: &str, actual: usize| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"{sentence}","data":{{"reason":"{reason}","limit_bytes":60,"actual_bytes":{actual}}}}}}}"#
        )
    };
    let blob = "x".repeat(70);
    for (id, message) in [
        (
            "7",
            format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{blob}"}}"#),
        ),
        (
            "7",
            format!(r#"{{"jsonrpc":"2.0","result":"{blob}","id":7}}"#),
        ),
        (
            "7",
            format!(r#"{{"result":"{blob}","id":7,"jsonrpc":"2.0"}}"#),
        ),
        (
            r#""a\"1""#,
            format!(r#"{{"jsonrpc":"2.0","id":"a\"1","error":{{"message":"{blob}"}}}}"#),
        ),
        (
            "null",
            format!(r#"{{"jsonrpc":"2.0","id":null,"error":["{blob}"]}}"#),
        ),
        (
            "7",
            format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"method":"{blob}"}}}}"#),
        ),
    ] {
        let text = error(
            id,
            "response_too_large",
            "The response is too large.",
            message.len(),
        );
        let stream = format!("id: 3\nevent: message\ndata: {message}\nretry: 9\n\ndata: 1\n\n");
        let expected = format!("id: 3\nevent: message\ndata:{text}\nretry: 9\n\ndata: 1\n\n");
        // What comes too late for a document by itself is still read of an event.
        let known = match message.strip_prefix(r#"{"result":"#) {
            Some(_) => format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{blob}"}}"#),
            None => message,
        };
        let report = does_not(&fit, &known, UnfitReason::TooLarge);
        check(&fit, stream, expected, &[report]);
    }
    // One that is malformed is known by what came before.
    let message = format!(r#"{{"jsonrpc":"2.0","id":7,"result":[1,2,3,{{}} "{blob}"]}}"#);
    let sentence = "The response is larger than its limit, and is not valid JSON.";
    let text = error("7", "response_malformed", sentence, message.len());
    let (layer, reports) = &layers(&fit)[0];
    let script = Script::new([data(format!("data:{message}\n\n"))], Hint::Undeclared);
    let drive = Drive::to_end(through(layer, script).into_body());
    assert_eq!(
        str::from_utf8(&drive.data()).unwrap(),
        format!("data:{text}\n\n")
    );
    let reason = reports.lock().unwrap()[0].as_ref().unwrap_err().reason();
    assert_eq!(reason, UnfitReason::Malformed);
}

#[test]
fn another_message_is_dropped_and_reported_and_leaves_its_id_behind() {
    let fit = Fit::compact(60);
    let blob = "x".repeat(70);
    for message in [
        format!(r#"{{"jsonrpc":"2.0","method":"notify","params":"{blob}"}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":7,"method":"ask","params":"{blob}"}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":7,"result":"{blob}","method":"both"}}"#),
        format!(r#"{{"jsonrpc":"2.0","result":"{blob}"}}"#),
        format!(r#"{{"id":7,"result":"{blob}"}}"#),
        format!(r#"[{{"jsonrpc":"2.0","id":7,"result":"{blob}"}}]"#),
        format!(r#""{blob}""#),
    ] {
        let report = does_not(&fit, &message, UnfitReason::TooLarge);
        let stream =
            format!("data: 1\n\nid: 3\nevent: e\ndata: {message}\nretry: 9\n\ndata: 2\n\n");
        let expected = "data: 1\n\nid: 3\nretry: 9\n\ndata: 2\n\n";
        check(&fit, stream, expected, slice::from_ref(&report));
        // With nothing to be known of it, nothing is left.
        let stream = format!("data: 1\r\n\r\nevent: e\r\ndata: {message}\r\n\r\ndata: 2\r\n\r\n");
        check(&fit, stream, "data: 1\r\n\r\ndata: 2\r\n\r\n", &[report]);
    }
}

#[test]
fn what_is_not_json_passes_within_the_limit_only() {
    let fit = Fit::compact(20);
    let small = "event: ping\ndata: {not json\n\nid: 1\n\ndata\n\n";
    check(&fit, small, small, &[]);
    for text in ["a text that is no JSON at all", "[1, 2, 3, 4, 5, 6, 7, 8,"] {
        let stream = format!("id: 5\nretry: x\ndata: {text}\n\n{small}");
        let expected = format!("id: 5\n\n{small}");
        let mut unfit = None;
        for (layer, reports) in layers(&fit) {
            for steps in cuts(stream.as_bytes()) {
                let script = Script::new(steps, Hint::Undeclared);
                let drive = Drive::to_end(through(&layer, script).into_body());
                assert_eq!(str::from_utf8(&drive.data()).unwrap(), expected);
                let report = reports.lock().unwrap().pop().unwrap().unwrap_err();
                assert!(reports.lock().unwrap().is_empty());
                assert_eq!(report.reason(), UnfitReason::Malformed);
                assert_eq!(
                    (report.actual(), report.actual_is_exact()),
                    (text.len() as u64, true)
                );
                assert_eq!(unfit.get_or_insert(report.clone()), &report);
            }
        }
    }
    // A line end inside a string is none of JSON.
    let stream = "data: \"aaaaaaaaaaa\ndata: aaaaaaaaaaaaaaaaaaaaa\"\n\ndata: 1\n\n";
    let (layer, reports) = &layers(&fit.limit(33))[0];
    let script = Script::new([data(stream)], Hint::Undeclared);
    let drive = Drive::to_end(through(layer, script).into_body());
    assert_eq!(drive.data(), b"data: 1\n\n");
    assert_eq!(reports.lock().unwrap().len(), 1);
}

#[test]
fn an_event_without_an_end_stays_without_one() {
    let cut = format!("data:{CUT}\nid: 1\n");
    check(
        &rows(),
        format!("data: {PAGE}\nid: 1\n"),
        cut,
        &[fits(&rows(), PAGE)],
    );
    check(
        &rows(),
        format!("data: {PAGE}"),
        format!("data:{CUT}\n"),
        &[fits(&rows(), PAGE)],
    );
    let part = "data: 1\n\nid: 1\ndata: [1,";
    check(&rows(), part, part, &[]);
    check(
        &rows(),
        format!("data: {PAGE}\n\n{part}"),
        format!("data:{CUT}\n\n{part}"),
        &[fits(&rows(), PAGE)],
    );
    // Nothing is left of one that is dropped: a client would not take its id, either.
    let fit = Fit::compact(10);
    let report = does_not(&fit, "[1,2,3,4,5,6]", UnfitReason::TooLarge);
    check(
        &fit,
        "data: 1\n\nid: 1\ndata: [1,2,3,4,5,6]\n",
        "data: 1\n\n",
        &[report],
    );
}

#[test]
fn each_event_is_there_before_the_next_one() {
    for (layer, _) in layers(&rows()) {
        for (event, expected) in [
            ("data: 1\n\n".into(), "data: 1\n\n".into()),
            (format!("data: {PAGE}\n\n"), format!("data:{CUT}\n\n")),
            (": a comment\n".into(), ": a comment\n".into()),
            ("id: 4\rdata:1\r\r".into(), "id: 4\rdata:1\r\r".to_owned()),
        ] {
            // In one frame with the start of another, and by itself.
            for next in ["", "data: 2", "id: 1\n", "data: 2\n:"] {
                let script = Script::new(
                    [data(format!("{event}{next}")), Step::Stall],
                    Hint::Undeclared,
                );
                let log = script.log();
                let response = through(&layer, script);
                assert_eq!(log.polls(), 0);
                let drive = Drive::to_end(response.into_body());
                assert_eq!(str::from_utf8(&drive.data()).unwrap(), expected);
            }
        }
    }
}

#[test]
fn a_frame_of_events_that_fit_passes_as_it_is() {
    let stream = Bytes::from("id: 1\ndata: {}\n\n: c\ndata: 2\n\n".repeat(1000));
    let (layer, _) = &layers(&rows())[0];
    let script = Script::new([Step::Data(stream.clone())], Hint::Undeclared);
    let drive = Drive::to_end(through(layer, script).into_body());
    assert_eq!(drive.outline(), format!("{} end", stream.len()));
    assert_eq!(drive.frames[0].as_ptr(), stream.as_ptr());
}

#[test]
fn trailers_are_kept() {
    let cut = format!("data:{CUT}\n\n");
    for (stream, expected) in [
        ("data: 1\n\n".into(), "data: 1\n\n"),
        ("data: 1".into(), "data: 1"),
        (format!("data: {PAGE}\n\n"), &*cut),
        (format!("data: {PAGE}\n"), &cut[..cut.len() - 1]),
    ] {
        for (layer, _) in layers(&rows()) {
            let script = Script::new([data(&stream), Step::Trailers], Hint::Undeclared);
            let drive = Drive::to_end(through(&layer, script).into_body());
            assert_eq!(drive.data(), expected.as_bytes());
            assert!(
                drive.outline().ends_with(" trailers end"),
                "{}",
                drive.outline()
            );
            // The digest of the whole is gone, as it is from the head.
            let script = Script::new([data(&stream), Step::Trailers], Hint::Undeclared);
            let body = through(&layer, script).into_body();
            let collected = body.collect().now_or_never().unwrap().unwrap();
            assert_eq!(collected.trailers().unwrap().len(), 1);
        }
    }
}

#[test]
fn an_inner_error_passes_after_what_was_held() {
    let cut = format!("data:{CUT}\n\n");
    let page = format!("data: {PAGE}\n\n");
    for (stream, expected, count) in [
        (
            "data: 1\n\nid: 1\ndata: [1,",
            "data: 1\n\nid: 1\ndata: [1,",
            0,
        ),
        (&*page, &*cut, 1),
        // Of one that was being changed nothing is left that could be taken for a part of it.
        (&page[..page.len() - 2], "", 0),
    ] {
        for (side, (layer, reports)) in layers(&rows()).into_iter().enumerate() {
            let script = Script::new([data(stream), Step::Fail], Hint::Undeclared);
            let drive = Drive::to_end(through(&layer, script).into_body());
            assert_eq!(str::from_utf8(&drive.data()).unwrap(), expected);
            assert!(matches!(drive.error, Some(Error::Body(_))));
            // A server gets two turns to send what came before.
            let end = ["pending pending failure end", "failure end"][side];
            assert!(drive.outline().ends_with(end), "{}", drive.outline());
            assert_eq!(drive.outline().contains("pending"), side == 0);
            assert_eq!(reports.lock().unwrap().len(), count);
        }
    }
    // One that is known not to fit is reported nonetheless.
    for (layer, reports) in layers(&Fit::compact(10)) {
        let script = Script::new([data("data: [1,2,3,4,5,6,]"), Step::Fail], Hint::Undeclared);
        Drive::to_end(through(&layer, script).into_body());
        assert!(reports.lock().unwrap()[0].is_err());
    }
}

#[test]
fn the_head_loses_what_was_said_of_the_whole_and_the_hint_is_honest() {
    for hint in VARIANTS {
        for (layer, _) in layers(&rows()) {
            let script = Script::new([data(format!("data: {PAGE}\n\n"))], hint.clone());
            let mut response = Response::new(script);
            *response.headers_mut() = head();
            for (name, value) in [
                ("content-length", "141"),
                ("etag", "\"a\""),
                ("accept-ranges", "bytes"),
                ("content-digest", "sha-256=:x:"),
                ("cache-control", "no-store"),
            ] {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            let response = answer(&layer, Request::new(()), response);
            let names: Vec<_> = response
                .headers()
                .keys()
                .map(|name| name.as_str())
                .collect();
            assert_eq!(names, ["content-type", "cache-control"]);
            let mut drive = Drive::new(response.into_body());
            let hint = drive.body.size_hint();
            assert_eq!((hint.lower(), hint.upper()), (0, None));
            assert!(!drive.body.is_end_stream());
            drive.run();
            assert_eq!(drive.data(), format!("data:{CUT}\n\n").into_bytes());
        }
    }
    // One that is declared within the limit is not looked at.
    let script = Script::new([data("data: 1\n\n")], Hint::Fixed(SizeHint::with_exact(9)));
    let response = through(&layers(&rows())[0].0, script);
    assert_eq!(response.body().size_hint().exact(), Some(9));
}

#[test]
fn what_is_not_a_whole_plain_stream_is_left_alone() {
    let with = |name: header::HeaderName, value: &str| {
        let mut headers = head();
        headers.insert(name, value.parse().unwrap());
        headers
    };
    for (method, status, headers) in [
        (
            Method::GET,
            StatusCode::OK,
            with(header::CONTENT_ENCODING, "gzip"),
        ),
        (Method::GET, StatusCode::PARTIAL_CONTENT, head()),
        (
            Method::HEAD,
            StatusCode::OK,
            with(header::CONTENT_LENGTH, "141"),
        ),
        (
            Method::GET,
            StatusCode::OK,
            with(header::CONTENT_TYPE, "text/plain"),
        ),
    ] {
        for (layer, _) in layers(&rows()) {
            let stream = format!("data: {PAGE}\n\n");
            let mut response = Response::new(Script::new([data(&stream)], Hint::Undeclared));
            *response.status_mut() = status;
            *response.headers_mut() = headers.clone();
            let mut request = Request::new(());
            *request.method_mut() = method.clone();
            let response = answer(&layer, request, response);
            assert_eq!(response.headers(), &headers);
            let drive = Drive::to_end(response.into_body());
            assert_eq!(drive.data(), stream.as_bytes());
        }
    }
}

#[test]
fn a_response_sets_the_limit_and_the_offset_of_its_events() {
    let (layer, _) = &layers(&rows().limit(10))[0];
    let layer = layer.clone().override_ceiling(1000);
    let mut response = Response::new(Script::new(
        [data(format!("data: {PAGE}\n\n").repeat(2))],
        Hint::Undeclared,
    ));
    *response.headers_mut() = head();
    response
        .extensions_mut()
        .insert(FitLimit::new(CUT.len() as u64));
    response.extensions_mut().insert(BaseOffset::new(5));
    let response = answer(&layer, Request::new(()), response);
    let drive = Drive::to_end(response.into_body());
    let cut = CUT.replace("\"next_offset\":4", "\"next_offset\":9");
    assert_eq!(
        str::from_utf8(&drive.data()).unwrap(),
        format!("data:{cut}\n\n").repeat(2)
    );
}

/// What comes out of a stream that repeats `refrain` for ever after `start`, and how often that was
/// polled, in `polls` polls. No poll may take more than its turn.
fn endless(layer: &JsonFitLayer, start: &str, refrain: &str, polls: usize) -> (String, Log) {
    let mut response = Response::new(Refrain {
        start: Script::new([data(start)], Hint::Undeclared),
        refrain: Script::endless(data(refrain)),
        started: false,
    });
    *response.headers_mut() = head();
    let log = response.body().refrain.log();
    let mut drive = Drive::new(answer(layer, Request::new(()), response).into_body());
    for _ in 0..polls {
        let before = log.polls();
        drive.step();
        let taken = log.polls() - before;
        assert!(taken <= 64, "{taken} in one poll");
    }
    (String::from_utf8(drive.data()).unwrap(), log)
}

struct Refrain {
    start: Script,
    refrain: Script,
    started: bool,
}

impl Body for Refrain {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let script = if std::mem::replace(&mut self.started, true) {
            &mut self.refrain
        } else {
            &mut self.start
        };
        Pin::new(script).poll_frame(cx)
    }
}

#[test]
fn an_event_that_does_not_end_is_reported_and_the_stream_goes_on() {
    let fit = Fit::compact(100).max_scan(2000);
    for (layer, reports) in layers(&fit) {
        let start = "data: 1\n\nid: 4\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"";
        let (text, _) = endless(&layer, start, "xxxxxxxxxx", 20);
        let error = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"The response is too large.","data":{"reason":"response_too_large","limit_bytes":100,"actual_bytes":2001}}}"#;
        assert_eq!(text, format!("data: 1\n\nid: 4\ndata:{error}\n\n"));
        let reports = reports.lock().unwrap();
        let [Err(unfit)] = &reports[..] else {
            panic!("{reports:?}");
        };
        assert_eq!((unfit.actual(), unfit.actual_is_exact()), (2001, false));
    }
    // If it does end, it is not answered twice.
    let message = format!(
        r#"{{"jsonrpc":"2.0","id":7,"result":"{}"}}"#,
        "x".repeat(3000)
    );
    for (layer, reports) in layers(&fit) {
        let stream = format!("id: 3\ndata: {message}\nretry: 9\n\ndata: 2\n\n");
        for steps in [
            vec![data(&stream)],
            stream.bytes().map(|byte| data([byte])).collect(),
        ] {
            let script = Script::new(steps, Hint::Undeclared);
            let text = Drive::to_end(through(&layer, script).into_body()).data();
            let text = str::from_utf8(&text).unwrap();
            assert!(
                text.starts_with("id: 3\ndata:{\"jsonrpc\":\"2.0\",\"id\":7,\"error\""),
                "{text}"
            );
            assert!(
                text.ends_with("\"actual_bytes\":2001}}}\n\nretry: 9\n\ndata: 2\n\n"),
                "{text}"
            );
            assert_eq!(reports.lock().unwrap().drain(..).count(), 1);
        }
    }
}

#[test]
fn other_fields_and_comments_have_their_own_bound() {
    let fit = Fit::compact(10);
    let long = "e".repeat(70_000);
    let short = "e\n".repeat(35_000);
    for (event, expected) in [
        (format!("data: 1\nevent: {long}\nid: 3\n"), "id: 3\n\n"),
        (
            format!("id: 1\nevent: {long}\nda\nid: 3\ndata: 1\nretry: 4\n"),
            "id: 3\nretry: 4\n\n",
        ),
        (format!("id: 1\n{short}data: 1\ndata\nid: 3\n"), "id: 3\n\n"),
        // An id of more than that is lost.
        (format!("data: 1\nretry: 4\nid: {long}\n"), "retry: 4\n\n"),
        // Comments count neither with the data nor with the other fields.
        (format!("id: 1\n:{long}\ndata: 1\n"), "id: 1\ndata: 1\n\n"),
        (
            format!("id: 1\n:{long}\ndata: [1, 2, 3, 4]\n"),
            "id: 1\ndata:[1,2,3,4]\n\n",
        ),
        (
            format!(":{long}\ndata: 1\n"),
            &format!(":{long}\ndata: 1\n\n"),
        ),
    ] {
        for len in [1, 100, 1_000_000] {
            let stream = format!("{event}\ndata: 2\n\n");
            let steps: Vec<_> = stream.as_bytes().chunks(len).map(data).collect();
            let (layer, reports) = &layers(&fit)[0];
            let mut body = through(layer, Script::new(steps, Hint::Undeclared)).into_body();
            let mut out = Vec::new();
            let mut cx = Context::from_waker(Waker::noop());
            loop {
                match Pin::new(&mut body).poll_frame(&mut cx) {
                    Poll::Pending => {}
                    Poll::Ready(None) => break,
                    Poll::Ready(Some(frame)) => out.extend(frame.unwrap().into_data().unwrap()),
                }
            }
            assert!(
                out == format!("{expected}data: 2\n\n").as_bytes(),
                "{:?}",
                String::from_utf8_lossy(&out).get(..100)
            );
            let reports = reports.lock().unwrap();
            let is_dropped = reports.iter().any(Result::is_err);
            let unfit = reports.iter().filter_map(|report| report.as_ref().err());
            // The other lines are what was read.
            assert!(unfit.map(Unfit::actual).all(|actual| actual > 64 * KIB));
            assert_eq!(is_dropped, !expected.contains("data"));
            assert!(reports.len() <= 1);
        }
    }
}

#[test]
fn long_work_gives_way() {
    const TURN: usize = 256 * 1024;
    let page = format!("data: [{}0]\n\n", "0,".repeat(1_000_000));
    let fit = Fit::array_at(100, "").markers_in_headers();
    let (layer, _) = &layers(&fit)[0];
    let script = Script::new([Step::Data(page.into())], Hint::Undeclared);
    let drive = Drive::to_end(through(layer, script).into_body());
    // The first turn's bytes are read twice.
    assert_eq!(
        drive.outline().matches("pending").count(),
        (2_000_010 + TURN) / TURN
    );
    assert_eq!(drive.data().len(), "data:".len() + 99 + 2);
}

/// The most that is allocated while a stream of so many frames, made when they are asked for, goes
/// through, and how much comes out.
fn peak(fit: &Fit, start: &'static str, frame: &str, frames: usize) -> (u64, u64) {
    let mut len = 0;
    let info = allocation_counter::measure(|| {
        let frames = (0..frames).map(|index| {
            let frame = if index == 0 { start } else { frame };
            Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(frame.as_bytes())))
        });
        let mut response = Response::new(StreamBody::new(stream::iter(frames)));
        *response.headers_mut() = head();
        let layer = JsonFitLayer::server(fit.clone());
        let mut body = pin!(answer(&layer, Request::new(()), response).into_body());
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match body.as_mut().poll_frame(&mut cx) {
                Poll::Pending => {}
                Poll::Ready(None) => break,
                Poll::Ready(Some(frame)) => len += frame.unwrap().into_data().unwrap().len() as u64,
            }
        }
    });
    (info.bytes_max, len)
}

#[test]
fn memory_does_not_grow_with_an_event() {
    // Blocks that are not full, the other lines of an event, the service itself.
    const CHANGE: u64 = (64 + 64 + 5 * 16) * KIB;
    let limit = 64 * KIB;
    let fit = Fit::array_at(limit, "").max_scan(512 * KIB);
    for size in [100, 16 * 1024] {
        for (start, piece, times, passes) in [
            // Data in one line, that could be cut and that could not, and in many lines.
            ("data: [", "12345,", 1, false),
            ("data: \"", "abcdef", 1, false),
            ("data: [\n", "data: 1234567890,\n", 1, false),
            ("data: x", "abcdef", 1, false),
            // Each line counts for one byte, and all of them are held as they came.
            ("data\n", "data: \r\n", 8, false),
            // Other fields, comments in an event, and what is none.
            ("data: 1\nid: ", "abcdef", 1, false),
            ("data: 1\n", "a: b\n", 1, false),
            ("data: 1\n:", "abcdef", 1, false),
            ("data: 1\n", ": b\n", 1, false),
            (":", "abcdef", 1, true),
        ] {
            let frame = piece.repeat(size / piece.len());
            let frames = 2 * 1024 * 1024 / frame.len();
            let (peak, len) = peak(&fit, start, &frame, frames);
            assert!(
                peak <= times * limit + size as u64 + CHANGE,
                "{start:?}, {piece:?}, {size}: {peak}"
            );
            let total = (start.len() + (frames - 1) * frame.len()) as u64;
            assert!(
                if passes { len == total } else { len <= limit },
                "{start:?}: {len}"
            );
        }
    }
}

/// The lines of a stream with their ends, one by one, after its mark.
fn lines(mut stream: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    while !stream.is_empty() {
        let end = stream.find(['\r', '\n']).map_or(stream.len(), |end| {
            end + 1 + usize::from(stream[end..].starts_with("\r\n"))
        });
        let (line, rest) = stream.split_at(end);
        lines.push(line);
        stream = rest;
    }
    lines
}

/// What is to come out of a stream, and what is to be reported: whether it fits, and the size.
fn model(settings: &Fit, limit: usize, stream: &str) -> (String, Vec<(bool, u64)>) {
    let after_mark = stream.strip_prefix('\u{feff}').unwrap_or(stream);
    let mut out = stream[..stream.len() - after_mark.len()].to_owned();
    let (mut reports, mut event) = (Vec::new(), Vec::new());
    for line in lines(after_mark) {
        let is_blank = line.starts_with(['\r', '\n']);
        if event.is_empty() && (is_blank || line.starts_with(':')) {
            out.push_str(line);
            continue;
        }
        event.push(line);
        if is_blank {
            out.push_str(&model_event(settings, limit, &event, &mut reports));
            event.clear();
        }
    }
    out.push_str(&model_event(settings, limit, &event, &mut reports));
    (out, reports)
}

fn model_event(
    settings: &Fit,
    limit: usize,
    event: &[&str],
    reports: &mut Vec<(bool, u64)>,
) -> String {
    let (mut data, mut before, mut after) = (None, String::new(), String::new());
    let (mut id, mut retry, mut has_end) = ("", "", false);
    for &line in event {
        let text = line.trim_end_matches(['\r', '\n']);
        let ends = text.len() < line.len();
        has_end = ends && text.is_empty();
        let value = (text == "data" && ends).then_some("");
        if let Some(value) = value.or(text.strip_prefix("data:")) {
            let value = value.strip_prefix(' ').unwrap_or(value);
            data = Some(match data {
                Some(data) => format!("{data}\n{value}"),
                None => value.to_owned(),
            });
        } else if ends && !has_end && !text.starts_with(':') {
            let fields = if data.is_none() {
                &mut before
            } else {
                &mut after
            };
            *fields += &format!("{text}\n");
            match text.split_once(':').unwrap_or((text, "")) {
                ("id", _) => id = text,
                ("retry", value) if is_number(value) => retry = text,
                _ => {}
            }
        }
    }
    let data = data.unwrap_or_default();
    if data.len() <= limit {
        return event.concat();
    }
    let fitted = fit(data.as_bytes(), settings);
    reports.push((fitted.is_ok(), data.len() as u64));
    let end = if has_end { "\n" } else { "" };
    match fitted {
        Ok(fitted) => {
            let data = str::from_utf8(fitted.bytes()).unwrap();
            format!("{before}data:{data}\n{after}{end}")
        }
        Err(_) if has_end && !(id.is_empty() && retry.is_empty()) => {
            let lines = [id, retry].into_iter().filter(|line| !line.is_empty());
            lines.map(|line| format!("{line}\n")).collect::<String>() + "\n"
        }
        Err(_) => String::new(),
    }
}

fn is_number(value: &str) -> bool {
    let value = value.strip_prefix(' ').unwrap_or(value);
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn any_stream_is_as_the_slow_model_has_it(
        has_mark: bool,
        pieces in prop::collection::vec(
            prop::sample::select(&[
                "data:", "data: ", "\ndata:", "\ndata: [1, 2, 3,", "data", "dat", " ", "1", "[ 1,", "[",
                "]", "3 ]", "\"a\"", ",", "4,", "5 , 6 ]", "\n", "\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n",
                ":", "\n:c", "\nid: 7", "\nid", "\nretry: 9", "\nevent: e", "\u{feff}", "\u{e9}",
            ][..]),
            0..40,
        ),
        limit in 0_usize..16,
        cuts in prop::collection::vec(1_usize..9, 1..5),
    ) {
        let mark = if has_mark { "\u{feff}" } else { "" };
        let stream = mark.to_owned() + &pieces.concat();
        let settings = Fit::array_at(limit as u64, "").markers_in_headers();
        let (expected, reported) = model(&settings, limit, &stream);
        let (mut parts, mut rest) = (Vec::new(), stream.as_bytes());
        for &cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (part, more) = rest.split_at(cut.min(rest.len()));
            parts.push(data(part));
            rest = more;
        }
        for steps in [vec![data(&stream)], parts, stream.bytes().map(|byte| data([byte])).collect()] {
            let (layer, reports) = &layers(&settings)[0];
            let script = Script::new(steps, Hint::Undeclared);
            let drive = Drive::to_end(through(layer, script).into_body());
            let out = drive.data();
            prop_assert_eq!(str::from_utf8(&out).unwrap(), &expected, "of {:?}", stream);
            let reports = reports.lock().unwrap();
            let reports: Vec<_> = reports.iter().map(|report| match report {
                Ok(report) => (true, report.original()),
                Err(unfit) => (false, unfit.actual()),
            }).collect();
            prop_assert_eq!(&reports, &reported, "of {:?}", stream);
        }
    }
}

#[tokio::test]
async fn a_client_of_a_server_gets_each_event_before_the_next_is_made() {
    let (send, texts) = mpsc::unbounded_channel::<String>();
    let texts = Mutex::new(Some(texts));
    let handler = move || {
        let mut texts = texts.lock().unwrap().take().unwrap();
        let texts = stream::poll_fn(move |cx| texts.poll_recv(cx));
        let texts = texts.map(|text| Ok::<_, Infallible>(Event::default().id("7").data(text)));
        async move { Sse::new(texts) }
    };
    let [(layer, reports), _] = layers(&rows());
    let handler = Arc::new(handler);
    let app = Router::new()
        .route("/", get(move || handler()))
        .layer(layer);
    let server = support::net::Server::start(app).await;
    support::net::guarded(async {
        let response = reqwest::get(format!("http://{}", server.addr))
            .await
            .unwrap();
        assert_eq!(
            response.headers()[header::CONTENT_TYPE],
            "text/event-stream"
        );
        let mut events = response.bytes_stream().eventsource();
        let blob = format!(
            r#"{{"jsonrpc":"2.0","id":9,"result":"{}"}}"#,
            "x".repeat(100_000)
        );
        let pretty = PAGE.replace(", ", ",\n  ");
        for (text, expected) in [
            ("{\"first\": 1}", "{\"first\": 1}"),
            (PAGE, CUT),
            (&pretty, CUT),
            ("not json", "not json"),
        ] {
            send.send(text.into()).unwrap();
            let event = events.next().await.unwrap().unwrap();
            assert_eq!((&*event.data, &*event.id), (expected, "7"));
        }
        send.send("x".repeat(100_000)).unwrap();
        send.send(blob).unwrap();
        let event = events.next().await.unwrap().unwrap();
        assert!(
            event
                .data
                .starts_with(r#"{"jsonrpc":"2.0","id":9,"error":"#),
            "{}",
            event.data
        );
        send.send("last".into()).unwrap();
        assert_eq!(events.next().await.unwrap().unwrap().data, "last");
        drop(send);
        assert!(events.next().await.is_none());
    })
    .await;
    let reports = reports.lock().unwrap();
    let kinds: Vec<_> = reports.iter().map(Result::is_ok).collect();
    assert_eq!(kinds, [true, true, false, false]);
}

// As the body inside: reqwest needs Sync.
static_assertions::assert_impl_all!(tower_body_limit::ResponseBody<Script>: Send, Sync, Unpin);
