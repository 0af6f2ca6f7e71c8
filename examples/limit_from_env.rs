//! A limit that follows configuration.
//!
//! ```sh
//! TOOL_MAX_RESPONSE_BYTES=64KiB cargo run --example limit_from_env
//! TOOL_MAX_RESPONSE_BYTES=-1 cargo run --example limit_from_env
//! ```
//!
//! A setting that is empty or cannot be read falls back to the default, with a warning, and never to
//! no limit. Zero is zero: only empty responses pass.

use std::{
    convert::Infallible,
    env::{self, VarError},
};

use bytes::Bytes;
use bytesize::ByteSize;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_body_limit::ResponseSizeLimitLayer;

const VARIABLE: &str = "TOOL_MAX_RESPONSE_BYTES";
pub(crate) const DEFAULT: u64 = 10 * 1024 * 1024;

/// The limit in bytes, and a warning if it is not what was asked for.
pub(crate) fn limit(setting: Result<String, VarError>) -> (u64, Option<String>) {
    let problem = match setting {
        Err(VarError::NotPresent) => return (DEFAULT, None),
        Err(error) => error.to_string(),
        Ok(text) => match text.trim().parse() {
            // What is too large to be counted comes as the highest number there is.
            Ok(ByteSize(limit)) if limit < u64::MAX => return (limit, None),
            _ => format!("{text:?} is not a size such as 64KiB"),
        },
    };
    let warning = format!("{VARIABLE}: {problem}; the limit is {DEFAULT} bytes");
    (DEFAULT, Some(warning))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Infallible> {
    let (limit, warning) = limit(env::var(VARIABLE));
    if let Some(warning) = warning {
        eprintln!("warning: {warning}");
    }

    // In place of a real client.
    let upstream = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(vec![b'.'; 1024 * 1024])))
    });
    let client = ResponseSizeLimitLayer::client(limit).layer(upstream);
    let response = client.oneshot(Request::new(())).await?;
    match response.into_body().collect().await {
        Ok(body) => println!("{} bytes", body.to_bytes().len()),
        Err(error) => match error.too_large() {
            Some(too_large) => println!("{too_large}"),
            None => println!("{error}"),
        },
    }
    Ok(())
}
