//! rmcp's HTTP client on the stack.
//!
//! What the layers bound is gathered here without another thought. Failures are handed to rmcp as
//! [`StreamableHttpError::Io`], because its variant for the errors of a client hides their source.

use std::{collections::HashMap, convert::Infallible, error::Error, io, sync::Arc};

use bytes::Bytes;
use futures_util::StreamExt;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode,
    header::{
        ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, InvalidHeaderValue, WWW_AUTHENTICATE,
    },
    response::Parts,
};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use rmcp::{
    model::{
        ClientJsonRpcMessage, ClientRequest, ErrorData, JsonRpcMessage, RequestId,
        ServerJsonRpcMessage,
    },
    transport::streamable_http_client::{
        AuthRequiredError, InsufficientScopeError, StreamableHttpClient, StreamableHttpError,
        StreamableHttpPostResponse,
    },
};
use tokio::time::sleep;
use tower::ServiceExt;
use tower_body_limit::{BodyLimitExt, Truncation, TruncationHandle};

use super::{
    events::{Events, Position, answer, events},
    stack::{Http, HttpBody, Limits},
};

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

type Failure = StreamableHttpError<Infallible>;

/// A client of MCP servers that bounds what it gathers.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    http: Http,
    limits: Limits,
}

/// What rmcp wants to be in the head of a request.
struct Head {
    uri: Arc<str>,
    session: Option<Arc<str>>,
    token: Option<String>,
    custom: HashMap<HeaderName, HeaderValue>,
}

/// What a body is by its head.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Json,
    Events,
    Other,
    /// Nobody asked for it, nothing here decodes it, and its events cannot be bounded.
    Encoded,
}

