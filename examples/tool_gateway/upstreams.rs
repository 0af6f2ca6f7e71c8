//! Upstreams that send as much as they are asked for, and tools that call them.

use std::{
    collections::HashMap,
    io::{self, Write},
    net::SocketAddr,
    sync::Arc,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures_util::{Stream, stream};
use http::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
};

use crate::gateway::{Endpoint, Protocol, Source, Tool};

/// The arguments of every tool: what the upstream is to send.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// Bytes of body, once decoded.
    pub(crate) bytes: usize,
    pub(crate) framing: Framing,
    /// Whether there is whitespace to be left out.
    pub(crate) spaced: bool,
    pub(crate) course: Course,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Framing {
    Declared,
    Chunked,
    /// What is declared is the encoded length.
    Gzip,
    ChunkedGzip,
}

impl Framing {
    pub(crate) const ALL: [Self; 4] =
        [Self::Declared, Self::Chunked, Self::Gzip, Self::ChunkedGzip];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Course {
    Ok,
    /// The body is an error page.
    Status(u16),
    /// An error by the words of the protocol, with status 200.
    Fault,
    /// Breaks off after so many bytes.
    Breaks(usize),
    /// Goes on after so many bytes when it is let.
    Waits(usize),
}

impl Ask {
    pub(crate) const fn of(bytes: usize) -> Self {
        Self {
            bytes,
            framing: Framing::Declared,
            spaced: true,
            course: Course::Ok,
        }
    }

    pub(crate) fn framing(self, framing: Framing) -> Self {
        Self { framing, ..self }
    }

    /// Without whitespace.
    pub(crate) fn dense(self) -> Self {
        let spaced = false;
        Self { spaced, ..self }
    }

    pub(crate) fn course(self, course: Course) -> Self {
        Self { course, ..self }
    }

    /// The part of the body that a gateway passes on, as JSON.
    pub(crate) fn payload(self, protocol: Protocol) -> String {
        let body = self.body(protocol);
        let (before, after) = around(protocol);
        match protocol {
            Protocol::Soap => Value::from(body).to_string(),
            _ => body[before.len()..body.len() - after.len()].to_owned(),
        }
    }

