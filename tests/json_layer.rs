//! The JSON layer over scripted bodies.
#![cfg(feature = "json")]

mod support;

use std::{
    convert::Infallible,
    error::Error as _,
    pin::pin,
    str,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body::{Body, SizeHint};
use http_body_util::BodyExt;
use support::{Hint, Log, Script, Step, VARIANTS};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};
use tower_body_limit::{
    Error, ResponseBody, ResponseSizeLimitLayer,
    json::{BaseOffset, Fit, FitLimit, FitReport, JsonFitLayer, Unfit, UnfitReason, rpc_error},
};

const JSON: &str = "application/json";
const PAGE: &str = r#"{"rows": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30], "took": 3}"#;
const CUT: &str =
    r#"{"rows":[1,2,3,4],"took":3,"truncated":true,"next_offset":4,"cap_reason":"size_limit"}"#;

fn limit() -> u64 {
    CUT.len() as u64
}

fn rows() -> Fit {
    Fit::array_at(limit(), "/rows")
}

fn frames(text: &str, len: usize) -> Vec<Step> {
    let frame = |chunk: &[u8]| Step::Data(Bytes::copy_from_slice(chunk));
    text.as_bytes().chunks(len).map(frame).collect()
}

fn json(steps: Vec<Step>, hint: Hint) -> Response<Script> {
    let response = Response::builder().header(header::CONTENT_TYPE, JSON);
    response.body(Script::new(steps, hint)).unwrap()
}

async fn through(
    layer: &JsonFitLayer,
    response: Response<Script>,
) -> Response<ResponseBody<Script>> {
    answer(layer, Request::new(()), response).await
}

async fn answer(
    layer: &JsonFitLayer,
    request: Request<()>,
    response: Response<Script>,
) -> Response<ResponseBody<Script>> {
    let response = Mutex::new(Some(response));
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(response.lock().unwrap().take().unwrap())
    });
    layer.layer(inner).oneshot(request).await.unwrap()
}

async fn text(response: Response<ResponseBody<Script>>) -> String {
    let data = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(data.to_vec()).unwrap()
}

#[tokio::test]
async fn the_document_that_fits_does_not_depend_on_frames() {
    for hint in VARIANTS {
        for len in [1, 2, 7, 50, 1000] {
            let mut steps = frames(PAGE, len);
            steps.insert(1, Step::Pending);
            steps.insert(1, Step::Data(Bytes::new()));
            let response = through(&JsonFitLayer::server(rows()), json(steps, hint.clone())).await;
            let report = response.extensions().get::<FitReport>().unwrap();
            assert_eq!(
                (report.kept(), report.total(), report.dropped()),
                (Some(4), Some(30), Some(26))
            );
            assert_eq!(
                (report.original(), report.len()),
                (PAGE.len() as u64, limit())
            );
            assert_eq!(response.body().size_hint().exact(), Some(limit()));
            assert_eq!(text(response).await, CUT);
        }
    }
}

#[tokio::test]
async fn a_document_of_exactly_the_limit_is_the_same_byte_for_byte() {
    let exact = JsonFitLayer::server(Fit::array_at(PAGE.len() as u64, "/rows"));
    for hint in VARIANTS {
        for len in [1, 9, 1000] {
            let mut response = json(frames(PAGE, len), hint.clone());
            response
                .headers_mut()
                .insert(header::ETAG, "\"a\"".parse().unwrap());
            let response = through(&exact, response).await;
            assert!(response.headers().contains_key(header::ETAG));
            assert!(response.extensions().get::<FitReport>().is_none());
            assert_eq!(text(response).await, PAGE);
        }
    }
    // It need not be JSON, as nobody looks.
    let response = through(&exact, json(frames("{not json", 3), Hint::Undeclared)).await;
    assert_eq!(text(response).await, "{not json");
}

