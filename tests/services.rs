//! The layers over requests and responses, on servers and on clients.

mod support;

use std::{
    convert::Infallible,
    future::{Ready, ready},
    io,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, ETAG, SET_COOKIE},
};
use http_body::{Body, SizeHint};
use http_body_util::{BodyExt, Empty};
use support::{
    Hint, Log, Script,
    Step::{self, Fail, Pending, Stall, Trailers},
    VARIANTS, data,
    drive::{Drive, assert_gives_way, poll_once},
};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_body_limit::{
    Error, LimitedBody, RequestHead, RequestSizeLimitLayer, ResponseBody, ResponseSizeLimitLayer,
    SetRequestLimitLayer, Subject, TooLarge, TruncateLayer, respond,
};

// Requests

type Limited = Request<LimitedBody<Script>>;

/// An inner service that keeps the request and answers with an empty 200.
#[derive(Clone, Default)]
struct Handler(Arc<Mutex<Option<Limited>>>);

impl Handler {
    /// The request, if the service was called.
    fn got(&self) -> Option<Limited> {
        self.0.lock().unwrap().take()
    }

    /// What comes out of the body that the service was called with.
    fn drive(&self) -> Drive<LimitedBody<Script>> {
        Drive::to_end(self.got().expect("the service was not called").into_body())
    }
}

impl Service<Limited> for Handler {
    type Response = Response<Empty<Bytes>>;
    type Error = io::Error;
    type Future = Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Limited) -> Self::Future {
        *self.0.lock().unwrap() = Some(request);
        ready(Ok(Response::default()))
    }
}

type Answered = Response<ResponseBody<Empty<Bytes>>>;

async fn serve(layer: &RequestSizeLimitLayer, request: Request<Script>) -> (Answered, Handler) {
    let handler = Handler::default();
    let response = layer.layer(handler.clone()).oneshot(request).await;
    (response.unwrap(), handler)
}

async fn send(limit: u64, request: Request<Script>) -> (Result<(), Error>, Handler) {
    let handler = Handler::default();
    let client = RequestSizeLimitLayer::client(limit).layer(handler.clone());
    (client.oneshot(request).await.map(drop), handler)
}

fn post(steps: impl IntoIterator<Item = Step>, hint: Hint) -> Request<Script> {
    Request::post("/").body(Script::new(steps, hint)).unwrap()
}

fn with_lengths<T>(mut message: T, headers: fn(&mut T) -> &mut HeaderMap, values: &[&[u8]]) -> T {
    for value in values {
        let value = HeaderValue::from_bytes(value).unwrap();
        headers(&mut message).append(CONTENT_LENGTH, value);
    }
    message
}

/// Up to the limit of 10 in one frame, and the rest in another.
fn frames(len: usize) -> [Step; 2] {
    [data(len.min(10)), data(len.saturating_sub(10))]
}

const U64_MAX: &[u8] = b"18446744073709551615";
const TWO_TO_THE_64: &[u8] = b"18446744073709551616";

/// `Content-Length` fields, and what they declare.
const LENGTHS: [(&[&[u8]], Option<u64>); 25] = [
    (&[], None),
    (&[b"5"], Some(5)),
    (&[b"0"], Some(0)),
    (&[b"0005"], Some(5)),
    (&[b"00000000000000000000000000000000000011"], Some(11)),
    (&[b" 5 "], Some(5)),
    (&[b"\t11\t"], Some(11)),
    (&[b"5, 5"], Some(5)),
    (&[b"11,11"], Some(11)),
    (&[b"5", b"5"], Some(5)),
    (&[b"11", b"11, 11"], Some(11)),
    (&[b"11"], Some(11)),
    (&[U64_MAX], Some(u64::MAX)),
    (&[TWO_TO_THE_64], Some(u64::MAX)),
    (&[b"-1"], None),
    (&[b"+5"], None),
    (&[b"5, 6"], None),
    (&[b"5", b"6"], None),
    (&[b"11", b"5"], None),
    (&[b""], None),
    (&[b"5,"], None),
    (&[b"0x5"], None),
    (&[b"1 1"], None),
    (&[b"11.0"], None),
    (&[b"\xef\xbc\x95"], None),
];

#[tokio::test]
async fn a_request_header_only_tightens_and_the_bytes_are_counted_anyway() {
    for (values, header) in LENGTHS {
        for len in [3, 10, 11, 30] {
            for variant in VARIANTS {
                let hint = matches!(variant, Hint::Declared).then_some(len as u64);
                let declared = header.max(hint);
                let request = post(frames(len), variant);
                let request = with_lengths(request, Request::headers_mut, values);
                check_request(request, declared, len).await;
            }
        }
    }
}

async fn check_request(request: Request<Script>, declared: Option<u64>, len: usize) {
    let case = format!("{:?}, {declared:?}, {len}", request.headers());
    let log = request.body().log();
    let (answer, handler) = serve(&RequestSizeLimitLayer::server(10), request).await;
    if declared.is_some_and(|declared| declared > 10) {
        assert!(handler.got().is_none(), "{case}");
        return check_refusal(answer, 413, declared, &log);
    }
    assert_eq!(answer.status(), 200, "{case}");
    check_count(&handler.drive(), Subject::Request, declared, len, &case);
}

/// An answer on the word of the message: its body was not touched.
#[track_caller]
fn check_refusal<B>(answer: Response<B>, status: u16, declared: Option<u64>, log: &Log) {
    assert_eq!(answer.status(), status);
    let error = answer.extensions().get::<TooLarge>().unwrap();
    assert_eq!((error.declared(), error.read()), (declared, 0));
    // What a request has left may be kept until the answer is over, to be drained.
    drop(answer);
    assert_eq!((log.polls(), log.dropped()), (0, true));
}

/// A body of `len` bytes that nothing declared to be over the limit of 10.
#[track_caller]
fn check_count<B>(drive: &Drive<B>, subject: Subject, declared: Option<u64>, len: usize, case: &str)
where
    B: Body<Data = Bytes, Error = Error> + Unpin,
{
    if len <= 10 {
        assert_eq!(drive.data().len(), len, "{case}");
        return assert!(drive.error.is_none(), "{case}");
    }
    let error = drive.too_large();
    let expected = (declared, len as u64, subject);
    let found = (error.declared(), error.read(), error.subject());
    assert_eq!(found, expected, "{case}");
}

