//! What the callbacks of the layers are called with, when, and how often.

mod support;
#[path = "support/witness.rs"]
mod witness;

use std::{
    convert::Infallible,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Body as AxumBody, routing::post};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header::CONTENT_LENGTH};
use http_body::SizeHint;
use http_body_util::{BodyExt, Empty, combinators::UnsyncBoxBody};
use support::{
    Hint, Script,
    Step::{self, Fail, Pending, Trailers},
    VARIANTS, data,
    drive::Drive,
    net::{self, Server, VERSIONS, ask, clients, exchange, guarded},
};
use tokio::sync::mpsc;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_body_limit::{
    BodyEnd, Error, LimitControl, LimitedBody, Outcome, RequestSizeLimitLayer,
    ResponseSizeLimitLayer, Subject, TooLarge,
};
use witness::{Found, Witness};

/// Gives a layer of any kind its callbacks and its label.
macro_rules! watched {
    ($layer:expr, $witness:expr) => {
        $layer
            .label("here")
            .on_breach($witness.breach())
            .on_end($witness.end())
    };
}

/// Each place in which a layer sees a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    ServerRequest,
    DrainedRequest,
    ClientRequest,
    ServerResponse,
    ClientResponse,
}

const SIDES: [Side; 5] = [
    Side::ServerRequest,
    Side::DrainedRequest,
    Side::ClientRequest,
    Side::ServerResponse,
    Side::ClientResponse,
];

type AnyBody = UnsyncBoxBody<Bytes, Error>;

impl Side {
    fn subject(self) -> Subject {
        match self {
            Self::ServerRequest | Self::DrainedRequest | Self::ClientRequest => Subject::Request,
            Self::ServerResponse | Self::ClientResponse => Subject::Response,
        }
    }

    /// A body as it comes out of the layer of this side. None if that refuses it instead.
    fn through(self, limit: Option<u64>, witness: &Witness, body: Script) -> Option<AnyBody> {
        match self {
            Self::ServerRequest => {
                let layer = watched!(RequestSizeLimitLayer::server(limit).no_drain(), witness);
                request_through(layer, body)
            }
            Self::DrainedRequest => request_through(
                watched!(RequestSizeLimitLayer::server(limit), witness),
                body,
            ),
            Self::ClientRequest => request_through(
                watched!(RequestSizeLimitLayer::client(limit), witness),
                body,
            ),
            Self::ServerResponse => {
                let layer = watched!(ResponseSizeLimitLayer::server(limit), witness);
                response_through(layer, Request::new(()), Response::new(body))
            }
            Self::ClientResponse => {
                let layer = watched!(ResponseSizeLimitLayer::client(limit), witness);
                response_through(layer, Request::new(()), Response::new(body))
            }
        }
    }
}

type Limited = Request<LimitedBody<Script>>;
type Inner = tower::util::BoxCloneSyncService<Limited, Response<Empty<Bytes>>, io::Error>;

fn request_through<L>(layer: L, body: Script) -> Option<AnyBody>
where
    L: Layer<Inner>,
    L::Service: Service<Request<Script>>,
{
    let got = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&got);
    let inner = Inner::new(service_fn(move |request: Limited| {
        *slot.lock().unwrap() = Some(request.into_body());
        std::future::ready(Ok(Response::default()))
    }));
    let request = Request::post("/upload?token=secret").body(body).unwrap();
    let _ = layer.layer(inner).oneshot(request).now_or_never().unwrap();
    let body = got.lock().unwrap().take();
    body.map(BodyExt::boxed_unsync)
}

fn response_through(
    layer: ResponseSizeLimitLayer,
    request: Request<()>,
    response: Response<Script>,
) -> Option<AnyBody> {
    let response = Mutex::new(Some(response));
    let inner = service_fn(async |_| {
        let response = response.lock().unwrap().take();
        Ok::<_, Infallible>(response.unwrap())
    });
    let response = layer.layer(inner).oneshot(request).now_or_never();
    let response = response.unwrap().unwrap();
    let replaced = response.extensions().get::<TooLarge>().is_some();
    (!replaced).then(|| response.into_body().boxed_unsync())
}

/// Polls a body so often, or to its end, and drops it.
fn read(body: AnyBody, polls: Option<usize>) {
    let mut drive = Drive::new(body);
    match polls {
        Some(polls) => (0..polls).for_each(|_| {
            drive.step();
        }),
        None => drive.run(),
    }
}

