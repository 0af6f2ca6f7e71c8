//! The layers of a client, on hyper-util and reqwest, against a plain hyper server.

mod support;

use std::{
    io::Write,
    net::{Ipv4Addr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{
    Request, Response, StatusCode, Version,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName},
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use support::{
    Hint, Script, Step, VARIANTS, data,
    net::{
        AnyBody, AnyClient, Endless, ReqwestService, Seen, Server, any_body, any_client, clients,
        frames, get, guarded, hyper_client, post, reqwest_client, respond, without_body,
    },
};
use tokio::{io::AsyncReadExt, io::AsyncWriteExt, sync::mpsc};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_body_limit::{
    Error, RequestSizeLimitLayer, ResponseBody, ResponseSizeLimitLayer, Subject, TooLarge,
    TruncateLayer, Truncation, TruncationHandle,
};
use tower_http::decompression::DecompressionLayer;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// A server whose every response has this body.
async fn serving(steps: Vec<Step>, hint: Hint) -> Server {
    serving_with(200, &[], steps, hint).await
}

async fn serving_with(
    status: u16,
    headers: &'static [(HeaderName, &'static str)],
    steps: Vec<Step>,
    hint: Hint,
) -> Server {
    Server::start(respond(move |_| {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(name, *value);
        }
        let body = Script::new(steps.clone(), hint.clone());
        response.body(body).unwrap()
    }))
    .await
}

fn limited(
    client: AnyClient,
    limit: usize,
) -> impl Service<
    Request<AnyBody>,
    Response = Response<ResponseBody<AnyBody>>,
    Error = support::net::BoxError,
    Future: Send,
> + Clone {
    ResponseSizeLimitLayer::client(limit as u64).layer(client)
}

async fn fetch<S, B>(client: S, request: Request<AnyBody>) -> (Seen, Option<B::Error>)
where
    S: Service<Request<AnyBody>, Response = Response<B>>,
    S::Error: std::fmt::Debug,
    B: Body<Data = Bytes>,
{
    let response = guarded(client.oneshot(request)).await;
    Seen::of(response.expect("a head")).await
}

#[track_caller]
fn assert_breach(error: Option<Error>, limit: u64, declared: Option<u64>, case: &str) -> TooLarge {
    let error = error.expect(case);
    let too_large = error.too_large().expect(case).clone();
    assert_eq!(too_large.limit(), limit, "{case}");
    assert_eq!(too_large.declared(), declared, "{case}");
    assert_eq!(too_large.subject(), Subject::Response, "{case}");
    assert_eq!(too_large.status(), StatusCode::BAD_GATEWAY, "{case}");
    too_large
}

#[tokio::test]
async fn a_response_passes_up_to_the_limit_and_fails_above_it() {
    for hint in VARIANTS {
        let server = serving(frames(KIB, 4), hint.clone()).await;
        for (name, client) in clients() {
            let case = format!("{name}, {hint:?}");
            let (seen, error) = fetch(limited(client.clone(), 4 * KIB), get(&server, "/")).await;
            assert!(error.is_none(), "{case}: {error:?}");
            assert_eq!(seen.body.len(), 4 * KIB, "{case}");

            let limit = 4 * KIB - 1;
            let (seen, error) = fetch(limited(client, limit), get(&server, "/")).await;
            assert_eq!(seen.status, 200, "{case}");
            assert!(seen.body.len() <= limit, "{case}");
            let declared = matches!(hint, Hint::Declared).then_some(4 * KIB as u64);
            let too_large = assert_breach(error, limit as u64, declared, &case);
            if declared.is_some() {
                assert_eq!(seen.header(CONTENT_LENGTH), Some("4096"), "{case}");
                assert!(seen.body.is_empty(), "{case}");
                assert_eq!(too_large.read(), 0, "{case}");
            } else {
                assert_eq!(too_large.read(), 4 * KIB as u64, "{case}");
            }
        }
    }
}

#[tokio::test]
async fn zero_lets_only_an_empty_response_pass() {
    for hint in VARIANTS {
        for (len, passes) in [(0, true), (1, false)] {
            let server = serving(frames(len, 1), hint.clone()).await;
            for (name, client) in clients() {
                let (_, error) = fetch(limited(client, 0), get(&server, "/")).await;
                assert_eq!(error.is_none(), passes, "{name}, {hint:?}, {len}");
            }
        }
    }
}

