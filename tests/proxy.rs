//! The reverse proxy of the example: axum in front, hyper's client behind, limits in both
//! directions.

#[path = "support/lengths.rs"]
mod lengths;
mod support;

#[allow(dead_code)]
#[path = "../examples/reverse_proxy.rs"]
mod reverse_proxy;

use bytes::Bytes;
use http::{
    Method, Request, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH},
};
use http_body_util::Channel;
use hyper::body::Incoming;
use lengths::{answer, path, upload};
use reverse_proxy::{REQUEST_LIMIT, RESPONSE_LIMIT, proxy};
use support::{
    Hint, VARIANTS,
    net::{
        AnyClient, BoxError, Raw, Seen, Server, VERSIONS, any_body, clients, exchange, get,
        guarded, respond, without_body,
    },
};
use tokio::sync::mpsc;
use tower::{ServiceExt, service_fn};

/// What the upstream has to say of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Called,
    /// All of the request came, in its own eyes.
    Whole,
    Broken,
}

/// The proxy, its upstream, and what that sees.
struct Setup {
    proxy: Server,
    upstream: Server,
    events: mpsc::UnboundedReceiver<Event>,
}

impl Setup {
    async fn start() -> Self {
        let (log, events) = mpsc::unbounded_channel();
        let upstream = Server::start(service_fn(move |request: Request<Incoming>| {
            let log = log.clone();
            async move {
                log.send(Event::Called).unwrap();
                let answer = answer(request).await;
                let event = if answer.is_ok() {
                    Event::Whole
                } else {
                    Event::Broken
                };
                log.send(event).unwrap();
                answer
            }
        }))
        .await;
        let proxy = Server::start(proxy_to(&upstream)).await;
        Self {
            proxy,
            upstream,
            events,
        }
    }

    /// What the upstream saw until now.
    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    async fn event(&mut self) -> Event {
        guarded(self.events.recv()).await.unwrap()
    }
}

fn proxy_to(upstream: &Server) -> axum::Router {
    proxy(upstream.addr.to_string().parse().unwrap())
}

const CALLED_ONCE: [Event; 2] = [Event::Called, Event::Whole];

/// What a client gets, and whether it looks like all of it.
async fn fetch(client: &AnyClient, request: Request<support::net::AnyBody>) -> Seen {
    let response = guarded(client.clone().oneshot(request)).await;
    let (seen, error) = Seen::of(response.expect("a head")).await;
    Seen {
        whole: error.is_none(),
        ..seen
    }
}

const AT: usize = RESPONSE_LIMIT as usize;

#[tokio::test]
async fn a_response_comes_whole_or_breaks_off_or_is_a_502() {
    let mut setup = Setup::start().await;
    for (name, client) in clients() {
        for (len, hint, status, whole) in [
            (AT, Hint::Declared, 200, true),
            (AT, Hint::Undeclared, 200, true),
            (AT + 1, Hint::Declared, 502, true),
            (AT + 1, Hint::Undeclared, 200, false),
        ] {
            let case = format!("{name}, {len}, {hint:?}");
            let seen = fetch(&client, get(&setup.proxy, &path(len, &hint))).await;
            assert_eq!(
                (seen.status.as_u16(), seen.whole),
                (status, whole),
                "{case}"
            );
            assert_eq!(seen.body.len() == len, len == AT, "{case}");
            // A response that breaks off is no reason to ask again.
            assert_eq!(setup.events(), CALLED_ONCE, "{case}");
        }
    }
}

#[tokio::test]
async fn http_1_0_gets_all_of_a_response_or_a_502() {
    let mut setup = Setup::start().await;
    for (len, status) in [(AT, 200), (AT + 1, 502)] {
        for hint in VARIANTS {
            let case = format!("{len}, {hint:?}");
            let request = format!("GET {} HTTP/1.0\r\n\r\n", path(len, &hint));
            let seen = exchange(&setup.proxy, &Method::GET, &request).await;
            let seen = seen.expect(&case);
            assert_eq!((seen.status.as_u16(), seen.whole), (status, true), "{case}");
            assert_eq!(seen.body.len() == AT, status == 200, "{case}");
            assert_eq!(setup.events(), CALLED_ONCE, "{case}");
        }
    }
}

#[tokio::test]
async fn a_head_request_keeps_the_length_of_the_upstream() {
    const HUGE: u64 = 10 * 1024 * 1024 * 1024;
    let upstream = Server::start(respond(|request| without_body(request, 200, HUGE))).await;
    let proxy = Server::start(proxy_to(&upstream)).await;
    for version in VERSIONS {
        let seen = support::net::ask(&proxy, version, &Method::HEAD).await;
        let seen = seen.expect("a head");
        assert_eq!(seen.status, 200, "{version:?}");
        let length = HUGE.to_string();
        assert_eq!(seen.header(CONTENT_LENGTH), Some(&*length), "{version:?}");
    }
}

