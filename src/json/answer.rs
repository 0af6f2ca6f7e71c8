use bytes::Bytes;
use http::{HeaderValue, Response, header::CONTENT_TYPE};

use super::report::Unfit;
use crate::respond::RequestHead;

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
#[must_use]
pub fn rpc_error(unfit: &Unfit, _: &RequestHead) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(unfit.rpc_message()));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
