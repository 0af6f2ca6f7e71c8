//! A server under both layers, and clients of which most do not keep to the rules.
//!
//! Everything is counted: what was asked, which answers were not what they had to be, who panicked,
//! and what the server still holds when everybody is gone.

#![allow(dead_code, missing_docs, unreachable_pub)]

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt, fs,
    future::pending,
    io::Write,
    iter::repeat_n,
    net::SocketAddr,
    ops::Range,
    panic,
    pin::Pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, Path},
    routing::{get, post},
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures_util::{StreamExt, future::join_all, stream};
use h2::{
    Reason, SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::{Method, Request, StatusCode, Version, header::CONTENT_LENGTH};
use http_body::Frame;
use http_body_util::{Empty, StreamBody};
use tokio::{
    io::AsyncWriteExt,
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Handle,
    select,
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};
use tower::ServiceBuilder;
use tower_body_limit::{RequestSizeLimitLayer, ResponseSizeLimitLayer};
use tower_http::decompression::RequestDecompressionLayer;

use crate::support::{
    Hint, Script, data,
    net::{AnyBody, Endless, Raw, Seen, Server, any_body, hyper_client},
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// For requests and for responses.
const LIMIT: usize = 64 * KIB;
/// How much of a refused request is read.
const BUDGET: usize = MIB;
/// What nobody sends more of, however endless.
const MOST: usize = 64 * MIB;

const TOO_LARGE: &[u8] = b"The request body is too large.\n";

/// How many clients there are at once. Both ends of each have a file descriptor in this process.
const AT_ONCE: usize = 256;
/// Turns a hang into a wrong answer. Longer than any deadline of the server.
const VISIT: Duration = Duration::from_secs(25);
/// How long what is left may take to end.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between the pieces of a client that trickles.
const PAUSE: Duration = Duration::from_millis(2);

/// How much more memory than after the first half of the clients there may be after the second: less
/// than a body for each of some hundreds.
const GROWTH: u64 = 16 * MIB as u64;
/// How much more there may be at any time.
const PEAK: u64 = (AT_ONCE * MIB) as u64;

/// What the server saw of the bodies that it read.
#[derive(Clone, Debug, Default)]
struct Sights {
    breaches: Arc<AtomicU64>,
    ends: Arc<AtomicU64>,
    /// Bodies of which more passed than their limit.
    beyond: Arc<AtomicU64>,
}

fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn app(sights: &Sights) -> Router {
    let limit = LIMIT as u64;
    let [breaches, ends] = [&sights.breaches, &sights.ends].map(Arc::clone);
    let beyond = Arc::clone(&sights.beyond);
    let requests = RequestSizeLimitLayer::server(limit)
        .drain(BUDGET as u64, Duration::from_secs(5))
        .on_breach(move |_| add_one(&breaches))
        .on_end(move |end| {
            add_one(&ends);
            if end.limit().is_some_and(|limit| end.read() > limit) {
                add_one(&beyond);
            }
        });
    let decoded = ServiceBuilder::new()
        .layer(RequestDecompressionLayer::new())
        .layer(RequestSizeLimitLayer::server(limit).no_drain());
    let declared = async |Path(length): Path<usize>| vec![b'x'; length];
    let undeclared = async |Path(length): Path<usize>| Body::new(pieces(length));
    let layers = ServiceBuilder::new()
        .layer(requests)
        .layer(ResponseSizeLimitLayer::server(limit))
        .layer(DefaultBodyLimit::disable());
    Router::new()
        .route("/echo", post(async |body: Bytes| body))
        .route("/count", post(count))
        .route("/inflate", post(count).layer(decoded))
        .route("/ignore", post(async || "ignored"))
        .route("/declared/{length}", get(declared))
        .route("/undeclared/{length}", get(undeclared))
        .layer(layers)
}

/// Reads frame by frame, keeps nothing, and makes a 400 of an error as extractors do.
async fn count(body: Body) -> Result<String, StatusCode> {
    let mut body = body.into_data_stream();
    let mut read = 0;
    while let Some(data) = body.next().await {
        read += data.map_err(|_| StatusCode::BAD_REQUEST)?.len();
        assert!(read <= LIMIT, "more than the limit reached the handler");
    }
    Ok(read.to_string())
}

/// So many bytes, of which a response does not say how many they are.
fn pieces(length: usize) -> impl http_body::Body<Data = Bytes, Error = Infallible> {
    const PIECE: usize = 8 * KIB;
    let pieces = (0..length.div_ceil(PIECE)).map(move |piece| {
        let size = PIECE.min(length - piece * PIECE);
        Ok(Frame::data(Bytes::from(vec![b'x'; size])))
    });
    StreamBody::new(stream::iter(pieces))
}

/// The same numbers for the same seed.
#[derive(Debug)]
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// The length of a body that passes.
    fn small(&mut self) -> usize {
        let any = self.below(LIMIT);
        self.pick(&[0, 1, any, LIMIT - 1, LIMIT])
    }

    /// The length of one that does not, and can be read to its end all the same.
    fn large(&mut self) -> usize {
        let any = LIMIT + 1 + self.below(BUDGET - LIMIT);
        self.pick(&[LIMIT + 1, 2 * LIMIT, any, BUDGET])
    }

    fn hint(&mut self) -> Hint {
        self.pick(&[Hint::Declared, Hint::Undeclared])
    }

    fn bytes(&mut self, length: usize) -> Bytes {
        let seed = self.next();
        let byte = |index: usize| (seed >> (index % 8 * 8)) as u8 ^ index as u8;
        (0..length).map(byte).collect()
    }
}

/// `Err` says what is wrong.
type Checked = Result<(), String>;

/// One client, and what came back for each of its requests, `None` for nothing.
#[derive(Debug)]
struct Client {
    addr: SocketAddr,
    numbers: Numbers,
    learned: Vec<Option<u16>>,
}

/// A connection of HTTP/1 that is written to and read from at the same time.
struct Wire {
    reading: Raw<OwnedReadHalf>,
    writing: OwnedWriteHalf,
}

impl Wire {
    /// Writes these until the answer has come. Whoever can write no more can still read.
    async fn ask(&mut self, pieces: impl IntoIterator<Item = Bytes>) -> Option<Seen> {
        self.trickle(pieces, Duration::ZERO).await
    }

    async fn trickle(
        &mut self,
        pieces: impl IntoIterator<Item = Bytes>,
        pause: Duration,
    ) -> Option<Seen> {
        let writing = &mut self.writing;
        let write = async move {
            for piece in pieces {
                if writing.write_all(&piece).await.is_err() {
                    break;
                }
                if !pause.is_zero() {
                    sleep(pause).await;
                }
            }
            pending::<()>().await;
        };
        select! {
            answer = self.reading.receive(&Method::POST) => answer,
            () = write => None,
        }
    }
}

fn head(path: &str, fields: &str) -> Bytes {
    format!("POST {path} HTTP/1.1\r\nhost: test\r\n{fields}\r\n").into()
}

fn chunk(data: &[u8]) -> Bytes {
    let head = format!("{:x}\r\n", data.len());
    [head.as_bytes(), data, b"\r\n"].concat().into()
}

/// A POST in pieces of this size.
fn upload(path: &str, body: &Bytes, hint: &Hint, size: usize) -> Vec<Bytes> {
    let is_declared = matches!(hint, Hint::Declared);
    let field = if is_declared {
        format!("content-length: {}\r\n", body.len())
    } else {
        "transfer-encoding: chunked\r\n".into()
    };
    let mut pieces = vec![head(path, &field)];
    let data = body.chunks(size);
    if is_declared {
        pieces.extend(data.map(|piece| body.slice_ref(piece)));
    } else {
        pieces.extend(data.map(chunk));
        pieces.push("0\r\n\r\n".into());
    }
    pieces
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(data).expect("memory does not fail");
    gzip.finish().expect("memory does not fail")
}

/// Small enough to pass, and sixty-four times the limit when it is decoded.
static BOMB: LazyLock<Bytes> = LazyLock::new(|| gzip(&vec![0; 64 * LIMIT]).into());

fn is(seen: &Seen, status: u16, body: &[u8]) -> bool {
    seen.status == status && seen.whole && seen.body == body
}

fn is_refusal(seen: &Seen) -> bool {
    is(seen, 413, TOO_LARGE)
}

/// For requests that are broken: to be told so, or to hear nothing.
fn is_complaint(seen: &Option<Seen>) -> bool {
    let complaints = [400, 413, 431];
    seen.as_ref()
        .is_none_or(|seen| complaints.contains(&seen.status.as_u16()))
}

/// For requests that broke off: that is never taken for one that is too large.
fn is_break(seen: &Option<Seen>) -> bool {
    seen.as_ref().is_none_or(|seen| seen.status == 400)
}

impl Client {
    fn note(&mut self, status: Option<u16>) {
        self.learned.push(status);
    }

    fn check(
        &mut self,
        seen: Option<Seen>,
        is_right: impl FnOnce(&Option<Seen>) -> bool,
    ) -> Checked {
        self.note(seen.as_ref().map(|seen| seen.status.as_u16()));
        if is_right(&seen) {
            return Ok(());
        }
        Err(seen.map_or("nothing came back".into(), |seen| {
            let text = String::from_utf8_lossy(&seen.body[..seen.body.len().min(40)]).into_owned();
            let end = if seen.whole { "whole" } else { "broken off" };
            format!(
                "{}, {} bytes, {end}: {text:?}",
                seen.status,
                seen.body.len()
            )
        }))
    }

    fn check_some(&mut self, seen: Option<Seen>, is_right: impl FnOnce(&Seen) -> bool) -> Checked {
        self.check(seen, |seen| seen.as_ref().is_some_and(is_right))
    }

    async fn stream(&self) -> Result<TcpStream, String> {
        let stream = TcpStream::connect(self.addr).await;
        let stream = stream.map_err(|error| format!("to connect: {error}"))?;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    async fn wire(&self) -> Result<Wire, String> {
        let (reading, writing) = self.stream().await?.into_split();
        let reading = Raw::reading(reading);
        Ok(Wire { reading, writing })
    }

    /// One request on a connection of its own.
    async fn ask(&self, pieces: impl IntoIterator<Item = Bytes>) -> Result<Option<Seen>, String> {
        Ok(self.wire().await?.ask(pieces).await)
    }

    // HTTP/1

    async fn honest(&mut self) -> Checked {
        let mut wire = self.wire().await?;
        for _ in 0..3 {
            let length = self.numbers.small();
            let (body, hint) = (self.numbers.bytes(length), self.numbers.hint());
            let size = self.numbers.pick(&[KIB, LIMIT, 10_000]);
            let seen = wire.ask(upload("/echo", &body, &hint, size)).await;
            self.check_some(seen, |seen| is(seen, 200, &body))?;
        }
        Ok(())
    }

    async fn too_large(&mut self, hint: Hint) -> Checked {
        let length = self.numbers.large();
        let (path, body) = (self.numbers.pick(&["/echo", "/count"]), vec![b'x'; length]);
        let seen = self
            .ask(upload(path, &body.into(), &hint, 16 * KIB))
            .await?;
        self.check_some(seen, is_refusal)
    }

    async fn trickles(&mut self) -> Checked {
        let body = self.numbers.bytes(50);
        let (hint, size) = (self.numbers.hint(), 1 + self.numbers.below(5));
        let mut wire = self.wire().await?;
        let pieces = upload("/echo", &body, &hint, size);
        let seen = wire.trickle(pieces, PAUSE).await;
        self.check_some(seen, |seen| is(seen, 200, &body))
    }

    async fn trickles_over(&mut self) -> Checked {
        let mut wire = self.wire().await?;
        let length = self
            .numbers
            .pick(&["transfer-encoding: chunked", "content-length: 65600"]);
        let is_chunked = length.starts_with('t');
        let piece = |size| {
            let data = vec![b'x'; size];
            if is_chunked {
                chunk(&data)
            } else {
                data.into()
            }
        };
        let first = [head("/count", &format!("{length}\r\n")), piece(LIMIT)];
        // Neither ends its request.
        let pieces = first.into_iter().chain(repeat_n(piece(1), 50));
        let seen = wire.trickle(pieces, PAUSE).await;
        self.check_some(seen, is_refusal)
    }

    /// A request, cut somewhere.
    fn cut(&mut self) -> Bytes {
        let length = 1 + self.numbers.below(2 * LIMIT);
        let (path, hint) = (self.numbers.pick(&["/echo", "/count"]), self.numbers.hint());
        let request = upload(path, &vec![b'x'; length].into(), &hint, 4 * KIB).concat();
        let within_head = self.numbers.below(60);
        let anywhere = self.numbers.below(request.len());
        let end = self
            .numbers
            .pick(&[within_head, anywhere, request.len() - 1]);
        Bytes::from(request).slice(..end)
    }

    async fn vanishes(&mut self) -> Checked {
        let mut stream = self.stream().await?;
        // The server may have refused it by now.
        let _ = stream.write_all(&self.cut()).await;
        self.note(None);
        Ok(())
    }

    async fn resets(&mut self) -> Checked {
        let mut stream = self.stream().await?;
        let whole = upload("/echo", &self.numbers.bytes(LIMIT), &Hint::Declared, LIMIT).concat();
        let requests = [Bytes::new(), self.cut(), whole.into()];
        let request = self.numbers.pick(&requests);
        let _ = stream.write_all(&request).await;
        self.note(None);
        stream.set_zero_linger().map_err(|error| error.to_string())
    }

    async fn stops_in_the_middle(&mut self) -> Checked {
        let (length, hint) = (2 + self.numbers.below(LIMIT - 1), self.numbers.hint());
        let whole = upload("/echo", &vec![b'x'; length].into(), &hint, KIB);
        let mut wire = self.wire().await?;
        let mut request = whole.concat();
        request.truncate(request.len() - 1 - self.numbers.below(length.min(5)));
        let _ = wire.writing.write_all(&request).await;
        let _ = wire.writing.shutdown().await;
        let seen = wire.reading.receive(&Method::POST).await;
        self.check(seen, is_break)
    }

    async fn sends_more_than_declared(&mut self) -> Checked {
        let (length, more) = (self.numbers.below(KIB), self.numbers.below(LIMIT));
        let body = self.numbers.bytes(length);
        let lie = head("/echo", &format!("content-length: {length}\r\n"));
        let mut wire = self.wire().await?;
        let seen = wire.ask([[lie, body.clone()].concat().into()]).await;
        self.check_some(seen, |seen| is(seen, 200, &body))?;
        // What is left over is no request.
        let rest = [vec![b'\0'; 1 + more], b"\r\n\r\n".into()].concat();
        let seen = wire.ask([rest.into()]).await;
        self.check(seen, is_complaint)
    }

    async fn malformed_length(&mut self) -> Checked {
        let field = self.numbers.pick(&[
            "content-length: much\r\n",
            "content-length: -1\r\n",
            "content-length: 0x10\r\n",
            "content-length: 1 0\r\n",
            "content-length: 10, 11\r\n",
            "content-length: 10\r\ncontent-length: 11\r\n",
            "content-length: 1\u{0661}\r\n",
            "content-length:\r\n",
        ]);
        let seen = self
            .ask([head("/echo", field), vec![b'x'; 64].into()])
            .await?;
        self.check(seen, is_complaint)
    }

    async fn overflowing_length(&mut self) -> Checked {
        let length = self.numbers.pick(&[
            "9223372036854775807",
            "9223372036854775808",
            "18446744073709551613",
            "18446744073709551615",
            "18446744073709551616",
            "36893488147419103232",
            "100000000000000000000000000000000000000000",
        ]);
        let field = format!("content-length: {length}\r\n");
        let seen = self
            .ask([head("/echo", &field), vec![b'x'; 64].into()])
            .await?;
        self.check_some(seen, |seen| matches!(seen.status.as_u16(), 400 | 413 | 431))
    }

    async fn malformed_chunks(&mut self) -> Checked {
        let chunks = self.numbers.pick(&[
            "zz\r\nxx\r\n",
            "-1\r\nx\r\n",
            "\r\nx\r\n",
            "5\r\nxxxxxxxxxx\r\n0\r\n\r\n",
            "5 5\r\nxxxxx\r\n0\r\n\r\n",
            "10000000000000000\r\nx\r\n0\r\n\r\n",
            "ffffffffffffffffffff\r\nx\r\n0\r\n\r\n",
        ]);
        let head = head("/echo", "transfer-encoding: chunked\r\n");
        let seen = self.ask([head, chunks.into()]).await?;
        self.check(seen, is_complaint)
    }

    async fn endless_chunks(&mut self) -> Checked {
        let size = self.numbers.pick(&[16, KIB, 64 * KIB]);
        // Small chunks in blocks, or writing takes all the time.
        let block = chunk(&vec![b'x'; size]).repeat((16 * KIB).div_ceil(size));
        let blocks = MOST / block.len();
        let path = self.numbers.pick(&["/echo", "/count"]);
        let first = head(path, "transfer-encoding: chunked\r\n");
        let pieces = [first].into_iter().chain(repeat_n(block.into(), blocks));
        let seen = self.ask(pieces).await?;
        self.check_some(seen, is_refusal)
    }

    /// Not body data, so not ours: hyper has limits for these.
    async fn endless_framing(&mut self) -> Checked {
        let (start, piece) = self
            .numbers
            .pick(&[("1;", "extension"), ("1\r\nx\r\n0\r\n", "trailer: x\r\n")]);
        let first = [
            &head("/echo", "transfer-encoding: chunked\r\n")[..],
            start.as_bytes(),
        ];
        let block = Bytes::from(piece.repeat(1000));
        let blocks = MOST / block.len();
        let pieces = [first.concat().into()].into_iter();
        let seen = self.ask(pieces.chain(repeat_n(block, blocks))).await?;
        self.check(seen, is_complaint)
    }

    /// Digits without an end are no limit's business, only that of a timeout. These have one.
    async fn long_size(&mut self) -> Checked {
        let zeros = vec![b'0'; self.numbers.below(MIB)];
        let first = head("/echo", "transfer-encoding: chunked\r\n");
        let pieces = [first, zeros.into(), "5\r\nsmall\r\n0\r\n\r\n".into()];
        let seen = self.ask(pieces).await?;
        self.check_some(seen, |seen| is(seen, 200, b"small"))
    }

    async fn is_not_read(&mut self) -> Checked {
        let body = vec![b'x'; self.numbers.large()];
        let request = upload("/ignore", &body.into(), &Hint::Undeclared, 16 * KIB);
        let seen = self.ask(request).await?;
        // Nobody drains it, so that the answer may be lost; but another one it is not.
        self.check(seen, |seen| {
            seen.as_ref().is_none_or(|seen| is(seen, 200, b"ignored"))
        })
    }

    async fn pipelines(&mut self) -> Checked {
        let bodies = [
            self.numbers.small(),
            self.numbers.large(),
            self.numbers.small(),
        ];
        let mut wire = self.wire().await?;
        let bodies = bodies.map(|length| self.numbers.bytes(length));
        let requests = bodies
            .each_ref()
            .map(|body| upload("/echo", body, &Hint::Declared, LIMIT));
        let mut pieces = Some(requests.concat().concat().into());
        for body in &bodies {
            let seen = wire.ask(pieces.take()).await;
            self.check_some(seen, |seen| match body.len() {
                0..=LIMIT => is(seen, 200, body),
                _ => is_refusal(seen),
            })?;
        }
        Ok(())
    }

    /// More requests than anybody waits for the answers of.
    async fn pipelines_and_leaves(&mut self) -> Checked {
        let mut stream = self.stream().await?;
        let body = self.numbers.bytes(4 * KIB);
        let request = upload("/echo", &body, &Hint::Declared, LIMIT).concat();
        for _ in 0..200 {
            // The server stops reading when nobody takes its answers.
            let written = timeout(Duration::from_millis(20), stream.write_all(&request)).await;
            if !matches!(written, Ok(Ok(()))) {
                break;
            }
            self.note(None);
        }
        Ok(())
    }

    async fn only_offers(&mut self) -> Checked {
        let length = self.numbers.pick(&[LIMIT, LIMIT + 1, usize::MAX / 2]);
        let fields = format!("expect: 100-continue\r\ncontent-length: {length}\r\n");
        let mut wire = self.wire().await?;
        let seen = wire.ask([head("/echo", &fields)]).await;
        if length > LIMIT {
            return self.check_some(seen, is_refusal);
        }
        self.check_some(seen, |seen| seen.status == StatusCode::CONTINUE)?;
        let body = self.numbers.bytes(length);
        let seen = wire.ask([body.clone()]).await;
        self.check_some(seen, |seen| is(seen, 200, &body))
    }

    fn encoded(&mut self, data: &Bytes) -> Vec<Bytes> {
        let hint = self.numbers.hint();
        let mut pieces = upload("/inflate", data, &hint, KIB);
        let fields = [
            &pieces[0][..pieces[0].len() - 2],
            b"content-encoding: gzip\r\n\r\n",
        ];
        pieces[0] = fields.concat().into();
        pieces
    }

    async fn honest_gzip(&mut self) -> Checked {
        let length = self.numbers.small();
        let data = gzip(&vec![0; length]).into();
        let request = self.encoded(&data);
        let seen = self.ask(request).await?;
        self.check_some(seen, |seen| is(seen, 200, length.to_string().as_bytes()))
    }

    async fn gzip_bomb(&mut self) -> Checked {
        let request = self.encoded(&BOMB);
        let seen = self.ask(request).await?;
        self.check_some(seen, is_refusal)
    }

    async fn broken_gzip(&mut self) -> Checked {
        let data = gzip(&self.numbers.bytes(KIB));
        let broken = match self.numbers.below(3) {
            0 => data[..data.len() / 2].to_vec(),
            1 => [b"no gzip at all", &data[..]].concat(),
            _ => [&data[..12], &[0xff; 64]].concat(),
        };
        let request = self.encoded(&broken.into());
        let seen = self.ask(request).await?;
        self.check_some(seen, |seen| seen.status == 400)
    }

    // Responses

    async fn download(&mut self, path: &str, version: &str) -> Result<Option<Seen>, String> {
        let request = format!("GET {path} {version}\r\nhost: test\r\n\r\n");
        self.ask([request.into()]).await
    }

    async fn declared_response(&mut self) -> Checked {
        let length = self.numbers.small() + self.numbers.pick(&[0, LIMIT]);
        let version = self.numbers.pick(&["HTTP/1.0", "HTTP/1.1"]);
        let path = format!("/declared/{length}");
        let seen = self.download(&path, version).await?;
        self.check_some(seen, |seen| match length {
            0..=LIMIT => is(seen, 200, &vec![b'x'; length]),
            _ => seen.status == 500 && seen.whole && seen.body.len() < 100,
        })
    }

    async fn undeclared_response(&mut self) -> Checked {
        let length = self.numbers.small() + self.numbers.pick(&[0, LIMIT + 1]);
        let version = self.numbers.pick(&["HTTP/1.0", "HTTP/1.1"]);
        let path = format!("/undeclared/{length}");
        let seen = self.download(&path, version).await?;
        self.check_some(seen, |seen| match length {
            0..=LIMIT => is(seen, 200, &vec![b'x'; length]),
            _ if version == "HTTP/1.0" => seen.status == 500 && seen.whole,
            _ => seen.status == 200 && !seen.whole && seen.body.len() <= LIMIT,
        })
    }

    async fn leaves_a_response(&mut self) -> Checked {
        let mut stream = self.stream().await?;
        let length = self.numbers.pick(&[LIMIT, 2 * LIMIT, 100 * MIB]);
        let request = format!("GET /undeclared/{length} HTTP/1.1\r\nhost: test\r\n\r\n");
        stream
            .write_all(request.as_bytes())
            .await
            .map_err(|error| error.to_string())?;
        if self.numbers.below(2) == 0 {
            stream
                .set_zero_linger()
                .map_err(|error| error.to_string())?;
        }
        let _ = stream.readable().await;
        self.note(None);
        Ok(())
    }

    // HTTP/2

    async fn http2_by_hyper(&mut self, path: &str, body: AnyBody) -> Result<Option<Seen>, String> {
        let request = Request::post(format!("http://{}{path}", self.addr)).body(body);
        let request = request.map_err(|error| error.to_string())?;
        let response = hyper_client(Version::HTTP_2).request(request).await;
        match response {
            Ok(response) => Ok(Some(Seen::of(response).await.0)),
            Err(_) => Ok(None),
        }
    }

    async fn http2_endless(&mut self) -> Checked {
        let frame = self.numbers.pick(&[KIB, 16 * KIB, 64 * KIB]);
        let path = self.numbers.pick(&["/echo", "/count"]);
        let (body, _) = Endless::new(frame);
        let seen = self.http2_by_hyper(path, body).await?;
        self.check_some(seen, is_refusal)
    }

    async fn http2_too_large(&mut self) -> Checked {
        let (length, hint) = (self.numbers.large(), self.numbers.hint());
        let body = any_body(Script::new([data(length)], hint));
        let seen = self.http2_by_hyper("/echo", body).await?;
        self.check_some(seen, is_refusal)
    }

    async fn http2_response(&mut self) -> Checked {
        let length = self.numbers.pick(&[0, 1, LIMIT, LIMIT + 1, 2 * LIMIT]);
        let kind = self.numbers.pick(&["declared", "undeclared"]);
        let uri = format!("http://{}/{kind}/{length}", self.addr);
        let request = Request::get(uri).body(Empty::<Bytes>::new());
        let request = request.map_err(|error| error.to_string())?;
        let response = hyper_client(Version::HTTP_2).request(request).await;
        let response = response.map_err(|error| error.to_string())?;
        let seen = Some(Seen::of(response).await.0);
        self.check_some(seen, |seen| match length {
            0..=LIMIT => is(seen, 200, &vec![b'x'; length]),
            _ if kind == "declared" => seen.status == 500 && seen.whole,
            _ => seen.status == 200 && !seen.whole && seen.body.len() <= LIMIT,
        })
    }

    async fn http2_honest(&mut self) -> Checked {
        let (sender, _connection) = self.http2(false).await?;
        self.http2_echoes(&sender).await
    }

    /// Some at the same time.
    async fn http2_echoes(&mut self, sender: &SendRequest<Bytes>) -> Checked {
        let bodies: Vec<_> = (0..4)
            .map(|_| {
                let length = self.numbers.small();
                self.numbers.bytes(length)
            })
            .collect();
        let echoes = join_all(bodies.iter().map(|body| echo(sender.clone(), body))).await;
        for (body, seen) in bodies.iter().zip(echoes) {
            self.check_some(seen, |seen| is(seen, 200, body))?;
        }
        Ok(())
    }

    async fn http2_lies(&mut self) -> Checked {
        let (sender, _connection) = self.http2(false).await?;
        let (declared, sent) = self.numbers.pick(&[
            ("10", 5),
            ("10", 15),
            ("0", 1),
            ("much", 5),
            ("-1", 5),
            ("18446744073709551615", 5),
            ("18446744073709551616", 5),
        ]);
        let opened = open(sender.clone(), "/echo", Some(declared)).await;
        let (answer, mut body) = opened.map_err(|error| error.to_string())?;
        let _ = body.send_data(vec![b'x'; sent].into(), true);
        let seen = receive(answer).await;
        self.check(seen, is_complaint)?;
        self.http2_echoes(&sender).await
    }

    async fn http2_resets_streams(&mut self) -> Checked {
        let (sender, _connection) = self.http2(false).await?;
        for _ in 0..3 {
            let hint = self.numbers.pick(&[None, Some("60000"), Some("100000")]);
            let opened = open(sender.clone(), "/count", hint).await;
            let (answer, mut body) = opened.map_err(|error| error.to_string())?;
            let _ = body.send_data(vec![b'x'; 10_000].into(), false);
            let reasons = [Reason::CANCEL, Reason::INTERNAL_ERROR, Reason::NO_ERROR];
            body.send_reset(self.numbers.pick(&reasons));
            drop(answer);
            self.note(None);
        }
        self.http2_echoes(&sender).await
    }

    /// More than a server puts up with.
    async fn http2_resets_rapidly(&mut self) -> Checked {
        let (sender, _connection) = self.http2(false).await?;
        for _ in 0..200 {
            let Ok((_, mut body)) = open(sender.clone(), "/echo", None).await else {
                break;
            };
            // What was not sent yet would never be.
            tokio::task::yield_now().await;
            body.send_reset(Reason::CANCEL);
            self.note(None);
        }
        Ok(())
    }

    async fn http2_vanishes(&mut self) -> Checked {
        let resets = self.numbers.below(2) == 0;
        let (sender, connection) = self.http2(resets).await?;
        let mut streams = Vec::new();
        for _ in 0..4 {
            let opened = open(sender.clone(), "/count", None).await;
            let (answer, mut body) = opened.map_err(|error| error.to_string())?;
            let size = 1 + self.numbers.below(2 * LIMIT);
            let _ = body.send_data(vec![b'x'; size].into(), false);
            streams.push((answer, body));
            self.note(None);
        }
        tokio::task::yield_now().await;
        connection.0.abort();
        Ok(())
    }

    async fn http2_garbage(&mut self) -> Checked {
        let mut stream = self.stream().await?;
        let frames = self.numbers.pick(&[0, 9, 1000, 100_000]);
        let garbage = self.numbers.bytes(frames);
        let start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let _ = stream.write_all(&[start, &garbage[..]].concat()).await;
        self.note(None);
        Ok(())
    }

    async fn http2(&self, resets: bool) -> Result<(SendRequest<Bytes>, Connection), String> {
        let stream = self.stream().await?;
        if resets {
            stream
                .set_zero_linger()
                .map_err(|error| error.to_string())?;
        }
        let handshake = h2::client::handshake(stream).await;
        let (sender, connection) = handshake.map_err(|error| error.to_string())?;
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok((sender, Connection(connection)))
    }
}

/// Of HTTP/2. Closed when it is dropped, whatever is going on.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn open(
    sender: SendRequest<Bytes>,
    path: &str,
    length: Option<&str>,
) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
    let mut request = Request::post(format!("http://test{path}"));
    if let Some(length) = length {
        request = request.header(CONTENT_LENGTH, length);
    }
    let request = request.body(()).expect("it is valid");
    sender.ready().await?.send_request(request, false)
}

