//! Every kind of body, under, at and over its limit, over loopback.
//!
//! Two servers: one limits what it receives and what it sends, the other, the upstream, limits
//! nothing. Two clients, hyper's and reqwest's, each once as it is and once with a limit on what it
//! receives; and two bare sockets, of which one writes all of a request before it reads a byte, and the
//! other stops half way until it has the head of the answer. What came back is compared with what
//! should have, and the exit code says whether every row was right.
//!
//! ```sh
//! cargo run --example quickstart
//! ```

mod cases;
mod clients;
mod servers;

use std::{
    error::Error,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::timeout;

type BoxError = Box<dyn Error + Send + Sync>;

const REQUEST_LIMIT: u64 = 16 * 1024;
const RESPONSE_LIMIT: u64 = 1024 * 1024;
const ERROR_LIMIT: u64 = 64 * 1024;

/// How long a row may take.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    // What the handlers of uploads have read.
    let received = Arc::new(AtomicU64::new(0));
    let limited = servers::serve(servers::with_limits(&received)).await?;
    let upstream = servers::serve(servers::without_limits(&received)).await?;

    println!(
        "{:<8} {:<33} {:>8} {:>11}  {:<35} {:>10}",
        "client", "case", "limit", "sent", "what came back", "bytes read"
    );
    let (mut rows, mut wrong) = (0, 0);
    for (name, client) in clients::all()? {
        for case in cases::all().filter(|case| case.clients.contains(&name)) {
            let (server, client) = match case.limited_by {
                cases::Side::Server => (limited, client.clone()),
                cases::Side::Client => (upstream, clients::limit(client.clone())),
            };
            let (came_back, read) = timeout(PATIENCE, case.run(client, server))
                .await
                .unwrap_or_else(|_| (format!("nothing within {PATIENCE:?}"), 0));
            let read = match case.upload {
                Some(_) => received.swap(0, Relaxed),
                None => read,
            };
            println!(
                "{name:<8} {:<33} {:>8} {:>11}  {came_back:<35} {read:>10}",
                case.name,
                case.limit,
                sent(case.sent),
            );
            rows += 1;
            if came_back != case.comes_back || !case.read.contains(&read) {
                wrong += 1;
                println!("WRONG: expected {}, {:?}", case.comes_back, case.read);
            }
        }
    }
    println!("{} of {rows} rows are as they should be", rows - wrong);
    Ok(ExitCode::from(u8::from(wrong > 0)))
}

fn sent(bytes: u64) -> String {
    match bytes {
        u64::MAX => String::from("endless"),
        bytes => bytes.to_string(),
    }
}
