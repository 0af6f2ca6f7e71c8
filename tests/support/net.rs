//! Servers, clients and bare TCP connections, all on the loopback interface.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, StreamBody, combinators::BoxBody};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
};
use tower::{Service, ServiceExt, util::BoxCloneSyncService};

use super::{Hint, Script, Step};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Any request or response body.
pub type AnyBody = BoxBody<Bytes, BoxError>;

/// Any client, up to the place where our layers go.
pub type AnyClient = BoxCloneSyncService<Request<AnyBody>, Response<AnyBody>, BoxError>;

/// Turns a hang into a failure.
pub async fn guarded<F: Future>(future: F) -> F::Output {
    let guard = tokio::time::timeout(Duration::from_secs(30), future);
    guard.await.expect("it takes too long")
}

/// Hyper, speaking HTTP/1.0, HTTP/1.1 and HTTP/2 on one port until the test ends.
#[derive(Debug)]
pub struct Server {
    pub addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    open: watch::Sender<usize>,
}

/// A connection that is served. Ends with its task, even if that panics.
struct Open(watch::Sender<usize>);

impl Open {
    fn new(open: &watch::Sender<usize>) -> Self {
        open.send_modify(|open| *open += 1);
        Self(open.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

impl Server {
    pub async fn start<S, B>(service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        let open = watch::Sender::new(0);
        let counted = open.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                stream.set_nodelay(true).unwrap();
                let service = TowerToHyperService::new(service.clone());
                let open = Open::new(&counted);
                tokio::spawn(async move {
                    let _open = open;
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            addr,
            connections,
            open,
        }
    }

    /// How many connections were made to it.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Waits until none of them is open any more, and says how many are if that takes too long.
    pub async fn until_idle(&self, patience: Duration) -> usize {
        let mut open = self.open.subscribe();
        let idle = tokio::time::timeout(patience, open.wait_for(|&open| open == 0));
        let _ = idle.await;
        *self.open.borrow()
    }

    pub fn uri(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }
}

/// A service that answers each request with what `respond` makes of it.
pub fn respond<ReqB, B, F>(
    respond: F,
) -> impl Service<
    Request<ReqB>,
    Response = Response<B>,
    Error = Infallible,
    Future = Ready<Result<Response<B>, Infallible>>,
> + Clone
where
    F: Fn(&Request<ReqB>) -> Response<B> + Clone,
{
    tower::service_fn(move |request| ready(Ok(respond(&request))))
}

/// A response without a body that states a length all the same.
pub fn without_body<B>(request: &Request<B>, status: u16, length: u64) -> Response<Script> {
    // Each is the one form in which hyper leaves the field of a 304 alone.
    let hint = match request.version() {
        Version::HTTP_2 => Hint::Declared,
        _ => Hint::Undeclared,
    };
    let response = Response::builder().status(status);
    let response = response.header(CONTENT_LENGTH, length);
    response.body(Script::new([], hint)).unwrap()
}

/// A body without an end, and what is known about it on the sending side.
#[derive(Debug)]
pub struct Endless {
    pulled: Arc<AtomicU64>,
    dropped: oneshot::Receiver<()>,
}

impl Endless {
    pub fn new(frame: usize) -> (AnyBody, Self) {
        let frame = Bytes::from(vec![b'x'; frame]);
        let (guard, dropped) = oneshot::channel();
        let pulled = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&pulled);
        let frames = stream::repeat_with(move || {
            let _: &oneshot::Sender<()> = &guard;
            counter.fetch_add(frame.len() as u64, Ordering::SeqCst);
            Ok(Frame::data(frame.clone()))
        });
        (StreamBody::new(frames).boxed(), Self { pulled, dropped })
    }

    /// How many bytes were asked of it by the time it was given up.
    pub async fn until_dropped(self) -> u64 {
        let given_up = guarded(self.dropped).await;
        assert!(given_up.is_err(), "the guard is dropped, not sent");
        self.pulled.load(Ordering::SeqCst)
    }
}

/// More than any body that a test wants to see.
const MOST: usize = 64 * 1024 * 1024;

/// What came back, in the eyes of whoever asked.
#[derive(Debug)]
pub struct Seen {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
    /// Whether it looks like all of the message.
    pub whole: bool,
}

impl Seen {
    pub fn header(&self, name: impl http::header::AsHeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Reads a response as far as it goes.
    pub async fn of<B>(response: Response<B>) -> (Self, Option<B::Error>)
    where
        B: Body<Data = Bytes>,
    {
        let (parts, body) = response.into_parts();
        let mut seen = Self {
            status: parts.status,
            headers: parts.headers,
            body: Vec::new(),
            trailers: None,
            whole: false,
        };
        let mut body = std::pin::pin!(body);
        while let Some(frame) = guarded(body.frame()).await {
            assert!(seen.body.len() <= MOST, "there is no end to it");
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => seen.body.extend_from_slice(&data),
                Ok(Err(frame)) => seen.trailers = frame.into_trailers().ok(),
                Err(error) => return (seen, Some(error)),
            }
        }
        seen.whole = true;
        (seen, None)
    }
}

/// A connection on which everything is written and read by hand.
#[derive(Debug)]
pub struct Raw<S = TcpStream>(BufReader<S>);

impl Raw {
    pub async fn connect(server: &Server) -> Self {
        Self(BufReader::new(
            TcpStream::connect(server.addr).await.unwrap(),
        ))
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        guarded(self.0.write_all(bytes.as_ref())).await.unwrap();
    }
}

impl<S: AsyncRead + Unpin> Raw<S> {
    /// The reading half of a connection.
    pub fn reading(stream: S) -> Self {
        Self(BufReader::new(stream))
    }

    /// One message, or what arrived of it. `None` if the connection closes before its first byte.
    pub async fn receive(&mut self, method: &Method) -> Option<Seen> {
        guarded(self.receive_unguarded(method)).await
    }

    async fn receive_unguarded(&mut self, method: &Method) -> Option<Seen> {
        let line = self.line().await?;
        let mut seen = Seen {
            status: line.split(' ').nth(1)?.parse().unwrap(),
            headers: self.fields().await?,
            body: Vec::new(),
            trailers: None,
            whole: true,
        };
        let no_body = seen.status.is_informational()
            || matches!(
                seen.status,
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            );
        if *method == Method::HEAD || no_body {
        } else if seen.headers.contains_key(TRANSFER_ENCODING) {
            seen.whole = self.chunks(&mut seen.body, &mut seen.trailers).await;
        } else if let Some(length) = seen.header(CONTENT_LENGTH) {
            let length = length.parse().unwrap();
            seen.whole = self.data(&mut seen.body, length).await;
        } else {
            seen.whole = self.0.read_to_end(&mut seen.body).await.is_ok();
        }
        Some(seen)
    }

    /// What else arrives before the connection closes.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset is the end, too.
        let _ = guarded(self.0.read_to_end(&mut rest)).await;
        rest
    }

    /// A line that is complete, without its end.
    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).await.ok()?;
        line.strip_suffix("\r\n").map(str::to_owned)
    }