#[track_caller]
fn assert_end(end: &BodyEnd, subject: Subject, read: u64, outcome: Outcome, case: &str) {
    assert_eq!(end.limit(), Some(10), "{case}");
    assert_eq!(end.subject(), subject, "{case}");
    assert_eq!(end.label(), Some("here"), "{case}");
    assert_eq!((end.read(), end.outcome()), (read, outcome), "{case}");
}

use Outcome::{Complete, Dropped, Failed};

/// What is sent, how often it is polled, and what is reported if it declares a length and if not.
type Row = (Vec<Step>, Option<usize>, [(u64, Outcome); 2]);

fn within_the_limit() -> Vec<Row> {
    vec![
        (vec![data(4), data(6)], None, [(10, Complete); 2]),
        (
            vec![data(4), data(0), Pending, data(5)],
            None,
            [(9, Complete); 2],
        ),
        (vec![data(10), Trailers], None, [(10, Complete); 2]),
        (vec![], None, [(0, Complete); 2]),
        // Whoever knows the length stops when it has come.
        (
            vec![data(4), data(6)],
            Some(2),
            [(10, Complete), (10, Dropped)],
        ),
        (vec![], Some(0), [(0, Complete), (0, Dropped)]),
        (vec![data(4), Fail], None, [(4, Failed); 2]),
        (vec![data(4), data(4)], Some(1), [(4, Dropped); 2]),
        (
            vec![data(4), Pending],
            Some(2),
            [(4, Complete), (4, Dropped)],
        ),
        (vec![data(4)], Some(0), [(0, Dropped); 2]),
    ]
}

#[test]
fn the_end_is_reported_once_however_it_comes() {
    for side in SIDES {
        for (steps, polls, outcomes) in within_the_limit() {
            for (hint, (total, outcome)) in VARIANTS.into_iter().zip(outcomes) {
                let case = format!("{side:?} {steps:?} {polls:?} {hint:?}");
                let witness = Witness::default();
                let body = Script::new(steps.clone(), hint.clone());
                let body = side.through(Some(10), &witness, body).expect(&case);
                assert!(witness.ends().is_empty(), "it has not ended yet: {case}");
                // What still pends at a declared end has not been taken away by polling.
                read(body, polls);
                let ends = witness.ends();
                assert_eq!(ends.len(), 1, "{case}");
                assert_end(&ends[0], side.subject(), total, outcome, &case);
                assert_eq!(witness.breaches(), [], "{case}");
            }
        }
    }
}

#[test]
fn a_body_that_has_nothing_left_to_give_has_ended() {
    for side in SIDES {
        for (bytes, outcome) in [(0, Complete), (1, Dropped)] {
            let witness = Witness::default();
            let hint = Hint::Fixed(SizeHint::with_exact(bytes));
            let body = side.through(Some(10), &witness, Script::new([], hint));
            drop(body.unwrap());
            let ends = witness.ends();
            assert_eq!(ends.len(), 1);
            assert_end(&ends[0], side.subject(), 0, outcome, &format!("{side:?}"));
        }
    }
}

/// HTTP/2 tells with the last frame that it was the last, also if no length was declared.
#[test]
fn a_body_that_says_that_it_is_at_its_end_has_ended() {
    for side in SIDES {
        for (polls, outcome) in [(1, Dropped), (2, Complete)] {
            let witness = Witness::default();
            let body = Script::new([data(4), data(6)], Hint::EndOnly);
            let body = side.through(Some(10), &witness, body);
            read(body.unwrap(), Some(polls));
            let ends = witness.ends();
            assert_eq!(ends.len(), 1);
            let total = [4, 10][polls - 1];
            assert_end(
                &ends[0],
                side.subject(),
                total,
                outcome,
                &format!("{side:?}"),
            );
        }
    }
}

#[test]
fn a_request_that_is_taken_out_of_its_limit_is_over_for_that() {
    for hint in VARIANTS {
        // None polls nothing: both frames are still to come.
        for (polls, read, outcome) in [
            (0, 0, Outcome::Dropped),
            (1, 4, Outcome::Dropped),
            (3, 8, Outcome::Complete),
        ] {
            let witness = Witness::default();
            let layer = watched!(RequestSizeLimitLayer::server(1).adjustable(20), witness);
            let got = Slot::<Limited>::default();
            let slot = got.clone();
            let mut service = layer.layer(service_fn(move |request: Limited| {
                *slot.lock().unwrap() = Some(request);
                std::future::pending::<io::Result<Response<Empty<Bytes>>>>()
            }));
            let script = Script::new([data(4), data(4)], hint.clone());
            let _call = service.call(Request::new(script));
            let request = take(&got).unwrap();
            // A limit that was set counts even if nothing was read under it.
            let control = request.extensions().get::<LimitControl>().unwrap();
            control.set(10).unwrap();
            let mut drive = Drive::new(request.into_body());
            for _ in 0..polls {
                drive.step();
            }
            let inner = drive.body.into_inner();
            assert_eq!(inner.is_some(), outcome == Outcome::Dropped);
            let [end] = witness.ends().try_into().unwrap();
            let case = format!("{hint:?}, {polls}");
            assert_end(&end, Subject::Request, read, outcome, &case);
            assert_eq!(witness.breaches(), [], "{case}");
        }
    }
}

