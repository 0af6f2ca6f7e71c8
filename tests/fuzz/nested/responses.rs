//! Responses through several layers, whole or cut off at the head.

use std::{sync::Mutex, task::Poll};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version, header};
use http_body::Body;
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn, util::BoxService};
use tower_body_limit::{ResponseLimit, ResponseSizeLimitLayer, Subject, TooLarge};

use super::{
    BoxError, Boxed, Breach, End, LABELS, Limits, Stack, boxed, higher, maybe_limit,
    model::{Model, Source, Tells, What, declared, poll},
};
use crate::{
    input::Input,
    support::{Hint, Script, Step, drive::poll_once},
    witness::Witness,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Gateway,
    Client,
}

#[derive(Clone, Copy, Debug)]
struct Setup {
    limits: Limits,
    side: Side,
    buffered: bool,
}

impl Setup {
    fn over(self, layer: usize, witness: &Witness, inner: Stack) -> Stack {
        let Limits { usual, ceiling } = self.limits;
        let mut it = match self.side {
            Side::Server => ResponseSizeLimitLayer::server(usual),
            Side::Gateway => ResponseSizeLimitLayer::server(usual).gateway(),
            Side::Client => ResponseSizeLimitLayer::client(usual),
        };
        if let Some(ceiling) = ceiling {
            it = it.override_ceiling(ceiling);
        }
        if self.buffered {
            it = it.buffered();
        }
        let it = it
            .label(LABELS[layer])
            .on_breach(witness.breach())
            .on_end(witness.end());
        let service = it.layer(inner);
        BoxService::new(service.map_response(|response| response.map(boxed)))
    }
}

#[derive(Debug)]
struct Case {
    setups: Vec<Setup>,
    method: Method,
    version: Version,
    status: StatusCode,
    media_type: &'static str,
    /// By the request, and by the response.
    wanted: [Option<Option<u64>>; 2],
    stated: Option<u64>,
    declares: bool,
    /// After how many frames the body is dropped.
    reads: Option<usize>,
    steps: Vec<Step>,
}

impl Case {
    fn read(input: &mut Input<'_>) -> Self {
        let count = usize::from(input.byte() % 3) + 1;
        let setup = |input: &mut Input<'_>| Setup {
            limits: Limits::read(input),
            side: input.pick(&[Side::Server, Side::Client, Side::Server, Side::Gateway]),
            buffered: input.flag(),
        };
        Self {
            setups: (0..count).map(|_| setup(input)).collect(),
            method: input.pick(&[Method::GET, Method::GET, Method::HEAD, Method::CONNECT]),
            version: input.pick(&[Version::HTTP_11, Version::HTTP_10, Version::HTTP_2]),
            status: {
                let status: u16 = input.pick(&[200, 200, 200, 204, 304, 404, 500]);
                status.try_into().unwrap()
            },
            media_type: input.pick(&[
                "text/plain",
                "text/event-stream",
                "application/x-ndjson",
                "multipart/x-mixed-replace",
                "application/grpc",
            ]),
            wanted: [maybe_limit(input), maybe_limit(input)],
            stated: maybe_limit(input).map(|stated| stated.unwrap_or(u64::MAX)),
            declares: input.flag(),
            reads: (input.byte() % 4 == 3).then(|| usize::from(input.byte() % 8)),
            steps: input.steps(12),
        }
    }

    fn is_bodiless(&self, status: StatusCode) -> bool {
        self.method == Method::HEAD
            || matches!(status.as_u16(), 204 | 304)
            || (self.method == Method::CONNECT && status.is_success())
    }
}

/// What the layers make of a response.
struct Judged {
    status: StatusCode,
    body: Source,
    refusal: Option<Breach>,
}

