//! Clients that upload more than a server takes, and what each of them learns about it.

#![allow(dead_code, missing_docs, unreachable_pub)]

use std::{
    ffi::OsStr,
    fmt,
    fs::OpenOptions,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::Output,
    thread,
    time::Duration,
};

use http::{Request, Version};
use tokio::{process::Command, task::spawn_blocking, time::timeout};
use tower::ServiceExt;

use crate::support::{
    Hint, Script, data,
    net::{AnyClient, ReqwestService, Seen, any_body, any_client, hyper_client, reqwest_client},
};

pub const MIB: usize = 1024 * 1024;

/// Turns a hang into an answer that was lost.
const GUARD: Duration = Duration::from_secs(20);

/// What is written at once.
const BLOCK: usize = 64 * 1024;

/// The status of an answer that arrived whole, or what the client knows instead.
pub type Learned = Result<u16, String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A socket. Writes everything, and gives up at a write error.
    Writer,
    /// A socket. Writes everything, and reads even after a write error.
    Reader,
    /// A socket. Reads while it writes.
    Duplex,
    /// Python's http.client, which is a writer too.
    Python,
    Curl,
    Reqwest(Version),
    Hyper(Version),
}

pub const KINDS: [Kind; 9] = [
    Kind::Writer,
    Kind::Reader,
    Kind::Duplex,
    Kind::Python,
    Kind::Curl,
    Kind::Reqwest(Version::HTTP_11),
    Kind::Reqwest(Version::HTTP_2),
    Kind::Hyper(Version::HTTP_11),
    Kind::Hyper(Version::HTTP_2),
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer => f.pad("raw, gives up at a write error"),
            Self::Reader => f.pad("raw, reads after a write error"),
            Self::Duplex => f.pad("raw, reads while it writes"),
            Self::Python => f.pad("Python http.client"),
            Self::Curl => f.pad("curl"),
            Self::Reqwest(version) => f.pad(&format!("reqwest, {version:?}")),
            Self::Hyper(version) => f.pad(&format!("hyper-util, {version:?}")),
        }
    }
}

/// What is sent, where to, and with its length declared or not.
#[derive(Clone, Debug)]
pub struct Upload {
    pub addr: SocketAddr,
    pub size: usize,
    pub hint: Hint,
}

impl Kind {
    /// Whether this machine has it.
    pub async fn is_installed(self) -> bool {
        match self {
            Self::Python => run("python3", ["--version"]).await.is_ok(),
            Self::Curl => run("curl", ["--version"]).await.is_ok(),
            _ => true,
        }
    }

    /// Uploads so many times, one after the other, each on a connection of its own.
    pub async fn upload(self, upload: &Upload, tries: usize) -> Vec<Learned> {
        if self == Self::Python {
            return by_python(upload, tries).await;
        }
        let mut learned = Vec::new();
        for _ in 0..tries {
            learned.push(self.upload_once(upload.clone()).await);
        }
        learned
    }

    async fn upload_once(self, upload: Upload) -> Learned {
        let client = match self {
            Self::Python => unreachable!("one process does all the tries"),
            Self::Curl => return by_curl(&upload).await,
            Self::Writer | Self::Reader | Self::Duplex => {
                return spawn_blocking(move || upload.by_hand(self)).await.unwrap();
            }
            Self::Reqwest(version) => any_client(ReqwestService(reqwest_client(version))),
            Self::Hyper(version) => any_client(hyper_client(version)),
        };
        let learned = timeout(GUARD, upload.by(client)).await;
        learned.unwrap_or_else(|_| Err("nothing for a long time".into()))
    }
}

impl Upload {
    fn uri(&self) -> String {
        format!("http://{}/", self.addr)
    }

    fn is_declared(&self) -> bool {
        matches!(self.hint, Hint::Declared)
    }

    async fn by(self, client: AnyClient) -> Learned {
        // One buffer where the length is known, as from a file in memory, and a stream otherwise.
        let frame = if self.is_declared() { self.size } else { BLOCK };
        let frames = vec![data(frame); self.size / frame];
        let body = any_body(Script::new(frames, self.hint.clone()));
        let request = Request::post(self.uri()).body(body).unwrap();
        let response = client
            .oneshot(request)
            .await
            .map_err(|error| chain(&*error))?;
        let (seen, error) = Seen::of(response).await;
        match error {
            None => Ok(seen.status.as_u16()),
            Some(error) => Err(format!("{}, broken off: {}", seen.status, chain(&*error))),
        }
    }

