//! Whether a refusal arrives: each kind of client, over real connections.

#![cfg(feature = "tokio")]
#![allow(missing_docs)]

mod support;
#[path = "support/uploads.rs"]
mod uploads;

use std::time::Duration;

use axum::{Router, extract::DefaultBodyLimit, routing::post};
use bytes::Bytes;
use http::Version;
use support::{Hint, net::Server};
use tower_body_limit::RequestSizeLimitLayer;
use uploads::{Kind, Learned, MIB, Upload};

const TRIES: usize = 2;

async fn serve(layer: RequestSizeLimitLayer) -> Server {
    let app = Router::new()
        .route("/", post(async |body: Bytes| body.len().to_string()))
        .layer(layer)
        .layer(DefaultBodyLimit::disable());
    Server::start(app).await
}

fn one_mib() -> RequestSizeLimitLayer {
    RequestSizeLimitLayer::server(MIB as u64)
}

/// What a client learns about bodies of this size, for each way to find out that they are too large.
async fn learned(
    kind: Kind,
    layer: RequestSizeLimitLayer,
    size: usize,
) -> Vec<(&'static str, Learned)> {
    let early = serve(layer.clone()).await;
    // A limit that may yet be raised is held against a declared length only when the body is read.
    let late = serve(layer.adjustable(None)).await;
    let cases = [
        ("declared, found in the head", &early, Hint::Declared),
        ("declared, found by the handler", &late, Hint::Declared),
        ("chunked, found by the handler", &early, Hint::Undeclared),
    ];
    let mut all = Vec::new();
    for (case, server, hint) in cases {
        let addr = server.addr;
        let learned = kind.upload(&Upload { addr, size, hint }, TRIES).await;
        all.extend(learned.into_iter().map(|learned| (case, learned)));
    }
    all
}

/// The answer arrives whole, whenever the rest of the request is within the budget.
async fn gets_every_answer(kind: Kind) {
    if !kind.is_installed().await {
        println!("skipped: {kind} is not installed");
        return;
    }
    let raised = one_mib().drain(128 * MIB as u64, Duration::from_secs(60));
    for (layer, size) in [
        (one_mib(), 2 * MIB),
        // All of a declared body is the rest: exactly the default budget.
        (one_mib(), 16 * MIB),
        (raised, 64 * MIB),
    ] {
        for (case, learned) in learned(kind, layer, size).await {
            assert_eq!(learned, Ok(413), "{kind}, {size} bytes, {case}");
        }
    }
}

macro_rules! every_answer_reaches {
    ($($client:ident: $kind:expr,)*) => {
        mod every_answer_reaches {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $client() {
                    gets_every_answer($kind).await;
                }
            )*
        }
    };
}

every_answer_reaches! {
    a_socket_that_gives_up_at_a_write_error: Kind::Writer,
    a_socket_that_reads_after_a_write_error: Kind::Reader,
    a_socket_that_reads_while_it_writes: Kind::Duplex,
    python_http_client: Kind::Python,
    curl: Kind::Curl,
    reqwest_over_http1: Kind::Reqwest(Version::HTTP_11),
    reqwest_over_http2: Kind::Reqwest(Version::HTTP_2),
    hyper_util_over_http1: Kind::Hyper(Version::HTTP_11),
    hyper_util_over_http2: Kind::Hyper(Version::HTTP_2),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_budget_a_client_that_reads_while_it_writes_gets_the_answer() {
    for kind in [
        Kind::Reader,
        Kind::Duplex,
        Kind::Reqwest(Version::HTTP_11),
        Kind::Reqwest(Version::HTTP_2),
        Kind::Hyper(Version::HTTP_11),
        Kind::Hyper(Version::HTTP_2),
    ] {
        for (case, learned) in learned(kind, one_mib(), 64 * MIB).await {
            assert_eq!(learned, Ok(413), "{kind}, {case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_budget_a_client_that_gives_up_at_a_write_error_is_not_left_hanging() {
    for (case, learned) in learned(Kind::Writer, one_mib(), 64 * MIB).await {
        if let Err(error) = learned {
            assert_eq!(error.split(':').next(), Some("writing"), "{case}: {error}");
            let is_a_hang = error.contains("WouldBlock") || error.contains("TimedOut");
            assert!(!is_a_hang, "{case}: {error}");
        }
    }
}
