//! JSON in the events of any stream, against a slow model, whatever chunks it comes in and however it
//! ends.

use std::{
    convert::Infallible,
    str,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request, Response, StatusCode, Version, header};
use serde_json::Value;
use tower::{Layer, ServiceExt, service_fn};
use tower_body_limit::{
    Error,
    json::{Fit, FitReport, JsonFitLayer, Unfit, fit},
};

use crate::{
    input::Input,
    json::{is_valid, settings_of, spec, steps},
    json_oracle::{self, Node, Spec},
    support::{Hint, Script, Step, drive::Drive},
};

/// What a byte stands for, so that a fuzzer need not spell it out.
const PIECES: [&str; 48] = [
    "data:",
    "data: ",
    "data:  ",
    "\ndata:",
    "data",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "\r\r",
    "\r\n\r\n",
    "id: 7\n",
    "id",
    "id:\0\n",
    "retry: 9\r\n",
    "retry:x\n",
    "event: e\n",
    "dat",
    ":c\n",
    ":",
    "\u{feff}",
    "data:{\"jsonrpc\":\"2.0\",\"id\":",
    "{\"jsonrpc\":\"2.0\",",
    "\"result\":",
    "\"error\":{},",
    "\"method\":\"m\",",
    "\"id\":\"x\",",
    "\"\\u0069d\":8,",
    "\"a\":",
    "\"b\" : ",
    "\"truncated\":",
    "{",
    "}",
    "[",
    "]",
    "}\n\n",
    "]}\r\n",
    "{\"a\" : [1, 2, 3, 4, 5, 6, 7, 8, 9]}",
    "[ 1,  2 ]",
    "7",
    "7,",
    "null",
    "true",
    ",",
    " ",
    "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"",
    "\u{e9}",
    "x",
];

fn stream(input: &mut Input<'_>) -> Vec<u8> {
    if input.flag() {
        return input.rest().to_vec();
    }
    let pieces = input
        .rest()
        .iter()
        .map(|&byte| PIECES[usize::from(byte) % PIECES.len()]);
    let mut text = pieces.collect::<String>().into_bytes();
    text.truncate(1000);
    text
}

/// How a stream comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole,
    Trailers,
    Fail,
    Stall,
}

/// What a response is like that is left alone, but for the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stream,
    Encoded,
    Partial,
    ToHead,
    Text,
}

#[derive(Debug)]
struct Case {
    settings: Fit,
    spec: Spec,
    limit: u64,
    scan: u64,
    kind: Kind,
    version: Version,
    client: bool,
    hint: Hint,
    end: End,
    text: Vec<u8>,
}

/// What is seen of a stream.
#[derive(Debug, PartialEq)]
struct Seen {
    data: Vec<u8>,
    reports: Vec<Result<FitReport, Unfit>>,
    has_trailers: bool,
    fails: bool,
}

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let spec = spec(&mut input);
    let scan = match input.byte() % 4 {
        3 => input.number() as u64 % 200,
        _ => u64::MAX,
    };
    let (limit, cuts) = (u64::from(input.byte() % 80), input.numbers(6));
    let case = Case {
        kind: input.pick(&[
            Kind::Stream,
            Kind::Stream,
            Kind::Stream,
            Kind::Encoded,
            Kind::Partial,
            Kind::ToHead,
            Kind::Text,
        ]),
        version: input.pick(&[Version::HTTP_11, Version::HTTP_10, Version::HTTP_2]),
        client: input.flag(),
        hint: input.pick(&[Hint::Undeclared, Hint::Declared, Hint::EndOnly]),
        end: input.pick(&[End::Whole, End::Trailers, End::Fail, End::Stall]),
        text: stream(&mut input),
        settings: settings_of(&spec, limit).max_scan(scan),
        spec,
        limit,
        scan,
    };

    let seen = case.through(steps(&case.text, &cuts));
    case.check(&seen);
    let whole = vec![Step::Data(Bytes::copy_from_slice(&case.text))];
    let bytes = case.text.iter().map(|&byte| [byte].to_vec());
    let bytes = bytes.map(|byte| Step::Data(byte.into())).collect();
    for steps in [whole, bytes] {
        assert_eq!(case.through(steps), seen, "{}", case.text.escape_ascii());
    }
}

