//! What limits cost an axum server, over the loopback interface.
//!
//! ```sh
//! cargo bench --bench loopback
//! ```
//!
//! All servers share one thread and the clients another. The clients do as little as they can, so
//! that it is the server that is waited for.

mod support;

use std::{
    convert::identity,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::mpsc,
    thread,
    time::Instant,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::DefaultBodyLimit,
    routing::get,
};
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use support::{Contender, KIB, MIB, Results, Settings, Table, bodies::Frames, compete, number};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
};
use tower::{
    ServiceBuilder,
    make::Shared,
    util::{MapRequestLayer, MapResponseLayer},
};
use tower_body_limit::{RequestSizeLimitLayer, ResponseSizeLimitLayer};
use tower_http::limit::RequestBodyLimitLayer;

const LIMIT: u64 = 64 * MIB;
const SMALL: u64 = KIB;
const LARGE: u64 = 16 * MIB;

const BARE: &str = "axum";
const IDLE: &str = "an idle layer";
const OURS: &str = "both layers";
const AROUND: &str = "around the router";
const PEERS: &str = "tower-http + Limited";
const DEFAULT: &str = "DefaultBodyLimit";
const CONTENDERS: [&str; 6] = [BARE, IDLE, OURS, AROUND, PEERS, DEFAULT];

fn app(contender: &str) -> Router {
    let small = || async { Bytes::from_static(&[b'x'; SMALL as usize]) };
    let frames = Frames::new(64 * 1024, LARGE / (64 * KIB));
    let large = move || async { Body::new(frames) };
    let app = Router::new()
        .route(
            "/small",
            get(small).post(async |body: Bytes| body.len().to_string()),
        )
        .route("/large", get(large).post(count));
    match contender {
        BARE => app.layer(DefaultBodyLimit::disable()),
        // The price of any layer: axum boxes a service, its future and both bodies once more.
        IDLE => {
            let request = |request: Request<Body>| request.map(|body| body.map_err(identity));
            let response = |response: Response<Body>| response.map(|body| body.map_err(identity));
            let layers = ServiceBuilder::new()
                .layer(MapRequestLayer::new(request))
                .layer(MapResponseLayer::new(response));
            app.layer(layers).layer(DefaultBodyLimit::disable())
        }
        OURS => {
            let layers = ServiceBuilder::new()
                .layer(RequestSizeLimitLayer::server(LIMIT))
                .layer(ResponseSizeLimitLayer::server(LIMIT));
            app.layer(layers).layer(DefaultBodyLimit::disable())
        }
        PEERS => {
            let limited =
                |response: Response<Body>| response.map(|body| Limited::new(body, LIMIT as usize));
            let layers = ServiceBuilder::new()
                .layer(RequestBodyLimitLayer::new(LIMIT as usize))
                .layer(MapResponseLayer::new(limited));
            app.layer(layers).layer(DefaultBodyLimit::disable())
        }
        DEFAULT => app.layer(DefaultBodyLimit::max(LIMIT as usize)),
        unknown => panic!("no such contender: {unknown}"),
    }
}

async fn serve(listener: TcpListener, contender: &str) -> io::Result<()> {
    if contender != AROUND {
        return axum::serve(listener, app(contender)).await;
    }
    // Around a router there is no layer of axum's, so what axum boxes for one is not boxed.
    let service = ServiceBuilder::new()
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(RequestSizeLimitLayer::server(LIMIT))
        .layer(ResponseSizeLimitLayer::server(LIMIT))
        .service(app(BARE));
    axum::serve(listener, Shared::new(service)).await
}

async fn count(mut body: Body) -> String {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
    }
    read.to_string()
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime for the loopback interface")
}

/// Starts one server for each contender, all on one thread.
fn start_servers() -> Vec<SocketAddr> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        runtime().block_on(async {
            let servers = CONTENDERS.map(async |contender| {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
                let listener = listener.expect("a port");
                sender
                    .send(listener.local_addr().expect("bound"))
                    .expect("main waits");
                serve(listener, contender).await
            });
            join_all(servers).await;
        });
    });
    let count = CONTENDERS.len();
    receiver.into_iter().take(count).collect()
}