#[tokio::test]
async fn trailers_pass_and_are_not_counted() {
    let steps = vec![data(5), data(5), Step::Trailers];
    let trailer = &[(http::header::TRAILER, "x-trailer")];
    let server = serving_with(200, trailer, steps, Hint::Undeclared).await;
    for (name, client) in clients() {
        for (limit, passes) in [(10, true), (9, false)] {
            let mut request = get(&server, "/");
            request
                .headers_mut()
                .insert("te", "trailers".parse().unwrap());
            let (seen, error) = fetch(limited(client.clone(), limit), request).await;
            assert_eq!(error.is_none(), passes, "{name}, {limit}");
            assert_eq!(seen.trailers.is_some(), passes, "{name}, {limit}");
        }
    }
}

#[tokio::test]
async fn a_message_without_a_body_passes_whatever_it_declares() {
    const HUGE: u64 = 10 * 1024 * 1024 * 1024;
    let huge = HUGE.to_string();
    for (method, status) in [("HEAD", 200), ("HEAD", 404), ("GET", 304), ("GET", 204)] {
        let server =
            Server::start(respond(move |request| without_body(request, status, HUGE))).await;
        for (name, client) in clients() {
            let case = format!("{name}, {method}, {status}");
            let mut request = get(&server, "/");
            *request.method_mut() = method.parse().unwrap();
            let (seen, error) = fetch(limited(client, 10), request).await;
            assert!(error.is_none(), "{case}: {error:?}");
            assert_eq!(seen.status, status, "{case}");
            assert_eq!(seen.header(CONTENT_LENGTH), Some(&*huge), "{case}");
        }
    }
}

/// Counts what is pulled through a client, and the largest frame of it.
fn metered(client: AnyClient) -> (AnyClient, Arc<AtomicU64>, Arc<AtomicU64>) {
    let (pulled, largest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (sum, max) = (Arc::clone(&pulled), Arc::clone(&largest));
    let client = client.map_response(move |response: Response<AnyBody>| {
        response.map(|body| {
            body.map_frame(move |frame: Frame<Bytes>| {
                let len = frame.data_ref().map_or(0, Bytes::len) as u64;
                sum.fetch_add(len, Ordering::SeqCst);
                max.fetch_max(len, Ordering::SeqCst);
                frame
            })
        })
    });
    (any_client(client), pulled, largest)
}

/// A server of endless bodies, and each of them as the server sees it.
async fn serving_without_end(status: u16) -> (Server, mpsc::UnboundedReceiver<Endless>) {
    let (sender, endless) = mpsc::unbounded_channel();
    let service = respond(move |_: &Request<Incoming>| {
        let (body, one) = Endless::new(16 * KIB);
        sender.send(one).unwrap();
        let response = Response::builder().status(status);
        response
            .header(CONTENT_TYPE, "text/plain")
            .body(body)
            .unwrap()
    });
    (Server::start(service).await, endless)
}

/// More than all the buffers and windows between a server and a client on one machine.
const BUFFERS: u64 = 48 * 1024 * 1024;

#[tokio::test]
async fn an_endless_response_is_given_up_at_the_limit() {
    for (name, client) in clients() {
        let (server, mut endless) = serving_without_end(200).await;
        let (client, pulled, largest) = metered(client);
        let client = limited(client, MIB);
        let response = guarded(client.oneshot(get(&server, "/"))).await.unwrap();
        let mut body = response.into_body();
        let mut passed = 0;
        let error = loop {
            assert!(passed <= MIB, "{name}: {passed}");
            match guarded(body.frame()).await.expect(name) {
                Ok(frame) => passed += frame.into_data().unwrap().len(),
                Err(error) => break error,
            }
        };
        assert_breach(Some(error), MIB as u64, None, name);
        let pulled = pulled.load(Ordering::SeqCst);
        assert!(
            pulled <= MIB as u64 + largest.load(Ordering::SeqCst),
            "{name}: {pulled}"
        );

        // The client still holds its body: the limit alone stops the server.
        let sent = endless.recv().await.unwrap().until_dropped().await;
        assert!(sent <= MIB as u64 + BUFFERS, "{name}: {sent}");
        assert!(guarded(body.frame()).await.is_none(), "{name}");
    }
}

#[tokio::test]
async fn each_response_on_one_connection_counts_for_itself() {
    for hint in VARIANTS {
        for (name, client) in clients() {
            let server = serving(frames(6, 1), hint.clone()).await;
            let client = limited(client, 10);
            for round in 0..3 {
                let (seen, error) = fetch(client.clone(), get(&server, "/")).await;
                let case = format!("{name}, {hint:?}, round {round}: {error:?}");
                assert!(seen.body.len() == 6 && error.is_none(), "{case}");
            }
            assert_eq!(server.connections(), 1, "{name}, {hint:?}");
        }
    }
}

fn gzip(len: usize) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![0; len]).unwrap();
    encoder.finish().unwrap().into()
}