#[test]
fn a_breach_is_reported_once_and_before_the_end() {
    for side in SIDES {
        for hint in VARIANTS {
            let case = format!("{side:?} {hint:?}");
            let witness = Witness::default();
            let body = Script::new(vec![data(4); 4], hint.clone());
            let declared = matches!(hint, Hint::Declared);
            let body = side.through(Some(10), &witness, body);
            // A client is told by the body of a response, the others before there is one.
            let refused = declared && side != Side::ClientResponse;
            assert_eq!(body.is_none(), refused, "{case}");
            assert_eq!(witness.breaches().len(), usize::from(refused), "{case}");
            let mut ends = witness.ends();
            if let Some(body) = body {
                assert!(ends.is_empty(), "{case}");
                let mut drive = Drive::new(body);
                drive.run();
                assert_eq!(
                    witness.breaches(),
                    std::slice::from_ref(drive.too_large()),
                    "{case}"
                );
                ends = witness.ends();
                drop(drive);
                assert!(witness.ends().is_empty(), "{case}");
            }
            assert_eq!(ends.len(), 1, "{case}");
            let read = if declared { 0 } else { 8 };
            assert_end(&ends[0], side.subject(), read, Failed, &case);
        }
    }
}

#[test]
fn a_breach_says_limit_lengths_subject_and_label() {
    for side in SIDES {
        for hint in VARIANTS {
            let witness = Witness::default();
            let declared = matches!(hint, Hint::Declared).then_some(16);
            let body = Script::new(vec![data(4); 4], hint);
            if let Some(body) = side.through(Some(10), &witness, body) {
                read(body, None);
            }
            let breaches = witness.breaches();
            assert_eq!(breaches.len(), 1);
            assert_eq!(breaches[0].limit(), 10);
            assert_eq!(breaches[0].declared(), declared);
            let read = if declared.is_some() { 0 } else { 12 };
            assert_eq!(breaches[0].read(), read);
            assert_eq!(breaches[0].subject(), side.subject());
            assert_eq!(breaches[0].label(), Some("here"));
        }
    }
}

/// Whoever stops before the limit is met, or never starts, has met nothing.
#[test]
fn a_breach_that_nobody_comes_to_is_none() {
    for side in SIDES {
        for hint in VARIANTS {
            let witness = Witness::default();
            let body = Script::new(vec![data(4); 4], hint.clone());
            let polls = usize::from(matches!(hint, Hint::Undeclared));
            let Some(body) = side.through(Some(10), &witness, body) else {
                continue;
            };
            read(body, Some(polls));
            assert_eq!(witness.breaches(), []);
            let read = 4 * polls as u64;
            assert_end(
                &witness.ends()[0],
                side.subject(),
                read,
                Dropped,
                &format!("{side:?}"),
            );
        }
    }
}

#[test]
fn without_a_limit_the_end_is_reported_all_the_same() {
    for side in SIDES {
        for hint in VARIANTS {
            let witness = Witness::default();
            let body = Script::new(vec![data(4); 4], hint);
            read(side.through(None, &witness, body).unwrap(), None);
            let ends = witness.ends();
            assert_eq!(ends.len(), 1);
            assert_eq!((ends[0].limit(), ends[0].read()), (None, 16));
            assert_eq!(ends[0].outcome(), Complete);
        }
    }
}

/// Messages without a body, with something in it or not.
fn bodiless() -> [(Method, u16); 4] {
    [
        (Method::HEAD, 200),
        (Method::CONNECT, 200),
        (Method::GET, 204),
        (Method::GET, 304),
    ]
}