fn judge(model: &mut Model, case: &Case) -> Judged {
    let tells = if case.declares {
        Tells::Exact
    } else {
        Tells::Nothing
    };
    let mut it = Judged {
        status: case.status,
        body: model.script(case.steps.clone(), tells),
        refusal: None,
    };
    let [mut by_request, mut by_response] = case.wanted;
    for (layer, &setup) in case.setups.iter().enumerate().rev() {
        // The request comes to the outermost one first, the response to the innermost.
        let asked = if layer == 0 { by_request.take() } else { None };
        let wanted = by_response.take().or(asked);
        if let Some(breach) = pass(model, case, layer, setup, wanted, &mut it) {
            // It may have been one further in that breached, while its response was held.
            let status = match case.setups[breach.layer].side {
                Side::Server => StatusCode::INTERNAL_SERVER_ERROR,
                Side::Gateway | Side::Client => StatusCode::BAD_GATEWAY,
            };
            let has_body = case.method != Method::HEAD;
            let text = Step::Data(Bytes::from_static(TEXT));
            it = Judged {
                status,
                body: model.script(has_body.then_some(text), Tells::Exact),
                refusal: Some(breach),
            };
        }
    }
    it
}

const TEXT: &[u8] = b"The response body is too large.\n";

/// Puts a layer over a response, or says why that is refused.
fn pass(
    model: &mut Model,
    case: &Case,
    layer: usize,
    setup: Setup,
    wanted: Option<Option<u64>>,
    it: &mut Judged,
) -> Option<Breach> {
    let mut limit = setup.limits.with(wanted);
    if it.refusal.is_some() {
        limit = higher(limit, Some(64 * 1024));
    }
    let hint = model.hint(it.body);
    let stated = match it.refusal {
        Some(_) => Some(TEXT.len() as u64),
        None => case.stated,
    };
    let is_bodiless = case.is_bodiless(it.status);
    let declared = declared(hint, stated).filter(|_| !is_bodiless);
    model.limit(layer, it.body, limit, declared).is_bodiless = is_bodiless;
    it.body = Source::Layer(layer);
    if is_bodiless {
        return None;
    }
    let most = limit.unwrap_or(u64::MAX);
    if setup.side != Side::Client && declared.is_some_and(|it| it.bytes > most) {
        return as_breach(model.breach(layer, 0));
    }
    let is_declared = stated.is_some() || hint.is_some_and(|hint| hint.is_exact);
    let is_endless = matches!(
        case.media_type,
        "text/event-stream" | "multipart/x-mixed-replace"
    );
    let is_unseen = case.version == Version::HTTP_10 && !is_declared && !is_endless;
    let is_held = setup.side != Side::Client
        && limit.is_some()
        && it.refusal.is_none()
        && (is_unseen || (setup.buffered && case.media_type == "text/plain"));
    if !is_held {
        return None;
    }
    let (mut bytes, mut trailers, mut failure) = (0, None, None);
    loop {
        match model.poll(it.body) {
            What::Data(len) => bytes += len,
            What::Trailers => trailers = Some(Step::Trailers),
            What::Breach(breach) => return Some(breach),
            What::Failure => failure = Some(Step::Fail),
            What::End => break,
            _ => {}
        }
    }
    let tells = match (&trailers, &failure) {
        (_, Some(_)) => Tells::End,
        (Some(_), None) => Tells::Least,
        _ => Tells::Exact,
    };
    let data = (bytes > 0).then(|| Step::Data(vec![0; bytes as usize].into()));
    let steps = [data, trailers, failure].into_iter().flatten();
    it.body = model.script(steps, tells);
    None
}

fn as_breach(what: What) -> Option<Breach> {
    match what {
        What::Breach(breach) => Some(breach),
        _ => None,
    }
}