#[tokio::test]
async fn a_length_that_no_u64_can_hold_is_over_any_limit() {
    let most = Hint::Fixed(SizeHint::with_exact(u64::MAX));
    for (value, refused) in [(U64_MAX, false), (TWO_TO_THE_64, true)] {
        for variant in VARIANTS.into_iter().chain([most.clone()]) {
            let request = || post([data(5)], variant.clone());
            let request = || with_lengths(request(), Request::headers_mut, &[value]);
            let (answer, handler) =
                serve(&RequestSizeLimitLayer::server(u64::MAX), request()).await;
            assert_eq!(
                (answer.status() == 413, handler.got().is_none()),
                (refused, refused)
            );
            let (outcome, handler) = send(u64::MAX, request()).await;
            assert_eq!(
                (outcome.is_err(), handler.got().is_none()),
                (refused, refused)
            );
        }
    }
}

#[tokio::test]
async fn a_request_at_the_limit_passes_and_one_byte_more_does_not() {
    for (limit, len, passes) in [(0, 0, true), (0, 1, false), (10, 10, true), (10, 11, false)] {
        for variant in VARIANTS {
            let request = || post((0..len).map(|_| data(1)).chain([Trailers]), variant.clone());
            let declared = matches!(variant, Hint::Declared);

            let (answer, handler) = serve(&RequestSizeLimitLayer::server(limit), request()).await;
            let refused = !passes && declared;
            assert_eq!(answer.status(), if refused { 413 } else { 200 });
            check_passage(&handler, refused, passes);

            let (outcome, handler) = send(limit, request()).await;
            assert_eq!(outcome.is_err(), refused);
            check_passage(&handler, refused, passes);
        }
    }
}

fn check_passage(handler: &Handler, refused: bool, passes: bool) {
    match handler.got() {
        None => assert!(refused),
        Some(request) => {
            assert!(!refused);
            let drive = Drive::to_end(request.into_body());
            assert_eq!(drive.error.is_none(), passes, "{}", drive.outline());
        }
    }
}

#[tokio::test]
async fn a_request_without_a_body_passes_a_limit_of_zero() {
    for method in [
        Method::GET,
        Method::HEAD,
        Method::DELETE,
        Method::OPTIONS,
        Method::POST,
    ] {
        for variant in VARIANTS {
            let mut request = post([], variant);
            *request.method_mut() = method.clone();
            let (answer, handler) = serve(&RequestSizeLimitLayer::server(0), request).await;
            assert_eq!(answer.status(), 200);
            assert_eq!(handler.drive().outline(), "end");
        }
    }
    let trailers = post([Trailers], Hint::Undeclared);
    let (_, handler) = serve(&RequestSizeLimitLayer::server(0), trailers).await;
    assert_eq!(handler.drive().outline(), "trailers end");
}

#[tokio::test]
async fn the_head_of_an_accepted_request_is_untouched() {
    let request = |variant| {
        Request::put("/a/b?c=d")
            .version(Version::HTTP_10)
            .header("x-name", "one")
            .header("x-name", "two")
            .header(CONTENT_LENGTH, "0005")
            .extension("an extension")
            .body(Script::new([data(5)], variant))
            .unwrap()
    };
    for variant in VARIANTS {
        let (expected, _) = request(variant.clone()).into_parts();
        let (_, handler) =
            serve(&RequestSizeLimitLayer::server(10), request(variant.clone())).await;
        assert_same_head(&expected, &handler.got().unwrap().into_parts().0);
        let (_, handler) = send(10, request(variant)).await;
        assert_same_head(&expected, &handler.got().unwrap().into_parts().0);
    }
}

fn assert_same_head(expected: &http::request::Parts, found: &http::request::Parts) {
    assert_eq!(expected.method, found.method);
    assert_eq!(expected.uri, found.uri);
    assert_eq!(expected.version, found.version);
    assert_eq!(expected.headers, found.headers);
    assert_eq!(expected.extensions.get::<&str>(), found.extensions.get());
    assert_eq!(expected.extensions.len(), found.extensions.len());
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_refusal_is_a_whole_answer() {
    let draining = RequestSizeLimitLayer::server(10);
    let closing = draining.clone().no_drain();
    for version in [
        Version::HTTP_10,
        Version::HTTP_11,
        Version::HTTP_2,
        Version::HTTP_3,
    ] {
        let is_http_1 = version < Version::HTTP_2;
        // The answer to HEAD has no body to drain behind.
        for (layer, method, closes) in [
            (&draining, Method::POST, false),
            (&draining, Method::HEAD, is_http_1),
            (&closing, Method::POST, is_http_1),
        ] {
            let mut request = post([data(11)], Hint::Declared);
            *request.version_mut() = version;
            *request.method_mut() = method.clone();
            let (answer, _) = serve(layer, request).await;
            let close = closes.then(|| HeaderValue::from_static("close"));
            let case = format!("{version:?}, {method}");
            assert_eq!(answer.headers().get(CONNECTION), close.as_ref(), "{case}");
            check_answer(answer, 413, &method, "The request body is too large.\n").await;
        }
    }
}

/// The default answer: status, media type, length, a sentence without a number, the error.
async fn check_answer<B>(
    answer: Response<ResponseBody<B>>,
    status: u16,
    method: &Method,
    text: &str,
) where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    assert_eq!(answer.status(), status);
    assert_eq!(answer.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
    assert_eq!(answer.headers()[CONTENT_LENGTH], text.len().to_string());
    let others = answer
        .headers()
        .keys()
        .filter(|&name| name != CONNECTION)
        .count();
    assert_eq!(others, 2, "{:?}", answer.headers());
    // The error, and the mark of an answer of ours.
    assert_eq!(answer.extensions().len(), 2);
    let error = answer.extensions().get::<TooLarge>().unwrap();
    assert_eq!((error.limit(), error.status().as_u16()), (10, status));

    let text = if method == Method::HEAD { "" } else { text };
    assert_eq!(answer.body().size_hint().exact(), Some(text.len() as u64));
    assert_eq!(answer.body().is_end_stream(), text.is_empty());
    assert_eq!(Drive::to_end(answer.into_body()).data(), text.as_bytes());
}

#[tokio::test]
async fn an_answer_is_a_closure_over_the_error_and_the_head() {
    fn answer(error: &TooLarge, head: &RequestHead) -> Response<String> {
        let text = format!(
            "{} {} {:?} {:?} {:?} over {} of {:?}",
            head.method(),
            head.uri(),
            head.version(),
            head.accept().unwrap(),
            head.content_type().unwrap(),
            error.limit(),
            error.label().unwrap(),
        );
        Response::builder()
            .status(418)
            .header(CONTENT_LENGTH, "1")
            .body(text)
            .unwrap()
    }
    let layer = RequestSizeLimitLayer::server(10)
        .answer_with(answer)
        .label("uploads");
    let request = Request::put("/a?b=c")
        .header(ACCEPT, "text/html")
        .header(CONTENT_TYPE, "image/png")
        .body(Script::new([data(11)], Hint::Declared))
        .unwrap();
    let (answer, _) = serve(&layer, request).await;
    assert_eq!(answer.status(), 418);
    let text = r#"PUT /a?b=c HTTP/1.1 "text/html" "image/png" over 10 of "uploads""#;
    assert_eq!(answer.headers()[CONTENT_LENGTH], text.len().to_string());
    assert_eq!(answer.headers().get_all(CONTENT_LENGTH).iter().count(), 1);
    assert_eq!(Drive::to_end(answer.into_body()).data(), text.as_bytes());
}

#[tokio::test]
async fn the_response_of_an_accepted_request_is_untouched() {
    let inner = service_fn(async |_: Limited| {
        let body = Script::new([data(4), data(1 << 20), Trailers], Hint::Undeclared);
        let response = Response::builder()
            .status(299)
            .header("x-name", "one")
            .extension("kept");
        io::Result::Ok(response.body(body).unwrap())
    });
    let service = RequestSizeLimitLayer::server(10).layer(inner);
    let response = service
        .oneshot(post([data(5)], Hint::Declared))
        .await
        .unwrap();
    assert_eq!(response.status(), 299);
    assert_eq!(response.headers().len(), 1);
    assert_eq!(response.extensions().get(), Some(&"kept"));
    assert_eq!(
        Drive::to_end(response.into_body()).outline(),
        "4 1048576 trailers end"
    );
}

#[tokio::test]
async fn a_client_request_over_the_limit_fails_the_call() {
    let request = post([data(11)], Hint::Declared);
    let log = request.body().log();
    let (outcome, handler) = send(10, request).await;
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::TooLarge(_)));
    assert_eq!(TooLarge::find(&error).unwrap().declared(), Some(11));
    assert!(handler.got().is_none());
    assert_eq!((log.polls(), log.dropped()), (0, true));
}