#[test]
fn a_response_without_a_body_has_ended_when_it_is_dropped() {
    for (method, status) in bodiless() {
        for layer in [
            ResponseSizeLimitLayer::server(10),
            ResponseSizeLimitLayer::client(10),
        ] {
            for hint in VARIANTS {
                for steps in [vec![], vec![data(4); 4]] {
                    let witness = Witness::default();
                    let request = Request::builder().method(&method).body(()).unwrap();
                    let response = Response::builder().status(status);
                    let response = response.header(CONTENT_LENGTH, 1 << 30);
                    let response = response.body(Script::new(steps, hint.clone())).unwrap();
                    let layer = watched!(layer.clone(), witness);
                    drop(response_through(layer, request, response).unwrap());
                    let ends = witness.ends();
                    assert_eq!(ends.len(), 1, "{method} {status}");
                    assert_end(&ends[0], Subject::Response, 0, Complete, method.as_str());
                    assert_eq!(witness.breaches(), []);
                }
            }
        }
    }
}

#[test]
fn a_held_response_is_reported_when_it_was_read() {
    let held = [
        (true, Version::HTTP_11, &VARIANTS[..]),
        (false, Version::HTTP_10, &VARIANTS[1..]),
    ];
    for (buffered, version, hints) in held {
        for hint in hints {
            for (steps, read, outcome) in [
                (vec![data(4), data(6)], 10, Complete),
                (vec![data(4), Fail], 4, Failed),
                (vec![data(4), data(4), data(4)], 8, Failed),
            ] {
                let witness = Witness::default();
                let layer = watched!(ResponseSizeLimitLayer::server(10), witness);
                let layer = if buffered { layer.buffered() } else { layer };
                let request = Request::builder().version(version).body(()).unwrap();
                let breach = steps.len() == 3;
                let declared = breach && matches!(hint, Hint::Declared);
                let response = Response::new(Script::new(steps, hint.clone()));
                let body = response_through(layer, request, response);
                assert_eq!(body.is_none(), breach);
                let ends = witness.ends();
                assert_eq!(ends.len(), 1, "before anybody reads what was held");
                let read = if declared { 0 } else { read };
                assert_end(&ends[0], Subject::Response, read, outcome, "held");
                assert_eq!(witness.breaches().len(), usize::from(breach));
                drop(body);
                assert!(witness.ends().is_empty());
            }
        }
    }
}

#[test]
fn a_refusal_in_the_head_is_a_breach_and_an_end() {
    for (length, declared) in [("11", 11), ("18446744073709551616", u64::MAX)] {
        let witness = Witness::default();
        let layer = watched!(RequestSizeLimitLayer::server(10), witness).no_drain();
        let mut request = Request::new(Script::new([data(4)], Hint::Undeclared));
        let length = HeaderValue::from_static(length);
        request.headers_mut().insert(CONTENT_LENGTH, length);
        let inner =
            service_fn(async |_: Limited| Ok::<_, Infallible>(Response::new(String::new())));
        let response = layer.layer(inner).oneshot(request).now_or_never().unwrap();
        assert_eq!(response.unwrap().status(), 413);
        assert_eq!(witness.breaches()[0].declared(), Some(declared));
        let ends = witness.ends();
        assert_eq!(ends.len(), 1);
        assert_end(&ends[0], Subject::Request, 0, Failed, "refused");
    }
}

/// The drain is no part of what was asked for.
#[tokio::test]
async fn what_is_drained_is_not_reported() {
    for found in Found::ALL {
        let witness = Witness::default();
        let layer = watched!(RequestSizeLimitLayer::server(10), witness);
        let inner = service_fn(async |request: Limited| {
            let read = request.into_body().collect().await;
            read.map(|_| Response::new(String::new()))
        });
        let request = found.post(Script::new(vec![data(4); 40], found.hint()), 160);
        let service = found.by(layer).layer(inner);
        let response = service.oneshot(request).await.unwrap();
        let (breaches, ends) = (witness.breaches(), witness.ends());
        assert_eq!((breaches.len(), ends.len()), (1, 1), "{found:?}");
        let read = if found.is_declared() { 0 } else { 8 };
        assert_end(&ends[0], Subject::Request, read, Failed, "refused");
        assert_eq!(
            response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .len(),
            31
        );
        assert!(
            witness.breaches().is_empty() && witness.ends().is_empty(),
            "{found:?}"
        );
    }
}

// Over real connections

/// For `on_end`, and where the ends come out, one by one.
fn reporter() -> (
    impl Fn(&BodyEnd) + Send + Sync + 'static,
    mpsc::UnboundedReceiver<BodyEnd>,
) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let report = move |end: &BodyEnd| {
        let _ = sender.send(end.clone());
    };
    (report, receiver)
}

/// Ten bytes, whose length is known from the body or from the header alone.
fn ten_bytes(declared_by: &str) -> Response<Script> {
    let hint = match declared_by {
        "the body" => Hint::Declared,
        _ => Hint::Undeclared,
    };
    let mut response = Response::new(Script::new([data(4), data(6)], hint));
    if declared_by == "the header" {
        response.headers_mut().insert(CONTENT_LENGTH, 10.into());
    }
    response
}