    async fn fields(&mut self) -> Option<HeaderMap> {
        let mut fields = HeaderMap::new();
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(':') else {
                return Some(fields);
            };
            let name = name.parse::<HeaderName>().unwrap();
            fields.append(name, HeaderValue::from_str(value.trim()).unwrap());
        }
    }

    /// Whether all of it came.
    async fn data(&mut self, body: &mut Vec<u8>, length: u64) -> bool {
        let read = (&mut self.0).take(length).read_to_end(body).await;
        read.is_ok_and(|read| read as u64 == length)
    }

    async fn chunks(&mut self, body: &mut Vec<u8>, trailers: &mut Option<HeaderMap>) -> bool {
        while let Some(line) = self.line().await {
            let size = u64::from_str_radix(&line, 16).unwrap();
            if size == 0 {
                *trailers = self.fields().await;
                return trailers.is_some();
            }
            assert!(body.len() <= MOST, "there is no end to it");
            if !self.data(body, size).await || self.line().await.is_none() {
                return false;
            }
        }
        false
    }
}

/// One raw request, and what came back.
pub async fn exchange(server: &Server, method: &Method, request: &str) -> Option<Seen> {
    let mut raw = Raw::connect(server).await;
    raw.send(request).await;
    raw.receive(method).await
}

pub const VERSIONS: [Version; 3] = [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2];