impl Backend {
    pub(crate) fn new(http: Http, limits: Limits) -> Self {
        Self { http, limits }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(Parts, HttpBody), Failure> {
        let response = self.http.clone().oneshot(request).await.map_err(failed)?;
        let (head, body) = response.into_parts();
        match challenge(&head) {
            Some(challenge) => Err(challenge),
            None => Ok((head, body)),
        }
    }

    /// What there is to say of a response that is an error and no message.
    async fn diagnose(&self, head: &Parts, body: HttpBody) -> String {
        let what = format!("HTTP {}", head.status);
        if self.limits.page == 0 || Kind::of(&head.headers) == Kind::Encoded {
            return what;
        }
        // A limit of size is none of time.
        let deadline = Box::pin(sleep(self.limits.patience));
        let mut frames = BodyStream::new(body).take_until(deadline);
        let prefix = StreamBody::new(&mut frames)
            .collect_prefix(self.limits.page)
            .await;
        // The layer knows of what it has cut, and the prefix of what no layer has.
        let end = match head.extensions.get::<TruncationHandle>() {
            Some(handle) => handle.get(),
            None => Some(prefix.end()),
        };
        let is_whole = end == Some(Truncation::Complete) && frames.take_result().is_none();
        page(what, &prefix.text(), is_whole)
    }

    async fn post(
        &self,
        head: Head,
        message: ClientJsonRpcMessage,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let has_session = head.session.is_some();
        let text = serde_json::to_vec(&message)?;
        let mut request = head.request(Method::POST, &[JSON, EVENT_STREAM], text.into())?;
        let json = HeaderValue::from_static(JSON);
        request.headers_mut().insert(CONTENT_TYPE, json);
        let (head, body) = self.send(request).await?;

        let session = head.headers.get(SESSION);
        let session = session.and_then(|id| Some(id.to_str().ok()?.to_owned()));
        let waiting = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        match (head.status, Kind::of(&head.headers), &waiting) {
            (StatusCode::ACCEPTED | StatusCode::NO_CONTENT, ..) => {
                Ok(StreamableHttpPostResponse::Accepted)
            }
            (StatusCode::NOT_FOUND, ..) if has_session => Err(StreamableHttpError::SessionExpired),
            (status, Kind::Json, _) => {
                let text = body.collect().await.map_err(failed)?.to_bytes();
                let answer = serde_json::from_slice::<ServerJsonRpcMessage>(&text);
                match (answer, &waiting) {
                    (Ok(JsonRpcMessage::Error(error)), _) if !status.is_success() => {
                        Ok(match rejected_probe(&message, has_session, status) {
                            Some(id) => rejection(error.error, id),
                            None => {
                                let error = JsonRpcMessage::Error(error);
                                StreamableHttpPostResponse::Json(error, session)
                            }
                        })
                    }
                    (Ok(answer), _) if status.is_success() => {
                        Ok(StreamableHttpPostResponse::Json(answer, session))
                    }
                    (Err(_), None) if status.is_success() => {
                        Ok(StreamableHttpPostResponse::Accepted)
                    }
                    _ => {
                        let what = format!("HTTP {status}, and not an answer");
                        let limit = self.limits.page;
                        let prefix = Full::new(text).collect_prefix(limit).await;
                        let is_whole = prefix.end() == Truncation::Complete;
                        let text = page(what, &prefix.text(), is_whole);
                        self.refuse(&message, has_session, status, text)
                    }
                }
            }
            (status, ..) if !status.is_success() => {
                let text = self.diagnose(&head, body).await;
                self.refuse(&message, has_session, status, text)
            }
            (_, _, None) => Ok(StreamableHttpPostResponse::Accepted),
            (_, Kind::Events, Some(_)) if is_probe(&message) => {
                let answer = answer(body).await.map_err(failed)?;
                Ok(StreamableHttpPostResponse::Json(answer, session))
            }
            (_, Kind::Events, Some(_)) => {
                let events = events(body, waiting);
                Ok(StreamableHttpPostResponse::Sse(events, session))
            }
            (_, kind, Some(_)) => Err(unexpected(&head, kind)),
        }
    }

    /// An error page: for a probe the proof that the server is a legacy one, for others an error.
    fn refuse(
        &self,
        message: &ClientJsonRpcMessage,
        has_session: bool,
        status: StatusCode,
        text: String,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        match rejected_probe(message, has_session, status) {
            Some(id) => Ok(rejection(ErrorData::invalid_request(text, None), id)),
            None => Err(StreamableHttpError::UnexpectedServerResponse(text.into())),
        }
    }

    async fn get(&self, head: Head, last_event_id: Option<String>) -> Result<Events, Failure> {
        let position = last_event_id.map(|id| Position::read(&id)).transpose()?;
        let (waiting, after) = match position {
            Some(Position::At { waiting, after }) => (waiting, Some(after)),
            // The one error that keeps rmcp from asking again.
            Some(Position::Over) => return Err(StreamableHttpError::ServerDoesNotSupportSse),
            None => (None, None),
        };
        let mut request = head.request(Method::GET, &[EVENT_STREAM], Full::default())?;
        if let Some(after) = after.filter(|after| !after.is_empty()) {
            let after = HeaderValue::from_bytes(after.as_bytes()).map_err(failed)?;
            request.headers_mut().insert(LAST_EVENT, after);
        }
        let (head, body) = self.send(request).await?;
        match (head.status, Kind::of(&head.headers)) {
            (StatusCode::METHOD_NOT_ALLOWED, _) => {
                Err(StreamableHttpError::ServerDoesNotSupportSse)
            }
            (status, _) if !status.is_success() => {
                let text = self.diagnose(&head, body).await;
                Err(StreamableHttpError::UnexpectedServerResponse(text.into()))
            }
            (_, Kind::Events) => Ok(events(body, waiting)),
            (_, kind) => Err(unexpected(&head, kind)),
        }
    }

    async fn delete(&self, head: Head) -> Result<(), Failure> {
        let request = head.request(Method::DELETE, &[JSON], Full::default())?;
        let (head, body) = self.send(request).await?;
        match head.status {
            StatusCode::METHOD_NOT_ALLOWED => {
                Err(StreamableHttpError::ServerDoesNotSupportDeleteSession)
            }
            status if status.is_success() => Ok(()),
            _ => {
                let text = self.diagnose(&head, body).await;
                Err(StreamableHttpError::UnexpectedServerResponse(text.into()))
            }
        }
    }
}

impl StreamableHttpClient for Backend {
    type Error = Infallible;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let head = Head {
            uri,
            session,
            token,
            custom,
        };
        self.post(head, message).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        let head = Head {
            uri,
            session: Some(session),
            token,
            custom,
        };
        self.delete(head).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event_id: Option<String>,
        token: Option<String>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, Failure> {
        let head = Head {
            uri,
            session,
            token,
            custom,
        };
        self.get(head, last_event_id).await
    }
}

impl Head {
    fn request(
        self,
        method: Method,
        accept: &[&str],
        body: Full<Bytes>,
    ) -> Result<Request<Full<Bytes>>, Failure> {
        let request = Request::builder().method(method).uri(&*self.uri);
        let mut request = request.body(body).map_err(failed)?;
        let headers = request.headers_mut();
        headers.extend(self.custom);
        let value = |text: &str| HeaderValue::try_from(text);
        let mut set = |name, text: &str| -> Result<(), InvalidHeaderValue> {
            headers.insert(name, value(text)?);
            Ok(())
        };
        set(ACCEPT, &accept.join(", ")).map_err(failed)?;
        if let Some(session) = self.session {
            set(SESSION, &session).map_err(failed)?;
        }
        if let Some(token) = self.token {
            set(AUTHORIZATION, &format!("Bearer {token}")).map_err(failed)?;
        }
        Ok(request)
    }
}

impl Kind {
    fn of(headers: &HeaderMap) -> Self {
        if headers.contains_key(CONTENT_ENCODING) {
            return Self::Encoded;
        }
        let content_type = headers.get(CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        let essence = content_type.and_then(|value| value.split(';').next());
        match essence.map(str::trim) {
            Some(essence) if essence.eq_ignore_ascii_case(JSON) => Self::Json,
            Some(essence) if essence.eq_ignore_ascii_case(EVENT_STREAM) => Self::Events,
            _ => Self::Other,
        }
    }
}

fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
    StreamableHttpError::Io(io::Error::other(error))
}

fn unexpected(head: &Parts, kind: Kind) -> Failure {
    if kind == Kind::Encoded {
        return StreamableHttpError::UnexpectedServerResponse("an encoded answer".into());
    }
    let content_type = head.headers.get(CONTENT_TYPE);
    let content_type = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()).into());
    StreamableHttpError::UnexpectedContentType(content_type)
}

