//! How many clients receive the 413: this crate, tower-http and axum side by side.
//!
//! ```sh
//! cargo bench --bench delivery                     # 20 tries each
//! cargo bench --bench delivery -- --full           # 100 tries each
//! cargo bench --bench delivery -- 5 raw reqwest    # 5 tries, some of the clients
//! cargo bench --bench delivery -- --quick          # 1 try each
//! ```
//!
//! A try counts as received when the whole answer arrived. Each is on a connection of its own, over
//! the loopback interface, and takes 20 seconds at most. Servers and clients share the machine.
//! A run with all of the clients keeps its results, in per cent, for the picture.

#![allow(missing_docs)]

#[path = "support/mod.rs"]
mod harness;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../tests/support/uploads.rs"]
mod uploads;

use std::{
    collections::BTreeMap,
    env,
    future::pending,
    io::{self, Write},
    time::{Duration, Instant},
};

use axum::{Router, extract::DefaultBodyLimit, routing::post};
use bytes::Bytes;
use harness::{Results, Settings, Table, median, number};
use support::{Hint, VARIANTS, net::Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    select,
    task::yield_now,
    time::sleep,
};
use tower_body_limit::RequestSizeLimitLayer;
use tower_http::limit::RequestBodyLimitLayer;
use uploads::{KINDS, Kind, MIB, Upload};

const LIMIT: usize = MIB;
const SIZES: [usize; 3] = [2, 16, 64];

#[tokio::main]
async fn main() -> Result<(), String> {
    let settings = Settings::from_args();
    let arguments = Arguments::parse(settings)?;
    let tries = arguments.tries;
    let peers = ["axum", "hyper", "hyper-util", "reqwest", "tower-http"];
    settings.introduce("Refused clients that receive the 413", &peers);
    println!("received / tried, {tries} tries each, limit 1 MiB");
    let servers = servers().await;
    println!("received means whole; the second column is the first with a larger budget\n");
    print!("{:<32} {:>6} {:<10}", "client", "MiB", "length");
    for (name, _) in &servers {
        print!(" {name:>20}");
    }
    println!();

    let is_whole = arguments.kinds.len() == KINDS.len();
    let mut results = Results::default();
    let mut losses = BTreeMap::new();
    for kind in arguments.kinds {
        if !kind.is_installed().await {
            println!("{kind:<32} is not installed");
            continue;
        }
        for (size, hint) in SIZES
            .iter()
            .flat_map(|size| VARIANTS.map(|hint| (size, hint)))
        {
            let length = format!("{hint:?}").to_lowercase();
            print!("{:<32} {size:>6} {length:<10}", kind.to_string());
            for (name, server) in &servers {
                let upload = Upload {
                    addr: server.addr,
                    size: size * MIB,
                    hint: hint.clone(),
                };
                let mut received = 0;
                for learned in kind.upload(&upload, tries).await {
                    match learned {
                        Ok(413) => received += 1,
                        lost => *losses.entry((*name, kind.to_string(), lost)).or_insert(0) += 1,
                    }
                }
                let case = format!("{kind}, {size} MiB {length}");
                results.add(case, *name, f64::from(received * 100) / tries as f64);
                print!(" {:>20}", format!("{received} / {tries}"));
                // A row takes a while.
                let _ = io::stdout().flush();
            }
            println!();
        }
    }

    println!("\nwhat the others learned");
    for ((name, kind, learned), times) in losses {
        let learned = learned.map_or_else(|error| error, |status| format!("status {status}"));
        println!("{times:>6} x {name}, {kind}: {learned}");
    }
    if is_whole {
        results.save("delivery", settings);
    }
    let mut table = Table::new(
        ["a client that stalls after 2 MiB of 16"]
            .into_iter()
            .chain(servers.iter().map(|(name, _)| *name)),
    );
    for hint in VARIANTS {
        let mut row = vec![format!("{hint:?}").to_lowercase()];
        for (_, server) in &servers {
            let mut waits = Vec::new();
            for _ in 0..settings.pick(11, 1) {
                waits.push(wait_for_head(server, &hint).await);
            }
            row.push(number(median(waits.into_iter())));
        }
        table.row(row);
    }
    table.print("Time to the head of the 413: median, in ms");
    Ok(())
}