const MOST: usize = REQUEST_LIMIT as usize;

#[tokio::test]
async fn a_request_within_the_limit_reaches_the_upstream_whole() {
    let mut setup = Setup::start().await;
    for (name, client) in clients() {
        for hint in VARIANTS {
            let case = format!("{name}, {hint:?}");
            let request = upload(&setup.proxy, "/0/declared", MOST, &hint);
            let seen = fetch(&client, request).await;
            assert_eq!(seen.status, 200, "{case}");
            assert_eq!(seen.header("x-read"), Some(&*MOST.to_string()), "{case}");
            assert_eq!(setup.events(), CALLED_ONCE, "{case}");
        }
    }
    assert_eq!(setup.upstream.connections(), 1);
}

#[tokio::test]
async fn a_request_that_declares_too_much_never_reaches_the_upstream() {
    let mut setup = Setup::start().await;
    for (name, client) in clients() {
        let request = upload(&setup.proxy, "/0/declared", MOST + 1, &Hint::Declared);
        let seen = fetch(&client, request).await;
        assert_eq!((seen.status.as_u16(), seen.whole), (413, true), "{name}");
        assert_eq!(setup.events(), [], "{name}");
    }
    assert_eq!(setup.upstream.connections(), 0);
}

#[tokio::test]
async fn a_request_that_turns_out_too_large_breaks_off_for_the_upstream() {
    let mut setup = Setup::start().await;
    for (name, client) in clients() {
        let (mut sender, body) = Channel::<Bytes, BoxError>::new(1);
        let request = Request::post(setup.proxy.uri("/0/declared"));
        let request = request.body(any_body(body)).unwrap();
        let sending = async {
            let first = vec![b'x'; MOST].into();
            guarded(sender.send_data(first)).await.unwrap();
            assert_eq!(setup.event().await, Event::Called, "{name}");
            let last = Bytes::from_static(b"x");
            guarded(sender.send_data(last)).await.unwrap();
            drop(sender);
        };
        let (seen, ()) = tokio::join!(fetch(&client, request), sending);
        assert_eq!((seen.status.as_u16(), seen.whole), (413, true), "{name}");
        assert_eq!(setup.event().await, Event::Broken, "{name}");
        assert_eq!(setup.events(), [], "{name}");
    }
}

#[tokio::test]
async fn an_http_1_0_client_that_sends_too_much_is_refused() {
    let mut setup = Setup::start().await;
    for (len, status) in [(MOST, 200), (MOST + 1, 413)] {
        let body = "x".repeat(len);
        let request = format!("POST /0/declared HTTP/1.0\r\ncontent-length: {len}\r\n\r\n{body}");
        let seen = exchange(&setup.proxy, &Method::POST, &request)
            .await
            .unwrap();
        assert_eq!((seen.status.as_u16(), seen.whole), (status, true), "{len}");
        let events: &[_] = if status == 200 { &CALLED_ONCE } else { &[] };
        assert_eq!(setup.events(), events, "{len}");
    }
}

/// Whatever can be answered whole leaves the connection as it was.
#[tokio::test]
async fn the_connection_of_a_client_outlives_refusals_in_either_direction() {
    let mut setup = Setup::start().await;
    let mut raw = Raw::connect(&setup.proxy).await;
    for (method, len, sent, status) in [
        (Method::GET, AT, 0, 200),
        (Method::GET, AT + 1, 0, 502),
        (Method::POST, 10, MOST, 200),
        (Method::POST, 10, MOST + 1, 413),
        (Method::GET, 10, 0, 200),
        (Method::POST, AT + 1, MOST, 502),
        (Method::GET, 10, 0, 200),
    ] {
        let case = format!("{method}, {len}, {sent}");
        let (path, body) = (path(len, &Hint::Declared), "x".repeat(sent));
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {sent}");
        raw.send(format!("{head}\r\n\r\n{body}")).await;
        let seen = raw.receive(&method).await.expect(&case);
        assert_eq!((seen.status.as_u16(), seen.whole), (status, true), "{case}");
        assert_eq!(seen.header(CONNECTION), None, "{case}");
        let events: &[_] = if status == 413 { &[] } else { &CALLED_ONCE };
        assert_eq!(setup.events(), events, "{case}");
    }
    assert_eq!(setup.proxy.connections(), 1);
    // Each response that was given up took one with it.
    assert_eq!(setup.upstream.connections(), 3);
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_a_502() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    let proxy = Server::start(proxy(authority.parse().unwrap())).await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let seen = support::net::ask(&proxy, version, &Method::GET).await;
        assert_eq!(seen.unwrap().status, StatusCode::BAD_GATEWAY);
    }
}
