//! A service that sends as many bytes as it is asked for, in either variant.

#![allow(dead_code, missing_docs, unreachable_pub)]

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::BodyExt;

use crate::support::{
    Hint, Script, Step, data,
    net::{AnyBody, BoxError, Server, any_body, frames},
};

/// Reads what it is sent, and sends what it is asked for: `/4096/declared`, `/1/undeclared`.
pub async fn answer<B>(request: Request<B>) -> Result<Response<AnyBody>, BoxError>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let (head, body) = request.into_parts();
    let read = body.collect().await.map_err(Into::into)?.to_bytes().len();
    let (len, hint) = asked_for(&head.uri);
    let body = any_body(Script::new(in_frames(len), hint));
    Ok(Response::builder().header("x-read", read).body(body)?)
}

fn asked_for(uri: &Uri) -> (usize, Hint) {
    let (len, hint) = uri.path()[1..]
        .split_once('/')
        .expect("a length and a variant");
    let declared = hint == "declared";
    let hint = if declared {
        Hint::Declared
    } else {
        Hint::Undeclared
    };
    (len.parse().unwrap(), hint)
}

/// In eight frames, and one with the rest.
pub fn in_frames(len: usize) -> Vec<Step> {
    let frame = (len / 8).max(1);
    let mut steps = frames(frame, len / frame);
    steps.push(data(len % frame));
    steps
}

pub fn path(len: usize, hint: &Hint) -> String {
    let hint = if matches!(hint, Hint::Declared) {
        "declared"
    } else {
        "undeclared"
    };
    format!("/{len}/{hint}")
}

pub fn upload(server: &Server, path: &str, len: usize, hint: &Hint) -> Request<AnyBody> {
    let body = any_body(Script::new(in_frames(len), hint.clone()));
    Request::post(server.uri(path)).body(body).unwrap()
}