/// A server of 10 MiB in 10 KiB, and how many bytes that takes.
async fn bombing(hint: Hint) -> (Server, usize) {
    let bomb = gzip(10 * MIB);
    let len = bomb.len();
    let gzip = &[(CONTENT_ENCODING, "gzip")];
    let server = serving_with(200, gzip, vec![Step::Data(bomb)], hint).await;
    (server, len)
}

#[tokio::test]
async fn a_limit_above_the_decoder_stops_a_gzip_bomb() {
    for hint in VARIANTS {
        let (server, encoded) = bombing(hint.clone()).await;
        let [(_, h1), (_, h2), decoding @ ..] = clients();
        let decoded = |client| any_client(DecompressionLayer::new().layer(client));
        let tower_http = [
            ("tower-http, HTTP/1.1", decoded(h1)),
            ("tower-http, HTTP/2", decoded(h2)),
        ];
        for (name, client) in decoding.into_iter().chain(tower_http) {
            let case = format!("{name}, {hint:?}");
            let (client, pulled, largest) = metered(client);
            let (seen, error) = fetch(limited(client, MIB), get(&server, "/")).await;
            assert_breach(error, MIB as u64, None, &case);
            assert!(
                seen.body.len() > encoded && seen.body.len() <= MIB,
                "{case}"
            );
            let (pulled, largest) = (
                pulled.load(Ordering::SeqCst),
                largest.load(Ordering::SeqCst),
            );
            assert!(pulled <= MIB as u64 + largest, "{case}: {pulled}");
            assert!(largest <= 64 * KIB as u64, "{case}: {largest}");
        }
    }
}

#[tokio::test]
async fn a_limit_below_the_decoder_counts_encoded_bytes() {
    for hint in VARIANTS {
        let (server, encoded) = bombing(hint.clone()).await;
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let case = format!("{version:?}, {hint:?}");
            let client = |limit: usize| {
                ServiceBuilder::new()
                    .layer(DecompressionLayer::new())
                    .layer(ResponseSizeLimitLayer::client(limit as u64))
                    .service(hyper_client::<AnyBody>(version))
            };
            let (seen, error) = fetch(client(encoded), get(&server, "/")).await;
            assert!(error.is_none(), "{case}: {error:?}");
            assert_eq!(seen.body.len(), 10 * MIB, "{case}");

            let (_, error) = fetch(client(encoded - 1), get(&server, "/")).await;
            let error = error.expect(&case);
            let too_large = TooLarge::find(&*error).expect(&case);
            let declared = matches!(hint, Hint::Declared).then_some(encoded as u64);
            assert_eq!(too_large.declared(), declared, "{case}");
        }
    }
}

#[tokio::test]
async fn limits_below_and_above_a_decoder_both_apply() {
    let (server, encoded) = bombing(Hint::Declared).await;
    for (below, above, label) in [
        (20 * KIB, 64 * KIB, Some("decoded")),
        (encoded - 1, 20 * MIB, Some("encoded")),
        (encoded, 10 * MIB, None),
    ] {
        let client = ServiceBuilder::new()
            .layer(ResponseSizeLimitLayer::client(above as u64).label("decoded"))
            .layer(DecompressionLayer::new())
            .layer(ResponseSizeLimitLayer::client(below as u64).label("encoded"))
            .service(hyper_client::<AnyBody>(Version::HTTP_11));
        let (_, error) = fetch(client, get(&server, "/")).await;
        let too_large = error.as_ref().map(|error| error.too_large().unwrap());
        assert_eq!(too_large.and_then(TooLarge::label), label);
    }
}

/// A reqwest response whose body is limited on its way through the layer.
async fn reqwest_limited(server: &Server, limit: usize) -> reqwest::Response {
    let client = ReqwestService(reqwest_client(Version::HTTP_11));
    let client = ResponseSizeLimitLayer::client(limit as u64).layer(client);
    let response = guarded(client.oneshot(get(server, "/"))).await.unwrap();
    reqwest::Response::from(response.map(reqwest::Body::wrap))
}

