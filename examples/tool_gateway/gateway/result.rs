//! The result of a call, within its limit.

use bytes::Bytes;
use serde_json::Value;
use tower_body_limit::json::{Fit, Unfit, fit};

/// The payload and the hint in one JSON document of at most `limit` bytes.
///
/// A document within the limit has the payload byte for byte. From a larger one the whitespace between
/// the tokens goes, on which nothing depends, and so never a word of the hint. If that is not enough,
/// nothing of it is sent.
pub(crate) fn render(payload: &[u8], hint: &str, limit: u64) -> Result<Bytes, Unfit> {
    let hint = Value::from(hint).to_string();
    let start =
        format!(r#"{{"content":[{{"type":"text","text":{hint}}}],"structuredContent":{{"result":"#);
    let document = [start.as_bytes(), payload, br#"},"isError":false}"#].concat();
    // All of it is in memory already, so nothing is gained by looking at less.
    let fitted = fit(&document, &Fit::compact(limit).max_scan(u64::MAX))?;
    Ok(fitted.into_bytes())
}

/// The rows of a database as a payload, for people to read.
pub(crate) fn rows(rows: &[Value]) -> Bytes {
    Bytes::from(format!("{:#}", Value::from(rows)))
}
