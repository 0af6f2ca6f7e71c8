//! Every kind of body, under, at and over its limit, over loopback.
//!
//! Two servers: one limits what it receives and what it sends, the other, the upstream, limits
//! nothing. Two clients, hyper's and reqwest's, each once as it is and once with a limit on what it
//! receives. What came back is compared with what should have, and the exit code says whether
//! every row was right.
//!
//! ```sh
//! cargo run --example quickstart
//! ```

use std::{
    error::Error,
    io::{self, Write},
    net::SocketAddr,
    ops::RangeInclusive,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, Path, State},
    response::IntoResponse,
    routing::{get, post},
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures_util::{Stream, TryStreamExt, stream};
use http::{
    Method, Request, Response, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::BoxBody};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, time::timeout};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_body_limit::{
    RequestSizeLimitLayer, ResponseSizeLimitLayer, TooLarge, TruncateLayer, Truncation,
    TruncationHandle,
};
use tower_http::decompression::DecompressionLayer;

type BoxError = Box<dyn Error + Send + Sync>;
type RequestBody = BoxBody<Bytes, io::Error>;
type HttpClient =
    BoxCloneSyncService<Request<RequestBody>, Response<BoxBody<Bytes, BoxError>>, BoxError>;

const REQUEST_LIMIT: u64 = 16 * 1024;
const RESPONSE_LIMIT: u64 = 1024 * 1024;
const ERROR_LIMIT: u64 = 64 * 1024;

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    // What the upload handler has read.
    let received = Arc::new(AtomicU64::new(0));
    let limited = serve(with_limits(routes(&received))).await?;
    let upstream = serve(routes(&received)).await?;

    println!(
        "{:<8} {:<31} {:>8} {:>11}  {:<34} {:>10}",
        "client", "case", "limit", "sent", "what came back", "bytes read"
    );
    let (mut rows, mut wrong) = (0, 0);
    for (name, client) in [("hyper", hyper_client()), ("reqwest", reqwest_client()?)] {
        for case in cases() {
            let (server, client) = match case.limited_by {
                Side::Server => (limited, client.clone()),
                Side::Client => (upstream, limit(client.clone())),
            };
            let (came_back, read) = timeout(Duration::from_secs(20), case.run(client, server))
                .await
                .unwrap_or_else(|_| (String::from("nothing within 20 s"), 0));
            let read = if case.upload.is_some() {
                received.swap(0, Relaxed)
            } else {
                read
            };
            println!(
                "{name:<8} {:<31} {:>8} {:>11}  {came_back:<34} {read:>10}",
                case.name,
                case.limit,
                sent(case.sent),
            );
            rows += 1;
            if came_back != case.comes_back || !case.read.contains(&read) {
                wrong += 1;
                println!("WRONG: expected {}, {:?}", case.comes_back, case.read);
            }
        }
    }
    println!("{} of {rows} rows are as they should be", rows - wrong);
    Ok(ExitCode::from(u8::from(wrong > 0)))
}

// ---- What is tried, and what should come back

struct Case {
    name: &'static str,
    limited_by: Side,
    limit: u64,
    method: Method,
    path: String,
    upload: Option<Framing>,
    /// Bytes of body that the sender has, or states to have.
    sent: u64,
    comes_back: &'static str,
    /// Bytes that the upload handler, or else the client, gets to read.
    read: RangeInclusive<u64>,
}

#[derive(Clone, Copy)]
enum Side {
    Server,
    Client,
}

#[derive(Clone, Copy)]
enum Framing {
    Declared,
    Chunked,
}

