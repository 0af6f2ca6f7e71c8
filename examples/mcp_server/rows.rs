//! What is tried, and what should come back.

use std::sync::{Arc, Mutex};

use rmcp::{RoleClient, ServiceError, model::CallToolResult, service::Peer};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    client::{BoxError, Client, call, connect, marker, pages},
    limits::Limits,
    server::{Answers, mcp, serve, with_limits},
    tools::{BUNDLE, CodeSearch, EVERYWHERE, snippet, symbol},
};

/// What the layer says of each message that was over the limit: how large it was, and how large it is.
type Log = Arc<Mutex<Vec<(u64, Option<u64>)>>>;

pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The largest message of the tool, and what was sent of it, if it was over the limit.
    pub(crate) made: Option<u64>,
    pub(crate) sent: Option<u64>,
    pub(crate) came_back: String,
    pub(crate) should: String,
}

/// Two clients, of the server with limits and of the one without.
struct Clients {
    limited: Client,
    bare: Client,
    limits: Limits,
    tools: CodeSearch,
    log: Log,
}

pub(crate) async fn all(answers: Answers, limits: Limits) -> Result<Vec<Row>, BoxError> {
    // Enough of everything for some pages.
    let tools = CodeSearch {
        snippets: limits.response / 700,
        bundle: limits.response as usize,
    };
    let log = Log::default();
    let server = with_limits(mcp(tools, answers), limits, {
        let log = Arc::clone(&log);
        move |result| {
            let sizes = match result {
                Ok(report) => (report.original(), Some(report.len())),
                Err(unfit) => (unfit.actual(), None),
            };
            log.lock().expect("no panic").push(sizes);
        }
    });
    let clients = Clients {
        limited: connect(serve(server).await?).await?,
        bare: connect(serve(mcp(tools, answers)).await?).await?,
        limits,
        tools,
        log,
    };
    let rows = vec![
        clients.initialize(),
        clients.list_tools().await?,
        clients.small("search, one match").await?,
        clients.search().await?,
        clients.list_symbols().await?,
        clients.read_file().await,
        clients.long_request().await,
        clients.small("search, after all that").await?,
    ];
    clients.limited.cancel().await?;
    clients.bare.cancel().await?;
    Ok(rows)
}

const SAME: &str = "the same as without limits";

impl Clients {
    fn initialize(&self) -> Row {
        let info = |client: &Client| client.peer_info().map(|info| json!(*info));
        self.same("initialize", info(&self.limited), info(&self.bare))
    }

    async fn list_tools(&self) -> Result<Row, BoxError> {
        let tools = self.limited.list_all_tools().await?;
        let bare = self.bare.list_all_tools().await?;
        Ok(self.same("tools/list", tools, bare))
    }

    async fn small(&self, name: &'static str) -> Result<Row, BoxError> {
        let one = |client: &Peer<RoleClient>| {
            let client = client.clone();
            async move { call(&client, "search", json!({ "query": "value_1 " })).await }
        };
        let (result, bare) = (one(&self.limited).await?, one(&self.bare).await?);
        Ok(self.same(name, result, bare))
    }

    async fn search(&self) -> Result<Row, BoxError> {
        let arguments = json!({ "query": EVERYWHERE });
        let expected = (0..self.tools.snippets).map(|n| json!(snippet(n)));
        self.paged("search", arguments, "/matches", expected).await
    }

    async fn list_symbols(&self) -> Result<Row, BoxError> {
        let expected = (0..self.tools.snippets).map(|n| json!(symbol(n)));
        self.paged("list_symbols", json!({}), "/module/symbols", expected)
            .await
    }

    async fn paged(
        &self,
        tool: &'static str,
        arguments: Value,
        pointer: &str,
        expected: impl Iterator<Item = Value>,
    ) -> Result<Row, BoxError> {
        let pages = pages(&self.limited, tool, arguments, pointer).await?;
        let expected: Vec<_> = expected.collect();
        let (last, cut) = pages.results.split_last().ok_or("no page")?;
        let is_marked = |result: &CallToolResult| {
            let truncated = marker(result, "truncated") == Some(&json!(true));
            truncated && marker(result, "cap_reason") == Some(&json!("size_limit"))
        };
        let marked = match cut.iter().all(is_marked) && !is_marked(last) {
            true => "all but the last marked",
            false => "wrongly marked",
        };
        let each = match pages.items == expected {
            true => "each item once",
            false => "not each item once",
        };
        let count = pages.results.len();
        let came_back = format!("{count} pages, {marked}, {each}");
        let count = count.max(2);
        let should = format!("{count} pages, all but the last marked, each item once");
        Ok(self.row(tool, came_back, &should))
    }

    async fn read_file(&self) -> Row {
        let result = call(&self.limited, "read_file", json!({ "path": BUNDLE })).await;
        let came_back = match result {
            Err(ServiceError::McpError(error)) => {
                let data = error.data.unwrap_or_default();
                let (reason, limit) = (&data["reason"], &data["limit_bytes"]);
                let more = match data["actual_bytes"].as_u64() > Some(self.limits.response) {
                    true => "more",
                    false => "not more",
                };
                let code = error.code.0;
                format!("error {code}, {reason}, {more} than {limit} bytes")
            }
            other => outcome(other),
        };
        let limit = self.limits.response;
        let should = format!("error -32603, \"response_too_large\", more than {limit} bytes");
        self.row("read_file", came_back, &should)
    }

    async fn long_request(&self) -> Row {
        let query = "x".repeat(self.limits.request as usize);
        let result = call(&self.limited, "search", json!({ "query": query })).await;
        let came_back = match result {
            Err(error @ ServiceError::TransportSend(_)) => {
                let text = error.to_string();
                let status = text.find("HTTP ").map(|at| &text[at..]);
                status.unwrap_or(&text).trim_end().to_owned()
            }
            other => outcome(other),
        };
        let should = "HTTP 413 Payload Too Large: The request body is too large.";
        self.row("search, too long a query", came_back, should)
    }

    fn same<T>(&self, name: &'static str, limited: T, bare: T) -> Row
    where
        T: PartialEq + Serialize,
    {
        let came_back = match limited == bare {
            true => SAME.to_owned(),
            false => json!(limited).to_string(),
        };
        self.row(name, came_back, SAME)
    }

    fn row(&self, name: &'static str, came_back: String, should: &str) -> Row {
        let log: Vec<_> = self.log.lock().expect("no panic").drain(..).collect();
        Row {
            name,
            made: log.iter().map(|(made, _)| *made).max(),
            sent: log.iter().filter_map(|(_, sent)| *sent).max(),
            came_back,
            should: should.to_owned(),
        }
    }
}

fn outcome(result: Result<CallToolResult, ServiceError>) -> String {
    match result {
        Ok(_) => "a result".to_owned(),
        Err(error) => error.to_string(),
    }
}
