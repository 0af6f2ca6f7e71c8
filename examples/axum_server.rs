//! An axum server with both layers, to be tried with curl.
//!
//! ```sh
//! REQUEST_LIMIT=1MiB RESPONSE_LIMIT=1MiB cargo run --example axum_server
//!
//! # A declared length over the limit: 413, and no handler is called.
//! head -c 1048577 /dev/zero | curl -i --data-binary @- http://127.0.0.1:3000/bytes
//! # No declared length: the handler finds out while reading, and answers 400, but 413 comes back.
//! head -c 1048577 /dev/zero | curl -i -T - -X POST http://127.0.0.1:3000/stream
//! # A form within the limit.
//! curl -i -F 'file=@Cargo.lock' http://127.0.0.1:3000/multipart
//!
//! # What is left of a refused request is read, so that a client gets the 413 even if it writes all of
//! # its request before it reads. With a DRAIN that is less than the rest, such as 0, curl sees
//! # `connection: close` in the answer, and Python a broken pipe in its place.
//! head -c 8M /dev/zero > 8M.bin
//! curl -i -H Expect: --data-binary @8M.bin http://127.0.0.1:3000/bytes
//! python3 -c 'import http.client
//! server = http.client.HTTPConnection("127.0.0.1:3000")
//! server.request("POST", "/bytes", open("8M.bin", "rb").read())
//! print(server.getresponse().status)'
//! # Without `-H Expect:` curl asks before it sends so much, and sends nothing.
//! curl -v --data-binary @8M.bin http://127.0.0.1:3000/bytes
//!
//! # A response of exactly the limit, and one that declares a byte more: 500 in its place.
//! curl -i -o /dev/null http://127.0.0.1:3000/known/1048576
//! curl -i http://127.0.0.1:3000/known/1048577
//! # HEAD has no body to be limited.
//! curl -I http://127.0.0.1:3000/known/1073741824
//! # No declared length: 200, and then the connection breaks off, so curl fails.
//! curl -o /dev/null http://127.0.0.1:3000/chunked/1048577
//! # HTTP/1.0 could not show that, so there it is a 500.
//! curl -0 -i http://127.0.0.1:3000/chunked/1048577
//! # An error with a page of text.
//! curl -i http://127.0.0.1:3000/error/100
//! ```
//!
//! | environment | default | |
//! |---|---|---|
//! | `ADDR` | `127.0.0.1:3000` | where to listen |
//! | `REQUEST_LIMIT` | `2MiB` | the most a request may have, as `4096`, `64KiB`, `1.5MB` ... |
//! | `RESPONSE_LIMIT` | `2MiB` | the most a response may have |
//! | `DRAIN` | `16MiB`, the layer's own | the most that is read of a refused request, in five seconds; `0` for nothing |

use std::{
    env::{self, VarError},
    error::Error,
    fmt::Display,
    io,
    net::SocketAddr,
    process::ExitCode,
    str::FromStr,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, Multipart, Path, multipart::MultipartError},
    response::IntoResponse,
    routing::{get, post},
};
use bytes::Bytes;
use bytesize::ByteSize;
use futures_util::{Stream, StreamExt, stream};
use http::{
    StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use tokio::net::TcpListener;
use tower_body_limit::{RequestSizeLimitLayer, ResponseSizeLimitLayer};

const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("axum_server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let addr: SocketAddr = setting("ADDR", "127.0.0.1:3000", "an address such as 0.0.0.0:80")?;
    let size = "a size in bytes such as 4096, 64KiB or 1.5MB";
    let request_limit: ByteSize = setting("REQUEST_LIMIT", "2MiB", size)?;
    let response_limit: ByteSize = setting("RESPONSE_LIMIT", "2MiB", size)?;
    let drain: ByteSize = setting("DRAIN", "16MiB", size)?;

    let requests = RequestSizeLimitLayer::server(request_limit.as_u64());
    let requests = match drain.as_u64() {
        0 => requests.no_drain(),
        budget => requests.drain(budget, DRAIN_DEADLINE),
    };

    let app = Router::new()
        .route("/bytes", post(whole))
        .route("/stream", post(frame_by_frame))
        .route("/multipart", post(multipart))
        .route("/known/{n}", get(known))
        .route("/chunked/{n}", get(chunked))
        .route("/error/{n}", get(error))
        .layer(requests)
        .layer(ResponseSizeLimitLayer::server(response_limit.as_u64()))
        // axum has a limit of its own, of 2 MiB, which would apply as well.
        .layer(DefaultBodyLimit::disable());

    let listener = TcpListener::bind(addr)
        .await
        .map_err(|error| format!("ADDR={addr}: {error}"))?;
    println!("listening on http://{}", listener.local_addr()?);
    println!("requests:  at most {} bytes", request_limit.as_u64());
    println!("responses: at most {} bytes", response_limit.as_u64());
    match drain.as_u64() {
        0 => println!("draining:  nothing of a refused request"),
        budget => println!("draining:  at most {budget} bytes in {DRAIN_DEADLINE:?}"),
    }
    axum::serve(listener, app).await?;
    Ok(())
}

/// A setting from the environment; the default if it is not set.
fn setting<T>(name: &str, default: &str, expected: &str) -> Result<T, String>
where
    T: FromStr<Err: Display>,
{
    let text = match env::var(name) {
        Ok(text) => text,
        Err(VarError::NotPresent) => default.to_owned(),
        Err(error) => return Err(format!("{name}: {error}")),
    };
    text.parse()
        .map_err(|error| format!("{name}={text:?} is not {expected}: {error}"))
}

async fn whole(body: Bytes) -> String {
    format!("{} bytes\n", body.len())
}

async fn frame_by_frame(body: Body) -> Result<String, (StatusCode, String)> {
    let mut frames = body.into_data_stream();
    let (mut count, mut bytes) = (0_u64, 0_u64);
    while let Some(frame) = frames.next().await {
        // If this is the layer's error, the layer answers in place of this.
        let frame = frame.map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}\n")))?;
        count += 1;
        bytes += frame.len() as u64;
    }
    Ok(format!("{bytes} bytes in {count} frames\n"))
}

async fn multipart(mut form: Multipart) -> Result<String, MultipartError> {
    let mut text = String::new();
    while let Some(field) = form.next_field().await? {
        let name = field.name().unwrap_or("(no name)").to_owned();
        text += &format!("{name}: {} bytes\n", field.bytes().await?.len());
    }
    Ok(text)
}

async fn known(Path(n): Path<u64>) -> impl IntoResponse {
    ([(CONTENT_LENGTH, n)], Body::from_stream(text(n)))
}

async fn chunked(Path(n): Path<u64>) -> impl IntoResponse {
    Body::from_stream(text(n))
}

async fn error(n: Path<u64>) -> impl IntoResponse {
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    (status, [(CONTENT_TYPE, "text/plain")], known(n).await)
}

/// `n` bytes, in frames of at most 16 KiB.
fn text(n: u64) -> impl Stream<Item = io::Result<Bytes>> + Send {
    static FRAME: [u8; 16 * 1024] = [b'.'; 16 * 1024];
    stream::iter((0..n).step_by(FRAME.len()).map(move |at| {
        let len = (n - at).min(FRAME.len() as u64);
        Ok(Bytes::from_static(&FRAME[..len as usize]))
    }))
}
