//! A server to talk to, which limits nothing and writes down what it was asked.

use std::{
    convert::Infallible,
    fs, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{Router, body::Body, extract::Request};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{Response, StatusCode, header::CONTENT_TYPE};
use serde_json::Value;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};

use super::{
    backend::Backend,
    stack::{self, Limits},
};

/// What it is reached over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Tcp,
    #[cfg(unix)]
    Unix,
}

impl Over {
    #[cfg(unix)]
    pub(crate) const ALL: [Self; 2] = [Self::Tcp, Self::Unix];
    #[cfg(not(unix))]
    pub(crate) const ALL: [Self; 1] = [Self::Tcp];
}

/// Whether a length is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Fixed,
    Chunked,
}

impl Framing {
    pub(crate) const ALL: [Self; 2] = [Self::Fixed, Self::Chunked];

    pub(crate) fn body(self, text: String) -> Body {
        match self {
            Self::Fixed => Body::from(text),
            Self::Chunked => pieces(text.into()),
        }
    }
}

/// A request.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The HTTP method, the message's, and the id of the last event, as far as there are any.
    pub(crate) what: String,
    pub(crate) id: Value,
}

pub(crate) type Answer = Response<Body>;

pub(crate) struct Server {
    uri: String,
    socket: Option<PathBuf>,
    seen: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<io::Result<()>>,
}

impl Server {
    /// Answers as `script` says, and where it says nothing as a legacy server without sessions.
    pub(crate) async fn start<F>(over: Over, script: F) -> io::Result<Self>
    where
        F: Fn(&Asked) -> Option<Answer> + Send + Sync + 'static,
    {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, script) = (Arc::clone(&seen), Arc::new(script));
        let app = Router::new().fallback(move |request: Request| {
            let (log, script) = (Arc::clone(&log), Arc::clone(&script));
            async move {
                let asked = Asked::read(request).await;
                let what = asked.what.clone();
                log.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(what);
                script(&asked).unwrap_or_else(|| legacy(&asked))
            }
        });
        let (uri, socket, task) = match over {
            Over::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let uri = format!("http://{}/mcp", listener.local_addr()?);
                let task = tokio::spawn(axum::serve(listener, app).into_future());
                (uri, None, task)
            }
            #[cfg(unix)]
            Over::Unix => {
                let socket = unused_path();
                let listener = UnixListener::bind(&socket)?;
                let task = tokio::spawn(axum::serve(listener, app).into_future());
                (String::from("http://localhost/mcp"), Some(socket), task)
            }
        };
        Ok(Self {
            uri,
            socket,
            seen,
            task,
        })
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// A client of it.
    pub(crate) fn client(&self, limits: Limits) -> Backend {
        let http = match &self.socket {
            #[cfg(unix)]
            Some(socket) => stack::over_unix(&limits, socket.clone()),
            _ => stack::over_tcp(&limits),
        };
        Backend::new(http, limits)
    }

    /// What it was asked, in order.
    pub(crate) fn seen(&self) -> Vec<String> {
        let seen = self.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A path for a socket, one for each server of each process.
#[cfg(unix)]
fn unused_path() -> PathBuf {
    use std::{
        env, process,
        sync::atomic::{AtomicU64, Ordering::Relaxed},
    };

    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (process, count) = (process::id(), COUNT.fetch_add(1, Relaxed));
    env::temp_dir().join(format!("mcp-client-{process}-{count}.socket"))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(socket) = &self.socket {
            let _ = fs::remove_file(socket);
        }
    }
}

impl Asked {
    async fn read(request: Request) -> Self {
        let (head, body) = request.into_parts();
        let text = axum::body::to_bytes(body, 1024 * 1024).await;
        let message = serde_json::from_slice(&text.unwrap_or_default()).unwrap_or(Value::Null);
        let last = head.headers.get("last-event-id");
        let words = [
            Some(head.method.as_str()),
            message["method"].as_str(),
            last.and_then(|id| id.to_str().ok()),
        ];
        Self {
            what: words.into_iter().flatten().collect::<Vec<_>>().join(" "),
            id: message["id"].clone(),
        }
    }
}

fn legacy(asked: &Asked) -> Answer {
    match &*asked.what {
        "POST initialize" => json(200, Framing::Fixed.body(initialized(asked))),
        "POST tools/call" => json(200, Framing::Fixed.body(result(&asked.id, 200))),
        "POST notifications/initialized" => answer(202, "", Body::empty()),
        "DELETE" => answer(200, "", Body::empty()),
        what if what.starts_with("GET") => answer(405, "text/plain", Body::from("no streams")),
        _ => answer(400, "text/plain", Body::from("unknown method")),
    }
}

/// The same, with a session, so that a client asks for the stream of what nobody asked for.
pub(crate) fn with_session(asked: &Asked) -> Option<Answer> {
    (asked.what == "POST initialize").then(|| {
        let mut answer = legacy(asked);
        let id = http::HeaderValue::from_static("session-1");
        answer.headers_mut().insert("mcp-session-id", id);
        answer
    })
}

fn initialized(asked: &Asked) -> String {
    serde_json::json!({
        "jsonrpc": "2.0",
        "id": asked.id,
        "result": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "server", "version": "1"},
        },
    })
    .to_string()
}

/// The result of a tool, `bytes` in all.
pub(crate) fn result(id: &Value, bytes: usize) -> String {
    let start =
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":""#);
    filled(start, r#""}]}}"#, bytes)
}

/// An error, `bytes` in all.
pub(crate) fn error(id: &Value, bytes: usize) -> String {
    let start = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32001,"message":""#);
    filled(start, r#""}}"#, bytes)
}

fn filled(start: String, end: &str, bytes: usize) -> String {
    let room = bytes.saturating_sub(start.len() + end.len());
    start + &"x".repeat(room) + end
}

pub(crate) fn answer(status: u16, content_type: &str, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    if let Ok(content_type) = content_type.parse() {
        answer.headers_mut().insert(CONTENT_TYPE, content_type);
    }
    answer
}

pub(crate) fn json(status: u16, body: Body) -> Answer {
    answer(status, "application/json", body)
}

pub(crate) fn page(status: u16, body: Body) -> Answer {
    answer(status, "text/html; charset=utf-8", body)
}

pub(crate) fn events(body: Body) -> Answer {
    answer(200, "text/event-stream", body)
}

fn stream_of(text: Bytes) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    let starts = (0..text.len()).step_by(16 * 1024);
    let piece = move |start| text.slice(start..text.len().min(start + 16 * 1024));
    stream::iter(starts.map(piece).map(Ok).collect::<Vec<_>>())
}

fn pieces(text: Bytes) -> Body {
    Body::from_stream(stream_of(text))
}

/// `text`, and nothing after it, not even an end.
pub(crate) fn stalling(text: String) -> Body {
    Body::from_stream(stream_of(text.into()).chain(stream::pending()))
}

/// `text` again and again.
pub(crate) fn endless(text: &'static str) -> Body {
    let text = Bytes::from(text.repeat(64));
    Body::from_stream(stream::repeat(Ok::<_, Infallible>(text)))
}

/// `body`, which says when it is gone.
pub(crate) fn reporting(body: Body, gone: mpsc::UnboundedSender<()>) -> Body {
    let gone = OnDrop(gone);
    Body::from_stream(body.into_data_stream().inspect(move |_| {
        let _ = &gone;
    }))
}

struct OnDrop(mpsc::UnboundedSender<()>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}
