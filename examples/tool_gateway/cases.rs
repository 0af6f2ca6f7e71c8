//! What is tried, and what should come back.

use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    BoxError,
    gateway::{Cache, DEFAULT, Gateway, Limits, Log, METADATA_LIMIT, Protocol, Tool},
    upstreams::{self, Ask, Course, Event, Framing, HINT, Upstreams},
};

/// For which the cases make sense.
pub(crate) const LIMITS: RangeInclusive<u64> = 64 * 1024..=16 * 1024 * 1024;

/// How long a row may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The answer that is refused while others are served.
const HUGE: usize = 55_000_000;
const OTHERS: usize = 20;

const WHOLE: &str = "byte for byte";
const COMPACTED: &str = "compacted";
const TOO_LARGE: &str = "TOOL_RESPONSE_TOO_LARGE";

/// One line of the table.
pub(crate) struct Row {
    pub(crate) tool: &'static str,
    pub(crate) case: String,
    pub(crate) limits: Limits,
    /// Bytes that the upstream has, or that the result would have.
    pub(crate) has: usize,
    /// Bytes that the upstream was asked for.
    pub(crate) sent: Option<usize>,
    pub(crate) came_back: String,
    pub(crate) expected: String,
}

/// A call, and what is to come of it.
struct Case {
    tool: &'static str,
    case: String,
    limits: Limits,
    arguments: Value,
    /// What the tool has to say, as it would say it.
    payload: String,
    has: usize,
    expected: &'static str,
    /// The token that the call needs, if it is not the usual one.
    token: Option<(Framing, u64)>,
    /// Whether the payload was called for before, under a larger limit.
    cached: bool,
}

/// Calls every tool under every limit, and tells of each.
pub(crate) async fn run(usual: Limits, mut tell: impl FnMut(&Row)) -> Result<(), BoxError> {
    let mut upstreams = Upstreams::start().await?;
    let cases = [reading(usual), tokens(usual), sending(usual)];
    for case in cases.into_iter().flatten() {
        let row = timeout(PATIENCE, case.run(&upstreams)).await??;
        tell(&row);
    }
    for framing in [Framing::Declared, Framing::Chunked] {
        let row = timeout(PATIENCE, meanwhile(&mut upstreams, usual, framing)).await??;
        tell(&row);
    }
    Ok(())
}

/// What is read, in sizes around the limit.
fn reading(usual: Limits) -> Vec<Case> {
    let at = usual.upstream as usize;
    let (tenth, beyond) = (at / 10, at / 10 * 11);
    let mut cases = Vec::new();
    for framing in Framing::ALL {
        for (name, bytes, expected) in [
            ("a tenth of the limit", tenth, WHOLE),
            ("at the limit", at, COMPACTED),
            ("one over", at + 1, TOO_LARGE),
            ("a tenth over", beyond, TOO_LARGE),
        ] {
            let ask = Ask::of(bytes).framing(framing);
            cases.push(http("orders", name, usual, ask, expected));
        }
        // Room for the result, so that nothing has to be done to it.
        for (name, upstream, expected) in [
            ("a limit of just that", tenth as u64, WHOLE),
            ("a limit of one less", tenth as u64 - 1, TOO_LARGE),
        ] {
            let limits = Limits { upstream, ..usual };
            let ask = Ask::of(tenth).framing(framing);
            cases.push(http("orders", name, limits, ask, expected));
        }
    }
    for tool in ["ledger", "people", "customs"] {
        let under = Ask::of(tenth);
        cases.push(http(tool, "a tenth of the limit", usual, under, WHOLE));
        for framing in [Framing::Declared, Framing::Chunked] {
            let over = Ask::of(at + 1).framing(framing);
            cases.push(http(tool, "one over", usual, over, TOO_LARGE));
        }
    }
    let page = |status| Ask::of(beyond).course(Course::Status(status));
    let broken = Ask::of(tenth).course(Course::Breaks(tenth / 2));
    let fault = Ask::of(tenth).course(Course::Fault);
    for (tool, name, ask, expected) in [
        ("orders", "an error page", page(503), "UPSTREAM_ERROR 503"),
        ("customs", "an error page", page(500), "UPSTREAM_ERROR 500"),
        ("orders", "breaks off", broken, "UPSTREAM_UNREACHABLE"),
        ("ledger", "an error", fault, "UPSTREAM_ERROR 200"),
        ("people", "an error", fault, "UPSTREAM_ERROR 200"),
    ] {
        cases.push(http(tool, name, usual, ask, expected));
    }
    for (setting, bytes, expected) in [
        ("64KiB", 64 * 1024 + 1, TOO_LARGE),
        ("65536", 64 * 1024, COMPACTED),
        ("12MiB", 11 * 1024 * 1024, WHOLE),
        ("", DEFAULT as usize + 1, TOO_LARGE),
        ("much", DEFAULT as usize, COMPACTED),
    ] {
        let nobody: Log = Arc::new(|_| {});
        let limits = Limits::by_setting(Ok(setting.to_owned()), &nobody);
        let name = format!("setting {setting:?}");
        cases.push(http("orders", &name, limits, Ask::of(bytes), expected));
    }
    cases
}

