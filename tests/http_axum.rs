//! The layers of a server around an axum router.

mod support;

use std::time::Duration;

use axum::{
    Router,
    body::{Body, Bytes},
    extract::DefaultBodyLimit,
    routing::{get, post},
};
use http::{
    Method, Request, StatusCode, Version,
    header::{ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_LENGTH, ORIGIN},
};
use http_body_util::BodyExt;
use support::{
    Hint, Script, VARIANTS,
    net::{AnyClient, Seen, Server, VERSIONS, any_body, ask, clients, frames, guarded},
};
use tower::{ServiceBuilder, ServiceExt};
use tower_body_limit::{RequestSizeLimitLayer, ResponseSizeLimitLayer, TooLarge};
use tower_http::{
    cors::CorsLayer,
    timeout::{RequestBodyTimeoutLayer, ResponseBodyTimeoutLayer, TimeoutLayer},
    trace::TraceLayer,
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Reads the body frame by frame and says what became of it.
async fn stream(mut body: Body) -> String {
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => read += frame.data_ref().map_or(0, Bytes::len),
            Err(error) => {
                let too_large = TooLarge::find(&error).expect("a limit is the only cause");
                return format!("{} over {}", too_large.read(), too_large.limit());
            }
        }
    }
    read.to_string()
}

fn router() -> Router {
    Router::new()
        .route("/bytes", post(async |bytes: Bytes| bytes.len().to_string()))
        .route("/stream", post(stream))
}

/// With limits of 5 MiB for requests and 1 MiB for responses.
fn limited(router: Router) -> Router {
    router
        .layer(RequestSizeLimitLayer::server(5 * MIB as u64))
        .layer(ResponseSizeLimitLayer::server(MIB as u64))
}

async fn send(
    client: &AnyClient,
    server: &Server,
    path: &str,
    len: usize,
    hint: &Hint,
) -> Option<(StatusCode, String)> {
    let body = any_body(Script::new(frames(MIB / 2, len / (MIB / 2)), hint.clone()));
    let request = Request::post(server.uri(path)).body(body).unwrap();
    let response = guarded(client.clone().oneshot(request)).await.ok()?;
    let (seen, error) = Seen::of(response).await;
    let text = String::from_utf8(seen.body).unwrap();
    error.is_none().then_some((seen.status, text))
}

#[tokio::test]
async fn without_the_limit_of_axum_ours_alone_decides() {
    // The order of the two is of no importance.
    let inside = limited(router().layer(DefaultBodyLimit::disable()));
    let outside = limited(router()).layer(DefaultBodyLimit::disable());
    for router in [inside, outside] {
        let server = Server::start(router).await;
        for (name, client) in clients() {
            for hint in VARIANTS {
                for path in ["/bytes", "/stream"] {
                    let answer = send(&client, &server, path, 3 * MIB, &hint).await;
                    let all = Some((StatusCode::OK, (3 * MIB).to_string()));
                    assert_eq!(answer, all, "{name}, {hint:?}, {path}");
                }
            }
        }
    }
}

#[tokio::test]
async fn with_the_limit_of_axum_on_its_extractors_refuse_first() {
    let server = Server::start(limited(router())).await;
    for (name, client) in clients() {
        for hint in VARIANTS {
            let answer = send(&client, &server, "/bytes", 3 * MIB, &hint).await;
            // A client that is still writing may not see the answer.
            let refused = answer.is_none_or(|(status, _)| status == StatusCode::PAYLOAD_TOO_LARGE);
            assert!(refused, "{name}, {hint:?}");
            let answer = send(&client, &server, "/stream", 3 * MIB, &hint).await;
            let all = Some((StatusCode::OK, (3 * MIB).to_string()));
            assert_eq!(answer, all, "{name}, {hint:?}");
        }
    }
}

