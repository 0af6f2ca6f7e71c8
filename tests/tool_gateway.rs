//! The tool gateway of the example, over sockets: what it reads of its upstreams, and what it sends.
#![cfg(feature = "json")]

#[path = "../examples/tool_gateway/cases.rs"]
mod cases;
#[path = "../examples/tool_gateway/gateway/mod.rs"]
mod gateway;
#[path = "../examples/tool_gateway/upstreams.rs"]
mod upstreams;

use std::{
    collections::HashMap,
    env::{self, VarError},
    error::Error,
    ffi::OsString,
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use cases::{Stage, compacted, document};
use futures_util::stream;
use gateway::{Cache, DEFAULT, Limits, Log, Protocol, VARIABLE};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;
use upstreams::{Ask, Course, Event, Framing, HINT, Upstreams};

type BoxError = Box<dyn Error + Send + Sync>;

const MIB: usize = 1024 * 1024;
const TOO_LARGE: &str = "TOOL_RESPONSE_TOO_LARGE";
const HTTP_TOOLS: [(&str, Protocol); 4] = [
    ("orders", Protocol::Rest),
    ("ledger", Protocol::JsonRpc),
    ("people", Protocol::GraphQl),
    ("customs", Protocol::Soap),
];

/// Turns a hang into a failure.
async fn guarded<F: Future>(future: F) -> F::Output {
    let guard = timeout(Duration::from_secs(120), future);
    guard.await.expect("it takes too long")
}

async fn stage(upstreams: &Upstreams, limits: Limits) -> (Stage, Arc<Cache>) {
    let cache = Arc::default();
    let stage = Stage::new(upstreams.tools(), limits, &cache).await.unwrap();
    (stage, cache)
}

async fn call(stage: &Stage, tool: &str, ask: Ask) -> Bytes {
    guarded(stage.call(tool, &json!(ask))).await.unwrap()
}

/// The error of a result, which is nothing but that.
fn error(result: &[u8]) -> Value {
    let result: Value = serde_json::from_slice(result).unwrap();
    let error = &result["structuredContent"];
    let content = json!([{ "type": "text", "text": error["error"] }]);
    let whole = json!({ "content": content, "structuredContent": error, "isError": true });
    // A wrong one may have megabytes.
    let start: String = result.to_string().chars().take(300).collect();
    assert!(result == whole, "{start}");
    error.clone()
}

fn code(result: &[u8]) -> String {
    error(result)["code"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_of_the_example_is_right() {
    let (mut rows, mut refused) = (0, 0);
    let run = cases::run(Limits::of(*cases::LIMITS.start()), |row| {
        let case = (row.tool, &row.case, row.limits, row.has, row.sent);
        assert_eq!(row.came_back, row.expected, "{case:?}");
        rows += 1;
        refused += usize::from(row.came_back.starts_with(TOO_LARGE));
    });
    guarded(run).await.unwrap();
    assert!(rows > 2 * refused && refused > 20, "{refused} of {rows}");
}

// ---- What is read

#[tokio::test]
async fn without_a_setting_a_mebibyte_passes_and_eleven_do_not() {
    let upstreams = Upstreams::start().await.unwrap();
    let (log, lines) = log();
    let limits = Limits::by_setting(Err(VarError::NotPresent), &log);
    assert_eq!(limits, Limits::of(10 * 1024 * 1024));
    assert_eq!(lines.lock().unwrap().len(), 0);
    let (stage, _) = stage(&upstreams, limits).await;
    for (tool, protocol) in HTTP_TOOLS {
        for framing in Framing::ALL {
            let ask = Ask::of(MIB).framing(framing);
            let result = call(&stage, tool, ask).await;
            assert!(
                result == document(&ask.payload(protocol)),
                "{tool}, {framing:?}"
            );

            let ask = Ask::of(11 * MIB).framing(framing);
            let result = call(&stage, tool, ask).await;
            assert_eq!(code(&result), TOO_LARGE, "{tool}, {framing:?}");
        }
    }
}

#[tokio::test]
async fn exactly_the_limit_is_read_and_one_byte_more_is_not() {
    let upstreams = Upstreams::start().await.unwrap();
    for (tool, protocol) in HTTP_TOOLS {
        for framing in Framing::ALL {
            let ask = Ask::of(50_000).framing(framing);
            for (upstream, passes) in [(50_000, true), (49_999, false)] {
                let limits = Limits {
                    upstream,
                    result: DEFAULT,
                };
                let (stage, _) = stage(&upstreams, limits).await;
                let result = call(&stage, tool, ask).await;
                let case = format!("{tool}, {framing:?}, {upstream}");
                if passes {
                    assert!(result == document(&ask.payload(protocol)), "{case}");
                } else {
                    assert_eq!(code(&result), TOO_LARGE, "{case}");
                }
            }
        }
    }
}

#[tokio::test]
async fn the_error_says_what_to_do_and_has_no_status() {
    let upstreams = Upstreams::start().await.unwrap();
    let (stage, cache) = stage(&upstreams, Limits::of(50_000)).await;
    let mut lines = 0;
    for framing in Framing::ALL {
        let result = call(&stage, "orders", Ask::of(50_001).framing(framing)).await;
        let text = format!(
            "The tool's answer is larger than 50000 bytes and was not read. Ask for less: filter, \
             name fewer fields, or take a smaller page. If all of it is needed, {VARIABLE} has to \
             be raised."
        );
        let expected = json!({ "error": text, "code": TOO_LARGE });
        assert_eq!(error(&result), expected, "{framing:?}");

        lines += 1;
        assert_eq!(stage.lines().len(), lines, "{framing:?}");
        let line = &stage.lines()[lines - 1];
        assert!(
            line.starts_with("tool orders: TOOL_RESPONSE_TOO_LARGE: "),
            "{line}"
        );
        assert!(line.contains("its limit of 50000 bytes"), "{line}");
    }
    assert_eq!(cache.len(), 0);
}

#[tokio::test]
async fn an_error_of_the_upstream_is_one_however_long_it_is() {
    let upstreams = Upstreams::start().await.unwrap();
    let (stage, cache) = stage(&upstreams, Limits::of(50_000)).await;
    for (tool, protocol) in HTTP_TOOLS {
        for framing in Framing::ALL {
            for status in [302, 404, 413, 503] {
                let ask = Ask::of(60_000).framing(framing);
                let result = call(&stage, tool, ask.course(Course::Status(status))).await;
                let case = format!("{tool}, {framing:?}, {status}");
                let error = error(&result);
                assert_eq!(error["code"], "UPSTREAM_ERROR", "{case}");
                assert_eq!(error["status"], status, "{case}");
                // It can be read what the upstream says.
                let text = error["error"].as_str().unwrap();
                let page = match protocol {
                    Protocol::Soap => "<s:Envelope",
                    Protocol::JsonRpc => r#"{"jsonrpc":"2.0""#,
                    Protocol::GraphQl => r#"{"data":["#,
                    Protocol::Rest => "[\n  {\"name\": \"\u{17c}\u{f3}\u{142}w\"",
                };
                assert!(text.contains(page) && text.len() < 1200, "{case}: {text}");
            }
        }
    }
    assert_eq!(cache.len(), 0);
}

#[tokio::test]
async fn an_error_in_the_words_of_the_protocol_is_one_of_the_upstream() {
    let upstreams = Upstreams::start().await.unwrap();
    let (stage, cache) = stage(&upstreams, Limits::of(DEFAULT)).await;
    for tool in ["ledger", "people"] {
        let result = call(&stage, tool, Ask::of(100).course(Course::Fault)).await;
        let error = error(&result);
        assert_eq!(error["code"], "UPSTREAM_ERROR", "{tool}");
        assert_eq!(error["status"], 200, "{tool}");
        let text = error["error"].as_str().unwrap();
        assert!(text.contains("no such animal"), "{text}");
    }
    assert_eq!(cache.len(), 0);
}

#[tokio::test]
async fn an_upstream_that_is_not_there_or_breaks_off_is_not_too_large() {
    let upstreams = Upstreams::start().await.unwrap();
    let (stage, cache) = stage(&upstreams, Limits::of(50_000)).await;
    for framing in Framing::ALL {
        let ask = Ask::of(50_000).framing(framing).course(Course::Breaks(100));
        let result = call(&stage, "customs", ask).await;
        let expected = "The upstream did not answer, or its answer broke off.";
        let expected = json!({ "error": expected, "code": "UPSTREAM_UNREACHABLE" });
        assert_eq!(error(&result), expected, "{framing:?}");
    }
    let result = call(&stage, "nothing", Ask::of(100)).await;
    assert_eq!(code(&result), "UNKNOWN_TOOL");
    assert_eq!(cache.len(), 0);
}

#[tokio::test]
async fn a_refusal_waits_for_no_more_than_the_byte_that_is_too_many() {
    const LIMIT: usize = 1_000_000;

    let mut upstreams = Upstreams::start().await.unwrap();
    let (stage, _) = stage(&upstreams, Limits::of(LIMIT as u64)).await;
    let ask = Ask::of(55_000_000).framing(Framing::Chunked);
    let result = call(&stage, "orders", ask.course(Course::Waits(LIMIT + 1))).await;
    assert_eq!(code(&result), TOO_LARGE);
    assert_eq!(guarded(upstreams.next(ask.bytes)).await, Event::Waits);
    // Nobody let it on: it was given up.
    let over = Event::Over {
        bytes: ask.bytes,
        pulled: LIMIT + 1,
    };
    assert_eq!(guarded(upstreams.next(ask.bytes)).await, over);
}

#[tokio::test]
async fn a_token_has_a_limit_of_its_own() {
    let upstreams = Upstreams::start().await.unwrap();
    for framing in [Framing::Declared, Framing::Chunked] {
        // Smaller and larger than that of the tool.
        for limit in [1000, DEFAULT] {
            for (bytes, passes) in [(64 * 1024, true), (64 * 1024 + 1, false)] {
                let tools = HashMap::from([("orders", upstreams.orders(framing, bytes))]);
                let cache = Arc::default();
                let limits = Limits {
                    upstream: limit,
                    result: DEFAULT,
                };
                let stage = Stage::new(tools, limits, &cache).await.unwrap();
                let case = format!("{framing:?}, {limit}, {bytes}");
                let ask = Ask::of(1000).framing(framing);
                let result = call(&stage, "orders", ask).await;
                if passes {
                    assert!(result == document(&ask.payload(Protocol::Rest)), "{case}");
                    let more = Ask::of(DEFAULT as usize + 1).framing(framing);
                    let result = call(&stage, "orders", more).await;
                    assert_eq!(code(&result), TOO_LARGE, "{case}");
                } else {
                    let error = error(&result);
                    assert_eq!(error["code"], "METADATA_TOO_LARGE", "{case}");
                    let text = error["error"].as_str().unwrap();
                    // It is no use to ask for less.
                    assert!(
                        !text.contains(VARIABLE) && !text.contains("filter"),
                        "{text}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_setting_that_cannot_be_read_is_the_default_and_a_warning() {
    let not_unicode = VarError::NotUnicode(OsString::from("10"));
    let settings = ["", " ", "-1", "much", "0x10", "99999999999999999999"];
    let settings = settings.map(|text| Ok(text.to_owned()));
    for setting in settings.into_iter().chain([Err(not_unicode)]) {
        let (log, lines) = log();
        let limits = Limits::by_setting(setting.clone(), &log);
        assert_eq!(limits, Limits::of(10 * 1024 * 1024), "{setting:?}");
        let lines = lines.lock().unwrap();
        assert_eq!(lines.len(), 1, "{setting:?}");
        let is_clear = lines[0].starts_with("warning: TOOL_MAX_RESPONSE_BYTES: ")
            && lines[0].ends_with("the limit is 10485760 bytes");
        assert!(is_clear, "{}", lines[0]);
    }
    for (setting, bytes) in [("0", 0), ("1048576", 1024 * 1024), (" 64KiB ", 64 * 1024)] {
        let (log, lines) = log();
        let limits = Limits::by_setting(Ok(setting.to_owned()), &log);
        assert_eq!(limits, Limits::of(bytes), "{setting:?}");
        assert_eq!(lines.lock().unwrap().len(), 0, "{setting:?}");
    }
}

/// Starts itself, with the variable set: a program cannot set its own without `unsafe`.
#[test]
fn the_setting_is_in_the_environment() {
    const NAME: &str = "the_setting_is_in_the_environment";
    const SECOND: &str = "IN_A_PROCESS_OF_ITS_OWN";

    if env::var_os(SECOND).is_some() {
        let (log, _) = log();
        assert_eq!(Limits::from_env(&log), Limits::of(12_345_678));
        return;
    }
    let second = Command::new(env::current_exe().unwrap())
        .args(["--exact", NAME])
        .envs([(SECOND, "yes"), (VARIABLE, "12345678")])
        .output();
    let second = String::from_utf8(second.unwrap().stdout).unwrap();
    assert!(second.contains("1 passed; 0 failed"), "{second}");
}

fn log() -> (Log, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::<Mutex<Vec<String>>>::default();
    let writing = Arc::clone(&lines);
    let log = move |line: &str| writing.lock().unwrap().push(line.to_owned());
    (Arc::new(log), lines)
}

#[tokio::test]
async fn the_arguments_of_a_call_are_limited_too() {
    let upstreams = Upstreams::start().await.unwrap();
    let (stage, _) = stage(&upstreams, Limits::of(DEFAULT)).await;
    for (bytes, status) in [(MIB, 200), (MIB + 1, 413)] {
        let text = String::from("{}") + &" ".repeat(bytes - 2);
        let chunked = stream::iter([Ok::<_, BoxError>(text.clone())]);
        for body in [text.into(), reqwest::Body::wrap_stream(chunked)] {
            let response = guarded(stage.post("rows", body)).await.unwrap();
            assert_eq!(response.status(), status, "{bytes}");
        }
    }
}

// ---- What is sent

/// Tools of every kind, with what they have to say and how they are asked.
fn connectors() -> Vec<(&'static str, Value, String)> {
    let mut all = Vec::new();
    for (tool, protocol) in &HTTP_TOOLS[..3] {
        for framing in Framing::ALL {
            let ask = Ask::of(5000).framing(framing);
            all.push((*tool, json!(ask), ask.payload(*protocol)));
        }
    }
    let rows: Value = (0..100).map(upstreams::record).collect();
    all.push(("rows", json!({ "count": 100 }), format!("{rows:#}")));
    all
}

#[tokio::test]
async fn a_result_is_whole_or_compacted_or_an_error_and_the_hint_is_kept() {
    let upstreams = Upstreams::start().await.unwrap();
    for (tool, arguments, payload) in connectors() {
        let whole = document(&payload);
        let compact = document(&compacted(&payload));
        assert!(compact.len() < whole.len());
        // Characters would be fewer.
        assert!(compact.chars().count() < compact.len() - 100);

        let cache = Arc::<Cache>::default();
        // Nothing is cached of the first, and the last ones are from the cache.
        for (limit, expected) in [
            (compact.len() - 1, None),
            (compact.chars().count(), None),
            (compact.len(), Some(&compact)),
            (whole.len() - 1, Some(&compact)),
            (whole.len(), Some(&whole)),
            (compact.len() - 1, None),
        ] {
            let case = format!("{tool}, {arguments}, {limit}");
            let limits = Limits {
                upstream: DEFAULT,
                result: limit as u64,
            };
            let stage = Stage::new(upstreams.tools(), limits, &cache).await.unwrap();
            let before = cache.len();
            let result = guarded(stage.call(tool, &arguments)).await.unwrap();
            let Some(expected) = expected else {
                let size = whole.len();
                let text = format!(
                    "The tool's result has {size} bytes, and {limit} may be sent. Ask for less: \
                     filter, name fewer fields, or take a smaller page. If all of it is needed, \
                     {VARIABLE} has to be raised."
                );
                let expected = json!({ "error": text, "code": TOO_LARGE });
                assert_eq!(error(&result), expected, "{case}");
                assert_eq!(stage.lines().len(), 1, "{case}");
                let line = &stage.lines()[0];
                assert!(line.contains(TOO_LARGE) && line.contains(tool), "{line}");
                assert_eq!(cache.len(), before, "{case}");
                continue;
            };
            assert!(result.len() <= limit, "{case}");
            assert!(result == *expected, "{case}");
            assert_eq!(stage.lines(), [""; 0], "{case}");
            assert_eq!(cache.len(), 1, "{case}");
            let result: Value = serde_json::from_slice(&result).unwrap();
            assert_eq!(result["content"][0]["text"], HINT, "{case}");
            let payload: Value = serde_json::from_str(&payload).unwrap();
            assert_eq!(result["structuredContent"]["result"], payload, "{case}");
        }
    }
}

#[tokio::test]
async fn where_there_is_no_whitespace_one_byte_over_is_an_error() {
    let upstreams = Upstreams::start().await.unwrap();
    for (tool, protocol) in HTTP_TOOLS {
        for framing in Framing::ALL {
            let ask = Ask::of(5000).framing(framing).dense();
            let whole = document(&ask.payload(protocol));
            for (limit, passes) in [(whole.len(), true), (whole.len() - 1, false)] {
                let limits = Limits {
                    upstream: DEFAULT,
                    result: limit as u64,
                };
                let (stage, cache) = stage(&upstreams, limits).await;
                let result = call(&stage, tool, ask).await;
                let case = format!("{tool}, {framing:?}, {limit}");
                if passes {
                    assert!(result == whole, "{case}");
                } else {
                    assert_eq!(code(&result), TOO_LARGE, "{case}");
                }
                assert_eq!(cache.len(), usize::from(passes), "{case}");
                assert_eq!(stage.lines().len(), usize::from(!passes), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_cached_is_not_asked_for_again_and_what_was_not_sent_is() {
    let mut upstreams = Upstreams::start().await.unwrap();
    let cache = Arc::<Cache>::default();
    let ask = Ask::of(5000).framing(Framing::Chunked);
    let whole = document(&ask.payload(Protocol::Rest));
    let limits = |upstream, result| Limits { upstream, result };
    for (limits, passes, is_asked) in [
        (limits(5000, 100), false, true),
        (limits(5000, DEFAULT), true, true),
        (limits(0, DEFAULT), true, false),
        (limits(0, 100), false, false),
    ] {
        let stage = Stage::new(upstreams.tools(), limits, &cache).await.unwrap();
        let result = call(&stage, "orders", ask).await;
        if passes {
            assert!(result == whole, "{limits:?}");
        } else {
            assert_eq!(code(&result), TOO_LARGE, "{limits:?}");
        }
        if is_asked {
            let event = guarded(upstreams.next(5000)).await;
            let whole = Event::Over {
                bytes: 5000,
                pulled: 5000,
            };
            assert_eq!(event, whole, "{limits:?}");
        }
    }
    // The next one that is heard of is the next that is asked for.
    let (stage, _) = stage(&upstreams, Limits::of(DEFAULT)).await;
    call(&stage, "orders", Ask::of(100)).await;
    assert!(matches!(
        upstreams.heard().await,
        Event::Over { bytes: 100, .. }
    ));
}

#[test]
fn a_payload_is_kept_as_it_is_written_and_has_to_be_json() {
    let payload = |protocol: Protocol, body: &'static str| {
        let payload = protocol.payload(StatusCode::OK, Bytes::from_static(body.as_bytes()));
        payload.ok()
    };
    let odd = r#"{"b": 1e400, "a": 0.10, "a": "\u0041\/"}"#;
    let message =
        r#"{"id": 1, "error": null, "result": {"b": 1e400, "a": 0.10, "a": "\u0041\/"} }"#;
    assert_eq!(payload(Protocol::Rest, odd).unwrap(), odd);
    assert_eq!(payload(Protocol::JsonRpc, message).unwrap(), odd);
    assert_eq!(
        payload(Protocol::JsonRpc, r#"{"result":null}"#).unwrap(),
        "null"
    );
    assert_eq!(
        payload(Protocol::GraphQl, r#"{"data": [ ]}"#).unwrap(),
        "[ ]"
    );
    assert_eq!(
        payload(Protocol::Soap, "<a b=\"c\"/>").unwrap(),
        r#""<a b=\"c\"/>""#
    );

    for (protocol, body) in [
        (Protocol::Rest, r#"1},"isError":true,"x":{"y":2"#),
        (Protocol::Rest, "<html>"),
        (Protocol::Rest, ""),
        (Protocol::JsonRpc, "[1]"),
        (Protocol::JsonRpc, r#"{"id":1}"#),
        (Protocol::GraphQl, r#"{"data":1,"errors":[{}]}"#),
    ] {
        assert_eq!(payload(protocol, body), None, "{body}");
    }
    let not_utf8 = Bytes::from_static(b"\"\xff\"");
    for protocol in [Protocol::Rest, Protocol::Soap] {
        assert!(protocol.payload(StatusCode::OK, not_utf8.clone()).is_err());
    }
}
