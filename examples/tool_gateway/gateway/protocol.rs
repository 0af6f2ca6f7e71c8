//! How upstreams are asked, and where in their answers the payload is.

use std::{collections::HashMap, str};

use bytes::Bytes;
use http::{Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use serde::de::IgnoredAny;
use serde_json::{Value, json, value::RawValue};

use super::failure::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The arguments as JSON, the payload as JSON.
    Rest,
    /// The arguments as `params`, the payload as `result`.
    JsonRpc,
    /// The arguments as `variables`, the payload as `data`.
    GraphQl,
    /// The arguments as JSON in an element, all of the envelope as payload.
    Soap,
}

impl Protocol {
    pub(crate) fn request(
        self,
        url: &str,
        arguments: &Value,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let (media_type, body) = match self {
            Self::Rest => ("application/json", arguments.to_string()),
            Self::JsonRpc => (
                "application/json",
                json!({ "jsonrpc": "2.0", "id": 1, "method": "rows", "params": arguments })
                    .to_string(),
            ),
            Self::GraphQl => (
                "application/json",
                json!({ "query": "query($in: In!) { rows(in: $in) }", "variables": arguments })
                    .to_string(),
            ),
            Self::Soap => ("text/xml; charset=utf-8", envelope(arguments)),
        };
        Request::post(url)
            .header(CONTENT_TYPE, media_type)
            .body(Full::from(body))
    }

    /// The payload as valid JSON, every byte of it as it came; XML becomes a string.
    pub(crate) fn payload(self, status: StatusCode, body: Bytes) -> Result<Bytes, Failure> {
        let not = |what| Failure::upstream(status, &format!("Its answer is not {what}."));
        let text = str::from_utf8(&body).map_err(|_| not("UTF-8"))?;
        match self {
            Self::Rest => {
                serde_json::from_str::<IgnoredAny>(text).map_err(|_| not("JSON"))?;
                Ok(body)
            }
            Self::JsonRpc => member(text, "error", "result", status),
            Self::GraphQl => member(text, "errors", "data", status),
            Self::Soap => Ok(Bytes::from(Value::from(text).to_string())),
        }
    }
}

/// What is written for `payload`, unless there is something for `error`.
fn member(text: &str, error: &str, payload: &str, status: StatusCode) -> Result<Bytes, Failure> {
    let message: HashMap<String, &RawValue> = serde_json::from_str(text)
        .map_err(|_| Failure::upstream(status, "Its answer is not a JSON object."))?;
    match (message.get(error), message.get(payload)) {
        (Some(error), _) if error.get() != "null" => Err(Failure::upstream(status, error.get())),
        (_, Some(payload)) => Ok(Bytes::copy_from_slice(payload.get().as_bytes())),
        _ => Err(Failure::upstream(status, "Its answer has no payload.")),
    }
}

fn envelope(arguments: &Value) -> String {
    let arguments = arguments.to_string();
    let arguments = arguments.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<?xml version=\"1.0\"?>\
         <s:Envelope xmlns:s=\"http://schemas.xmlsoap.org/soap/envelope/\"><s:Body>\
         <rows><arguments>{arguments}</arguments></rows></s:Body></s:Envelope>"
    )
}
