//! The tower stack: hyper-util's client, and around it a bound for each thing that a reader gathers.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{self, Client, connect::Connect},
    rt::TokioExecutor,
};
use tower::{ServiceBuilder, util::BoxCloneSyncService};
use tower_body_limit::{
    MediaTypeLimits, RecordLimitLayer, RecordLimitedBody, ResponseBody, ResponseSizeLimitLayer,
    TruncateLayer, TruncatedBody,
};

/// What a client is willing to gather, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// A JSON answer, whatever its status.
    pub(crate) json: u64,
    /// What is read of an error page; zero leaves the text out.
    pub(crate) page: u64,
    /// A server-sent event. There may be any number of them.
    pub(crate) event: u64,
    /// How long an error page is read.
    pub(crate) patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            json: 64 * 1024 * 1024,
            page: 64 * 1024,
            event: 16 * 1024 * 1024,
            patience: Duration::from_secs(1),
        }
    }
}

pub(crate) type HttpBody = ResponseBody<RecordLimitedBody<TruncatedBody<Incoming>>>;
pub(crate) type Http = BoxCloneSyncService<Request<Full<Bytes>>, Response<HttpBody>, legacy::Error>;

pub(crate) fn over_tcp(limits: &Limits) -> Http {
    stack(limits, Client::builder(TokioExecutor::new()).build_http())
}

#[cfg(unix)]
pub(crate) fn over_unix(limits: &Limits, socket: std::path::PathBuf) -> Http {
    use hyper_util::rt::TokioIo;
    use tokio::net::UnixStream;

    let connector = tower::service_fn(move |_: http::Uri| {
        let socket = socket.clone();
        Box::pin(async move { UnixStream::connect(socket).await.map(TokioIo::new) })
    });
    stack(
        limits,
        Client::builder(TokioExecutor::new()).build(connector),
    )
}

fn stack<C>(limits: &Limits, client: Client<C, Full<Bytes>>) -> Http
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let whole = MediaTypeLimits::new(limits.page)
        .json(limits.json)
        .event_stream(None);
    let stack = ServiceBuilder::new()
        .layer(ResponseSizeLimitLayer::client(whole))
        .layer(RecordLimitLayer::sse(limits.event))
        .layer(TruncateLayer::new(limits.page))
        .service(client);
    BoxCloneSyncService::new(stack)
}