impl Case {
    fn applies(&self) -> bool {
        let is_small = matches!(self.hint, Hint::Declared) && self.text.len() as u64 <= self.limit;
        self.kind == Kind::Stream && !is_small
    }

    fn through(&self, mut steps: Vec<Step>) -> Seen {
        let waits = steps.iter().filter(|step| matches!(step, Step::Pending));
        let (waits, polls) = (waits.count(), steps.len());
        steps.extend(match self.end {
            End::Whole => None,
            End::Trailers => Some(Step::Trailers),
            End::Fail => Some(Step::Fail),
            End::Stall => Some(Step::Stall),
        });
        let reports = Arc::new(Mutex::new(Vec::new()));
        let side = if self.client {
            JsonFitLayer::client
        } else {
            JsonFitLayer::server
        };
        let layer = side(self.settings.clone()).on_fit({
            let reports = Arc::clone(&reports);
            move |result| {
                let report = result.cloned().map_err(Clone::clone);
                reports.lock().unwrap().push(report);
            }
        });
        let script = Script::new(steps, self.hint.clone());
        let log = script.log();
        let mut response = Response::builder().header(header::ETAG, "\"e\"");
        response = match self.kind {
            Kind::Text => response.header(header::CONTENT_TYPE, "text/plain"),
            _ => response.header(header::CONTENT_TYPE, "text/event-stream"),
        };
        response = match self.kind {
            Kind::Encoded => response.header(header::CONTENT_ENCODING, "gzip"),
            Kind::Partial => response.status(StatusCode::PARTIAL_CONTENT),
            _ => response,
        };
        let response = Mutex::new(Some(response.body(script).unwrap()));
        let mut request = Request::new(());
        *request.version_mut() = self.version;
        if self.kind == Kind::ToHead {
            *request.method_mut() = Method::HEAD;
        }
        let service = layer.layer(service_fn(|_: Request<()>| {
            std::future::ready(Ok::<_, Infallible>(
                response.lock().unwrap().take().unwrap(),
            ))
        }));
        let answer = service.oneshot(request).now_or_never();
        let answer = answer.expect("the head waits for nothing").unwrap();
        assert_eq!(log.polls(), 0);
        let tells_of_the_whole = answer.headers().contains_key(header::ETAG);
        assert_eq!(tells_of_the_whole, !self.applies());

        let drive = Drive::to_end(answer.into_body());
        let outline = drive.outline();
        assert_eq!(outline.ends_with("stall"), self.end == End::Stall);
        assert_eq!(log.dropped(), self.end != End::Stall);
        let fails = drive.error.is_some();
        assert!(!fails || matches!(drive.error, Some(Error::Body(_))));
        // A server sends what came before an error, first.
        let flushes = self.applies() && !self.client && self.version > Version::HTTP_10;
        let waits = waits + if fails && flushes { 2 } else { 0 };
        let waited = outline.matches("pending").count();
        // A long one gives way, too.
        assert!(waited == waits || (polls > 30 && waited > waits));
        let reports = reports.lock().unwrap().clone();
        Seen {
            data: drive.data(),
            reports,
            has_trailers: outline.contains("trailers"),
            fails,
        }
    }

    fn check(&self, seen: &Seen) {
        assert_eq!(seen.has_trailers, self.end == End::Trailers);
        assert_eq!(seen.fails, self.end == End::Fail);
        if !self.applies() {
            assert_eq!(seen.data, self.text);
            assert!(seen.reports.is_empty());
            return;
        }
        let model = self.model();
        let reports = check_reports(&model, &seen.reports, self.limit);
        let is_as_expected = find(&model, &reports, &seen.data, self.end);
        assert!(
            is_as_expected,
            "{} of {}: {model:?}",
            seen.data.escape_ascii(),
            self.text.escape_ascii()
        );
    }