/// A text that says whether it is all there was.
fn page(what: String, text: &str, is_whole: bool) -> String {
    match (text, is_whole) {
        ("", true) => what,
        (_, true) => format!("{what}: {text}"),
        (_, false) => format!("{what}, the first {} bytes of it: {text}", text.len()),
    }
}

/// The id of a message that asks a server whether it is a modern one, if the status says no.
fn rejected_probe(
    message: &ClientJsonRpcMessage,
    has_session: bool,
    status: StatusCode,
) -> Option<RequestId> {
    let is_refusal = status.is_client_error()
        && !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    match message {
        ClientJsonRpcMessage::Request(request) if is_refusal && !has_session => {
            is_probe(message).then(|| request.id.clone())
        }
        _ => None,
    }
}

fn is_probe(message: &ClientJsonRpcMessage) -> bool {
    matches!(
        message,
        ClientJsonRpcMessage::Request(request)
            if matches!(request.request, ClientRequest::DiscoverRequest(_))
    )
}

fn rejection(error: ErrorData, id: RequestId) -> StreamableHttpPostResponse {
    StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(error, Some(id)), None)
}

/// What a server says that wants a token, or a better one.
fn challenge(head: &Parts) -> Option<Failure> {
    let header = head.headers.get(WWW_AUTHENTICATE)?;
    let header = String::from_utf8_lossy(header.as_bytes()).into_owned();
    match head.status {
        StatusCode::UNAUTHORIZED => {
            let error = AuthRequiredError::new(header);
            Some(StreamableHttpError::AuthRequired(error))
        }
        StatusCode::FORBIDDEN => {
            let error = InsufficientScopeError::new(header, None);
            Some(StreamableHttpError::InsufficientScope(error))
        }
        _ => None,
    }
}
