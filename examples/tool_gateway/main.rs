//! A gateway from a model's tool calls to upstreams, which bounds what it reads and what it sends.
//!
//! The upstreams speak REST, JSON-RPC, GraphQL and SOAP, and send as much as they are asked for. What
//! came back of each call is compared with what should have, and the exit code says whether every row
//! was right. The limit is that of the environment, 10 MiB unless told:
//!
//! ```sh
//! cargo run --features json --example tool_gateway
//! TOOL_MAX_RESPONSE_BYTES=1MiB cargo run --features json --example tool_gateway
//! ```
//!
//! The directory `gateway` is the program; `upstreams` and `cases` are what it is shown with.

mod cases;
mod gateway;
mod upstreams;

use std::{error::Error, process::ExitCode, sync::Arc};

use gateway::{Limits, Log, VARIABLE};

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let log: Log = Arc::new(|line| eprintln!("{line}"));
    let limits = Limits::from_env(&log);
    if !cases::LIMITS.contains(&limits.upstream) {
        return Err(format!("the cases are for a {VARIABLE} in {:?}", cases::LIMITS).into());
    }
    println!(
        "{:<7} {:<45} {:>9} {:>9} {:>9} {:>9}  came back",
        "tool", "case", "may read", "may send", "has", "is sent"
    );
    let (mut rows, mut wrong) = (0, 0);
    cases::run(limits, |row| {
        let sent = row.sent.map(|sent| sent.to_string()).unwrap_or_default();
        println!(
            "{:<7} {:<45} {:>9} {:>9} {:>9} {sent:>9}  {}",
            row.tool, row.case, row.limits.upstream, row.limits.result, row.has, row.came_back
        );
        rows += 1;
        if row.came_back != row.expected {
            wrong += 1;
            println!("WRONG: expected {}", row.expected);
        }
    })
    .await?;
    println!("{} of {rows} rows are as they should be", rows - wrong);
    Ok(ExitCode::from(u8::from(wrong > 0)))
}