    /// What has to come of the stream, piece by piece.
    fn model(&self) -> Vec<Piece> {
        let text = &self.text[..];
        let after_mark = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut pieces = vec![Piece::Same(text[..text.len() - after_mark.len()].to_vec())];
        let mut event = Vec::new();
        for line in lines(after_mark) {
            let is_blank = line.starts_with(b"\r") || line.starts_with(b"\n");
            if event.is_empty() && (is_blank || line.starts_with(b":")) {
                pieces.push(Piece::Same(line.to_vec()));
                continue;
            }
            event.push(line);
            if is_blank {
                pieces.push(self.event(&event, true));
                event.clear();
            }
        }
        if !event.is_empty() {
            pieces.push(self.event(&event, false));
        }
        pieces
    }

    fn event(&self, event: &[&[u8]], has_end: bool) -> Piece {
        let mut data: Option<Vec<u8>> = None;
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for &line in event {
            let text = match line {
                [text @ .., b'\r', b'\n'] | [text @ .., b'\r' | b'\n'] => text,
                text => text,
            };
            let ends = text.len() < line.len();
            let value = (text == b"data" && ends).then_some(&b""[..]);
            if let Some(value) = value.or(text.strip_prefix(b"data:")) {
                let value = value.strip_prefix(b" ").unwrap_or(value);
                data = Some(match data {
                    Some(data) => [&data, &b"\n"[..], value].concat(),
                    None => value.to_vec(),
                });
            } else if ends && !text.is_empty() && !text.starts_with(b":") {
                let fields = if data.is_none() {
                    &mut before
                } else {
                    &mut after
                };
                fields.push([text, b"\n"].concat());
            }
        }
        let data = data.unwrap_or_default();
        let len = data.len() as u64;
        if len <= self.limit {
            // One that has no end is held until there is one, or until the stream is over.
            let is_due = has_end || self.end != End::Stall;
            return Piece::Same(if is_due { event.concat() } else { Vec::new() });
        }
        let is_early = len > self.scan;
        let fitted = if is_early {
            None
        } else {
            self.fitted(&data).map(|data| {
                let end: &[u8] = if has_end { b"\n" } else { b"" };
                let (before, after) = (before.concat(), after.concat());
                [&before, &b"data:"[..], &data, b"\n", &after, end].concat()
            })
        };
        let message = if is_early {
            message_so_far(&data, self.scan as usize)
        } else {
            message(&data)
        };
        Piece::Changed(Box::new(Change {
            message,
            before,
            after,
            data,
            has_end,
            is_early,
            fitted,
        }))
    }

    /// The data that has to come in the place of other data, if there is any.
    fn fitted(&self, data: &[u8]) -> Option<Vec<u8>> {
        if !is_valid(data) {
            return Some(fit(data, &self.settings).ok()?.into_bytes().to_vec());
        }
        let text = str::from_utf8(data).unwrap();
        Some(json_oracle::fit(text, &self.spec, self.limit).ok()?.into())
    }
}

#[derive(Debug)]
enum Piece {
    Same(Vec<u8>),
    Changed(Box<Change>),
}

/// An event that is over the limit.
#[derive(Debug)]
struct Change {
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
    data: Vec<u8>,
    has_end: bool,
    /// Whether its end is not waited for.
    is_early: bool,
    fitted: Option<Vec<u8>>,
    /// What it answers, if that is for sure.
    message: Option<Message>,
}

#[derive(Clone, Debug, PartialEq)]
enum Message {
    Answer(String),
    Other,
}

/// What a document is, unless that is a matter of how it is read.
fn message(data: &[u8]) -> Option<Message> {
    if !is_valid(data) {
        return None;
    }
    let Node::Object(members) = Node::parse(str::from_utf8(data).unwrap()) else {
        return Some(Message::Other);
    };
    let has = |names: &[&str]| {
        let mut keys = members.iter().map(|(key, _)| key);
        keys.any(|key| serde_json::from_str(key).is_ok_and(|key: String| names.contains(&&*key)))
    };
    let mut ids = members
        .iter()
        .filter(|(key, _)| serde_json::from_str(key).is_ok_and(|key: String| key == "id"));
    let id = match (ids.next(), ids.next()) {
        (Some((_, Node::Scalar(id))), None) if id.len() <= 256 => Some(id.clone()),
        (Some(_), Some(_)) => return None,
        _ => None,
    };
    let id = id.filter(|id| id != "true" && id != "false");
    let is_answer = has(&["jsonrpc"]) && has(&["result", "error"]) && !has(&["method"]);
    Some(match id.filter(|_| is_answer) {
        Some(id) => Message::Answer(id),
        None => Message::Other,
    })
}

