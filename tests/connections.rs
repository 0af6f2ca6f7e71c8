//! What becomes of a connection on which a request was refused.

// Without it nothing is drained unless a timer is brought along.
#![cfg(feature = "tokio")]
#![allow(missing_docs)]

mod support;

use std::{
    future::{pending, poll_fn},
    io,
    pin::Pin,
    thread,
    time::Duration,
};

use axum::{Router, body::Body, extract::DefaultBodyLimit, routing::any};
use bytes::Bytes;
use futures_util::stream;
use http::{
    Method, Request, Response, StatusCode,
    header::{ACCESS_CONTROL_ALLOW_ORIGIN, CONNECTION, CONTENT_LENGTH, ORIGIN},
};
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use support::{
    Hint, Script,
    Step::{Stall, Trailers},
    data,
    drive::poll_once,
    net::{Raw, Seen, Server, clients, guarded, post},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    net::{TcpListener, TcpStream, tcp::OwnedWriteHalf},
    sync::{mpsc, oneshot, watch},
    time::{advance, sleep},
};
use tower::ServiceExt;
use tower_body_limit::{RequestSizeLimitLayer, TooLarge};
use tower_http::{
    cors::CorsLayer,
    timeout::{RequestBodyTimeoutLayer, ResponseBodyTimeoutLayer, TimeoutLayer},
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const LIMIT: usize = KIB;

/// The refusal, and what the client has of it while the rest of its request is drained.
const TEXT: &str = "The request body is too large.\n";
const ALL_BUT_LAST: &str = "The request body is too large.";

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(50);
const SECOND: Duration = Duration::from_secs(1);

fn limit() -> RequestSizeLimitLayer {
    RequestSizeLimitLayer::server(LIMIT as u64)
}

/// Answers with the length of what was sent.
fn routes() -> Router {
    Router::new().route("/", any(async |body: Bytes| body.len().to_string()))
}

fn app(layer: RequestSizeLimitLayer) -> Router {
    routes().layer(layer).layer(DefaultBodyLimit::disable())
}

/// Where a request is found to be too large.
#[derive(Clone, Copy, Debug)]
enum Found {
    /// In its head, by the layer.
    Early,
    /// In its body, by the handler. A declared length is held against a limit that may yet be
    /// raised only then.
    Late,
}

const WAYS: [(Found, Hint); 3] = [
    (Found::Early, Hint::Declared),
    (Found::Late, Hint::Declared),
    (Found::Late, Hint::Undeclared),
];

impl Found {
    fn by(self, layer: RequestSizeLimitLayer) -> RequestSizeLimitLayer {
        match self {
            Self::Early => layer,
            Self::Late => layer.adjustable(None),
        }
    }
}

/// A request with a body of so many bytes, as far as `sent` of them.
fn request(hint: &Hint, size: usize, sent: usize) -> Vec<u8> {
    let (length, body) = match hint {
        Hint::Declared => (format!("content-length: {size}"), vec![b'x'; sent]),
        _ => (
            "transfer-encoding: chunked".into(),
            chunk(sent, size == sent),
        ),
    };
    let head = format!("POST / HTTP/1.1\r\nhost: test\r\n{length}\r\n\r\n");
    [head.into_bytes(), body].concat()
}

fn chunk(size: usize, is_last: bool) -> Vec<u8> {
    let head = format!("{size:x}\r\n").into_bytes();
    let end = if is_last { "\r\n0\r\n\r\n" } else { "\r\n" };
    [&head, &vec![b'x'; size][..], end.as_bytes()].concat()
}

/// Reads until this has come.
async fn read_until(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains(end) {
        let read = guarded(stream.read_buf(&mut received)).await.unwrap();
        let text = String::from_utf8_lossy(&received);
        assert!(read > 0, "the connection closed after {text:?}");
    }
    String::from_utf8(received).unwrap()
}

/// What else comes until the connection closes in an orderly way.
async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut received = String::new();
    guarded(stream.read_to_string(&mut received)).await.unwrap();
    received
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.addr).await.unwrap()
}

