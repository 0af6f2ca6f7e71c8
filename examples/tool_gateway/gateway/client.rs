//! The one client for all that is asked of upstreams, and how much of it is read.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::Deserialize;
use tower::{ServiceBuilder, ServiceExt};
use tower_body_limit::{
    ResponseLimit, ResponseSizeLimit, ResponseSizeLimitLayer, TooLarge, Truncate, TruncateLayer,
};
use tower_http::decompression::{Decompression, DecompressionLayer};

use super::failure::Failure;

/// What tokens and other answers that are not a tool's may have.
pub(crate) const METADATA_LIMIT: u64 = 64 * 1024;

/// What is read of the page of an upstream that reports an error.
const PAGE_LIMIT: u64 = 1024;

/// How long an upstream may take for one call. A limit of size is not a limit of time.
const PATIENCE: Duration = Duration::from_secs(60);

type Stack = ResponseSizeLimit<Truncate<Decompression<legacy::Client<HttpConnector, Full<Bytes>>>>>;

#[derive(Clone)]
pub(crate) struct Client {
    stack: Stack,
}

impl Client {
    pub(crate) fn new(limit: u64) -> Self {
        let stack = ServiceBuilder::new()
            // Outside of the decoder, so that a bomb is counted by what comes out of it.
            .layer(
                ResponseSizeLimitLayer::client(limit)
                    // A tool's limit that is set very low is not to keep the tokens out.
                    .override_ceiling(METADATA_LIMIT),
            )
            // A long error page is still an error of the upstream's, and not one of size.
            .layer(TruncateLayer::new_with(|head| {
                (!head.status.is_success()).then_some(PAGE_LIMIT)
            }))
            .layer(DecompressionLayer::new())
            .service(legacy::Client::builder(TokioExecutor::new()).build_http());
        Self { stack }
    }

    /// The status and the body of a tool's answer.
    pub(crate) async fn call(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        self.read(request, Failure::Answer).await
    }

    /// What to send as `Authorization`.
    pub(crate) async fn token(&self, url: &str) -> Result<HeaderValue, Failure> {
        #[derive(Deserialize)]
        struct Token {
            access_token: String,
        }

        // For this answer alone.
        let request = Request::post(url).extension(ResponseLimit::new(METADATA_LIMIT));
        let request = request.body(Full::default())?;
        let (status, body) = self.read(request, Failure::Metadata).await?;
        let token = serde_json::from_slice(&body).map(|Token { access_token }| access_token);
        let value = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        match value {
            Ok(Ok(value)) => Ok(value),
            _ => Err(Failure::upstream(
                status,
                "There is no token in its answer.",
            )),
        }
    }

    async fn read(
        &self,
        request: Request<Full<Bytes>>,
        too_large: fn(TooLarge) -> Failure,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let reading = async {
            let response = self.stack.clone().oneshot(request).await;
            let response = response.map_err(|error| Failure::Unreachable(error.into()))?;
            let status = response.status();
            let body = response.into_body().collect().await;
            let body = body.map_err(|error| match error.too_large() {
                Some(error) => too_large(error.clone()),
                None => Failure::Unreachable(error.into()),
            })?;
            Ok((status, body.to_bytes()))
        };
        let (status, body) = tokio::time::timeout(PATIENCE, reading)
            .await
            .unwrap_or_else(|error| Err(Failure::Unreachable(error.into())))?;
        if status.is_success() {
            Ok((status, body))
        } else {
            Err(Failure::upstream(status, &String::from_utf8_lossy(&body)))
        }
    }
}
