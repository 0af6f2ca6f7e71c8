//! A client of the server: rmcp's own, which knows nothing of these limits but the markers.

use std::{error::Error, net::SocketAddr};

use rmcp::{
    RoleClient, ServiceError, ServiceExt,
    model::{CallToolRequestParams, CallToolResult},
    service::{Peer, RunningService},
    transport::{
        StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::Value;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;
pub(crate) type Client = RunningService<RoleClient, ()>;

pub(crate) fn transport(
    server: SocketAddr,
) -> Result<StreamableHttpClientTransport<reqwest::Client>, BoxError> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let uri = format!("http://{server}/mcp");
    let config = StreamableHttpClientTransportConfig::with_uri(uri)
        // Its own limits, of 16 MiB, are not what is tried here.
        .max_json_response_size(usize::MAX)
        .max_sse_event_size(usize::MAX);
    Ok(StreamableHttpClientTransport::with_client(client, config))
}

pub(crate) async fn connect(server: SocketAddr) -> Result<Client, BoxError> {
    Ok(().serve(transport(server)?).await?)
}

pub(crate) async fn call(
    client: &Peer<RoleClient>,
    tool: &'static str,
    arguments: Value,
) -> Result<CallToolResult, ServiceError> {
    let params = CallToolRequestParams::new(tool);
    let params = match arguments {
        Value::Object(arguments) => params.with_arguments(arguments),
        _ => params,
    };
    client.call_tool(params).await
}

/// What a tool answered, in as many pages as it took.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub(crate) results: Vec<CallToolResult>,
    pub(crate) items: Vec<Value>,
}

/// Calls a tool and goes on at `next_offset` until there is none. The items are those of the array at
/// `pointer` in each result.
pub(crate) async fn pages(
    client: &Peer<RoleClient>,
    tool: &'static str,
    mut arguments: Value,
    pointer: &str,
) -> Result<Pages, BoxError> {
    let (mut pages, mut offset) = (Pages::default(), 0);
    loop {
        arguments["offset"] = offset.into();
        let mut result = call(client, tool, arguments.clone()).await?;
        let array = result
            .structured_content
            .as_mut()
            .and_then(|content| content.pointer_mut(pointer))
            .and_then(Value::as_array_mut)
            .ok_or("a page without items")?;
        pages.items.append(array);
        let next_offset = marker(&result, "next_offset").and_then(Value::as_u64);
        pages.results.push(result);
        match next_offset {
            Some(next) if next > offset => offset = next,
            Some(_) => return Err("a page that leads nowhere".into()),
            None => return Ok(pages),
        }
    }
}

/// What the result says about having been cut.
pub(crate) fn marker<'a>(result: &'a CallToolResult, name: &str) -> Option<&'a Value> {
    result.meta.as_ref()?.get(name)
}