/// Tokens in sizes around a limit of their own, whatever that of the tool is.
fn tokens(usual: Limits) -> Vec<Case> {
    const SMALL: usize = 1000;

    let low = Limits {
        upstream: SMALL as u64,
        ..usual
    };
    let mut cases = Vec::new();
    for framing in [Framing::Declared, Framing::Chunked] {
        for (name, limits, bytes, expected) in [
            ("its token at the limit", usual, METADATA_LIMIT, WHOLE),
            (
                "its token one over",
                usual,
                METADATA_LIMIT + 1,
                "METADATA_TOO_LARGE",
            ),
            ("at the limit, its token too", low, METADATA_LIMIT, WHOLE),
            (
                "at the limit, its token one over",
                low,
                METADATA_LIMIT + 1,
                "METADATA_TOO_LARGE",
            ),
        ] {
            let ask = Ask::of(SMALL).framing(framing);
            let case = http("orders", name, limits, ask, expected);
            cases.push(Case {
                token: Some((framing, bytes)),
                ..case
            });
        }
    }
    cases
}

/// What is sent, under limits around its size.
fn sending(usual: Limits) -> Vec<Case> {
    let rows: Value = (0..100).map(upstreams::record).collect();
    let read = |tool, ask| http(tool, "", usual, ask, "");
    let mut cases = Vec::new();
    for case in [
        read("orders", Ask::of(5000)),
        read("ledger", Ask::of(5000).framing(Framing::Chunked)),
        read("people", Ask::of(5000).framing(Framing::Gzip)),
        Case {
            tool: "rows",
            arguments: json!({ "count": 100 }),
            payload: format!("{rows:#}"),
            ..read("orders", Ask::of(5000))
        },
    ] {
        let whole = document(&case.payload).len();
        let compact = document(&compacted(&case.payload)).len();
        for cached in [false, true] {
            for (name, limit, expected) in [
                ("result at the limit", whole, WHOLE),
                ("result one over", whole - 1, COMPACTED),
                ("result at the limit if compacted", compact, COMPACTED),
                ("result one over if compacted", compact - 1, TOO_LARGE),
            ] {
                let result = limit as u64;
                cases.push(Case {
                    case: format!("{}{name}", if cached { "cached " } else { "" }),
                    limits: Limits { result, ..usual },
                    arguments: case.arguments.clone(),
                    payload: case.payload.clone(),
                    has: whole,
                    expected,
                    cached,
                    ..case
                });
            }
        }
    }
    let ask = Ask::of(5000).dense();
    let whole = document(&ask.payload(Protocol::Rest)).len() as u64;
    for (name, result, expected) in [
        ("dense result at the limit", whole, WHOLE),
        ("dense result one over", whole - 1, TOO_LARGE),
    ] {
        let limits = Limits { result, ..usual };
        cases.push(http("orders", name, limits, ask, expected));
    }
    cases
}

/// A call of a tool that asks an upstream.
fn http(tool: &'static str, name: &str, limits: Limits, ask: Ask, expected: &'static str) -> Case {
    let protocol = match tool {
        "ledger" => Protocol::JsonRpc,
        "people" => Protocol::GraphQl,
        "customs" => Protocol::Soap,
        _ => Protocol::Rest,
    };
    Case {
        tool,
        case: format!("{name}, {:?}", ask.framing),
        limits,
        arguments: json!(ask),
        payload: ask.payload(protocol),
        has: ask.bytes,
        expected,
        token: None,
        cached: false,
    }
}

impl Case {
    async fn run(self, upstreams: &Upstreams) -> Result<Row, BoxError> {
        let cache = Arc::<Cache>::default();
        let mut limits = self.limits;
        if self.cached {
            let usual = Stage::new(upstreams.tools(), Limits::of(DEFAULT), &cache).await?;
            usual.call(self.tool, &self.arguments).await?;
            // Whoever asks again fails.
            limits.upstream = 0;
        }
        let tools = match self.token {
            Some((framing, bytes)) => HashMap::from([("orders", upstreams.orders(framing, bytes))]),
            None => upstreams.tools(),
        };
        let stage = Stage::new(tools, limits, &cache).await?;
        let result = stage.call(self.tool, &self.arguments).await?;
        let mut came_back = what(&result, &self.payload);
        // What fails is said once in the log, and only what does not is in the cache.
        let fails = ![WHOLE, COMPACTED].contains(&&*came_back);
        if stage.lines().len() != usize::from(fails) {
            came_back += ", not in the log";
        }
        if cache.len() != usize::from(self.cached || !fails) {
            came_back += ", in the cache";
        }
        Ok(Row {
            came_back,
            tool: self.tool,
            case: self.case,
            limits: self.limits,
            has: self.has,
            sent: None,
            expected: self.expected.to_owned(),
        })
    }
}

