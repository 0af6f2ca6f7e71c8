//! The JSON layer over event streams, event by event.
#![cfg(all(feature = "json", feature = "records"))]

mod support;

use std::{
    convert::Infallible,
    pin::Pin,
    str,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use axum::{
    Router,
    response::sse::{self, Sse},
    routing::get,
};
use bytes::Bytes;
use eventsource_stream::Eventsource;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::{Body, SizeHint};
use http_body_util::BodyExt;
use support::{Hint, Log, Script, Step, VARIANTS};
use tokio::{net::TcpListener, sync::mpsc};
use tower::{Layer, ServiceExt, service_fn};
use tower_body_limit::{
    Error, ResponseBody,
    json::{Fit, FitReport, JsonFitLayer, Unfit, UnfitReason},
};

const STREAM: &str = "text/event-stream";
const ROWS: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"rows":[11111, 22222, 33333, 44444, 55555, 66666, 77777, 88888, 99999]}}"#;
const CUT: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"rows":[11111,22222],"truncated":true,"next_offset":2,"cap_reason":"size_limit"}}"#;
const LIMIT: u64 = 118;

fn rows() -> String {
    ROWS.replace("99999", "99999, 10101, 20202, 30303, 40404, 50505")
}

fn fit() -> Fit {
    Fit::array_at(LIMIT, "/result/rows")
}

fn blob(before: &str, after: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0",{before}"result":"{}"{after}}}"#,
        "x".repeat(200)
    )
}

/// The event in place of an answer that does not fit.
fn rpc_error(id: &str, reason: &str, actual: usize) -> String {
    let sentence = match reason {
        "response_malformed" => "The response is larger than its limit, and is not valid JSON.",
        _ => "The response is too large.",
    };
    format!(
        r#"data:{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"{sentence}","data":{{"reason":"{reason}","limit_bytes":{LIMIT},"actual_bytes":{actual}}}}}}}"#
    ) + "\n\n"
}

type Reports = Arc<Mutex<Vec<Result<FitReport, Unfit>>>>;

fn reported(layer: JsonFitLayer) -> (JsonFitLayer, Reports) {
    let reports = Reports::default();
    let seen = Arc::clone(&reports);
    let layer = layer.on_fit(move |result| {
        let result = result.cloned().map_err(Clone::clone);
        seen.lock().unwrap().push(result);
    });
    (layer, reports)
}

fn both(fit: &Fit) -> [JsonFitLayer; 2] {
    [
        JsonFitLayer::server(fit.clone()),
        JsonFitLayer::client(fit.clone()),
    ]
}

fn data(text: &str) -> Step {
    Step::Data(Bytes::copy_from_slice(text.as_bytes()))
}

fn stream(body: Script) -> Response<Script> {
    let response = Response::builder().header(header::CONTENT_TYPE, STREAM);
    response.body(body).unwrap()
}

/// The response of a layer, whose head never waits for the body.
fn answer(
    layer: &JsonFitLayer,
    request: Request<()>,
    response: Response<Script>,
) -> Response<ResponseBody<Script>> {
    let response = Mutex::new(Some(response));
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(response.lock().unwrap().take().unwrap())
    });
    let mut future = std::pin::pin!(layer.layer(inner).oneshot(request));
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(response) => response.unwrap(),
        Poll::Pending => panic!("the head waits"),
    }
}

fn body(layer: &JsonFitLayer, script: Script) -> ResponseBody<Script> {
    answer(layer, Request::new(()), stream(script)).into_body()
}

#[derive(Debug, Default)]
struct Got {
    text: String,
    trailers: Option<HeaderMap>,
    pending: usize,
    error: Option<Error>,
}

