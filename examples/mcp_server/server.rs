//! The server: rmcp's service, under the layers.

use std::{io, net::SocketAddr, sync::Arc};

use axum::Router;
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use tokio::net::TcpListener;
use tower_body_limit::{
    RequestSizeLimitLayer,
    json::{Fit, FitReport, JsonFitLayer, Unfit, rpc_error},
};

use crate::{limits::Limits, tools::CodeSearch};

/// The form in which the transport sends what a tool answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// As the events of a stream, which is what it does unless told.
    Events,
    /// As one JSON document.
    Json,
}

/// The tools, as rmcp serves them.
pub(crate) fn mcp(tools: CodeSearch, answers: Answers) -> Router {
    let config = StreamableHttpServerConfig::default()
        // The transport has a limit of its own, of 4 MiB, which would apply as well.
        .with_max_request_body_bytes(usize::MAX);
    let config = match answers {
        Answers::Events => config,
        Answers::Json => config
            .with_legacy_session_mode(false)
            .with_json_response(true),
    };
    let sessions = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(tools), sessions, config);
    Router::new().nest_service("/mcp", service)
}

/// A ceiling on whatever comes in, and on whatever any tool answers.
pub(crate) fn with_limits<F>(app: Router, limits: Limits, on_fit: F) -> Router
where
    F: Fn(Result<&FitReport, &Unfit>) + Send + Sync + 'static,
{
    // Whichever array it is that makes a result large. An offset can be that of one array only, so no
    // tool here has two that are long. Its result says where it starts, and `_meta` is where the markers
    // break no schema that a tool may have for its result.
    let fit = Fit::largest_array_in(limits.response, "/result/structuredContent")
        .copy_at("/result/content/0/text", "/result/structuredContent")
        .offset_at("/result/structuredContent/offset")
        .markers_at("/result/_meta")
        // All of a message is read to cut it, however little is kept.
        .max_scan(limits.response.saturating_mul(8).max(64 * 1024 * 1024))
        .note("{kept} of {total} items. Go on with \"offset\": {next_offset}.");
    let responses = JsonFitLayer::server(fit)
        .answer_with(rpc_error)
        .on_fit(on_fit);

    app.layer(responses)
        // The answer is a sentence. A JSON-RPC error would need the `id` of a request that was not
        // read, and without it no client knows which of its calls has failed.
        .layer(RequestSizeLimitLayer::server(limits.request))
}

/// On a port of the loopback interface, for as long as the runtime is there.
pub(crate) async fn serve(app: Router) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(address)
}