/// Sends this on a connection of its own, and reads until that is closed in an orderly way.
async fn exchange(server: &Server, request: impl AsRef<[u8]>) -> String {
    let mut stream = connect(server).await;
    stream.write_all(request.as_ref()).await.unwrap();
    read_to_end(&mut stream).await
}

/// The status of a small request.
async fn ask(server: &Server) -> StatusCode {
    let mut raw = Raw::connect(server).await;
    raw.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    raw.receive(&Method::GET).await.unwrap().status
}

/// Writes this again and again until the connection breaks.
async fn keep_writing(mut stream: OwnedWriteHalf, piece: Vec<u8>) {
    while stream.write_all(&piece).await.is_ok() {}
}

type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A clock that stands still until it is told to go on.
fn stopped_clock() -> (
    impl Fn(Duration) -> Sleep + Send + Sync,
    watch::Sender<bool>,
) {
    let (go, gone) = watch::channel(false);
    let sleep = move |_| {
        let mut gone = gone.clone();
        Box::pin(async move {
            let _ = gone.wait_for(|&gone| gone).await;
        }) as Sleep
    };
    (sleep, go)
}

#[tokio::test]
async fn a_client_that_stalls_has_all_but_the_last_byte_at_once() {
    for (found, hint) in WAYS {
        let (sleep, go) = stopped_clock();
        let layer = found.by(limit()).drain_with(u64::MAX, NEVER, sleep);
        let server = Server::start(app(layer)).await;
        let mut stream = connect(&server).await;
        let upload = request(&hint, 100 * LIMIT, 2 * LIMIT);
        stream.write_all(&upload).await.unwrap();

        let answer = read_until(&mut stream, ALL_BUT_LAST).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{found:?}: {answer}");
        // Nothing more as long as the clock stands still.
        assert_eq!(ask(&server).await, StatusCode::OK);
        let more = stream.try_read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(more, Err(io::ErrorKind::WouldBlock), "{found:?}, {hint:?}");

        go.send(true).unwrap();
        assert_eq!(read_to_end(&mut stream).await, "\n", "{found:?}, {hint:?}");
    }
}

#[tokio::test]
async fn a_client_that_stalls_is_let_go_by_itself() {
    for (found, hint) in WAYS {
        let server = Server::start(app(found.by(limit()).drain(u64::MAX, SOON))).await;
        let answer = exchange(&server, request(&hint, 100 * LIMIT, 2 * LIMIT)).await;
        assert!(answer.ends_with(TEXT), "{found:?}, {hint:?}: {answer}");
    }
}

/// A connection that has no sockets, to be used where time is paused: that jumps while these are
/// on their way.
fn connect_in_memory(app: Router) -> DuplexStream {
    let (client, server) = duplex(64 * KIB);
    let service = TowerToHyperService::new(app);
    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(server), service));
    client
}

