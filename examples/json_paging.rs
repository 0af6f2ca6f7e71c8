//! A search over 10,000 rows behind a limit of 64 KiB, paged to its end by a client that follows
//! `next_offset`.
//!
//! ```text
//! cargo run --features json --example json_paging
//! ```
//!
//! The handler knows nothing of the limit: it answers with all that is left from an offset, and says
//! which one that was. Exits with an error if a row is missing or comes twice.

use std::{collections::BTreeSet, error::Error};

use axum::{Extension, Json, Router, extract::Query, routing::get};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tower_body_limit::json::{BaseOffset, Fit, JsonFitLayer};

const ROWS: u64 = 10_000;
const LIMIT: u64 = 64 * 1024;

#[derive(Deserialize)]
struct Search {
    #[serde(default)]
    offset: u64,
}

#[derive(Serialize)]
struct Found {
    rows: Vec<Row>,
    took_ms: u32,
}

#[derive(Serialize, Deserialize)]
struct Row {
    id: u64,
    title: String,
}

/// What the client sees of an answer, cut or not.
#[derive(Deserialize)]
struct Page {
    rows: Vec<Row>,
    next_offset: Option<u64>,
}

async fn search(Query(search): Query<Search>) -> (Extension<BaseOffset>, Json<Found>) {
    let row = |id| Row {
        id,
        title: format!("\u{17c}\u{f3}\u{142}w no. {id}, found by \"search\""),
    };
    let found = Found {
        rows: (search.offset..ROWS).map(row).collect(),
        took_ms: 3,
    };
    // An extension of the response, for the layer.
    (Extension(BaseOffset::new(search.offset)), Json(found))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = Router::new()
        .route("/search", get(search))
        .layer(JsonFitLayer::server(Fit::array_at(LIMIT, "/rows")));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/search", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, app).await });

    let client = reqwest::Client::new();
    let (mut seen, mut next_offset, mut pages) = (BTreeSet::new(), Some(0), 0);
    while let Some(offset) = next_offset {
        let response = client.get(format!("{url}?offset={offset}")).send().await?;
        let body = response.error_for_status()?.bytes().await?;
        if body.len() as u64 > LIMIT {
            return Err(format!("a page of {} bytes", body.len()).into());
        }
        let page: Page = serde_json::from_slice(&body)?;
        for row in &page.rows {
            if !seen.insert(row.id) {
                return Err(format!("row {} came twice", row.id).into());
            }
        }
        pages += 1;
        next_offset = page.next_offset;
    }
    if seen.len() as u64 != ROWS || seen.last() != Some(&(ROWS - 1)) {
        return Err(format!("{} of {ROWS} rows came", seen.len()).into());
    }
    println!("{ROWS} rows in {pages} pages of at most {LIMIT} bytes, every row once");
    Ok(())
}
