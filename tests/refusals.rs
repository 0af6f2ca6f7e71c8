//! What the answer to a request that is too large says, and the drain behind it.

mod support;
#[path = "support/witness.rs"]
mod witness;

use std::{
    io, mem,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{
        ACCEPT, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, SET_COOKIE,
        TRAILER,
    },
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use static_assertions::assert_impl_all;
use support::{
    Hint, Log, Script,
    Step::{self, Fail, Pending, Stall, Trailers},
    data,
    drive::{Drive, assert_gives_way},
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_body_limit::{
    LimitedBody, RequestHead, RequestSizeLimitLayer, ResponseBody, ResponseSizeLimitLayer, Subject,
    TooLarge, respond,
};
use witness::{Found, StoppedClock, Witness};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const TEXT: &str = "The request body is too large.\n";

assert_impl_all!(ResponseBody<Full<Bytes>>: Send, Sync, Unpin, Default);

type Answered = Response<ResponseBody<Script>>;

/// Reads the body to its end or its error, and then answers in this way.
#[derive(Clone, Debug)]
enum Handler {
    Fails,
    Answers(StatusCode),
}

impl<B> Service<Request<B>> for Handler
where
    B: Body<Data = Bytes, Error: Into<support::net::BoxError>> + Send + 'static,
{
    type Response = Response<Script>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Response<Script>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let answer = self.clone();
        Box::pin(async move {
            let mut body = Box::pin(request.into_body());
            while let Some(frame) = body.frame().await {
                if let (Err(error), Self::Fails) = (frame, &answer) {
                    return Err(io::Error::other(error));
                }
            }
            let mut response = Response::new(Script::new([data(9)], Hint::Declared));
            if let Self::Answers(status) = answer {
                *response.status_mut() = status;
            }
            Ok(response)
        })
    }
}

const BAD_REQUEST: Handler = Handler::Answers(StatusCode::BAD_REQUEST);

/// What becomes of a request under a layer, its handler answering 400 if it could not be read.
async fn serve<B>(layer: &RequestSizeLimitLayer, request: Request<B>) -> Answered
where
    B: Body<Data = Bytes, Error: Into<support::net::BoxError>> + Send + Unpin + 'static,
{
    let response = layer.layer(BAD_REQUEST).oneshot(request).await;
    response.expect("the handler does not fail")
}

fn limit() -> RequestSizeLimitLayer {
    RequestSizeLimitLayer::server(10)
}

/// With a drain that needs no default feature.
fn draining(budget: u64, deadline: Duration) -> RequestSizeLimitLayer {
    limit().drain_with(budget, deadline, sleep)
}

/// A request that is refused, and what is left of it then.
fn post(found: Found, rest: impl IntoIterator<Item = Step>) -> (Request<Script>, Log) {
    let read = vec![data(4); polls_before(found)];
    let script = Script::new(read.into_iter().chain(rest), Hint::Undeclared);
    let log = script.log();
    (found.post(script, 1000), log)
}

/// How often a body from [`post`] is polled before it is refused.
fn polls_before(found: Found) -> usize {
    if found.is_declared() { 0 } else { 3 }
}

fn assert_refused<B>(response: &Response<B>, found: Found) {
    assert_eq!(response.status(), 413, "{found:?}");
    let error = response.extensions().get::<TooLarge>().expect("no error");
    assert_eq!(error.limit(), 10);
    assert_eq!(error.subject(), Subject::Request);
    let declared = error.declared();
    assert_eq!(declared.is_some(), found.is_declared(), "{found:?}");
    let read = if found.is_declared() { 0 } else { 12 };
    assert_eq!(error.read(), read, "{found:?}");
}

fn closes<B>(response: &Response<B>) -> bool {
    let connection = response.headers().get(CONNECTION);
    connection.is_some_and(|value| value == "close")
}

// What the answer carries, and what it does not keep

#[tokio::test]
async fn every_refusal_is_the_same_small_whole_answer() {
    let layer = limit().no_drain().label("uploads");
    for found in Found::ALL {
        for handler in [BAD_REQUEST, Handler::Fails] {
            let (request, _) = post(found, [data(4)]);
            let service = found.by(layer.clone()).layer(handler);
            let response = service.oneshot(request).await.unwrap();
            assert_refused(&response, found);
            let error = response.extensions().get::<TooLarge>().unwrap();
            assert_eq!(error.label(), Some("uploads"));
            let expected = HeaderMap::from_iter([
                (CONTENT_TYPE, "text/plain; charset=utf-8".parse().unwrap()),
                (CONTENT_LENGTH, TEXT.len().into()),
                (CONNECTION, "close".parse().unwrap()),
            ]);
            assert_eq!(*response.headers(), expected, "{found:?}");
            assert_eq!(response.version(), Version::HTTP_11);
            let body = response.into_body();
            assert_eq!(body.size_hint().exact(), Some(TEXT.len() as u64));
            assert_eq!(Drive::to_end(body).data(), TEXT.as_bytes());
        }
    }
}

#[derive(Clone)]
struct Mark;

#[tokio::test]
async fn a_replaced_answer_keeps_nothing_of_the_old_one() {
    for status in [400, 408, 422, 500, 502] {
        for found in [Found::AtTheFirstRead, Found::WhileItIsRead] {
            let old = Script::new([data(9)], Hint::Declared);
            let log = old.log();
            let old = Mutex::new(Some(old));
            let handler = service_fn(async |request: Request<LimitedBody<Script>>| {
                let _ = request.into_body().collect().await;
                let response = Response::builder()
                    .status(status)
                    .version(Version::HTTP_10)
                    .header(SET_COOKIE, "session=1")
                    .header(CONTENT_ENCODING, "gzip")
                    .header(TRAILER, "x-trailer")
                    .header(CONTENT_LENGTH, 9)
                    .header("x-more", "more")
                    .extension(Mark);
                Ok::<_, io::Error>(response.body(old.lock().unwrap().take().unwrap()).unwrap())
            });
            let layer = found.by(draining(MIB, Duration::from_secs(5)));
            let (request, _) = post(found, [data(4)]);
            let response = layer.layer(handler).oneshot(request).await.unwrap();
            assert_refused(&response, found);
            for header in [SET_COOKIE, CONTENT_ENCODING, TRAILER] {
                assert!(!response.headers().contains_key(header), "{status}");
            }
            assert!(!response.headers().contains_key("x-more"), "{status}");
            assert_eq!(response.headers()[CONTENT_LENGTH], "31", "{status}");
            assert!(response.extensions().get::<Mark>().is_none(), "{status}");
            assert_eq!(response.version(), Version::HTTP_11, "{status}");
            // The old body is gone before the answer is on its way.
            assert!(log.dropped(), "{status}");
            assert_eq!(
                Drive::to_end(response.into_body()).outline(),
                "30 pending pending 1 end"
            );
        }
    }
}

#[tokio::test]
async fn an_answer_that_stays_is_untouched_but_for_the_error_in_its_extensions() {
    for (status, kept) in [(200, false), (401, false), (400, true), (500, true)] {
        let handler = Handler::Answers(StatusCode::from_u16(status).unwrap());
        let base = draining(MIB, Duration::from_secs(5));
        let base = if kept {
            base.keep_inner_answers()
        } else {
            base
        };
        for found in [Found::AtTheFirstRead, Found::WhileItIsRead] {
            let (request, log) = post(found, [data(4)]);
            let layer = found.by(base.clone());
            let service = layer.layer(handler.clone());
            let response = service.oneshot(request).await.unwrap();
            assert_eq!(response.status(), status);
            assert_eq!(response.extensions().get::<TooLarge>().unwrap().limit(), 10);
            assert!(response.headers().is_empty(), "{:?}", response.headers());
            assert!(log.dropped(), "what is left is of no use to anybody");
            assert_eq!(Drive::to_end(response.into_body()).outline(), "9 end");
        }
    }
}

#[tokio::test]
async fn an_error_of_the_handler_stays_where_inner_answers_are_kept() {
    let layer = limit().keep_inner_answers();
    let (request, _) = post(Found::WhileItIsRead, []);
    let result = layer.layer(Handler::Fails).oneshot(request).await;
    assert_eq!(TooLarge::find(&result.unwrap_err()).unwrap().limit(), 10);
    // What the head settles is the layer's own affair.
    let (request, _) = post(Found::InTheHead, []);
    let result = layer.layer(Handler::Fails).oneshot(request).await;
    assert_refused(&result.unwrap(), Found::InTheHead);
}

#[tokio::test]
async fn a_failure_with_another_cause_is_left_alone() {
    for steps in [vec![data(4), Fail], vec![data(10)]] {
        let request = || Request::new(Script::new(steps.clone(), Hint::Undeclared));
        let response = serve(&limit(), request()).await;
        assert_eq!(response.status(), 400);
        assert!(response.extensions().get::<TooLarge>().is_none());
        assert_eq!(Drive::to_end(response.into_body()).outline(), "9 end");
    }
    let request = Request::new(Script::new([data(4), Fail], Hint::Undeclared));
    let result = limit().layer(Handler::Fails).oneshot(request).await;
    assert!(TooLarge::find(&result.unwrap_err()).is_none());
}

type Answer = fn(&TooLarge, &RequestHead) -> Response<Bytes>;

/// Each answer, whom it is given to, and its status, type and text on a request.
fn answers() -> Vec<(Option<Answer>, &'static str, u16, &'static str, String)> {
    let problem = |more: &str| {
        format!(
            r#"{{"type":"about:blank","title":"Content Too Large","status":413,"detail":"The request body is too large."{more}}}"#
        )
    };
    let json = "application/problem+json";
    let plain = "text/plain; charset=utf-8";
    let with_limit = problem(r#","limit":7777"#);
    let mut rows: Vec<(Option<Answer>, _, _, _, _)> = vec![
        (Some(respond::plain_text), "a/b", 413, plain, TEXT.into()),
        (Some(respond::problem_json), "a/b", 413, json, problem("")),
        (
            Some(respond::problem_json_with_limit),
            "a/b",
            413,
            json,
            with_limit,
        ),
        (
            Some(respond::grpc),
            "a/b",
            200,
            "application/grpc",
            String::new(),
        ),
        (
            Some(respond::plain_text),
            "application/grpc",
            413,
            plain,
            TEXT.into(),
        ),
    ];
    for standard in [None, Some(respond::standard as Answer)] {
        for grpc in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc-web",
            "application/grpc-web-text+proto",
        ] {
            rows.push((standard, grpc, 200, grpc, String::new()));
        }
        for other in ["application/json", "text/plain", "application/gopher"] {
            rows.push((standard, other, 413, plain, TEXT.into()));
        }
    }
    rows
}

#[tokio::test]
async fn each_answer_says_what_its_documentation_says() {
    for (answer, sent, status, content_type, text) in answers() {
        for found in Found::ALL {
            let mut layer = RequestSizeLimitLayer::server(7777).no_drain();
            if let Some(answer) = answer {
                layer = layer.answer_with(answer);
            }
            let script = Script::new([data(4000), data(4000)], found.hint());
            let mut request = found.post(script, 8000);
            let sent = HeaderValue::from_static(sent);
            request.headers_mut().insert(CONTENT_TYPE, sent.clone());
            let response = serve(&found.by(layer), request).await;
            let case = format!("{sent:?} {content_type} {found:?}");
            assert_eq!(response.status(), status, "{case}");
            assert_eq!(response.headers()[CONTENT_TYPE], content_type, "{case}");
            let grpc = |name| response.headers().get(name).map(HeaderValue::as_bytes);
            let is_grpc = status == 200;
            assert_eq!(grpc("grpc-status"), is_grpc.then_some(&b"8"[..]), "{case}");
            let message = is_grpc.then_some(TEXT.trim_end().as_bytes());
            assert_eq!(grpc("grpc-message"), message, "{case}");
            let length = response.headers().get(CONTENT_LENGTH).cloned();
            let framed = (!text.is_empty()).then(|| HeaderValue::from(text.len()));
            assert_eq!(length, framed, "{case}");
            let hint = response.body().size_hint();
            assert_eq!(hint.exact(), Some(text.len() as u64), "{case}");
            let body = Drive::to_end(response.into_body()).data();
            assert_eq!(String::from_utf8(body).unwrap(), text, "{case}");
            if content_type.ends_with("json") {
                serde_json::from_str::<serde_json::Value>(&text).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_number_is_in_an_answer_only_when_it_was_asked_for() {
    for (answer, _, _, _, text) in answers() {
        let asked = answer.is_some_and(|answer| {
            std::ptr::fn_addr_eq(answer, respond::problem_json_with_limit as Answer)
        });
        assert_eq!(text.contains("7777"), asked, "{text}");
    }
}

#[tokio::test]
async fn an_answer_on_the_response_side_has_the_status_and_the_words_of_a_response() {
    let problem = |status, title| {
        format!(
            r#"{{"type":"about:blank","title":"{title}","status":{status},"detail":"The response body is too large."}}"#
        )
    };
    let layer = ResponseSizeLimitLayer::server(3).answer_with(respond::problem_json);
    for (layer, status, title) in [
        (layer.clone(), 500, "Internal Server Error"),
        (layer.gateway(), 502, "Bad Gateway"),
    ] {
        for (hint, layer) in [
            (Hint::Declared, layer.clone()),
            (Hint::Undeclared, layer.clone().buffered()),
        ] {
            let body = || Script::new([data(4)], hint.clone());
            let service =
                service_fn(async |_: Request<()>| Ok::<_, io::Error>(Response::new(body())));
            let response = layer.layer(service).oneshot(Request::new(())).await;
            let response = response.unwrap();
            assert_eq!(response.status(), status);
            let error = response.extensions().get::<TooLarge>().unwrap();
            assert_eq!(error.subject(), Subject::Response);
            let body = Drive::to_end(response.into_body()).data();
            assert_eq!(String::from_utf8(body).unwrap(), problem(status, title));
        }
    }
}

/// One layer for each type that a closure may put into its answer.
fn closures() -> [(&'static str, RequestSizeLimitLayer); 5] {
    fn status<T>(body: T) -> Response<T> {
        let response = Response::builder().status(StatusCode::IM_A_TEAPOT);
        response.body(body).unwrap()
    }
    let limit = || draining(MIB, Duration::from_secs(5));
    [
        (
            "own",
            limit().answer_with(|_, _| status(String::from("own"))),
        ),
        ("own", limit().answer_with(|_, _| status(b"own".to_vec()))),
        ("own", limit().answer_with(|_, _| status("own"))),
        (
            "own",
            limit().answer_with(|_, _| status(Bytes::from("own"))),
        ),
        ("", limit().answer_with(|_, _| status(""))),
    ]
}

#[tokio::test]
async fn an_answer_may_be_of_any_type_that_becomes_bytes() {
    for (text, layer) in closures() {
        for found in Found::ALL {
            let (request, log) = post(found, [data(4)]);
            let response = serve(&found.by(layer.clone()), request).await;
            assert_eq!(response.status(), StatusCode::IM_A_TEAPOT, "{found:?}");
            assert!(response.extensions().get::<TooLarge>().is_some());
            // What is left out is added, and nothing else.
            let length = response.headers().get(CONTENT_LENGTH).cloned();
            let framed = (!text.is_empty()).then(|| HeaderValue::from(text.len()));
            assert_eq!(length, framed, "{found:?}");
            assert!(!response.headers().contains_key(CONTENT_TYPE));
            let body = response.into_body();
            // An announced end would end the drain.
            assert!(!body.is_end_stream(), "{found:?}");
            let exact = (!text.is_empty()).then_some(text.len() as u64);
            assert_eq!(body.size_hint().exact(), exact, "{found:?}");
            let drive = Drive::to_end(body);
            assert_eq!(drive.data(), text.as_bytes(), "{found:?}");
            assert_eq!(log.polls(), polls_before(found) + 2, "{text:?} {found:?}");
            assert!(log.dropped());
        }
    }
}

#[tokio::test]
async fn an_answer_knows_the_request_it_is_for() {
    let layer = limit().no_drain().answer_with(|error, head| {
        let text = |value: Option<&HeaderValue>| value.unwrap().to_str().unwrap().to_owned();
        let head = format!(
            "{} {} {:?} {} {}",
            head.method(),
            head.uri(),
            head.version(),
            text(head.accept()),
            text(head.content_type())
        );
        Response::new(format!("{head}: {error}"))
    });
    for found in Found::ALL {
        let (mut request, _) = post(found, []);
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = "/a?b=c".parse().unwrap();
        *request.version_mut() = Version::HTTP_10;
        for (name, value) in [(ACCEPT, "text/html"), (CONTENT_TYPE, "image/png")] {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        // A handler that changes the head changes it for itself alone.
        let layer = found.by(layer.clone());
        let service = layer.layer(tower::util::MapRequest::new(
            BAD_REQUEST,
            |mut request: Request<LimitedBody<Script>>| {
                request.headers_mut().clear();
                *request.uri_mut() = "/elsewhere".parse().unwrap();
                request
            },
        ));
        let response = service.oneshot(request).await.unwrap();
        let text = Drive::to_end(response.into_body()).data();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "PUT /a?b=c HTTP/1.0 text/html image/png: \
             the request body is larger than its limit of 10 bytes",
            "{found:?}"
        );
    }
}

#[tokio::test]
async fn the_answer_to_head_is_empty_and_has_the_length_of_the_whole() {
    for found in Found::ALL {
        let (mut request, log) = post(found, [data(4)]);
        *request.method_mut() = Method::HEAD;
        let layer = found.by(draining(MIB, Duration::from_secs(5)));
        let response = serve(&layer, request).await;
        assert_refused(&response, found);
        assert_eq!(response.headers()[CONTENT_LENGTH], "31", "{found:?}");
        // There is nothing to drain behind.
        assert!(closes(&response), "{found:?}");
        assert!(log.dropped(), "{found:?}");
        let body = response.into_body();
        assert!(body.is_end_stream());
        assert_eq!(Drive::to_end(body).outline(), "end");
    }
}

// What is drained, and when the connection closes

struct Case {
    name: &'static str,
    change: fn(&mut Request<Script>),
    /// What the body says of its length once it was refused.
    hint: Hint,
    budget: Option<u64>,
    drained: bool,
    closes: bool,
}

/// For a request of which 20 bytes are left.
fn cases() -> Vec<Case> {
    fn row(name: &'static str, drained: bool, closes: bool) -> Case {
        Case {
            name,
            change: |_| {},
            hint: Hint::Declared,
            budget: Some(20),
            drained,
            closes,
        }
    }
    let exact = |bytes| Hint::Fixed(SizeHint::with_exact(bytes));
    let mut at_most = SizeHint::new();
    at_most.set_lower(12);
    at_most.set_upper(20);
    vec![
        row("within the budget", true, false),
        Case {
            budget: Some(19),
            ..row("beyond the budget", true, true)
        },
        Case {
            hint: Hint::Undeclared,
            ..row("not declared", true, true)
        },
        Case {
            hint: Hint::Fixed(at_most),
            ..row("at most the budget", true, true)
        },
        Case {
            budget: None,
            ..row("no drain", false, true)
        },
        Case {
            hint: exact(0),
            ..row("nothing left", false, false)
        },
        Case {
            change: |request| expect(request, &["100-continue"]),
            ..row("not yet sent", false, true)
        },
        Case {
            change: |request| expect(request, &["100-Continue"]),
            ..row("not yet sent, in any case", false, true)
        },
        Case {
            change: |request| expect(request, &["later", "100-continue"]),
            ..row("not yet sent, second field", false, true)
        },
        Case {
            change: |request| expect(request, &["200-ok"]),
            ..row("another expectation", true, false)
        },
        Case {
            change: |request| *request.method_mut() = Method::HEAD,
            ..row("HEAD", false, true)
        },
        Case {
            change: |request| *request.version_mut() = Version::HTTP_10,
            ..row("HTTP/1.0", true, false)
        },
        Case {
            change: |request| *request.version_mut() = Version::HTTP_10,
            hint: Hint::Undeclared,
            ..row("HTTP/1.0, not declared", true, true)
        },
        Case {
            // Nobody waits to be asked in HTTP/1.0 (RFC 9110, section 10.1.1).
            change: |request| {
                *request.version_mut() = Version::HTTP_10;
                expect(request, &["100-continue"]);
            },
            ..row("HTTP/1.0, with an expectation", true, false)
        },
        Case {
            change: |request| *request.version_mut() = Version::HTTP_2,
            ..row("HTTP/2", false, false)
        },
        Case {
            change: |request| *request.version_mut() = Version::HTTP_2,
            hint: Hint::Undeclared,
            ..row("HTTP/2, not declared", false, false)
        },
        Case {
            change: |request| *request.version_mut() = Version::HTTP_3,
            budget: None,
            ..row("HTTP/3", false, false)
        },
    ]
}

fn expect(request: &mut Request<Script>, values: &[&'static str]) {
    for value in values {
        let value = HeaderValue::from_static(value);
        request.headers_mut().append(EXPECT, value);
    }
}

/// Both ways of a request that was not read: in the head, and at the first read.
#[tokio::test]
async fn the_connection_closes_exactly_when_the_rest_does_not_come() {
    for found in [Found::InTheHead, Found::AtTheFirstRead] {
        for case in cases() {
            let script = Script::new([data(12), data(8)], case.hint.clone());
            let log = script.log();
            let mut request = found.post(script, 20);
            (case.change)(&mut request);
            let version = request.version();
            let layer = match case.budget {
                Some(budget) => draining(budget, Duration::from_secs(5)),
                None => limit().no_drain(),
            };
            let response = serve(&found.by(layer), request).await;
            let name = format!("{}, {found:?}", case.name);
            assert_refused(&response, found);
            // HTTP/2 sees to that itself.
            let version = version.min(Version::HTTP_11);
            assert_eq!(response.version(), version, "{name}");
            assert_eq!(closes(&response), case.closes, "{name}");
            assert_eq!(log.polls(), 0, "{name}");
            assert_eq!(log.dropped(), !case.drained, "{name}");
            Drive::to_end(response.into_body());
            assert_eq!(log.polls() > 0, case.drained, "{name}");
            assert!(log.dropped(), "{name}");
        }
    }
}

#[tokio::test]
async fn what_is_left_of_a_request_that_was_being_read_is_unknown() {
    for (version, expectation, drained, closing) in [
        (Version::HTTP_11, false, true, true),
        (Version::HTTP_10, false, true, true),
        // By reading it the handler has invited all of it.
        (Version::HTTP_11, true, true, true),
        (Version::HTTP_2, false, false, false),
    ] {
        for rest in [vec![], vec![data(4)], vec![data(4), Trailers]] {
            let all = 4 + rest.len();
            let (mut request, log) = post(Found::WhileItIsRead, rest);
            *request.version_mut() = version;
            if expectation {
                expect(&mut request, &["100-continue"]);
            }
            let layer = draining(MIB, Duration::from_secs(5));
            // Where a handler may set the limit, a request may fail before it is read, too.
            let layer = if expectation {
                layer.adjustable(20)
            } else {
                layer
            };
            let response = serve(&layer, request).await;
            assert_refused(&response, Found::WhileItIsRead);
            assert_eq!(closes(&response), closing, "{version:?}");
            Drive::to_end(response.into_body());
            assert_eq!(log.polls(), if drained { all } else { 3 }, "{version:?}");
        }
    }
}

// The drain itself

#[tokio::test(start_paused = true)]
async fn the_last_byte_of_the_answer_waits_for_the_rest_of_the_request() {
    for found in Found::ALL {
        let layer = found.by(draining(MIB, Duration::from_secs(5)));
        for (rest, outline) in [
            (vec![], "1 end"),
            (vec![data(4), data(0), Trailers], "1 end"),
            (vec![Pending, data(4), Pending], "pending pending 1 end"),
            // Neither a failure nor an early end harms the answer.
            (vec![Fail], "1 end"),
            (vec![data(4), Pending, Fail], "pending 1 end"),
            (vec![data(4), Stall], "stall"),
        ] {
            let ended = usize::from(!matches!(rest.last(), Some(Fail | Stall)));
            let polls = polls_before(found) + rest.len() + ended;
            let stalls = matches!(rest.last(), Some(Stall));
            let (request, log) = post(found, rest);
            let response = serve(&layer, request).await;
            assert_refused(&response, found);
            // The head does not wait.
            assert_eq!(log.polls(), polls_before(found));
            let mut drive = Drive::new(response.into_body());
            assert_eq!(drive.step(), "30");
            // They are sent before the first byte of the rest is read, through an encoder, too.
            assert_eq!(drive.step(), "pending");
            assert_eq!(drive.step(), "pending");
            assert_eq!(log.polls(), polls_before(found), "the text does not wait");
            let hint = drive.body.size_hint();
            assert_eq!(hint.exact(), Some(1));
            assert!(!drive.body.is_end_stream());
            drive.run();
            let outline = format!("30 pending pending {outline}");
            assert_eq!(drive.outline(), outline, "{found:?}");
            assert_eq!(log.polls(), polls, "{found:?}");
            assert_eq!(log.dropped(), !stalls);
            let text = if stalls { TEXT.trim_end() } else { TEXT };
            assert_eq!(drive.data(), text.as_bytes());
            // Whoever gives the answer up gives the request up.
            drop(drive);
            assert!(log.dropped());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_budget_is_in_bytes_and_a_frame_costs_at_least_one() {
    for found in Found::ALL {
        // The last frame is the one that there is no budget for.
        for (budget, frame, polls) in [
            (100, 10, 11),
            (99, 10, 10),
            (1, 10, 1),
            (0, 10, 1),
            (0, 0, 1),
            (100, 1, 101),
            (100, 0, 101),
            (1000, 0, 1001),
            (100, 1000, 1),
        ] {
            let layer = found.by(draining(budget, Duration::from_secs(5)));
            let (request, log) = post(found, vec![data(frame); 2000]);
            let response = serve(&layer, request).await;
            let drive = Drive::to_end(response.into_body());
            assert_eq!(drive.data(), TEXT.as_bytes());
            let drained = log.polls() - polls_before(found);
            assert_eq!(drained, polls, "{found:?} {budget} {frame}");
            assert!(log.dropped());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_drain_gives_way_to_other_tasks() {
    for found in Found::ALL {
        for frame in [0, 1] {
            let layer = found.by(draining(MIB, Duration::from_secs(5)));
            let (request, log) = post(found, vec![data(frame); 100_000]);
            let mut drive = Drive::new(serve(&layer, request).await.into_body());
            for step in ["30", "pending", "pending"] {
                assert_eq!(drive.step(), step);
            }
            assert_gives_way(drive.body.frame(), &log);
        }
    }
}

/// A body that is sent as the stream yields, and declares nothing.
fn sent(frames: impl Stream<Item = Bytes> + Send + 'static) -> UnsyncBoxBody<Bytes, io::Error> {
    StreamBody::new(frames.map(|data| Ok(Frame::data(data)))).boxed_unsync()
}

/// One byte every so often, for ever.
fn every(pause: Duration) -> impl Stream<Item = Bytes> + Send {
    stream::unfold((), move |()| async move {
        sleep(pause).await;
        Some((Bytes::from_static(b"x"), ()))
    })
}

/// How long the answer takes to a client that goes on like this.
async fn answered_after(
    layer: RequestSizeLimitLayer,
    found: Found,
    rest: impl Stream<Item = Bytes> + Send + 'static,
) -> Duration {
    let read = stream::iter(vec![Bytes::from_static(b"four"); polls_before(found)]);
    let request = found.post(sent(read.chain(rest)), 1000);
    let response = serve(&found.by(layer), request).await;
    assert_refused(&response, found);
    let start = Instant::now();
    let answer = response.into_body().collect().await.unwrap();
    assert_eq!(answer.to_bytes(), TEXT);
    start.elapsed()
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_at_its_deadline() {
    for found in Found::ALL {
        for deadline in [ms(0), ms(100), ms(1000), ms(60_000)] {
            let layer = draining(u64::MAX, deadline);
            let took = answered_after(layer, found, every(ms(70))).await;
            assert_eq!(took, deadline, "{found:?}");
        }
    }
}

/// It has stopped writing and waits for the rest of the answer.
#[tokio::test(start_paused = true)]
async fn a_client_that_went_quiet_is_not_kept_waiting() {
    for found in Found::ALL {
        let layer = || draining(u64::MAX, ms(60_000));
        let took = answered_after(layer(), found, stream::pending()).await;
        assert!((ms(250)..=ms(500)).contains(&took), "{took:?}");
        let rest = every(ms(100)).take(20).chain(stream::pending());
        let took = answered_after(layer(), found, rest).await;
        assert!((ms(2250)..=ms(2500)).contains(&took), "{took:?}");
        // The deadline is the last word.
        let took = answered_after(draining(u64::MAX, ms(200)), found, stream::pending()).await;
        assert_eq!(took, ms(200), "{found:?}");
    }
}

/// A buffer that says when it is gone.
struct Counted(Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &[b'x'; 1024]
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_that_is_drained_is_kept() {
    for found in Found::ALL {
        let alive = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let (counter, high) = (Arc::clone(&alive), Arc::clone(&most));
        let frames = stream::repeat_with(move || {
            let now = counter.fetch_add(1, Ordering::SeqCst) + 1;
            high.fetch_max(now, Ordering::SeqCst);
            Bytes::from_owner(Counted(Arc::clone(&counter)))
        });
        let layer = draining(MIB, Duration::from_secs(5));
        answered_after(layer, found, frames.take(1000)).await;
        assert_eq!(most.load(Ordering::SeqCst), 1, "{found:?}");
        assert_eq!(alive.load(Ordering::SeqCst), 0, "{found:?}");
    }
}

// Clocks

/// Is over when it is polled for the second time.
#[derive(Default)]
struct SecondPoll(bool);

impl Future for SecondPoll {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Outside of any runtime.
#[test]
fn a_clock_of_the_callers_own_is_asked_for_no_more_than_the_deadline() {
    for found in Found::ALL {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let clock = {
            let asked = Arc::clone(&asked);
            move |duration| {
                asked.lock().unwrap().push(duration);
                SecondPoll::default()
            }
        };
        let layer = found.by(limit().drain_with(u64::MAX, ms(600), clock));
        let (request, log) = post(found, vec![data(1); 100_000]);
        let response = serve(&layer, request).now_or_never().unwrap();
        let drive = Drive::to_end(response.into_body());
        assert_eq!(drive.data(), TEXT.as_bytes());
        assert_eq!(asked.lock().unwrap().iter().sum::<Duration>(), ms(600));
        assert!(log.polls() < 1000, "the clock ended it");
        assert!(log.dropped());
    }
}

fn refuses_without_a_drain(layer: &RequestSizeLimitLayer) {
    for found in Found::ALL {
        let (request, log) = post(found, [data(4), data(4)]);
        let layer = found.by(layer.clone());
        let response = serve(&layer, request).now_or_never().unwrap();
        assert_refused(&response, found);
        assert!(closes(&response));
        assert!(log.dropped(), "{found:?}");
        assert_eq!(log.polls(), polls_before(found));
        assert_eq!(Drive::to_end(response.into_body()).outline(), "31 end");
    }
}

#[test]
fn outside_of_a_runtime_nothing_is_drained_and_nothing_panics() {
    refuses_without_a_drain(&limit());
}

#[test]
fn in_a_runtime_without_timers_nothing_is_drained_and_nothing_panics_out() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async { refuses_without_a_drain(&limit()) });
}

#[test]
fn a_drain_may_be_turned_off() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async { refuses_without_a_drain(&limit().no_drain()) });
}

#[cfg(not(feature = "tokio"))]
#[tokio::test]
async fn without_a_clock_there_is_no_drain_by_default() {
    refuses_without_a_drain(&limit());
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn the_default_drain_takes_16_mib_or_five_seconds() {
    for found in Found::ALL {
        let took = answered_after(limit(), found, every(ms(100))).await;
        assert_eq!(took, Duration::from_secs(5), "{found:?}");
        let (request, log) = post(found, vec![data(64 * KIB as usize); 1000]);
        let response = serve(&found.by(limit()), request).await;
        assert!(closes(&response));
        Drive::to_end(response.into_body());
        assert_eq!(log.polls() - polls_before(found), 16 * 16 + 1, "{found:?}");
        let took = answered_after(limit().drain(1000, ms(700)), found, every(ms(100))).await;
        assert_eq!(took, ms(700), "{found:?}");
    }
}

/// Closed on a client that is still writing, a connection is reset before that has read the answer.
#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_client_that_may_still_write_has_time_to_read_the_answer() {
    for found in Found::ALL {
        // What is beyond the budget has no end.
        for (len, over) in [(50, ms(1000)), (51, ms(1250))] {
            let (alive, gone) = oneshot::channel::<()>();
            let late = stream::once(async move {
                sleep(ms(1000)).await;
                Bytes::from(vec![b'x'; len])
            });
            let end = stream::poll_fn(move |_| {
                let _alive = &alive;
                Poll::Ready(None)
            });
            let start = Instant::now();
            answered_after(limit().drain(50, ms(60_000)), found, late.chain(end)).await;
            assert!(start.elapsed() < ms(1000), "{found:?}");
            gone.await.unwrap_err();
            assert_eq!(start.elapsed(), over, "{found:?}");
        }
    }
}

// Where the body may be by then

/// Keeps the request, and answers when it is told to.
struct Elsewhere {
    body: LimitedBody<Script>,
    answer: oneshot::Sender<StatusCode>,
}

type Calling =
    Pin<Box<dyn Future<Output = io::Result<Response<ResponseBody<Full<Bytes>>>>> + Send>>;

/// A call whose handler has given the body away, and the body.
fn given_away(layer: &RequestSizeLimitLayer, request: Request<Script>) -> (Calling, Elsewhere) {
    let (sender, receiver) = oneshot::channel();
    let (body, got) = std::sync::mpsc::channel();
    let receiver = Mutex::new(Some(receiver));
    let mut service = layer.layer(service_fn(move |request: Request<LimitedBody<Script>>| {
        body.send(request.into_body()).unwrap();
        let receiver = receiver.lock().unwrap().take().unwrap();
        async move {
            let mut response = Response::new(Full::default());
            *response.status_mut() = receiver.await.map_err(io::Error::other)?;
            Ok(response)
        }
    }));
    let calling = Box::pin(service.call(request));
    let body = got.recv().unwrap();
    let answer = sender;
    (calling, Elsewhere { body, answer })
}

#[tokio::test]
async fn a_breach_in_another_task_is_answered_when_the_handler_ends() {
    for found in [Found::AtTheFirstRead, Found::WhileItIsRead] {
        for (status, sent, outline) in [(500, 413, "30 pending pending 1 end"), (200, 200, "end")] {
            let layer = found.by(draining(MIB, Duration::from_secs(5)));
            let (request, log) = post(found, [data(4), data(4)]);
            let (mut calling, elsewhere) = given_away(&layer, request);
            let read = tokio::spawn(async { Drive::to_end(elsewhere.body).outline() });
            assert!(read.await.unwrap().ends_with("breach end"));
            // Until then there may still be another answer, and the rest waits for it.
            assert!((&mut calling).now_or_never().is_none());
            assert!(!log.dropped());
            elsewhere.answer.send(status.try_into().unwrap()).unwrap();
            let response = calling.await.unwrap();
            assert_eq!(response.status(), sent, "{found:?}");
            assert!(response.extensions().get::<TooLarge>().is_some());
            assert_eq!(log.dropped(), status == 200, "{found:?}");
            assert_eq!(Drive::to_end(response.into_body()).outline(), outline);
            assert!(log.dropped());
        }
    }
}

/// Nobody is left to answer, so nobody is left to drain.
#[tokio::test]
async fn once_the_call_is_over_a_breach_drops_the_rest_at_once() {
    for found in [Found::AtTheFirstRead, Found::WhileItIsRead] {
        for answered in [true, false] {
            let witness = Witness::default();
            let layer = draining(MIB, Duration::from_secs(5)).on_breach(witness.breach());
            let (request, log) = post(found, [data(4), data(4)]);
            let (calling, elsewhere) = given_away(&found.by(layer), request);
            if answered {
                elsewhere.answer.send(StatusCode::OK).unwrap();
                let response = calling.await.unwrap();
                assert_eq!(response.status(), 200);
                assert!(response.extensions().get::<TooLarge>().is_none());
            } else {
                drop(calling);
            }
            let mut drive = Drive::new(elsewhere.body);
            while drive.step() != "breach" {}
            assert!(log.dropped(), "{found:?} {answered}");
            assert_eq!(log.polls(), polls_before(found));
            assert_eq!(witness.breaches().len(), 1);
        }
    }
}

#[tokio::test]
async fn a_call_that_is_given_up_after_the_breach_takes_the_rest_along() {
    for found in [Found::AtTheFirstRead, Found::WhileItIsRead] {
        let (request, log) = post(found, [data(4)]);
        let layer = found.by(draining(MIB, Duration::from_secs(5)));
        let (calling, elsewhere) = given_away(&layer, request);
        assert!(
            Drive::to_end(elsewhere.body)
                .outline()
                .ends_with("breach end")
        );
        assert!(!log.dropped());
        drop(calling);
        assert!(log.dropped(), "{found:?}");
    }
}

/// Whoever sends it can stop at once, and need not wait for the handler.
#[tokio::test]
async fn what_will_not_be_drained_is_dropped_at_the_breach() {
    let drain = || draining(MIB, Duration::from_secs(5));
    for (name, layer, version) in [
        ("no drain", limit().no_drain(), Version::HTTP_11),
        ("HTTP/2", drain(), Version::HTTP_2),
        (
            "answers kept",
            drain().keep_inner_answers(),
            Version::HTTP_11,
        ),
    ] {
        for found in [Found::AtTheFirstRead, Found::WhileItIsRead] {
            let (mut request, log) = post(found, [data(4)]);
            *request.version_mut() = version;
            let (calling, elsewhere) = given_away(&found.by(layer.clone()), request);
            let mut drive = Drive::new(elsewhere.body);
            while drive.step() != "breach" {}
            assert!(log.dropped(), "{name}, {found:?}");
            drop((calling, drive, elsewhere.answer));
        }
    }
}

// Other limits around and inside

#[tokio::test]
async fn what_is_drained_through_another_limit_does_not_count_for_it() {
    let wide = || RequestSizeLimitLayer::server(1500);
    // The limit of 1500 is one that the drained bytes exceed, or the declared length already, which
    // the adjustable ones do not refuse in the head.
    for (name, outer, declared) in [
        ("fixed", wide(), 1000),
        ("adjustable", wide().adjustable(None), 2000),
        ("up to 5000", wide().adjustable(5000), 2000),
    ] {
        for found in [Found::InTheHead, Found::WhileItIsRead] {
            let (far, near) = (Witness::default(), Witness::default());
            let clock = StoppedClock::default();
            let drain = |layer: RequestSizeLimitLayer| {
                layer.drain_with(MIB, Duration::from_secs(5), clock.sleep())
            };
            let outer = drain(outer.clone()).on_breach(far.breach());
            let inner = drain(limit()).on_breach(near.breach());
            let (request, log) = post(found, vec![data(100); 20]);
            let request = found.post(request.into_body(), declared);
            let service = outer.layer(inner.layer(BAD_REQUEST));
            let response = service.oneshot(request).await.unwrap();
            assert_refused(&response, found);
            let drive = Drive::to_end(response.into_body());
            assert_eq!(
                drive.outline(),
                "30 pending pending 1 end",
                "{found:?} {name}"
            );
            assert_eq!(near.breaches().len(), 1, "{found:?} {name}");
            assert_eq!(far.breaches(), [], "{found:?} {name}");
            let polls = polls_before(found) + 21;
            assert_eq!(log.polls(), polls, "{found:?} {name}");
            assert_eq!(clock.started(), 1, "{found:?} {name}");
        }
    }
}

/// It runs in the midst of a drain, and is not part of it.
#[tokio::test]
async fn a_callback_of_another_limit_finds_limits_in_force() {
    let found = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&found);
    let outer = RequestSizeLimitLayer::server(MIB).on_end(move |_| {
        let eleven = LimitedBody::new(Full::new(Bytes::from_static(b"eleven byte")), 10);
        let read = eleven.collect().now_or_never().expect("it is ready");
        seen.lock().unwrap().push(read.is_err());
    });
    for place in [Found::InTheHead, Found::WhileItIsRead] {
        let (request, _log) = post(place, vec![data(100); 20]);
        let inner = draining(MIB, Duration::from_secs(5));
        let service = outer.layer(inner.layer(BAD_REQUEST));
        let response = service.oneshot(request).await.unwrap();
        assert_eq!(
            Drive::to_end(response.into_body()).outline(),
            "30 pending pending 1 end"
        );
        assert_eq!(mem::take(&mut *found.lock().unwrap()), [true], "{place:?}");
    }
}

#[tokio::test]
async fn a_limit_on_responses_leaves_our_own_answers_alone() {
    let server = || ResponseSizeLimitLayer::server(3);
    let around = [
        server(),
        server().buffered(),
        ResponseSizeLimitLayer::client(3),
    ];
    for outer in around {
        for version in [Version::HTTP_10, Version::HTTP_11] {
            for found in Found::ALL {
                let (mut request, log) = post(found, [data(4), Stall]);
                *request.version_mut() = version;
                let inner = found.by(draining(MIB, Duration::from_secs(5)));
                let service = outer.layer(inner.layer(BAD_REQUEST));
                // Neither replaced nor held until the drain is over.
                let response = pin!(service.oneshot(request)).now_or_never();
                let response = response.expect("the head was held back").unwrap();
                assert_refused(&response, found);
                assert_eq!(response.headers()[CONTENT_LENGTH], "31");
                let drive = Drive::to_end(response.into_body());
                assert_eq!(drive.outline(), "30 pending pending stall", "{found:?}");
                assert_eq!(log.polls(), polls_before(found) + 2);
            }
        }
    }
}

/// A response that is held, and that fails as the request does, becomes an answer at once.
#[tokio::test]
async fn an_answer_to_our_own_breach_by_a_limit_on_responses_is_drained_behind() {
    let held = ResponseSizeLimitLayer::server(1000);
    for (version, responses) in [
        (Version::HTTP_11, held.clone().buffered()),
        (Version::HTTP_10, held),
    ] {
        let script = Script::new([data(4), data(7), data(100), Stall], Hint::Undeclared);
        let log = script.log();
        let mut request = Request::new(script);
        *request.version_mut() = version;
        let echo = service_fn(async |request: Request<LimitedBody<Script>>| {
            io::Result::Ok(Response::new(request.into_body()))
        });
        let service = ServiceBuilder::new()
            .layer(draining(MIB, Duration::from_secs(5)))
            .layer(responses)
            .service(echo);
        let response = service.oneshot(request).await.unwrap();
        assert_eq!(response.status(), 413);
        assert!(closes(&response));
        assert!(!log.dropped(), "there is nothing to drain");
    }
}

/// Something in between may put a page of its own in the place of the text.
#[tokio::test]
async fn a_limit_on_responses_holds_for_what_others_make_of_our_answers() {
    for found in Found::ALL {
        for (page, hint) in [
            (0, Hint::Undeclared),
            (64, Hint::Declared),
            (64, Hint::Undeclared),
        ] {
            for more in [0, 1] {
                let frames = vec![data(KIB as usize); page]
                    .into_iter()
                    .chain([data(more)]);
                let body = Mutex::new(Some(Script::new(frames, hint.clone())));
                let service = ServiceBuilder::new()
                    .layer(ResponseSizeLimitLayer::server(3))
                    .map_response(|mut response: Answered| {
                        response.headers_mut().remove(CONTENT_LENGTH);
                        response.map(|_| body.lock().unwrap().take().unwrap())
                    })
                    .layer(found.by(limit().no_drain()))
                    .service(BAD_REQUEST);
                let (request, _) = post(found, [data(4)]);
                let response = service.oneshot(request).await.unwrap();
                let declared = matches!(hint, Hint::Declared);
                let too_large = page == 64 && more == 1;
                let status = if declared && too_large { 500 } else { 413 };
                assert_eq!(
                    response.status(),
                    status,
                    "{found:?} {page} {more} {hint:?}"
                );
                let drive = Drive::to_end(response.into_body());
                let breaches = drive.error.is_some();
                assert_eq!(breaches, !declared && too_large, "{found:?} {page} {more}");
            }
        }
    }
}

/// What a handler answers is limited all the same, also when its request was too large.
#[tokio::test]
async fn a_limit_on_responses_holds_for_an_answer_that_stays() {
    for found in [Found::AtTheFirstRead, Found::WhileItIsRead] {
        let (request, _) = post(found, [data(4)]);
        let service = ResponseSizeLimitLayer::server(3)
            .layer(found.by(limit()).layer(Handler::Answers(StatusCode::OK)));
        let response = service.oneshot(request).await.unwrap();
        assert_eq!(response.status(), 500);
        let error = response.extensions().get::<TooLarge>().unwrap();
        assert_eq!(error.subject(), Subject::Response);
    }
}
