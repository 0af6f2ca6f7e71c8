//! The layers of a server around tonic, as tonic's client sees them.

mod support;
#[path = "support/witness.rs"]
mod witness;

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes};
use futures_util::{Stream, StreamExt, stream};
use http::uri::PathAndQuery;
use support::{VARIANTS, net::guarded};
use tokio::sync::oneshot;
use tonic::{
    Code, Request, Response, Status, Streaming,
    body::Body,
    client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{self, NamedService},
    transport::{Channel, Server, server::TcpIncoming},
};
use tower::{Service, service_fn};
use tower_body_limit::{RequestSizeLimitLayer, ResponseSizeLimitLayer, Subject, respond};
use witness::Witness;

/// Messages that are bytes and nothing else.
#[derive(Clone, Copy, Debug, Default)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Answers with as many bytes as it was sent, in each of the four ways that gRPC has. What it reads
/// as a stream it reads to its end before it answers, but for `/echo.Echo/both`.
#[derive(Clone, Debug)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "echo.Echo";
}

type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

async fn all(mut messages: Streaming<Bytes>) -> Result<Vec<Bytes>, Status> {
    let mut all = Vec::new();
    while let Some(message) = messages.message().await? {
        all.push(message);
    }
    Ok(all)
}

fn sent(messages: Vec<Bytes>) -> Messages {
    stream::iter(messages.into_iter().map(Ok)).boxed()
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = server::Grpc::new(BytesCodec);
            let one = service_fn(async |message: Request<Bytes>| {
                Ok::<_, Status>(Response::new(message.into_inner()))
            });
            let many_to_one = service_fn(async |messages: Request<Streaming<Bytes>>| {
                let all = all(messages.into_inner()).await?;
                Ok::<_, Status>(Response::new(Bytes::from(all.concat())))
            });
            let one_to_many = service_fn(async |message: Request<Bytes>| {
                let message = message.into_inner();
                let parts = message.chunks(100).map(Bytes::copy_from_slice).collect();
                Ok::<_, Status>(Response::new(sent(parts)))
            });
            let many_to_many = service_fn(async |messages: Request<Streaming<Bytes>>| {
                let all = all(messages.into_inner()).await?;
                Ok::<_, Status>(Response::new(sent(all)))
            });
            let both = service_fn(async |messages: Request<Streaming<Bytes>>| {
                let messages: Messages = messages.into_inner().boxed();
                Ok::<_, Status>(Response::new(messages))
            });
            Ok(match request.uri().path() {
                "/echo.Echo/one" => grpc.unary(one, request).await,
                "/echo.Echo/many-to-one" => grpc.client_streaming(many_to_one, request).await,
                "/echo.Echo/one-to-many" => grpc.server_streaming(one_to_many, request).await,
                "/echo.Echo/many-to-many" => grpc.streaming(many_to_many, request).await,
                "/echo.Echo/both" => grpc.streaming(both, request).await,
                path => panic!("there is no {path}"),
            })
        })
    }
}

/// Where a tonic server listens that has both layers, until the test ends.
async fn serve(requests: RequestSizeLimitLayer, responses: ResponseSizeLimitLayer) -> SocketAddr {
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let addr = incoming.local_addr().unwrap();
    let server = Server::builder()
        .layer(responses)
        .layer(requests)
        .layer(tower::util::MapRequestLayer::new(
            |request: http::Request<_>| request.map(Body::new),
        ))
        .add_service(Echo);
    tokio::spawn(server.serve_with_incoming(incoming));
    addr
}

type Client = client::Grpc<Channel>;

async fn connect(addr: SocketAddr) -> Client {
    let channel = Channel::from_shared(format!("http://{addr}")).unwrap();
    client::Grpc::new(guarded(channel.connect()).await.unwrap())
}

const WAYS: [&str; 5] = ["one", "one-to-many", "many-to-one", "many-to-many", "both"];

/// What one call ends with: as many bytes as came back, and whether the status came as it should.
async fn call(
    client: &mut Client,
    way: &'static str,
    messages: impl Stream<Item = Bytes> + Send + 'static,
) -> Result<usize, Status> {
    guarded(client.ready()).await.unwrap();
    let path: PathAndQuery = format!("/echo.Echo/{way}").parse().unwrap();
    let codec = BytesCodec;
    let mut messages = Box::pin(messages);
    let mut first = async || Request::new(messages.next().await.unwrap());
    let streamed = match way {
        "one" => {
            let message = client.unary(first().await, path, codec).await?;
            return Ok(message.into_inner().len());
        }
        "many-to-one" => {
            let messages = Request::new(messages);
            let message = client.client_streaming(messages, path, codec).await?;
            return Ok(message.into_inner().len());
        }
        "one-to-many" => client.server_streaming(first().await, path, codec).await?,
        _ => {
            client
                .streaming(Request::new(messages), path, codec)
                .await?
        }
    };
    let mut streamed = streamed.into_inner();
    let mut read = 0;
    while let Some(message) = streamed.message().await? {
        read += message.len();
    }
    // A stream that breaks off has an error; one that ends has its status in the trailers.
    let trailers = streamed.trailers().await?;
    assert!(trailers.is_some(), "no trailers: {way}");
    Ok(read)
}