    fn body(self, protocol: Protocol) -> String {
        let (before, after) = around(protocol);
        let rows = rows(self.bytes - before.len() - after.len(), self.spaced);
        [before, &rows, after].concat()
    }
}

/// What is around the rows in an answer.
fn around(protocol: Protocol) -> (&'static str, &'static str) {
    match protocol {
        Protocol::Rest => ("", ""),
        Protocol::JsonRpc => (r#"{"jsonrpc":"2.0","id":1,"result":"#, "}"),
        Protocol::GraphQl => (r#"{"data":"#, "}"),
        Protocol::Soap => (
            r#"<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body><rows>"#,
            "</rows></s:Body></s:Envelope>",
        ),
    }
}

/// A JSON array of exactly `len` bytes, of which some are parts of a character.
fn rows(len: usize, spaced: bool) -> String {
    let row = match spaced {
        true => "\n  {\"name\": \"\u{17c}\u{f3}\u{142}w\", \"legs\": 4},",
        false => "{\"name\":\"\u{17c}\u{f3}\u{142}w\",\"legs\":4},",
    };
    // Two brackets and at least one digit.
    let full = row.repeat((len - 3) / row.len());
    let digits = "1".repeat(len - 2 - full.len());
    ["[", &full, &digits, "]"].concat()
}

/// What became of the body of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// One waits to be let on.
    Waits,
    /// A body of so many bytes is over, after so many were asked for.
    Over { bytes: usize, pulled: usize },
}

pub(crate) struct Upstreams {
    address: SocketAddr,
    events: mpsc::UnboundedReceiver<Event>,
    /// Lets bodies that wait go on, one for each permit.
    pub(crate) gate: Arc<Semaphore>,
}

#[derive(Clone)]
struct Stage {
    events: mpsc::UnboundedSender<Event>,
    gate: Arc<Semaphore>,
}

impl Upstreams {
    pub(crate) async fn start() -> io::Result<Self> {
        let gate = Arc::new(Semaphore::new(0));
        let (sender, events) = mpsc::unbounded_channel();
        let stage = Stage {
            events: sender,
            gate: Arc::clone(&gate),
        };
        let app = Router::new()
            .route("/rest", post(rest))
            .route("/rpc", post(json_rpc))
            .route("/graphql", post(graphql))
            .route("/soap", post(soap))
            .route("/token/{framing}/{bytes}", post(token))
            .with_state(stage);
        Ok(Self {
            address: serve(app).await?,
            events,
            gate,
        })
    }

    /// What is heard next of a body of so many bytes.
    pub(crate) async fn next(&mut self, bytes: usize) -> Event {
        let is_meant = |event: &Event| match event {
            Event::Over { bytes: of, .. } => *of == bytes,
            Event::Waits => true,
        };
        loop {
            let event = self.heard().await;
            if is_meant(&event) {
                return event;
            }
        }
    }

    pub(crate) async fn heard(&mut self) -> Event {
        self.events.recv().await.expect("the server runs")
    }

    /// Tools for each protocol, and one that reads a database.
    pub(crate) fn tools(&self) -> HashMap<&'static str, Tool> {
        HashMap::from([
            ("orders", self.orders(Framing::Declared, 100)),
            ("ledger", self.http(Protocol::JsonRpc, "/rpc")),
            ("people", self.http(Protocol::GraphQl, "/graphql")),
            ("customs", self.http(Protocol::Soap, "/soap")),
            ("rows", database()),
        ])
    }

    /// The REST tool, which needs a token for each call, of so many bytes.
    pub(crate) fn orders(&self, framing: Framing, bytes: u64) -> Tool {
        let mut tool = self.http(Protocol::Rest, "/rest");
        if let Source::Http(endpoint) = &mut tool.source {
            let url = format!("http://{}/token/{framing:?}/{bytes}", self.address);
            endpoint.token_url = Some(url);
        }
        tool
    }

    fn http(&self, protocol: Protocol, path: &str) -> Tool {
        Tool {
            source: Source::Http(Endpoint {
                protocol,
                url: format!("http://{}{path}", self.address),
                token_url: None,
            }),
            hint: HINT,
        }
    }
}

/// What is told with each result. It has whitespace that has to stay.
pub(crate) const HINT: &str = "Each row is  an animal: {\"name\": \"\u{17c}\u{f3}\u{142}w\"}.\n";

fn database() -> Tool {
    let query = |arguments: &Value| {
        let count = arguments["count"].as_u64().unwrap_or(0);
        (0..count).map(record).collect()
    };
    Tool {
        source: Source::Rows(Arc::new(query)),
        hint: HINT,
    }
}

/// A row of the database.
pub(crate) fn record(id: u64) -> Value {
    json!({ "id": id, "name": "\u{17c}\u{f3}\u{142}w" })
}

pub(crate) async fn serve(app: Router) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(address)
}

async fn rest(State(stage): State<Stage>, head: HeaderMap, Json(ask): Json<Ask>) -> Response {
    match head.get(AUTHORIZATION) {
        Some(token) if token == "Bearer secret" => stage.answer(Protocol::Rest, ask),
        _ => StatusCode::UNAUTHORIZED.into_response(),
    }
}

async fn json_rpc(State(stage): State<Stage>, Json(call): Json<JsonRpc>) -> Response {
    if call.params.course == Course::Fault {
        let error = json!({ "code": -32602, "message": "no such animal" });
        return Json(json!({ "jsonrpc": "2.0", "id": 1, "error": error })).into_response();
    }
    stage.answer(Protocol::JsonRpc, call.params)
}