/// A client that reads the request's body, and makes `error` of its failure.
async fn upload<E>(steps: Vec<Step>, error: fn(Error) -> E) -> Result<Response<()>, Error>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let inner = service_fn(move |request: Limited| async move {
        let outcome = request.into_body().collect().await;
        outcome.map(|_| Response::new(())).map_err(error)
    });
    let client = RequestSizeLimitLayer::client(10).layer(inner);
    client.oneshot(post(steps, Hint::Undeclared)).await
}

#[tokio::test]
async fn a_client_request_found_over_the_limit_fails_the_call_however_it_was_wrapped() {
    let over = || vec![data(10), data(1)];
    let outcomes = [
        upload(over(), |failure| failure).await,
        upload(over(), io::Error::other).await,
        upload(over(), axum::Error::new).await,
    ];
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert_eq!(error.too_large().unwrap().read(), 11);
    }
    assert!(upload(vec![data(10)], |failure| failure).await.is_ok());
}

#[tokio::test]
async fn a_client_request_found_over_the_limit_fails_typed_when_the_transport_drops_the_cause() {
    // What hyper makes of it over HTTP/2.
    let outcome = upload(vec![data(11)], |_| io::Error::other("stream reset")).await;
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::TooLarge(_)), "{error:?}");
}

#[tokio::test]
async fn any_other_failure_of_a_client_is_its_own() {
    let error = upload(vec![data(4), Fail], |failure| failure)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Body(_)), "{error:?}");
    let error = upload(vec![data(4), Fail], |_| io::Error::other("reset"))
        .await
        .unwrap_err();
    let Error::Service(inner) = &error else {
        panic!("{error:?}");
    };
    assert!(inner.is::<io::Error>());
    assert_eq!(TooLarge::find(&error), None);
}

// Responses

type Responded = Response<ResponseBody<Script>>;

/// An inner service with one response to give.
struct Once(Option<Response<Script>>);

impl<B> Service<Request<B>> for Once {
    type Response = Response<Script>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Script>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(self.0.take().expect("called twice")))
    }
}

/// Passes one response through the layer.
async fn receive<B>(
    layer: &ResponseSizeLimitLayer,
    request: Request<B>,
    response: Response<Script>,
) -> Responded {
    layer
        .layer(Once(Some(response)))
        .oneshot(request)
        .await
        .unwrap()
}

fn get() -> Request<()> {
    Request::new(())
}

fn get_by(version: Version) -> Request<()> {
    Request::builder().version(version).body(()).unwrap()
}

fn sends(steps: impl IntoIterator<Item = Step>, hint: Hint) -> Response<Script> {
    Response::new(Script::new(steps, hint))
}

fn server() -> ResponseSizeLimitLayer {
    ResponseSizeLimitLayer::server(10)
}

fn client() -> ResponseSizeLimitLayer {
    ResponseSizeLimitLayer::client(10)
}

#[tokio::test]
async fn a_response_header_only_tightens_and_the_bytes_are_counted_anyway() {
    for (values, header) in LENGTHS {
        for len in [3, 10, 11, 30] {
            for variant in VARIANTS {
                let hint = matches!(variant, Hint::Declared).then_some(len as u64);
                let declared = header.max(hint);
                let response = || sends(frames(len), variant.clone());
                let response = || with_lengths(response(), Response::headers_mut, values);
                check_server_response(response(), declared, len).await;
                check_client_response(response(), declared, len).await;
            }
        }
    }
}

