//! What the clients of an axum server get for a request that is too large, whatever is made of it.

mod support;
#[path = "support/witness.rs"]
mod witness;

use std::{collections::HashMap, convert::Infallible, io::Write, slice, time::Duration};

use axum::{
    Form, Json, Router,
    body::Body,
    extract::{DefaultBodyLimit, Multipart, multipart::MultipartError},
    response::{IntoResponse, Response},
    routing::{MethodRouter, post},
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderValue, Request, StatusCode, Version, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use support::{
    Hint, Log, Script, Step, VARIANTS,
    net::{AnyClient, BoxError, Seen, Server, any_body, clients, guarded, hyper_client, respond},
};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_body_limit::{
    Error, LimitedBody, RequestSizeLimitLayer, ResponseSizeLimitLayer, Subject, TooLarge,
};
use tower_http::decompression::RequestDecompressionLayer;
use witness::{StoppedClock, Witness};

const TEXT: &str = "The request body is too large.\n";

/// A server in one process with its client.
type App = BoxCloneSyncService<Request<Body>, Response, BoxError>;

/// What becomes of a request that breaches while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The 413 of the layer.
    Refused,
    /// The handler's own answer.
    Stays(u16),
    /// The handler's own answer, as it never read so far.
    Unread,
}

/// Something that reads requests, each kind in its own way.
struct Handler {
    name: String,
    app: App,
    content_type: &'static str,
    payload: Vec<u8>,
    /// What it answers by itself if the body fails. None for an error of the service.
    own: Option<u16>,
    outcome: Outcome,
}

fn filler() -> String {
    "0123456789abcdef".repeat(8)
}

/// Whether the limit of axum itself is left as it is.
const AXUM_LIMIT: [bool; 2] = [true, false];

fn routed(handler: MethodRouter, axum_limit: bool) -> App {
    let router = Router::new().route("/", handler);
    let router = if axum_limit {
        router
    } else {
        router.layer(DefaultBodyLimit::disable())
    };
    App::new(ServiceExt::<Request<Body>>::map_err(
        router,
        |never: Infallible| match never {},
    ))
}

async fn multipart(mut multipart: Multipart) -> Result<String, MultipartError> {
    let mut read = 0;
    while let Some(mut field) = multipart.next_field().await? {
        while let Some(chunk) = field.chunk().await? {
            read += chunk.len();
        }
    }
    Ok(read.to_string())
}

async fn stream(body: Body) -> Result<String, (StatusCode, String)> {
    let mut frames = body.into_data_stream();
    let mut read = 0;
    while let Some(frame) = futures_util::StreamExt::next(&mut frames).await {
        match frame {
            Ok(frame) => read += frame.len(),
            Err(error) => return Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
        }
    }
    Ok(read.to_string())
}

/// A tower service fails where axum's own cannot.
fn boxing() -> App {
    App::new(service_fn(async |request: Request<Body>| {
        let bytes = request.into_body().collect().await?.to_bytes();
        Ok(bytes.len().to_string().into_response())
    }))
}

const ANSWERS: [u16; 9] = [200, 401, 409, 429, 400, 408, 422, 500, 502];

