//! What is tried, and what should come back.

use std::{io, net::SocketAddr, ops::RangeInclusive};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use http::{
    Method, Request,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
    response::Parts,
};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use serde_json::Value;
use tower::ServiceExt;
use tower_body_limit::{TooLarge, Truncation, TruncationHandle};

use crate::{
    BoxError, ERROR_LIMIT, REQUEST_LIMIT, RESPONSE_LIMIT,
    clients::{HYPER, HttpClient, REQWEST, RequestBody, SOCKET, STALLING},
    servers::frames,
};

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) clients: &'static [&'static str],
    pub(crate) limited_by: Side,
    pub(crate) limit: u64,
    method: Method,
    path: String,
    pub(crate) upload: Option<Upload>,
    /// Bytes of body that the sender has, or states to have.
    pub(crate) sent: u64,
    pub(crate) comes_back: &'static str,
    /// Bytes that the handler of an upload, or else the client, gets to read.
    pub(crate) read: RangeInclusive<u64>,
}

#[derive(Clone, Copy)]
pub(crate) enum Side {
    Server,
    Client,
}

#[derive(Clone, Copy)]
pub(crate) enum Upload {
    Declared,
    Chunked,
    /// A form with one file, chunked.
    Form,
}

pub(crate) fn all() -> impl Iterator<Item = Case> {
    requests().into_iter().chain(responses())
}

fn requests() -> Vec<Case> {
    use Upload::{Chunked, Declared, Form};

    const OK: &str = "200 OK, complete";
    const REFUSED: &str = "413 Payload Too Large, complete";
    const JSON_RPC: &str = "413 Payload Too Large, error -32600";

    const R: u64 = REQUEST_LIMIT;
    const FILE: u64 = R - (FORM_START.len() + FORM_END.len()) as u64;
    const MIB16: u64 = 16 * 1024 * 1024;

    vec![
        upload("request, declared, one under", Declared, R - 1, OK).reads(R - 1),
        upload("request, declared, at", Declared, R, OK).reads(R),
        upload("request, declared, one over", Declared, R + 1, REFUSED),
        upload("request, chunked, one under", Chunked, R - 1, OK).reads(R - 1),
        upload("request, chunked, at", Chunked, R, OK).reads(R),
        upload("request, chunked, one over", Chunked, R + 1, REFUSED).reads(R),
        // Without the layer, axum's answers to those over the limit would come back: 400 and 500.
        upload("request, as Bytes, at", Chunked, R, OK)
            .to("/bytes")
            .reads(R),
        upload("request, as Bytes, one over", Chunked, R + 1, REFUSED).to("/bytes"),
        upload("request, as multipart, at", Form, R, OK)
            .to("/multipart")
            .reads(FILE),
        upload("request, as multipart, one over", Form, R + 1, REFUSED).to("/multipart"),
        upload("JSON-RPC, declared, one over", Declared, R + 1, JSON_RPC).to("/json-rpc"),
        upload("JSON-RPC, chunked, one over", Chunked, R + 1, JSON_RPC).to("/json-rpc"),
        upload("request, declared, 16 MiB", Declared, MIB16, REFUSED).by(&[HYPER, REQWEST, SOCKET]),
        upload("request, chunked, 16 MiB", Chunked, MIB16, REFUSED)
            .by(&[HYPER, REQWEST, SOCKET])
            .reads(R),
        upload(
            "request, declared, half of 16 MiB",
            Declared,
            MIB16,
            REFUSED,
        )
        .by(&[STALLING])
        .to("/patient"),
        upload("request, chunked, half of 16 MiB", Chunked, MIB16, REFUSED)
            .by(&[STALLING])
            .to("/patient")
            .reads(R),
    ]
}

fn responses() -> Vec<Case> {
    use Side::{Client, Server};

    const OK: &str = "200 OK, complete";
    const REPLACED: &str = "500 Internal Server Error, complete";
    const BROKEN: &str = "200 OK, breaks off";
    const TYPED: &str = "200 OK, TooLarge";
    const HEAD: &str = "200 OK, Content-Length: 1073741824";
    const CUT: &str = "500 Internal Server Error, cut";
    const TEXT: u64 = "The response body is too large.\n".len() as u64;

    const ENDLESS: u64 = u64::MAX;
    const GIB: u64 = 1024 * 1024 * 1024;
    const S: u64 = RESPONSE_LIMIT;

    vec![
        download("sent, declared, one under", Server, "known", S - 1, OK).reads(S - 1),
        download("sent, declared, at", Server, "known", S, OK).reads(S),
        download("sent, declared, one over", Server, "known", S + 1, REPLACED).reads(TEXT),
        download("sent, chunked, one under", Server, "chunked", S - 1, OK).reads(S - 1),
        download("sent, chunked, at", Server, "chunked", S, OK).reads(S),
        download("sent, chunked, one over", Server, "chunked", S + 1, BROKEN).reads(S),
        download("sent, endless", Server, "chunked", ENDLESS, BROKEN).reads(S),
        download("sent, HEAD for 1 GiB", Server, "known", GIB, HEAD).head(),
        download("received, declared, one under", Client, "known", S - 1, OK).reads(S - 1),
        download("received, declared, at", Client, "known", S, OK).reads(S),
        download(
            "received, declared, one over",
            Client,
            "known",
            S + 1,
            TYPED,
        ),
        download("received, chunked, one under", Client, "chunked", S - 1, OK).reads(S - 1),
        download("received, chunked, at", Client, "chunked", S, OK).reads(S),
        download(
            "received, chunked, one over",
            Client,
            "chunked",
            S + 1,
            TYPED,
        )
        .reads(S),
        download("received, endless", Client, "chunked", ENDLESS, TYPED).reads_up_to(S),
        download("received, HEAD for 1 GiB", Client, "known", GIB, HEAD).head(),
        download("received, gzip bomb", Client, "gzip", 10 * S, TYPED).reads_up_to(S),
        Case {
            limit: ERROR_LIMIT,
            ..download("received, error page", Client, "error", S, CUT).reads(ERROR_LIMIT)
        },
    ]
}