#[tokio::test]
async fn tokens_may_come_in_pieces() {
    let page = "\u{feff}[ true , false,null ,-12.50E+10, 0.5e-1,1E9, \"a\\u00e9\\n\\\\\" , {} ]";
    let compact = r#"[true,false,null,-12.50E+10,0.5e-1,1E9,"a\u00e9\n\\",{}]"#;
    let layer = JsonFitLayer::server(Fit::compact(compact.len() as u64));
    for hint in VARIANTS {
        for len in 1..5 {
            let response = json(frames(page, len), hint.clone());
            assert_eq!(text(through(&layer, response).await).await, compact);
        }
    }
}

#[tokio::test]
async fn a_message_that_has_ended_is_not_waited_for() {
    // An id would say which message it was, and there is none.
    let message = format!(r#"{{"jsonrpc":"2.0","result":"{}"}}"#, "x".repeat(1000));
    for hint in [Hint::Undeclared, Hint::Fixed(SizeHint::with_exact(5000))] {
        let mut steps = frames(&message, 100);
        steps.push(Step::Stall);
        let layer = JsonFitLayer::server(rows());
        let response = through(&layer, json(steps, hint)).now_or_never();
        let response = response.expect("it waits for the end of the body");
        assert_eq!(response.status(), 500);
    }
}

#[test]
fn readiness_is_the_inner_services() {
    for (places, ready) in [(0, false), (1, true)] {
        let inner = service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(json(Vec::new(), Hint::Declared))
        });
        let limited = ConcurrencyLimitLayer::new(places);
        let mut service = JsonFitLayer::server(rows()).layer(limited.layer(inner));
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(service.poll_ready(&mut cx).is_ready(), ready);
    }
}

#[tokio::test]
async fn what_is_declared_within_the_limit_is_not_held() {
    for declared in [9, limit()] {
        let script = Script::new(
            [Step::Data("{}".into()), Step::Stall],
            Hint::Fixed(SizeHint::with_exact(declared)),
        );
        let log = script.log();
        let response = Response::builder().header(header::CONTENT_TYPE, JSON);
        let response = through(
            &JsonFitLayer::server(rows()),
            response.body(script).unwrap(),
        )
        .await;
        assert_eq!(log.polls(), 0);
        assert_eq!(response.body().size_hint().exact(), Some(declared));
    }
}

#[tokio::test]
async fn a_length_in_the_head_alone_does_not_loosen_the_count() {
    let mut response = json(frames(PAGE, 20), Hint::Undeclared);
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, 5.into());
    let response = through(&JsonFitLayer::server(rows()), response).await;
    assert_eq!(
        response.headers()[header::CONTENT_LENGTH],
        limit().to_string()
    );
    assert_eq!(text(response).await, CUT);
}

#[tokio::test]
async fn what_is_not_a_whole_plain_json_document_passes_unheld() {
    let with = |name: header::HeaderName, value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, JSON.parse().unwrap());
        headers.insert(name, value.parse().unwrap());
        headers
    };
    let json = || with(header::CONTENT_TYPE, JSON);
    let cases = [
        (
            Method::GET,
            StatusCode::OK,
            with(header::CONTENT_TYPE, "text/html"),
        ),
        (
            Method::GET,
            StatusCode::OK,
            with(header::CONTENT_TYPE, "application/x-ndjson"),
        ),
        (
            Method::GET,
            StatusCode::OK,
            with(header::CONTENT_TYPE, "text/event-stream"),
        ),
        (
            Method::POST,
            StatusCode::OK,
            with(header::CONTENT_TYPE, "application/grpc+json"),
        ),
        (
            Method::POST,
            StatusCode::OK,
            with(header::CONTENT_TYPE, "application/grpc-web+json"),
        ),
        (
            Method::POST,
            StatusCode::OK,
            with(header::CONTENT_TYPE, "application/stream+json"),
        ),
        (
            Method::POST,
            StatusCode::OK,
            with(header::CONTENT_TYPE, "application/connect+json"),
        ),
        (Method::GET, StatusCode::OK, HeaderMap::new()),
        (
            Method::GET,
            StatusCode::OK,
            with(header::CONTENT_ENCODING, "gzip"),
        ),
        (Method::GET, StatusCode::PARTIAL_CONTENT, json()),
        (Method::GET, StatusCode::NOT_MODIFIED, json()),
        (Method::HEAD, StatusCode::OK, json()),
    ];
    for (method, status, headers) in cases {
        let script = Script::new(frames(PAGE, 10), Hint::Undeclared);
        let log = script.log();
        let mut response = Response::new(script);
        *response.status_mut() = status;
        *response.headers_mut() = headers.clone();
        let mut request = Request::new(());
        *request.method_mut() = method;
        let response = answer(&JsonFitLayer::server(rows()), request, response).await;
        assert_eq!((log.polls(), response.headers()), (0, &headers));
        assert_eq!(text(response).await, PAGE);
    }
}