/// The same of the first `read` bytes, unless it takes a byte more or less to know.
fn message_so_far(data: &[u8], read: usize) -> Option<Message> {
    if message(data)? == Message::Other && !data.trim_ascii_start().starts_with(b"{") {
        return Some(Message::Other);
    }
    let members = members(str::from_utf8(data).unwrap());
    let known = |read: usize| {
        let has = |names: &[&str]| {
            let mut keys = members.iter().filter(|member| member.key_end <= read);
            keys.any(|member| names.contains(&&*member.key))
        };
        let mut ids = members.iter().filter(|member| member.key == "id");
        let id = ids.next().filter(|id| id.end <= read)?.value;
        let is_id = id.len() <= 256 && !id.starts_with(['{', '[', 't', 'f']);
        let is_answer = has(&["jsonrpc"]) && has(&["result", "error"]) && !has(&["method"]);
        (is_answer && is_id).then(|| id.to_owned())
    };
    let id = known(read);
    let is_clear = [read.saturating_sub(2), read + 2]
        .iter()
        .all(|&it| known(it) == id);
    is_clear.then(|| id.map_or(Message::Other, Message::Answer))
}

/// A member of a document, and where its key and its value end.
#[derive(Debug)]
struct Member<'a> {
    key: String,
    key_end: usize,
    value: &'a str,
    end: usize,
}

/// The members of a valid object.
fn members(text: &str) -> Vec<Member<'_>> {
    let (mut members, mut key) = (Vec::new(), None);
    let (mut depth, mut string, mut is_escaped, mut value) = (0, None, false, 0);
    for (at, byte) in text.bytes().enumerate() {
        if let Some(start) = string {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => {
                    string = None;
                    if depth == 1 && key.is_none() {
                        let name = serde_json::from_str::<String>(&text[start..=at]);
                        key = Some((name.unwrap_or_default(), at + 1));
                    }
                }
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => string = Some(at),
            b':' if depth == 1 => value = at + 1,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        if (byte == b',' && depth == 1) || (byte == b'}' && depth == 0) {
            members.extend(key.take().map(|(key, key_end)| Member {
                key,
                key_end,
                value: text[value..at].trim(),
                end: at,
            }));
        }
    }
    members
}

fn lines(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    while !stream.is_empty() {
        let end = stream.iter().position(|byte| b"\r\n".contains(byte));
        let end = end.map_or(stream.len(), |end| {
            end + 1 + usize::from(stream[end..].starts_with(b"\r\n"))
        });
        let (line, rest) = stream.split_at(end);
        lines.push(line);
        stream = rest;
    }
    lines
}

/// The reports on the pieces that are changed, as far as they have one.
fn check_reports<'a>(
    model: &[Piece],
    reports: &'a [Result<FitReport, Unfit>],
    limit: u64,
) -> Vec<Option<&'a Unfit>> {
    let mut reports = reports.iter();
    let mut unfits = Vec::new();
    for piece in model {
        let Piece::Changed(change) = piece else {
            unfits.push(None);
            continue;
        };
        let len = change.data.len() as u64;
        match reports.next() {
            Some(Ok(report)) => {
                assert!(change.fitted.is_some(), "{report:?} of {change:?}");
                assert_eq!((report.original(), report.limit()), (len, limit));
                assert!(report.len() <= limit);
                unfits.push(None);
            }
            Some(Err(unfit)) => {
                let is_wrong = change.fitted.is_some() && change.has_end;
                assert!(!is_wrong, "{unfit:?} of {change:?}");
                assert_eq!(unfit.limit(), limit);
                assert!(unfit.actual() <= len);
                if change.has_end && !change.is_early {
                    assert_eq!((unfit.actual(), unfit.actual_is_exact()), (len, true));
                }
                unfits.push(Some(unfit));
            }
            // The last one, of which it is not known before its end.
            None => {
                assert!(!change.has_end, "no report of {change:?}");
                unfits.push(None);
            }
        }
    }
    assert!(reports.next().is_none());
    unfits
}

