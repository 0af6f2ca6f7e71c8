//! An MCP client that bounds what it gathers: rmcp on a tower stack.
//!
//! rmcp's HTTP backend is a trait. Here it is implemented on hyper-util's client with the layers of this
//! crate around it, which are all that bounds anything. A server on loopback, over TCP and over a Unix
//! socket, sends what is under, at and over the limits. What came back is compared with what should
//! have, and so is the number of requests, and the exit code says whether every row was right.
//!
//! ```sh
//! cargo run --example mcp_client --features records
//! ```

mod backend;
mod drive;
mod events;
mod server;
mod stack;

use std::{error::Error, process::ExitCode, time::Duration};

use axum::body::Body;
use drive::{call, connect, failure, outcome, probe};
use serde_json::json;
use server::{Answer, Asked, Framing, Over, Server};
use stack::Limits;
use tokio::{sync::mpsc, time::timeout};

type BoxError = Box<dyn Error + Send + Sync>;

const MIB: usize = 1024 * 1024;

/// How long the rows of one transport may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it may take to find out that a server is a legacy one.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

struct Row {
    case: String,
    sent: String,
    came_back: String,
    expected: String,
}

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    println!("{:<5} {:<29} {:>9}  what came back", "over", "case", "sent");
    let (mut rows, mut wrong) = (0, 0);
    for over in Over::ALL {
        let name = format!("{over:?}").to_lowercase();
        for row in timeout(PATIENCE, all(over)).await?? {
            let (case, sent, came_back) = (&row.case, &row.sent, &row.came_back);
            println!("{name:<5} {case:<29} {sent:>9}  {came_back}");
            rows += 1;
            if row.came_back != row.expected {
                wrong += 1;
                println!("WRONG: expected {}", row.expected);
            }
        }
    }
    println!("{} of {rows} rows are as they should be", rows - wrong);
    Ok(ExitCode::from(u8::from(wrong > 0)))
}

fn small() -> Limits {
    Limits {
        json: 4096,
        page: 256,
        event: 1024,
        ..Limits::default()
    }
}

async fn all(over: Over) -> Result<Vec<Row>, BoxError> {
    let mut rows = Vec::new();
    for status in [200, 400] {
        for framing in Framing::ALL {
            for sent in [4095, 4096, 4097] {
                rows.push(answer(over, small(), status, framing, sent).await?);
            }
        }
    }
    for sent in [64 * MIB, 64 * MIB + 1] {
        rows.push(answer(over, Limits::default(), 200, Framing::Chunked, sent).await?);
    }
    rows.push(image(over).await?);
    for (limit, sent) in [(256, 256), (256, 257), (0, 257)] {
        rows.push(page(over, limit, sent).await?);
    }
    for sent in [1024, 1025] {
        rows.push(event(over, sent).await?);
    }
    rows.push(many_events(over).await?);
    rows.push(standing_stream(over).await?);
    let page = "?".repeat(MIB);
    let whole = move || Body::from(page.clone());
    rows.push(legacy(over, "1048576", whole).await?);
    rows.push(legacy(over, "endless", || server::endless("?")).await?);
    rows.push(legacy(over, "stalls", || server::stalling("?".into())).await?);
    Ok(rows)
}

/// What one call comes to that is answered by `script`, and how often the server was asked.
async fn one_call<F>(over: Over, limits: Limits, script: F) -> Result<(String, usize), BoxError>
where
    F: Fn(&Asked) -> Answer + Send + Sync + 'static,
{
    let is_call = |asked: &Asked| asked.what.starts_with("POST tools/call");
    let script = move |asked: &Asked| is_call(asked).then(|| script(asked));
    let server = Server::start(over, script).await?;
    let session = connect(&server, limits).await?;
    let result = call(&session).await;
    session.cancel().await?;
    let handshake = ["POST initialize", "POST notifications/initialized"];
    let seen = server.seen();
    let calls = seen.iter().filter(|what| !handshake.contains(&&***what));
    Ok((outcome(&result), calls.count()))
}

fn once((came_back, calls): (String, usize)) -> String {
    match calls {
        1 => came_back,
        _ => format!("{came_back}, by {calls} requests"),
    }
}

async fn answer(
    over: Over,
    limits: Limits,
    status: u16,
    framing: Framing,
    sent: usize,
) -> Result<Row, BoxError> {
    let limit = limits.json;
    let result = one_call(over, limits, move |asked| {
        let text = match status {
            200 => server::result(&asked.id, sent),
            _ => server::error(&asked.id, sent),
        };
        server::json(status, framing.body(text))
    });
    let around = server::result(&json!(1), 0).len();
    Ok(Row {
        case: format!("JSON, {status}, {framing:?}").to_lowercase(),
        sent: sent.to_string(),
        came_back: once(result.await?),
        expected: match status {
            _ if sent as u64 > limit => format!("too large, {limit}"),
            200 => format!("a result of {} bytes", sent - around),
            _ => String::from("error -32001"),
        },
    })
}