    fn by_hand(&self, kind: Kind) -> Learned {
        let told = |error: io::Error| format!("{:?}", error.kind());
        let mut stream = TcpStream::connect(self.addr).map_err(told)?;
        stream.set_read_timeout(Some(GUARD)).unwrap();
        stream.set_write_timeout(Some(GUARD)).unwrap();
        if kind == Kind::Duplex {
            let reading = stream.try_clone().unwrap();
            let reader = thread::spawn(move || receive(reading));
            let _ = self.write(&mut stream);
            return reader.join().unwrap().map_err(told);
        }
        match self.write(&mut stream) {
            Err(error) if kind == Kind::Writer => Err(format!("writing: {}", told(error))),
            _ => receive(stream).map_err(told),
        }
    }

    fn write(&self, stream: &mut TcpStream) -> io::Result<()> {
        let length = if self.is_declared() {
            format!("content-length: {}", self.size)
        } else {
            "transfer-encoding: chunked".into()
        };
        write!(stream, "POST / HTTP/1.1\r\nhost: test\r\n{length}\r\n\r\n")?;
        let block = vec![b'x'; BLOCK];
        let chunk = [format!("{BLOCK:x}\r\n").as_bytes(), &block, b"\r\n"].concat();
        for _ in 0..self.size / BLOCK {
            stream.write_all(if self.is_declared() { &block } else { &chunk })?;
        }
        if self.is_declared() {
            return Ok(());
        }
        stream.write_all(b"0\r\n\r\n")
    }
}

/// Reads an answer that has a length, and says its status.
fn receive(mut stream: TcpStream) -> io::Result<u16> {
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some((status, whole)) = parse(&received) {
            if whole {
                return Ok(status);
            }
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => received.extend_from_slice(&buffer[..read]),
        }
    }
}

/// The status, and whether all of the answer is there. None as long as the head is not.
fn parse(received: &[u8]) -> Option<(u16, bool)> {
    let text = std::str::from_utf8(received).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let head = head.to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head
        .split_once("content-length: ")?
        .1
        .split("\r\n")
        .next()?;
    Some((status, body.len() == length.parse::<usize>().ok()?))
}

const PYTHON: &str = r#"
import http.client, sys
host, port, size, length, tries = sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:]
for _ in range(int(tries)):
    connection = http.client.HTTPConnection(host, port, timeout=20)
    try:
        if length == "declared":
            connection.request("POST", "/", body=bytes(size))
        else:
            blocks = (bytes(65536) for _ in range(size // 65536))
            connection.request("POST", "/", body=blocks, encode_chunked=True,
                               headers={"Transfer-Encoding": "chunked"})
        response = connection.getresponse()
        response.read()
        print(response.status)
    except Exception as error:
        print(type(error).__name__)
    finally:
        connection.close()
"#;

async fn by_python(upload: &Upload, tries: usize) -> Vec<Learned> {
    let (ip, port) = (upload.addr.ip().to_string(), upload.addr.port().to_string());
    let (size, tries_arg) = (upload.size.to_string(), tries.to_string());
    let length = if upload.is_declared() {
        "declared"
    } else {
        "chunked"
    };
    let args = ["-c", PYTHON, &ip, &port, &size, length, &tries_arg];
    let output = match run("python3", args).await {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => error,
    };
    let mut lines = output.lines();
    let learned = |line: &str| line.parse().map_err(|_| line.to_owned());
    let next = |_| lines.next().map_or_else(|| Err("nothing".into()), learned);
    (0..tries).map(next).collect()
}

async fn by_curl(upload: &Upload) -> Learned {
    let (file, uri) = (format!("@{}", zeros(upload.size).display()), upload.uri());
    let mut args = vec![
        "-qsS",
        "--noproxy",
        "*",
        "--max-time",
        "20",
        "-o",
        "/dev/null",
    ];
    // Without the field curl would ask before it sends.
    args.extend(["-w", "%{http_code}", "-H", "expect:"]);
    if !upload.is_declared() {
        args.extend(["-H", "transfer-encoding: chunked"]);
    }
    args.extend(["--data-binary", &file, &uri]);
    let output = run("curl", args).await?;
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
    match text(&output.stdout).parse() {
        Ok(status) if output.status.success() => Ok(status),
        _ => Err(text(&output.stderr)),
    }
}

/// A file of so many zeros, which takes no room.
fn zeros(size: usize) -> PathBuf {
    let path = PathBuf::from(format!("{}/zeros-{size}", env!("CARGO_TARGET_TMPDIR")));
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    file.unwrap().set_len(size as u64).unwrap();
    path
}

/// Runs a program to its end.
async fn run(program: &str, args: impl IntoIterator<Item: AsRef<OsStr>>) -> Result<Output, String> {
    let output = Command::new(program).args(args).kill_on_drop(true).output();
    // Several uploads may have their own guards.
    let output = timeout(30 * GUARD, output).await;
    let output = output.map_err(|_| format!("{program} did not end"))?;
    output.map_err(|error| format!("{program}: {error}"))
}

/// An error in one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        line = format!("{line}: {error}");
        source = error.source();
    }
    line
}