/// The body that a handler takes raw is out of reach of axum's own limit.
#[tokio::test]
async fn a_handler_that_streams_is_limited_with_and_without_the_limit_of_axum() {
    let small = |router: Router| router.layer(RequestSizeLimitLayer::server(10));
    for router in [
        small(router()),
        small(router().layer(DefaultBodyLimit::disable())),
    ] {
        for (hint, status, text) in [
            (
                Hint::Declared,
                StatusCode::PAYLOAD_TOO_LARGE,
                "The request body is too large.\n",
            ),
            (Hint::Undeclared, StatusCode::OK, "11 over 10"),
        ] {
            let server = Server::start(router.clone()).await;
            for (name, client) in clients() {
                let mut request = support::net::post(&server, 11, hint.clone());
                *request.uri_mut() = server.uri("/stream").parse().unwrap();
                let response = guarded(client.oneshot(request)).await.expect(name);
                let (seen, _) = Seen::of(response).await;
                assert_eq!(seen.status, status, "{name}, {hint:?}");
                assert_eq!(seen.body, text.as_bytes(), "{name}, {hint:?}");
            }
        }
    }
}

#[tokio::test]
async fn responses_are_limited_like_those_of_any_service() {
    for (len, whole) in [(MIB, true), (MIB + KIB, false)] {
        for hint in VARIANTS {
            let declared = matches!(hint, Hint::Declared);
            let body_hint = hint.clone();
            let app = limited(Router::new().route(
                "/",
                get(async move || {
                    Body::new(Script::new(frames(KIB, len / KIB), body_hint.clone()))
                }),
            ));
            let server = Server::start(app).await;
            for version in VERSIONS {
                let case = format!("{len}, {hint:?}, {version:?}");
                let seen = ask(&server, version, &Method::GET).await.expect(&case);
                let answered = !whole && (declared || version == Version::HTTP_10);
                assert_eq!(seen.status, if answered { 500 } else { 200 }, "{case}");
                assert_eq!(seen.whole, whole || answered, "{case}");
                let passed = if answered { 32 } else { MIB };
                assert!(seen.body.len() <= passed, "{case}");
                assert!(!seen.whole || seen.body.len() == passed, "{case}");
                // axum itself answers a HEAD by the handler of the GET.
                let seen = ask(&server, version, &Method::HEAD).await.expect(&case);
                assert_eq!(seen.status, 200, "{case}");
                let length = declared.then(|| len.to_string());
                assert_eq!(seen.header(CONTENT_LENGTH), length.as_deref(), "{case}");
            }
        }
    }
}

/// CORS and the timeout need bodies that have a default.
#[tokio::test]
async fn the_layers_work_inside_those_of_tower_http() {
    let minute = Duration::from_secs(60);
    let app = router().layer(
        ServiceBuilder::new()
            .layer(TraceLayer::new_for_http())
            .layer(ResponseBodyTimeoutLayer::new(minute))
            .layer(CorsLayer::permissive())
            .layer(TimeoutLayer::with_status_code(
                StatusCode::SERVICE_UNAVAILABLE,
                minute,
            ))
            .layer(RequestSizeLimitLayer::server(10))
            .layer(ResponseSizeLimitLayer::server(10))
            .layer(RequestBodyTimeoutLayer::new(minute)),
    );
    let server = Server::start(app).await;
    for (len, status) in [(10, 200), (11, 413)] {
        for (name, client) in clients() {
            let mut request = support::net::post(&server, len, Hint::Declared);
            *request.uri_mut() = server.uri("/bytes").parse().unwrap();
            let origin = "http://elsewhere.test".parse().unwrap();
            request.headers_mut().insert(ORIGIN, origin);
            let response = guarded(client.oneshot(request)).await.expect(name);
            let (seen, error) = Seen::of(response).await;
            assert!(error.is_none(), "{name}, {len}");
            assert_eq!(seen.status, status, "{name}, {len}");
            // Without it a browser could not read the refusal.
            assert_eq!(
                seen.header(ACCESS_CONTROL_ALLOW_ORIGIN),
                Some("*"),
                "{name}"
            );
        }
    }
}
