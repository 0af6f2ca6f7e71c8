//! The request service with handlers that do as they like, with what is drained after them.

use std::{
    future::{poll_fn, ready},
    io,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version, header};
use http_body::Body;
use tower::{Layer, Service, service_fn};
use tower_body_limit::{LimitedBody, Outcome, RequestSizeLimitLayer, Subject, TooLarge};

use crate::{
    body_model::{bytes_of, limited},
    input::Input,
    support::{
        Hint, Script, Step,
        drive::{Drive, poll_once},
    },
    witness::{StoppedClock, Witness},
};

/// What a handler does with the body.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// One frame, or the end, as often as there is one.
    Read,
    /// All of it, and on after the end.
    ReadOut,
    /// Lets others have their turn.
    Wait,
    Drop,
    /// Gives it to somebody who reads it later.
    Lend,
}

/// And in the end.
#[derive(Clone, Copy, Debug)]
enum End {
    Answer(u16),
    /// With a `grpc-status`.
    Grpc(&'static str),
    Fail,
}

impl End {
    /// Whether it is taken for what becomes of a body that fails.
    fn is_failure(self) -> bool {
        match self {
            Self::Answer(status) => matches!(status, 400 | 408 | 422 | 500 | 502),
            Self::Grpc(status) => status != "0",
            Self::Fail => true,
        }
    }