#[tokio::test]
async fn a_response_that_was_sent_has_ended_however_its_length_is_known() {
    for declared_by in ["the body", "the header", "nothing"] {
        let (report, mut ends) = reporter();
        let layer = ResponseSizeLimitLayer::server(10)
            .label("here")
            .on_end(report);
        let server = net::respond(move |request: &Request<_>| {
            let response = ten_bytes(declared_by);
            if request.method() != Method::HEAD {
                return response;
            }
            response.map(|_| Script::new([], Hint::Declared))
        });
        let server = Server::start(layer.layer(server)).await;
        for version in VERSIONS {
            let case = format!("by {declared_by}, {version:?}");
            let seen = ask(&server, version, &Method::GET).await.expect(&case);
            assert_eq!((seen.body.len(), seen.whole), (10, true), "{case}");
            let end = guarded(ends.recv()).await.unwrap();
            assert_end(&end, Subject::Response, 10, Complete, &case);
            let seen = ask(&server, version, &Method::HEAD).await.expect(&case);
            assert_eq!(seen.status, 200, "{case}");
            let end = guarded(ends.recv()).await.unwrap();
            assert_end(&end, Subject::Response, 0, Complete, &case);
            assert!(ends.is_empty(), "{case}");
        }
    }
}

#[tokio::test]
async fn a_response_that_was_received_has_ended_however_its_length_is_known() {
    for declared_by in ["the body", "the header", "nothing"] {
        let server = Server::start(net::respond(move |_| ten_bytes(declared_by))).await;
        for (name, client) in clients() {
            let case = format!("by {declared_by}, {name}");
            let (report, mut ends) = reporter();
            let layer = ResponseSizeLimitLayer::client(10)
                .label("here")
                .on_end(report);
            let request = net::get(&server, "/");
            let response = guarded(layer.layer(client).oneshot(request)).await.unwrap();
            let body = guarded(response.into_body().collect()).await.unwrap();
            assert_eq!(body.to_bytes().len(), 10, "{case}");
            let end = guarded(ends.recv()).await.unwrap();
            assert_end(&end, Subject::Response, 10, Complete, &case);
            assert!(ends.is_empty(), "{case}");
        }
    }
}

#[tokio::test]
async fn a_request_that_was_sent_has_ended() {
    let server = Router::new().route("/", post(async |bytes: Bytes| bytes.len().to_string()));
    let server = Server::start(server).await;
    for (name, client) in clients() {
        for hint in VARIANTS {
            let case = format!("{name}, {hint:?}");
            let (report, mut ends) = reporter();
            let layer = RequestSizeLimitLayer::client(10)
                .label("here")
                .on_end(report);
            let client =
                client
                    .clone()
                    .map_request(|request: Request<LimitedBody<net::AnyBody>>| {
                        request.map(net::any_body)
                    });
            let request = net::post(&server, 10, hint.clone());
            let response = guarded(layer.layer(client).oneshot(request)).await.unwrap();
            assert_eq!(response.status(), 200, "{case}");
            let end = guarded(ends.recv()).await.unwrap();
            assert_end(&end, Subject::Request, 10, Complete, &case);
            assert!(ends.is_empty(), "{case}");
        }
    }
}

#[tokio::test]
async fn a_request_that_was_received_has_ended_or_was_dropped() {
    let (report, mut ends) = reporter();
    let router = Router::new()
        .route("/", post(async |bytes: Bytes| bytes.len().to_string()))
        .route("/ignored", post(async || "ignored"))
        .layer(
            RequestSizeLimitLayer::server(10)
                .label("here")
                .on_end(report),
        );
    let server = Server::start(router).await;
    for (path, read, outcome) in [("/", 10, Complete), ("/ignored", 0, Dropped)] {
        for (name, client) in clients() {
            for hint in VARIANTS {
                let case = format!("{path}, {name}, {hint:?}");
                let mut request = net::post(&server, 10, hint.clone());
                *request.uri_mut() = server.uri(path).parse().unwrap();
                let response = guarded(client.clone().oneshot(request)).await.unwrap();
                assert_eq!(response.status(), 200, "{case}");
                let end = guarded(ends.recv()).await.unwrap();
                assert_end(&end, Subject::Request, read, outcome, &case);
                assert!(ends.is_empty(), "{case}");
            }
        }
    }
    // Without a body there is nothing that could be dropped before its end.
    let request = "POST /ignored HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n";
    exchange(&server, &Method::POST, request).await.unwrap();
    let end = guarded(ends.recv()).await.unwrap();
    assert_end(&end, Subject::Request, 0, Complete, "no body");
}