/// To a handler that counts the frames that it gets.
fn upload(name: &'static str, upload: Upload, sent: u64, comes_back: &'static str) -> Case {
    Case {
        name,
        clients: &[HYPER, REQWEST],
        limited_by: Side::Server,
        limit: REQUEST_LIMIT,
        method: Method::POST,
        path: String::from("/frames"),
        upload: Some(upload),
        sent,
        comes_back,
        read: 0..=0,
    }
}

fn download(
    name: &'static str,
    limited_by: Side,
    kind: &str,
    sent: u64,
    comes_back: &'static str,
) -> Case {
    Case {
        name,
        clients: &[HYPER, REQWEST],
        limited_by,
        limit: RESPONSE_LIMIT,
        method: Method::GET,
        path: format!("/{kind}/{sent}"),
        upload: None,
        sent,
        comes_back,
        read: 0..=0,
    }
}

impl Case {
    fn by(self, clients: &'static [&'static str]) -> Self {
        Self { clients, ..self }
    }

    fn to(self, path: &str) -> Self {
        let path = String::from(path);
        Self { path, ..self }
    }

    fn head(self) -> Self {
        let method = Method::HEAD;
        Self { method, ..self }
    }

    fn reads(self, bytes: u64) -> Self {
        let read = bytes..=bytes;
        Self { read, ..self }
    }

    /// For bodies whose frames the network or a decoder makes: the one that crosses is not read.
    fn reads_up_to(self, bytes: u64) -> Self {
        let read = 1..=bytes;
        Self { read, ..self }
    }

    /// What came back, and how many bytes of it the client could read.
    pub(crate) async fn run(&self, client: HttpClient, server: SocketAddr) -> (String, u64) {
        let response = match client.oneshot(self.request(server)).await {
            Ok(response) => response,
            Err(error) => return (format!("no response: {error}"), 0),
        };
        let (head, mut body) = response.into_parts();
        let (mut read, mut start) = (0, Vec::new());
        let failure = loop {
            let data = match body.frame().await {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => break Some(error),
                None => break None,
            };
            read += data.len() as u64;
            if start.len() < 1024 {
                start.extend_from_slice(&data);
            }
        };
        let end = match failure {
            Some(error) => self.failure(error),
            None => self.success(&head, &start),
        };
        (format!("{}, {end}", head.status), read)
    }

    fn failure(&self, error: BoxError) -> String {
        match TooLarge::find(&*error).map(TooLarge::limit) {
            Some(limit) if limit == self.limit => String::from("TooLarge"),
            Some(limit) => format!("TooLarge for {limit}"),
            None => String::from("breaks off"),
        }
    }

    fn success(&self, head: &Parts, body: &[u8]) -> String {
        let field = |name| {
            let value = head.headers.get(name)?;
            value.to_str().ok()
        };
        let cut = head.extensions.get().and_then(TruncationHandle::get);
        if self.method == Method::HEAD {
            format!(
                "Content-Length: {}",
                field(CONTENT_LENGTH).unwrap_or("none")
            )
        } else if field(CONTENT_TYPE) == Some("application/json") {
            let answer: Value = serde_json::from_slice(body).unwrap_or_default();
            format!("error {}", answer["error"]["code"])
        } else if cut == Some(Truncation::Truncated) {
            String::from("cut")
        } else {
            String::from("complete")
        }
    }

    fn request(&self, server: SocketAddr) -> Request<RequestBody> {
        let mut request = Request::builder()
            .method(&self.method)
            .uri(format!("http://{server}{}", self.path));
        let body = match self.upload {
            Some(Upload::Declared) => Full::from(vec![b'.'; self.sent as usize])
                .map_err(|never| match never {})
                .boxed(),
            Some(Upload::Chunked) => chunked(frames(self.sent)),
            Some(Upload::Form) => {
                request = request.header(CONTENT_TYPE, "multipart/form-data; boundary=boundary");
                let file = self.sent - (FORM_START.len() + FORM_END.len()) as u64;
                let part = |text| stream::iter([Ok(Bytes::from_static(text))]);
                chunked(part(FORM_START).chain(frames(file)).chain(part(FORM_END)))
            }
            None => Empty::new().map_err(|never| match never {}).boxed(),
        };
        request.body(body).expect("a valid request")
    }
}

const FORM_START: &[u8] =
    b"--boundary\r\nContent-Disposition: form-data; name=file; filename=dots\r\n\r\n";
const FORM_END: &[u8] = b"\r\n--boundary--";

fn chunked(frames: impl Stream<Item = io::Result<Bytes>> + Send + Sync + 'static) -> RequestBody {
    BodyExt::boxed(StreamBody::new(frames.map_ok(Frame::data)))
}
