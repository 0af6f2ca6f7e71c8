//! The layers of a server, on hyper's HTTP/1.0, HTTP/1.1 and HTTP/2.

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, TRAILER},
};
use http_body::{Body, SizeHint};
use hyper::body::Incoming;
use support::{
    Hint, Script, Step, VARIANTS, data,
    net::{
        AnyBody, Endless, Raw, Seen, Server, VERSIONS, any_body, ask, clients, exchange, frames,
        get, guarded, post, respond, without_body,
    },
};
use tokio::sync::mpsc;
use tower::{Layer, Service, ServiceExt};
use tower_body_limit::{
    BodyLimitExt, Error, LimitedBody, RequestSizeLimitLayer, ResponseSizeLimitLayer, TooLarge,
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const RESPONSE_TEXT: &str = "The response body is too large.\n";
const REQUEST_TEXT: &str = "The request body is too large.\n";

fn limit(bytes: usize) -> ResponseSizeLimitLayer {
    ResponseSizeLimitLayer::server(bytes as u64)
}

/// A server whose every response has this body.
async fn serving(layer: ResponseSizeLimitLayer, steps: Vec<Step>, hint: Hint) -> Server {
    answering(layer, move |_| {
        Response::new(any_body(Script::new(steps.clone(), hint.clone())))
    })
    .await
}

async fn answering<F>(layer: ResponseSizeLimitLayer, answer: F) -> Server
where
    F: Fn(&Request<Incoming>) -> Response<AnyBody> + Clone + Send + 'static,
{
    Server::start(layer.layer(respond(answer))).await
}

fn assert_answer(seen: &Seen, status: u16, text: &str, case: &str) {
    assert_eq!(seen.status, status, "{case}");
    assert_eq!(seen.body, text.as_bytes(), "{case}");
    let plain = Some("text/plain; charset=utf-8");
    assert_eq!(seen.header(CONTENT_TYPE), plain, "{case}");
    let length = text.len().to_string();
    assert_eq!(seen.header(CONTENT_LENGTH), Some(&*length), "{case}");
    assert!(seen.whole, "{case}");
}

fn lower_bound(bytes: usize) -> Hint {
    let mut hint = SizeHint::new();
    hint.set_lower(bytes as u64);
    Hint::Fixed(hint)
}

/// 10 MiB in 16 KiB frames or in one, as the peers were measured.
fn shapes() -> [(&'static str, usize, Vec<Step>, bool); 4] {
    let many = frames(16 * KIB, 640);
    [
        ("limit a multiple of the frame", MIB, many.clone(), false),
        ("limit not a multiple", 1_000_000, many.clone(), false),
        ("one frame", MIB, frames(10 * MIB, 1), false),
        ("length set by the handler", MIB, many, true),
    ]
}

#[tokio::test]
async fn a_declared_breach_is_a_whole_answer() {
    for (shape, max, steps, by_header) in shapes() {
        let declared = if by_header {
            vec![Hint::Declared, Hint::Undeclared]
        } else {
            vec![Hint::Declared, lower_bound(max + 1)]
        };
        for hint in declared {
            let (steps, case_hint) = (steps.clone(), hint.clone());
            let server = answering(limit(max), move |_| {
                let body = Script::new(steps.clone(), hint.clone());
                let mut response = Response::new(any_body(body));
                if by_header {
                    response
                        .headers_mut()
                        .insert(CONTENT_LENGTH, HeaderValue::from(10 * MIB));
                }
                response
            })
            .await;
            for version in VERSIONS {
                let case = format!("{shape}, {case_hint:?}, {version:?}");
                let seen = ask(&server, version, &Method::GET).await.expect(&case);
                assert_answer(&seen, 500, RESPONSE_TEXT, &case);
            }
        }
    }
}

#[tokio::test]
async fn an_undeclared_breach_is_never_a_whole_message() {
    for (shape, max, steps, by_header) in shapes() {
        if by_header {
            continue;
        }
        let server = serving(limit(max), steps, Hint::Undeclared).await;
        for version in VERSIONS {
            let case = format!("{shape}, {version:?}");
            let seen = ask(&server, version, &Method::GET).await.expect(&case);
            // A break could not be seen there.
            if version == Version::HTTP_10 {
                assert_answer(&seen, 500, RESPONSE_TEXT, &case);
                continue;
            }
            assert_eq!(seen.status, 200, "{case}");
            assert!(!seen.whole, "{case}");
            assert!(seen.body.len() <= max, "{case}");
            assert!(seen.body.iter().all(|&byte| byte == b'x'), "{case}");
        }
    }
}

#[tokio::test]
async fn the_head_and_all_that_passed_arrive_before_the_break() {
    let cases: [(&str, Vec<Step>, usize); 5] = [
        ("breach by the first frame", frames(21 * KIB, 1), 0),
        ("always ready", frames(KIB, 21), 20 * KIB),
        (
            "one at a time",
            [data(20 * KIB), Step::Pending, data(1)].into(),
            20 * KIB,
        ),
        (
            "the crossing frame is dropped whole",
            [data(KIB), data(20 * KIB)].into(),
            KIB,
        ),
        (
            "a failure of the body's own",
            [data(KIB), Step::Fail].into(),
            KIB,
        ),
    ];
    for (case, steps, passed) in cases {
        let server = serving(limit(20 * KIB), steps, Hint::Undeclared).await;
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let case = format!("{case}, {version:?}");
            let seen = ask(&server, version, &Method::GET).await.expect(&case);
            assert_eq!(seen.status, 200, "{case}");
            assert_eq!(seen.body.len(), passed, "{case}");
            assert!(!seen.whole, "{case}");
        }
    }
}

/// Over HTTP/2, the task that polls the body is not the one that writes to the socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_head_arrives_before_the_break_on_several_threads() {
    let server = serving(limit(10), frames(11, 1), Hint::Undeclared).await;
    for round in 0..100 {
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let case = format!("round {round}, {version:?}");
            let seen = ask(&server, version, &Method::GET).await.expect(&case);
            assert!(seen.status == 200 && !seen.whole, "{case}");
        }
    }
}