async fn echo(sender: SendRequest<Bytes>, data: &Bytes) -> Option<Seen> {
    let (answer, mut body) = open(sender, "/echo", None).await.ok()?;
    // Queued as a whole; windows open while it is read.
    body.send_data(data.clone(), true).ok()?;
    receive(answer).await
}

async fn receive(answer: ResponseFuture) -> Option<Seen> {
    let (head, mut body) = answer.await.ok()?.into_parts();
    let mut seen = Seen {
        status: head.status,
        headers: head.headers,
        body: Vec::new(),
        trailers: None,
        whole: true,
    };
    while let Some(data) = body.data().await {
        let Ok(data) = data else {
            seen.whole = false;
            break;
        };
        seen.body.extend_from_slice(&data);
        let _ = body.flow_control().release_capacity(data.len());
    }
    Some(seen)
}

type Visit = for<'a> fn(&'a mut Client) -> Pin<Box<dyn Future<Output = Checked> + Send + 'a>>;

/// Who comes, by what they do.
const KINDS: [(&str, Visit); 35] = [
    ("is honest", |it| Box::pin(it.honest())),
    ("declares too much", |it| {
        Box::pin(it.too_large(Hint::Declared))
    }),
    ("sends too much, chunked", |it| {
        Box::pin(it.too_large(Hint::Undeclared))
    }),
    ("trickles", |it| Box::pin(it.trickles())),
    ("trickles over the limit", |it| Box::pin(it.trickles_over())),
    ("vanishes", |it| Box::pin(it.vanishes())),
    ("resets", |it| Box::pin(it.resets())),
    ("stops in the middle", |it| {
        Box::pin(it.stops_in_the_middle())
    }),
    ("sends more than declared", |it| {
        Box::pin(it.sends_more_than_declared())
    }),
    ("malformed length", |it| Box::pin(it.malformed_length())),
    ("overflowing length", |it| Box::pin(it.overflowing_length())),
    ("malformed chunks", |it| Box::pin(it.malformed_chunks())),
    ("endless chunks", |it| Box::pin(it.endless_chunks())),
    ("endless framing", |it| Box::pin(it.endless_framing())),
    ("long size of a chunk", |it| Box::pin(it.long_size())),
    ("too much, which is not read", |it| {
        Box::pin(it.is_not_read())
    }),
    ("pipelines", |it| Box::pin(it.pipelines())),
    ("pipelines and leaves", |it| {
        Box::pin(it.pipelines_and_leaves())
    }),
    ("only offers", |it| Box::pin(it.only_offers())),
    ("honest gzip", |it| Box::pin(it.honest_gzip())),
    ("gzip bomb", |it| Box::pin(it.gzip_bomb())),
    ("broken gzip", |it| Box::pin(it.broken_gzip())),
    ("response with a length", |it| {
        Box::pin(it.declared_response())
    }),
    ("response without a length", |it| {
        Box::pin(it.undeclared_response())
    }),
    ("leaves a response", |it| Box::pin(it.leaves_a_response())),
    ("HTTP/2, is honest", |it| Box::pin(it.http2_honest())),
    ("HTTP/2, too much", |it| Box::pin(it.http2_too_large())),
    ("HTTP/2, endless", |it| Box::pin(it.http2_endless())),
    ("HTTP/2, lies about its length", |it| {
        Box::pin(it.http2_lies())
    }),
    ("HTTP/2, responses", |it| Box::pin(it.http2_response())),
    ("HTTP/2, resets streams", |it| {
        Box::pin(it.http2_resets_streams())
    }),
    ("HTTP/2, resets rapidly", |it| {
        Box::pin(it.http2_resets_rapidly())
    }),
    ("HTTP/2, vanishes", |it| Box::pin(it.http2_vanishes())),
    ("HTTP/2, garbage", |it| Box::pin(it.http2_garbage())),
    ("is honest, at last", |it| Box::pin(it.honest())),
];