/// How long a client that has stopped writing waits for the head of its answer, in milliseconds.
async fn wait_for_head(server: &Server, hint: &Hint) -> f64 {
    let mut client = TcpStream::connect(server.addr)
        .await
        .expect("a server listens");
    let framing = match hint {
        Hint::Declared => format!("content-length: {}\r\n\r\n", 16 * MIB),
        _ => format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", 16 * MIB),
    };
    let mut upload = format!("POST / HTTP/1.1\r\nhost: localhost\r\n{framing}").into_bytes();
    upload.resize(upload.len() + 2 * MIB, b'x');
    let start = Instant::now();
    let (mut reader, mut writer) = client.split();
    let write = async {
        for chunk in upload.chunks(64 * 1024) {
            // Whoever has answered may have closed the connection.
            if writer.write_all(chunk).await.is_err() {
                break;
            }
            // To look for the answer, also while the server takes all that is written.
            yield_now().await;
        }
        pending().await
    };
    let mut answer = Vec::new();
    let read = async {
        while !answer.ends_with(b"\r\n\r\n") {
            match reader.read_u8().await {
                Ok(byte) => answer.push(byte),
                Err(_) => return false,
            }
        }
        answer.starts_with(b"HTTP/1.1 413")
    };
    let arrived = select! {
        arrived = read => arrived,
        () = write => unreachable!("it stalls"),
        () = sleep(Duration::from_secs(20)) => false,
    };
    if arrived {
        start.elapsed().as_secs_f64() * 1000.0
    } else {
        f64::INFINITY
    }
}

struct Arguments {
    tries: usize,
    kinds: Vec<Kind>,
}

impl Arguments {
    fn parse(settings: Settings) -> Result<Self, String> {
        let mut tries = settings.pick(20, 1);
        let mut wanted = Vec::new();
        for argument in env::args().skip(1) {
            match argument.as_str() {
                // What cargo says to every benchmark.
                "--bench" | "--quick" => {}
                "--full" => tries = 100,
                number if number.parse().is_ok_and(|number: usize| number > 0) => {
                    tries = number.parse().unwrap();
                }
                client => wanted.push(client.to_owned()),
            }
        }
        let is_wanted = |kind: &Kind| {
            let name = kind.to_string().to_lowercase();
            wanted.is_empty() || wanted.iter().any(|it| name.contains(&it.to_lowercase()))
        };
        let kinds: Vec<_> = KINDS.into_iter().filter(is_wanted).collect();
        if kinds.is_empty() {
            return Err(format!("no client is called {wanted:?}"));
        }
        Ok(Self { tries, kinds })
    }
}

/// The servers, each with the same route under the same limit.
async fn servers() -> [(&'static str, Server); 4] {
    let limit = LIMIT as u64;
    let standard = RequestSizeLimitLayer::server(limit);
    let raised = standard
        .clone()
        .drain(128 * MIB as u64, Duration::from_secs(5));
    let theirs = RequestBodyLimitLayer::new(LIMIT);
    let no_default = || app().layer(DefaultBodyLimit::disable());
    [
        (
            "tower-body-limit",
            Server::start(no_default().layer(standard)).await,
        ),
        (
            "with drain(128 MiB)",
            Server::start(no_default().layer(raised)).await,
        ),
        (
            "tower-http",
            Server::start(no_default().layer(theirs)).await,
        ),
        (
            "DefaultBodyLimit",
            Server::start(app().layer(DefaultBodyLimit::max(LIMIT))).await,
        ),
    ]
}

fn app() -> Router {
    Router::new().route("/", post(async |body: Bytes| body.len().to_string()))
}
