//! An MCP server with a ceiling on what any of its tools may answer, and rmcp's client that gets all
//! of it in pages.
//!
//! ```sh
//! cargo run --features json,records --example mcp_server
//! MCP_MAX_REQUEST=64KiB MCP_MAX_RESPONSE=256KiB cargo run --features json,records --example mcp_server
//! MCP_MAX_RESPONSE=much cargo run --features json,records --example mcp_server
//! ```
//!
//! Twice the same rows: once the transport answers by event streams, and once by JSON documents. What
//! came back is compared with what should have, and with what a server without limits says. The exit code
//! says whether every row was right.
//!
//! | environment | default | |
//! |---|---|---|
//! | `MCP_MAX_REQUEST` | `1MiB` | the most that a request may have, as `4096`, `64KiB`, `1.5MB` ... |
//! | `MCP_MAX_RESPONSE` | `10MiB` | the most that a message of the server may have |

mod client;
mod limits;
mod rows;
mod server;
mod tools;

use std::{env, process::ExitCode, time::Duration};

use tokio::time::timeout;

use client::BoxError;
use limits::Limits;
use server::Answers;

/// How long the rows of a form of answers may take.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("mcp_server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<ExitCode, BoxError> {
    let limits = Limits::read(|name| env::var(name))?;
    println!("requests:  at most {} bytes", limits.request);
    println!("responses: at most {} bytes a message\n", limits.response);

    println!(
        "{:<8} {:<25} {:>10} {:>10}  what came back",
        "answers", "call", "made", "sent"
    );
    let (mut count, mut wrong) = (0, 0);
    for answers in [Answers::Events, Answers::Json] {
        let rows = timeout(PATIENCE, rows::all(answers, limits)).await??;
        for row in rows {
            println!(
                "{:<8} {:<25} {:>10} {:>10}  {}",
                format!("{answers:?}"),
                row.name,
                size(row.made),
                size(row.sent),
                row.came_back,
            );
            count += 1;
            if row.came_back != row.should || row.sent > Some(limits.response) {
                wrong += 1;
                println!("WRONG: expected {}", row.should);
            }
        }
    }
    println!("{} of {count} rows are as they should be", count - wrong);
    Ok(ExitCode::from(u8::from(wrong > 0)))
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| bytes.to_string())
}