#[tokio::test]
async fn a_client_that_hangs_up_is_a_failure_and_no_breach() {
    for head in [
        "content-length: 10\r\n\r\nfour",
        "transfer-encoding: chunked\r\n\r\n4\r\nfour\r\n",
    ] {
        let (report, mut ends) = reporter();
        let witness = Witness::default();
        let layer = RequestSizeLimitLayer::server(10)
            .label("here")
            .on_end(report);
        let layer = layer.on_breach(witness.breach());
        let router = Router::new().route("/", post(async |bytes: Bytes| bytes.len().to_string()));
        let server = Server::start(router.layer(layer)).await;
        let mut raw = net::Raw::connect(&server).await;
        raw.send(format!("POST / HTTP/1.1\r\nhost: test\r\n{head}"))
            .await;
        drop(raw);
        let end = guarded(ends.recv()).await.unwrap();
        // hyper may give the request up before the handler has read any of it.
        assert!(matches!(end.outcome(), Failed | Dropped), "{end:?}");
        assert!(end.read() <= 4);
        assert_eq!(witness.breaches(), []);
    }
}

// Panics

/// Aborts the process if it is called while a panic unwinds.
fn panics<T>(_: &T) {
    panic!("a callback that panics");
}

/// Holds on to a body, and panics.
async fn panicking_handler(body: AxumBody) -> &'static str {
    let mut body = body;
    let _ = body.frame().await;
    panic!("a handler that panics");
}

#[tokio::test]
async fn a_handler_that_panics_does_not_take_the_process_along() {
    let router = Router::new()
        .route("/", post(panicking_handler))
        .route("/quiet", post(async || StatusCode::NO_CONTENT))
        .layer(
            RequestSizeLimitLayer::server(10)
                .on_breach(panics)
                .on_end(panics),
        );
    let server = Server::start(router).await;
    for (name, client) in clients() {
        for hint in VARIANTS {
            let request = net::post(&server, 4, hint.clone());
            let answer = guarded(client.clone().oneshot(request)).await;
            assert!(answer.is_err(), "{name}, {hint:?}");
        }
    }
}

#[tokio::test]
async fn a_response_that_panics_does_not_take_the_process_along() {
    // Polled after its end, the script panics.
    struct Panics(Script);

    impl http_body::Body for Panics {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<io::Result<http_body::Frame<Bytes>>>> {
            let frame = Pin::new(&mut self.0).poll_frame(cx);
            assert!(
                !matches!(frame, std::task::Poll::Ready(None)),
                "a body that panics"
            );
            frame
        }
    }

    let layer = ResponseSizeLimitLayer::server(10)
        .on_breach(panics)
        .on_end(panics);
    for steps in [vec![], vec![data(4)]] {
        let body = move || Panics(Script::new(steps.clone(), Hint::Undeclared));
        let server = net::respond(move |_| Response::new(body()));
        let server = Server::start(layer.layer(server)).await;
        for version in VERSIONS {
            let seen = ask(&server, version, &Method::GET).await;
            let whole = seen.is_some_and(|seen| seen.whole);
            // What ends with HTTP/1.0's connection looks whole.
            assert!(!whole || version == Version::HTTP_10, "{version:?}");
        }
    }
}

/// Reads a body when it is dropped.
struct ReadsInDrop(Option<AnyBody>);

impl Drop for ReadsInDrop {
    fn drop(&mut self) {
        read(self.0.take().unwrap(), None);
    }
}

#[test]
fn no_callback_runs_while_the_thread_is_panicking() {
    for side in SIDES {
        for steps in [vec![data(4); 4], vec![data(4)], vec![Fail]] {
            let witness = Witness::default();
            let body = Script::new(steps, Hint::Undeclared);
            let body = side.through(Some(10), &witness, body).unwrap();
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _guard = ReadsInDrop(Some(body));
                panic!("somebody else's panic");
            }));
            assert!(panicked.is_err());
            assert_eq!(witness.breaches(), [], "{side:?}");
            assert!(witness.ends().is_empty(), "{side:?}");
        }
    }
}

