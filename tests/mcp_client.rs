//! An MCP client on the layers: the modules of the example `mcp_client`, over TCP and a Unix socket.

#![cfg(feature = "records")]

#[path = "../examples/mcp_client/backend.rs"]
mod backend;
#[path = "../examples/mcp_client/drive.rs"]
mod drive;
#[path = "../examples/mcp_client/events.rs"]
mod events;
#[path = "../examples/mcp_client/server.rs"]
mod server;
#[path = "../examples/mcp_client/stack.rs"]
mod stack;

use std::{collections::HashMap, convert::Infallible, error::Error, sync::Arc, time::Duration};

use axum::body::Body;
use drive::{call, connect, failure, outcome, probe, size};
use futures_util::{StreamExt, stream};
use http::{
    HeaderValue,
    header::{CONTENT_ENCODING, WWW_AUTHENTICATE},
};
use rmcp::{
    model::{
        CallToolResult, ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorData,
        InitializedNotification, PingRequest, RequestId, ServerJsonRpcMessage,
    },
    service::{ClientInitializeError, ServiceError},
    transport::streamable_http_client::{
        StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    },
};
use serde_json::json;
use server::{Answer, Asked, Framing, Over, Server};
use stack::Limits;
use tokio::{sync::mpsc, time::timeout};
use tower_body_limit::{Subject, TooLarge};

type Failure = StreamableHttpError<Infallible>;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

const HANDSHAKE: [&str; 2] = ["POST initialize", "POST notifications/initialized"];
const PROBED: [&str; 3] = [
    "POST server/discover",
    "POST initialize",
    "POST notifications/initialized",
];

const LOG: &str = r#"data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"..."}}"#;

fn small() -> Limits {
    Limits {
        json: 4096,
        page: 256,
        event: 1024,
        // Nothing that is tested with these is to end by time.
        patience: Duration::from_secs(3600),
    }
}

/// Turns a hang into a failure.
async fn guarded<F: Future>(future: F) -> F::Output {
    let guard = timeout(Duration::from_secs(60), future);
    guard.await.expect("it takes too long")
}

/// What one call comes to that is answered by `script`, and what else the server was asked.
async fn one_call(
    over: Over,
    limits: Limits,
    script: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
) -> (Result<CallToolResult, ServiceError>, Vec<String>) {
    let script = move |asked: &Asked| {
        let is_handshake = HANDSHAKE.contains(&&*asked.what);
        (!is_handshake).then(|| script(asked))
    };
    guarded(async {
        let server = Server::start(over, script).await.unwrap();
        let session = connect(&server, limits).await.unwrap();
        let result = call(&session).await;
        session.cancel().await.unwrap();
        let seen = server.seen();
        assert_eq!(seen[..2], HANDSHAKE);
        (result, seen[2..].to_vec())
    })
    .await
}

/// How much of [`server::result`] is not the text.
fn around() -> usize {
    server::result(&json!(1), 0).len()
}