/// While an answer that is far too large is on its way, and is refused, others are served.
async fn meanwhile(
    upstreams: &mut Upstreams,
    usual: Limits,
    framing: Framing,
) -> Result<Row, BoxError> {
    let stage = Stage::new(upstreams.tools(), usual, &Arc::default()).await?;
    // Unless it is refused for what it declares, it cannot be before it is let on.
    let waits = Course::Waits(usual.upstream as usize / 2);
    let huge = json!(Ask::of(HUGE).framing(framing).course(waits));

    // One that was given up while it waited has left its permit behind.
    upstreams.gate.forget_permits(usize::MAX);
    let others = async {
        let first = upstreams.next(HUGE).await;
        let served = join_all((0..OTHERS).map(async |at| {
            let ask = Ask::of(5000 + at);
            let result = stage.call("orders", &json!(ask)).await;
            result.is_ok_and(|result| what(&result, &ask.payload(Protocol::Rest)) == WHOLE)
        }));
        let served = served.await.into_iter().filter(|is_served| *is_served);
        if first == Event::Waits {
            upstreams.gate.add_permits(1);
            return (served.count(), upstreams.next(HUGE).await);
        }
        (served.count(), first)
    };
    let (result, (served, last)) = tokio::join!(stage.call("orders", &huge), others);
    let came_back = format!("{}, {served} others served", what(&result?, ""));
    let (sent, early) = match last {
        Event::Over { pulled, .. } if pulled < HUGE => (Some(pulled), "stopped early"),
        Event::Over { pulled, .. } => (Some(pulled), "sent whole"),
        Event::Waits => (None, "waits"),
    };
    Ok(Row {
        tool: "orders",
        case: format!("while others are served, {framing:?}"),
        limits: usual,
        has: HUGE,
        sent,
        came_back: format!("{came_back}, {early}"),
        expected: format!("{TOO_LARGE}, {OTHERS} others served, stopped early"),
    })
}

/// A gateway that can be called.
pub(crate) struct Stage {
    client: reqwest::Client,
    url: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl Stage {
    pub(crate) async fn new(
        tools: HashMap<&'static str, Tool>,
        limits: Limits,
        cache: &Arc<Cache>,
    ) -> Result<Self, BoxError> {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let writing = Arc::clone(&lines);
        let log: Log = Arc::new(move |line| writing.lock().unwrap().push(line.to_owned()));
        let gateway = Gateway::new(limits, tools, Arc::clone(cache), log);
        let address = upstreams::serve(gateway.router()).await?;
        Ok(Self {
            client: reqwest::Client::builder().no_proxy().build()?,
            url: format!("http://{address}/tools"),
            log: lines,
        })
    }

    /// A result. There is one whatever happens upstream.
    pub(crate) async fn call(&self, tool: &str, arguments: &Value) -> Result<Bytes, BoxError> {
        let response = self.post(tool, arguments.to_string()).await?;
        Ok(response.error_for_status()?.bytes().await?)
    }

    pub(crate) async fn post(
        &self,
        tool: &str,
        arguments: impl Into<reqwest::Body>,
    ) -> reqwest::Result<reqwest::Response> {
        let request = self.client.post(format!("{}/{tool}", self.url));
        let request = request.header(CONTENT_TYPE, "application/json");
        request.body(arguments).send().await
    }

    /// What is in the log.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

/// What a result is, if the tool has `payload` to say.
fn what(result: &[u8], payload: &str) -> String {
    if result == document(payload).as_bytes() {
        return WHOLE.to_owned();
    }
    if result == document(&compacted(payload)).as_bytes() {
        return COMPACTED.to_owned();
    }
    let Ok(result) = serde_json::from_slice::<Value>(result) else {
        return String::from("no JSON");
    };
    let error = &result["structuredContent"];
    match (error["code"].as_str(), error["status"].as_u64()) {
        (Some(code), Some(status)) => format!("{code} {status}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => String::from("another result"),
    }
}

/// The result as it should be.
pub(crate) fn document(payload: &str) -> String {
    let hint = Value::from(HINT);
    format!(
        r#"{{"content":[{{"type":"text","text":{hint}}}],"structuredContent":{{"result":{payload}}},"isError":false}}"#
    )
}

/// JSON in whose strings are no quotes, without its whitespace.
pub(crate) fn compacted(json: &str) -> String {
    let parts = json.split('"').enumerate();
    let parts = parts.map(|(at, part)| match at % 2 {
        0 => part.split_whitespace().collect(),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("\"")
}