fn handlers(axum_limit: bool) -> Vec<Handler> {
    let plain = "text/plain";
    let part = "--X\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\n";
    let multi = format!("{part}{}\r\n--X--\r\n", filler().repeat(4));
    let json = format!(r#"{{"text":"{}"}}"#, filler());
    let form = format!("text={}", filler());
    let length = async |bytes: Bytes| bytes.len().to_string();
    let string = async |text: String| text;
    let as_json = async |json: Json<HashMap<String, String>>| json;
    let as_form = async |Form(form): Form<HashMap<String, String>>| form["text"].clone();
    let urlencoded = "application/x-www-form-urlencoded";
    let mut handlers = Vec::new();
    let mut add = |name: &str, app, content_type, payload: String, own, outcome| {
        handlers.push(Handler {
            name: name.to_owned(),
            app,
            content_type,
            payload: payload.into_bytes(),
            own,
            outcome,
        });
    };
    let refused = Outcome::Refused;
    let route = |handler| routed(handler, axum_limit);
    add(
        "Bytes",
        route(post(length)),
        plain,
        filler(),
        Some(400),
        refused,
    );
    add(
        "String",
        route(post(string)),
        plain,
        filler(),
        Some(400),
        refused,
    );
    add(
        "Json",
        route(post(as_json)),
        "application/json",
        json,
        Some(400),
        refused,
    );
    add(
        "Form",
        route(post(as_form)),
        urlencoded,
        form,
        Some(400),
        refused,
    );
    let boundary = "multipart/form-data; boundary=X";
    add(
        "Multipart",
        route(post(multipart)),
        boundary,
        multi,
        Some(500),
        refused,
    );
    add(
        "a stream",
        route(post(stream)),
        plain,
        filler(),
        Some(500),
        refused,
    );
    add("a boxed error", boxing(), plain, filler(), None, refused);
    let ignores = async || "ignored";
    add(
        "ignored",
        route(post(ignores)),
        plain,
        filler(),
        Some(200),
        Outcome::Unread,
    );
    for status in ANSWERS {
        let handler = async move |body: Body| {
            let _ = body.collect().await;
            (StatusCode::from_u16(status).unwrap(), "anyway")
        };
        let outcome = match status {
            200 | 401 | 409 | 429 => Outcome::Stays(status),
            _ => refused,
        };
        let name = format!("{status} anyway");
        add(
            &name,
            route(post(handler)),
            plain,
            filler(),
            Some(status),
            outcome,
        );
    }
    handlers
}

impl Handler {
    /// A request of this length, in frames of four bytes.
    fn request(&self, hint: &Hint) -> (Request<Body>, Log) {
        request(&self.payload, self.content_type, hint)
    }

    /// A limit that is met in the middle of it.
    fn half(&self) -> u64 {
        self.payload.len() as u64 / 2
    }
}

fn script(payload: &[u8], hint: &Hint) -> Script {
    let frames = payload.chunks(4);
    Script::new(
        frames.map(|frame| Step::Data(Bytes::copy_from_slice(frame))),
        hint.clone(),
    )
}

fn request(payload: &[u8], content_type: &'static str, hint: &Hint) -> (Request<Body>, Log) {
    let frames = payload
        .chunks(4)
        .map(|frame| Step::Data(Bytes::copy_from_slice(frame)));
    let script = Script::new(frames, hint.clone());
    let log = script.log();
    let request = Request::post("/").header(CONTENT_TYPE, content_type);
    (request.body(Body::new(script)).unwrap(), log)
}

/// One or two layers of ours, and what they report.
struct Stack {
    name: &'static str,
    /// From the inside, with their labels.
    limits: Vec<(u64, &'static str)>,
    fires: &'static str,
    witness: Witness,
    clock: StoppedClock,
}

impl Stack {
    /// Each arrangement in which a limit is the one that fires.
    fn all(tight: u64) -> [Self; 4] {
        let wide = 1_000_000;
        let stack = |name, fires, limits: &[(u64, &'static str)]| Self {
            name,
            limits: limits.to_vec(),
            fires,
            witness: Witness::default(),
            clock: StoppedClock::default(),
        };
        [
            stack("alone", "only", &[(tight, "only")]),
            stack(
                "tight inside",
                "inner",
                &[(tight, "inner"), (wide, "outer")],
            ),
            stack(
                "tight outside",
                "outer",
                &[(wide, "inner"), (tight, "outer")],
            ),
            // Bytes pass the outer one first.
            stack("both tight", "outer", &[(tight, "inner"), (tight, "outer")]),
        ]
    }

    fn around(&self, app: App, change: fn(RequestSizeLimitLayer) -> RequestSizeLimitLayer) -> App {
        self.limits.iter().fold(app, |app, (limit, label)| {
            let layer = RequestSizeLimitLayer::server(*limit)
                .label(label)
                .drain_with(1 << 20, Duration::from_secs(5), self.clock.sleep())
                .on_breach(self.witness.breach())
                .on_end(self.witness.end());
            limited(&change(layer), app)
        })
    }
}

fn limited(layer: &RequestSizeLimitLayer, app: App) -> App {
    let app = app.map_request(|request: Request<LimitedBody<Body>>| request.map(Body::new));
    let app = layer.layer(app);
    App::new(app.map_response(|response| response.map(Body::new)))
}

async fn text_of(response: Response) -> String {
    let text = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(text.to_vec()).unwrap()
}

/// The error of a response says which layer it is from, and the callback has said the same, once.
#[track_caller]
fn assert_names_the_layer(response: &Response, stack: &Stack, limit: u64, case: &str) {
    let error = response.extensions().get::<TooLarge>().expect(case);
    assert_eq!(error.label(), Some(stack.fires), "{case}");
    assert_eq!(error.limit(), limit, "{case}");
    assert_eq!(error.subject(), Subject::Request, "{case}");
    assert_eq!(stack.witness.breaches(), slice::from_ref(error), "{case}");
}

#[tokio::test]
async fn the_client_gets_the_413_of_the_layer_that_fired_whatever_the_handler_makes_of_it() {
    for axum_limit in AXUM_LIMIT {
        for handler in handlers(axum_limit) {
            for hint in VARIANTS {
                for stack in Stack::all(handler.half()) {
                    let case = format!("{}, {hint:?}, {}, {axum_limit}", handler.name, stack.name);
                    check(&handler, &hint, &stack, &case).await;
                }
            }
        }
    }
}

async fn check(handler: &Handler, hint: &Hint, stack: &Stack, case: &str) {
    let app = stack.around(handler.app.clone(), |layer| layer);
    let (request, log) = handler.request(hint);
    let response = app.oneshot(request).await.unwrap();
    let outcome = match hint {
        // The handler is not asked.
        Hint::Declared => Outcome::Refused,
        _ => handler.outcome,
    };
    match outcome {
        Outcome::Refused => {
            assert_eq!(response.status(), 413, "{case}");
            assert_names_the_layer(&response, stack, handler.half(), case);
            assert_eq!(text_of(response).await, TEXT, "{case}");
            assert_eq!(stack.clock.started(), 1, "one drain: {case}");
            // All frames, and the end.
            let frames = handler.payload.len().div_ceil(4);
            assert_eq!(log.polls(), frames + 1, "{case}");
        }
        Outcome::Stays(status) => {
            assert_eq!(response.status(), status, "{case}");
            assert_names_the_layer(&response, stack, handler.half(), case);
            assert_eq!(text_of(response).await, "anyway", "{case}");
            assert_eq!(stack.clock.started(), 0, "{case}");
        }
        Outcome::Unread => {
            assert_eq!(response.status(), handler.own.unwrap(), "{case}");
            assert!(response.extensions().get::<TooLarge>().is_none(), "{case}");
            assert_eq!(stack.witness.breaches(), [], "{case}");
            assert_eq!(log.polls(), 0, "{case}");
        }
    }
    assert!(log.dropped(), "{case}");
    // The inner layer never sees what the outer one refuses in the head.
    let unseen = matches!(hint, Hint::Declared) && stack.fires == "outer";
    let layers = stack.limits.len() - usize::from(unseen);
    assert_eq!(stack.witness.ends().len(), layers, "{case}");
}

/// The same requests are what the handlers take, if they are allowed to have them.
#[tokio::test]
async fn at_the_limit_every_handler_answers_for_itself() {
    for axum_limit in AXUM_LIMIT {
        for handler in handlers(axum_limit) {
            for hint in VARIANTS {
                for stack in Stack::all(handler.payload.len() as u64) {
                    let app = stack.around(handler.app.clone(), |layer| layer);
                    let (request, _) = handler.request(&hint);
                    let response = app.oneshot(request).await.unwrap();
                    let case = format!("{}, {hint:?}, {}", handler.name, stack.name);
                    let anyway = handler.name.ends_with("anyway");
                    let status = handler.own.filter(|_| anyway).unwrap_or(200);
                    assert_eq!(response.status(), status, "{case}");
                    assert!(response.extensions().get::<TooLarge>().is_none(), "{case}");
                    assert_ne!(text_of(response).await, "", "{case}");
                    assert_eq!(stack.witness.breaches(), [], "{case}");
                    assert_eq!(stack.clock.started(), 0, "{case}");
                }
            }
        }
    }
}

#[tokio::test]
async fn inner_answers_may_be_kept() {
    for axum_limit in AXUM_LIMIT {
        for handler in handlers(axum_limit) {
            for stack in Stack::all(handler.half()) {
                let case = format!("{}, {}, {axum_limit}", handler.name, stack.name);
                let app = stack.around(handler.app.clone(), |layer| layer.keep_inner_answers());
                let (request, _) = handler.request(&Hint::Undeclared);
                match (app.clone().oneshot(request).await, handler.own) {
                    (Ok(response), Some(own)) => {
                        assert_eq!(response.status(), own, "{case}");
                        if handler.outcome != Outcome::Unread {
                            assert_names_the_layer(&response, &stack, handler.half(), &case);
                        }
                    }
                    (Err(error), None) => {
                        let label = TooLarge::find(&*error).expect(&case).label();
                        assert_eq!(label, Some(stack.fires), "{case}");
                        stack.witness.breaches();
                    }
                    (result, _) => panic!("{case}: {result:?}"),
                }
                assert_eq!(stack.clock.started(), 0, "{case}");
                // No answer of the handler is there to be kept.
                let (request, _) = handler.request(&Hint::Declared);
                let response = app.oneshot(request).await.unwrap();
                assert_eq!(response.status(), 413, "{case}");
                assert_names_the_layer(&response, &stack, handler.half(), &case);
            }
        }
    }
}

/// The lower limit of axum itself fires first, on what its extractors read.
#[tokio::test]
async fn below_ours_the_limit_of_axum_answers_in_its_own_words() {
    for hint in VARIANTS {
        let witness = Witness::default();
        let handler = post(async |bytes: Bytes| bytes.len().to_string());
        let app = routed(handler.layer(DefaultBodyLimit::max(16)), true);
        let layer = RequestSizeLimitLayer::server(1000).on_breach(witness.breach());
        let (request, _) = request(&[b'x'; 40], "text/plain", &hint);
        let response = limited(&layer, app).oneshot(request).await.unwrap();
        assert_eq!(response.status(), 413, "{hint:?}");
        assert!(response.extensions().get::<TooLarge>().is_none());
        assert_ne!(text_of(response).await, TEXT);
        assert_eq!(witness.breaches(), [], "{hint:?}");
    }
}

// Errors that are no fault of the request

/// What a handler may meet when it calls an upstream.
async fn upstream_failure(sends_too_much: bool, hint: Hint) -> Error {
    let body = || Script::new(vec![support::data(4); 8], hint.clone());
    if sends_too_much {
        let upstream = service_fn(async |request: Request<LimitedBody<Script>>| {
            request.into_body().collect().await?;
            Ok::<_, Error>(http::Response::new(()))
        });
        let client = RequestSizeLimitLayer::client(10).layer(upstream);
        return client.oneshot(Request::new(body())).await.unwrap_err();
    }
    let upstream = service_fn(async |_| Ok::<_, Infallible>(http::Response::new(body())));
    let client = ResponseSizeLimitLayer::client(10).layer(upstream);
    let response = client.oneshot(Request::new(())).await.unwrap();
    response.into_body().collect().await.unwrap_err()
}

#[tokio::test]
async fn what_goes_wrong_with_an_upstream_never_becomes_a_413() {
    for hint in VARIANTS {
        for sends_too_much in [true, false] {
            for status in ANSWERS {
                let upstream_hint = hint.clone();
                // The request itself is read, and within its limit.
                let handler = async move |bytes: Bytes| {
                    let error = upstream_failure(sends_too_much, upstream_hint.clone()).await;
                    let status = StatusCode::from_u16(status).unwrap();
                    (
                        status,
                        format!("{} and {}", bytes.len(), TooLarge::find(&error).unwrap()),
                    )
                };
                for stack in Stack::all(40) {
                    let app = stack.around(routed(post(handler.clone()), true), |layer| layer);
                    let (request, _) = request(&[b'x'; 40], "text/plain", &hint);
                    let response = app.oneshot(request).await.unwrap();
                    assert_eq!(response.status(), status, "{hint:?}");
                    assert!(response.extensions().get::<TooLarge>().is_none());
                    assert_eq!(stack.witness.breaches(), []);
                    let subject = if sends_too_much {
                        "request"
                    } else {
                        "response"
                    };
                    let text = format!("40 and the {subject} body is larger than its limit");
                    assert!(text_of(response).await.starts_with(&text), "{hint:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_upstream_error_that_is_boxed_stays_an_error() {
    for hint in VARIANTS {
        for sends_too_much in [true, false] {
            let upstream_hint = hint.clone();
            let handler = App::new(service_fn(move |_: Request<Body>| {
                let failure = upstream_failure(sends_too_much, upstream_hint.clone());
                async { Err::<Response, BoxError>(failure.await.into()) }
            }));
            for stack in Stack::all(40) {
                let app = stack.around(handler.clone(), |layer| layer);
                let (request, _) = request(&[b'x'; 40], "text/plain", &hint);
                let error = app.oneshot(request).await.unwrap_err();
                assert_eq!(TooLarge::find(&*error).unwrap().label(), None);
                assert_eq!(stack.witness.breaches(), []);
            }
        }
    }
}

/// A handler that sends the request on meets the breach in what its client reports, if that does.
#[tokio::test]
async fn a_request_that_is_passed_on_and_too_large_is_a_413() {
    let upstream = respond(|_| http::Response::new(Script::new([], Hint::Declared)));
    let upstream = Server::start(upstream).await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let client = hyper_client::<Body>(version);
        let uri = upstream.uri("/");
        let proxy = async move |body: Body| {
            let request = Request::post(uri.as_str()).body(body).unwrap();
            match guarded(client.request(request)).await {
                Ok(_) => StatusCode::OK,
                Err(_) => StatusCode::BAD_GATEWAY,
            }
        };
        for (limit, status) in [(40, 200), (39, 413)] {
            for stack in Stack::all(limit) {
                let app = stack.around(routed(post(proxy.clone()), true), |layer| layer);
                let (request, _) = request(&[b'x'; 40], "text/plain", &Hint::Undeclared);
                let response = app.oneshot(request).await.unwrap();
                assert_eq!(response.status(), status, "{version:?}");
            }
        }
    }
}

// A decoder in between

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// A limit on what comes in, a decoder, and a limit on what that makes of it.
fn decoding(app: App, outer: &RequestSizeLimitLayer, inner: &RequestSizeLimitLayer) -> App {
    let app = limited(inner, app);
    let service = ServiceBuilder::new()
        .map_response(|response: http::Response<_>| response.map(Body::new))
        .layer(outer)
        .layer(RequestDecompressionLayer::new())
        .map_request(|request: Request<_>| request.map(Body::new))
        .service(app);
    App::new(service)
}

#[tokio::test]
async fn a_breach_on_either_side_of_a_decoder_is_a_413() {
    for axum_limit in AXUM_LIMIT {
        for handler in handlers(axum_limit) {
            let plain = handler.payload.len() as u64;
            let encoded = gzip(&handler.payload);
            let whole = encoded.len() as u64;
            for hint in VARIANTS {
                for (fires, outer, inner) in [
                    (None, whole, plain),
                    (Some("outer"), whole / 2, plain),
                    (Some("inner"), whole, plain / 2),
                ] {
                    let case = format!("{}, {hint:?}, {fires:?}", handler.name);
                    let witness = Witness::default();
                    let layer = |limit, label| {
                        let layer = RequestSizeLimitLayer::server(limit).label(label).no_drain();
                        layer.on_breach(witness.breach())
                    };
                    let (outer, inner) = (layer(outer, "outer"), layer(inner, "inner"));
                    let app = decoding(handler.app.clone(), &outer, &inner);
                    let (mut request, log) = request(&encoded, handler.content_type, &hint);
                    let gzip = HeaderValue::from_static("gzip");
                    request.headers_mut().insert("content-encoding", gzip);
                    let response = app.oneshot(request).await.unwrap();
                    let early = fires == Some("outer") && matches!(hint, Hint::Declared);
                    let outcome = if early {
                        Outcome::Refused
                    } else {
                        handler.outcome
                    };
                    let error = response.extensions().get::<TooLarge>();
                    let label = error.and_then(TooLarge::label);
                    let breaches = witness.breaches();
                    if outcome == Outcome::Unread || fires.is_none() {
                        assert_eq!(breaches, [], "{case}");
                        assert_eq!(label, None, "{case}");
                        continue;
                    }
                    assert_eq!(label, fires, "{case}");
                    assert_eq!(breaches, slice::from_ref(error.unwrap()), "{case}");
                    let status = match outcome {
                        Outcome::Stays(status) => status,
                        _ => 413,
                    };
                    assert_eq!(response.status(), status, "{case}");
                    // Nothing more is decoded for the sake of an answer.
                    let polls = log.polls();
                    text_of(response).await;
                    assert_eq!(log.polls(), polls, "{case}");
                    assert!(log.dropped(), "{case}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_bomb_is_given_up_at_the_limit_of_what_is_decoded() {
    let bomb = gzip(&vec![0; 4 << 20]);
    let frames = bomb.len().div_ceil(4);
    for hint in VARIANTS {
        for fires in [true, false] {
            let wide = RequestSizeLimitLayer::server(None);
            let inner = RequestSizeLimitLayer::server(if fires { 64 << 10 } else { 4 << 20 });
            let app = routed(post(async |bytes: Bytes| bytes.len().to_string()), false);
            let app = decoding(app, &wide, &inner.no_drain());
            let (mut request, log) = request(&bomb, "text/plain", &hint);
            let gzip = HeaderValue::from_static("gzip");
            request.headers_mut().insert("content-encoding", gzip);
            let response = app.oneshot(request).await.unwrap();
            assert_eq!(response.status(), if fires { 413 } else { 200 });
            text_of(response).await;
            assert_eq!(
                log.polls() < frames / 8,
                fires,
                "{} of {frames}",
                log.polls()
            );
        }
    }
}

// Over real connections

/// A server with two layers, the inner one with a limit of so many bytes.
async fn serve(app: App, limit: u64) -> Server {
    let two = ServiceBuilder::new()
        .layer(RequestSizeLimitLayer::server(1 << 20))
        .layer(RequestSizeLimitLayer::server(limit));
    Server::start(two.service(app.map_request(|request: Request<_>| request.map(Body::new)))).await
}

async fn upload(client: &AnyClient, server: &Server, handler: &Handler, hint: &Hint) -> Seen {
    let body = any_body(script(&handler.payload, hint));
    let request = Request::post(server.uri("/")).header(CONTENT_TYPE, handler.content_type);
    let request = request.body(body).unwrap();
    let response = guarded(client.clone().oneshot(request)).await;
    let (seen, error) = Seen::of(response.unwrap()).await;
    assert!(error.is_none(), "{error:?}");
    seen
}

#[tokio::test]
async fn clients_see_over_a_connection_what_they_see_without_one() {
    for handler in handlers(true) {
        if ["String", "Form", "408 anyway", "422 anyway"].contains(&&*handler.name) {
            continue;
        }
        let tight = serve(handler.app.clone(), handler.half()).await;
        let wide = serve(handler.app.clone(), handler.payload.len() as u64).await;
        for (name, client) in clients() {
            for hint in VARIANTS {
                let case = format!("{}, {name}, {hint:?}", handler.name);
                let seen = upload(&client, &tight, &handler, &hint).await;
                let (status, text) = match (hint.clone(), handler.outcome) {
                    (Hint::Declared, _) | (_, Outcome::Refused) => (413, TEXT),
                    (_, Outcome::Stays(status)) => (status, "anyway"),
                    (_, Outcome::Unread) => (200, "ignored"),
                };
                assert_eq!(seen.status, status, "{case}");
                assert_eq!(seen.body, text.as_bytes(), "{case}");
                // The client goes on to use its connections.
                let seen = upload(&client, &wide, &handler, &hint).await;
                assert_ne!(seen.status, 413, "{case}");
            }
        }
    }
}