// A lost packet alone may cost a second.
#[tokio::test(start_paused = true)]
async fn a_client_that_pauses_may_go_on_writing_until_the_deadline() {
    const PIECES: usize = 4;
    for (found, hint) in WAYS {
        let mut stream = connect_in_memory(app(found.by(limit())));
        let size = (2 + PIECES) * LIMIT;
        let upload = request(&hint, size, 2 * LIMIT);
        stream.write_all(&upload).await.unwrap();
        for piece in 1..=PIECES {
            sleep(SECOND).await;
            let piece = match &hint {
                Hint::Declared => vec![b'x'; LIMIT],
                _ => chunk(LIMIT, piece == PIECES),
            };
            let written = stream.write_all(&piece).await;
            written.unwrap_or_else(|error| panic!("{found:?}, {hint:?}: {error}"));
        }
        read_until(&mut stream, TEXT).await;
        if matches!(hint, Hint::Declared) {
            // All of it has come, so the connection can be used again.
            stream
                .write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
                .await
                .unwrap();
            read_until(&mut stream, "HTTP/1.1 200 OK").await;
        } else {
            assert_eq!(read_to_end(&mut stream).await, "", "{found:?}, {hint:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_came_while_the_server_was_busy_was_heard() {
    for (found, hint) in WAYS {
        let (client, mut server) = mpsc::unbounded_channel::<io::Result<Bytes>>();
        let send = || client.send(Ok(vec![b'x'; 2 * LIMIT].into())).unwrap();
        send();
        let rest = stream::poll_fn(move |cx| server.poll_recv(cx));
        let (parts, _) = large(&hint, &[]).into_parts();
        let request = Request::from_parts(parts, Body::from_stream(rest));
        // By a timer of the caller's own, so that nothing goes on without the answer.
        let layer = found.by(limit()).drain_with(u64::MAX, NEVER, sleep);
        let response = app(layer).oneshot(request).await.unwrap();
        let mut body = response.into_body();
        let all_but_last = body.frame().await.unwrap().unwrap();
        assert_eq!(all_but_last.into_data().unwrap(), ALL_BUT_LAST);
        // Twice nobody polls until a moment has passed. The second time something came in it.
        for comes in [false, true] {
            assert!(poll_once(&mut body.frame()).0.is_pending());
            if comes {
                send();
            }
            advance(SECOND).await;
        }
        let last = poll_once(&mut body.frame()).0;
        assert!(last.is_pending(), "{found:?}, {hint:?}");
    }
}

#[tokio::test]
async fn a_client_that_never_stops_writing_is_let_go_at_the_deadline_or_the_end_of_the_budget() {
    let layers = [
        limit().drain(u64::MAX, SOON),
        limit().drain(MIB as u64, NEVER),
    ];
    for (layer, (found, hint)) in layers.iter().flat_map(|layer| WAYS.map(|way| (layer, way))) {
        let server = Server::start(app(found.by(layer.clone()))).await;
        let (mut reading, mut writing) = connect(&server).await.into_split();
        let upload = request(&hint, usize::MAX / 2, 2 * LIMIT);
        writing.write_all(&upload).await.unwrap();
        let writing = tokio::spawn(keep_writing(writing, chunk(64 * KIB, false)));
        read_until(&mut reading, TEXT).await;
        guarded(writing).await.unwrap();
    }
}

/// A large request and a small one behind it. Sent in one go: what hyper has read when it closes a
/// connection does not reset it.
fn pipelined(hint: &Hint, size: usize) -> Vec<u8> {
    let next =
        "POST / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 5\r\n\r\nsmall";
    [&request(hint, size, size), next.as_bytes()].concat()
}

#[tokio::test]
async fn a_pipelined_request_is_answered_after_a_refusal_of_known_length() {
    for found in [Found::Early, Found::Late] {
        let server = Server::start(app(found.by(limit()))).await;
        for size in [LIMIT + 1, 2 * LIMIT, MIB] {
            let answers = exchange(&server, pipelined(&Hint::Declared, size)).await;
            let (first, second) = answers.split_once(TEXT).expect(&answers);
            assert!(first.starts_with("HTTP/1.1 413 "), "{answers}");
            assert!(!first.contains("connection:"), "{answers}");
            assert!(second.starts_with("HTTP/1.1 200 "), "{answers}");
            assert!(second.ends_with("\r\n\r\n5"), "{answers}");
        }
    }
}

#[tokio::test]
async fn a_refusal_of_unknown_length_closes_in_an_orderly_way() {
    let server = Server::start(app(limit())).await;
    let answer = exchange(&server, pipelined(&Hint::Undeclared, 2 * LIMIT)).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    assert!(answer.ends_with(TEXT), "{answer}");
}

const OFFER: &str = "POST / HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\n";

#[tokio::test]
async fn an_upload_that_is_only_offered_is_refused_and_not_invited() {
    for found in [Found::Early, Found::Late] {
        let server = Server::start(app(found.by(limit()))).await;
        let offer = format!("{OFFER}content-length: {}\r\n\r\n", 2 * LIMIT);
        let answer = exchange(&server, offer).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{found:?}: {answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        assert!(answer.ends_with(TEXT), "{found:?}: {answer}");
    }
}

#[tokio::test]
async fn an_upload_that_was_invited_is_drained() {
    let server = Server::start(app(limit())).await;
    let mut raw = Raw::connect(&server).await;
    raw.send(format!("{OFFER}transfer-encoding: chunked\r\n\r\n"))
        .await;
    let invitation = raw.receive(&Method::POST).await.unwrap();
    assert_eq!(invitation.status, StatusCode::CONTINUE);
    for is_last in [false, false, true] {
        raw.send(chunk(MIB, is_last)).await;
    }
    let answer = raw.receive(&Method::POST).await.unwrap();
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(answer.whole);
}

/// A server that has a thread of its own, and no other, until the sender is dropped.
fn start_on_one_thread(app: Router) -> (oneshot::Receiver<Server>, oneshot::Sender<()>) {
    let (started, server) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let _ = started.send(Server::start(app).await);
            let _ = stopped.await;
        });
    });
    (server, stop)
}

