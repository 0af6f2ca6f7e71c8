//! Thousands of clients that trickle, lie, vanish, reset and send bombs, and honest ones in between:
//! what they made of a server under both layers.
//!
//! ```sh
//! cargo bench --bench faults               # 4000 clients
//! cargo bench --bench faults -- 20000      # so many
//! cargo bench --bench faults -- --quick    # 340
//! ```
//!
//! Fails when an answer is wrong, something panics, a connection or a task is left over, or memory
//! grows. Nothing here is about time.

#![allow(missing_docs)]

#[path = "../tests/support/faults.rs"]
mod faults;
#[path = "support/mod.rs"]
mod harness;
#[path = "../tests/support/mod.rs"]
mod support;

use std::{env, process::ExitCode};

use harness::{Settings, Table};

/// As many as loopback has ports for.
const MOST: usize = 20_000;

#[tokio::main]
async fn main() -> ExitCode {
    let settings = Settings::from_args();
    let mut numbers = env::args().filter_map(|argument| argument.parse().ok());
    let clients = numbers.next().unwrap_or(settings.pick(4000, 340));
    if clients > MOST {
        eprintln!("at most {MOST} clients");
        return ExitCode::FAILURE;
    }
    let peers = ["axum", "hyper", "h2", "tower-http", "tokio"];
    println!("\n# Clients that do not keep to the rules\n");
    println!("{}\n{}", harness::machine(), harness::versions(&peers));
    let report = faults::run(clients).await;

    let mut kinds = Table::new(["client", "clients", "requests", "came back"]);
    for (kind, tally) in &report.tallies {
        let counts = [tally.clients, tally.requests()].map(|count| count.to_string());
        let row = [kind.to_string()].into_iter().chain(counts);
        kinds.row(row.chain([tally.to_string()]));
    }
    kinds.print("What each kind learned");

    let mut totals = Table::new(["in total", ""]);
    let mut total = |what: &str, count: String| totals.row([what.to_owned(), count]);
    total("connections", report.connections.to_string());
    total("requests tried", report.requests().to_string());
    total("breaches reported", report.breaches.to_string());
    total("answers wrong", report.wrong.len().to_string());
    total("bodies beyond their limit", report.beyond.to_string());
    total("panics", report.panics.to_string());
    total("connections leaked", report.leaked.to_string());
    total("tasks leaked", report.tasks.to_string());
    if let Some(memory) = report.memory {
        let kib = |bytes: u64| (bytes / 1024).to_string();
        total("resident when half were gone, KiB", kib(memory.before));
        total("resident at most, KiB", kib(memory.peak));
        total("resident when all were gone, KiB", kib(memory.after));
    }
    totals.print("What is left");

    let faults = report.faults();
    for fault in faults.iter().take(20) {
        println!("WRONG: {fault}");
    }
    if faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