#[tokio::test]
async fn a_suffix_of_json_counts_and_so_do_parameters_and_errors() {
    for media_type in [
        "application/problem+json",
        "Application/JSON; charset=utf-8",
        "text/json",
    ] {
        let mut response = json(frames(PAGE, 10), Hint::Undeclared);
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, media_type.parse().unwrap());
        *response.status_mut() = StatusCode::NOT_FOUND;
        let response = through(&JsonFitLayer::server(rows()), response).await;
        assert_eq!(response.status(), 404);
        assert_eq!(text(response).await, CUT);
    }
}

#[tokio::test]
async fn the_head_is_mended_and_trailers_are_kept() {
    let head = |with_trailers: bool| {
        let mut steps = frames(PAGE, 30);
        steps.extend(with_trailers.then_some(Step::Trailers));
        let mut response = json(steps, Hint::Undeclared);
        for (name, value) in [
            ("content-length", "141"),
            ("etag", "\"a\""),
            ("accept-ranges", "bytes"),
            ("content-digest", "sha-256=:x:"),
            ("cache-control", "no-store"),
        ] {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    };
    let layer = JsonFitLayer::server(rows());
    let response = through(&layer, head(false)).await;
    let names: Vec<_> = response
        .headers()
        .keys()
        .map(|name| name.as_str())
        .collect();
    assert_eq!(names, ["content-type", "cache-control", "content-length"]);
    assert_eq!(
        response.headers()[header::CONTENT_LENGTH],
        limit().to_string()
    );

    let response = through(&layer, head(true)).await;
    assert!(!response.headers().contains_key(header::CONTENT_LENGTH));
    let collected = response.into_body().collect().await.unwrap();
    let trailers = collected.trailers().unwrap();
    assert_eq!(
        (trailers.len(), &trailers["x-trailer"]),
        (1, &"end".parse().unwrap())
    );
    assert_eq!(collected.to_bytes(), CUT);

    // Of one that fits the digest still holds.
    let small = json(
        vec![Step::Data("[1]".into()), Step::Trailers],
        Hint::Undeclared,
    );
    let body = through(&layer, small).await.into_body();
    let collected = body.collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap().len(), 2);
}

#[tokio::test]
async fn markers_may_go_to_the_head() {
    use tower_body_limit::json::Marker;

    let fit = Fit::array_at(40, "/rows")
        .markers_in_headers()
        .marker(Marker::Total, "total")
        .marker(Marker::CapReason, "");
    let response = through(
        &JsonFitLayer::server(fit),
        json(frames(PAGE, 30), Hint::Declared),
    )
    .await;
    let headers = response.headers();
    assert_eq!(headers["x-truncated"], "true");
    assert_eq!(headers["x-total"], "30");
    assert_eq!(headers["x-next-offset"], "10");
    assert!(!headers.contains_key("x-cap-reason"));
    assert_eq!(
        text(response).await,
        r#"{"rows":[1,2,3,4,5,6,7,8,9,10],"took":3}"#
    );
}