    fn make(self) -> io::Result<Response<Script>> {
        let answer = Response::builder();
        let answer = match self {
            Self::Answer(status) => answer.status(status),
            Self::Grpc(status) => answer.header("grpc-status", status),
            Self::Fail => return Err(io::Error::other("the handler failed")),
        };
        let body = Script::new([Step::Data(Bytes::from_static(b"inner"))], Hint::Declared);
        Ok(answer.body(body).unwrap())
    }
}

const ACTS: [Act; 6] = [
    Act::Read,
    Act::Read,
    Act::ReadOut,
    Act::Wait,
    Act::Drop,
    Act::Lend,
];

const ENDS: [End; 13] = [
    End::Answer(200),
    End::Answer(204),
    End::Answer(400),
    End::Answer(404),
    End::Answer(408),
    End::Answer(413),
    End::Answer(422),
    End::Answer(500),
    End::Answer(502),
    End::Answer(503),
    End::Grpc("0"),
    End::Grpc("2"),
    End::Fail,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    None,
    Stopped,
    Over,
}

/// What was read of the body, and whoever holds it now.
#[derive(Debug, Default)]
struct Reading {
    outline: String,
    data: Vec<u8>,
    lent: Option<Drive<LimitedBody<Script>>>,
}

impl Reading {
    fn note(&mut self, drive: &Drive<LimitedBody<Script>>) {
        self.outline = drive.outline();
        self.data = drive.data();
    }
}

async fn handle(body: LimitedBody<Script>, acts: Vec<Act>, reading: Arc<Mutex<Reading>>) {
    let mut drive = Some(Drive::new(body));
    for act in acts {
        match (act, &mut drive) {
            (Act::Read, Some(drive)) => _ = drive.step(),
            (Act::ReadOut, Some(drive)) => drive.run(),
            (Act::Drop, drive) => *drive = None,
            (Act::Lend, drive) => {
                let mut reading = reading.lock().unwrap();
                reading.lent = drive.take().or(reading.lent.take());
            }
            (Act::Wait, _) => {
                let mut waited = false;
                poll_fn(|cx| {
                    if std::mem::replace(&mut waited, true) {
                        return Poll::Ready(());
                    }
                    cx.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
            }
            (Act::Read | Act::ReadOut, None) => {}
        }
        if let Some(drive) = &drive {
            reading.lock().unwrap().note(drive);
        }
    }
}

/// How many polls a drain is: it stops at the budget, at an error or the end, and when nothing is
/// ready and its time is over.
fn polls_of_drain(rest: &[Step], mut budget: u64, clock: Clock) -> usize {
    for (polls, step) in rest.iter().enumerate() {
        let cost = match step {
            Step::Data(data) => data.len().max(1) as u64,
            Step::Trailers => 1,
            Step::Pending if clock == Clock::Over => return polls + 1,
            Step::Pending => 0,
            _ => return polls + 1,
        };
        match budget.checked_sub(cost) {
            Some(left) => budget = left,
            None => return polls + 1,
        }
    }
    rest.len() + 1
}

/// What the fuzzer has chosen.
#[derive(Debug)]
struct Case {
    limit: u64,
    hint: Hint,
    version: Version,
    method: Method,
    expects: bool,
    keeps_answers: bool,
    clock: Clock,
    budget: u64,
    end: End,
    stated: Option<&'static str>,
    acts: Vec<Act>,
    late: u8,
    steps: Vec<Step>,
}

impl Case {
    fn read(input: &mut Input<'_>) -> Self {
        Self {
            limit: input.limit(),
            hint: input.pick(&[Hint::Declared, Hint::Undeclared]),
            version: input.pick(&[Version::HTTP_11, Version::HTTP_10, Version::HTTP_2]),
            method: input.pick(&[Method::POST, Method::HEAD]),
            expects: input.byte() % 4 == 1,
            keeps_answers: input.byte() % 4 == 1,
            clock: input.pick(&[Clock::Stopped, Clock::Over, Clock::None]),
            budget: input.limit(),
            end: input.pick(&ENDS),
            stated: input.pick(&[
                None,
                None,
                Some("0"),
                Some("20"),
                Some("18446744073709551616"),
                Some("-1"),
                Some("20, 30"),
            ]),
            acts: {
                let count = input.byte() % 8;
                (0..count).map(|_| input.pick(&ACTS)).collect()
            },
            late: input.byte() % 4,
            // Fewer than a drain takes at a time.
            steps: input.steps(50),
        }
    }

    fn layer(&self, witness: &Witness) -> RequestSizeLimitLayer {
        let layer = RequestSizeLimitLayer::server(self.limit)
            .on_breach(witness.breach())
            .on_end(witness.end());
        let layer = if self.keeps_answers {
            layer.keep_inner_answers()
        } else {
            layer
        };
        let deadline = Duration::from_secs(5);
        match self.clock {
            Clock::None => layer.no_drain(),
            Clock::Stopped => {
                layer.drain_with(self.budget, deadline, StoppedClock::default().sleep())
            }
            Clock::Over => layer.drain_with(self.budget, deadline, |_| ready(())),
        }
    }

    fn request(&self, script: Script) -> Request<Script> {
        let mut request = Request::builder()
            .method(self.method.clone())
            .version(self.version);
        if self.expects {
            request = request.header(header::EXPECT, "100-continue");
        }
        if let Some(stated) = self.stated {
            request = request.header(header::CONTENT_LENGTH, stated);
        }
        request.body(script).unwrap()
    }

    /// The larger of what the body and the header state.
    fn declared(&self) -> Option<u64> {
        let declared = matches!(self.hint, Hint::Declared);
        let hint = declared.then(|| bytes_of(&self.steps).len() as u64);
        let header = match self.stated {
            Some("0") => Some(0),
            Some("20") => Some(20),
            Some("18446744073709551616") => Some(u64::MAX),
            _ => None,
        };
        hint.max(header)
    }

    fn is_refused(&self) -> bool {
        let uncountable = self.stated == Some("18446744073709551616");
        uncountable || self.declared().is_some_and(|bytes| bytes > self.limit)
    }

    /// Whether the client waits to be asked for its body. HTTP/1.0 knows nothing of that.
    fn waits(&self) -> bool {
        self.expects && self.version > Version::HTTP_10
    }

    /// Whether what is left after so many polls is drained, with so many more polls.
    fn drained(&self, polls: usize) -> usize {
        let rest = self.steps.get(polls..).unwrap_or_default();
        let declared = matches!(self.hint, Hint::Declared);
        let nothing_left = declared && bytes_of(rest).is_empty();
        let invited = !self.waits() || polls > 0;
        let drains = self.clock != Clock::None
            && self.version < Version::HTTP_2
            && self.method != Method::HEAD
            && invited
            && !nothing_left;
        if drains {
            polls_of_drain(rest, self.budget, self.clock)
        } else {
            0
        }
    }

    /// Whether the connection may serve another request after a refusal at the head.
    fn goes_on(&self) -> bool {
        let left = bytes_of(&self.steps).len() as u64;
        let declared = matches!(self.hint, Hint::Declared) && !self.waits();
        declared && (left == 0 || (self.drained(0) > 0 && left <= self.budget))
    }
}

pub fn run(bytes: &[u8]) {
    let case = Case::read(&mut Input(bytes));
    let witness = Witness::default();
    let script = Script::new(case.steps.clone(), case.hint.clone());
    let log = script.log();
    let reading = Arc::new(Mutex::new(Reading::default()));
    let called = Arc::new(Mutex::new(false));

    let mut service = case.layer(&witness).layer(service_fn({
        let (acts, end) = (case.acts.clone(), case.end);
        let (reading, called) = (Arc::clone(&reading), Arc::clone(&called));
        move |request: Request<LimitedBody<Script>>| {
            *called.lock().unwrap() = true;
            let handled = handle(request.into_body(), acts.clone(), Arc::clone(&reading));
            async move {
                handled.await;
                end.make()
            }
        }
    }));
    let result = {
        let mut future = pin!(service.call(case.request(script)));
        let mut turns = 0;
        loop {
            turns += 1;
            assert!(turns < 20, "it does not end");
            if let Poll::Ready(result) = poll_once(&mut future).0 {
                break result;
            }
        }
    };

    let refused = case.is_refused();
    assert_eq!(refused, !*called.lock().unwrap());
    let before = log.polls();
    assert!(!refused || before == 0);
    let breached = reading.lock().unwrap().outline.contains("breach");
    let replaced = refused || (breached && case.end.is_failure() && !case.keeps_answers);
    let (head, body) = match result {
        Ok(response) => response.into_parts(),
        Err(_) => {
            assert!(matches!(case.end, End::Fail) && !replaced);
            finish(&case, &reading, &witness, &log, refused);
            return;
        }
    };
    let error = head.extensions.get::<TooLarge>();
    assert_eq!(error.is_some(), refused || breached);
    if let Some(error) = error {
        assert_eq!(
            (error.limit(), error.subject()),
            (case.limit, Subject::Request)
        );
        assert_eq!(error.declared(), case.declared());
        assert!(refused || error.read() > case.limit);
    }
    if replaced {
        assert_eq!(head.status, StatusCode::PAYLOAD_TOO_LARGE);
        let closes = head.headers.contains_key(header::CONNECTION);
        let may_go_on = case.version == Version::HTTP_2 || (refused && case.goes_on());
        assert_eq!(closes, !may_go_on);
    } else {
        let expected = case.end.make().unwrap();
        assert_eq!(head.status, expected.status());
        assert_eq!(&head.headers, expected.headers());
    }

    let announced = body.size_hint().exact();
    let drive = Drive::to_end(body);
    assert!(drive.error.is_none());
    assert!(drive.outline().ends_with("end"));
    assert_eq!(announced, Some(drive.data().len() as u64));
    assert_eq!(drive.data() == b"inner", !replaced);
    let drained = if replaced { case.drained(before) } else { 0 };
    assert_eq!(log.polls() - before, drained);
    drop(drive);
    finish(&case, &reading, &witness, &log, refused);
}

/// Reads what was lent, drops all of it, and looks at what was reported.
fn finish(
    case: &Case,
    reading: &Mutex<Reading>,
    witness: &Witness,
    log: &crate::support::Log,
    refused: bool,
) {
    let mut reading = reading.lock().unwrap();
    if let Some(mut drive) = reading.lent.take() {
        for _ in 0..case.late {
            drive.step();
        }
        reading.note(&drive);
    }
    let Reading { outline, data, .. } = &*reading;
    assert!(log.dropped());

    let model = limited(&case.steps, case.limit, false);
    let (read, breach) = (data.len() as u64, outline.contains("breach"));
    let seen = outline.trim_end_matches(" end");
    assert!(model.starts_with(seen), "{outline} and not {model}");
    assert!(bytes_of(&case.steps).starts_with(data));

    assert_eq!(witness.breaches().len(), usize::from(refused || breach));
    let ends = witness.ends();
    assert_eq!(ends.len(), 1, "{ends:?}");
    let nothing_left =
        matches!(case.hint, Hint::Declared) && bytes_of(&case.steps).len() as u64 == read;
    let expected = if refused || breach || outline.contains("failure") {
        Outcome::Failed
    } else if outline.split(' ').any(|what| what == "end")
        || nothing_left
        || case.declared() == Some(read)
    {
        Outcome::Complete
    } else {
        Outcome::Dropped
    };
    assert_eq!(ends[0].outcome(), expected, "{case:?} {reading:?}");
    assert_eq!((ends[0].read(), ends[0].limit()), (read, Some(case.limit)));
}