fn too_large<'a>(error: &'a (dyn Error + 'static)) -> &'a TooLarge {
    TooLarge::find(error).unwrap_or_else(|| panic!("not the limit: {error}"))
}

fn rpc_error(result: Result<CallToolResult, ServiceError>) -> ErrorData {
    match result {
        Err(ServiceError::McpError(error)) => error,
        other => panic!("not an error of the protocol: {other:?}"),
    }
}

/// A message to a backend, without rmcp around it.
async fn post(
    server: &Server,
    limits: Limits,
    message: ClientJsonRpcMessage,
) -> Result<StreamableHttpPostResponse, Failure> {
    let client = server.client(limits);
    let uri = Arc::from(server.uri());
    let response = client.post_message(uri, message, None, None, HashMap::new());
    guarded(response).await
}

fn ping() -> ClientJsonRpcMessage {
    let ping = ClientRequest::PingRequest(PingRequest::default());
    ClientJsonRpcMessage::request(ping, RequestId::Number(7))
}

fn notification() -> ClientJsonRpcMessage {
    let initialized = InitializedNotification::default();
    ClientJsonRpcMessage::notification(ClientNotification::InitializedNotification(initialized))
}

#[tokio::test]
async fn json_up_to_its_limit_is_taken_whatever_the_status() {
    for over in Over::ALL {
        for framing in Framing::ALL {
            for status in [200, 400] {
                for sent in [4095, 4096, 4097] {
                    let (result, seen) = one_call(over, small(), move |asked| {
                        let text = match status {
                            200 => server::result(&asked.id, sent),
                            _ => server::error(&asked.id, sent),
                        };
                        assert_eq!(text.len(), sent);
                        server::json(status, framing.body(text))
                    })
                    .await;
                    assert_eq!(seen, ["POST tools/call"]);
                    match (sent, status) {
                        (4097, _) => {
                            let error = result.unwrap_err();
                            let error = too_large(&error);
                            let declared = (framing == Framing::Fixed).then_some(4097);
                            assert_eq!((error.limit(), error.declared()), (4096, declared));
                            assert_eq!(error.subject(), Subject::Response);
                        }
                        (_, 200) => assert_eq!(size(&result.unwrap()), sent - around()),
                        _ => assert_eq!(rpc_error(result).code.0, -32001),
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn json_of_64_mib_is_taken_by_default() {
    for framing in Framing::ALL {
        for sent in [64 * MIB, 64 * MIB + 1] {
            let (result, seen) = one_call(Over::Tcp, Limits::default(), move |asked| {
                server::json(200, framing.body(server::result(&asked.id, sent)))
            })
            .await;
            assert_eq!(seen, ["POST tools/call"]);
            let expected = match sent - 64 * MIB {
                0 => format!("a result of {} bytes", sent - around()),
                _ => format!("too large, {}", 64 * MIB),
            };
            assert_eq!(outcome(&result), expected);
        }
    }
}

#[tokio::test]
async fn events_of_16_mib_and_pages_of_64_kib_are_taken_by_default() {
    for framing in Framing::ALL {
        for sent in [16 * MIB, 16 * MIB + 1] {
            let (result, _) = one_call(Over::Tcp, Limits::default(), move |asked| {
                let data = server::result(&asked.id, sent - "data: ".len());
                server::events(framing.body(format!("data: {data}\n\n")))
            })
            .await;
            let expected = match sent - 16 * MIB {
                0 => format!("a result of {} bytes", sent - "data: ".len() - around()),
                _ => format!("error -32603: response_too_large, {}", 16 * MIB),
            };
            assert_eq!(outcome(&result), expected);
        }
        for sent in [64 * KIB - 1, 64 * KIB + 1] {
            let (result, _) = one_call(Over::Tcp, Limits::default(), move |_| {
                server::page(502, framing.body("?".repeat(sent)))
            })
            .await;
            let error = result.unwrap_err().to_string();
            assert_eq!(error.matches('?').count(), sent.min(64 * KIB));
            let says_so = error.contains("the first 65536 bytes of it");
            assert_eq!(says_so, sent > 64 * KIB);
        }
    }
}

#[tokio::test]
async fn an_image_of_17_mib_passes() {
    for over in Over::ALL {
        let (result, _) = one_call(over, Limits::default(), |asked| {
            let data = "QUJD".repeat(17 * MIB / 4);
            let image = json!({"type": "image", "mimeType": "image/png", "data": data});
            let result = json!({"content": [image]});
            let answer = json!({"jsonrpc": "2.0", "id": asked.id, "result": result});
            server::json(200, Body::from(answer.to_string()))
        })
        .await;
        let result = result.unwrap();
        let image = result.content[0].as_image().unwrap();
        assert!(image.data == "QUJD".repeat(17 * MIB / 4));
    }
}

#[tokio::test]
async fn json_that_is_too_large_does_not_lead_to_the_legacy_handshake() {
    for over in Over::ALL {
        for framing in Framing::ALL {
            let server = Server::start(over, move |asked| {
                Some(server::json(
                    400,
                    framing.body(server::error(&asked.id, 4097)),
                ))
            });
            let server = server.await.unwrap();
            let error = guarded(probe(&server, small())).await.unwrap_err();
            let ClientInitializeError::TransportError { error, .. } = error else {
                panic!("not the transport: {error}");
            };
            assert_eq!(too_large(&error).limit(), 4096);
            assert_eq!(server.seen(), ["POST server/discover"]);
        }
    }
}

#[tokio::test]
async fn nor_does_an_event_that_is_too_large() {
    for over in Over::ALL {
        for framing in Framing::ALL {
            let server = Server::start(over, move |_| {
                let events = format!("retry: 0\nid: 1\n\ndata: {}\n\n", "x".repeat(2000));
                Some(server::events(framing.body(events)))
            });
            let server = server.await.unwrap();
            let error = guarded(probe(&server, small())).await.unwrap_err();
            let ClientInitializeError::TransportError { error, .. } = error else {
                panic!("not the transport: {error}");
            };
            let error = too_large(&error);
            assert_eq!((error.limit(), error.subject()), (1024, Subject::Record));
            assert_eq!(server.seen(), ["POST server/discover"]);
        }
    }
}

#[tokio::test]
async fn an_error_within_the_limit_does() {
    for is_event in [false, true] {
        for framing in Framing::ALL {
            let server = Server::start(Over::Tcp, move |asked| {
                (asked.what == PROBED[0]).then(|| {
                    if is_event {
                        let error = server::error(&asked.id, 1024 - "data: ".len());
                        let text = format!("{LOG}\n\ndata: {error}\n\n");
                        return server::events(framing.body(text));
                    }
                    // As middleware says it that does not know the id.
                    let error = server::error(&json!("server-error"), 4096);
                    server::json(400, framing.body(error))
                })
            });
            let server = server.await.unwrap();
            // rmcp gives a probe up after ten seconds, and that is not what is tested.
            let session = timeout(Duration::from_secs(5), probe(&server, small())).await;
            let session = session.expect("within five seconds").unwrap();
            session.cancel().await.unwrap();
            assert_eq!(server.seen(), PROBED);
        }
    }
}

#[tokio::test]
async fn a_json_limit_of_zero_takes_only_empty_bodies() {
    let limits = Limits { json: 0, ..small() };
    for over in Over::ALL {
        for framing in Framing::ALL {
            for text in ["", "0"] {
                let answer = move |_: &Asked| Some(server::json(200, framing.body(text.into())));
                let server = Server::start(over, answer).await.unwrap();
                for message in [notification(), ping()] {
                    let is_notification = matches!(message, ClientJsonRpcMessage::Notification(_));
                    match post(&server, limits.clone(), message).await {
                        Ok(StreamableHttpPostResponse::Accepted) => {
                            assert!(is_notification && text.is_empty());
                        }
                        Err(StreamableHttpError::UnexpectedServerResponse(what)) => {
                            assert!(!is_notification && text.is_empty(), "{what}");
                        }
                        Err(error) => {
                            assert_eq!((too_large(&error).limit(), text), (0, "0"));
                        }
                        Ok(other) => panic!("{other:?}"),
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn of_an_error_page_there_is_a_prefix_that_says_it_is_one() {
    for over in Over::ALL {
        for framing in Framing::ALL {
            for sent in [255, 256, 257, 100_000] {
                let (result, seen) = one_call(over, small(), move |_| {
                    server::page(502, framing.body("?".repeat(sent)))
                })
                .await;
                let error = result.unwrap_err().to_string();
                assert_eq!(seen, ["POST tools/call"]);
                assert_eq!(error.matches('?').count(), sent.min(256), "{error}");
                let says_so = error.contains("the first 256 bytes of it");
                assert_eq!(says_so, error.contains("the first"), "{error}");
                // Without a declared length nobody knows whether there was more.
                let is_whole = sent < 256 || (sent == 256 && framing == Framing::Fixed);
                assert_eq!(says_so, !is_whole, "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_prefix_does_not_cut_a_character() {
    let (result, _) = one_call(Over::Tcp, small(), |_| {
        server::page(502, Body::from(format!("?{}", "ж".repeat(200))))
    })
    .await;
    let error = result.unwrap_err().to_string();
    assert!(error.contains("the first 255 bytes of it"), "{error}");
    assert!(error.ends_with(&"ж".repeat(127)), "{error}");
}

#[tokio::test]
async fn so_does_what_there_is_of_one_that_stalls() {
    let limits = Limits {
        patience: Duration::from_millis(50),
        ..small()
    };
    // The layer that cuts pages leaves the second alone.
    for content_type in ["text/plain", "application/problem+json"] {
        for over in Over::ALL {
            let (result, _) = one_call(over, limits.clone(), move |_| {
                let body = server::stalling("?".repeat(100));
                server::answer(502, content_type, body)
            })
            .await;
            let error = result.unwrap_err().to_string();
            assert!(error.contains("the first 100 bytes of it: ???"), "{error}");

            let (result, _) = one_call(over, small(), move |_| {
                server::answer(502, content_type, Framing::Chunked.body("?".repeat(100)))
            })
            .await;
            let error = result.unwrap_err().to_string();
            assert!(error.contains("502 Bad Gateway: ???"), "{error}");
        }
    }
}

#[tokio::test]
async fn what_is_json_and_no_answer_is_a_page() {
    for framing in Framing::ALL {
        let (result, _) = one_call(Over::Tcp, small(), move |_| {
            server::json(500, framing.body(format!("[{}0]", "0,".repeat(1000))))
        })
        .await;
        let error = result.unwrap_err().to_string();
        assert!(error.contains("the first 256 bytes of it: [0,0"), "{error}");
    }
}

#[tokio::test]
async fn a_page_limit_of_zero_leaves_the_text_out() {
    let limits = Limits { page: 0, ..small() };
    for over in Over::ALL {
        for framing in Framing::ALL {
            let (result, _) = one_call(over, limits.clone(), move |_| {
                server::page(502, framing.body("?".repeat(1000)))
            })
            .await;
            let error = result.unwrap_err().to_string();
            assert!(error.ends_with("HTTP 502 Bad Gateway"), "{error}");
        }
        // Nor is it waited for.
        let (result, _) = one_call(over, limits.clone(), |_| {
            server::page(502, server::stalling(String::new()))
        })
        .await;
        let error = result.unwrap_err().to_string();
        assert!(error.ends_with("HTTP 502 Bad Gateway"), "{error}");
    }
}

/// A page that is larger than what is read of it, or has no end.
async fn is_known_for_legacy(
    over: Over,
    limits: Limits,
    page: impl Fn() -> Body + Send + Sync + 'static,
) {
    let server = Server::start(over, move |asked| {
        (asked.what == PROBED[0]).then(|| server::page(404, page()))
    });
    let server = server.await.unwrap();
    // rmcp gives a probe up after ten seconds, and that is not what is tested.
    let session = timeout(Duration::from_secs(2), probe(&server, limits)).await;
    let session = session.expect("within two seconds");
    let session = session.unwrap_or_else(|error| panic!("{}", failure(&error)));
    assert_eq!(size(&call(&session).await.unwrap()), 200 - around());
    session.cancel().await.unwrap();
    assert_eq!(server.seen()[..3], PROBED);
}

#[tokio::test]
async fn a_page_of_any_size_leads_to_the_legacy_handshake() {
    let by_size = Limits {
        patience: Duration::from_secs(3600),
        ..Limits::default()
    };
    let by_time = Limits {
        patience: Duration::from_millis(50),
        ..Limits::default()
    };
    for over in Over::ALL {
        for framing in Framing::ALL {
            let page = move || framing.body("?".repeat(64 * KIB + 1));
            is_known_for_legacy(over, by_size.clone(), page).await;
        }
        is_known_for_legacy(over, by_size.clone(), || server::endless("?")).await;
        let stalling = || server::stalling("?".repeat(64 * KIB));
        is_known_for_legacy(over, by_size.clone(), stalling).await;
        let stalling = || server::stalling("?".repeat(64 * KIB - 1));
        is_known_for_legacy(over, by_time.clone(), stalling).await;
    }
}

#[tokio::test]
async fn events_up_to_their_limit_pass() {
    for over in Over::ALL {
        for framing in Framing::ALL {
            for sent in [1023, 1024] {
                let (result, seen) = one_call(over, small(), move |asked| {
                    let data = server::result(&asked.id, sent - "data: ".len());
                    server::events(framing.body(format!("data: {data}\n\n")))
                })
                .await;
                assert_eq!(size(&result.unwrap()), sent - "data: ".len() - around());
                assert_eq!(seen, ["POST tools/call"]);
            }
        }
    }
}

#[tokio::test]
async fn an_event_that_is_too_large_is_an_error_for_the_call_and_the_end_of_the_stream() {
    for over in Over::ALL {
        for framing in Framing::ALL {
            // With an id rmcp asks for the rest of the stream; without a delay if the server says so.
            for start in ["", "retry: 0\nid: 1\n\n"] {
                let (result, seen) = one_call(over, small(), move |asked| {
                    let data = server::result(&asked.id, 1025 - "data: ".len());
                    server::events(framing.body(format!("{start}data: {data}\n\n")))
                })
                .await;
                let error = rpc_error(result);
                assert_eq!(error.code.0, -32603);
                let data = json!({
                    "reason": "response_too_large",
                    "limit_bytes": 1024,
                    "actual_bytes": 1025,
                });
                assert_eq!(error.data, Some(data));
                assert_eq!(seen, ["POST tools/call"]);
            }
        }
    }
}

#[tokio::test]
async fn so_is_one_that_never_ends_and_calls_go_on() {
    for over in Over::ALL {
        let (gone, mut is_gone) = mpsc::unbounded_channel();
        let server = Server::start(over, move |asked| {
            let is_first = asked.what == "POST tools/call" && asked.id == 1;
            is_first.then(|| {
                let endless = server::endless("data: ?");
                server::events(server::reporting(endless, gone.clone()))
            })
        });
        let server = server.await.unwrap();
        guarded(async {
            let session = connect(&server, small()).await.unwrap();
            assert_eq!(rpc_error(call(&session).await).code.0, -32603);
            is_gone.recv().await.expect("the rest is given up");
            assert_eq!(size(&call(&session).await.unwrap()), 200 - around());
            session.cancel().await.unwrap();
        })
        .await;
        let calls = ["POST tools/call"; 2];
        assert_eq!(server.seen(), [&HANDSHAKE[..], &calls].concat());
    }
}

#[tokio::test]
async fn a_stream_is_not_bounded() {
    for over in Over::ALL {
        let (result, seen) = one_call(over, small(), |asked| {
            let logs = format!("{LOG}\n\n").repeat(10_000);
            let result = server::result(&asked.id, 500);
            server::events(Framing::Chunked.body(format!("{logs}data: {result}\n\n")))
        })
        .await;
        assert_eq!(size(&result.unwrap()), 500 - around());
        assert_eq!(seen, ["POST tools/call"]);
    }
}

#[tokio::test]
async fn events_before_the_one_that_is_too_large_are_not_lost() {
    for framing in Framing::ALL {
        let server = Server::start(Over::Tcp, move |_| {
            let events = format!("id: a\ndata: 1\n\ndata: {}\n\n", "x".repeat(2000));
            Some(server::events(framing.body(events)))
        });
        let server = server.await.unwrap();
        let StreamableHttpPostResponse::Sse(events, _) =
            post(&server, small(), ping()).await.unwrap()
        else {
            panic!("not a stream");
        };
        let events: Vec<_> = guarded(events.map(Result::unwrap).collect()).await;
        assert_eq!(events.len(), 2);
        assert_eq!(events[0].data.as_deref(), Some("1"));
        let last = events[1].data.as_deref().unwrap();
        let ServerJsonRpcMessage::Error(error) = serde_json::from_str(last).unwrap() else {
            panic!("not an error: {last}");
        };
        assert_eq!(error.id, Some(RequestId::Number(7)));
    }
}

#[tokio::test]
async fn a_call_that_waits_for_the_rest_of_its_stream_gets_its_error_there() {
    for over in Over::ALL {
        for framing in Framing::ALL {
            for (id, resumed) in [("event 1", "GET event 1"), ("", "GET")] {
                let (result, seen) = one_call(over, small(), move |asked| {
                    let text = match &*asked.what {
                        "POST tools/call" => format!("retry: 0\nid: {id}\n\n"),
                        _ => format!("id: event 2\ndata: {}\n\n", "x".repeat(2000)),
                    };
                    server::events(framing.body(text))
                })
                .await;
                let error = rpc_error(result);
                assert_eq!(error.code.0, -32603);
                assert_eq!(error.data.unwrap()["limit_bytes"], 1024);
                assert_eq!(seen, ["POST tools/call", resumed]);
            }
        }
    }
}

#[tokio::test]
async fn the_standing_stream_is_not_asked_for_again() {
    for over in Over::ALL {
        for start in ["", "retry: 0\n\n", "retry: 0\nid: 1\n\n"] {
            let (gone, mut is_gone) = mpsc::unbounded_channel();
            let server = Server::start(over, move |asked| {
                if !asked.what.starts_with("GET") {
                    return server::with_session(asked);
                }
                let text = format!("{start}data: {}\n\n", "x".repeat(2000));
                let body = server::reporting(server::stalling(text), gone.clone());
                Some(server::events(body))
            });
            let server = server.await.unwrap();
            guarded(async {
                let session = connect(&server, small()).await.unwrap();
                is_gone.recv().await.expect("the rest is given up");
                for _ in 0..20 {
                    call(&session).await.unwrap();
                }
                session.cancel().await.unwrap();
            })
            .await;
            let mut seen = server.seen();
            seen.retain(|what| what.starts_with("GET"));
            assert_eq!(seen, ["GET"]);
        }
    }
}

#[tokio::test]
async fn a_standing_stream_that_fails_for_another_reason_ends() {
    for over in Over::ALL {
        let server = Server::start(over, |_| {
            let start = stream::iter([Ok("data: 1\n\n")]);
            // What came before is sent while there is nothing to send.
            let end = stream::once(async {
                tokio::task::yield_now().await;
                Err("broken off")
            });
            Some(server::events(Body::from_stream(start.chain(end))))
        });
        let server = server.await.unwrap();
        let client = server.client(small());
        let uri = Arc::from(server.uri());
        let stream = client.get_stream(uri, None, None, None, HashMap::new());
        let events: Vec<_> = guarded(stream).await.unwrap().collect().await;
        // An error is what rmcp asks again at, at once.
        assert!(
            matches!(&events[..], [Ok(event)] if event.data.as_deref() == Some("1")),
            "{events:?}"
        );
    }
}

#[tokio::test]
async fn what_is_encoded_is_not_read() {
    let encoded = |mut answer: Answer| {
        let gzip = HeaderValue::from_static("gzip");
        answer.headers_mut().insert(CONTENT_ENCODING, gzip);
        answer
    };
    for over in Over::ALL {
        let (result, _) = one_call(over, small(), move |_| {
            encoded(server::events(server::endless("?")))
        })
        .await;
        let error = result.unwrap_err().to_string();
        assert!(error.contains("an encoded answer"), "{error}");

        let (result, _) = one_call(over, small(), move |_| {
            encoded(server::page(502, server::endless("?")))
        })
        .await;
        let error = result.unwrap_err().to_string();
        assert!(error.ends_with("HTTP 502 Bad Gateway"), "{error}");
    }
}

#[tokio::test]
async fn statuses_that_say_it_all_are_told_apart() {
    for over in Over::ALL {
        let statuses = [202, 204, 401, 403, 404, 405];
        for status in statuses {
            let server = Server::start(over, move |_| {
                let mut answer = server::page(status, server::endless("?"));
                if [202, 204].contains(&status) {
                    *answer.body_mut() = Body::empty();
                }
                let challenge = HeaderValue::from_static("Bearer");
                answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
                Some(answer)
            });
            let server = server.await.unwrap();
            let client = server.client(small());
            let (uri, session): (Arc<str>, _) = (Arc::from(server.uri()), Some(Arc::from("1")));
            let headers = HashMap::new();
            let posted = client.post_message(uri.clone(), ping(), session, None, headers);
            let posted = match guarded(posted).await {
                Ok(StreamableHttpPostResponse::Accepted) => "accepted",
                Err(StreamableHttpError::AuthRequired(_)) => "token",
                Err(StreamableHttpError::InsufficientScope(_)) => "scope",
                Err(StreamableHttpError::SessionExpired) => "expired",
                Err(StreamableHttpError::UnexpectedServerResponse(_)) => "page",
                other => panic!("{other:?}"),
            };
            let expected = match status {
                202 | 204 => "accepted",
                401 => "token",
                403 => "scope",
                404 => "expired",
                _ => "page",
            };
            assert_eq!(posted, expected, "{status}");

            let deleted = client.delete_session(uri.clone(), "1".into(), None, HashMap::new());
            let deleted = guarded(deleted).await;
            let got = client.get_stream(uri, None, None, None, HashMap::new());
            let got = guarded(got).await.map(|_| ());
            if status == 405 {
                let no = StreamableHttpError::ServerDoesNotSupportDeleteSession;
                assert_eq!(deleted.unwrap_err().to_string(), Failure::to_string(&no));
                let no = StreamableHttpError::ServerDoesNotSupportSse;
                assert_eq!(got.unwrap_err().to_string(), Failure::to_string(&no));
            } else {
                assert_eq!(deleted.is_ok(), status < 300, "{status}");
                assert!(got.is_err(), "{status}");
            }
        }
    }
}