#[tokio::test]
async fn exactly_the_limit_passes() {
    let cases = [
        ("one frame", frames(20 * KIB, 1)),
        ("many frames", frames(KIB, 20)),
        (
            "empty frames and pauses",
            [data(0), data(20 * KIB), Step::Pending, data(0)].into(),
        ),
    ];
    for (case, steps) in cases {
        for hint in VARIANTS {
            for layer in [limit(20 * KIB), limit(20 * KIB).buffered()] {
                let case = format!("{case}, {hint:?}, {layer:?}");
                let server = serving(layer, steps.clone(), hint.clone()).await;
                for version in VERSIONS {
                    let seen = ask(&server, version, &Method::GET).await.expect(&case);
                    assert_eq!(seen.status, 200, "{case}, {version:?}");
                    assert_eq!(seen.body.len(), 20 * KIB, "{case}, {version:?}");
                    assert!(seen.whole, "{case}, {version:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn zero_lets_only_an_empty_body_pass() {
    for hint in VARIANTS {
        for (steps, status) in [(vec![], 200), (frames(0, 2), 200), (frames(1, 1), 500)] {
            let case = format!("{hint:?}, {steps:?}");
            let server = serving(limit(0).buffered(), steps, hint.clone()).await;
            for version in VERSIONS {
                let seen = ask(&server, version, &Method::GET).await.expect(&case);
                assert_eq!(seen.status, status, "{case}, {version:?}");
                assert!(seen.whole, "{case}, {version:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_held_response_is_whole_whether_it_fits_or_not() {
    for hint in VARIANTS {
        let layer = || limit(20 * KIB).buffered();
        let fits = serving(layer(), frames(KIB, 20), hint.clone()).await;
        let too_large = serving(layer(), frames(KIB, 21), hint.clone()).await;
        for version in VERSIONS {
            let case = format!("{hint:?}, {version:?}");
            let seen = ask(&fits, version, &Method::GET).await.expect(&case);
            assert!(seen.whole, "{case}");
            assert_eq!(seen.body.len(), 20 * KIB, "{case}");
            assert_eq!(seen.header(CONTENT_LENGTH), Some("20480"), "{case}");
            let seen = ask(&too_large, version, &Method::GET).await.expect(&case);
            assert_answer(&seen, 500, RESPONSE_TEXT, &case);
        }
    }
}

#[tokio::test]
async fn trailers_pass_and_are_not_counted() {
    let steps = vec![data(5), data(5), Step::Trailers];
    for layer in [limit(10), limit(10).buffered()] {
        for (max, passes) in [(10, true), (9, false)] {
            let layer = if max == 10 { layer.clone() } else { limit(max) };
            let steps = steps.clone();
            let server = answering(layer, move |_| {
                let body = any_body(Script::new(steps.clone(), Hint::Undeclared));
                let response = Response::builder().header(TRAILER, "x-trailer");
                response.body(body).unwrap()
            })
            .await;
            for version in [Version::HTTP_11, Version::HTTP_2] {
                let case = format!("limit {max}, {version:?}");
                let seen = ask(&server, version, &Method::GET).await.expect(&case);
                assert_eq!(seen.whole, passes, "{case}");
                let trailer = seen
                    .trailers
                    .as_ref()
                    .map(|trailers| &trailers["x-trailer"]);
                let expected = HeaderValue::from_static("end");
                assert_eq!(trailer, passes.then_some(&expected), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn an_endless_response_is_given_up_at_the_breach() {
    for version in VERSIONS {
        let (sender, mut senders) = mpsc::unbounded_channel();
        let server = answering(limit(MIB), move |_| {
            let (body, endless) = Endless::new(16 * KIB);
            sender.send(endless).unwrap();
            Response::new(body)
        })
        .await;
        let seen = ask(&server, version, &Method::GET).await.unwrap();
        let as_held = seen.status == 500 && version == Version::HTTP_10;
        assert!(!seen.whole || as_held, "{version:?}");
        let pulled = senders.recv().await.unwrap().until_dropped().await;
        assert_eq!(pulled as usize, MIB + 16 * KIB, "{version:?}");
    }
}

#[tokio::test]
async fn a_message_without_a_body_keeps_its_length() {
    const HUGE: u64 = 10 * 1024 * 1024 * 1024;
    let by_header = |status| {
        move |request: &Request<Incoming>| without_body(request, status, HUGE).map(any_body)
    };
    let by_hint = |_: &Request<Incoming>| {
        let hint = Hint::Fixed(SizeHint::with_exact(HUGE));
        Response::new(any_body(Script::new([], hint)))
    };
    let headers = answering(limit(KIB), by_header(200)).await;
    let hints = answering(limit(KIB), by_hint).await;
    let not_modified = answering(limit(KIB), by_header(304)).await;
    let no_content = answering(limit(KIB), by_header(204)).await;

    for version in VERSIONS {
        let case = format!("{version:?}");
        let huge = HUGE.to_string();
        for (server, method, status) in [
            (&headers, Method::HEAD, 200),
            (&hints, Method::HEAD, 200),
            (&not_modified, Method::GET, 304),
            (&not_modified, Method::HEAD, 304),
            (&no_content, Method::GET, 204),
        ] {
            let seen = ask(server, version, &method).await.expect(&case);
            assert_eq!(seen.status, status, "{case}, {method}");
            assert_eq!(seen.header(CONTENT_LENGTH), Some(&*huge), "{case}");
            assert!(seen.whole && seen.body.is_empty(), "{case}, {method}");
        }
    }
}

#[tokio::test]
async fn the_next_response_never_appears_inside_a_broken_one() {
    for hint in VARIANTS {
        let declared = matches!(hint, Hint::Declared);
        let server = answering(limit(KIB), move |request| {
            let steps = match request.uri().path() {
                "/second" => vec![Step::Data(Bytes::from_static(b"second"))],
                _ => frames(600, 2),
            };
            let mut response = Response::new(any_body(Script::new(steps, hint.clone())));
            if declared && request.uri().path() == "/first" {
                let length = HeaderValue::from_static("1200");
                response.headers_mut().insert(CONTENT_LENGTH, length);
            }
            response
        })
        .await;
        let mut raw = Raw::connect(&server).await;
        let request = |path| format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
        raw.send(request("/first") + &request("/second")).await;

        let first = raw.receive(&Method::GET).await.unwrap();
        if declared {
            assert_answer(&first, 500, RESPONSE_TEXT, "the first");
            let second = raw.receive(&Method::GET).await.unwrap();
            assert_eq!(second.body, b"second");
        } else {
            assert_eq!((first.body.len(), first.whole), (600, false));
            assert_eq!(raw.rest().await, b"");
        }
    }
}

/// A server that breaches with its first frame on `/breach`, and how often that was asked for.
async fn breaching() -> (Server, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let server = answering(limit(10), move |request| {
        let breach = request.uri().path() == "/breach";
        counter.fetch_add(breach.into(), Ordering::SeqCst);
        let steps = frames(if breach { 11 } else { 10 }, 1);
        Response::new(any_body(Script::new(steps, Hint::Undeclared)))
    })
    .await;
    (server, calls)
}

#[tokio::test]
async fn curl_does_not_repeat_a_request_that_breaches_at_once() {
    let (server, calls) = breaching().await;
    let mut curl = tokio::process::Command::new("curl");
    curl.args(["--silent", "--noproxy", "*", "--max-time", "60"]);
    curl.args(["--write-out", "%{http_code} %{num_connects}\n"]);
    for path in ["/fits", "/breach"] {
        curl.args(["--output", "/dev/null", &server.uri(path)]);
    }
    let Ok(output) = guarded(curl.output()).await else {
        return eprintln!("skipped: there is no curl");
    };
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        lines, "200 1\n200 0\n",
        "the second on the connection of the first"
    );
    assert!(!output.status.success());
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_pooled_client_does_not_repeat_a_request_that_breaches_at_once() {
    for (name, client) in clients() {
        let (server, calls) = breaching().await;
        let fits = client.clone().oneshot(get(&server, "/fits"));
        let (seen, error) = Seen::of(guarded(fits).await.expect(name)).await;
        assert!(seen.body.len() == 10 && error.is_none(), "{name}");

        let breach = client.oneshot(get(&server, "/breach"));
        let (seen, error) = Seen::of(guarded(breach).await.expect(name)).await;
        assert_eq!(seen.status, 200, "{name}");
        assert!(seen.body.is_empty() && error.is_some(), "{name}");
        assert_eq!(calls.load(Ordering::SeqCst), 1, "{name}");
        assert_eq!(server.connections(), 1, "{name}");
    }
}

/// What a handler made of the body of its request.
type Read = Result<usize, Error>;

/// A service that reads each body to its end, says 200 whatever happened, and tells the test.
fn reading<B>() -> (
    impl Service<
        Request<LimitedBody<B>>,
        Response = Response<String>,
        Error = std::convert::Infallible,
        Future: Send,
    > + Clone
    + Send,
    mpsc::UnboundedReceiver<Read>,
)
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let (sender, reads) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<LimitedBody<B>>| {
        let sender = sender.clone();
        async move {
            let read = request.into_body().collect_limited(u64::MAX).await;
            let _ = sender.send(read.map(|read| read.bytes().len()));
            Ok(Response::new("done".to_owned()))
        }
    });
    (service, reads)
}

async fn receiving(max: u64) -> (Server, mpsc::UnboundedReceiver<Read>) {
    let (service, reads) = reading::<Incoming>();
    let layer = RequestSizeLimitLayer::server(max);
    (Server::start(layer.layer(service)).await, reads)
}

async fn next(reads: &mut mpsc::UnboundedReceiver<Read>) -> Read {
    guarded(reads.recv()).await.expect("the handler was called")
}

#[tokio::test]
async fn a_request_that_declares_too_much_is_refused_with_a_whole_413() {
    let (server, mut reads) = receiving(10).await;
    // Those that wait for the answer, and those that have written everything by then.
    for version in ["HTTP/1.0", "HTTP/1.1"] {
        for (length, body, close) in [
            (11, "x".repeat(11), None),
            (64 * MIB, String::new(), Some("close")),
        ] {
            let case = format!("{version}, {length}");
            let mut raw = Raw::connect(&server).await;
            let head = format!("POST / {version}\r\nhost: test\r\ncontent-length: {length}\r\n");
            raw.send(format!("{head}\r\n{body}")).await;
            let seen = raw.receive(&Method::POST).await.expect(&case);
            assert_answer(&seen, 413, REQUEST_TEXT, &case);
            assert_eq!(seen.header(CONNECTION), close, "{case}");
            if close.is_some() {
                assert_eq!(raw.rest().await, b"", "{case}");
            }
        }
    }
    for (name, client) in clients() {
        let response = guarded(client.oneshot(post(&server, 11, Hint::Declared))).await;
        let (seen, error) = Seen::of(response.expect(name)).await;
        assert!(error.is_none(), "{name}");
        assert_answer(&seen, 413, REQUEST_TEXT, name);
        assert_eq!(seen.header(CONNECTION), None, "{name}");
    }
    assert!(reads.try_recv().is_err(), "the handler was called");
}

#[tokio::test]
async fn a_refusal_does_not_both_close_and_keep_alive() {
    let (server, _reads) = receiving(10).await;
    for version in ["HTTP/1.0", "HTTP/1.1"] {
        let head = format!("POST / {version}\r\nhost: test\r\nconnection: keep-alive\r\n");
        // More than would be drained.
        let request = head + "content-length: 99999999\r\n\r\n";
        let seen = exchange(&server, &Method::POST, &request).await.unwrap();
        assert_eq!(seen.status, 413, "{version}");
        assert_eq!(seen.header(CONNECTION), Some("close"), "{version}");
    }
}

#[tokio::test]
async fn a_request_within_the_limit_passes_in_either_variant() {
    for (name, client) in clients() {
        for hint in VARIANTS {
            let (server, mut reads) = receiving(10).await;
            let request = post(&server, 10, hint.clone());
            let response = guarded(client.clone().oneshot(request)).await.expect(name);
            assert_eq!(response.status(), 200, "{name}, {hint:?}");
            assert_eq!(next(&mut reads).await.unwrap(), 10, "{name}, {hint:?}");
        }
    }
}

#[tokio::test]
async fn an_undeclared_breach_reaches_the_handler_with_its_numbers() {
    let assert_numbers = |read: Read, case: &str| {
        let error = read.unwrap_err();
        let too_large = TooLarge::find(&error).expect(case);
        assert_eq!(too_large.limit(), 10, "{case}");
        assert_eq!(too_large.declared(), None, "{case}");
        assert_eq!(too_large.read(), 11, "{case}");
        assert_eq!(too_large.status(), StatusCode::PAYLOAD_TOO_LARGE, "{case}");
    };
    for (name, client) in clients() {
        let (server, mut reads) = receiving(10).await;
        // Whether an answer to a request in flight is seen is the client's affair.
        let _ = guarded(client.oneshot(post(&server, 11, Hint::Undeclared))).await;
        assert_numbers(next(&mut reads).await, name);
    }
    let (server, mut reads) = receiving(10).await;
    let head = "POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n";
    for (case, chunks) in [
        ("one chunk", "b\r\nxxxxxxxxxxx\r\n0\r\n\r\n"),
        ("unfinished", "a\r\nxxxxxxxxxx\r\n1\r\nx\r\n"),
    ] {
        exchange(&server, &Method::POST, &format!("{head}{chunks}")).await;
        assert_numbers(next(&mut reads).await, case);
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_is_not_too_large() {
    let (server, mut reads) = receiving(10).await;
    for head in [
        "content-length: 10\r\n\r\nxxxxx",
        "transfer-encoding: chunked\r\n\r\n5\r\nxxxxx\r\n",
        "transfer-encoding: chunked\r\n\r\nnot hex\r\n",
    ] {
        let mut raw = Raw::connect(&server).await;
        raw.send(format!("POST / HTTP/1.1\r\nhost: test\r\n{head}"))
            .await;
        drop(raw);
        let error = next(&mut reads).await.unwrap_err();
        assert!(matches!(error, Error::Body(_)), "{head}: {error:?}");
        assert!(TooLarge::find(&error).is_none(), "{head}");
    }
}

#[tokio::test]
async fn a_malformed_length_never_loosens_the_limit() {
    let (server, mut reads) = receiving(10).await;
    // Most of these hyper refuses by itself, before any layer.
    for (lengths, status) in [
        ("content-length: -1", 400),
        ("content-length: +5", 400),
        ("content-length: 5, 5", 400),
        ("content-length: 5, 6", 400),
        ("content-length:", 400),
        ("content-length: 0x5", 400),
        ("content-length: 5\r\ncontent-length: 6", 400),
        ("content-length: 18446744073709551616", 400),
        ("content-length: 18446744073709551613", 413),
        ("content-length: 11\r\ncontent-length: 11", 413),
    ] {
        let request = format!("POST / HTTP/1.1\r\nhost: test\r\n{lengths}\r\n\r\n");
        let seen = exchange(&server, &Method::POST, &(request + "xxxxxxxxxxx")).await;
        assert_eq!(seen.expect(lengths).status, status, "{lengths}");
        assert!(
            reads.try_recv().is_err(),
            "{lengths}: the handler was called"
        );
    }

    let head = "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 5\r\n";
    let twice = format!("{head}content-length: 5\r\n\r\nxxxxxxxxxxx");
    exchange(&server, &Method::POST, &twice).await;
    assert_eq!(next(&mut reads).await.unwrap(), 5, "two that agree");
    // The field is a lie, so it is ignored.
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\nb\r\nxxxxxxxxxxx\r\n0\r\n\r\n");
    exchange(&server, &Method::POST, &chunked).await;
    let error = next(&mut reads).await.unwrap_err();
    assert_eq!(TooLarge::find(&error).unwrap().read(), 11);
}

#[tokio::test]
async fn a_request_without_a_body_passes_a_limit_of_zero() {
    let (server, mut reads) = receiving(0).await;
    for version in VERSIONS {
        for method in [Method::GET, Method::DELETE, Method::HEAD, Method::POST] {
            let case = format!("{method}, {version:?}");
            let seen = ask(&server, version, &method).await.expect(&case);
            assert_eq!(seen.status, 200, "{case}");
            assert_eq!(next(&mut reads).await.unwrap(), 0, "{case}");
        }
    }
    let head = "POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n";
    exchange(&server, &Method::POST, &format!("{head}0\r\n\r\n")).await;
    assert_eq!(next(&mut reads).await.unwrap(), 0, "chunked and empty");
    exchange(
        &server,
        &Method::POST,
        &format!("{head}1\r\nx\r\n0\r\n\r\n"),
    )
    .await;
    assert!(next(&mut reads).await.is_err(), "chunked and not empty");
}

#[tokio::test]
async fn a_refused_upload_is_not_invited() {
    let (server, mut reads) = receiving(10).await;
    let head = "POST / HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\n";

    let mut raw = Raw::connect(&server).await;
    raw.send(format!("{head}content-length: 11\r\n\r\n")).await;
    let seen = raw.receive(&Method::POST).await.unwrap();
    assert_answer(&seen, 413, REQUEST_TEXT, "declared");
    assert_eq!(seen.header(CONNECTION), Some("close"));
    assert_eq!(raw.rest().await, b"");
    assert!(reads.try_recv().is_err(), "the handler was called");

    let mut raw = Raw::connect(&server).await;
    raw.send(format!("{head}content-length: 10\r\n\r\n")).await;
    let seen = raw.receive(&Method::POST).await.unwrap();
    assert_eq!(seen.status, StatusCode::CONTINUE);
    raw.send("xxxxxxxxxx").await;
    assert_eq!(raw.receive(&Method::POST).await.unwrap().status, 200);
    assert_eq!(next(&mut reads).await.unwrap(), 10);
}
