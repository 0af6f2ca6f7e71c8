//! The same limits on every kind of stack.

#[path = "support/lengths.rs"]
mod lengths;
mod support;
#[path = "support/through.rs"]
mod through;

use std::{convert::Infallible, io, pin::Pin, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{DefaultBodyLimit, WebSocketUpgrade, ws::WebSocket},
    routing::{any, get, post},
};
use axum_extra::json_lines::JsonLines;
use bytes::Bytes;
use futures_util::{SinkExt, Stream, StreamExt, TryStreamExt, stream};
use http::{
    Method, Request, Response, StatusCode, Version,
    header::{
        ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, ORIGIN,
        SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use lengths::{answer, path, upload};
use serde_json::Value;
use support::{
    Hint, Script, Step, VARIANTS,
    net::{
        AnyBody, AnyClient, BoxError, Seen, Server, any_body, any_client, clients, exchange,
        frames, get as ask, guarded, hyper_client, respond,
    },
};
use through::{AnyLayer, around};
use tokio::{io::AsyncReadExt, net::TcpListener};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::client::generate_key, protocol::Role},
};
use tokio_util::io::StreamReader;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_body_limit::{
    BodyLimitExt, ClientRequestSizeLimitLayer, RequestHead, RequestSizeLimitLayer, ResponseBody,
    ResponseSizeLimitLayer, Subject, TooLarge,
};
use tower_http::{
    compression::CompressionLayer,
    cors::CorsLayer,
    decompression::{DecompressionLayer, RequestDecompressionLayer},
    follow_redirect::FollowRedirectLayer,
    timeout::{RequestBodyTimeoutLayer, ResponseBodyTimeoutLayer, TimeoutLayer},
    trace::TraceLayer,
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Of every stack here that says nothing else.
const LIMIT: usize = 4 * KIB;

const MINUTE: Duration = Duration::from_secs(60);

// One suite for servers

fn server_limits() -> (RequestSizeLimitLayer, ResponseSizeLimitLayer) {
    (
        RequestSizeLimitLayer::server(LIMIT as u64),
        ResponseSizeLimitLayer::server(LIMIT as u64),
    )
}

async fn fetch(client: &AnyClient, request: Request<AnyBody>) -> (Seen, Option<BoxError>) {
    let response = guarded(client.clone().oneshot(request)).await;
    Seen::of(response.expect("a head")).await
}

/// The response body of tower-http's timeout says nothing of its length.
const HIDES_LENGTHS: &str = "body timeouts inside";

/// Whatever the stack, a client sees the same.
async fn assert_server_limits<S, B>(stack: &str, service: S)
where
    S: Service<
            Request<hyper::body::Incoming>,
            Response = Response<B>,
            Error: Into<BoxError>,
            Future: Send,
        > + Clone
        + Send
        + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let server = Server::start(service).await;
    for (name, client) in clients() {
        for hint in VARIANTS {
            for (len, passes) in around(Some(LIMIT as u64)) {
                let case = format!("{stack}, {name}, {hint:?}, {len}");
                let request = upload(&server, "/0/declared", len, &hint);
                let (seen, error) = fetch(&client, request).await;
                assert!(error.is_none(), "{case}: {error:?}");
                assert_eq!(seen.status, if passes { 200 } else { 413 }, "{case}");
                let read = passes.then(|| len.to_string());
                assert_eq!(seen.header("x-read"), read.as_deref(), "{case}");

                let (seen, error) = fetch(&client, ask(&server, &path(len, &hint))).await;
                let declared = matches!(hint, Hint::Declared) && stack != HIDES_LENGTHS;
                let answered = !passes && declared;
                assert_eq!(seen.status, if answered { 500 } else { 200 }, "{case}");
                assert_eq!(error.is_none(), passes || answered, "{case}: {error:?}");
                assert!(!passes || seen.body.len() == len, "{case}");
                assert!(seen.body.len() <= LIMIT, "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_plain_hyper_server_limits_both_directions() {
    assert_server_limits("hyper", server_limits().layer(service_fn(answer))).await;
}

#[tokio::test]
async fn an_axum_server_limits_both_directions_among_other_layers() {
    let app = || {
        Router::new().fallback(async |request: axum::extract::Request| {
            let answer = answer(request)
                .await
                .map(|response| response.map(Body::new));
            answer.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
        })
    };
    let limited = || app().layer(server_limits());
    let trace = TraceLayer::new_for_http;
    let timeout = || TimeoutLayer::with_status_code(StatusCode::SERVICE_UNAVAILABLE, MINUTE);
    let timeouts = || {
        (
            RequestBodyTimeoutLayer::new(MINUTE),
            ResponseBodyTimeoutLayer::new(MINUTE),
        )
    };
    for (stack, app) in [
        ("axum", limited()),
        ("trace outside", limited().layer(trace())),
        ("trace inside", app().layer(trace()).layer(server_limits())),
        ("timeout outside", limited().layer(timeout())),
        (
            "timeout inside",
            app().layer(timeout()).layer(server_limits()),
        ),
        ("body timeouts outside", limited().layer(timeouts())),
        (
            HIDES_LENGTHS,
            app().layer(timeouts()).layer(server_limits()),
        ),
        ("CORS outside", limited().layer(CorsLayer::permissive())),
        (
            "CORS inside",
            app().layer(CorsLayer::permissive()).layer(server_limits()),
        ),
        (
            "compression outside",
            limited().layer(CompressionLayer::new()),
        ),
        (
            "decompression outside",
            limited().layer(RequestDecompressionLayer::new()),
        ),
        (
            "decompression inside",
            app()
                .layer(RequestDecompressionLayer::new())
                .layer(server_limits()),
        ),
        ("both limits twice", limited().layer(server_limits())),
    ] {
        assert_server_limits(stack, app).await;
    }
}

// One suite for clients

fn client_limits() -> (ClientRequestSizeLimitLayer, ResponseSizeLimitLayer) {
    (
        RequestSizeLimitLayer::client(LIMIT as u64),
        ResponseSizeLimitLayer::client(LIMIT as u64),
    )
}

#[track_caller]
fn assert_breach(error: Option<BoxError>, subject: Subject, limit: usize, case: &str) {
    let error = error.expect(case);
    let too_large = TooLarge::find(&*error).expect(case);
    assert_eq!(too_large.limit(), limit as u64, "{case}");
    assert_eq!(too_large.subject(), subject, "{case}");
}

#[tokio::test]
async fn a_client_limits_both_directions_among_other_layers() {
    let server = Server::start(service_fn(answer)).await;
    let trace = TraceLayer::new_for_http;
    let timeout = || TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, MINUTE);
    let timeouts = || {
        (
            RequestBodyTimeoutLayer::new(MINUTE),
            ResponseBodyTimeoutLayer::new(MINUTE),
        )
    };
    let decompression = DecompressionLayer::new;
    let redirects = FollowRedirectLayer::new;
    for (stack, layer) in [
        ("client", AnyLayer::new(client_limits())),
        ("trace outside", AnyLayer::new((trace(), client_limits()))),
        ("trace inside", AnyLayer::new((client_limits(), trace()))),
        (
            "timeout outside",
            AnyLayer::new((timeout(), client_limits())),
        ),
        (
            "timeout inside",
            AnyLayer::new((client_limits(), timeout())),
        ),
        (
            "body timeouts inside",
            AnyLayer::new((client_limits(), timeouts())),
        ),
        (
            "decompression outside",
            AnyLayer::new((decompression(), client_limits())),
        ),
        (
            "decompression inside",
            AnyLayer::new((client_limits(), decompression())),
        ),
        (
            "redirects outside",
            AnyLayer::new((redirects(), client_limits())),
        ),
        (
            "redirects inside",
            AnyLayer::new((client_limits(), redirects())),
        ),
        (
            "both limits twice",
            AnyLayer::new((client_limits(), client_limits())),
        ),
    ] {
        for (name, client) in clients() {
            let client = layer.layer(client);
            for hint in VARIANTS {
                for (len, passes) in around(Some(LIMIT as u64)) {
                    let case = format!("{stack}, {name}, {hint:?}, {len}");
                    let request = upload(&server, "/0/declared", len, &hint);
                    let sent = guarded(client.clone().oneshot(request)).await;
                    match sent {
                        Ok(response) => {
                            let (seen, _) = Seen::of(response).await;
                            assert!(passes && seen.status == 200, "{case}");
                            assert_eq!(seen.header("x-read"), Some(&*len.to_string()), "{case}");
                        }
                        Err(error) => {
                            assert!(!passes, "{case}");
                            assert_breach(Some(error), Subject::Request, LIMIT, &case);
                        }
                    }

                    let (seen, error) = fetch(&client, ask(&server, &path(len, &hint))).await;
                    assert_eq!(seen.status, 200, "{case}");
                    if passes {
                        assert!(error.is_none(), "{case}: {error:?}");
                        assert_eq!(seen.body.len(), len, "{case}");
                    } else {
                        assert!(seen.body.len() <= LIMIT, "{case}");
                        assert_breach(error, Subject::Response, LIMIT, &case);
                    }
                }
            }
        }
    }
}

// Around decoders

const ENCODINGS: [&str; 4] = ["gzip", "deflate", "br", "zstd"];

/// `len` zeros, as tower-http encodes them.
async fn encoded(encoding: &'static str, len: usize) -> Bytes {
    let zeros = respond(move |_| Response::new(Full::<Bytes>::from(vec![0; len])));
    let request = Request::builder().header(ACCEPT_ENCODING, encoding);
    let encoder = CompressionLayer::new().layer(zeros);
    let response = encoder.oneshot(request.body(()).unwrap()).await.unwrap();
    assert_eq!(response.headers()[CONTENT_ENCODING], encoding);
    response.into_body().collect().await.unwrap().to_bytes()
}

/// Limits on both sides of a decoder, and which of them fires.
fn around_a_decoder(encoded: usize, decoded: usize) -> [(usize, usize, Option<&'static str>); 4] {
    [
        (encoded, decoded, None),
        (encoded - 1, decoded, Some("encoded")),
        (encoded, decoded - 1, Some("decoded")),
        // As people would set them.
        (10 * KIB, 64 * KIB, Some("decoded")),
    ]
}

#[tokio::test]
async fn limits_on_both_sides_of_a_clients_decoder_can_be_told_apart() {
    for encoding in ENCODINGS {
        let bomb = encoded(encoding, MIB).await;
        assert!(bomb.len() < 2 * KIB, "{encoding}: {}", bomb.len());
        for hint in VARIANTS {
            let (bomb, encoded_len) = (bomb.clone(), bomb.len());
            let body_hint = hint.clone();
            let server = Server::start(respond(move |_| {
                let body = Script::new([Step::Data(bomb.clone())], body_hint.clone());
                let response = Response::builder().header(CONTENT_ENCODING, encoding);
                response.body(body).unwrap()
            }))
            .await;
            for version in [Version::HTTP_11, Version::HTTP_2] {
                for (encoded, decoded, label) in around_a_decoder(encoded_len, MIB) {
                    let case = format!("{encoding}, {hint:?}, {version:?}, {encoded}, {decoded}");
                    let client = any_client(
                        ServiceBuilder::new()
                            .layer(ResponseSizeLimitLayer::client(decoded as u64).label("decoded"))
                            .layer(DecompressionLayer::new())
                            .layer(ResponseSizeLimitLayer::client(encoded as u64).label("encoded"))
                            .service(hyper_client::<AnyBody>(version)),
                    );
                    let (seen, error) = fetch(&client, ask(&server, "/")).await;
                    let too_large = error.as_ref().and_then(|error| TooLarge::find(&**error));
                    assert_eq!(
                        too_large.and_then(TooLarge::label),
                        label,
                        "{case}: {error:?}"
                    );
                    assert!(seen.body.len() <= decoded, "{case}");
                    assert_eq!(seen.body.len() == MIB, error.is_none(), "{case}");
                }
            }
        }
    }
}

/// Names the limit in the answer.
fn naming(error: &TooLarge, _: &RequestHead) -> Response<String> {
    let label = error.label().expect("a label").to_owned();
    Response::builder()
        .status(error.status())
        .body(label)
        .unwrap()
}

/// Frameworks make 400, 422, or 500 of what comes through a decoder.
#[tokio::test]
async fn limits_on_both_sides_of_a_servers_decoder_both_end_in_a_413() {
    let count = async |body: Body| {
        let mut body = body.into_data_stream();
        while let Some(frame) = body.next().await {
            frame.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        }
        Ok::<_, (StatusCode, String)>(())
    };
    let routes = || {
        Router::new()
            .route("/bytes", post(async |_: Bytes| ()))
            .route("/string", post(async |_: String| ()))
            .route("/json", post(async |_: Json<Value>| ()))
            .route("/stream", post(count))
            .layer(DefaultBodyLimit::disable())
    };
    for encoding in ENCODINGS {
        // Zeros are no JSON, which serde would say first.
        let bomb = encoded(encoding, MIB).await;
        for (encoded, decoded, label) in around_a_decoder(bomb.len(), MIB) {
            let encoded = RequestSizeLimitLayer::server(encoded as u64).label("encoded");
            let decoded = RequestSizeLimitLayer::server(decoded as u64).label("decoded");
            let app = routes()
                // Below a decoder, a drain would inflate what it discards.
                .layer(decoded.answer_with(naming).no_drain())
                .layer(RequestDecompressionLayer::new())
                .layer(encoded.answer_with(naming));
            let server = Server::start(app).await;
            for (name, client) in clients() {
                for hint in VARIANTS {
                    for path in ["/bytes", "/string", "/json", "/stream"] {
                        let case = format!("{encoding}, {label:?}, {name}, {hint:?}, {path}");
                        let body = Script::new([Step::Data(bomb.clone())], hint.clone());
                        let request = Request::post(server.uri(path))
                            .header(CONTENT_ENCODING, encoding)
                            .header(CONTENT_TYPE, "application/json");
                        let request = request.body(any_body(body)).unwrap();
                        let (seen, error) = fetch(&client, request).await;
                        assert!(error.is_none(), "{case}: {error:?}");
                        let (status, text) = match label {
                            Some(label) => (413, label),
                            None if path == "/json" => (400, ""),
                            None => (200, ""),
                        };
                        assert_eq!(seen.status, status, "{case}");
                        let named = seen.body.starts_with(text.as_bytes());
                        assert!(named, "{case}: {}", seen.body.escape_ascii());
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn outside_an_encoder_a_limit_counts_what_is_sent_and_inside_what_is_made() {
    for hint in VARIANTS {
        let declared = matches!(hint, Hint::Declared);
        // A script would not stand the encoder, which polls it again after its end.
        let zeros = async move || match declared {
            true => Body::from(vec![0; MIB]),
            false => Body::from_stream(stream::iter([Ok::<_, Infallible>(vec![0; MIB])])),
        };
        let app = Router::new().route("/", get(zeros));
        let limit = || ResponseSizeLimitLayer::server(10 * KIB as u64);
        let outside = app.clone().layer(CompressionLayer::new()).layer(limit());
        let inside = app.layer(limit()).layer(CompressionLayer::new());
        for (app, encoding, passes) in [
            (&outside, "gzip", true),
            (&outside, "identity", false),
            (&inside, "gzip", false),
            (&inside, "identity", false),
        ] {
            let server = Server::start(app.clone()).await;
            for version in [Version::HTTP_11, Version::HTTP_2] {
                let case = format!("{hint:?}, {encoding}, {passes}, {version:?}");
                let client = any_client(hyper_client::<AnyBody>(version));
                let mut request = ask(&server, "/");
                let accept = encoding.parse().unwrap();
                request.headers_mut().insert(ACCEPT_ENCODING, accept);
                let (seen, error) = fetch(&client, request).await;
                let whole = seen.status == 200 && error.is_none();
                assert_eq!(whole, passes, "{case}: {error:?}");
                assert!(seen.body.len() <= 10 * KIB, "{case}");
            }
        }
    }
}

/// What an encoder holds back goes out before the break, and the head with it.
#[tokio::test]
async fn a_response_that_breaks_off_inside_an_encoder_has_a_head() {
    let frames = || {
        let frames = stream::iter(vec![Ok::<_, Infallible>(vec![0; KIB]); 5]);
        std::future::ready(Body::from_stream(frames))
    };
    let app = Router::new()
        .route("/", get(frames))
        .layer(ResponseSizeLimitLayer::server(LIMIT as u64))
        .layer(CompressionLayer::new());
    let server = Server::start(app).await;
    for encoding in ENCODINGS {
        let accept = format!("accept-encoding: {encoding}");
        let request = format!("GET / HTTP/1.1\r\nhost: test\r\n{accept}\r\n\r\n");
        let seen = exchange(&server, &Method::GET, &request).await;
        let seen = seen.unwrap_or_else(|| panic!("{encoding}: nothing came"));
        assert_eq!(seen.status, 200, "{encoding}");
        assert_eq!(seen.header(CONTENT_ENCODING), Some(encoding));
        assert!(!seen.whole, "{encoding}");
    }
}

#[tokio::test]
async fn a_browser_on_another_origin_may_read_the_refusal_if_cors_stands_outside() {
    let app = Router::new().route("/", post(async |_: Bytes| ()));
    let app = app.layer(server_limits());
    let server = Server::start(app.layer(CorsLayer::permissive())).await;
    for (name, client) in clients() {
        for hint in VARIANTS {
            let mut request = upload(&server, "/", LIMIT + 1, &hint);
            let origin = "http://elsewhere.test".parse().unwrap();
            request.headers_mut().insert(ORIGIN, origin);
            let (seen, _) = fetch(&client, request).await;
            assert_eq!(seen.status, 413, "{name}, {hint:?}");
            let allowed = seen.header("access-control-allow-origin");
            assert_eq!(allowed, Some("*"), "{name}, {hint:?}");
        }
    }
}

// JSON lines

const LINE: &str = "{\"n\":1}\n";
const LINES: usize = 10;

/// Says how many lines came, and which limit ended them.
async fn read_lines(mut lines: JsonLines<Value>) -> (StatusCode, String) {
    let mut count = 0;
    while let Some(line) = lines.next().await {
        match line {
            Ok(_) => count += 1,
            Err(error) => {
                let limit = TooLarge::find(&error).map(TooLarge::limit);
                return (StatusCode::BAD_REQUEST, format!("{count}, then {limit:?}"));
            }
        }
    }
    (StatusCode::OK, count.to_string())
}

#[tokio::test]
async fn json_lines_that_are_received_are_limited() {
    let whole = LINES * LINE.len();
    for (limit, kept, status, text) in [
        (whole, false, 200, "10"),
        (whole, true, 200, "10"),
        (whole - 1, false, 413, "The request body is too large.\n"),
        (whole - 1, true, 400, "9, then Some(79)"),
    ] {
        let layer = RequestSizeLimitLayer::server(limit as u64);
        let layer = if kept {
            layer.keep_inner_answers()
        } else {
            layer
        };
        let app = Router::new().route("/", post(read_lines)).layer(layer);
        let server = Server::start(app).await;
        for (name, client) in clients() {
            for hint in VARIANTS {
                let case = format!("{limit}, {kept}, {name}, {hint:?}");
                let steps = vec![Step::Data(Bytes::from_static(LINE.as_bytes())); LINES];
                let body = any_body(Script::new(steps, hint.clone()));
                let request = Request::post(server.uri("/")).body(body).unwrap();
                let (seen, _) = fetch(&client, request).await;
                let refused = limit < whole && matches!(hint, Hint::Declared);
                if refused {
                    assert_eq!(seen.status, 413, "{case}");
                } else {
                    assert_eq!(seen.status, status, "{case}");
                    assert_eq!(seen.body, text.as_bytes(), "{case}");
                }
            }
        }
    }
}

#[tokio::test]
async fn json_lines_that_are_sent_are_limited() {
    let lines = async || {
        let line: Value = serde_json::from_str(LINE).unwrap();
        JsonLines::new(stream::iter(vec![Ok::<_, Infallible>(line); LINES]))
    };
    let whole = LINES * LINE.len();
    for (limit, passes) in [(whole, true), (whole - 1, false)] {
        let layer = ResponseSizeLimitLayer::server(limit as u64);
        let app = Router::new().route("/", get(lines)).layer(layer);
        let server = Server::start(app).await;
        for (name, client) in clients() {
            let (seen, error) = fetch(&client, ask(&server, "/")).await;
            let case = format!("{limit}, {name}: {error:?}");
            assert_eq!(
                (seen.status, error.is_none()),
                (StatusCode::OK, passes),
                "{case}"
            );
            let lines = if passes { LINES } else { LINES - 1 };
            assert_eq!(seen.body, LINE.repeat(lines).as_bytes(), "{case}");
        }
    }
}

// WebSockets

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

/// What passes after an upgrade is not a body.
#[tokio::test]
async fn a_websocket_passes_untouched_under_the_layers_of_both_sides() {
    let upgrade = async |socket: WebSocketUpgrade| socket.on_upgrade(echo);
    let app = Router::new()
        .route("/", any(upgrade))
        .layer(RequestSizeLimitLayer::server(0))
        .layer(ResponseSizeLimitLayer::server(0).buffered());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, app).into_future());

    let layers = (
        RequestSizeLimitLayer::client(0),
        ResponseSizeLimitLayer::client(0),
    );
    let client = AnyLayer::new(layers).layer(hyper_client::<AnyBody>(Version::HTTP_11));
    let request = Request::get(format!("http://{addr}/"))
        .header(HOST, addr.to_string())
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, generate_key());
    let request = request.body(any_body(Full::<Bytes>::default())).unwrap();
    let response = guarded(client.oneshot(request)).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);

    let upgraded = guarded(hyper::upgrade::on(response)).await.unwrap();
    let mut socket =
        WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await;
    for len in [1, MIB] {
        let message = Message::binary(vec![b'x'; len]);
        guarded(socket.send(message.clone())).await.unwrap();
        let back = guarded(socket.next()).await.unwrap().unwrap();
        assert!(back == message, "{len}");
    }
    guarded(socket.close(None)).await.unwrap();
}

// Consumers

type Consumed = (Vec<u8>, Option<TooLarge>);

fn found<E: std::error::Error + 'static>(error: E) -> TooLarge {
    TooLarge::find(&error).expect("a limit").clone()
}

/// Reads a stream until its end or its error.
async fn consume<E>(stream: impl Stream<Item = Result<Bytes, E>>) -> Consumed
where
    E: std::error::Error + 'static,
{
    let mut stream = std::pin::pin!(stream);
    let mut read = Vec::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(data) => read.extend_from_slice(&data),
            Err(error) => return (read, Some(found(error))),
        }
    }
    (read, None)
}

/// A way to read a body.
type Consumer = fn(ResponseBody<Script>) -> Pin<Box<dyn Future<Output = Consumed>>>;

const CONSUMERS: [(&str, Consumer); 6] = [
    ("frames", |mut body| {
        Box::pin(async move {
            let mut read = Vec::new();
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => read.extend_from_slice(&frame.into_data().unwrap()),
                    Err(error) => return (read, Some(found(error))),
                }
            }
            (read, None)
        })
    }),
    ("http-body-util's stream", |body| {
        Box::pin(consume(body.into_data_stream()))
    }),
    ("axum's stream", |body| {
        Box::pin(consume(Body::new(body).into_data_stream()))
    }),
    ("reqwest's stream", |body| {
        Box::pin(async {
            let response = reqwest::Response::from(Response::new(reqwest::Body::wrap(body)));
            consume(response.bytes_stream()).await
        })
    }),
    ("AsyncRead", |body| {
        Box::pin(async {
            let stream = body.into_data_stream().map_err(io::Error::other);
            let (mut reader, mut read) = (StreamReader::new(stream), Vec::new());
            match reader.read_to_end(&mut read).await {
                Ok(_) => (read, None),
                Err(error) => (read, Some(found(error))),
            }
        })
    }),
    ("a second limit", |body| {
        Box::pin(consume(body.limited(100).into_data_stream()))
    }),
];

async fn limited(steps: Vec<Step>, hint: Hint, limit: u64) -> ResponseBody<Script> {
    let service = respond(move |_| Response::new(Script::new(steps.clone(), hint.clone())));
    let client = ResponseSizeLimitLayer::client(limit).layer(service);
    client.oneshot(Request::new(())).await.unwrap().into_body()
}

#[tokio::test]
async fn every_consumer_stops_at_the_same_byte() {
    for (frame, passes) in [(1, 10), (3, 9), (10, 10), (7, 7)] {
        for hint in VARIANTS {
            let declared = matches!(hint, Hint::Declared);
            for (name, consume) in CONSUMERS {
                let case = format!("{name}, {hint:?}, {frame}");
                let steps = frames(frame, 30 / frame);
                let whole = 30 / frame * frame;
                let body = limited(steps.clone(), hint.clone(), whole as u64).await;
                let (read, breach) = consume(body).await;
                assert_eq!((read.len(), breach), (whole, None), "{case}");

                let body = limited(steps, hint.clone(), 10).await;
                let (read, breach) = consume(body).await;
                let breach = breach.expect(&case);
                let passes = if declared { 0 } else { passes };
                assert_eq!(read.len(), passes, "{case}");
                assert_eq!(breach.limit(), 10, "{case}");
                let crossing = if declared { 0 } else { passes + frame };
                assert_eq!(breach.read(), crossing as u64, "{case}");
            }
        }
    }
}

#[tokio::test]
async fn what_collects_the_whole_gets_all_or_an_error() {
    for hint in VARIANTS {
        for (len, passes) in around(Some(10)) {
            let case = format!("{hint:?}, {len}");
            let body = || limited(frames(1, len), hint.clone(), 10);
            let collected = body().await.collect().await.map(|all| all.to_bytes());
            let collected = collected.map_err(found);
            let by_axum = axum::body::to_bytes(Body::new(body().await), usize::MAX).await;
            let by_axum = by_axum.map_err(found);
            let response =
                reqwest::Response::from(Response::new(reqwest::Body::wrap(body().await)));
            let by_reqwest = response.bytes().await.map_err(found);
            for result in [collected, by_axum, by_reqwest] {
                match result {
                    Ok(all) => assert!(passes && all.len() == len, "{case}"),
                    Err(breach) => assert!(!passes && breach.limit() == 10, "{case}"),
                }
            }
        }
    }
}
