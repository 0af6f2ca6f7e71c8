//! Requests through several layers to a handler that does as it likes, with others in between.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode, Version, header};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn, util::BoxService};
use tower_body_limit::{
    LimitControl, LimitedBody, RequestLimit, RequestSizeLimitLayer, SetLimitError, Subject,
    TooLarge,
};

use super::{
    Boxed, Breach, End, LABELS, Limits, Stack, boxed, higher, limit, lower, maybe_limit,
    model::{Control, Limited, Model, Source, Tells, Trace, What, declared, poll},
};
use crate::{
    input::Input,
    support::{Hint, Log, Script, Step, drive::Drive},
    witness::{StoppedClock, Witness},
};

#[derive(Clone, Copy, Debug)]
struct Setup {
    limits: Limits,
    is_client: bool,
    adjustable: Option<Option<u64>>,
    keeps: bool,
    drains: bool,
}

impl Setup {
    fn read(input: &mut Input<'_>) -> Self {
        let limits = Limits::read(input);
        let kind = input.byte();
        let is_client = kind & 3 == 3;
        let adjustable = input.flag().then(|| limit(input)).filter(|_| !is_client);
        Self {
            limits,
            is_client,
            adjustable,
            keeps: kind & 12 == 12,
            drains: kind & 48 == 48 && !is_client,
        }
    }

    fn over(self, layer: usize, witness: &Witness, inner: Stack) -> Stack {
        let inner = inner.map_request(|request: Request<_>| request.map(boxed));
        let Limits { usual, ceiling } = self.limits;
        macro_rules! configured {
            ($layer:expr) => {{
                let it = $layer
                    .label(LABELS[layer])
                    .on_breach(witness.breach())
                    .on_end(witness.end());
                match ceiling {
                    Some(ceiling) => it.override_ceiling(ceiling),
                    None => it,
                }
            }};
        }
        if self.is_client {
            let layer = configured!(RequestSizeLimitLayer::client(usual));
            return BoxService::new(layer.layer(inner).map_err(Into::into));
        }
        let mut layer = configured!(RequestSizeLimitLayer::server(usual));
        if let Some(ceiling) = self.adjustable {
            layer = layer.adjustable(ceiling);
        }
        if self.keeps {
            layer = layer.keep_inner_answers();
        }
        layer = if self.drains {
            let sleep = StoppedClock::default().sleep();
            layer.drain_with(300, Duration::from_secs(5), sleep)
        } else {
            layer.no_drain()
        };
        let service = layer.layer(inner);
        BoxService::new(service.map_response(|response| response.map(boxed)))
    }
}

/// What is done to a request in front of a layer or of the handler.
#[derive(Clone, Copy, Debug)]
enum Meddling {
    None,
    /// So many polls of the body.
    Read(u8),
    /// Another body in place of it, which has a length or not.
    Swap(bool),
    Control(Option<u64>),
}