/// A request without a body: raw over HTTP/1, by hyper's client over HTTP/2. `None` if nothing came
/// back.
pub async fn ask(server: &Server, version: Version, method: &Method) -> Option<Seen> {
    if version < Version::HTTP_2 {
        let request = format!("{method} / {version:?}\r\nhost: test\r\nte: trailers\r\n\r\n");
        return exchange(server, method, &request).await;
    }
    let request = Request::builder().method(method).uri(server.uri("/"));
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let response = guarded(hyper_client(version).request(request)).await.ok()?;
    Some(Seen::of(response).await.0)
}

pub fn hyper_client<B>(version: Version) -> Client<HttpConnector, B>
where
    B: Body<Data: Send> + Send,
{
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    Client::builder(TokioExecutor::new())
        .http2_only(version == Version::HTTP_2)
        .build(connector)
}

pub fn reqwest_client(version: Version) -> reqwest::Client {
    let builder = reqwest::Client::builder().no_proxy();
    let builder = if version == Version::HTTP_2 {
        builder.http2_prior_knowledge()
    } else {
        builder
    };
    builder.build().unwrap()
}

/// Makes a [`reqwest::Client`] a service of [`http`]'s types.
#[derive(Clone, Debug)]
pub struct ReqwestService(pub reqwest::Client);

impl<B> Service<Request<B>> for ReqwestService
where
    B: Body<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<reqwest::Body>;
    type Error = reqwest::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, reqwest::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), reqwest::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let client = self.0.clone();
        let request = reqwest::Request::try_from(request.map(reqwest::Body::wrap));
        Box::pin(async move { Ok(client.execute(request?).await?.into()) })
    }
}

/// hyper-util and reqwest, each over HTTP/1.1 and over HTTP/2.
pub fn clients() -> [(&'static str, AnyClient); 4] {
    let hyper = |version| any_client(hyper_client::<AnyBody>(version));
    let reqwest = |version| any_client(ReqwestService(reqwest_client(version)));
    [
        ("hyper-util, HTTP/1.1", hyper(Version::HTTP_11)),
        ("hyper-util, HTTP/2", hyper(Version::HTTP_2)),
        ("reqwest, HTTP/1.1", reqwest(Version::HTTP_11)),
        ("reqwest, HTTP/2", reqwest(Version::HTTP_2)),
    ]
}

pub fn any_client<S, B>(client: S) -> AnyClient
where
    S: Service<Request<AnyBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    let client = client.map_response(|response: Response<B>| response.map(any_body));
    BoxCloneSyncService::new(client.map_err(Into::into))
}

pub fn any_body<B>(body: B) -> AnyBody
where
    B: Body<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed()
}

/// A GET without a body.
pub fn get(server: &Server, path: &str) -> Request<AnyBody> {
    let body = any_body(Empty::<Bytes>::new());
    Request::get(server.uri(path)).body(body).unwrap()
}

/// A POST of `len` bytes in one frame.
pub fn post(server: &Server, len: usize, hint: Hint) -> Request<AnyBody> {
    let body = any_body(Script::new([super::data(len)], hint));
    Request::post(server.uri("/")).body(body).unwrap()
}

/// So many frames of this size.
pub fn frames(frame: usize, count: usize) -> Vec<Step> {
    vec![super::data(frame); count]
}
