//! Fitting any bytes at all: alone, against the slow oracle where that can read them, and through the
//! layer in chunks.

use std::{
    convert::Infallible,
    str,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use serde::de::IgnoredAny;
use tower::{Layer, ServiceExt, service_fn};
use tower_body_limit::{
    ResponseBody,
    json::{Fit, FitReport, Fitted, JsonFitLayer, Marker, Pointer, Unfit, UnfitReason, fit},
};

use crate::{
    input::Input,
    json_cases::settings,
    json_oracle::{self, Cut, Place, Spec},
    support::{Hint, Script, Step, drive::Drive},
};

/// Where the macro looks.
mod support {
    pub(super) use crate::json_oracle;
}

/// Names that are easily found in a document, and the root.
const PATHS: &[&[&str]] = &[
    &[],
    &["a"],
    &["b"],
    &["a", "b"],
    &["a", "a"],
    &["b", "0"],
    &["a", "1", "b"],
    &["a", "-"],
    &["truncated"],
    &["", "~/"],
];

fn path(input: &mut Input<'_>) -> Vec<String> {
    let path = input.pick(PATHS);
    path.iter().map(|&token| token.to_owned()).collect()
}

pub(crate) fn spec(input: &mut Input<'_>) -> Spec {
    Spec {
        cut: match input.byte() % 4 {
            0 => Cut::Array(path(input)),
            1 => Cut::Largest(path(input)),
            2 => Cut::String(path(input)),
            _ => Cut::Nothing,
        },
        copies: match input.byte() % 4 {
            3 => vec![(path(input), path(input))],
            _ => Vec::new(),
        },
        place: match input.byte() % 4 {
            2 => Place::At(path(input)),
            3 => Place::Headers,
            _ => Place::Default,
        },
        note: input.pick(&[
            None,
            None,
            Some("{kept} of {total} \"items\"; offset {next_offset}".to_owned()),
            Some("{dropped}\u{e9}\n".to_owned()),
            Some(String::new()),
        ]),
        total: input.flag(),
        offset: input.pick(&[None, None, Some(97), Some(u64::MAX - 3)]),
        offset_at: input.flag().then(|| path(input)),
    }
}

pub(crate) fn is_valid(text: &[u8]) -> bool {
    str::from_utf8(text).is_ok() && serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

pub(crate) fn settings_of(spec: &Spec, limit: u64) -> Fit {
    settings!(*spec, limit)
}

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let spec = spec(&mut input);
    let (depth, scan) = match input.byte() % 4 {
        3 => (Some(input.byte() % 8), Some(input.number() as u64)),
        _ => (None, None),
    };
    let (limit, cuts) = (input.number(), input.numbers(6));
    let (declared, on_a_client) = (input.flag(), input.flag());
    let text = input.rest();

    let limit = (limit % (text.len() + 2)) as u64;
    let mut settings = settings_of(&spec, limit);
    if let Some(depth) = depth {
        settings = settings.max_depth(depth.into());
    }
    if let Some(scan) = scan {
        settings = settings.max_scan(scan);
    }
    let whole = fit(text, &settings);
    check(text, limit, &whole);
    if depth.is_none() && text.len() < 1000 && is_valid(text) {
        let text = str::from_utf8(text).unwrap();
        compare(&whole, &json_oracle::fit(text, &spec, limit));
    }

    let hint = if declared {
        Hint::Declared
    } else {
        Hint::Undeclared
    };
    let script = Script::new(steps(text, &cuts), hint);
    through_a_layer(script, settings, on_a_client, &whole);
}

/// What holds for any bytes.
fn check(text: &[u8], limit: u64, fitted: &Result<Fitted, Unfit>) {
    let len = text.len() as u64;
    match fitted {
        Ok(fitted) if len <= limit => assert_eq!(fitted.bytes(), text),
        Ok(fitted) => {
            assert!(
                is_valid(fitted.bytes()),
                "{}",
                fitted.bytes().escape_ascii()
            );
            assert!(fitted.bytes().len() as u64 <= limit);
            let report = fitted.report();
            assert_eq!(report.len(), fitted.bytes().len() as u64);
            assert_eq!((report.original(), report.limit()), (len, limit));
        }
        Err(unfit) => {
            assert!(len > limit);
            assert_eq!(unfit.limit(), limit);
            assert!(
                unfit.actual() <= len,
                "{unfit:?} of {}",
                text.escape_ascii()
            );
            assert!(!unfit.actual_is_exact() || unfit.actual() == len);
            assert!(unfit.reason() != UnfitReason::Malformed || !is_valid(text));
            assert!(unfit.id().is_none_or(|id| is_valid(id.as_bytes())));
        }
    }
}

fn compare(fitted: &Result<Fitted, Unfit>, expected: &Result<String, Vec<&'static str>>) {
    match (fitted, expected) {
        (Ok(fitted), Ok(expected)) => assert_eq!(fitted.bytes(), expected.as_bytes()),
        (Err(unfit), Err(reasons)) => {
            let reason = format!("{:?}", unfit.reason());
            assert!(reasons.contains(&&*reason), "{reason} and not {reasons:?}");
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn steps(mut text: &[u8], cuts: &[usize]) -> Vec<Step> {
    let mut steps = Vec::new();
    for cut in cuts.iter().cycle().map(|cut| cut % 40) {
        let (chunk, rest) = text.split_at(cut.min(text.len()));
        steps.push(Step::Data(Bytes::copy_from_slice(chunk)));
        // A cut of nothing would not get anywhere by itself.
        if cut == 0 {
            steps.push(Step::Pending);
        }
        text = rest;
        if text.is_empty() || steps.len() > 400 {
            break;
        }
    }
    steps.push(Step::Data(Bytes::copy_from_slice(text)));
    steps
}

type Answer = Response<ResponseBody<Script>>;

fn through_a_layer(script: Script, settings: Fit, client: bool, whole: &Result<Fitted, Unfit>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let on_fit = {
        let heard = Arc::clone(&heard);
        move |result: Result<&FitReport, &Unfit>| {
            let outcome = result.cloned().map_err(Unfit::reason);
            heard.lock().unwrap().push(outcome);
        }
    };
    let layer = if client {
        JsonFitLayer::client(settings)
    } else {
        JsonFitLayer::server(settings)
    };
    let response = Response::builder().header(CONTENT_TYPE, "application/json");
    let response = Mutex::new(Some(response.body(script).unwrap()));
    let service = layer.on_fit(on_fit).layer(service_fn(move |_| {
        let response = response.lock().unwrap().take().unwrap();
        async { Ok::<_, Infallible>(response) }
    }));
    let mut call = Box::pin(service.oneshot(Request::new(())));
    let mut turns = 0;
    let answer: Answer = loop {
        turns += 1;
        assert!(turns < 1000, "it does not end");
        if let Some(Ok(answer)) = (&mut call).now_or_never() {
            break answer;
        }
    };
    let status = answer.status();
    let drive = Drive::to_end(answer.into_body());
    match whole {
        Ok(fitted) => {
            assert_eq!(status, StatusCode::OK);
            assert!(drive.error.is_none());
            assert_eq!(*drive.data(), **fitted.bytes());
        }
        Err(_) if client => assert!(drive.error.is_some()),
        Err(_) => assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR),
    }
    for outcome in heard.lock().unwrap().iter() {
        let expected = whole.as_ref().map(|fitted| fitted.report().clone());
        assert_eq!(*outcome, expected.map_err(Unfit::reason));
    }
}