/// What became of all clients of one kind.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub clients: usize,
    /// How often which status came back; `None` is nothing, or nobody who waited for it.
    pub learned: BTreeMap<Option<u16>, usize>,
}

impl Tally {
    pub fn requests(&self) -> usize {
        self.learned.values().sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (status, times)) in self.learned.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let status = status.map_or("none".into(), |status| status.to_string());
            write!(f, "{separator}{times} x {status}")?;
        }
        Ok(())
    }
}

/// What is left to say when everybody is gone.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub tallies: BTreeMap<&'static str, Tally>,
    pub connections: usize,
    /// The kind of the client, which one of them all, and what was wrong.
    pub wrong: Vec<String>,
    pub panics: usize,
    /// Connections that are still open, tasks that still run.
    pub leaked: usize,
    pub tasks: usize,
    pub breaches: u64,
    pub ends: u64,
    /// Bodies of which more passed than their limit.
    pub beyond: u64,
    pub memory: Option<Memory>,
}

/// Resident bytes: when half of the clients were gone, when all were, and at most in between.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub before: u64,
    pub after: u64,
    pub peak: u64,
}

impl Report {
    pub fn requests(&self) -> usize {
        self.tallies.values().map(Tally::requests).sum()
    }

    /// What must not be.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = self.wrong.clone();
        let mut must_not = |is: bool, what: String| faults.extend(is.then_some(what));
        must_not(self.panics > 0, format!("{} panics", self.panics));
        must_not(
            self.leaked > 0,
            format!("{} connections leaked", self.leaked),
        );
        must_not(self.tasks > 0, format!("{} tasks leaked", self.tasks));
        must_not(
            self.beyond > 0,
            format!("{} bodies beyond their limit", self.beyond),
        );
        must_not(self.breaches == 0, "no breach was reported".into());
        must_not(self.ends < self.breaches, "bodies without an end".into());
        for (kind, _) in KINDS {
            must_not(
                !self.tallies.contains_key(kind),
                format!("nobody came who {kind}"),
            );
        }
        if let Some(Memory {
            before,
            after,
            peak,
        }) = self.memory
        {
            let grown = after.saturating_sub(before);
            must_not(
                grown > GROWTH,
                format!("{} KiB more memory than before", grown / 1024),
            );
            let high = peak.saturating_sub(before);
            must_not(
                high > PEAK,
                format!("{} KiB more memory at once", high / 1024),
            );
        }
        faults
    }
}