/// All that a body has, and that there is nothing after it.
fn drain(mut body: ResponseBody<Script>) -> Got {
    let mut cx = Context::from_waker(Waker::noop());
    let (mut got, mut bytes) = (Got::default(), Vec::new());
    loop {
        match Pin::new(&mut body).poll_frame(&mut cx) {
            Poll::Pending => got.pending += 1,
            Poll::Ready(Some(Ok(frame))) => {
                assert!(!body.is_end_stream() || body.size_hint().exact() == Some(0));
                match frame.into_data() {
                    Ok(data) => bytes.extend(data),
                    Err(frame) => got.trailers = frame.into_trailers().ok(),
                }
            }
            Poll::Ready(Some(Err(error))) => {
                got.error = Some(error);
                break;
            }
            Poll::Ready(None) => break,
        }
    }
    for _ in 0..2 {
        assert!(matches!(
            Pin::new(&mut body).poll_frame(&mut cx),
            Poll::Ready(None)
        ));
    }
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
    got.text = String::from_utf8(bytes).unwrap();
    got
}

fn text(layer: &JsonFitLayer, steps: Vec<Step>) -> String {
    let got = drain(body(layer, Script::new(steps, Hint::Undeclared)));
    assert!(got.error.is_none());
    got.text
}

/// What becomes of a stream with these settings, in both modes, and cut at each byte and at all.
fn becomes_with(fit: &Fit, input: &str, output: &str, reasons: &[Option<UnfitReason>]) {
    for layer in both(fit) {
        let (layer, reports) = reported(layer);
        let check = |chunks: Vec<&[u8]>| {
            let frame = |chunk: &&[u8]| Step::Data(Bytes::copy_from_slice(chunk));
            let steps = chunks.iter().map(frame).collect();
            let got = text(&layer, steps);
            assert_eq!(got, output, "{input:?} in {} chunks", chunks.len());
            let reports = std::mem::take(&mut *reports.lock().unwrap());
            let reported: Vec<_> = reports
                .iter()
                .map(|report| report.as_ref().err().map(Unfit::reason))
                .collect();
            assert_eq!(reported, reasons, "{input:?}");
            reports
        };
        let input = input.as_bytes();
        let whole = check(vec![input]);
        assert_eq!(check(input.chunks(1).collect()), whole);
        for at in 0..input.len() {
            let (start, end) = input.split_at(at);
            assert_eq!(check(vec![start, end]), whole);
        }
    }
}

fn becomes(input: &str, output: &str, reasons: &[Option<UnfitReason>]) {
    becomes_with(&fit(), input, output, reasons);
}

const TOO_LARGE: Option<UnfitReason> = Some(UnfitReason::TooLarge);
const MALFORMED: Option<UnfitReason> = Some(UnfitReason::Malformed);

#[test]
fn what_is_within_the_limit_is_the_same_byte_for_byte() {
    for end in ["\n", "\r", "\r\n"] {
        let input = "\u{feff}: hello\n\n\nid: 1\nevent: x\n: in it\ndata: { \"a\": 1 }\n\n\
                     data\n\ndata:\n\ndata: not\ndata: json\nretry: 5\nunknown\n\n: ping\nid: 2\n\n\
                     \u{feff}data: no data\n\ndata: unfinished"
            .replace('\n', end);
        becomes(&input, &input, &[]);
    }
    // As much as there may be, in one line and in two.
    let exact = format!("data: [ \"{}\" ]\n\n", "x".repeat(LIMIT as usize - 6));
    assert_eq!(exact.len() as u64, LIMIT + 8);
    becomes(&exact, &exact, &[]);
    let two = exact.replacen("[ ", "[\ndata: ", 1);
    becomes(&two, &two, &[]);
    let over = exact.replacen("[ ", "[  ", 1);
    let fitted = exact.replace("data: [ ", "data:[").replace("\" ]", "\"]");
    becomes(&over, &fitted, &[None]);
    // A name alone is a line of data with nothing in it.
    let name = exact.replace("]\n", "]\ndata\n");
    becomes(&name, &fitted, &[None]);
}