/// A connection on which one request is made again and again.
struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    response: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr, request: Vec<u8>) -> Self {
        let stream = TcpStream::connect(address).await.expect("a server listens");
        stream.set_nodelay(true).expect("it is TCP");
        let mut connection = Self {
            stream,
            request,
            response: vec![0; 64 * 1024],
        };
        connection.learn().await;
        connection
    }

    /// Makes the request once, to know how long the answer is: from then on that is all the same.
    async fn learn(&mut self) {
        self.stream
            .write_all(&self.request)
            .await
            .expect("the server reads");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.stream.read_u8().await.expect("the server answers"));
        }
        let head = String::from_utf8(head).expect("a head is ASCII");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok())
            .expect("the length is declared");
        self.read(length).await;
        self.response.resize(head.len() + length, 0);
    }

    async fn read(&mut self, length: usize) {
        self.response.resize(length, 0);
        let read = self.stream.read_exact(&mut self.response).await;
        read.expect("the answer is whole");
    }

    async fn exchange(&mut self, times: u64) {
        for _ in 0..times {
            self.stream
                .write_all(&self.request)
                .await
                .expect("the server reads");
            let read = self.stream.read_exact(&mut self.response).await;
            read.expect("the answer is as long as the first");
        }
    }
}

/// What the clients ask for.
struct Load {
    name: &'static str,
    unit: &'static str,
    request: Vec<u8>,
    connections: usize,
    times: u64,
    /// What one exchange is worth, in units.
    worth: f64,
}

fn loads(settings: Settings) -> [Load; 4] {
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes();
    let post = |path: &str, length: u64| {
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
        let mut request = head.into_bytes();
        request.resize(request.len() + length as usize, b'x');
        request
    };
    let small = |name, request| Load {
        name,
        unit: "requests/s",
        request,
        connections: 16,
        times: settings.pick(100, 2),
        worth: 1.0,
    };
    let large = |name, request| Load {
        name,
        unit: "MiB/s",
        request,
        connections: 2,
        times: settings.pick(2, 1),
        worth: LARGE as f64 / MIB as f64,
    };
    [
        small("upload of 1 KiB", post("/small", SMALL)),
        small("download of 1 KiB", get("/small")),
        large("upload of 16 MiB", post("/large", LARGE)),
        large("download of 16 MiB", get("/large")),
    ]
}

fn main() {
    let settings = Settings::from_args();
    settings.introduce("Over the loopback interface", &support::PEERS);
    let servers = start_servers();
    let clients = runtime();
    let rounds = settings.pick(61, 3);
    let mut table = Table::new(["load", "unit"].into_iter().chain(CONTENDERS).chain([
        "ours / axum",
        "around / axum",
        "ours / idle",
        "peer / axum",
        "default / axum",
    ]));
    let mut results = Results::default();
    for load in loads(settings) {
        let contenders = CONTENDERS
            .into_iter()
            .zip(&servers)
            .map(|(name, &address)| {
                let open = || Connection::open(address, load.request.clone());
                let opened = join_all((0..load.connections).map(|_| open()));
                let mut connections = clients.block_on(opened);
                let (clients, load) = (&clients, &load);
                Contender::new(name, move || {
                    let start = Instant::now();
                    let exchanges = connections.iter_mut().map(|it| it.exchange(load.times));
                    clients.block_on(join_all(exchanges));
                    let exchanges = load.connections as f64 * load.times as f64;
                    exchanges * load.worth / start.elapsed().as_secs_f64()
                })
            });
        let outcome = compete(rounds, contenders.collect());
        let mut row = vec![load.name.to_owned(), load.unit.to_owned()];
        for name in CONTENDERS {
            row.push(number(outcome.median(name)));
            results.add(load.name, name, outcome.median(name));
        }
        let ratios = [
            (OURS, BARE),
            (AROUND, BARE),
            (OURS, IDLE),
            (PEERS, BARE),
            (DEFAULT, BARE),
        ];
        row.extend(ratios.map(|(name, to)| format!("{:.3}", outcome.ratio(name, to))));
        table.row(row);
    }
    table.print(&format!(
        "Medians of {rounds} rounds, ratios within a round (budget: ours / axum at least 0.99)"
    ));
    results.save("loopback", settings);
}