async fn check_server_response(response: Response<Script>, declared: Option<u64>, len: usize) {
    let case = format!("{:?}, {declared:?}, {len}", response.headers());
    let (head, log) = (response.headers().clone(), response.body().log());
    let response = receive(&server(), get(), response).await;
    if declared.is_some_and(|declared| declared > 10) {
        assert!(log.dropped());
        return check_refusal(response, 500, declared, &log);
    }
    assert_eq!(response.headers(), &head, "{case}");
    let drive = Drive::to_end(response.into_body());
    check_count(&drive, Subject::Response, declared, len, &case);
}

async fn check_client_response(response: Response<Script>, declared: Option<u64>, len: usize) {
    let case = format!("{:?}, {declared:?}, {len}", response.headers());
    let (head, log) = (response.headers().clone(), response.body().log());
    let response = receive(&client(), get(), response).await;
    assert_eq!(
        (response.status(), response.headers()),
        (StatusCode::OK, &head),
        "{case}"
    );
    if declared.is_some_and(|declared| declared > 10) {
        let hint = response.body().size_hint();
        assert_eq!((hint.lower(), hint.upper()), (0, None), "{case}");
        assert!(!response.body().is_end_stream(), "{case}");
        let drive = Drive::to_end(response.into_body());
        assert_eq!(drive.outline(), "breach end", "{case}");
        assert_eq!((log.polls(), log.dropped()), (0, true), "{case}");
        assert_eq!(drive.too_large().declared(), declared, "{case}");
        return;
    }
    let drive = Drive::to_end(response.into_body());
    check_count(&drive, Subject::Response, declared, len, &case);
}

#[tokio::test]
async fn a_response_at_the_limit_passes_and_one_byte_more_does_not() {
    for (limit, len, passes) in [(0, 0, true), (0, 1, false), (10, 10, true), (10, 11, false)] {
        for variant in VARIANTS {
            let declared = matches!(variant, Hint::Declared);
            let response = || sends((0..len).map(|_| data(1)).chain([Trailers]), variant.clone());
            let end = if passes { "trailers end" } else { "breach end" };

            let layer = ResponseSizeLimitLayer::client(limit);
            let drive = Drive::to_end(receive(&layer, get(), response()).await.into_body());
            assert!(drive.outline().ends_with(end), "{}", drive.outline());

            let layer = ResponseSizeLimitLayer::server(limit);
            let response = receive(&layer, get(), response()).await;
            let refused = !passes && declared;
            assert_eq!(response.status(), if refused { 500 } else { 200 });
            if !refused {
                let outline = Drive::to_end(response.into_body()).outline();
                assert!(outline.ends_with(end), "{outline}");
            }
        }
    }
}

#[tokio::test]
async fn a_replaced_response_keeps_nothing_of_the_old_one() {
    let [declared, undeclared] = VARIANTS;
    for (layer, variant, status) in [
        (server(), declared.clone(), 500),
        (server().gateway(), declared.clone(), 502),
        (buffered(), declared, 500),
        (buffered(), undeclared.clone(), 500),
        (buffered().gateway(), undeclared, 502),
    ] {
        let response = Response::builder()
            .status(201)
            .header(SET_COOKIE, "a=b")
            .header(ETAG, "\"old\"")
            .header("content-encoding", "gzip")
            .header(CONTENT_TYPE, "image/png")
            .extension("old")
            .body(Script::new([data(4), data(7)], variant))
            .unwrap();
        let log = response.body().log();
        let answer = receive(&layer, get(), response).await;
        assert!(log.dropped());
        let text = "The response body is too large.\n";
        check_answer(answer, status, &Method::GET, text).await;
    }
}