fn message(len: usize) -> Bytes {
    Bytes::from(vec![b'x'; len])
}

/// How long a message of this length is on its way: behind a flag and its length.
fn on_the_wire(len: usize) -> u64 {
    len as u64 + 5
}

/// A number of bytes as it is sent in this way: at once, or in messages of at most a hundred.
fn messages(way: &str, len: usize) -> Vec<Bytes> {
    if way.starts_with("one") {
        return vec![message(len)];
    }
    let whole = message(len);
    whole.chunks(100).map(Bytes::copy_from_slice).collect()
}

fn wire_length(messages: &[Bytes]) -> u64 {
    messages
        .iter()
        .map(|message| on_the_wire(message.len()))
        .sum()
}

fn no_response_limit() -> ResponseSizeLimitLayer {
    ResponseSizeLimitLayer::server(None)
}

#[tokio::test]
async fn within_both_limits_messages_status_and_trailers_pass() {
    for way in WAYS {
        for len in [1, 1000] {
            let sent = messages(way, len);
            let limit = wire_length(&sent);
            let answered = match way {
                "one" | "many-to-one" => on_the_wire(len),
                _ => wire_length(&messages("many", len)),
            };
            let witness = Witness::default();
            let requests = RequestSizeLimitLayer::server(limit).on_breach(witness.breach());
            let responses = ResponseSizeLimitLayer::server(answered).on_breach(witness.breach());
            for responses in [responses.clone(), responses.buffered()] {
                let mut client = connect(serve(requests.clone(), responses).await).await;
                for _ in 0..2 {
                    let result = call(&mut client, way, stream::iter(sent.clone())).await;
                    assert_eq!(result.unwrap(), len, "{way}");
                }
            }
            assert_eq!(witness.breaches(), [], "{way}");
        }
    }
}

#[tokio::test]
async fn an_upload_over_the_limit_ends_as_resource_exhausted() {
    for way in ["one", "one-to-many", "many-to-one", "many-to-many"] {
        for len in [1000, 1_000_000] {
            let sent = messages(way, len);
            let witness = Witness::default();
            let limit = wire_length(&sent) - 1;
            let requests = RequestSizeLimitLayer::server(limit).on_breach(witness.breach());
            let mut client = connect(serve(requests, no_response_limit()).await).await;
            // The connection lives on.
            for _ in 0..3 {
                let result = call(&mut client, way, stream::iter(sent.clone())).await;
                let status = result.expect_err(way);
                assert_eq!(
                    status.code(),
                    Code::ResourceExhausted,
                    "{way} {len}: {status:?}"
                );
                assert_eq!(status.message(), "The request body is too large.", "{way}");
                let breaches = witness.breaches();
                assert_eq!(breaches.len(), 1, "{way} {len}");
                assert_eq!(breaches[0].subject(), Subject::Request);
                let result = call(&mut client, way, stream::iter([message(10)])).await;
                assert_eq!(result.unwrap(), 10, "{way} {len}");
            }
        }
    }
}

/// A client that has not finished, and would not for long, does not have to.
#[tokio::test]
async fn an_upload_that_goes_on_for_ever_is_answered_at_the_breach() {
    for way in ["many-to-one", "many-to-many"] {
        let requests = RequestSizeLimitLayer::server(1000);
        let mut client = connect(serve(requests, no_response_limit()).await).await;
        let endless = stream::repeat_with(|| message(100))
            .take(20)
            .chain(stream::pending());
        let status = guarded(call(&mut client, way, endless)).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{way}: {status:?}");
    }
}

