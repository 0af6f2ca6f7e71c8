//! A reverse proxy that limits both directions: axum in front, hyper's client behind.
//!
//! ```sh
//! cargo run --example axum_server &
//! cargo run --example reverse_proxy -- 127.0.0.1:3000 &
//! curl -i http://127.0.0.1:3001/known/100
//! ```
//!
//! | | what the client gets |
//! |---|---|
//! | it declares too much | 413, and the upstream is not called |
//! | it sends too much | 413, and the upstream sees a request that breaks off |
//! | the upstream declares too much | 502 |
//! | the upstream sends too much | a response that breaks off, or 502 over HTTP/1.0, which cannot show that |

use std::{env, error::Error, mem};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
};
use http::{
    HeaderMap, HeaderName, StatusCode, Uri, Version,
    header::{CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE},
    uri::{Authority, Scheme},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::net::TcpListener;
use tower_body_limit::{MediaTypeLimits, RequestSizeLimitLayer, ResponseSizeLimitLayer};

pub(crate) const REQUEST_LIMIT: u64 = 1024 * 1024;
pub(crate) const RESPONSE_LIMIT: u64 = 10 * 1024 * 1024;

#[derive(Clone, Debug)]
struct Upstream {
    authority: Authority,
    client: Client<HttpConnector, Body>,
}

/// The layers of a server are enough: a body that fails on its way fails on both sides.
pub(crate) fn proxy(authority: Authority) -> Router {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let responses = MediaTypeLimits::new(RESPONSE_LIMIT).event_stream(None);
    Router::new()
        .fallback(forward)
        .with_state(Upstream { authority, client })
        .layer(RequestSizeLimitLayer::server(REQUEST_LIMIT))
        .layer(ResponseSizeLimitLayer::server(responses).gateway())
}

async fn forward(
    State(upstream): State<Upstream>,
    mut request: Request,
) -> Result<Response, StatusCode> {
    let mut uri = mem::take(request.uri_mut()).into_parts();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(upstream.authority);
    *request.uri_mut() = Uri::from_parts(uri).map_err(|_| StatusCode::BAD_REQUEST)?;
    // That of the client says nothing about the upstream.
    *request.version_mut() = Version::HTTP_11;
    remove_hop_by_hop(request.headers_mut());

    let response = upstream.client.request(request).await;
    // If the request was too large, the layer makes a 413 of this.
    let mut response = response.map_err(|_| StatusCode::BAD_GATEWAY)?;
    remove_hop_by_hop(response.headers_mut());
    Ok(response.map(Body::new))
}

/// Removes the fields that are meant for one connection (RFC 9110, section 7.6.1).
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named = headers.get_all(CONNECTION).iter();
    let named: Vec<HeaderName> = named
        .filter_map(|names| names.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let known = [
        CONNECTION,
        HeaderName::from_static("keep-alive"),
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        HeaderName::from_static("proxy-connection"),
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    for name in named.iter().chain(&known) {
        headers.remove(name);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let upstream = env::args().nth(1);
    let upstream = upstream.ok_or("usage: reverse_proxy HOST:PORT")?.parse()?;
    let listener = TcpListener::bind("127.0.0.1:3001").await?;
    println!("http://{} is {upstream}", listener.local_addr()?);
    axum::serve(listener, proxy(upstream)).await?;
    Ok(())
}