#[tokio::test]
async fn an_endless_upload_in_tiny_chunks_does_not_hold_the_thread() {
    let (server, _stop) = start_on_one_thread(app(limit().drain(u64::MAX, NEVER)));
    let server = guarded(server).await.unwrap();
    let (mut reading, mut writing) = connect(&server).await.into_split();
    let upload = request(&Hint::Undeclared, usize::MAX, 2 * LIMIT);
    writing.write_all(&upload).await.unwrap();
    tokio::spawn(keep_writing(writing, b"1\r\nx\r\n".repeat(10_000)));

    read_until(&mut reading, ALL_BUT_LAST).await;
    assert_eq!(ask(&server).await, StatusCode::OK);
}

#[test]
fn a_drain_of_16_mib_takes_little_memory() {
    for (found, hint) in WAYS {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (addressed, addr) = std::sync::mpsc::channel();
        // The client has a thread of its own, whose memory does not count.
        let upload = request(&hint, 15 * MIB, 15 * MIB);
        let client = thread::spawn(move || {
            let mut stream = std::net::TcpStream::connect(addr.recv().unwrap()).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            io::Write::write_all(&mut stream, &upload).unwrap();
            let mut answer = [0; 13];
            io::Read::read_exact(&mut stream, &mut answer).unwrap();
            answer
        });
        let memory = allocation_counter::measure(|| {
            runtime.block_on(async {
                let server = Server::start(app(found.by(limit()))).await;
                addressed.send(server.addr).unwrap();
                let answer = tokio::task::spawn_blocking(|| client.join().unwrap());
                assert_eq!(&guarded(answer).await.unwrap(), b"HTTP/1.1 413 ");
            });
        });
        assert!(memory.bytes_max < MIB as u64, "{found:?}: {memory:?}");
    }
}

