//! reqwest with a limit on what it receives, and `.json()` as before.
//!
//! ```sh
//! cargo run --example reqwest_client
//! ```

use std::{error::Error, mem, net::SocketAddr};

use axum::{Json, Router, routing::get};
use http::StatusCode;
use reqwest::{Body, Client, Request, Response, ResponseBuilderExt};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_body_limit::{ResponseSizeLimitLayer, TooLarge, TruncateLayer};

type BoxError = Box<dyn Error + Send + Sync>;

/// The whole recipe. reqwest decodes inside, so the limits count what comes out of its decoders.
fn limited(client: Client) -> impl Service<Request, Response = Response, Error = BoxError> + Clone {
    let client = ServiceBuilder::new()
        .layer(ResponseSizeLimitLayer::client(10 * 1024 * 1024))
        .layer(TruncateLayer::new(64 * 1024))
        .service_fn(move |request| execute(client.clone(), request));
    service_fn(move |request: Request| {
        let client = client.clone();
        async move {
            let response = client.oneshot(request.try_into()?).await?;
            Ok(response.map(Body::wrap).into())
        }
    })
}

/// The adapter: reqwest over the types of the `http` crate.
async fn execute(
    client: Client,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, reqwest::Error> {
    let response = client.execute(request.try_into()?).await?;
    // The conversion would lose the URL.
    let mut url = http::Response::builder().url(response.url().clone());
    let mut response = http::Response::from(response);
    let extensions = url.extensions_mut().map(mem::take).unwrap_or_default();
    response.extensions_mut().extend(extensions);
    Ok(response)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let server = serve().await?;
    // Whatever proxy the environment names, it has no part in this.
    let client = Client::builder().no_proxy().build()?;
    let limited = limited(client.clone());
    let get = |path: &str| client.get(format!("http://{server}{path}")).build();

    // Within the limit nothing changes.
    let response = limited.clone().oneshot(get("/small")?).await?;
    assert_eq!(response.url().path(), "/small");
    let numbers: Vec<u64> = response.json().await?;
    assert_eq!(numbers, [1, 2, 3]);
    println!("small: {numbers:?}");

    // Over the limit: the head as it was received, and an error that says why, at any depth.
    let response = limited.clone().oneshot(get("/large")?).await?;
    assert_eq!(response.status(), 200);
    let error = response.json::<Vec<u64>>().await.expect_err("16 MiB");
    let too_large = TooLarge::find(&error).ok_or("not the limit")?;
    assert_eq!(too_large.limit(), 10 * 1024 * 1024);
    println!("large: {too_large}");

    // An error page is cut to what somebody may want to read.
    let response = limited.oneshot(get("/page")?).await?;
    assert_eq!(response.status(), 502);
    let page = response.text().await?;
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