fn cases() -> Vec<Case> {
    use Framing::{Chunked, Declared};
    use Side::{Client, Server};

    const OK: &str = "200 OK, complete";
    const REFUSED: &str = "413 Payload Too Large, complete";
    const REPLACED: &str = "500 Internal Server Error, complete";
    const BROKEN: &str = "200 OK, breaks off";
    const TYPED: &str = "200 OK, TooLarge";
    const HEAD: &str = "200 OK, Content-Length: 1073741824";
    const CUT: &str = "500 Internal Server Error, cut";
    const TEXT: u64 = "The response body is too large.\n".len() as u64;

    const ENDLESS: u64 = u64::MAX;
    const GIB: u64 = 1024 * 1024 * 1024;
    const R: u64 = REQUEST_LIMIT;
    const S: u64 = RESPONSE_LIMIT;

    vec![
        upload("request, declared, one under", Declared, R - 1, OK, R - 1),
        upload("request, declared, at", Declared, R, OK, R),
        upload("request, declared, one over", Declared, R + 1, REFUSED, 0),
        upload("request, chunked, one under", Chunked, R - 1, OK, R - 1),
        upload("request, chunked, at", Chunked, R, OK, R),
        upload("request, chunked, one over", Chunked, R + 1, REFUSED, R),
        download("sent, declared, one under", Server, "known", S - 1, OK).reads(S - 1),
        download("sent, declared, at", Server, "known", S, OK).reads(S),
        download("sent, declared, one over", Server, "known", S + 1, REPLACED).reads(TEXT),
        download("sent, chunked, one under", Server, "chunked", S - 1, OK).reads(S - 1),
        download("sent, chunked, at", Server, "chunked", S, OK).reads(S),
        download("sent, chunked, one over", Server, "chunked", S + 1, BROKEN).reads(S),
        download("sent, endless", Server, "chunked", ENDLESS, BROKEN).reads(S),
        download("sent, HEAD for 1 GiB", Server, "known", GIB, HEAD).head(),
        download("received, declared, one under", Client, "known", S - 1, OK).reads(S - 1),
        download("received, declared, at", Client, "known", S, OK).reads(S),
        download(
            "received, declared, one over",
            Client,
            "known",
            S + 1,
            TYPED,
        ),
        download("received, chunked, one under", Client, "chunked", S - 1, OK).reads(S - 1),
        download("received, chunked, at", Client, "chunked", S, OK).reads(S),
        download(
            "received, chunked, one over",
            Client,
            "chunked",
            S + 1,
            TYPED,
        )
        .reads(S),
        download("received, endless", Client, "chunked", ENDLESS, TYPED).reads_up_to(S),
        download("received, HEAD for 1 GiB", Client, "known", GIB, HEAD).head(),
        download("received, gzip bomb", Client, "gzip", 10 * S, TYPED).reads_up_to(S),
        Case {
            limit: ERROR_LIMIT,
            ..download("received, error page", Client, "error", S, CUT).reads(ERROR_LIMIT)
        },
    ]
}

fn upload(
    name: &'static str,
    framing: Framing,
    sent: u64,
    comes_back: &'static str,
    read: u64,
) -> Case {
    Case {
        name,
        limited_by: Side::Server,
        limit: REQUEST_LIMIT,
        method: Method::POST,
        path: String::from("/upload"),
        upload: Some(framing),
        sent,
        comes_back,
        read: read..=read,
    }
}

fn download(
    name: &'static str,
    limited_by: Side,
    kind: &str,
    sent: u64,
    comes_back: &'static str,
) -> Case {
    Case {
        name,
        limited_by,
        limit: RESPONSE_LIMIT,
        method: Method::GET,
        path: format!("/{kind}/{sent}"),
        upload: None,
        sent,
        comes_back,
        read: 0..=0,
    }
}

impl Case {
    fn head(self) -> Self {
        let method = Method::HEAD;
        Self { method, ..self }
    }

    fn reads(self, bytes: u64) -> Self {
        let read = bytes..=bytes;
        Self { read, ..self }
    }

    /// For bodies whose frames the network or a decoder makes: the one that crosses is not read.
    fn reads_up_to(self, bytes: u64) -> Self {
        let read = 1..=bytes;
        Self { read, ..self }
    }