/// Nothing is drained on HTTP/2: there is no connection to be saved by it.
#[tokio::test]
async fn a_refused_upload_is_given_up_and_its_siblings_live_on() {
    let requests =
        RequestSizeLimitLayer::server(1000).drain_with(u64::MAX, Duration::from_secs(3600), |_| {
            std::future::pending()
        });
    let mut client = connect(serve(requests, no_response_limit()).await).await;
    let (guard, given_up) = oneshot::channel::<()>();
    let endless = stream::repeat_with(move || {
        let _ = &guard;
        message(100)
    });
    let mut sibling = client.clone();
    let (resume, resumed) = oneshot::channel();
    let slow = stream::iter([message(100)]).chain(stream::once(async {
        resumed.await.unwrap();
        message(100)
    }));
    let sibling = tokio::spawn(async move { call(&mut sibling, "many-to-one", slow).await });
    let status = call(&mut client, "many-to-one", endless).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(guarded(given_up).await.is_err(), "dropped, not sent");
    resume.send(()).unwrap();
    assert_eq!(guarded(sibling).await.unwrap().unwrap(), 200);
}

/// Once the answer has begun its head says 200, and only the stream itself can end in an error.
#[tokio::test]
async fn an_answer_that_has_begun_ends_with_the_error_that_the_handler_makes_of_it() {
    let witness = Witness::default();
    let requests = RequestSizeLimitLayer::server(1000).on_breach(witness.breach());
    let mut client = connect(serve(requests, no_response_limit()).await).await;
    let sent = stream::iter(messages("both", 2000));
    let status = guarded(call(&mut client, "both", sent)).await.unwrap_err();
    assert_ne!(status.code(), Code::Ok);
    assert_eq!(witness.breaches().len(), 1);
    let result = call(&mut client, "both", stream::iter([message(10)])).await;
    assert_eq!(result.unwrap(), 10);
}

#[tokio::test]
async fn the_status_of_the_handler_is_kept_on_demand() {
    let requests = RequestSizeLimitLayer::server(1000).keep_inner_answers();
    let mut client = connect(serve(requests, no_response_limit()).await).await;
    for way in ["one", "many-to-one"] {
        let sent = stream::iter(messages(way, 2000));
        let status = call(&mut client, way, sent).await.unwrap_err();
        assert_ne!(status.code(), Code::ResourceExhausted, "{way}");
    }
}

/// Other answers than gRPC's are not for its clients, which make of a 413 what they like.
#[tokio::test]
async fn the_answer_of_ones_own_is_sent_as_it_is() {
    let requests = RequestSizeLimitLayer::server(1000).answer_with(respond::plain_text);
    let mut client = connect(serve(requests, no_response_limit()).await).await;
    let status = call(&mut client, "one", stream::iter([message(2000)])).await;
    let status = status.unwrap_err();
    assert_ne!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.metadata().get("content-length").unwrap(), "31");
}

#[tokio::test]
async fn a_response_over_the_limit_is_an_error_and_never_a_short_stream() {
    for way in WAYS {
        let witness = Witness::default();
        let responses = ResponseSizeLimitLayer::server(1000).on_breach(witness.breach());
        // gRPC is never held.
        for responses in [responses.clone(), responses.buffered()] {
            let requests = RequestSizeLimitLayer::server(None);
            let mut client = connect(serve(requests, responses).await).await;
            let sent = stream::iter(messages(way, 2000));
            let status = guarded(call(&mut client, way, sent)).await.unwrap_err();
            assert_ne!(status.code(), Code::Ok, "{way}");
            let breaches = witness.breaches();
            assert_eq!(breaches.len(), 1, "{way}");
            assert_eq!(breaches[0].subject(), Subject::Response);
            let result = call(&mut client, way, stream::iter([message(10)])).await;
            assert_eq!(result.unwrap(), 10, "{way}");
        }
    }
}

/// A call that declares its length, as some clients do, is refused before it is read.
#[tokio::test]
async fn a_declared_length_over_the_limit_is_refused_in_the_head() {
    for hint in VARIANTS {
        let declared = matches!(hint, support::Hint::Declared);
        let witness = Witness::default();
        let requests = RequestSizeLimitLayer::server(1000).on_breach(witness.breach());
        let addr = serve(requests, no_response_limit()).await;
        let frame = [&[0, 0, 0, 7, 208], &*message(2000)].concat();
        let body = support::Script::new([support::Step::Data(frame.into())], hint);
        let request = http::Request::post(format!("http://{addr}/echo.Echo/one"))
            .header("content-type", "application/grpc+proto")
            .header("te", "trailers")
            .body(body)
            .unwrap();
        let client = support::net::hyper_client(http::Version::HTTP_2);
        let response = guarded(client.request(request)).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "8");
        assert_eq!(response.headers()["content-type"], "application/grpc+proto");
        let (seen, error) = support::net::Seen::of(response).await;
        assert!(error.is_none() && seen.body.is_empty() && seen.trailers.is_none());
        let breaches = witness.breaches();
        assert_eq!(breaches.len(), 1);
        assert_eq!(breaches[0].declared(), declared.then_some(2005));
        assert_eq!(breaches[0].read() == 0, declared);
    }
}
