//! An event stream as rmcp gets to see it.
//!
//! rmcp does not pass the error of a stream on to the call that waits for an event of it, and asks for
//! the stream again, at once and for ever. So an event that is too large becomes the last event of its
//! stream: the answer to that call, an error that says why. What the stream is to be resumed with is said
//! in the ids of its events, which rmcp keeps and gives back.

use std::error::Error;

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use rmcp::{
    model::{ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::streamable_http_client::SseError,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sse_stream::{Sse, SseStream};
use tower_body_limit::TooLarge;

use super::stack::HttpBody;

type BoxError = Box<dyn Error + Send + Sync>;

pub(crate) type Events = BoxStream<'static, Result<Sse, SseError>>;

/// What rmcp takes for the id of the last event.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Position {
    /// To go on with after the event `after`.
    At {
        waiting: Option<RequestId>,
        after: String,
    },
    /// The server would send again what is too large.
    Over,
}

impl Position {
    pub(crate) fn read(id: &str) -> serde_json::Result<Self> {
        serde_json::from_str(id)
    }

    fn write(&self) -> Option<String> {
        serde_json::to_string(self).ok()
    }
}

/// The events of `body`, of which one answers `waiting`.
pub(crate) fn events(body: HttpBody, waiting: Option<RequestId>) -> Events {
    let events = SseStream::new(body);
    stream::unfold(Some((events, waiting)), async |state| {
        let (mut events, waiting) = state?;
        match events.next().await? {
            Ok(mut event) => {
                event.id = event.id.take().and_then(|after| {
                    let waiting = waiting.clone();
                    Position::At { waiting, after }.write()
                });
                Some((Ok(event), Some((events, waiting))))
            }
            Err(error) => {
                let event = last_event(too_large(&error)?, waiting);
                Some((Ok(event), None))
            }
        }
    })
    .boxed()
}

/// The answer to a probe, for which no error may stand in: rmcp takes any for that of a legacy server.
pub(crate) async fn answer(body: HttpBody) -> Result<ServerJsonRpcMessage, BoxError> {
    let mut events = SseStream::new(body);
    while let Some(event) = events.next().await {
        let event = event.map_err(|error| match error {
            SseError::Body(error) => error,
            error => error.into(),
        })?;
        let message = serde_json::from_str(event.data.as_deref().unwrap_or_default());
        if let Ok(answer @ (JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_))) = message {
            return Ok(answer);
        }
    }
    Err("a stream without an answer".into())
}

/// The error in place of the event that is too large, for whoever waits for it.
fn last_event(error: &TooLarge, waiting: Option<RequestId>) -> Sse {
    let data = waiting.and_then(|id| {
        let data = json!({
            "reason": "response_too_large",
            "limit_bytes": error.limit(),
            "actual_bytes": error.read(),
        });
        let error = ErrorData::internal_error(error.to_string(), Some(data));
        serde_json::to_string(&ServerJsonRpcMessage::error(error, Some(id))).ok()
    });
    Sse {
        id: Position::Over.write(),
        data,
        ..Sse::default()
    }
}

/// Its `source()` does not lead there.
fn too_large(error: &SseError) -> Option<&TooLarge> {
    match error {
        SseError::Body(error) => TooLarge::find(&**error),
        _ => None,
    }
}