    /// What came back, and how many bytes of it the client could read.
    async fn run(&self, client: HttpClient, server: SocketAddr) -> (String, u64) {
        let body = match self.upload {
            Some(Framing::Declared) => Full::from(vec![b'.'; self.sent as usize])
                .map_err(|never| match never {})
                .boxed(),
            Some(Framing::Chunked) => {
                BodyExt::boxed(StreamBody::new(frames(self.sent).map_ok(Frame::data)))
            }
            None => Empty::new().map_err(|never| match never {}).boxed(),
        };
        let request = Request::builder()
            .method(&self.method)
            .uri(format!("http://{server}{}", self.path))
            .body(body)
            .expect("a valid request");
        let response = match client.oneshot(request).await {
            Ok(response) => response,
            Err(error) => return (format!("no response: {error}"), 0),
        };

        let (head, mut body) = response.into_parts();
        let mut read = 0;
        let failure = loop {
            match body.frame().await {
                Some(Ok(frame)) => read += frame.data_ref().map_or(0, Bytes::len) as u64,
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        let cut = head.extensions.get().and_then(TruncationHandle::get);
        let end = match failure {
            Some(error) => match TooLarge::find(&*error).map(TooLarge::limit) {
                Some(limit) if limit == self.limit => String::from("TooLarge"),
                Some(limit) => format!("TooLarge for {limit}"),
                None => String::from("breaks off"),
            },
            None if self.method == Method::HEAD => {
                let length = head.headers.get(CONTENT_LENGTH);
                let length = length.and_then(|length| length.to_str().ok());
                format!("Content-Length: {}", length.unwrap_or("none"))
            }
            None if cut == Some(Truncation::Truncated) => String::from("cut"),
            None => String::from("complete"),
        };
        (format!("{}, {end}", head.status), read)
    }
}

fn sent(bytes: u64) -> String {
    match bytes {
        u64::MAX => String::from("endless"),
        bytes => bytes.to_string(),
    }
}

// ---- The clients

/// What is limited here is what a client gets to see: after the decoder, so that a bomb is counted
/// by what comes out of it.
fn limit(client: HttpClient) -> HttpClient {
    boxed(
        ServiceBuilder::new()
            .layer(ResponseSizeLimitLayer::client(RESPONSE_LIMIT))
            .layer(TruncateLayer::new(ERROR_LIMIT))
            .service(client),
    )
}

fn hyper_client() -> HttpClient {
    boxed(
        ServiceBuilder::new()
            .layer(DecompressionLayer::new())
            .service(Client::builder(TokioExecutor::new()).build_http()),
    )
}

/// reqwest has its decoder inside.
fn reqwest_client() -> Result<HttpClient, BoxError> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    Ok(boxed(service_fn(move |request: Request<RequestBody>| {
        let client = client.clone();
        async move {
            let request = reqwest::Request::try_from(request.map(reqwest::Body::wrap))?;
            client.execute(request).await.map(Response::from)
        }
    })))
}

fn boxed<S, B>(client: S) -> HttpClient
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Sync + 'static,
{
    let client = client
        .map_response(|response| response.map(|body| body.map_err(Into::into).boxed()))
        .map_err(Into::into);
    BoxCloneSyncService::new(client)
}

// ---- The servers

fn with_limits(routes: Router) -> Router {
    routes
        .layer(RequestSizeLimitLayer::server(REQUEST_LIMIT))
        .layer(ResponseSizeLimitLayer::server(RESPONSE_LIMIT))
        .layer(DefaultBodyLimit::disable())
}

fn routes(received: &Arc<AtomicU64>) -> Router {
    Router::new()
        .route("/upload", post(receive))
        .route("/known/{n}", get(known))
        .route("/chunked/{n}", get(chunked))
        .route("/error/{n}", get(error))
        .route("/gzip/{n}", get(gzip))
        .with_state(Arc::clone(received))
}

async fn serve(app: Router) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(address)
}

async fn receive(
    State(received): State<Arc<AtomicU64>>,
    mut body: Body,
) -> Result<(), (StatusCode, String)> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match TooLarge::find(&error) {
            Some(too_large) => (too_large.status(), too_large.to_string()),
            None => (StatusCode::BAD_REQUEST, error.to_string()),
        })?;
        received.fetch_add(frame.data_ref().map_or(0, Bytes::len) as u64, Relaxed);
    }
    Ok(())
}

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
fn frames(n: u64) -> impl Stream<Item = io::Result<Bytes>> + Send + Sync {
    static FRAME: [u8; 16 * 1024] = [b'.'; 16 * 1024];
    stream::iter((0..n).step_by(FRAME.len()).map(move |at| {
        let len = (n - at).min(FRAME.len() as u64);
        Ok(Bytes::from_static(&FRAME[..len as usize]))
    }))
}