impl Meddling {
    fn read(input: &mut Input<'_>) -> Self {
        match input.byte() % 8 {
            4 => Self::Read(input.byte() % 8),
            5 => Self::Swap(input.flag()),
            6 => Self::Control(limit(input)),
            _ => Self::None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Read,
    Control(Option<u64>),
    Drop,
    Panic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Status(u16),
    Grpc,
    Fail,
}

#[derive(Debug)]
struct Case {
    setups: Vec<Setup>,
    meddling: Vec<Meddling>,
    wanted: Option<Option<u64>>,
    stated: Option<u64>,
    declares: bool,
    version: Version,
    acts: Vec<Act>,
    reply: Reply,
    steps: Vec<Step>,
}

fn other_steps() -> [Step; 3] {
    [
        Step::Data(Bytes::from_static(b"other")),
        Step::Pending,
        Step::Data(Bytes::from_static(b"body")),
    ]
}

fn tells(declares: bool) -> Tells {
    if declares {
        Tells::Exact
    } else {
        Tells::Nothing
    }
}

fn hint(declares: bool) -> Hint {
    if declares {
        Hint::Declared
    } else {
        Hint::Undeclared
    }
}

impl Case {
    fn read(input: &mut Input<'_>) -> Self {
        let count = usize::from(input.byte() % 3) + 1;
        Self {
            setups: (0..count).map(|_| Setup::read(input)).collect(),
            meddling: (0..count).map(|_| Meddling::read(input)).collect(),
            wanted: maybe_limit(input),
            stated: maybe_limit(input).map(|stated| stated.unwrap_or(u64::MAX)),
            declares: input.flag(),
            version: input.pick(&[Version::HTTP_11, Version::HTTP_2, Version::HTTP_10]),
            acts: {
                let count = input.byte() % 8;
                let act = |_| match input.byte() % 16 {
                    0..10 => Act::Read,
                    10..13 => Act::Control(limit(input)),
                    13 | 14 => Act::Drop,
                    _ => Act::Panic,
                };
                (0..count).map(act).collect()
            },
            reply: match input.byte() % 8 {
                0 | 1 => Reply::Status(200),
                2 => Reply::Status(413),
                3 => Reply::Status(400),
                4 => Reply::Status(502),
                5 => Reply::Status(404),
                6 => Reply::Grpc,
                _ => Reply::Fail,
            },
            steps: input.steps(12),
        }
    }
}

fn control<B>(request: &Request<B>, limit: Option<u64>, trace: &Trace) {
    let control = request.extensions().get::<LimitControl>();
    let seen = control.map(|control| (control.limit(), control.ceiling()));
    let mut trace = trace.lock().unwrap();
    trace.push(What::Control(seen));
    if let Some(control) = control {
        trace.push(What::Set(control.set(limit)));
    }
}

/// Polls once. What breached is given up at once, unless it is to be drained.
fn read(body: &mut Boxed, log: Option<&Log>) -> What {
    let what = poll(body);
    assert!(!matches!(what, What::Breach(_)) || log.is_none_or(Log::dropped));
    what
}

fn meddle(
    mut request: Request<Boxed>,
    meddling: Meddling,
    trace: &Trace,
    log: Option<&Log>,
) -> Request<Boxed> {
    match meddling {
        Meddling::None => {}
        Meddling::Read(polls) => {
            for _ in 0..polls {
                let what = read(request.body_mut(), log);
                trace.lock().unwrap().push(what);
            }
        }
        Meddling::Swap(declares) => {
            let script = Script::new(other_steps(), hint(declares));
            // It has an end for whoever polls on, too.
            *request.body_mut() = boxed(LimitedBody::new(script, u64::MAX));
        }
        Meddling::Control(limit) => control(&request, limit, trace),
    }
    request
}

fn handle(
    mut request: Request<Boxed>,
    acts: &[Act],
    reply: Reply,
    trace: &Trace,
    log: Option<&Log>,
) -> Result<Response<Boxed>, super::BoxError> {
    assert!(request.extensions().get::<RequestLimit>().is_none());
    let mut is_there = true;
    for &act in acts {
        match act {
            Act::Read if is_there => {
                let what = read(request.body_mut(), log);
                trace.lock().unwrap().push(what);
            }
            Act::Read => {}
            Act::Control(limit) => control(&request, limit, trace),
            Act::Drop => {
                *request.body_mut() = boxed(Full::<Bytes>::default());
                is_there = false;
            }
            // The hook of a fuzzer would end it.
            Act::Panic => resume_unwind(Box::new("the handler panicked")),
        }
    }
    let response = match reply {
        Reply::Status(status) => Response::builder().status(status),
        Reply::Grpc => Response::builder().header("grpc-status", "13"),
        Reply::Fail => return Err(io::Error::other("the handler failed").into()),
    };
    Ok(response.body(boxed(Full::<Bytes>::from("inner"))).unwrap())
}

#[derive(Debug)]
enum Fate {
    /// A refusal, with the error of the outermost layer that has one.
    Refused(usize),
    Reply(Option<usize>),
    Failed,
    TooLarge(usize),
    Panicked,
}

impl Model {
    fn set(&mut self, limit: Option<u64>) {
        let control = self.control.map(|control| &mut self.controls[control]);
        let seen = control.as_ref().map(|it| (it.limit, it.ceiling));
        self.trace.push(What::Control(seen));
        let Some(control) = control else {
            return;
        };
        self.trace.push(What::Set(match control.ceiling {
            _ if control.frozen => Err(SetLimitError::Read),
            Some(ceiling) if limit.is_none_or(|limit| limit > ceiling) => {
                Err(SetLimitError::AboveCeiling { limit, ceiling })
            }
            _ => {
                control.limit = limit;
                Ok(())
            }
        }));
    }

    /// Puts a layer over a body, unless that is refused.
    fn add(
        &mut self,
        layer: usize,
        below: Source,
        wanted: Option<Option<u64>>,
        case: &Case,
    ) -> bool {
        let setup = case.setups[layer];
        let limit = setup.limits.with(wanted);
        let declared = declared(self.hint(below), case.stated);
        let control = setup.adjustable.map(|ceiling| {
            let ceiling = higher(limit, ceiling);
            if let Some(found) = self.control.filter(|&it| !self.controls[it].frozen) {
                let found = &mut self.controls[found];
                found.ceiling = lower(found.ceiling, ceiling);
                found.limit = lower(limit, found.ceiling);
            } else {
                self.control = Some(self.controls.len());
                self.controls.push(Control {
                    limit,
                    ceiling,
                    frozen: false,
                });
            }
            self.control.unwrap()
        });
        self.limit(layer, below, limit, declared).control = control;
        let highest = control.map_or(limit, |control| self.controls[control].ceiling);
        let refused = highest.is_some_and(|most| declared.is_some_and(|it| it.bytes > most));
        if refused {
            self.limit(layer, below, highest, declared);
            self.breach(layer, 0);
        }
        refused
    }

    fn run(&mut self, case: &Case) -> Fate {
        let mut wanted = case.wanted;
        let mut body = self.script(case.steps.clone(), tells(case.declares));
        for (layer, &meddling) in case.meddling.iter().enumerate() {
            if self.add(layer, body, wanted.take(), case) {
                return self.unwind(case, layer, None);
            }
            body = Source::Layer(layer);
            match meddling {
                Meddling::None => {}
                Meddling::Read(polls) => {
                    for _ in 0..polls {
                        let what = self.poll(body);
                        self.trace.push(what);
                    }
                }
                Meddling::Swap(declares) => {
                    self.drop(body);
                    body = self.script(other_steps(), tells(declares));
                }
                Meddling::Control(limit) => self.set(limit),
            }
        }
        let mut is_there = true;
        for &act in &case.acts {
            match act {
                Act::Read if is_there => {
                    let what = self.poll(body);
                    self.trace.push(what);
                }
                Act::Read => {}
                Act::Control(limit) => self.set(limit),
                Act::Drop => {
                    self.drop(body);
                    is_there = false;
                }
                Act::Panic => return Fate::Panicked,
            }
        }
        self.drop(body);
        self.unwind(case, case.setups.len() - 1, Some(case.reply))
    }

    /// What each of the layers makes of the reply, or of the refusal of the last one.
    fn unwind(&self, case: &Case, last: usize, reply: Option<Reply>) -> Fate {
        let (mut result, layers) = match reply {
            None if case.setups[last].is_client => (Fate::TooLarge(last), last),
            None => (Fate::Refused(last), last),
            Some(Reply::Fail) => (Fate::Failed, last + 1),
            Some(_) => (Fate::Reply(None), last + 1),
        };
        for layer in (0..layers).rev() {
            let setup = case.setups[layer];
            if self.layer(layer).breach.is_none() {
                continue;
            }
            let is_failure = match result {
                Fate::Reply(_) => matches!(
                    reply,
                    Some(Reply::Status(400 | 408 | 422 | 500 | 502) | Reply::Grpc)
                ),
                Fate::Refused(_) => false,
                _ => true,
            };
            result = match result {
                _ if setup.is_client => Fate::TooLarge(layer),
                _ if is_failure && !setup.keeps => Fate::Refused(layer),
                Fate::Reply(_) => Fate::Reply(Some(layer)),
                // The refusal is another layer's, and stays.
                Fate::Refused(_) => Fate::Refused(layer),
                other => other,
            };
        }
        result
    }
}

pub(super) fn run(input: &mut Input<'_>) {
    let case = Arc::new(Case::read(input));
    let mut model = Model::default();
    let expected = model.run(&case);

    let trace = Trace::default();
    let witnesses = [(); 3].map(|()| Witness::default());
    let script = Script::new(case.steps.clone(), hint(case.declares));
    let log = script.log();
    let drains = case.setups.iter().any(|setup| setup.drains);
    let kept = Some(log.clone()).filter(|_| !drains);
    let mut stack: Stack = BoxService::new(service_fn({
        let (case, trace, kept) = (Arc::clone(&case), Arc::clone(&trace), kept.clone());
        move |request: Request<Boxed>| {
            let reply = handle(request, &case.acts, case.reply, &trace, kept.as_ref());
            async { reply }
        }
    }));
    for (layer, setup) in case.setups.iter().enumerate().rev() {
        let (meddling, trace, kept) = (case.meddling[layer], Arc::clone(&trace), kept.clone());
        let inner =
            stack.map_request(move |request| meddle(request, meddling, &trace, kept.as_ref()));
        stack = setup.over(layer, &witnesses[layer], BoxService::new(inner));
    }
    let mut request = Request::post("/").version(case.version);
    if let Some(stated) = case.stated {
        request = request.header(header::CONTENT_LENGTH, stated);
    }
    if let Some(wanted) = case.wanted {
        request = request.extension(RequestLimit::new(wanted));
    }
    let request = request.body(boxed(script)).unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        let result = stack.oneshot(request).now_or_never();
        result.expect("nothing is waited for")
    }));

    let panicked = matches!(expected, Fate::Panicked);
    match result {
        Err(_) => assert!(panicked, "{expected:?} of {case:?}"),
        Ok(result) => check(result, &expected, &model, &case, &log),
    }
    assert_eq!(*trace.lock().unwrap(), model.trace, "{case:?}");
    assert!(log.dropped());

    let breaching = |it: &Option<Limited>| it.as_ref().is_some_and(|it| it.breach.is_some());
    let breaching = model.layers.iter().position(breaching);
    for (layer, witness) in witnesses.iter().enumerate() {
        let modelled = model.layers[layer].as_ref();
        let breaches: Vec<_> = witness.breaches().iter().map(Breach::of).collect();
        let expected = modelled.and_then(|layer| layer.breach.clone());
        assert_eq!(breaches, Vec::from_iter(expected), "{case:?}");
        let ends = witness.ends();
        let ends: Vec<_> = ends.iter().map(|end| End::of(layer, end)).collect();
        if drains && (panicked || breaching.is_some_and(|breaching| layer < breaching)) {
            // It depends on how far the drain comes.
            assert!(ends.len() == 1 || panicked, "{ends:?} of {case:?}");
            continue;
        }
        let expected = modelled.and_then(|layer| layer.end);
        assert_eq!(ends, Vec::from_iter(expected), "of {layer} in {case:?}");
    }
}

