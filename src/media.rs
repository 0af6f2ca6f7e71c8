use http::{
    HeaderMap, HeaderValue,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};

use crate::length::values_of;

/// The media type of a message without its parameters; `None` if it states none that can be read,
/// or several.
pub(crate) fn essence(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(CONTENT_TYPE).iter();
    let (first, None) = (values.next()?, values.next()) else {
        return None;
    };
    essence_of(first)
}

fn essence_of(content_type: &HeaderValue) -> Option<&str> {
    let essence = without_parameters(content_type.to_str().ok()?);
    (!essence.is_empty()).then_some(essence)
}

pub(crate) fn without_parameters(media_type: &str) -> &str {
    let essence = media_type.split_once(';').map(|(essence, _)| essence);
    essence.unwrap_or(media_type).trim()
}

/// Whether the media type of a message is one of `types`, in any case.
pub(crate) fn is_one_of(headers: &HeaderMap, types: &[&str]) -> bool {
    essence(headers).is_some_and(|essence| types.iter().any(|ty| essence.eq_ignore_ascii_case(ty)))
}

/// Whether a body is encoded, by anything but `identity`, which stands for no encoding.
pub(crate) fn is_encoded(headers: &HeaderMap) -> bool {
    let fields = headers.get_all(CONTENT_ENCODING).iter();
    let mut codings = fields.flat_map(values_of);
    codings.any(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity"))
}

/// JSON by name or by suffix (RFC 6839).
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    is_one_of(headers, &["application/json", "text/json"])
        || essence(headers).is_some_and(|essence| has_suffix(essence, "+json"))
}

/// Server-sent events.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    is_one_of(headers, &["text/event-stream"])
}

/// One JSON text a line, by any of its names.
pub(crate) fn is_json_lines(headers: &HeaderMap) -> bool {
    is_one_of(
        headers,
        &[
            "application/x-ndjson",
            "application/ndjson",
            "application/jsonl",
            "application/x-jsonl",
            "application/jsonlines",
            "application/x-jsonlines",
            "application/stream+json",
        ],
    )
}

/// Streams that go on until somebody hangs up.
pub(crate) fn is_endless(headers: &HeaderMap) -> bool {
    is_event_stream(headers) || is_one_of(headers, &["multipart/x-mixed-replace"])
}

/// Bodies whose reader wants each part as it comes.
pub(crate) fn is_streamed(headers: &HeaderMap) -> bool {
    is_endless(headers)
        || is_json_lines(headers)
        || is_one_of(headers, &["application/json-seq"])
        || essence(headers).is_some_and(|essence| has_prefix(essence, "application/connect+"))
        || headers.get(CONTENT_TYPE).is_some_and(is_grpc)
}

/// gRPC, and gRPC-Web with it: `application/grpc`, `application/grpc+proto`, `application/grpc-web`.
pub(crate) fn is_grpc(content_type: &HeaderValue) -> bool {
    const GRPC: &str = "application/grpc";
    essence_of(content_type).is_some_and(|essence| {
        has_prefix(essence, GRPC)
            && matches!(essence.as_bytes().get(GRPC.len()), None | Some(b'+' | b'-'))
    })
}

fn has_prefix(essence: &str, prefix: &str) -> bool {
    let start = essence.get(..prefix.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

fn has_suffix(essence: &str, suffix: &str) -> bool {
    essence
        .len()
        .checked_sub(suffix.len())
        .and_then(|start| essence.get(start..))
        .is_some_and(|end| end.eq_ignore_ascii_case(suffix))
}