#[test]
fn a_callback_that_panics_is_the_last_one_to_be_called() {
    for found in [Found::AtTheFirstRead, Found::WhileItIsRead] {
        let witness = Witness::default();
        let layer = RequestSizeLimitLayer::server(10)
            .no_drain()
            .on_breach(panics)
            .on_end(witness.end());
        let body = Script::new(vec![data(4); 4], found.hint());
        let body = request_through(found.by(layer), body).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| read(body, None)));
        assert!(panicked.is_err(), "{found:?}");
        assert!(witness.ends().is_empty(), "{found:?}");
    }
}

#[test]
fn a_callback_that_panics_leaves_nothing_to_read() {
    for found in [Found::AtTheFirstRead, Found::WhileItIsRead] {
        let layer = RequestSizeLimitLayer::server(10)
            .no_drain()
            .on_breach(panics);
        // The last frame would fit in place of the one that was too many.
        let script = Script::new([data(4), data(4), data(4), data(1)], found.hint());
        let log = script.log();
        let body = request_through(found.by(layer), script).unwrap();
        let mut drive = Drive::new(body);
        let panicked = catch_unwind(AssertUnwindSafe(|| drive.run()));
        assert!(panicked.is_err(), "{found:?}");
        assert!(log.dropped(), "{found:?}");
        assert_eq!(drive.step(), "end", "{found:?}");
    }
}

// No lock is held while a callback runs

/// Anything that a callback may get hold of, to be dropped or asked.
type Slot<T> = Arc<Mutex<Option<T>>>;

fn take<T>(slot: &Slot<T>) -> Option<T> {
    slot.lock().unwrap().take()
}

type Calling = Pin<Box<dyn Future<Output = ()> + Send>>;

#[test]
fn a_callback_may_do_with_the_request_what_it_likes() {
    for found in [Found::AtTheFirstRead, Found::WhileItIsRead] {
        for at_the_end in [false, true] {
            let call = Slot::<Calling>::default();
            let control = Slot::<LimitControl>::default();
            let other = Slot::<AnyBody>::default();
            let asked = Slot::<(Option<u64>, bool)>::default();
            let callback = {
                let (call, control, other) = (call.clone(), control.clone(), other.clone());
                let asked = asked.clone();
                move || {
                    // Dropping the call takes what is left of the request, and reading the other
                    // body comes to a breach of its own.
                    drop(take(&call));
                    if let Some(body) = take(&other) {
                        read(body, None);
                    }
                    if let Some(control) = take(&control) {
                        let refused = control.set(5).is_err();
                        *asked.lock().unwrap() = Some((control.limit(), refused));
                    }
                }
            };
            let layer = RequestSizeLimitLayer::server(10)
                .adjustable(None)
                .drain_with(1 << 20, std::time::Duration::from_secs(5), |_| {
                    std::future::pending()
                });
            let layer = if at_the_end {
                layer.on_end(move |_| callback())
            } else {
                layer.on_breach(move |_| callback())
            };
            // Another request under the same layer, for the callback to read.
            let second = Script::new(vec![data(4); 4], found.hint());
            *other.lock().unwrap() = request_through(layer.clone(), second);

            let got = Slot::<Limited>::default();
            let slot = got.clone();
            let mut service = layer.layer(service_fn(move |request: Limited| {
                *slot.lock().unwrap() = Some(request);
                std::future::pending::<io::Result<Response<Empty<Bytes>>>>()
            }));
            let script = Script::new(vec![data(4); 4], found.hint());
            let log = script.log();
            let future = service.call(Request::new(script));
            *call.lock().unwrap() = Some(Box::pin(async move { drop(future.await) }));
            let request = take(&got).unwrap();
            *control.lock().unwrap() = request.extensions().get().cloned();
            let outline = Drive::to_end(request.into_body()).outline();
            assert!(outline.ends_with("breach end"), "{outline}");
            // Frozen by then, and the answer comes at once.
            assert_eq!(take(&asked), Some((Some(10), true)), "{found:?}");
            assert!(log.dropped());
        }
    }
}

// Events

#[cfg(feature = "tracing")]
mod events {
    use std::{
        collections::BTreeMap,
        fmt::{Debug, Write},
        sync::{Arc, Mutex},
    };

    use tracing::{
        Event, Level, Metadata, Subscriber,
        field::{Field, Visit},
        span::{Attributes, Id, Record},
        subscriber::with_default,
    };

    use super::*;

    type Fields = BTreeMap<&'static str, String>;

    /// Keeps all that is recorded.
    #[derive(Clone, Debug, Default)]
    struct Recorder(Arc<Mutex<Vec<Fields>>>);

    impl Recorder {
        fn record(&self, event: impl FnOnce(&mut Seen)) {
            let mut seen = Seen::default();
            event(&mut seen);
            self.0.lock().unwrap().push(seen.0);
        }
    }