async fn graphql(State(stage): State<Stage>, Json(query): Json<GraphQl>) -> Response {
    if query.variables.course == Course::Fault {
        let errors = json!([{ "message": "no such animal" }]);
        return Json(json!({ "data": null, "errors": errors })).into_response();
    }
    stage.answer(Protocol::GraphQl, query.variables)
}

async fn soap(State(stage): State<Stage>, envelope: String) -> Result<Response, StatusCode> {
    let ask = envelope
        .split_once("<arguments>")
        .and_then(|(_, rest)| rest.split_once("</arguments>"))
        .and_then(|(arguments, _)| serde_json::from_str(arguments).ok());
    let ask = ask.ok_or(StatusCode::BAD_REQUEST)?;
    Ok(stage.answer(Protocol::Soap, ask))
}

#[derive(Deserialize)]
struct JsonRpc {
    params: Ask,
}

#[derive(Deserialize)]
struct GraphQl {
    variables: Ask,
}

/// A token, in an answer of so many bytes.
async fn token(Path((framing, bytes)): Path<(Framing, usize)>) -> Response {
    let token = r#"{"access_token":"secret"}"#;
    let text = [token, &" ".repeat(bytes - token.len())].concat();
    match framing {
        Framing::Declared => text.into_response(),
        _ => Body::from_stream(stream::iter([io::Result::Ok(text)])).into_response(),
    }
}

impl Stage {
    fn answer(self, protocol: Protocol, ask: Ask) -> Response {
        let mut response = Response::builder();
        if let Course::Status(status) = ask.course {
            response = response.status(status);
        }
        response = response.header(
            CONTENT_TYPE,
            match protocol {
                Protocol::Soap => "text/xml",
                _ => "application/json",
            },
        );
        let mut text = Bytes::from(ask.body(protocol));
        if let Framing::Gzip | Framing::ChunkedGzip = ask.framing {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
            let written = gzip.write_all(&text).and_then(|()| gzip.finish());
            text = Bytes::from(written.expect("memory does not fail"));
            response = response.header(CONTENT_ENCODING, "gzip");
        }
        if let Framing::Declared | Framing::Gzip = ask.framing {
            response = response.header(CONTENT_LENGTH, text.len());
        }
        let frames = self.frames(text, ask);
        let response = response.body(Body::from_stream(frames));
        response.expect("a valid response")
    }

    fn frames(self, text: Bytes, ask: Ask) -> impl Stream<Item = io::Result<Bytes>> + Send {
        const FRAME: usize = 16 * 1024;

        let sending = Sending {
            events: self.events,
            bytes: ask.bytes,
            pulled: 0,
        };
        let state = (text, sending, ask.course);
        stream::unfold(state, move |(mut rest, mut sending, mut course)| {
            let gate = Arc::clone(&self.gate);
            async move {
                let mut len = FRAME.min(rest.len());
                match course {
                    Course::Breaks(after) if after == sending.pulled => {
                        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
                        return Some((Err(broken), (rest, sending, course)));
                    }
                    Course::Waits(after) if after == sending.pulled => {
                        // Nobody has to listen.
                        let _ = sending.events.send(Event::Waits);
                        gate.acquire().await.expect("it is not closed").forget();
                        course = Course::Ok;
                    }
                    Course::Breaks(after) | Course::Waits(after) => {
                        len = len.min(after - sending.pulled);
                    }
                    Course::Ok | Course::Status(_) | Course::Fault => {}
                }
                let frame = rest.split_to(len);
                if frame.is_empty() {
                    return None;
                }
                sending.pulled += frame.len();
                Some((Ok(frame), (rest, sending, course)))
            }
        })
    }
}

/// Tells what was asked of a body when that is over.
struct Sending {
    events: mpsc::UnboundedSender<Event>,
    bytes: usize,
    pulled: usize,
}

impl Drop for Sending {
    fn drop(&mut self) {
        let (bytes, pulled) = (self.bytes, self.pulled);
        let _ = self.events.send(Event::Over { bytes, pulled });
    }
}