#[tokio::test]
async fn reqwest_reads_json_under_the_limit_and_fails_typed_above_it() {
    const JSON: &str = r#"{"items":[1,2,3]}"#;
    for hint in VARIANTS {
        let steps = vec![Step::Data(Bytes::from_static(JSON.as_bytes()))];
        let json = &[(CONTENT_TYPE, "application/json")];
        let server = serving_with(200, json, steps, hint.clone()).await;

        let response = reqwest_limited(&server, JSON.len()).await;
        let value = guarded(response.json::<serde_json::Value>()).await.unwrap();
        assert_eq!(value["items"][2], 3, "{hint:?}");

        let limit = JSON.len() - 1;
        let response = reqwest_limited(&server, limit).await;
        assert_eq!(response.status(), 200, "{hint:?}");
        let error = guarded(response.json::<serde_json::Value>())
            .await
            .unwrap_err();
        let too_large = TooLarge::find(&error).expect("a typed error");
        assert_eq!(too_large.limit(), limit as u64, "{hint:?}");
        let error = guarded(reqwest_limited(&server, limit).await.bytes())
            .await
            .unwrap_err();
        assert!(TooLarge::find(&error).is_some(), "{hint:?}");
        let error = guarded(reqwest_limited(&server, limit).await.text())
            .await
            .unwrap_err();
        assert!(TooLarge::find(&error).is_some(), "{hint:?}");
    }
}

/// A response through a truncating client, and how its body ended.
async fn truncated(client: AnyClient, limit: usize, server: &Server) -> (Seen, Truncation) {
    let client = TruncateLayer::new(limit as u64).layer(client);
    let response = guarded(client.oneshot(get(server, "/"))).await.unwrap();
    let handle = response.extensions().get::<TruncationHandle>().cloned();
    let (seen, error) = Seen::of(response).await;
    assert!(error.is_none(), "{error:?}");
    (seen, handle.expect("an error page").get().expect("an end"))
}

const PAGE: &[(HeaderName, &str)] = &[(CONTENT_TYPE, "text/html"), (ETAG, "\"whole\"")];

#[tokio::test]
async fn a_long_error_page_is_cut_to_its_prefix() {
    for hint in VARIANTS {
        let declared = matches!(hint, Hint::Declared);
        let server = serving_with(503, PAGE, frames(16 * KIB, 64), hint.clone()).await;
        for (name, client) in clients() {
            for limit in [64 * KIB, 64 * KIB - 1, 0] {
                let case = format!("{name}, {hint:?}, {limit}");
                let (seen, end) = truncated(client.clone(), limit, &server).await;
                assert_eq!(seen.status, 503, "{case}");
                assert_eq!(seen.body.len(), limit, "{case}");
                assert!(end != Truncation::Complete, "{case}");
                assert!(!declared || end == Truncation::Truncated, "{case}");
                assert_eq!(seen.header(ETAG).is_none(), declared, "{case}");
                assert_eq!(seen.header(CONTENT_LENGTH), None, "{case}");
            }
            let (seen, end) = truncated(client, MIB, &server).await;
            assert_eq!(seen.body.len(), MIB, "{name}, {hint:?}");
            assert!(end != Truncation::Truncated, "{name}, {hint:?}");
            assert_eq!(seen.header(ETAG), Some("\"whole\""), "{name}, {hint:?}");
        }
    }
}

#[tokio::test]
async fn an_endless_error_page_is_given_up_at_the_limit() {
    for (name, client) in clients() {
        let (server, mut endless) = serving_without_end(500).await;
        let (seen, _) = truncated(client, 64 * KIB, &server).await;
        assert_eq!(seen.body.len(), 64 * KIB, "{name}");
        let sent = endless.recv().await.unwrap().until_dropped().await;
        assert!(sent <= 64 * KIB as u64 + BUFFERS, "{name}: {sent}");
    }
}

#[tokio::test]
async fn a_stalled_error_page_does_not_hold_up_its_prefix() {
    let declares_more = Hint::Fixed(SizeHint::with_exact(100));
    for (hint, end) in [
        (declares_more, Truncation::Truncated),
        (Hint::Undeclared, Truncation::Unknown),
    ] {
        let steps = vec![data(4), data(6), Step::Stall];
        let server = serving_with(500, PAGE, steps, hint.clone()).await;
        for (name, client) in clients() {
            let seen = truncated(client, 10, &server).await;
            assert_eq!(seen.0.body, b"xxxxxxxxxx", "{name}, {hint:?}");
            assert_eq!(seen.1, end, "{name}, {hint:?}");
        }
    }
}

