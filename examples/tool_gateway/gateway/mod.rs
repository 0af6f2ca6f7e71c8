//! A gateway between a model that calls tools and the services that answer the calls.
//!
//! This directory is what a program would take over: nothing in it knows of the demonstration.
//!
//! | module | has |
//! |---|---|
//! | `limits` | how many bytes, by the environment |
//! | `client` | what is read: the stack of layers around hyper's client |
//! | `protocol` | REST, JSON-RPC, GraphQL and SOAP, as far as a call needs them |
//! | `result` | what is sent: the result, made to fit |
//! | `failure` | what is sent in its place |
//! | `cache` | answers that were sent once |

mod cache;
mod client;
mod failure;
mod limits;
mod protocol;
mod result;

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, State},
    response::IntoResponse,
    routing::post,
};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use serde_json::Value;
use tower_body_limit::RequestSizeLimitLayer;

pub(crate) use cache::Cache;
pub(crate) use client::METADATA_LIMIT;
pub(crate) use limits::{DEFAULT, Limits, VARIABLE};
pub(crate) use protocol::Protocol;

use client::Client;
use failure::Failure;

/// What the arguments of a call may have.
const ARGUMENTS_LIMIT: u64 = 1024 * 1024;

/// Where lines for the operator go.
pub(crate) type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Something that a model may call.
#[derive(Clone)]
pub(crate) struct Tool {
    pub(crate) source: Source,
    /// Told to the model with each result.
    pub(crate) hint: &'static str,
}

/// Where the answers of a tool come from.
#[derive(Clone)]
pub(crate) enum Source {
    Http(Endpoint),
    Rows(Query),
}

/// Rows of a database, by the arguments of the call.
pub(crate) type Query = Arc<dyn Fn(&Value) -> Vec<Value> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) protocol: Protocol,
    pub(crate) url: String,
    /// Where a token for each call comes from.
    pub(crate) token_url: Option<String>,
}

pub(crate) struct Gateway {
    client: Client,
    tools: HashMap<&'static str, Tool>,
    cache: Arc<Cache>,
    limits: Limits,
    log: Log,
}

impl Gateway {
    pub(crate) fn new(
        limits: Limits,
        tools: HashMap<&'static str, Tool>,
        cache: Arc<Cache>,
        log: Log,
    ) -> Self {
        Self {
            client: Client::new(limits.upstream),
            tools,
            cache,
            limits,
            log,
        }
    }

    /// `POST /tools/{name}` with the arguments as JSON; the answer is the result.
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/tools/{name}", post(respond))
            .layer(RequestSizeLimitLayer::server(ARGUMENTS_LIMIT))
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::new(self))
    }

    /// The result of a call, as JSON: what the tool has to say, or else why it does not.
    async fn call(&self, name: &str, arguments: &Value) -> Bytes {
        match self.answer(name, arguments).await {
            Ok(result) => result,
            Err(failure) => {
                (self.log)(&format!("tool {name}: {}: {failure}", failure.code()));
                failure.into_result()
            }
        }
    }

    async fn answer(&self, name: &str, arguments: &Value) -> Result<Bytes, Failure> {
        let tool = self.tools.get(name).ok_or(Failure::UnknownTool)?;
        let key = format!("{name} {arguments}");
        let cached = self.cache.get(&key);
        let is_new = cached.is_none();
        let payload = match (cached, &tool.source) {
            (Some(payload), _) => payload,
            (None, Source::Http(endpoint)) => self.ask(endpoint, arguments).await?,
            (None, Source::Rows(query)) => result::rows(&query(arguments)),
        };
        // The one place that every result passes, wherever it is from.
        let result = result::render(&payload, tool.hint, self.limits.result)?;
        if is_new {
            self.cache.put(key, payload);
        }
        Ok(result)
    }

    async fn ask(&self, endpoint: &Endpoint, arguments: &Value) -> Result<Bytes, Failure> {
        let mut request = endpoint.protocol.request(&endpoint.url, arguments)?;
        if let Some(url) = &endpoint.token_url {
            let token = self.client.token(url).await?;
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        let (status, body) = self.client.call(request).await?;
        endpoint.protocol.payload(status, body)
    }
}

async fn respond(
    State(gateway): State<Arc<Gateway>>,
    Path(name): Path<String>,
    Json(arguments): Json<Value>,
) -> impl IntoResponse {
    let result = gateway.call(&name, &arguments).await;
    ([(CONTENT_TYPE, "application/json")], result)
}