async fn image(over: Over) -> Result<Row, BoxError> {
    let sent = 17 * MIB;
    let result = one_call(over, Limits::default(), move |asked| {
        let image =
            json!({"type": "image", "mimeType": "image/png", "data": "QUJD".repeat(sent / 4)});
        let answer = json!({"jsonrpc": "2.0", "id": asked.id, "result": {"content": [image]}});
        server::json(200, Body::from(answer.to_string()))
    });
    Ok(Row {
        case: String::from("an image in base64"),
        sent: sent.to_string(),
        came_back: once(result.await?),
        expected: format!("a result of {sent} bytes"),
    })
}

async fn page(over: Over, limit: u64, sent: usize) -> Result<Row, BoxError> {
    let limits = Limits {
        page: limit,
        ..small()
    };
    let result = one_call(over, limits, move |_| {
        server::page(502, Body::from("?".repeat(sent)))
    });
    let (came_back, calls) = result.await?;
    // The rest of the text is the page.
    let read = came_back.matches('?').count();
    let came_back = came_back.replace('?', "");
    let came_back = came_back.split("HTTP").nth(1).unwrap_or(&came_back).trim();
    Ok(Row {
        case: String::from("error page"),
        sent: sent.to_string(),
        came_back: once((format!("{came_back} {read} bytes"), calls)),
        expected: match limit {
            0 => String::from("502 Bad Gateway 0 bytes"),
            256 if sent > 256 => {
                String::from("502 Bad Gateway, the first 256 bytes of it: 256 bytes")
            }
            _ => format!("502 Bad Gateway: {sent} bytes"),
        },
    })
}

async fn event(over: Over, sent: usize) -> Result<Row, BoxError> {
    let result = one_call(over, small(), move |asked| {
        // With an id a stream can be asked for again, and the server wants that at once.
        let data = server::result(&asked.id, sent - "data: ".len());
        let text = format!("retry: 0\nid: 1\n\ndata: {data}\n\n");
        server::events(Body::from(text))
    });
    let around = server::result(&json!(1), 0).len() + "data: ".len();
    Ok(Row {
        case: String::from("event"),
        sent: sent.to_string(),
        came_back: once(result.await?),
        expected: match sent {
            1025 => String::from("error -32603: response_too_large, 1024"),
            _ => format!("a result of {} bytes", sent - around),
        },
    })
}

async fn many_events(over: Over) -> Result<Row, BoxError> {
    const LOG: &str = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"..."}}"#;
    let sent = 10_000 * (LOG.len() + "data: \n\n".len());
    let result = one_call(over, small(), move |asked| {
        let logs = format!("data: {LOG}\n\n").repeat(10_000);
        let result = server::result(&asked.id, 500);
        let text = format!("{logs}data: {result}\n\n");
        server::events(Framing::Chunked.body(text))
    });
    let around = server::result(&json!(1), 0).len();
    Ok(Row {
        case: String::from("many events, then the result"),
        sent: sent.to_string(),
        came_back: once(result.await?),
        expected: format!("a result of {} bytes", 500 - around),
    })
}

/// The stream of what nobody asked for: an event that is too large ends it, and calls go on.
async fn standing_stream(over: Over) -> Result<Row, BoxError> {
    let (gone, mut is_gone) = mpsc::unbounded_channel();
    let server = Server::start(over, move |asked| {
        if asked.what.starts_with("GET") {
            let text = format!("retry: 0\nid: 1\n\ndata: {}\n\n", "x".repeat(1024));
            let body = server::reporting(server::stalling(text), gone.clone());
            return Some(server::events(body));
        }
        server::with_session(asked)
    })
    .await?;
    let session = connect(&server, small()).await?;
    is_gone.recv().await.ok_or("the server is gone")?;
    let mut results = 0;
    for _ in 0..20 {
        results += usize::from(call(&session).await.is_ok());
    }
    session.cancel().await?;
    let seen = server.seen();
    let streams = seen.iter().filter(|what| what.starts_with("GET")).count();
    Ok(Row {
        case: String::from("event on the standing stream"),
        sent: String::from("1030"),
        came_back: format!("streams asked for: {streams}, results after that: {results}"),
        expected: String::from("streams asked for: 1, results after that: 20"),
    })
}

async fn legacy<F>(over: Over, sent: &str, body: F) -> Result<Row, BoxError>
where
    F: Fn() -> Body + Send + Sync + 'static,
{
    let server = Server::start(over, move |asked| {
        (asked.what == "POST server/discover").then(|| server::page(400, body()))
    })
    .await?;
    let came_back = match timeout(PROBE_PATIENCE, probe(&server, Limits::default())).await {
        Ok(Ok(session)) => {
            session.cancel().await?;
            server.seen().join(", ").replace("POST ", "")
        }
        Ok(Err(error)) => failure(&error),
        Err(_) => String::from("nothing"),
    };
    Ok(Row {
        case: String::from("page of a legacy server"),
        sent: String::from(sent),
        came_back,
        expected: String::from("server/discover, initialize, notifications/initialized"),
    })
}