/// Lets about so many clients come, in rounds of which each has all kinds. The first half of them is
/// there so that what is allocated once and for all is there when memory is measured.
pub async fn run(clients: usize) -> Report {
    const ROUNDS: usize = 4;
    let panics = count_panics();
    let sights = Sights::default();
    let server = Server::start(app(&sights)).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    let mut report = Report::default();
    let mut memory = None;
    let each = clients.div_ceil(ROUNDS).max(KINDS.len());
    for round in 0..ROUNDS {
        let peak = visits(&server, round * each..(round + 1) * each, &mut report).await;
        report.leaked = server.until_idle(PATIENCE).await;
        report.tasks = until_no_more_than(tasks).await;
        if let Some(after) = resident().filter(|_| round + 1 >= ROUNDS / 2) {
            let memory = memory.get_or_insert(Memory {
                before: after,
                after,
                peak,
            });
            memory.after = after;
            memory.peak = peak.max(memory.peak);
        }
    }
    report.memory = memory;
    report.connections = server.connections();
    report.panics = panics.load(Ordering::SeqCst);
    report.breaches = sights.breaches.load(Ordering::SeqCst);
    report.ends = sights.ends.load(Ordering::SeqCst);
    report.beyond = sights.beyond.load(Ordering::SeqCst);
    report
}

