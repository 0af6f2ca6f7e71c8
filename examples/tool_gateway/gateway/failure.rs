//! Why a call has no result.

use std::{error::Error, fmt};

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;
use tower_body_limit::{TooLarge, json::Unfit};

use super::limits::VARIABLE;

/// The display is for the operator, the result for the model.
#[derive(Debug)]
pub(crate) enum Failure {
    UnknownTool,
    /// More than may be read of a tool's answer.
    Answer(TooLarge),
    /// More than may be sent.
    Result(Unfit),
    /// More than may be read of a token.
    Metadata(TooLarge),
    /// The upstream answered that something is wrong.
    Upstream {
        status: StatusCode,
        says: String,
    },
    /// It did not answer, or not to the end.
    Unreachable(Box<dyn Error + Send + Sync>),
}

impl Failure {
    pub(crate) fn upstream(status: StatusCode, says: &str) -> Self {
        let says = says.chars().take(1000).collect();
        Self::Upstream { status, says }
    }

    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::UnknownTool => "UNKNOWN_TOOL",
            Self::Answer(_) | Self::Result(_) => "TOOL_RESPONSE_TOO_LARGE",
            Self::Metadata(_) => "METADATA_TOO_LARGE",
            Self::Upstream { .. } => "UPSTREAM_ERROR",
            Self::Unreachable(_) => "UPSTREAM_UNREACHABLE",
        }
    }

    /// The result in place of the one that was asked for, of at most a few KiB.
    pub(crate) fn into_result(self) -> Bytes {
        let sentence = self.sentence();
        let mut error = json!({ "error": sentence, "code": self.code() });
        if let Self::Upstream { status, .. } = self {
            error["status"] = status.as_u16().into();
        }
        let result = json!({
            "content": [{ "type": "text", "text": sentence }],
            "structuredContent": error,
            "isError": true,
        });
        Bytes::from(result.to_string())
    }

    fn sentence(&self) -> String {
        let advice = format!(
            "Ask for less: filter, name fewer fields, or take a smaller page. \
             If all of it is needed, {VARIABLE} has to be raised."
        );
        match self {
            Self::UnknownTool => String::from("There is no such tool."),
            Self::Answer(error) => format!(
                "The tool's answer is larger than {} bytes and was not read. {advice}",
                error.limit()
            ),
            Self::Result(unfit) => format!(
                "The tool's result has {} bytes, and {} may be sent. {advice}",
                unfit.actual(),
                unfit.limit()
            ),
            Self::Metadata(_) => {
                String::from("What the upstream sent in place of a token is too large for one.")
            }
            Self::Upstream { status, says } => format!("The upstream says {status}: {says}"),
            Self::Unreachable(_) => {
                String::from("The upstream did not answer, or its answer broke off.")
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTool => f.write_str("not configured"),
            Self::Answer(error) | Self::Metadata(error) => write!(
                f,
                "{error}, declared {:?}, read {}",
                error.declared(),
                error.read()
            ),
            Self::Result(unfit) => write!(f, "{unfit}, {} bytes", unfit.actual()),
            Self::Upstream { status, .. } => write!(f, "{status}"),
            Self::Unreachable(error) => write!(f, "{error}"),
        }
    }
}

impl From<Unfit> for Failure {
    fn from(unfit: Unfit) -> Self {
        Self::Result(unfit)
    }
}

impl From<http::Error> for Failure {
    fn from(error: http::Error) -> Self {
        Self::Unreachable(error.into())
    }
}