#[tokio::test]
async fn a_refusal_over_http2_leaves_the_connection_and_its_other_streams_alone() {
    for (found, declared) in [
        (Found::Early, true),
        (Found::Late, true),
        (Found::Late, false),
    ] {
        // A drain would never end.
        let layer = found.by(limit()).drain_with(u64::MAX, NEVER, |_| pending());
        let server = Server::start(app(layer)).await;
        let handshake = h2::client::handshake(connect(&server).await).await;
        let (client, connection) = handshake.unwrap();
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let mut open = |length: Option<usize>| {
            let request = Request::post(server.uri("/"));
            let request = match length {
                Some(length) => request.header(CONTENT_LENGTH, length),
                None => request,
            };
            client
                .send_request(request.body(()).unwrap(), false)
                .unwrap()
        };
        let (sibling, mut sibling_body) = open(None);
        sibling_body.send_data("small".into(), false).unwrap();
        let (refusal, mut body) = open(declared.then_some(4 * LIMIT));
        body.send_data(vec![b'x'; 2 * LIMIT].into(), false).unwrap();

        let refusal = guarded(refusal).await.unwrap();
        assert_eq!(refusal.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(refusal.headers().get(CONNECTION), None);
        let reset = guarded(poll_fn(|cx| body.poll_reset(cx))).await;
        assert_eq!(reset.unwrap(), h2::Reason::NO_ERROR, "{found:?}");
        assert_eq!(text_of(refusal).await, TEXT, "{found:?}");

        sibling_body.send_data(" talk".into(), true).unwrap();
        let sibling = guarded(sibling).await.unwrap();
        assert_eq!(text_of(sibling).await, "10", "{found:?}");
    }
}

async fn text_of(response: Response<h2::RecvStream>) -> String {
    let mut text = Vec::new();
    let mut body = response.into_body();
    while let Some(data) = guarded(body.data()).await {
        text.extend_from_slice(&data.unwrap());
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn the_next_request_of_a_pooled_client_works_after_every_refusal() {
    let budget = 64 * KIB;
    let layers = [limit().drain(budget as u64, NEVER), limit().no_drain()];
    for (layer, (found, hint)) in layers.iter().flat_map(|layer| WAYS.map(|way| (layer, way))) {
        let server = Server::start(app(found.by(layer.clone()))).await;
        for (name, client) in clients() {
            for size in [2 * LIMIT, budget, 64 * budget] {
                let case = format!("{name}, {layer:?}, {found:?}, {hint:?}, {size} bytes");
                let is_within = size <= budget && format!("{layer:?}").contains("in 3600s");
                // Without a drain, or beyond its budget, the answer may be lost.
                match guarded(client.clone().oneshot(post(&server, size, hint.clone()))).await {
                    Ok(response) => assert_eq!(response.status(), 413, "{case}"),
                    Err(error) => assert!(!is_within, "{case}: {error}"),
                }
                let next = post(&server, 5, hint.clone());
                let next = guarded(client.clone().oneshot(next)).await.expect(&case);
                assert_eq!(Seen::of(next).await.0.body, b"5", "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_graceful_shutdown_waits_for_a_drain_no_longer_than_its_deadline() {
    for (found, hint) in WAYS {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (shut_down, told) = oneshot::channel::<()>();
        let app = app(found.by(limit()).drain(u64::MAX, SOON));
        let server = axum::serve(listener, app).with_graceful_shutdown(async {
            let _ = told.await;
        });
        let server = tokio::spawn(server.into_future());

        let (mut reading, mut writing) = TcpStream::connect(addr).await.unwrap().into_split();
        let upload = request(&hint, usize::MAX / 2, 2 * LIMIT);
        writing.write_all(&upload).await.unwrap();
        tokio::spawn(keep_writing(writing, chunk(64 * KIB, false)));
        read_until(&mut reading, "413 Payload Too Large").await;
        shut_down.send(()).unwrap();
        guarded(server).await.unwrap().unwrap();
    }
}

/// A request of twice the limit in frames of 128 bytes, and then this.
fn large(hint: &Hint, and_then: &[support::Step]) -> Request<Body> {
    let frames = vec![data(128); 2 * LIMIT / 128];
    let body = Body::new(Script::new([&frames, and_then].concat(), hint.clone()));
    let request = Request::post("/").header(ORIGIN, "https://example.com");
    match hint {
        Hint::Declared => request.header(CONTENT_LENGTH, 4 * LIMIT),
        _ => request,
    }
    .body(body)
    .unwrap()
}

/// What the client sees of a refusal: its status, and as much of the text as comes.
async fn seen(app: Router, request: Request<Body>) -> (u16, String) {
    let (seen, _) = Seen::of(app.oneshot(request).await.unwrap()).await;
    (seen.status.as_u16(), String::from_utf8(seen.body).unwrap())
}

#[tokio::test]
async fn a_browser_may_see_a_refusal_only_where_cors_is_outside() {
    for (found, hint) in WAYS {
        let (layer, cors) = (found.by(limit()), CorsLayer::permissive());
        let outside = routes().layer(layer.clone()).layer(cors.clone());
        let inside = routes().layer(cors).layer(layer);
        for (app, is_allowed) in [(outside, true), (inside, false)] {
            let response = app.oneshot(large(&hint, &[])).await.unwrap();
            assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
            let headers = response.headers();
            let allowed = headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN);
            assert_eq!(allowed, is_allowed, "{found:?}, {hint:?}");
        }
    }
}

fn timeout() -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, SECOND)
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_the_call_wins_outside_and_loses_inside() {
    // Reads until the breach, and then thinks about it.
    let slow = || {
        Router::new().route(
            "/",
            any(async |body: Body| {
                let error = body.collect().await.unwrap_err();
                assert!(TooLarge::find(&error).is_some());
                sleep(NEVER).await;
            }),
        )
    };
    for hint in support::VARIANTS {
        let layer = Found::Late.by(limit());
        let outside = slow().layer(layer.clone()).layer(timeout());
        assert_eq!(seen(outside, large(&hint, &[])).await, (408, String::new()));
        let inside = slow().layer(timeout()).layer(layer);
        assert_eq!(seen(inside, large(&hint, &[])).await, (413, TEXT.into()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_the_call_does_not_end_a_drain() {
    // A frame every tenth of a second, for three seconds.
    let frames = || {
        stream::unfold(0, async |count| {
            sleep(SECOND / 10).await;
            (count < 30).then(|| (Ok::<_, io::Error>(vec![b'x'; 2 * LIMIT]), count + 1))
        })
    };
    for hint in support::VARIANTS {
        let start = tokio::time::Instant::now();
        let (parts, _) = large(&hint, &[]).into_parts();
        let request = Request::from_parts(parts, Body::from_stream(frames()));
        let app = app(limit()).layer(timeout());
        assert_eq!(seen(app, request).await, (413, TEXT.into()), "{hint:?}");
        assert!(start.elapsed() >= 3 * SECOND, "{hint:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_stalls_within_its_limit_is_not_too_large() {
    let timeout = RequestBodyTimeoutLayer::new(SECOND);
    for hint in support::VARIANTS {
        let outside = routes().layer(limit()).layer(timeout.clone());
        let inside = routes().layer(timeout.clone()).layer(limit());
        for app in [outside, inside] {
            let body = Body::new(Script::new([data(LIMIT), Stall], hint.clone()));
            let request = Request::post("/").body(body).unwrap();
            assert_eq!(seen(app, request).await.0, 400, "{hint:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_the_request_body_ends_a_drain_and_not_the_answer() {
    let timeout = RequestBodyTimeoutLayer::new(SECOND);
    for (found, hint) in WAYS {
        // A drain that would wait for ever.
        let layer = found.by(limit()).drain_with(u64::MAX, NEVER, |_| pending());
        let app = routes().layer(layer).layer(timeout.clone());
        let seen = seen(app, large(&hint, &[Stall])).await;
        assert_eq!(seen, (413, TEXT.into()), "{found:?}, {hint:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_the_response_body_outside_has_to_be_longer_than_a_drain() {
    for (found, hint) in WAYS {
        // A drain that waits for ten seconds.
        let layer = found
            .by(limit())
            .drain_with(u64::MAX, NEVER, |_| sleep(5 * SECOND));
        for (seconds, text) in [(1, ALL_BUT_LAST), (11, TEXT)] {
            let timeout = ResponseBodyTimeoutLayer::new(seconds * SECOND);
            let outside = routes().layer(layer.clone()).layer(timeout.clone());
            let came = seen(outside, large(&hint, &[Stall])).await;
            assert_eq!(came, (413, text.into()), "{found:?}, {hint:?}, {seconds} s");
            let inside = routes().layer(timeout).layer(layer.clone());
            let came = seen(inside, large(&hint, &[Stall])).await;
            assert_eq!(came, (413, TEXT.into()), "{found:?}, {hint:?}, {seconds} s");
        }
    }
}

#[tokio::test]
async fn trailers_end_a_drain_like_any_other_end() {
    for (found, hint) in WAYS {
        let app = app(found.by(limit()));
        let seen = seen(app, large(&hint, &[Trailers])).await;
        assert_eq!(seen, (413, TEXT.into()), "{found:?}, {hint:?}");
    }
}
