//! The MCP server of the example, over rmcp's transports and by hand.
#![cfg(all(feature = "json", feature = "records", feature = "tokio"))]

mod support;

#[allow(dead_code)]
#[path = "../examples/mcp_server/client.rs"]
mod client;
#[path = "../examples/mcp_server/limits.rs"]
mod limits;
#[path = "../examples/mcp_server/server.rs"]
mod server;
#[path = "../examples/mcp_server/tools.rs"]
mod tools;

use std::{
    collections::HashMap,
    env::VarError,
    net::SocketAddr,
    str,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Body, response::Response};
use bytes::Bytes;
use client::{Client, call, connect, marker, pages, transport};
use http::{
    HeaderMap, HeaderValue, Request, StatusCode, Version,
    header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, DATE, TRANSFER_ENCODING},
};
use http_body_util::{BodyExt, Full};
use limits::{Limits, REQUEST, RESPONSE};
use rmcp::{
    ClientLifecycleMode, ClientServiceExt, ServiceError,
    model::{CallToolResult, ProtocolVersion},
};
use serde_json::{Value, json};
use server::{Answers, mcp, serve, with_limits};
use support::net::guarded;
use tools::{BUNDLE, CodeSearch, EVERYWHERE, snippet, symbol};
use tower::util::{MapRequestLayer, MapResponseLayer};

const KIB: u64 = 1024;
const LIMITS: Limits = Limits {
    request: 32 * KIB,
    response: 64 * KIB,
};
/// Far more snippets and a far larger file than fit.
const TOOLS: CodeSearch = CodeSearch {
    snippets: 300,
    bundle: 3 * 1024 * 1024,
};
const FORMS: [Answers; 2] = [Answers::Events, Answers::Json];

/// What stands in the place of the copy if that is all that was left out.
const SAID: &str = "Left out: the structured content says the same.";

/// What the layer did, message by message: how large it was, and how large it is, if it fits.
type Log = Arc<Mutex<Vec<(u64, Option<u64>)>>>;

async fn limited(app: Router, limits: Limits) -> (SocketAddr, Log) {
    let log = Log::default();
    let app = with_limits(app, limits, {
        let log = Arc::clone(&log);
        move |result| {
            let entry = match result {
                Ok(report) => (report.original(), Some(report.len())),
                Err(unfit) => (unfit.actual(), None),
            };
            log.lock().unwrap().push(entry);
        }
    });
    (serve(app).await.unwrap(), log)
}

/// Whether the length of a body is known where the limit is.
#[derive(Clone, Copy, Debug)]
enum Length {
    AsIs,
    Hidden,
}

const LENGTHS: [Length; 2] = [Length::AsIs, Length::Hidden];

fn undeclared(body: Body) -> Body {
    Body::from_stream(body.into_data_stream())
}

/// The tools, with their lengths hidden or not.
fn answering(tools: CodeSearch, answers: Answers, length: Length) -> Router {
    let app = mcp(tools, answers);
    match length {
        Length::AsIs => app,
        Length::Hidden => app.layer(MapResponseLayer::new(|response: Response| {
            response.map(undeclared)
        })),
    }
}

/// rmcp's client, once with the handshake of old, once without sessions.
async fn clients(server: SocketAddr) -> [Client; 2] {
    let discover = ClientLifecycleMode::Discover {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
    };
    let client = ().serve_with_lifecycle(transport(server).unwrap(), discover);
    [connect(server).await.unwrap(), client.await.unwrap()]
}

fn text(result: &CallToolResult) -> &str {
    &result.content[0].as_text().unwrap().text
}

