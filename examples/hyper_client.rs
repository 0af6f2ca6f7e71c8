//! hyper's client with a limit on what it receives.
//!
//! ```sh
//! cargo run --example hyper_client
//! ```

use std::net::SocketAddr;

use axum::{Json, Router, routing::get};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{self, Client},
    rt::TokioExecutor,
};
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_body_limit::{Error, ResponseSizeLimitLayer, TooLarge, TruncateLayer};
use tower_http::decompression::DecompressionLayer;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The whole recipe. The limits are outside the decoder, so they count what comes out of it.
fn client() -> impl Service<
    Request<Empty<Bytes>>,
    Response = Response<impl Body<Data = Bytes, Error = Error>>,
    Error = legacy::Error,
> + Clone {
    ServiceBuilder::new()
        .layer(ResponseSizeLimitLayer::client(10 * 1024 * 1024))
        .layer(TruncateLayer::new(64 * 1024))
        .layer(DecompressionLayer::new())
        .service(Client::builder(TokioExecutor::new()).build_http())
}

/// What reqwest calls `.json()`.
async fn json<T: DeserializeOwned>(
    response: Response<impl Body<Error = Error>>,
) -> Result<T, BoxError> {
    let body = response.into_body().collect().await?;
    Ok(serde_json::from_slice(&body.to_bytes())?)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let server = serve().await?;
    let client = client();
    let get = |path: &str| Request::get(format!("http://{server}{path}")).body(Empty::new());

    // Within the limit nothing changes.
    let response = client.clone().oneshot(get("/small")?).await?;
    let numbers: Vec<u64> = json(response).await?;
    assert_eq!(numbers, [1, 2, 3]);
    println!("small: {numbers:?}");

    // Over the limit: the head as it was received, and an error that says why, at any depth.
    let response = client.clone().oneshot(get("/large")?).await?;
    assert_eq!(response.status(), 200);
    let error = json::<Vec<u64>>(response).await.expect_err("16 MiB");
    let too_large = TooLarge::find(&*error).ok_or("not the limit")?;
    assert_eq!(too_large.limit(), 10 * 1024 * 1024);
    println!("large: {too_large}");

    // An error page is cut to what somebody may want to read.
    let response = client.oneshot(get("/page")?).await?;
    assert_eq!(response.status(), 502);
    let page = response.into_body().collect().await?.to_bytes();
    assert_eq!(page.len(), 64 * 1024);
    println!("page:  the first {} bytes", page.len());
    Ok(())
}

/// A server to talk to.
async fn serve() -> Result<SocketAddr, BoxError> {
    let page = (StatusCode::BAD_GATEWAY, "?".repeat(1024 * 1024));
    let app = Router::new()
        .route("/small", get(Json([1, 2, 3])))
        .route("/large", get(async || Json(vec![0; 8 * 1024 * 1024])))
        .route("/page", get(page));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(address)
}