#[test]
fn an_array_is_cut_and_the_other_fields_stay_in_order() {
    assert_eq!(CUT.len() as u64, LIMIT - 3);
    let rows = rows();
    assert!(rows.len() as u64 > LIMIT);
    let output =
        format!("data:a\n\nid: 7\nevent: message\ndata:{CUT}\nretry: 5\nx:y\n\ndata:b\n\n");
    let lines = rows
        .replace(", 3", ",\ndata: 3")
        .replace(", 6", "\ndata:,6");
    for rows in [&rows, &lines] {
        let input = format!(
            "data:a\n\nid: 7\n: a comment\nevent: message\ndata: {rows}\nretry: 5\n: another\nx:y\n\ndata:b\n\n"
        );
        becomes(&input, &output, &[None]);
        // What is within the limit keeps its line ends.
        for end in ["\r", "\r\n"] {
            let output = output.replace("data:a\n\n", &format!("data:a{end}{end}"));
            let output = output.replace("data:b\n\n", &format!("data:b{end}{end}"));
            becomes(&input.replace('\n', end), &output, &[None]);
        }
    }
    let (start, after) = (
        format!("\u{feff}data:{rows}\n\n"),
        format!("\u{feff}data:{CUT}\n\n"),
    );
    becomes(&start, &after, &[None]);
}