/// The most memory that any of them saw.
async fn visits(server: &Server, seeds: Range<usize>, report: &mut Report) -> u64 {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut visits = JoinSet::new();
    for seed in seeds {
        let turn = Arc::clone(&turns).acquire_owned().await;
        let addr = server.addr;
        visits.spawn(async move {
            let _turn = turn;
            let (kind, visit) = KINDS[seed % KINDS.len()];
            let mut client = Client {
                addr,
                numbers: Numbers(seed as u64),
                learned: Vec::new(),
            };
            let result = timeout(VISIT, visit(&mut client)).await;
            let result = result.unwrap_or_else(|_| Err("it hangs".into()));
            let wrong = result
                .err()
                .map(|what| format!("{kind} (client {seed}): {what}"));
            (kind, client.learned, wrong, resident())
        });
    }
    let mut peak = 0;
    while let Some(visit) = visits.join_next().await {
        match visit {
            Ok((kind, learned, wrong, memory)) => {
                let tally = report.tallies.entry(kind).or_default();
                tally.clients += 1;
                for status in learned {
                    *tally.learned.entry(status).or_default() += 1;
                }
                report.wrong.extend(wrong);
                peak = peak.max(memory.unwrap_or(0));
            }
            Err(error) => report.wrong.push(format!("a client failed: {error}")),
        }
    }
    peak
}

/// From now on, in any thread.
fn count_panics() -> Arc<AtomicUsize> {
    let panics = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&panics);
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        counter.fetch_add(1, Ordering::SeqCst);
        hook(info);
    }));
    panics
}

/// How many tasks more than these still run, after a while.
async fn until_no_more_than(tasks: usize) -> usize {
    let more = || {
        Handle::current()
            .metrics()
            .num_alive_tasks()
            .saturating_sub(tasks)
    };
    let none = async {
        while more() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = timeout(PATIENCE, none).await;
    more()
}

/// How much memory the process has, where the system says so.
fn resident() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4096)
}
