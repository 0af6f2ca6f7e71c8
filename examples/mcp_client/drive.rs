//! rmcp's client on the backend, and what comes of its calls.

use std::error::Error;

use rmcp::{
    RoleClient, ServiceExt,
    model::{CallToolRequestParams, CallToolResult, ErrorData, ProtocolVersion},
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt, RunningService, ServiceError,
    },
    transport::streamable_http_client::{
        StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
    },
};
use tower_body_limit::TooLarge;

use super::{backend::Backend, server::Server, stack::Limits};

pub(crate) type Session = RunningService<RoleClient, ()>;

fn transport(server: &Server, limits: Limits) -> StreamableHttpClientTransport<Backend> {
    let config = StreamableHttpClientTransportConfig::with_uri(server.uri());
    StreamableHttpClientTransport::with_client(server.client(limits), config)
}

pub(crate) async fn connect(
    server: &Server,
    limits: Limits,
) -> Result<Session, ClientInitializeError> {
    ().serve(transport(server, limits)).await
}

/// The same by a client that asks first whether the server is a modern one.
pub(crate) async fn probe(
    server: &Server,
    limits: Limits,
) -> Result<Session, ClientInitializeError> {
    let lifecycle = ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::LATEST],
        legacy_version: Some(ProtocolVersion::V_2025_06_18),
    };
    ().serve_with_lifecycle(transport(server, limits), lifecycle)
        .await
}

pub(crate) async fn call(session: &Session) -> Result<CallToolResult, ServiceError> {
    session.call_tool(CallToolRequestParams::new("tool")).await
}

/// What came of it, in a few words.
pub(crate) fn outcome(result: &Result<CallToolResult, ServiceError>) -> String {
    match result {
        Ok(result) => format!("a result of {} bytes", size(result)),
        Err(ServiceError::McpError(error)) => rpc_error(error),
        Err(error) => failure(error),
    }
}

/// How many bytes of text or of base64 there are in it.
pub(crate) fn size(result: &CallToolResult) -> usize {
    let content = result.content.iter().map(|content| {
        let text = content.as_text().map_or(0, |text| text.text.len());
        let image = content.as_image().map_or(0, |image| image.data.len());
        text + image
    });
    content.sum()
}

fn rpc_error(error: &ErrorData) -> String {
    let code = error.code.0;
    let Some(data) = &error.data else {
        return format!("error {code}");
    };
    format!("error {code}: {}, {}", data["reason"], data["limit_bytes"]).replace('"', "")
}

/// The limit if it was the cause, or the text.
pub(crate) fn failure(error: &(dyn Error + 'static)) -> String {
    match TooLarge::find(error) {
        Some(error) => format!("too large, {}", error.limit()),
        None => error.to_string(),
    }
}
