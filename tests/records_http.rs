//! Record limits over real sockets: event streams and JSON lines, on servers and clients.

#![cfg(feature = "records")]

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    http::StatusCode,
    response::sse::{Event, Sse},
    routing::{get, post},
};
use axum_extra::json_lines::JsonLines;
use eventsource_stream::Eventsource;
use futures_util::{Stream, StreamExt, stream};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tower_body_limit::{
    BodyLimitExt, RecordKind, RecordLimitLayer, RequestRecordLimitLayer, RequestSizeLimitLayer,
    Subject, TooLarge,
};

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

/// An axum handler that sends each text of the channel as an event.
fn events(
    mut texts: mpsc::UnboundedReceiver<String>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let texts = stream::poll_fn(move |cx| texts.poll_recv(cx));
    Sse::new(texts.map(|text| Ok(Event::default().id("7").data(text))))
}

fn app_of(texts: mpsc::UnboundedReceiver<String>, calls: Arc<AtomicUsize>) -> Router {
    let texts = Arc::new(std::sync::Mutex::new(Some(texts)));
    Router::new().route(
        "/",
        get(move || {
            calls.fetch_add(1, Ordering::SeqCst);
            let texts = texts.lock().unwrap().take();
            async move { texts.map(events).ok_or(StatusCode::GONE) }
        }),
    )
}

#[tokio::test]
async fn a_client_gets_each_event_before_the_next_is_made() {
    for skips in [false, true] {
        let (send, texts) = mpsc::unbounded_channel();
        let address = serve(app_of(texts, Arc::default())).await;
        let response = reqwest::get(format!("http://{address}")).await.unwrap();
        let mut body = http::Response::from(response)
            .into_body()
            .limit_records(RecordKind::Sse, 100);
        if skips {
            body = body.skip_oversized();
        }
        let mut events = body.into_data_stream().eventsource();
        for text in ["first", "second", "two\nlines"] {
            send.send(text.into()).unwrap();
            assert_eq!(events.next().await.unwrap().unwrap().data, text);
        }
        send.send("x".repeat(100_000)).unwrap();
        send.send("last".into()).unwrap();
        drop(send);
        if skips {
            // The id alone is no event to anybody.
            let last = events.next().await.unwrap().unwrap();
            assert_eq!((&*last.data, &*last.id), ("last", "7"));
            assert!(events.next().await.is_none());
        } else {
            let error = events.next().await.unwrap().unwrap_err();
            let eventsource_stream::EventStreamError::Transport(error) = error else {
                panic!("{error}")
            };
            let error = error.too_large().unwrap();
            assert_eq!((error.subject(), error.limit()), (Subject::Record, 100));
        }
    }
}

#[tokio::test]
async fn a_servers_breach_is_seen_as_a_break() {
    // The event that is too large is the second one, or the first.
    for before in ["small", ""] {
        let calls = Arc::new(AtomicUsize::new(0));
        let (send, texts) = mpsc::unbounded_channel();
        let app = app_of(texts, Arc::clone(&calls)).layer(RecordLimitLayer::sse(100));
        let address = serve(app).await;
        if !before.is_empty() {
            send.send(before.into()).unwrap();
        }
        send.send("x".repeat(100_000)).unwrap();
        // The stream does not end: only the limit can end the response.

        let mut raw = TcpStream::connect(address).await.unwrap();
        raw.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        let _ = raw.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("transfer-encoding: chunked"), "{answer}");
        assert_eq!(answer.contains("small"), !before.is_empty());
        assert!(!answer.contains("xx"), "{answer}");
        assert!(!answer.ends_with("0\r\n\r\n"), "{answer}");
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        drop(send);
    }
}

#[tokio::test]
async fn a_client_of_a_breaking_server_sees_an_error_and_does_not_repeat_the_request() {
    let calls = Arc::new(AtomicUsize::new(0));
    let (send, texts) = mpsc::unbounded_channel();
    let app = app_of(texts, Arc::clone(&calls)).layer(RecordLimitLayer::sse(100));
    let address = serve(app).await;
    send.send("x".repeat(100_000)).unwrap();
    let response = reqwest::get(format!("http://{address}")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.bytes().await.is_err());
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    drop(send);
}

#[tokio::test]
async fn a_server_that_skips_goes_on() {
    let (send, texts) = mpsc::unbounded_channel();
    let app = app_of(texts, Arc::default()).layer(RecordLimitLayer::sse(100).skip_oversized());
    let address = serve(app).await;
    for text in ["first", &"x".repeat(100_000), "last"] {
        send.send(text.into()).unwrap();
    }
    drop(send);
    let text = reqwest::get(format!("http://{address}"))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert_eq!(text, "id: 7\ndata: first\n\nid: 7\n\nid: 7\ndata: last\n\n");
}

async fn import(mut lines: JsonLines<Value>) -> (StatusCode, String) {
    let mut count = 0;
    while let Some(line) = lines.next().await {
        match line {
            Ok(_) => count += 1,
            Err(error) => {
                let status =
                    TooLarge::find(&error).map_or(StatusCode::BAD_REQUEST, TooLarge::status);
                return (status, format!("{count} and an error"));
            }
        }
    }
    (StatusCode::OK, format!("{count}"))
}

#[tokio::test]
async fn json_lines_are_bounded_one_by_one() {
    let small = "{\"a\":1}\r\n".repeat(10_000);
    let large = format!("{{\"a\":\"{}\"}}\n", "x".repeat(200));
    let invalid = "{\"a\":}\n";
    let last_without_end = format!("{small}{{\"b\":2}}");
    let app = Router::new().route("/", post(import));
    let limited = app.clone().layer(RequestRecordLimitLayer::lines(100));
    let skipping = app.layer(RequestRecordLimitLayer::lines(100).skip_oversized());
    for (app, skips) in [(limited, false), (skipping, true)] {
        let address = serve(app.layer(RequestSizeLimitLayer::server(1024 * 1024))).await;
        let upload = async |lines: String| {
            let frames: Vec<_> = lines
                .as_bytes()
                .chunks(1000)
                .map(|chunk| Ok::<_, Infallible>(chunk.to_vec()))
                .collect();
            let response = reqwest::Client::new()
                .post(format!("http://{address}"))
                .header("content-type", "application/x-ndjson")
                .body(reqwest::Body::wrap_stream(stream::iter(frames)))
                .send()
                .await
                .unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        };
        assert_eq!(
            upload(last_without_end.clone()).await,
            (200, "10001".into())
        );
        let expected = if skips {
            (200, "20000".into())
        } else {
            (413, "10000 and an error".into())
        };
        assert_eq!(upload(format!("{small}{large}{small}")).await, expected);
        assert_eq!(upload(format!("{small}{invalid}")).await.0, 400);
        // The limit on the whole is another one.
        assert_eq!(upload(small.repeat(20)).await.0, 413);
    }
}
