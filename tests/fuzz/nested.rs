//! Several limits over one message, against models of what each of them has to see.

use bytes::Bytes;
use http_body::Body;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tower::util::BoxService;
use tower_body_limit::{BodyEnd, Outcome, TooLarge};

use crate::{input::Input, support::Step};

mod model;
mod requests;
mod responses;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Boxed = UnsyncBoxBody<Bytes, BoxError>;
type Stack = BoxService<http::Request<Boxed>, http::Response<Boxed>, BoxError>;

const LABELS: [&str; 3] = ["outer", "middle", "inner"];

/// A limit and how far a message may raise it.
#[derive(Clone, Copy, Debug)]
struct Limits {
    usual: Option<u64>,
    ceiling: Option<Option<u64>>,
}

impl Limits {
    fn read(input: &mut Input<'_>) -> Self {
        Self {
            usual: limit(input),
            ceiling: maybe_limit(input),
        }
    }

    /// The limit for a message that wants another.
    fn with(self, wanted: Option<Option<u64>>) -> Option<u64> {
        let most = self.ceiling.map_or(self.usual, |it| higher(it, self.usual));
        wanted.map_or(self.usual, |wanted| lower(wanted, most))
    }
}

fn limit(input: &mut Input<'_>) -> Option<u64> {
    match input.byte() {
        200.. => None,
        limit => Some(u64::from(limit)),
    }
}

fn maybe_limit(input: &mut Input<'_>) -> Option<Option<u64>> {
    (input.byte() % 4 == 1).then(|| limit(input))
}

fn lower(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    if number(a) < number(b) { a } else { b }
}

fn higher(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    if lower(a, b) == a { b } else { a }
}

fn boxed<B>(body: B) -> Boxed
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// The numbers in an error, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Breach {
    layer: usize,
    limit: u64,
    declared: Option<u64>,
    read: u64,
    read_is_total: bool,
}

impl Breach {
    fn of(error: &TooLarge) -> Self {
        let label = error.label().unwrap();
        Self {
            layer: LABELS.iter().position(|&it| it == label).unwrap(),
            limit: error.limit(),
            declared: error.declared(),
            read: error.read(),
            read_is_total: error.read_is_total(),
        }
    }
}

/// What a layer says of a body that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    outcome: Outcome,
    read: u64,
    limit: Option<u64>,
}

impl End {
    fn of(layer: usize, end: &BodyEnd) -> Self {
        assert_eq!(end.label(), Some(LABELS[layer]));
        Self {
            outcome: end.outcome(),
            read: end.read(),
            limit: end.limit(),
        }
    }
}

fn len(step: &Step) -> u64 {
    match step {
        Step::Data(data) => data.len() as u64,
        _ => 0,
    }
}

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    if input.flag() {
        responses::run(&mut input);
    } else {
        requests::run(&mut input);
    }
}