/// Whether the data is what the pieces make.
fn find(model: &[Piece], unfits: &[Option<&Unfit>], data: &[u8], end: End) -> bool {
    let (Some((piece, model)), Some((unfit, unfits))) = (model.split_first(), unfits.split_first())
    else {
        return data.is_empty();
    };
    let change = match piece {
        Piece::Same(same) => {
            let rest = data.strip_prefix(&same[..]);
            return rest.is_some_and(|rest| find(model, unfits, rest, end));
        }
        Piece::Changed(change) => change,
    };
    let is_over = change.has_end || matches!(end, End::Whole | End::Trailers);
    let choices = match (&change.fitted, unfit) {
        (Some(fitted), None) if is_over => vec![fitted.clone()],
        // Nothing is left of one that breaks off.
        (_, None) => vec![Vec::new()],
        (_, Some(unfit)) => change.refused(unfit, is_over),
    };
    let mut rests = choices.iter().filter_map(|it| data.strip_prefix(&it[..]));
    rests.any(|rest| find(model, unfits, rest, end))
}

impl Change {
    /// What there may be in the place of an event that does not fit.
    fn refused(&self, unfit: &Unfit, is_over: bool) -> Vec<Vec<u8>> {
        let remnant = |lines: &[Vec<u8>]| {
            if self.has_end {
                remnant(lines)
            } else {
                Vec::new()
            }
        };
        let answer = |after: &[Vec<u8>], end: &[u8]| {
            let before = self.before.concat();
            [&before, &error_for(unfit)[..], b"\n", &after.concat(), end].concat()
        };
        let nothing = || remnant(&[&self.before[..], &self.after].concat());
        if self.is_early {
            let parts = (0..=self.after.len()).map(|at| self.after.split_at(at));
            let parts = parts.filter(|_| unfit.id().is_some());
            let answers = parts.map(|(after, late)| [answer(after, b"\n"), remnant(late)].concat());
            return match &self.message {
                Some(Message::Answer(id)) => {
                    assert_eq!(unfit.id(), Some(&**id));
                    answers.collect()
                }
                Some(Message::Other) => vec![nothing()],
                None => answers.chain([nothing()]).collect(),
            };
        }
        let end: &[u8] = if self.has_end { b"\n" } else { b"" };
        let answer = |id: &str| {
            assert_eq!(unfit.id(), Some(id));
            answer(&self.after, end)
        };
        match (&self.message, unfit.id()) {
            _ if !is_over => vec![Vec::new()],
            (Some(Message::Answer(id)), _) => vec![answer(id)],
            (None, Some(id)) => vec![answer(id), nothing()],
            _ => vec![nothing()],
        }
    }
}

fn error_for(unfit: &Unfit) -> Vec<u8> {
    use tower_body_limit::json::UnfitReason::{Malformed, TrailingData};
    let (reason, sentence) = match unfit.reason() {
        Malformed | TrailingData => (
            "response_malformed",
            "The response is larger than its limit, and is not valid JSON.",
        ),
        _ => ("response_too_large", "The response is too large."),
    };
    let (id, limit, actual) = (unfit.id().unwrap(), unfit.limit(), unfit.actual());
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32603,"message":"{sentence}","data":{{"reason":"{reason}","limit_bytes":{limit},"actual_bytes":{actual}}}}}}}"#
    );
    assert!(serde_json::from_str::<Value>(&text).is_ok() || !is_valid(id.as_bytes()));
    format!("data:{text}").into_bytes()
}

/// What is left behind of an event's other lines.
fn remnant(lines: &[Vec<u8>]) -> Vec<u8> {
    let (mut id, mut retry) = (Vec::new(), Vec::new());
    for line in lines {
        let text = line.strip_suffix(b"\n").unwrap();
        let is_id = text == b"id" || text.starts_with(b"id:");
        if is_id && !text.contains(&0) {
            id.clone_from(line);
        } else if let Some(value) = text.strip_prefix(b"retry:") {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            if !value.is_empty() && value.iter().all(u8::is_ascii_digit) {
                retry.clone_from(line);
            }
        }
    }
    let lines = [id, retry].concat();
    if lines.is_empty() {
        lines
    } else {
        [lines, b"\n".to_vec()].concat()
    }
}
