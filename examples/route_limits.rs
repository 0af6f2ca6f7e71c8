//! A limit for each route: 1 MiB everywhere, 256 MiB for uploads, 64 KiB for the login.
//!
//! Runs by itself, prints what came of some requests, and exits with an error if one of them got
//! another status than it should.
//!
//! ```sh
//! cargo run --example route_limits
//! ```

use std::{io, process::ExitCode};

use axum::{Router, body::Body, extract::DefaultBodyLimit, routing::post};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, StatusCode, header::CONTENT_LENGTH};
use tower::ServiceExt;
use tower_body_limit::{RequestSizeLimitLayer, SetRequestLimitLayer};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

fn app() -> Router {
    let upload = SetRequestLimitLayer::new(256 * MIB);
    let login = SetRequestLimitLayer::new(64 * KIB);
    Router::new()
        .route("/upload", post(receive).layer(upload))
        .route("/login", post(receive).layer(login))
        .route("/other", post(receive))
        // No route can go beyond the ceiling, and nothing beyond it is let in.
        .layer(RequestSizeLimitLayer::server(MIB).adjustable(256 * MIB))
        // axum has a limit of its own, of 2 MiB, which would apply as well.
        .layer(DefaultBodyLimit::disable())
}

async fn receive(body: Body) -> Result<(), StatusCode> {
    let mut frames = body.into_data_stream();
    while let Some(frame) = frames.next().await {
        // If the body was too large, the layer makes a 413 of this.
        frame.map_err(|_| StatusCode::BAD_REQUEST)?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut wrong = 0;
    for (path, limit) in [
        ("/upload", 256 * MIB),
        ("/login", 64 * KIB),
        ("/other", MIB),
    ] {
        for (bytes, expected) in [(limit, 200), (limit + 1, 413)] {
            for declared in [true, false] {
                let status = send(path, bytes, declared).await;
                let how = if declared { "declared" } else { "chunked" };
                println!("{path:<8} {bytes:>9} bytes, {how:<8}  {status}");
                wrong += usize::from(status != expected);
            }
        }
    }
    println!("{wrong} are not as they should be");
    ExitCode::from(u8::from(wrong > 0))
}

/// The status of the answer to so many bytes.
async fn send(path: &str, bytes: u64, declared: bool) -> u16 {
    static FRAME: [u8; 64 * KIB as usize] = [b'.'; 64 * KIB as usize];
    let frames = (0..bytes).step_by(FRAME.len()).map(move |at| {
        let len = (bytes - at).min(FRAME.len() as u64) as usize;
        Ok::<_, io::Error>(Bytes::from_static(&FRAME[..len]))
    });
    let mut request = Request::post(path);
    if declared {
        request = request.header(CONTENT_LENGTH, bytes);
    }
    let request = request.body(Body::from_stream(stream::iter(frames)));
    let response = app().oneshot(request.expect("a valid request")).await;
    response.map_or_else(
        |never| match never {},
        |response| response.status().as_u16(),
    )
}