#[tokio::test]
async fn the_offset_comes_from_the_response_or_else_the_request_or_else_the_document() {
    let offset = |request: Option<u64>, response: Option<u64>| async move {
        let page = PAGE.replace("\"took\": 3", "\"offset\": 7");
        let (mut asked, mut given) = (Request::new(()), json(frames(&page, 30), Hint::Undeclared));
        request.map(|offset| asked.extensions_mut().insert(BaseOffset::new(offset)));
        response.map(|offset| given.extensions_mut().insert(BaseOffset::new(offset)));
        let layer = JsonFitLayer::server(Fit::array_at(100, "/rows").offset_at("/offset"));
        let response = answer(&layer, asked, given).await;
        assert!(response.extensions().get::<BaseOffset>().is_none());
        let report = response.extensions().get::<FitReport>().unwrap();
        report.next_offset().unwrap() - report.kept().unwrap()
    };
    assert_eq!(offset(Some(40), Some(90)).await, 90);
    assert_eq!(offset(Some(40), None).await, 40);
    assert_eq!(offset(None, None).await, 7);
}

#[tokio::test]
async fn a_response_may_set_its_own_limit_up_to_the_ceiling() {
    let len = |layer: JsonFitLayer, limit: u64| async move {
        let mut response = json(frames(PAGE, 30), Hint::Undeclared);
        response.extensions_mut().insert(FitLimit::new(limit));
        let response = through(&layer, response).await;
        assert!(response.extensions().get::<FitLimit>().is_none());
        text(response).await.len()
    };
    let layer = JsonFitLayer::server(rows());
    assert_eq!(len(layer.clone(), limit() - 1).await, CUT.len() - 2);
    assert_eq!(len(layer.clone(), limit() + 40).await, CUT.len());
    assert_eq!(len(layer.override_ceiling(1000), 1000).await, PAGE.len());
}

#[tokio::test]
async fn what_does_not_fit_is_answered_and_given_up_at_once() {
    let blob = format!(
        r#"{{"jsonrpc":"2.0","id":"a\"1","result":"{}"}}"#,
        "x".repeat(500)
    );
    let mut steps = frames(&blob, 50);
    steps.extend([Step::Stall]);
    let script = Script::new(steps, Hint::Undeclared);
    let log = script.log();
    let response = Response::builder()
        .header(header::CONTENT_TYPE, JSON)
        .body(script)
        .unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let layer = JsonFitLayer::server(Fit::compact(100))
        .answer_with(rpc_error)
        .on_fit({
            let seen = Arc::clone(&seen);
            move |result| {
                seen.lock()
                    .unwrap()
                    .push(result.cloned().map_err(Clone::clone))
            }
        });
    let response = through(&layer, response).await;
    assert_eq!((log.polls(), log.dropped()), (3, true));
    let unfit = response.extensions().get::<Unfit>().unwrap();
    assert_eq!(
        (unfit.reason(), unfit.actual(), unfit.actual_is_exact()),
        (UnfitReason::TooLarge, 101, false)
    );
    assert_eq!(*seen.lock().unwrap(), [Err(unfit.clone())]);
    assert_eq!(
        (response.status(), &response.headers()[header::CONTENT_TYPE]),
        (StatusCode::OK, &JSON.parse().unwrap())
    );
    assert_eq!(
        text(response).await,
        r#"{"jsonrpc":"2.0","id":"a\"1","error":{"code":-32603,"message":"The response is too large.","data":{"reason":"response_too_large","limit_bytes":100,"actual_bytes":101}}}"#
    );
}

#[tokio::test]
async fn a_declared_size_is_repeated_unless_it_is_disproved() {
    for (declared, actual, exact) in [
        ("5", 21, false),
        ("900", 900, true),
        // More than a number can say.
        ("18446744073709551616", 21, false),
    ] {
        let mut response = json(frames(PAGE, 30), Hint::Undeclared);
        let declared = HeaderValue::from_static(declared);
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, declared);
        let response = through(&JsonFitLayer::server(Fit::compact(20)), response).await;
        let unfit = response.extensions().get::<Unfit>().unwrap();
        assert!(
            unfit.actual() >= actual && unfit.actual_is_exact() == exact,
            "{unfit:?}"
        );
    }
}