pub(super) fn run(input: &mut Input<'_>) {
    let case = Case::read(input);
    let mut model = Model::default();
    let expected = judge(&mut model, &case);

    let hint = if case.declares {
        Hint::Declared
    } else {
        Hint::Undeclared
    };
    let script = Script::new(case.steps.clone(), hint);
    let log = script.log();
    let mut response = Response::builder()
        .status(case.status)
        .header(header::CONTENT_TYPE, case.media_type);
    if let Some(stated) = case.stated {
        response = response.header(header::CONTENT_LENGTH, stated);
    }
    let [by_request, by_response] = case.wanted;
    if let Some(wanted) = by_response {
        response = response.extension(ResponseLimit::new(wanted));
    }
    let response = Mutex::new(Some(response.body(boxed(script)).unwrap()));
    let mut stack: Stack = BoxService::new(service_fn(move |request: Request<Boxed>| {
        assert!(request.extensions().get::<ResponseLimit>().is_none());
        let response = response.lock().unwrap().take().unwrap();
        async { Ok::<_, BoxError>(response) }
    }));
    let witnesses = [(); 3].map(|()| Witness::default());
    for (layer, setup) in case.setups.iter().enumerate().rev() {
        stack = setup.over(layer, &witnesses[layer], stack);
    }
    let mut request = Request::builder()
        .method(case.method.clone())
        .version(case.version);
    if let Some(wanted) = by_request {
        request = request.extension(ResponseLimit::new(wanted));
    }
    let request = request.body(boxed(Full::<Bytes>::default())).unwrap();
    let mut call = stack.oneshot(request);
    let mut turns = 0;
    let answer = loop {
        turns += 1;
        assert!(turns < 50, "it does not end");
        if let Poll::Ready(answer) = poll_once(&mut call).0 {
            break answer.unwrap();
        }
    };

    assert!(answer.extensions().get::<ResponseLimit>().is_none());
    assert_eq!(answer.status(), expected.status, "{case:?}");
    let error = answer.extensions().get::<TooLarge>();
    assert!(error.is_none_or(|error| error.subject() == Subject::Response));
    assert_eq!(error.map(Breach::of), expected.refusal, "{case:?}");
    if expected.refusal.is_none() {
        let stated = answer.headers().get(header::CONTENT_LENGTH);
        let stated = stated.map(|stated| stated.to_str().unwrap().parse::<u64>().unwrap());
        assert_eq!(stated, case.stated);
    }

    let mut body = answer.into_body();
    for turn in 0.. {
        assert!(turn < 200, "it does not end");
        let said = body.size_hint();
        let known = model.hint(expected.body);
        let exact = known.filter(|it| it.is_exact).map(|it| it.bytes);
        assert_eq!(said.exact(), exact, "{case:?}");
        assert_eq!(said.lower(), known.map_or(0, |it| it.bytes), "{case:?}");
        assert_eq!(
            body.is_end_stream(),
            model.is_end(expected.body),
            "{case:?}"
        );
        if case.reads.is_some_and(|reads| turn >= reads) {
            break;
        }
        let next = |poll: &mut dyn FnMut() -> What| {
            let mut whats = std::iter::repeat_with(poll).take(50);
            whats.find(|what| *what != What::Pending).unwrap()
        };
        // A server is given turns to send what came before an error.
        let expected = next(&mut || model.poll(expected.body));
        assert_eq!(next(&mut || poll(&mut body)), expected, "{case:?}");
        // What breached is given up at once.
        assert!(log.dropped() || !matches!(expected, What::Breach(_)));
        if expected == What::End {
            break;
        }
    }
    drop(body);
    model.drop(expected.body);
    assert!(log.dropped());
    for (layer, witness) in witnesses.iter().enumerate() {
        let modelled = model.layers[layer].as_ref();
        let breaches: Vec<_> = witness.breaches().iter().map(Breach::of).collect();
        let breach = modelled.and_then(|layer| layer.breach.clone());
        assert_eq!(breaches, Vec::from_iter(breach), "of {layer} in {case:?}");
        let ends = witness.ends();
        let ends: Vec<_> = ends.iter().map(|end| End::of(layer, end)).collect();
        let end = modelled.and_then(|layer| layer.end);
        assert_eq!(ends, Vec::from_iter(end), "of {layer} in {case:?}");
    }
}