#[tokio::test]
async fn a_response_may_be_replaced_by_any_answer() {
    let json = |error: &TooLarge, _: &RequestHead| {
        let text = format!(r#"{{"limit":{}}}"#, error.limit());
        Response::builder()
            .status(507)
            .header(CONTENT_TYPE, "application/json")
            .body(text)
            .unwrap()
    };
    let layers = [
        server().answer_with(json),
        server().buffered().answer_with(json),
    ];
    for (layer, variant) in layers.into_iter().zip(VARIANTS) {
        let answer = receive(&layer, get(), sends([data(11)], variant)).await;
        assert_eq!(answer.status(), 507);
        assert_eq!(answer.headers()[CONTENT_LENGTH], "12");
        assert_eq!(Drive::to_end(answer.into_body()).data(), br#"{"limit":10}"#);
    }
    let plain = server().answer_with(respond::plain_text);
    let answer = receive(&plain, get(), sends([data(11)], Hint::Declared)).await;
    check_answer(
        answer,
        500,
        &Method::GET,
        "The response body is too large.\n",
    )
    .await;
}

#[tokio::test]
async fn a_declared_length_fails_a_client_also_when_the_body_is_at_its_end() {
    for variant in VARIANTS {
        let response = with_lengths(sends([], variant), Response::headers_mut, &[b"11"]);
        let response = receive(&client(), get(), response).await;
        assert!(!response.body().is_end_stream());
        let drive = Drive::to_end(response.into_body());
        assert_eq!(drive.outline(), "breach end");
        // It was the declared length, of which nothing was read.
        assert!(!drive.too_large().read_is_total());
    }
}

/// Requests and statuses whose response has no body, whatever it declares.
fn bodiless() -> Vec<(Method, u16)> {
    let by_status = [100, 103, 204, 304].map(|status| (Method::GET, status));
    let by_method = [200, 206, 404, 500].map(|status| (Method::HEAD, status));
    let tunnel = [(Method::CONNECT, 200), (Method::CONNECT, 204)];
    by_status
        .into_iter()
        .chain(by_method)
        .chain(tunnel)
        .collect()
}

const TEN_GIB: u64 = 10 << 30;

fn declares_ten_gib(status: u16, script: Script) -> Response<Script> {
    Response::builder()
        .status(status)
        .header(CONTENT_LENGTH, TEN_GIB)
        .header(ETAG, "\"whole\"")
        .body(script)
        .unwrap()
}

#[tokio::test]
async fn a_message_without_a_body_may_declare_anything() {
    let exact = || Hint::Fixed(SizeHint::with_exact(TEN_GIB));
    for (method, status) in bodiless() {
        for version in [Version::HTTP_10, Version::HTTP_11] {
            for layer in [server(), server().gateway(), server().buffered(), client()] {
                for hint in VARIANTS.into_iter().chain([exact()]) {
                    let script = Script::new([], hint);
                    let (log, size) = (script.log(), script.size_hint());
                    let mut request = get_by(version);
                    *request.method_mut() = method.clone();
                    let response = receive(&layer, request, declares_ten_gib(status, script)).await;
                    assert_eq!(response.status(), status, "{method}");
                    assert_eq!(response.headers()[CONTENT_LENGTH], TEN_GIB.to_string());
                    assert_eq!(response.headers().len(), 2);
                    assert_eq!(log.polls(), 0);
                    assert_eq!(response.body().size_hint().exact(), size.exact());
                    assert_eq!(Drive::to_end(response.into_body()).outline(), "end");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_body_attached_to_a_message_without_one_is_counted_when_it_is_read() {
    for (method, status) in bodiless() {
        for layer in [server(), client()] {
            for variant in VARIANTS {
                for (steps, outline) in [
                    (vec![data(4), data(6)], "4 6 end"),
                    (vec![data(4), data(7), data(1)], "4 breach end"),
                ] {
                    let script = Script::new(steps, variant.clone());
                    let mut request = get();
                    *request.method_mut() = method.clone();
                    let response = receive(&layer, request, declares_ten_gib(status, script)).await;
                    assert_eq!(response.status(), status);
                    assert_eq!(response.headers()[CONTENT_LENGTH], TEN_GIB.to_string());
                    let drive = Drive::to_end(response.into_body());
                    assert_eq!(drive.outline().replace("pending ", ""), outline);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_connect_that_is_turned_down_has_a_body() {
    let request = Request::connect("example.com:80").body(()).unwrap();
    let response = declares_ten_gib(407, Script::new([], Hint::Undeclared));
    assert_eq!(receive(&server(), request, response).await.status(), 500);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_server_lets_what_passed_be_flushed_before_the_error() {
    let over = || vec![data(4), data(20), Trailers];
    let failing = || vec![data(4), Fail];
    let (http_10, http_11, http_2) = (Version::HTTP_10, Version::HTTP_11, Version::HTTP_2);
    let table = [
        (server(), http_11, over(), "4 pending pending breach end"),
        // The drive has no timers that could go off.
        (server(), http_2, over(), "4 stall"),
        (
            server().gateway(),
            http_11,
            over(),
            "4 pending pending breach end",
        ),
        (
            server(),
            http_11,
            failing(),
            "4 pending pending failure end",
        ),
        (
            server(),
            http_11,
            vec![data(11)],
            "pending pending breach end",
        ),
        (
            server(),
            http_11,
            vec![data(4), Pending, data(20)],
            "4 pending pending pending breach end",
        ),
        // The length in the header shows the break to HTTP/1.0, too.
        (server(), http_10, over(), "4 pending pending breach end"),
        (
            server(),
            http_10,
            failing(),
            "4 pending pending failure end",
        ),
        (client(), http_11, over(), "4 breach end"),
        (client(), http_2, over(), "4 breach end"),
        (client(), http_11, failing(), "4 failure end"),
    ];
    for (layer, version, steps, outline) in table {
        // The length in the header keeps HTTP/1.0 from holding the body.
        let response = sends(steps, Hint::Undeclared);
        let response = with_lengths(response, Response::headers_mut, &[b"5"]);
        let response = receive(&layer, get_by(version), response).await;
        assert_eq!(response.status(), 200);
        let drive = Drive::to_end(response.into_body());
        assert_eq!(drive.outline(), outline, "{layer:?}, {version:?}");
    }
}

#[tokio::test]
async fn to_http_1_0_nothing_is_flushed_where_the_break_would_look_like_the_end() {
    for steps in [vec![data(4), data(20)], vec![data(4), Fail]] {
        let mut response = sends(steps, Hint::Undeclared);
        let stream = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(CONTENT_TYPE, stream);
        let response = receive(&server(), get_by(Version::HTTP_10), response).await;
        let outline = Drive::to_end(response.into_body()).outline();
        assert!(!outline.contains("pending"), "{outline}");
    }
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn http_2_is_given_time_to_send_what_passed_before_the_error() {
    let response = sends([data(4), data(20)], Hint::Undeclared);
    let response = receive(&server(), get_by(Version::HTTP_2), response).await;
    let start = tokio::time::Instant::now();
    let mut body = response.into_body();
    assert_eq!(
        body.frame()
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap()
            .len(),
        4
    );
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(TooLarge::find(&body.frame().await.unwrap().unwrap_err()).is_some());
    assert!(start.elapsed() > Duration::ZERO);
    assert!(body.frame().await.is_none());
}

#[test]
fn without_timers_http_2_is_treated_as_http_1_1() {
    let response = sends([data(4), data(20)], Hint::Undeclared);
    let response = receive(&server(), get_by(Version::HTTP_2), response).now_or_never();
    let drive = Drive::to_end(response.unwrap().into_body());
    assert_eq!(drive.outline(), "4 pending pending breach end");
}

#[tokio::test]
async fn while_an_error_waits_the_body_says_nothing_and_the_inner_one_is_gone() {
    for steps in [vec![data(4), data(20)], vec![data(4), Fail]] {
        let response = sends(steps, Hint::Undeclared);
        let log = response.body().log();
        let mut drive = Drive::new(receive(&server(), get(), response).await.into_body());
        assert_eq!(drive.step(), "4");
        assert_eq!(drive.step(), "pending");
        assert!(log.dropped());
        assert!(!drive.body.is_end_stream());
        let hint = drive.body.size_hint();
        assert_eq!((hint.lower(), hint.upper()), (0, None));
        drive.run();
        assert_eq!(log.polls(), 2);
    }
}

#[tokio::test]
async fn frames_of_a_response_pass_before_the_next_one_exists() {
    for layer in [server(), client()] {
        for variant in VARIANTS {
            let frame = Bytes::from(vec![b'x'; 4]);
            let response = sends([Step::Data(frame.clone()), Stall], variant);
            let log = response.body().log();
            let response = receive(&layer, get(), response).await;
            assert_eq!(log.polls(), 0);
            let mut drive = Drive::new(response.into_body());
            assert_eq!(drive.step(), "4");
            assert_eq!(drive.frames[0].as_ptr(), frame.as_ptr());
            assert_eq!(drive.step(), "stall");
        }
    }
}

#[tokio::test]
async fn each_response_of_one_service_counts_for_itself() {
    for layer in [server(), client()] {
        for variant in VARIANTS {
            let variant = &variant;
            let inner = service_fn(|_: Request<()>| {
                let response = sends([data(5), data(5)], variant.clone());
                ready(Ok::<_, Infallible>(response))
            });
            let mut service = layer.layer(inner);
            let mut drives = Vec::new();
            for _ in 0..2 {
                let response = service.ready().await.unwrap().call(get()).await.unwrap();
                drives.push(Drive::new(response.into_body()));
            }
            for _ in 0..2 {
                for drive in &mut drives {
                    assert_eq!(drive.step(), "5");
                }
            }
            for drive in &mut drives {
                drive.run();
                assert_eq!(drive.outline(), "5 5 end");
            }
        }
    }
}

// Holding

fn buffered() -> ResponseSizeLimitLayer {
    server().buffered()
}

#[tokio::test]
async fn a_buffered_response_is_held_until_its_end() {
    let halves = || vec![data(4), Pending, data(0), data(6)];
    let with_trailers = || [halves(), vec![Trailers]].concat();
    let bytewise = || (0..10).map(|_| data(1)).collect();
    let table: [(Vec<Step>, usize, &str); 4] = [
        (halves(), 10, "10 end"),
        (with_trailers(), 10, "10 trailers end"),
        (bytewise(), 10, "10 end"),
        (vec![], 0, "end"),
    ];
    for (steps, len, outline) in table {
        for variant in VARIANTS {
            let trailers = matches!(steps.last(), Some(Trailers));
            let response = sends(steps.clone(), variant);
            let log = response.body().log();
            let response = receive(&buffered(), get(), response).await;
            assert!(log.dropped());
            assert_eq!(log.polls(), steps.len() + 1);
            let hint = response.body().size_hint();
            assert_eq!(hint.lower(), len as u64);
            // A server that announces a length has no place for trailers.
            assert_eq!(hint.exact(), (!trailers).then_some(len as u64));
            assert_eq!(Drive::to_end(response.into_body()).outline(), outline);
        }
    }
}

#[tokio::test]
async fn what_was_held_comes_out_in_order() {
    let pieces = [1, 8191, 2, 8192, 3, 16384, 5, 5000, 5000, 5000, 5000, 1];
    let mut bytes = (0..).map(|number: u32| (number * 31 % 251) as u8);
    let frames = pieces.map(|len| bytes.by_ref().take(len).collect::<Bytes>());
    let layer = ResponseSizeLimitLayer::server(1 << 20).buffered();
    for variant in VARIANTS {
        let response = sends(frames.clone().map(Step::Data), variant);
        let response = receive(&layer, get(), response).await;
        assert_eq!(Drive::to_end(response.into_body()).data(), frames.concat());
    }
}

#[tokio::test]
async fn a_breach_while_holding_becomes_a_whole_answer() {
    for steps in [
        vec![data(11)],
        vec![data(4), Pending, data(7), Fail],
        (0..11).map(|_| data(1)).collect(),
        vec![data(10), data(0), data(1), Trailers],
    ] {
        for variant in VARIANTS {
            let response = sends(steps.clone(), variant);
            let log = response.body().log();
            let answer = receive(&buffered(), get(), response).await;
            assert!(log.dropped());
            let text = "The response body is too large.\n";
            check_answer(answer, 500, &Method::GET, text).await;
        }
    }
}

#[tokio::test]
async fn an_inner_error_while_holding_comes_after_what_was_held() {
    for variant in VARIANTS {
        let mut response = sends([data(4), Pending, data(2), Fail], variant);
        *response.status_mut() = StatusCode::CREATED;
        let response = receive(&buffered(), get(), response).await;
        assert_eq!(response.status(), 201);
        assert!(!response.body().is_end_stream());
        let hint = response.body().size_hint();
        assert_eq!((hint.lower(), hint.upper()), (0, None));
        let drive = Drive::to_end(response.into_body());
        assert_eq!(drive.outline(), "6 pending pending failure end");
        assert!(matches!(drive.error, Some(Error::Body(_))));
    }
}

#[tokio::test]
async fn the_cause_of_an_error_while_holding_decides_the_answer() {
    // The handler echoes a request that was over the limit of another layer.
    let echo =
        service_fn(async |request: Limited| io::Result::Ok(Response::new(request.into_body())));
    let service = buffered().layer(
        tower::ServiceBuilder::new()
            .layer(RequestSizeLimitLayer::server(5))
            .service(echo),
    );
    let response = service
        .oneshot(post([data(4), data(4)], Hint::Undeclared))
        .await
        .unwrap();
    assert_eq!(response.status(), 413);
}

/// Whether the layer waits for the body of a response with these headers.
async fn holds(layer: &ResponseSizeLimitLayer, version: Version, types: &[&str]) -> bool {
    let mut response = sends([data(4), Stall], Hint::Undeclared);
    for ty in types {
        response
            .headers_mut()
            .append(CONTENT_TYPE, ty.parse().unwrap());
    }
    let log = response.body().log();
    let mut call = layer.layer(Once(Some(response))).call(get_by(version));
    let (poll, _) = poll_once(&mut call);
    assert_eq!(poll.is_pending(), log.polls() > 0);
    poll.is_pending()
}

/// Whoever was answered had not read the request, for instance.
#[tokio::test]
async fn an_answer_closes_the_connection_if_the_one_it_replaces_did() {
    for hint in VARIANTS {
        for (connection, closes) in [
            (&["close"][..], true),
            (&["x-hop, Close"], true),
            (&["x-hop", "close"], true),
            (&["x-close"], false),
            (&[], false),
        ] {
            let mut response = Response::new(Script::new([data(11)], hint.clone()));
            for value in connection {
                let value = HeaderValue::from_static(value);
                response.headers_mut().append(CONNECTION, value);
            }
            let service = buffered().layer(Once(Some(response)));
            let response = service.oneshot(get_by(Version::HTTP_11)).await.unwrap();
            assert_eq!(response.status(), 500);
            let left: Vec<_> = response.headers().get_all(CONNECTION).iter().collect();
            assert_eq!(left.len(), usize::from(closes), "{connection:?}");
            assert!(left.iter().all(|value| *value == "close"), "{left:?}");
        }
    }
}

#[tokio::test]
async fn streams_are_never_held() {
    let table: [(&[&str], bool); 26] = [
        (&[], true),
        (&["text/plain"], true),
        (&["application/json"], true),
        (&["multipart/form-data; boundary=x"], true),
        (&["x; text/event-stream"], true),
        (&["text/event-streams"], true),
        (&["text/event-stream"], false),
        (&["Text/Event-Stream; charset=utf-8"], false),
        (&["text/event-stream;charset=utf-8"], false),
        (&["multipart/x-mixed-replace; boundary=x"], false),
        (&["application/grpc"], false),
        (&["application/grpc+proto"], false),
        (&["application/grpc-web"], false),
        (&["application/grpcish"], true),
        (&["APPLICATION/gRPC-Web+proto"], false),
        (&["application/x-ndjson"], false),
        (&["application/jsonl"], false),
        (&["application/json-seq"], false),
        (&["application/connect+json"], false),
        (&["application/connect+proto"], false),
        (&["Application/Connect+Proto"], false),
        (&["application/connect"], true),
        (&["application/stream+json"], false),
        (&["text/plain", "text/event-stream"], true),
        (&["text/event-stream", "text/plain"], true),
        (&[";"], true),
    ];
    for (types, held) in table {
        let found = holds(&buffered(), Version::HTTP_11, types).await;
        assert_eq!(found, held, "{types:?}");
        assert!(!holds(&server(), Version::HTTP_11, types).await);
        assert!(!holds(&client().buffered(), Version::HTTP_11, types).await);
    }
}

#[tokio::test]
async fn a_response_without_a_limit_is_never_held() {
    let unlimited = ResponseSizeLimitLayer::server(None).buffered();
    assert!(!holds(&unlimited, Version::HTTP_11, &[]).await);
    assert!(!holds(&unlimited, Version::HTTP_10, &[]).await);
}

#[tokio::test]
async fn http_1_0_gets_a_body_of_unknown_length_held_first() {
    let http_10 = Version::HTTP_10;
    for (ty, held) in [
        ("text/plain", true),
        ("application/x-ndjson", true),
        ("application/grpc", true),
        ("text/event-stream", false),
        ("multipart/x-mixed-replace", false),
    ] {
        assert_eq!(holds(&server(), http_10, &[ty]).await, held, "{ty}");
        assert!(!holds(&client(), http_10, &[ty]).await, "{ty}");
    }
    let request = || get_by(http_10);
    let over = || [data(4), data(7)];
    let answer = receive(&server(), request(), sends(over(), Hint::Undeclared)).await;
    check_answer(
        answer,
        500,
        &Method::GET,
        "The response body is too large.\n",
    )
    .await;
    // A length that nobody can read is none.
    let response = with_lengths(
        sends(over(), Hint::Undeclared),
        Response::headers_mut,
        &[b"-1"],
    );
    assert_eq!(receive(&server(), request(), response).await.status(), 500);

    let response = receive(
        &server(),
        request(),
        sends([data(4), data(6)], Hint::Undeclared),
    )
    .await;
    assert_eq!(response.status(), 200);
    assert_eq!(Drive::to_end(response.into_body()).outline(), "10 end");
    let response = sends([data(4), Fail], Hint::Undeclared);
    let response = receive(&server(), request(), response).await;
    assert_eq!(
        Drive::to_end(response.into_body()).outline(),
        "4 failure end"
    );

    // With a length the client notices what is missing.
    let response = sends([data(4), data(6)], Hint::Declared);
    let log = response.body().log();
    let response = receive(&server(), request(), response).await;
    assert_eq!(log.polls(), 0);
    assert_eq!(Drive::to_end(response.into_body()).outline(), "4 6 end");
}

#[tokio::test]
async fn buffering_does_not_make_http_1_0_hold_less() {
    for ty in ["text/plain", "application/x-ndjson", "application/grpc"] {
        let unbuffered = holds(&server(), Version::HTTP_10, &[ty]).await;
        assert_eq!(
            holds(&buffered(), Version::HTTP_10, &[ty]).await,
            unbuffered,
            "{ty}"
        );
    }
}

#[tokio::test]
async fn holding_gives_way_to_other_tasks() {
    for step in [data(0), data(1)] {
        let layer = ResponseSizeLimitLayer::server(u64::MAX).buffered();
        let script = Script::endless(step);
        let log = script.log();
        let call = layer.layer(Once(Some(Response::new(script)))).call(get());
        assert_gives_way(call, &log);
    }
}

// Which limit

#[tokio::test]
async fn the_limit_may_depend_on_the_head() {
    let by_path = RequestSizeLimitLayer::server_with(|head| match head.uri.path() {
        "/small" => Some(5),
        "/open" => None,
        _ => head.extensions.get::<u64>().copied(),
    });
    let table = [
        ("/small", 5, true),
        ("/small", 6, false),
        ("/open", 1 << 20, true),
        ("/x", 7, true),
        ("/x", 8, false),
    ];
    for (path, len, passes) in table {
        for variant in VARIANTS {
            let declared = matches!(variant, Hint::Declared);
            let mut request = post([data(len)], variant);
            *request.uri_mut() = path.parse().unwrap();
            request.extensions_mut().insert(7_u64);
            let (_, handler) = serve(&by_path, request).await;
            check_passage(&handler, !passes && declared, passes);
        }
    }
}

#[tokio::test]
async fn the_limit_of_a_response_may_depend_on_its_status() {
    let by_status = |head: &http::response::Parts| head.status.is_success().then_some(5);
    let client = ResponseSizeLimitLayer::client_with(by_status);
    let server = ResponseSizeLimitLayer::server_with(by_status);
    for (status, len, passes) in [(200, 5, true), (200, 6, false), (404, 1 << 20, true)] {
        for variant in VARIANTS {
            let response = || {
                let mut response = sends([data(len)], variant.clone());
                *response.status_mut() = StatusCode::from_u16(status).unwrap();
                response
            };
            let received = receive(&client, get(), response()).await;
            assert_eq!(Drive::to_end(received.into_body()).error.is_none(), passes);
            let served = receive(&server, get(), response()).await;
            let whole =
                served.status() == status && Drive::to_end(served.into_body()).error.is_none();
            assert_eq!(whole, passes);
        }
    }
}

#[tokio::test]
async fn none_is_no_limit_and_zero_is_zero() {
    let huge = 1 << 20;
    for variant in VARIANTS {
        let request = post([data(huge)], variant.clone());
        let request = with_lengths(request, Request::headers_mut, &[TWO_TO_THE_64]);
        let (_, handler) = serve(&RequestSizeLimitLayer::server(None), request).await;
        assert_eq!(handler.drive().outline(), "1048576 end");

        for layer in [
            ResponseSizeLimitLayer::server(None),
            ResponseSizeLimitLayer::client(None),
        ] {
            let response = sends([data(huge)], variant.clone());
            let response = with_lengths(response, Response::headers_mut, &[TWO_TO_THE_64]);
            let response = receive(&layer, get(), response).await;
            assert_eq!(Drive::to_end(response.into_body()).outline(), "1048576 end");
        }
        for layer in [
            ResponseSizeLimitLayer::server(0),
            ResponseSizeLimitLayer::client(0),
        ] {
            let empty = receive(&layer, get(), sends([], variant.clone())).await;
            assert_eq!(Drive::to_end(empty.into_body()).outline(), "end");
            let one = receive(&layer, get(), sends([data(1)], variant.clone())).await;
            let refused = one.status() == 500;
            assert!(refused || Drive::to_end(one.into_body()).too_large().limit() == 0);
        }
    }
}

#[test]
fn a_layer_shows_its_limit() {
    let shown = |layer: &dyn std::fmt::Debug| format!("{layer:?}");
    assert!(shown(&RequestSizeLimitLayer::server(10)).contains("10 bytes"));
    assert!(shown(&ResponseSizeLimitLayer::client(None)).contains("unlimited"));
    let by_head = RequestSizeLimitLayer::client_with(|_| Some(10));
    assert!(shown(&by_head).contains("decided for each message"));
    let drained = RequestSizeLimitLayer::server(10)
        .on_breach(|_| ())
        .drain_with(1000, Duration::from_secs(5), |_| std::future::ready(()));
    assert!(shown(&drained).contains("1000 bytes in 5s"));
    assert!(shown(&drained).contains("on_breach: true, on_end: false"));
    assert!(shown(&drained.no_drain()).contains("drain: None"));
}

#[tokio::test]
async fn a_configured_copy_leaves_the_original_alone() {
    let original = server();
    let _copy = original.clone().gateway().label("copy").buffered();
    let answer = receive(&original, get(), sends([data(11)], Hint::Declared)).await;
    let error = answer.extensions().get::<TooLarge>().unwrap();
    assert_eq!((answer.status().as_u16(), error.label()), (500, None));
}

#[tokio::test]
async fn the_label_is_in_the_error() {
    for variant in VARIANTS {
        let layer = RequestSizeLimitLayer::server(10).label("in");
        let request = post([data(11)], variant.clone());
        let (answer, handler) = serve(&layer, request).await;
        let label = match answer.extensions().get::<TooLarge>() {
            Some(error) => error.label(),
            None => handler.drive().too_large().label(),
        };
        assert_eq!(label, Some("in"));
        let response = sends([data(11)], variant);
        let response = receive(&client().label("out"), get(), response).await;
        assert_eq!(
            Drive::to_end(response.into_body()).too_large().label(),
            Some("out")
        );
    }
}

// The service contract

/// A service that is ready on the second poll, then fails when it is asked or when it is called.
#[derive(Clone, Debug)]
struct Fails {
    polls: usize,
    when_asked: bool,
}

impl<B> Service<Request<B>> for Fails {
    type Response = Response<Script>;
    type Error = io::Error;
    type Future = Ready<io::Result<Response<Script>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.polls += 1;
        match self.polls {
            1 => Poll::Pending,
            _ if self.when_asked => Poll::Ready(Err(io::Error::other("not ready"))),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Err(io::Error::other("no answer")))
    }
}

/// What the errors of readiness and of a call are behind the layer.
async fn failures<L, E>(layer: L) -> [E; 2]
where
    L: Layer<Fails>,
    L::Service: Service<Request<Script>, Error = E>,
{
    let mut errors = Vec::new();
    for when_asked in [true, false] {
        let mut service = layer.layer(Fails {
            polls: 0,
            when_asked,
        });
        let mut asked = std::future::poll_fn(|cx| service.poll_ready(cx));
        assert!(poll_once(&mut asked).0.is_pending());
        let (Poll::Ready(asked), _) = poll_once(&mut asked) else {
            panic!("not passed on");
        };
        errors.push(match asked {
            Err(error) => error,
            Ok(()) => match service.call(post([data(5)], Hint::Declared)).await {
                Err(error) => error,
                Ok(_) => panic!("the call did not fail"),
            },
        });
    }
    errors.try_into().unwrap_or_else(|_| unreachable!())
}

#[tokio::test]
async fn readiness_and_errors_are_the_inner_services() {
    let texts = ["not ready", "no answer"];
    assert_eq!(
        failures(RequestSizeLimitLayer::server(10))
            .await
            .map(|error| error.to_string()),
        texts
    );
    assert_eq!(
        failures(server()).await.map(|error| error.to_string()),
        texts
    );
    assert_eq!(
        failures(client()).await.map(|error| error.to_string()),
        texts
    );
    assert_eq!(
        failures(TruncateLayer::new(10))
            .await
            .map(|error| error.to_string()),
        texts
    );
    let adjusted = (
        RequestSizeLimitLayer::server(10).adjustable(100),
        SetRequestLimitLayer::new(20),
    );
    assert_eq!(
        failures(adjusted).await.map(|error| error.to_string()),
        texts
    );
    let boxed = failures(RequestSizeLimitLayer::client(10))
        .await
        .map(|error| match error {
            Error::Service(inner) => inner.to_string(),
            other => panic!("{other:?}"),
        });
    assert_eq!(boxed, texts);
}

#[test]
fn the_inner_service_can_be_reached() {
    let mut service = server().layer(1);
    *service.get_mut() += 1;
    assert_eq!((*service.get_ref(), service.into_inner()), (2, 2));
    let mut service = RequestSizeLimitLayer::server(10).layer(1);
    *service.get_mut() += 1;
    assert_eq!((*service.get_ref(), service.into_inner()), (2, 2));
    let mut service = RequestSizeLimitLayer::client(10).layer(1);
    *service.get_mut() += 1;
    assert_eq!((*service.get_ref(), service.into_inner()), (2, 2));
}