fn check(
    result: Result<Response<Boxed>, super::BoxError>,
    expected: &Fate,
    model: &Model,
    case: &Case,
    log: &Log,
) {
    let breach = |layer: usize| model.layer(layer).breach.clone();
    let response = match (result, expected) {
        (Err(error), Fate::Failed) => {
            assert!(TooLarge::find(&*error).is_none());
            return;
        }
        (Err(error), &Fate::TooLarge(layer)) => {
            let error = TooLarge::find(&*error).map(Breach::of);
            assert_eq!(error, breach(layer));
            return;
        }
        (Ok(response), Fate::Refused(_) | Fate::Reply(_)) => response,
        (result, _) => panic!("{result:?} and not {expected:?} in {case:?}"),
    };
    let error = response.extensions().get::<TooLarge>();
    assert!(error.is_none_or(|error| error.subject() == Subject::Request));
    let error = error.map(Breach::of);
    let (status, is_ours) = match (expected, case.reply) {
        (&Fate::Refused(layer), _) => {
            assert_eq!(error, breach(layer), "{case:?}");
            (StatusCode::PAYLOAD_TOO_LARGE, true)
        }
        (&Fate::Reply(layer), reply) => {
            assert_eq!(error, layer.and_then(breach), "{case:?}");
            let status = match reply {
                Reply::Status(status) => status.try_into().unwrap(),
                _ => StatusCode::OK,
            };
            (status, false)
        }
        _ => unreachable!(),
    };
    assert_eq!(response.status(), status);
    let announced = response.headers().get(header::CONTENT_LENGTH).cloned();
    let drive = Drive::to_end(LimitedBody::new(response.into_body(), u64::MAX));
    assert!(drive.error.is_none());
    assert!(drive.outline().ends_with("end"));
    if is_ours {
        assert_eq!(announced.unwrap(), drive.data().len().to_string());
    } else {
        assert_eq!(drive.data(), b"inner");
    }
    drop(drive);
    assert!(log.dropped());
}
