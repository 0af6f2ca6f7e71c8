//! The servers: the one with limits, and the one without.

use std::{
    future::pending,
    io::{self, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, Multipart, Path, State, multipart::MultipartError},
    response::IntoResponse,
    routing::{get, post},
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures_util::{Stream, stream};
use http::{
    Response, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::net::TcpListener;
use tower_body_limit::{
    RequestSizeLimitLayer, ResponseSizeLimitLayer, TooLarge, respond::RequestHead,
};

type Received = State<Arc<AtomicU64>>;

pub(crate) fn with_limits(received: &Arc<AtomicU64>) -> Router {
    let requests = RequestSizeLimitLayer::server(crate::REQUEST_LIMIT);
    let json_rpc = requests.clone().answer_with(too_large_json_rpc);
    // Its clock stands still. If the head of the answer waited for a client that has stopped, it would
    // never come.
    let (budget, deadline) = (16 * 1024 * 1024, Duration::from_secs(5));
    let patient = requests.clone().drain_with(budget, deadline, |_| pending());

    routes()
        .layer(requests)
        // What is added after a layer is not under it.
        .route("/json-rpc", post(count_bytes).layer(json_rpc))
        .route("/patient", post(count_frames).layer(patient))
        .layer(ResponseSizeLimitLayer::server(crate::RESPONSE_LIMIT))
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::clone(received))
}

pub(crate) fn without_limits(received: &Arc<AtomicU64>) -> Router {
    routes().with_state(Arc::clone(received))
}

fn routes() -> Router<Arc<AtomicU64>> {
    Router::new()
        .route("/frames", post(count_frames))
        .route("/bytes", post(count_bytes))
        .route("/multipart", post(count_fields))
        .route("/known/{n}", get(known))
        .route("/chunked/{n}", get(chunked))
        .route("/error/{n}", get(error))
        .route("/gzip/{n}", get(gzip))
}

pub(crate) async fn serve(app: Router) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(address)
}

/// The refusal, to a client that knows only JSON-RPC.
fn too_large_json_rpc(error: &TooLarge, _: &RequestHead) -> Response<String> {
    let message = format!("at most {} bytes", error.limit());
    let text = json!({
        "jsonrpc": "2.0",
        "id": null,
        "error": { "code": -32600, "message": message },
    });
    Response::builder()
        .status(error.status())
        .header(CONTENT_TYPE, "application/json")
        .body(text.to_string())
        .expect("a valid response")
}

// ---- Requests. Whatever becomes of a body that fails here, the client gets the layer's answer.

async fn count_frames(State(received): Received, mut body: Body) -> Result<(), StatusCode> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| StatusCode::BAD_REQUEST)?;
        received.fetch_add(frame.data_ref().map_or(0, Bytes::len) as u64, Relaxed);
    }
    Ok(())
}

async fn count_bytes(State(received): Received, body: Bytes) {
    received.fetch_add(body.len() as u64, Relaxed);
}

async fn count_fields(
    State(received): Received,
    mut form: Multipart,
) -> Result<(), MultipartError> {
    while let Some(field) = form.next_field().await? {
        received.fetch_add(field.bytes().await?.len() as u64, Relaxed);
    }
    Ok(())
}

// ---- Responses

async fn known(Path(n): Path<u64>) -> impl IntoResponse {
    ([(CONTENT_LENGTH, n)], Body::from_stream(frames(n)))
}

async fn chunked(Path(n): Path<u64>) -> impl IntoResponse {
    Body::from_stream(frames(n))
}

async fn error(path: Path<u64>) -> impl IntoResponse {
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    (status, [(CONTENT_TYPE, "text/html")], known(path).await)
}

async fn gzip(Path(n): Path<usize>) -> Result<impl IntoResponse, StatusCode> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(&vec![0; n])
        .and_then(|()| gzip.finish())
        .map(|gzip| ([(CONTENT_ENCODING, "gzip")], gzip))
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

/// `n` bytes, in frames of at most 16 KiB.
pub(crate) fn frames(n: u64) -> impl Stream<Item = io::Result<Bytes>> + Send + Sync {
    static FRAME: [u8; 16 * 1024] = [b'.'; 16 * 1024];
    stream::iter((0..n).step_by(FRAME.len()).map(move |at| {
        let len = (n - at).min(FRAME.len() as u64);
        Ok(Bytes::from_static(&FRAME[..len as usize]))
    }))
}
