//! The clients, all as the same type of service.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request::Parts};
use http_body::Body;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::task::spawn_blocking;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_body_limit::{ResponseSizeLimitLayer, TruncateLayer};
use tower_http::decompression::DecompressionLayer;

use crate::BoxError;

pub(crate) type RequestBody = BoxBody<Bytes, io::Error>;
pub(crate) type HttpClient =
    BoxCloneSyncService<Request<RequestBody>, Response<BoxBody<Bytes, BoxError>>, BoxError>;

pub(crate) const HYPER: &str = "hyper";
pub(crate) const REQWEST: &str = "reqwest";
/// Writes all of the request, and reads then.
pub(crate) const SOCKET: &str = "socket";
/// Writes half of the request, and the rest when it has the head of the answer.
pub(crate) const STALLING: &str = "stalling";

pub(crate) fn all() -> Result<[(&'static str, HttpClient); 4], BoxError> {
    Ok([
        (HYPER, hyper_client()),
        (REQWEST, reqwest_client()?),
        (SOCKET, socket_client(false)),
        (STALLING, socket_client(true)),
    ])
}

/// What is limited here is what a client gets to see: after the decoder, so that a bomb is counted
/// by what comes out of it.
pub(crate) fn limit(client: HttpClient) -> HttpClient {
    boxed(
        ServiceBuilder::new()
            .layer(ResponseSizeLimitLayer::client(crate::RESPONSE_LIMIT))
            .layer(TruncateLayer::new(crate::ERROR_LIMIT))
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

fn socket_client(stalls: bool) -> HttpClient {
    boxed(service_fn(move |request| send_by_socket(request, stalls)))
}

async fn send_by_socket(
    request: Request<RequestBody>,
    stalls: bool,
) -> Result<Response<Full<Bytes>>, BoxError> {
    let (head, body) = request.into_parts();
    let is_declared = body.size_hint().exact().is_some();
    let body = body.collect().await?.to_bytes();
    spawn_blocking(move || {
        let message = encode(&head, &body, is_declared)?;
        let pause = message.len() / if stalls { 2 } else { 1 };
        exchange(&head, &message[..pause], &message[pause..])
    })
    .await?
}

/// Gives up at the first error, as many clients do.
fn exchange(head: &Parts, first: &[u8], rest: &[u8]) -> Result<Response<Full<Bytes>>, BoxError> {
    let server = head.uri.authority().ok_or("no server")?;
    let mut socket = TcpStream::connect(server.as_str())?;
    socket.set_write_timeout(Some(crate::PATIENCE))?;
    socket.set_read_timeout(Some(crate::PATIENCE))?;

    socket.write_all(first)?;
    let mut answer = BufReader::new(socket.try_clone()?);
    let (status, length) = read_head(&mut answer)?;
    socket.write_all(rest)?;
    let mut text = vec![0; length];
    answer.read_exact(&mut text)?;

    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    Ok(response)
}

fn encode(head: &Parts, body: &[u8], is_declared: bool) -> io::Result<Vec<u8>> {
    let mut message = Vec::new();
    write!(message, "{} {} HTTP/1.1\r\n", head.method, head.uri.path())?;
    write!(
        message,
        "host: {}\r\n",
        head.uri.authority().map_or("", |server| server.as_str())
    )?;
    if is_declared {
        write!(message, "content-length: {}\r\n\r\n", body.len())?;
        message.write_all(body)?;
    } else {
        write!(message, "transfer-encoding: chunked\r\n\r\n")?;
        for chunk in body.chunks(4 * 1024) {
            write!(message, "{:x}\r\n", chunk.len())?;
            message.write_all(chunk)?;
            write!(message, "\r\n")?;
        }
        write!(message, "0\r\n\r\n")?;
    }
    Ok(message)
}

/// The status, and the length of the body.
fn read_head(answer: &mut impl BufRead) -> Result<(StatusCode, usize), BoxError> {
    let mut lines = answer.lines();
    let line = lines.next().ok_or("closed without an answer")??;
    let status = line.split(' ').nth(1).ok_or("no status")?.parse()?;
    let mut length = 0;
    for line in lines {
        match line?.split_once(": ") {
            Some(("content-length", value)) => length = value.parse()?,
            Some(_) => {}
            None => break,
        }
    }
    Ok((status, length))
}

fn boxed<S, B>(client: S) -> HttpClient
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Sync + 'static,
{
    let client = client
        .map_response(|response| response.map(|body| body.map_err(Into::into).boxed()))
        .map_err(Into::into);
    BoxCloneSyncService::new(client)
}