#[test]
fn an_answer_that_does_not_fit_becomes_an_error_with_its_id() {
    for (before, after) in [
        (r#""id":"a-1","#, ""),
        ("", r#","id":"a-1""#),
        ("", r#", "id" : "a-1" , "more": {"method": 1}"#),
    ] {
        let blob = blob(before, after);
        let error = rpc_error("\"a-1\"", "response_too_large", blob.len());
        let input = format!("id: 7\ndata: {blob}\nretry: 5\n\ndata: next\n\n");
        let output = format!(
            "id: 7\n{}retry: 5\n\ndata: next\n\n",
            error.strip_suffix('\n').unwrap()
        );
        becomes(&input, &output, &[TOO_LARGE]);
    }
    let error = blob(r#""id":null,"#, "").replace("result", "error");
    let output = rpc_error("null", "response_too_large", error.len());
    becomes(&format!("data: {error}\n\n"), &output, &[TOO_LARGE]);
    // It answers a request up to where it goes wrong, and its caller waits.
    let broken = format!("{} {{}}", rows());
    let output = rpc_error("1", "response_malformed", broken.len());
    let reason = [Some(UnfitReason::TrailingData)];
    becomes(&format!("data: {broken}\n\n"), &output, &reason);
}

#[test]
fn what_answers_nothing_is_dropped_and_reported() {
    for message in [
        blob("", r#","method":"notify""#).replace("result", "params"),
        // A request of the server's own.
        blob(r#""id":7,"method":"ask","#, "").replace("result", "params"),
        blob(r#""id":7,"#, r#","method":"ask""#),
        blob("", ""),
        blob(r#""id":[7],"#, ""),
        format!("[{}]", blob(r#""id":7,"#, "")),
        // No JSON-RPC.
        blob(r#""id":7,"#, "").replace("jsonrpc", "version"),
    ] {
        let input = format!("data: {message}\n\ndata: next\n\n");
        becomes(&input, "data: next\n\n", &[TOO_LARGE]);
        let (layer, reports) = reported(JsonFitLayer::server(fit()));
        text(&layer, vec![data(&input)]);
        let unfit = reports.lock().unwrap()[0].clone().unwrap_err();
        let size = message.len() as u64;
        assert_eq!((unfit.limit(), unfit.actual()), (LIMIT, size));
        assert!(unfit.actual_is_exact());
    }
}

#[test]
fn what_is_not_json_is_dropped_and_leaves_its_id_behind() {
    let long = "not json ".repeat(20);
    becomes(
        &format!("id: 7\r\nevent: x\r\ndata: {long}\r\nretry: 5\r\n\r\n: ping\r\n"),
        "id: 7\nretry: 5\n\n: ping\r\n",
        &[MALFORMED],
    );
    becomes(
        &format!("data: {long}\r\rdata: b\r\r"),
        "data: b\r\r",
        &[MALFORMED],
    );
    // A string that goes over the end of a line is none.
    let lines = format!("data: [\"a\ndata: b\"{}]\n\n", " ".repeat(200));
    becomes(&lines, "", &[MALFORMED]);
}

#[test]
fn an_event_that_has_no_end_stays_without_one() {
    let rows = rows();
    becomes(&format!("data: {rows}"), &format!("data:{CUT}\n"), &[None]);
    becomes(
        &format!("data: {rows}\n"),
        &format!("data:{CUT}\n"),
        &[None],
    );
    becomes(
        &format!("id: 1\ndata: {}\n", "x".repeat(200)),
        "",
        &[MALFORMED],
    );
    // Nobody can tell whether this would have been an answer but by how it starts.
    let part = &rows[..120];
    let error = rpc_error("1", "response_malformed", part.len());
    let error = error.strip_suffix('\n').unwrap();
    becomes(
        &format!("id: 1\ndata: {part}"),
        &format!("id: 1\n{error}"),
        &[MALFORMED],
    );
}

#[test]
fn an_event_that_goes_on_for_ever_is_settled_at_the_scan_bound() {
    let fit = fit().max_scan(1000);
    let scan = [Some(UnfitReason::ScanLimit)];
    let long = "1234567, ".repeat(300);
    // The answer does not wait for the end.
    let start = format!(
        "id: 7\ndata: {}{long}",
        &ROWS[..ROWS.find("11111").unwrap()]
    );
    let error = format!("id: 7\n{}", rpc_error("1", "response_too_large", 1001));
    becomes_with(&fit, &start, &error, &scan);
    // Once it ends, what comes after the data is not lost.
    let input = format!("{start}\nid: 8\n\ndata: b\n\n");
    becomes_with(&fit, &input, &format!("{error}id: 8\n\ndata: b\n\n"), &scan);
    // What settled it first is what is said.
    let input = format!("id: 7\ndata: {}\n\ndata: b\n\n", "x".repeat(2000));
    becomes_with(&fit, &input, "id: 7\n\ndata: b\n\n", &[MALFORMED]);
    let input = format!("data: [\"{}\"]\n\n", "x".repeat(996));
    becomes_with(&fit, &input, "", &[TOO_LARGE]);

    for line in [&long, "\ndata: 1,\n", "\nother: x\n", "\n: comment\n"] {
        let (layer, reports) = reported(JsonFitLayer::server(fit.clone()));
        let script = Script::endless(Step::Data(Bytes::from(format!("data: [{line}").repeat(10))));
        let mut body = body(&layer, script);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..300 {
            let frame = Pin::new(&mut body).poll_frame(&mut cx);
            assert!(frame.is_pending(), "{frame:?}");
        }
        assert_eq!(reports.lock().unwrap().len(), 1);
    }
}

#[test]
fn lines_that_are_no_data_are_bounded_too() {
    const OTHERS: usize = 64 * 1024;
    let layer = JsonFitLayer::server(fit());
    // Too many comments are left out, and nothing else.
    let comment = format!(": {}\r\n", "c".repeat(100));
    let input = |count| {
        format!(
            "id: 7\r\ndata: not json\r\n{}data: b\r\n\r\n",
            comment.repeat(count)
        )
    };
    // The LF after a CR is not counted.
    let count = OTHERS / (comment.len() - 1);
    for size in [1, 1000, usize::MAX] {
        let steps = |text: &str| {
            let chunks = text.as_bytes().chunks(size);
            chunks
                .map(|chunk| Step::Data(Bytes::copy_from_slice(chunk)))
                .collect()
        };
        assert_eq!(text(&layer, steps(&input(count))), input(count));
        assert_eq!(text(&layer, steps(&input(count + 1))), input(0));
        // Of other fields so many make an event that does not fit.
        let (layer, reports) = reported(layer.clone());
        let field = "f: x\n".repeat(OTHERS / 5);
        let input = format!("id: 7\n{field}{field}data: b\n\ndata: c\n\n");
        assert_eq!(text(&layer, steps(&input)), "id: 7\n\ndata: c\n\n");
        let reports = reports.lock().unwrap();
        let [Err(unfit)] = &reports[..] else {
            panic!("{reports:?}")
        };
        assert_eq!((unfit.reason(), unfit.actual()), (UnfitReason::TooLarge, 0));
    }
    // A comment between events is not held at all.
    let mut body = body(
        &layer,
        Script::new([data(": com"), data("ment")], Hint::Undeclared),
    );
    for part in [": com", "ment"] {
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut cx) else {
            panic!()
        };
        assert_eq!(frame.into_data().unwrap(), part);
    }
}

#[test]
fn the_first_event_is_there_before_the_second_exists() {
    let rows = rows();
    for layer in both(&fit()) {
        for (first, out) in [
            ("data: a\n\n".to_owned(), "data: a\n\n".to_owned()),
            (format!("data: {rows}\n\n"), format!("data:{CUT}\n\n")),
        ] {
            for rest in ["", "da", "data: b", "data: b\n"] {
                let script = Script::new(
                    [data(&(first.clone() + rest)), Step::Stall],
                    Hint::Undeclared,
                );
                let mut body = body(&layer, script);
                let (mut cx, mut got) = (Context::from_waker(Waker::noop()), Vec::new());
                while let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(&mut cx) {
                    got.extend(frame.unwrap().unwrap().into_data().unwrap());
                }
                assert_eq!(str::from_utf8(&got).unwrap(), out);
                assert!(!body.is_end_stream());
                assert_eq!(
                    (body.size_hint().lower(), body.size_hint().upper()),
                    (0, None)
                );
            }
        }
    }
}

#[test]
fn frames_within_the_limit_are_not_copied() {
    let layer = JsonFitLayer::server(fit());
    let chunk = Bytes::from("data: a\n\ndata: b\n\n");
    let mut body = body(
        &layer,
        Script::new([Step::Data(chunk.clone())], Hint::Undeclared),
    );
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut cx) else {
        panic!()
    };
    assert_eq!(frame.into_data().unwrap().as_ptr(), chunk.as_ptr());
}

#[test]
fn trailers_are_kept_and_the_inner_body_goes_at_its_end() {
    for hint in VARIANTS {
        let rows = format!("data: {}\n\ndata: b", rows());
        let script = Script::new([data(&rows), Step::Pending, Step::Trailers], hint);
        let log: Log = script.log();
        let mut body = body(&JsonFitLayer::server(fit()), script);
        assert_eq!(body.size_hint().upper(), None);
        let mut cx = Context::from_waker(Waker::noop());
        let (mut text, mut trailers) = (Vec::new(), None);
        loop {
            match Pin::new(&mut body).poll_frame(&mut cx) {
                Poll::Pending => assert!(trailers.is_none()),
                Poll::Ready(None) => break,
                Poll::Ready(Some(frame)) => match frame.unwrap().into_data() {
                    Ok(data) => text.extend(data),
                    Err(frame) => trailers = frame.into_trailers().ok(),
                },
            }
        }
        assert!(log.dropped());
        assert_eq!(trailers.unwrap()["x-trailer"], "end");
        assert_eq!(
            str::from_utf8(&text).unwrap(),
            format!("data:{CUT}\n\ndata: b")
        );
    }
}

#[test]
fn an_inner_error_comes_after_what_was_held() {
    let blob = blob("", "");
    for (layer, pending) in both(&fit()).into_iter().zip([1, 0]) {
        for (held, out, count) in [
            ("data: held", "data: held", 0),
            (&rows()[..120], "", 0),
            // It would not have fitted.
            (&*blob, "", 1),
        ] {
            let (layer, reports) = reported(layer.clone());
            let held = if held.starts_with("data") {
                held.into()
            } else {
                format!("data: {held}")
            };
            let steps = [data(&format!("data: a\n\n{held}")), Step::Fail];
            let got = drain(body(&layer, Script::new(steps, Hint::Undeclared)));
            assert_eq!(got.text, format!("data: a\n\n{out}"));
            assert!(matches!(got.error, Some(Error::Body(_))));
            // A server has to send what was held before the connection breaks.
            assert!(got.pending >= pending, "{got:?}");
            assert_eq!(reports.lock().unwrap().len(), count);
        }
    }
}

#[test]
fn the_head_is_mended_unless_nothing_can_be_too_large() {
    let head = |hint| {
        let script = Script::new([data("data: a\n\n")], hint);
        let mut response = stream(script);
        for (name, value) in [
            ("content-length", "9"),
            ("etag", "\"a\""),
            ("content-digest", "sha-256=:x:"),
            ("cache-control", "no-store"),
        ] {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    };
    for layer in both(&fit()) {
        let response = answer(&layer, Request::new(()), head(Hint::Undeclared));
        let names: Vec<_> = response
            .headers()
            .keys()
            .map(|name| name.as_str())
            .collect();
        assert_eq!(names, ["content-type", "cache-control"]);

        let response = answer(&layer, Request::new(()), head(Hint::Declared));
        assert_eq!(response.headers().len(), 5);
        assert_eq!(response.body().size_hint().exact(), Some(9));
    }
}

#[test]
fn encoded_and_partial_streams_and_heads_are_left_alone() {
    let event = format!("data: {}\n\n", rows());
    type Change = fn(&mut Request<()>, &mut Response<Script>);
    let changes: [Change; 4] = [
        |_, response| {
            let gzip = "gzip".parse().unwrap();
            response
                .headers_mut()
                .insert(header::CONTENT_ENCODING, gzip);
        },
        |_, response| *response.status_mut() = StatusCode::PARTIAL_CONTENT,
        |request, _| *request.method_mut() = Method::HEAD,
        |_, response| {
            let plain = "text/plain".parse().unwrap();
            response.headers_mut().insert(header::CONTENT_TYPE, plain);
        },
    ];
    for change in changes {
        let mut response = stream(Script::new([data(&event)], Hint::Undeclared));
        let mut request = Request::new(());
        let etag = "\"a\"".parse().unwrap();
        response.headers_mut().insert(header::ETAG, etag);
        change(&mut request, &mut response);
        let response = answer(&JsonFitLayer::server(fit()), request, response);
        assert!(response.headers().contains_key(header::ETAG));
        assert_eq!(drain(response.into_body()).text, event);
    }
}

#[test]
fn long_work_and_empty_frames_give_way() {
    let input = format!("data: [{}0]\n\n", "0,".repeat(1_000_000));
    let layer = JsonFitLayer::server(Fit::array_at(100, "").markers_in_headers());
    let len = input.len();
    let got = drain(body(&layer, Script::new([data(&input)], Hint::Declared)));
    assert_eq!(got.text, format!("data:[{}0]\n\n", "0,".repeat(48)));
    assert!(got.pending >= len / (256 * 1024), "{}", got.pending);

    // Empty frames pass, and so do not wait for others.
    let script = Script::endless(data(": removed\n"));
    let log = script.log();
    let steps = [data(&format!("data: {}\n", "x".repeat(200)))];
    let mut over = body(&layer, Script::new(steps, Hint::Undeclared));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut over).poll_frame(&mut cx).is_ready());
    let mut passing = body(&layer, script);
    assert!(Pin::new(&mut passing).poll_frame(&mut cx).is_ready());
    assert_eq!(log.polls(), 1);
}

#[test]
fn a_response_may_set_its_own_limit() {
    use tower_body_limit::json::FitLimit;

    let mut response = stream(Script::new([data("data: [1, 2]\n\n")], Hint::Undeclared));
    response.extensions_mut().insert(FitLimit::new(5));
    let response = answer(&JsonFitLayer::server(fit()), Request::new(()), response);
    assert_eq!(drain(response.into_body()).text, "data:[1,2]\n\n");
}

#[test]
fn the_body_is_as_shareable_as_the_inner_one() {
    fn check<T: Send + Sync + Unpin>(_: &T) {}
    let body = body(
        &JsonFitLayer::server(fit()),
        Script::new([], Hint::Declared),
    );
    check(&body);
    let hint: SizeHint = body.size_hint();
    assert_eq!(hint.exact(), Some(0));
}

#[tokio::test]
async fn a_client_of_an_axum_stream_gets_each_event_before_the_next_is_made() {
    let (send, texts) = mpsc::unbounded_channel::<String>();
    let texts = Arc::new(Mutex::new(Some(texts)));
    let handler = get(move || {
        let mut texts = texts.lock().unwrap().take().unwrap();
        let texts = stream::poll_fn(move |cx| texts.poll_recv(cx));
        let events =
            texts.map(|text| Ok::<_, Infallible>(sse::Event::default().id("7").data(text)));
        async move { Sse::new(events) }
    });
    let (layer, reports) = reported(JsonFitLayer::server(fit()));
    let app = Router::new().route("/", handler).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });

    let response = reqwest::get(format!("http://{address}")).await.unwrap();
    let body = http::Response::from(response).into_body();
    let mut events = body.into_data_stream().eventsource();
    let (rows, answer) = (rows(), blob("", r#","id":5"#));
    let error = rpc_error("5", "response_too_large", answer.len());
    let error = error.strip_prefix("data:").unwrap().trim_end();
    for (text, expected) in [
        ("first", "first"),
        (&*rows, CUT),
        (&*answer, error),
        ("two\nlines", "two\nlines"),
    ] {
        send.send(text.into()).unwrap();
        let event = events.next().await.unwrap().unwrap();
        assert_eq!((&*event.data, &*event.id), (expected, "7"));
    }
    send.send("x".repeat(100_000)).unwrap();
    send.send("last".into()).unwrap();
    drop(send);
    assert_eq!(events.next().await.unwrap().unwrap().data, "last");
    assert!(events.next().await.is_none());
    assert_eq!(reports.lock().unwrap().len(), 3);
}

#[test]
fn memory_does_not_grow_with_an_event() {
    const FRAMES: usize = 1000;
    let layer = JsonFitLayer::server(Fit::array_at(10_000, "/rows"));
    // So small that what is held of it is copied, and counted.
    let frame = Bytes::from("12345,".repeat(1000));
    // Until the scan ends, and beyond.
    for (start, scan) in [
        ("data: {\"rows\":[", u64::MAX),
        ("data: [[", u64::MAX),
        ("data: {\"rows\":[", 100_000),
        ("data: no", u64::MAX),
        ("data: {}\nother: ", u64::MAX),
        ("data: {}\n: comment ", u64::MAX),
    ] {
        let layer = match scan {
            u64::MAX => layer.clone(),
            scan => JsonFitLayer::server(Fit::array_at(10_000, "/rows").max_scan(scan)),
        };
        let steps = (0..FRAMES).map(|_| Step::Data(frame.clone()));
        let steps: Vec<_> = std::iter::once(data(start)).chain(steps).collect();
        let mut body = body(&layer, Script::new(steps, Hint::Undeclared));
        let held = allocation_counter::measure(|| {
            let mut cx = Context::from_waker(Waker::noop());
            while !matches!(Pin::new(&mut body).poll_frame(&mut cx), Poll::Ready(None)) {}
        });
        assert!(held.bytes_max < 300_000, "{start:?}: {}", held.bytes_max);
    }
}