#[tokio::test]
async fn each_item_comes_once_and_each_page_says_how_to_go_on() {
    let snippets: Vec<_> = (0..TOOLS.snippets).map(|n| json!(snippet(n))).collect();
    let symbols: Vec<_> = (0..TOOLS.snippets).map(|n| json!(symbol(n))).collect();
    let calls = [
        (
            "search",
            json!({ "query": EVERYWHERE }),
            "/matches",
            snippets,
        ),
        ("list_symbols", json!({}), "/module/symbols", symbols),
    ];
    for answers in FORMS {
        for length in LENGTHS {
            let (server, log) = limited(answering(TOOLS, answers, length), LIMITS).await;
            for client in clients(server).await {
                for (tool, arguments, pointer, expected) in &calls {
                    let pages = pages(&client, tool, arguments.clone(), pointer);
                    let pages = guarded(pages).await.unwrap();
                    assert_eq!(pages.items, *expected, "{answers:?} {length:?} {tool}");

                    let reports = std::mem::take(&mut *log.lock().unwrap());
                    let (last, cut) = pages.results.split_last().unwrap();
                    assert!(cut.len() > 3);
                    let mut offset = 0;
                    for (result, (original, len)) in cut.iter().zip(&reports) {
                        let next = marker(result, "next_offset")
                            .and_then(Value::as_u64)
                            .unwrap();
                        let (kept, total) = (next - offset, TOOLS.snippets - offset);
                        assert_eq!(marker(result, "truncated"), Some(&json!(true)));
                        assert_eq!(marker(result, "cap_reason"), Some(&json!("size_limit")));
                        let note =
                            format!("{kept} of {total} items. Go on with \"offset\": {next}.");
                        assert_eq!(text(result), note);
                        assert_eq!(
                            result.structured_content.as_ref().unwrap()["offset"],
                            offset
                        );
                        let len = len.unwrap();
                        assert!(*original > LIMITS.response);
                        // As many as fit: not one more of about 1 KiB.
                        assert!(len <= LIMITS.response && len > LIMITS.response - 3 * KIB / 2);
                        offset = next;
                    }
                    assert_eq!(marker(last, "truncated"), None);
                    // All of the last page may fit, or all of it but the copy.
                    match &reports[cut.len()..] {
                        [] => {
                            let structured = last.structured_content.as_ref();
                            let mut text: Value = serde_json::from_str(text(last)).unwrap();
                            *text.pointer_mut(pointer).unwrap() = json!([]);
                            assert_eq!(Some(&text), structured);
                        }
                        [(original, Some(len))] => {
                            assert!(*original > LIMITS.response && *len <= LIMITS.response);
                            assert_eq!(text(last), SAID);
                        }
                        other => panic!("{other:?}"),
                    }
                }
                guarded(client.cancel()).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_copy_goes_before_an_item_does() {
    let tools = CodeSearch {
        snippets: 50,
        ..TOOLS
    };
    for answers in FORMS {
        let (server, log) = limited(mcp(tools, answers), LIMITS).await;
        let bare = connect(serve(mcp(tools, answers)).await.unwrap())
            .await
            .unwrap();
        for client in clients(server).await {
            let arguments = json!({ "query": EVERYWHERE });
            let result = guarded(call(&client, "search", arguments.clone()))
                .await
                .unwrap();
            let whole = guarded(call(&bare, "search", arguments)).await.unwrap();
            assert_eq!(result.structured_content, whole.structured_content);
            assert_eq!(text(&result), SAID);
            assert_eq!(marker(&result, "truncated"), None);
            assert_eq!(log.lock().unwrap().len(), 1);
            log.lock().unwrap().clear();
        }
    }
}

#[tokio::test]
async fn a_blob_is_refused_in_the_words_of_json_rpc() {
    for answers in FORMS {
        for length in LENGTHS {
            let (server, log) = limited(answering(TOOLS, answers, length), LIMITS).await;
            for client in clients(server).await {
                let result = call(&client, "read_file", json!({ "path": BUNDLE }));
                let Err(ServiceError::McpError(error)) = guarded(result).await else {
                    panic!("{answers:?} {length:?}: no error of the protocol");
                };
                let [(actual, None)] = log.lock().unwrap().drain(..).collect::<Vec<_>>()[..] else {
                    panic!("{answers:?} {length:?}: not refused");
                };
                assert_eq!(error.code.0, -32603);
                let data = json!({
                    "reason": "response_too_large",
                    "limit_bytes": LIMITS.response,
                    "actual_bytes": actual,
                });
                assert_eq!(error.data, Some(data));
                assert!(actual > TOOLS.bundle as u64);

                let symbols = guarded(call(&client, "list_symbols", json!({})))
                    .await
                    .unwrap();
                assert_eq!(marker(&symbols, "truncated"), Some(&json!(true)));
                log.lock().unwrap().clear();
            }
        }
    }
}

#[tokio::test]
async fn the_client_is_told_of_a_request_that_is_refused_and_goes_on() {
    for answers in FORMS {
        for length in LENGTHS {
            let app = with_limits(mcp(TOOLS, answers), LIMITS, |_| ());
            let app = match length {
                Length::AsIs => app,
                Length::Hidden => app.layer(MapRequestLayer::new(|mut request: Request<Body>| {
                    request.headers_mut().remove(CONTENT_LENGTH);
                    request.map(undeclared)
                })),
            };
            for client in clients(serve(app).await.unwrap()).await {
                let search = |query: String| call(&client, "search", json!({ "query": query }));
                let query = "x".repeat(LIMITS.request as usize);
                let error = guarded(search(query)).await.unwrap_err();
                assert!(matches!(error, ServiceError::TransportSend(_)), "{error:?}");
                let text = error.to_string();
                assert!(text.contains("HTTP 413"), "{answers:?} {length:?}: {text}");

                let query = "x".repeat(LIMITS.request as usize - 1024);
                let result = guarded(search(query)).await.unwrap();
                assert_eq!(result.structured_content.unwrap()["matches"], json!([]));
            }
        }
    }
}

/// What comes back on the wire.
#[derive(Debug, PartialEq)]
struct Wire {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Wire {
    /// The messages in it: the one that it is, or the data of its events.
    fn messages(&self) -> Vec<&str> {
        let text = str::from_utf8(&self.body).unwrap();
        if self.headers[CONTENT_TYPE] == "application/json" {
            return vec![text];
        }
        let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
        data.map(str::trim_start)
            .filter(|data| !data.is_empty())
            .collect()
    }

    /// The other lines of its events.
    fn others(&self) -> Vec<&str> {
        let text = str::from_utf8(&self.body).unwrap();
        let is_other = |line: &&str| !line.is_empty() && !line.starts_with("data:");
        text.lines().filter(is_other).collect()
    }
}

/// A client that shows what is on the wire.
struct Hand {
    client: reqwest::Client,
    server: SocketAddr,
    session: Option<HeaderValue>,
}

impl Hand {
    fn new(server: SocketAddr) -> Self {
        Self {
            client: support::net::reqwest_client(Version::HTTP_11),
            server,
            session: None,
        }
    }

    async fn post(&mut self, body: impl Into<reqwest::Body>) -> Wire {
        let mut post = self
            .client
            .post(format!("http://{}/mcp", self.server))
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .body(body);
        if let Some(session) = &self.session {
            post = post.header(SESSION, session);
        }
        let response = guarded(post.send()).await.unwrap();
        let (status, mut headers) = (response.status(), response.headers().clone());
        headers.remove(DATE);
        if let Some(session) = headers.remove(SESSION) {
            self.session = Some(session);
        }
        let body = guarded(response.bytes()).await.unwrap();
        Wire {
            status,
            headers,
            body,
        }
    }

    async fn initialize(&mut self) -> [Wire; 2] {
        let params = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": { "name": "hand", "version": "1.0.0" },
        });
        let response = self.post(message(0, "initialize", params)).await;
        let notification = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        [response, self.post(notification.to_string()).await]
    }
}

const SESSION: &str = "mcp-session-id";

fn message(id: u32, method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

fn tool(id: u32, name: &str, arguments: Value) -> String {
    message(
        id,
        "tools/call",
        json!({ "name": name, "arguments": arguments }),
    )
}

#[tokio::test]
async fn what_is_within_the_limit_is_byte_for_byte_the_same() {
    for answers in FORMS {
        for length in LENGTHS {
            let (server, log) = limited(answering(TOOLS, answers, length), LIMITS).await;
            let bare = serve(answering(TOOLS, answers, length)).await.unwrap();
            let (mut hand, mut bare) = (Hand::new(server), Hand::new(bare));
            let same = |mut limited: Wire, mut bare: Wire| {
                if let Length::Hidden = length {
                    for wire in [&mut limited, &mut bare] {
                        wire.headers.remove(CONTENT_LENGTH);
                        wire.headers.remove(TRANSFER_ENCODING);
                    }
                }
                assert_eq!(limited, bare, "{answers:?} {length:?}");
                assert!(limited.status.is_success());
            };
            let [response, accepted] = hand.initialize().await;
            let [bare_response, bare_accepted] = bare.initialize().await;
            assert!(!response.messages().is_empty());
            same(response, bare_response);
            same(accepted, bare_accepted);
            for request in [
                message(1, "tools/list", json!({})),
                tool(2, "search", json!({ "query": "value_1 " })),
                tool(3, "read_file", json!({ "path": "nowhere" })),
                message(4, "resources/list", json!({})),
            ] {
                let response = hand.post(request.clone()).await;
                assert_eq!(response.messages().len(), 1);
                same(response, bare.post(request).await);
            }
            assert_eq!(*log.lock().unwrap(), []);
        }
    }
}

#[tokio::test]
async fn the_limit_of_a_response_is_exact() {
    let tools = CodeSearch {
        snippets: 100,
        bundle: 20_000,
    };
    let read = tool(7, "read_file", json!({ "path": BUNDLE }));
    for answers in FORMS {
        for length in LENGTHS {
            let bare = serve(answering(tools, answers, length)).await.unwrap();
            let mut bare = Hand::new(bare);
            bare.initialize().await;
            let whole = bare.post(read.clone()).await;
            let size = whole.messages()[0].len() as u64;

            let at = |response| {
                let limits = Limits { response, ..LIMITS };
                limited(answering(tools, answers, length), limits)
            };
            let (server, log) = at(size).await;
            let mut hand = Hand::new(server);
            hand.initialize().await;
            assert_eq!(hand.post(read.clone()).await.body, whole.body);
            assert_eq!(*log.lock().unwrap(), []);

            let (server, log) = at(size - 1).await;
            let mut hand = Hand::new(server);
            hand.initialize().await;
            let refused = hand.post(read.clone()).await;
            let error = format!(
                r#"{{"jsonrpc":"2.0","id":7,"error":{{"code":-32603,"message":"The response is too large.","data":{{"reason":"response_too_large","limit_bytes":{},"actual_bytes":{size}}}}}}}"#,
                size - 1
            );
            assert_eq!(refused.messages(), [error]);
            assert_eq!(*log.lock().unwrap(), [(size, None)]);
            assert_eq!(refused.status, StatusCode::OK);
            if answers == Answers::Events {
                assert_eq!(refused.others(), whole.others());
            }

            let search = tool(8, "search", json!({ "query": EVERYWHERE }));
            let cut = hand.post(search).await;
            let messages = cut.messages();
            let message: Value = serde_json::from_str(messages[0]).unwrap();
            assert_eq!(message["id"], 8);
            assert_eq!(message["result"]["_meta"]["truncated"], true);
            assert!(messages[0].len() < size as usize);
            if let (Answers::Json, Length::AsIs) = (answers, length) {
                assert_eq!(cut.headers[CONTENT_LENGTH], cut.body.len().to_string());
            }
        }
    }
}

#[tokio::test]
async fn the_limit_of_a_request_is_exact() {
    for answers in FORMS {
        // The second is more than the transport allows by itself.
        for request in [32 * KIB, 5 * 1024 * KIB] {
            let limits = Limits { request, ..LIMITS };
            let (server, _) = limited(mcp(TOOLS, answers), limits).await;
            let mut hand = Hand::new(server);
            hand.initialize().await;
            for length in LENGTHS {
                let body = |len: u64| {
                    let mut text = message(1, "tools/list", json!({}));
                    text.push_str(&" ".repeat(len as usize - text.len()));
                    match length {
                        Length::AsIs => reqwest::Body::from(text),
                        Length::Hidden => {
                            let data = Full::<Bytes>::from(text).into_data_stream();
                            reqwest::Body::wrap_stream(data)
                        }
                    }
                };
                let listed = hand.post(body(request)).await;
                assert_eq!(listed.status, StatusCode::OK);
                assert!(listed.messages()[0].contains("list_symbols"));

                let refused = hand.post(body(request + 1)).await;
                assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
                assert_eq!(refused.body, "The request body is too large.\n");
            }
            let listed = hand.post(message(2, "tools/list", json!({}))).await;
            assert_eq!(listed.status, StatusCode::OK);
        }
    }
}

#[test]
fn the_limits_are_those_of_the_environment() {
    let read = |set: &[(&str, &str)]| {
        let set: HashMap<_, _> = set.iter().copied().collect();
        Limits::read(|name| {
            let text = set.get(name).ok_or(VarError::NotPresent)?;
            Ok((*text).to_owned())
        })
    };
    let limits = |request, response| Ok(Limits { request, response });
    assert_eq!(read(&[]), limits(1024 * KIB, 10 * 1024 * KIB));
    assert_eq!(read(&[(REQUEST, "4096")]), limits(4096, 10 * 1024 * KIB));
    assert_eq!(
        read(&[(RESPONSE, "64KiB"), (REQUEST, "0")]),
        limits(0, 64 * KIB)
    );
    for name in [REQUEST, RESPONSE] {
        for text in ["much", "-1", "", "1 EiB and more", "99999999999999999999"] {
            let error = read(&[(name, text)]).unwrap_err();
            assert!(
                error.starts_with(&format!("{name}={text:?} is not a size")),
                "{error}"
            );
        }
    }
    let error = Limits::read(|_| Err(VarError::NotUnicode("much".into()))).unwrap_err();
    assert!(
        error.starts_with(&format!("{REQUEST}=\"much\" is not a size")),
        "{error}"
    );
}