    #[derive(Default)]
    struct Seen(Fields);

    impl Visit for Seen {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let text = self.0.entry(field.name()).or_default();
            write!(text, "{value:?}").unwrap();
        }
    }

    impl Subscriber for Recorder {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            self.record(|seen| span.record(seen));
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, values: &Record<'_>) {
            self.record(|seen| values.record(seen));
        }

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            assert_eq!(*event.metadata().level(), Level::WARN);
            assert!(event.metadata().target().starts_with("tower_body_limit"));
            self.record(|seen| event.record(seen));
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// All that is recorded while `f` runs.
    fn recorded(f: impl FnOnce()) -> Vec<Fields> {
        let recorder = Recorder::default();
        with_default(recorder.clone(), f);
        let recorded = recorder.0.lock().unwrap();
        recorded.clone()
    }

    fn fields(declared: Option<u64>, read: u64, subject: Subject, label: bool) -> Fields {
        let mut fields = BTreeMap::from([
            ("limit", "10".to_owned()),
            ("message", "a size limit was exceeded".to_owned()),
            ("read", read.to_string()),
            ("subject", subject.to_string()),
        ]);
        fields.extend(declared.map(|declared| ("declared", declared.to_string())));
        fields.extend(label.then(|| ("label", "\"here\"".to_owned())));
        fields
    }

    #[test]
    fn one_event_on_each_breach_says_what_the_error_says() {
        for side in SIDES {
            for hint in VARIANTS {
                let declared = matches!(hint, Hint::Declared).then_some(16);
                let witness = Witness::default();
                let events = recorded(|| {
                    let body = Script::new(vec![data(4); 4], hint.clone());
                    if let Some(body) = side.through(Some(10), &witness, body) {
                        read(body, None);
                    }
                });
                let read = if declared.is_some() { 0 } else { 12 };
                let expected = fields(declared, read, side.subject(), true);
                assert_eq!(events, [expected], "{side:?} {hint:?}");
            }
        }
    }

    /// Nobody has to ask for it, and the label is not made up.
    #[test]
    fn an_event_needs_neither_callback_nor_label() {
        for found in Found::ALL {
            let events = recorded(|| {
                let layer = found.by(RequestSizeLimitLayer::server(10).no_drain());
                let body = Script::new(vec![data(4); 4], found.hint());
                if let Some(body) = request_through(layer, body) {
                    read(body, None);
                }
            });
            let declared = found.is_declared().then_some(16);
            let read = if found.is_declared() { 0 } else { 12 };
            let expected = fields(declared, read, Subject::Request, false);
            assert_eq!(events, [expected], "{found:?}");
        }
        for hint in VARIANTS {
            let events = recorded(|| {
                let response = Response::new(Script::new(vec![data(4); 4], hint.clone()));
                let layer = ResponseSizeLimitLayer::client(10);
                read(
                    response_through(layer, Request::new(()), response).unwrap(),
                    None,
                );
            });
            assert_eq!(events.len(), 1, "{hint:?}");
        }
    }

    #[test]
    fn without_a_breach_there_is_no_event() {
        for side in SIDES {
            for (steps, polls, _) in within_the_limit() {
                for hint in VARIANTS {
                    let witness = Witness::default();
                    let events = recorded(|| {
                        let body = Script::new(steps.clone(), hint);
                        read(side.through(Some(10), &witness, body).unwrap(), polls);
                    });
                    assert_eq!(events, [], "{side:?}");
                }
            }
        }
    }

    #[test]
    fn the_query_of_the_url_is_never_recorded() {
        for found in Found::ALL {
            let events = recorded(|| {
                let outer = RequestSizeLimitLayer::server(1000).no_drain();
                let layer = found.by(RequestSizeLimitLayer::server(10).no_drain());
                let inner =
                    service_fn(async |request: Request<LimitedBody<LimitedBody<Script>>>| {
                        let read = request.into_body().collect().await;
                        read.map(|_| Response::new(String::new()))
                    });
                let body = Script::new(vec![data(4); 4], found.hint());
                let mut request = found.post(body, 16);
                *request.uri_mut() = "/upload?token=secret".parse().unwrap();
                let service = outer.layer(layer.layer(inner));
                let answer = service.oneshot(request).now_or_never().unwrap();
                assert_eq!(answer.unwrap().status(), 413);
            });
            assert_eq!(events.len(), 1, "one for two layers");
            let text = format!("{events:?}");
            assert!(
                !text.contains("secret") && !text.contains("upload"),
                "{text}"
            );
        }
    }
}
