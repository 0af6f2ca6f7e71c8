use bytes::Bytes;
use http::{Response, StatusCode};

use super::report::Unfit;
use crate::respond::{RequestHead, with_plain_text, with_type};

/// What a layer answers with unless told otherwise.
pub(super) fn standard(unfit: &Unfit, _: &RequestHead) -> Response<Bytes> {
    let text = format!("{}\n", unfit.sentence());
    with_plain_text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// Answers with a JSON-RPC error: code -32603, and the `id` of the message that did not fit.
///
/// The status is 200, as JSON-RPC over HTTP has it. For `answer_with` of a
/// [`JsonFitLayer`](super::JsonFitLayer), or to be called from a closure.
///
/// ```json
/// {"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"The response is too large.",
///  "data":{"reason":"response_too_large","limit_bytes":65536,"actual_bytes":3145728}}}
/// ```
///
/// The reason is `response_malformed` for what is not JSON.
///
/// # Examples
///
/// ```
/// use tower_body_limit::json::{Fit, JsonFitLayer, rpc_error};
///
/// let fit = Fit::array_at(10 * 1024 * 1024, "/result/structuredContent/items")
///     .copy_at("/result/content/0/text", "/result/structuredContent")
///     .markers_at("/result/_meta");
/// let layer = JsonFitLayer::server(fit).answer_with(rpc_error);
/// ```
#[must_use]
pub fn rpc_error(unfit: &Unfit, _: &RequestHead) -> Response<Bytes> {
    with_type(StatusCode::OK, "application/json", unfit.rpc_message())
}