/// As many bytes as it takes to know that it does not fit, and none more.
#[tokio::test]
async fn the_least_size_of_what_does_not_fit_is_exact_to_the_byte() {
    let (x, y) = ("x".repeat(20), "y".repeat(100));
    let root = Fit::largest_array_in(40, "").copy_at("/c", "");
    for (fit, text, reason, actual) in [
        // Where the tail leaves no room for the first item.
        (
            Fit::array_at(15, "/r"),
            format!(r#"{{"r":[1,2,3,4,5,6,7,8],"t":"{x}"}}"#),
            UnfitReason::NothingKept,
            30,
        ),
        // Where the first item is too large, once the copy has made room.
        (
            Fit::array_at(40, "/r").copy_at("/c", ""),
            format!(r#"{{"c":"{x}","r":["{y}"]}}"#),
            UnfitReason::NothingKept,
            63,
        ),
        // Where the smaller array has to be kept.
        (
            Fit::largest_array_in(14, ""),
            r#"{"a":[1,2,3,4,5],"b":[678,9,0]}"#.to_owned(),
            UnfitReason::TooLarge,
            24,
        ),
        // Where the second array is the larger one, and its first item too large.
        (
            root,
            format!(r#"{{"c":"{x}","a":[1],"b":["{y}"]}}"#),
            UnfitReason::NothingKept,
            63,
        ),
        // Where what has to be kept is too large, once the copy has made room.
        (
            Fit::compact(40).copy_at("/c", ""),
            format!(r#"{{"c":"{x}","t":"{y}"}}"#),
            UnfitReason::TooLarge,
            63,
        ),
        // Where a pointer is known to be ambiguous before that matters.
        (
            Fit::array_at(15, "/r"),
            format!(r#"{{"r":1,"r":2,"t":"{y}"}}"#),
            UnfitReason::Ambiguous,
            16,
        ),
        // Where all of it has to be kept.
        (
            Fit::compact(10),
            format!("\"{y}\""),
            UnfitReason::TooLarge,
            11,
        ),
        (
            Fit::array_at(15, "/r"),
            format!(r#"{{"r":[],"t":"{y}"}}"#),
            UnfitReason::TooLarge,
            16,
        ),
        // Where there is no room for a character of the string.
        (
            Fit::string_at(15, "/s"),
            format!(r#"{{"s":"1234567","t":"{x}"}}"#),
            UnfitReason::NothingKept,
            23,
        ),
        // Where the rest of a message is read for its `id`.
        (
            Fit::compact(40),
            format!(r#"{{"jsonrpc":"2.0","t":"{y}","id":7,"u":"{x}"}}"#),
            UnfitReason::TooLarge,
            130,
        ),
        // Where that shows that it is malformed as well.
        (
            Fit::compact(40),
            format!(r#"{{"jsonrpc":"2.0","t":"{y}",?"id":7}}"#),
            UnfitReason::TooLarge,
            125,
        ),
    ] {
        let layer = JsonFitLayer::server(fit.markers_in_headers());
        let response = json(frames(&text, text.len()), Hint::Undeclared);
        let response = through(&layer, response).await;
        let unfit = response.extensions().get::<Unfit>().unwrap();
        let found = (unfit.reason(), unfit.actual(), unfit.actual_is_exact());
        assert_eq!(found, (reason, actual, false), "{text}");
    }
}

#[tokio::test]
async fn an_answer_closes_the_connection_if_the_one_it_replaces_did() {
    let layer = JsonFitLayer::server(Fit::compact(10));
    for closes in [false, true] {
        let mut response = json(frames(PAGE, 30), Hint::Undeclared);
        if closes {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        let response = through(&layer, response).await;
        assert_eq!(response.status(), 500);
        assert_eq!(response.headers().contains_key(header::CONNECTION), closes);
    }
}

#[tokio::test]
async fn the_default_answer_is_500_and_other_layers_leave_it_alone() {
    let response = json(frames(PAGE, 30), Hint::Declared);
    let response = through(&JsonFitLayer::server(Fit::compact(20)), response).await;
    assert_eq!(
        (
            response.status(),
            response.extensions().get::<Unfit>().unwrap().actual()
        ),
        (StatusCode::INTERNAL_SERVER_ERROR, PAGE.len() as u64)
    );
    let response = Mutex::new(Some(response));
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(response.lock().unwrap().take().unwrap())
    });
    let outer = ResponseSizeLimitLayer::server(3).layer(inner);
    let data = outer
        .oneshot(Request::new(()))
        .await
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap();
    assert_eq!(data.to_bytes(), "The response is too large.\n");
}

#[tokio::test]
async fn on_a_client_the_body_fails_under_the_head_as_received() {
    let response = json(frames(PAGE, 30), Hint::Undeclared);
    let response = through(&JsonFitLayer::client(Fit::compact(20)), response).await;
    assert_eq!(
        (response.status(), response.body().is_end_stream()),
        (StatusCode::OK, false)
    );
    let error = response.into_body().collect().await.unwrap_err();
    let unfit = error.source().unwrap().downcast_ref::<Unfit>().unwrap();
    assert_eq!(unfit.limit(), 20);
}

/// Whatever the body gives before it is Pending for good, and how often it is polled for that.
fn drive(response: Response<ResponseBody<Script>>) -> (String, usize, Error) {
    let (mut body, mut cx) = (
        pin!(response.into_body()),
        Context::from_waker(Waker::noop()),
    );
    let (mut data, mut pending) = (String::new(), 0);
    loop {
        match body.as_mut().poll_frame(&mut cx) {
            Poll::Pending => pending += 1,
            Poll::Ready(Some(Ok(frame))) => {
                data.push_str(str::from_utf8(frame.data_ref().unwrap()).unwrap())
            }
            Poll::Ready(Some(Err(error))) => return (data, pending, error),
            Poll::Ready(None) => panic!("a clean end"),
        }
    }
}

#[tokio::test]
async fn an_inner_error_sends_the_head_and_then_fails() {
    for (steps, held) in [(2, &PAGE[..60]), (4, "")] {
        let steps: Vec<_> = frames(PAGE, 30)
            .into_iter()
            .take(steps)
            .chain([Step::Fail])
            .collect();
        let response = through(
            &JsonFitLayer::server(rows()),
            json(steps.clone(), Hint::Undeclared),
        )
        .await;
        assert_eq!(
            (response.status(), response.body().size_hint().exact()),
            (StatusCode::OK, None)
        );
        let (data, pending, error) = drive(response);
        assert_eq!((&*data, pending), (held, 2));
        assert!(matches!(error, Error::Body(_)));

        // HTTP/1.0 must not see a clean end after a flush.
        let mut request = Request::new(());
        *request.version_mut() = Version::HTTP_10;
        let response = answer(
            &JsonFitLayer::server(rows()),
            request,
            json(steps, Hint::Undeclared),
        )
        .await;
        assert_eq!(drive(response).1, 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and the size is the point")]
fn long_work_gives_way() {
    let page = format!("[{}0]", "0,".repeat(1_000_000));
    let response = Mutex::new(Some(json(vec![Step::Data(page.into())], Hint::Declared)));
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(response.lock().unwrap().take().unwrap())
    });
    let layer = JsonFitLayer::server(Fit::array_at(100, "").markers_in_headers());
    let mut future = pin!(layer.layer(inner).oneshot(Request::new(())));
    let (mut cx, mut pending) = (Context::from_waker(Waker::noop()), 0);
    let response = loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(response) => break response.unwrap(),
            Poll::Pending => pending += 1,
        }
    };
    assert_eq!(response.body().size_hint().exact(), Some(99));
    assert_eq!(pending, 2_000_003 / (256 * 1024));
}

#[tokio::test]
async fn empty_frames_give_way_too() {
    let script = Script::endless(Step::Data(Bytes::new()));
    let log: Log = script.log();
    let response = Response::builder()
        .header(header::CONTENT_TYPE, JSON)
        .body(script)
        .unwrap();
    let layer = JsonFitLayer::server(rows());
    let mut future = pin!(through(&layer, response));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_pending());
    assert!(log.polls() < 100);
}

#[test]
fn a_layer_can_be_named_and_shared() {
    fn check<T: Clone + Send + Sync + 'static>(_: &T) {}
    let layer = JsonFitLayer::server(rows());
    check(&layer);
    assert!(format!("{layer:?}").contains("JsonFitLayer"));
}