#[tokio::test]
async fn what_is_not_a_diagnostic_is_not_cut() {
    const JSON: &[(HeaderName, &str)] = &[(CONTENT_TYPE, "application/problem+json")];
    for hint in VARIANTS {
        for (status, headers) in [(200, PAGE), (500, JSON)] {
            let server = serving_with(status, headers, frames(KIB, 2), hint.clone()).await;
            for (name, client) in clients() {
                let client = TruncateLayer::new(10).layer(client);
                let (seen, error) = fetch(client, get(&server, "/")).await;
                assert!(error.is_none(), "{name}, {hint:?}");
                assert_eq!(seen.body.len(), 2 * KIB, "{name}, {hint:?}, {status}");
            }
        }
    }
}

/// A server that reads each request to its end and answers with its length.
async fn measuring() -> Server {
    Server::start(tower::service_fn(|request: Request<Incoming>| async {
        let body = request.into_body().collect().await?.to_bytes();
        Ok::<_, hyper::Error>(Response::new(Full::from(body.len().to_string())))
    }))
    .await
}

async fn upload<S>(client: S, request: Request<AnyBody>) -> Result<Vec<u8>, Error>
where
    S: Service<Request<AnyBody>, Response = Response<AnyBody>, Error = Error>,
{
    let response = guarded(client.oneshot(request)).await?;
    Ok(Seen::of(response).await.0.body)
}

/// Clients that limit their requests to 10 bytes.
fn uploading() -> impl Iterator<
    Item = (
        &'static str,
        impl Service<Request<AnyBody>, Response = Response<AnyBody>, Error = Error> + Clone,
    ),
> {
    clients().into_iter().map(|(name, client)| {
        let client =
            tower::util::MapRequest::new(client, |request: Request<_>| request.map(any_body));
        (name, RequestSizeLimitLayer::client(10).layer(client))
    })
}

#[tokio::test]
async fn a_request_within_the_limit_is_sent() {
    let server = measuring().await;
    for (name, client) in uploading() {
        for hint in VARIANTS {
            let answer = upload(client.clone(), post(&server, 10, hint.clone())).await;
            assert_eq!(answer.unwrap(), b"10", "{name}, {hint:?}");
        }
    }
}

#[tokio::test]
async fn a_request_that_declares_too_much_never_leaves() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    for (name, client) in uploading() {
        let body = any_body(Script::new([data(11)], Hint::Declared));
        let request = Request::post(&uri).body(body).unwrap();
        let error = upload(client, request).await.unwrap_err();
        let too_large = error.too_large().expect(name);
        assert_eq!(too_large.declared(), Some(11), "{name}");
        assert_eq!(too_large.read(), 0, "{name}");
        assert_eq!(too_large.subject(), Subject::Request, "{name}");
        let contacted = listener.accept().map(|(_, peer)| peer);
        assert_eq!(
            contacted.unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock,
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_request_that_turns_out_too_large_fails_typed() {
    let server = measuring().await;
    for (name, client) in uploading().filter(|(name, _)| name.ends_with("HTTP/1.1")) {
        let error = upload(client, post(&server, 11, Hint::Undeclared))
            .await
            .unwrap_err();
        let too_large = error.too_large().expect(name);
        assert_eq!((too_large.limit(), too_large.read()), (10, 11), "{name}");
        assert_eq!(too_large.declared(), None, "{name}");
        assert_eq!(too_large.subject(), Subject::Request, "{name}");
    }
}

/// A server that says this, whatever it is asked, and hangs up.
async fn rude(words: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(words.as_bytes()).await;
        }
    });
    uri
}

#[tokio::test]
async fn a_server_that_hangs_up_is_not_too_large() {
    for words in [
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nxxxxx",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nxxxxx\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot hex\r\n",
    ] {
        let uri = rude(words).await;
        for (name, client) in clients()
            .into_iter()
            .filter(|(name, _)| name.ends_with("HTTP/1.1"))
        {
            let request = Request::get(&uri)
                .body(any_body(Full::<Bytes>::default()))
                .unwrap();
            let error = fetch(limited(client, 10), request).await.1.expect(name);
            assert!(matches!(error, Error::Body(_)), "{name}: {error:?}");
            assert!(TooLarge::find(&error).is_none(), "{name}");
        }
    }
    let uri = rude("").await;
    for (name, client) in uploading().filter(|(name, _)| name.ends_with("HTTP/1.1")) {
        for hint in VARIANTS {
            let body = any_body(Script::new([data(10)], hint));
            let request = Request::post(&uri).body(body).unwrap();
            let error = upload(client.clone(), request).await.unwrap_err();
            assert!(matches!(error, Error::Service(_)), "{name}: {error:?}");
            assert!(TooLarge::find(&error).is_none(), "{name}");
        }
    }
}
