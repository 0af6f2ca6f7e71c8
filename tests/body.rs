//! The body that counts: where it passes, how it fails, what it says about its length.

mod support;

use std::{
    cell::Cell,
    convert::Infallible,
    error::Error as StdError,
    fmt::Debug,
    marker::PhantomPinned,
    pin::Pin,
    rc::Rc,
    sync::MutexGuard,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use futures_util::FutureExt;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use static_assertions::{assert_impl_all, assert_not_impl_any};
use support::{
    Hint, Script,
    Step::{self, Fail, Pending, Trailers},
    VARIANTS, data,
    drive::Drive,
};
use tower_body_limit::{
    ClientRequestSizeLimit, ClientRequestSizeLimitLayer, Error, LimitedBody, RequestSizeLimit,
    RequestSizeLimitLayer, ResponseBody, ResponseSizeLimit, ResponseSizeLimitLayer, Subject,
    TooLarge, Truncate, TruncateLayer, TruncatedBody,
};

const N: usize = 10;

/// Every way to send `len` bytes.
fn framings(len: usize) -> Vec<Vec<Step>> {
    let bytewise = || (0..len).map(|_| data(1));
    let (half, rest) = (data(len / 2), data(len - len / 2));
    let empty = data(0);
    let plain = [
        vec![data(len)],
        vec![half.clone(), rest.clone()],
        bytewise().collect(),
        vec![
            empty.clone(),
            half.clone(),
            empty.clone(),
            empty.clone(),
            rest.clone(),
            empty,
        ],
        vec![Pending, half, Pending, Pending, rest, Pending],
    ];
    let with_trailers = plain.clone().map(|steps| [steps, vec![Trailers]].concat());
    plain.into_iter().chain(with_trailers).collect()
}

fn exact(bytes: u64) -> Hint {
    Hint::Fixed(SizeHint::with_exact(bytes))
}

fn between(lower: u64, upper: Option<u64>) -> Hint {
    let mut hint = SizeHint::new();
    hint.set_lower(lower);
    if let Some(upper) = upper {
        hint.set_upper(upper);
    }
    Hint::Fixed(hint)
}

#[test]
fn exactly_the_limit_passes_and_one_more_fails_in_every_framing() {
    let limits = [0, 1, N - 1, N, N + 1].map(|limit| limit as u64);
    for len in [0, 1, N - 1, N, N + 1] {
        for steps in framings(len) {
            for limit in limits.into_iter().chain([u64::MAX]) {
                for variant in VARIANTS {
                    check_boundary(len, &steps, limit, variant);
                }
            }
        }
    }
}

fn check_boundary(len: usize, steps: &[Step], limit: u64, variant: Hint) {
    let declared = matches!(variant, Hint::Declared);
    let case = format!("{steps:?}, {variant:?}, limit {limit}");
    let script = Script::new(steps.to_vec(), variant);
    let log = script.log();
    let drive = Drive::to_end(LimitedBody::new(script, limit));
    let outline = drive.outline();

    assert_eq!(drive.body.read(), drive.data().len() as u64, "{case}");
    assert_eq!(
        drive.body.remaining(),
        Some(limit - drive.body.read()),
        "{case}"
    );
    assert!(log.dropped(), "{case}");
    if len as u64 <= limit {
        assert!(drive.error.is_none(), "{case}");
        assert_eq!(drive.data().len(), len, "{case}");
        assert_eq!(log.polls(), steps.len() + 1, "{case}");
        let trailers = matches!(steps.last(), Some(Trailers));
        assert_eq!(outline.contains("trailers"), trailers, "{case}");
        return;
    }
    assert!(outline.ends_with("breach end"), "{case}: {outline}");
    assert!(drive.data().len() as u64 <= limit, "{case}");
    assert!(!outline.contains("trailers"), "{case}");
    let error = drive.too_large();
    assert_eq!(
        (error.limit(), error.subject()),
        (limit, Subject::Body),
        "{case}"
    );
    if declared {
        assert_eq!((outline.as_str(), log.polls()), ("breach end", 0), "{case}");
        assert_eq!(
            (error.declared(), error.read()),
            (Some(len as u64), 0),
            "{case}"
        );
    } else {
        assert!((limit + 1..=len as u64).contains(&error.read()), "{case}");
        assert_eq!(error.declared(), None, "{case}");
    }
    assert!(!error.read_is_total(), "{case}");
}

#[test]
fn the_outline_of_a_breach_is_what_fits_then_one_error_then_the_end() {
    let table = [
        (vec![data(4), data(4), data(4)], "4 4 breach end", 3),
        (vec![data(10), data(0), data(1)], "10 0 breach end", 3),
        (vec![data(10), data(1), Trailers], "10 breach end", 2),
        (vec![data(11)], "breach end", 1),
        (
            vec![Pending, data(10), Pending, data(1), data(1)],
            "pending 10 pending breach end",
            4,
        ),
        (vec![data(10), data(1), Fail], "10 breach end", 2),
    ];
    for (steps, outline, polls) in table {
        let script = Script::new(steps.clone(), Hint::Undeclared);
        let log = script.log();
        let drive = Drive::to_end(LimitedBody::new(script, 10));
        assert_eq!(
            (drive.outline().as_str(), log.polls()),
            (outline, polls),
            "{steps:?}"
        );

        let script = Script::new(steps.clone(), Hint::Declared);
        let log = script.log();
        let drive = Drive::to_end(LimitedBody::new(script, 10));
        assert_eq!(
            (drive.outline().as_str(), log.polls()),
            ("breach end", 0),
            "{steps:?}"
        );
    }
}

#[test]
fn the_inner_body_is_gone_at_the_breach_while_ours_is_still_there() {
    for (variant, before) in VARIANTS.into_iter().zip([0, 1]) {
        let script = Script::new([data(10), data(1), data(1)], variant);
        let log = script.log();
        let mut drive = Drive::new(LimitedBody::new(script, 10));
        for _ in 0..before {
            assert_eq!(drive.step(), "10");
        }
        assert!(!log.dropped());
        assert!(drive.body.get_ref().is_some());
        assert_eq!(drive.step(), "breach");
        assert!(log.dropped());
        assert!(drive.body.get_ref().is_none());
        assert!(drive.body.get_mut().is_none());
        drive.run();
        assert!(drive.body.into_inner().is_none());
    }
}

#[test]
fn the_inner_body_is_given_back_uncounted_until_it_ends() {
    for variant in VARIANTS {
        let mut drive = Drive::new(LimitedBody::new(
            Script::new([data(4), data(4)], variant),
            10,
        ));
        assert_eq!(drive.step(), "4");
        assert_eq!((drive.body.limit(), drive.body.read()), (Some(10), 4));
        let inner = drive.body.into_inner().unwrap();
        assert_eq!(
            inner
                .collect()
                .now_or_never()
                .unwrap()
                .unwrap()
                .to_bytes()
                .len(),
            4
        );
    }
}

#[test]
fn an_inner_error_before_or_at_the_limit_is_the_inner_error() {
    let table = [
        (vec![Fail], "failure end"),
        (vec![data(4), Fail], "4 failure end"),
        (vec![data(10), Fail], "10 failure end"),
        (
            vec![data(10), Pending, data(0), Fail],
            "10 pending 0 failure end",
        ),
    ];
    for (steps, outline) in table {
        for variant in VARIANTS {
            let script = Script::new(steps.clone(), variant);
            let log = script.log();
            let drive = Drive::to_end(LimitedBody::new(script, 10));
            assert_eq!(drive.outline(), outline);
            assert_eq!(log.polls(), steps.len());
            assert!(log.dropped());
            let error = drive.error.unwrap();
            assert!(matches!(error, Error::Body(_)), "{error:?}");
            assert_eq!(TooLarge::find(&error), None);
        }
    }
}

#[test]
fn frames_pass_uncopied_and_one_at_a_time() {
    let frames = [Bytes::from(vec![1; 4]), Bytes::from(vec![2; 6])];
    for variant in VARIANTS {
        let script = Script::new(frames.clone().map(Step::Data), variant);
        let log = script.log();
        let mut drive = Drive::new(LimitedBody::new(script, 10));
        for (polls, frame) in (1..).zip(&frames) {
            drive.step();
            assert_eq!(drive.frames.last().unwrap().as_ptr(), frame.as_ptr());
            assert_eq!(log.polls(), polls);
        }
    }
}

/// Lower bound, upper bound, and whether it is at its end.
type Stage = (u64, Option<u64>, bool);

fn stage(body: &impl Body) -> Stage {
    let hint = body.size_hint();
    (hint.lower(), hint.upper(), body.is_end_stream())
}

const SAYS_NOTHING: Stage = (0, None, false);
const OVER: Stage = (0, Some(0), true);

fn passing(lower: u64) -> Stage {
    (lower, Some(lower), false)
}

#[test]
fn the_hint_is_the_inner_ones_until_the_failure_is_certain() {
    let over = || exact(3);
    let table: Vec<(Vec<Step>, Hint, Vec<Stage>)> = vec![
        // Can still pass: the inner body's own, at every stage.
        (
            vec![data(4), data(6)],
            Hint::Declared,
            vec![passing(10), passing(6), OVER],
        ),
        (
            vec![data(4), data(6), Trailers],
            Hint::Declared,
            vec![passing(10), passing(6), passing(0), OVER],
        ),
        (
            vec![data(4), data(6)],
            Hint::Undeclared,
            vec![SAYS_NOTHING; 3],
        ),
        (vec![], Hint::Declared, vec![OVER]),
        (vec![], Hint::Undeclared, vec![SAYS_NOTHING, OVER]),
        (
            vec![data(5)],
            between(2, Some(1000)),
            vec![(2, Some(1000), false); 2],
        ),
        (
            vec![data(5)],
            between(10, None),
            vec![(10, None, false), SAYS_NOTHING, OVER],
        ),
        // Known to fail: nothing.
        (
            vec![data(4), data(7)],
            Hint::Declared,
            vec![SAYS_NOTHING, OVER],
        ),
        (
            vec![data(4), data(7)],
            Hint::Undeclared,
            vec![SAYS_NOTHING, SAYS_NOTHING, OVER],
        ),
        (vec![data(5)], between(11, None), vec![SAYS_NOTHING, OVER]),
        // Not known to fail: a lie is passed on until it is one for certain.
        (
            vec![data(4), data(7)],
            over(),
            vec![passing(3), passing(3), OVER],
        ),
        (
            vec![data(8), data(3)],
            over(),
            vec![passing(3), SAYS_NOTHING, OVER],
        ),
        // Fails for a reason of its own.
        (
            vec![data(4), Fail],
            Hint::Declared,
            vec![passing(4), passing(0), OVER],
        ),
        (
            vec![data(4), Fail],
            Hint::Undeclared,
            vec![SAYS_NOTHING, SAYS_NOTHING, OVER],
        ),
    ];
    for (steps, hint, stages) in table {
        let case = format!("{steps:?}, {hint:?}");
        let mut drive = Drive::new(LimitedBody::new(Script::new(steps, hint), 10));
        for (at, expected) in stages.into_iter().enumerate() {
            assert_eq!(stage(&drive.body), expected, "{case}, stage {at}");
            drive.step();
        }
    }
}

#[test]
fn a_hint_that_lies_does_not_move_the_limit() {
    let five = || vec![data(5)];
    let bytewise = |len| (0..len).map(|_| data(1)).collect::<Vec<_>>();
    let table = [
        (
            "lower too high, within",
            five(),
            between(8, None),
            10,
            "5 end",
        ),
        (
            "lower too high, over: a fact",
            five(),
            between(1000, None),
            10,
            "breach end",
        ),
        ("exact but too high", five(), exact(8), 10, "5 end"),
        (
            "lower too low",
            vec![data(4), data(7)],
            between(1, None),
            10,
            "4 breach end",
        ),
        (
            "exact but too low",
            vec![data(4), data(7)],
            exact(1),
            10,
            "4 breach end",
        ),
        (
            "upper too low, within",
            five(),
            between(0, Some(3)),
            10,
            "5 end",
        ),
        (
            "upper too low, over",
            vec![data(4), data(7)],
            between(0, Some(3)),
            10,
            "4 breach end",
        ),
        (
            "upper over the limit: a maybe",
            five(),
            between(0, Some(1000)),
            10,
            "5 end",
        ),
        (
            "range across the limit",
            five(),
            between(5, Some(1000)),
            10,
            "5 end",
        ),
        ("says it is empty", five(), exact(0), 10, "5 end"),
        ("says it is empty, zero", five(), exact(0), 0, "breach end"),
        (
            "beyond 32 bits",
            five(),
            exact(5 << 30),
            4 << 30,
            "breach end",
        ),
        (
            "beyond 32 bits, within",
            five(),
            exact(5 << 30),
            6 << 30,
            "5 end",
        ),
    ];
    for (case, steps, hint, limit, outline) in table {
        let drive = Drive::to_end(LimitedBody::new(Script::new(steps, hint), limit));
        assert_eq!(drive.outline(), outline, "{case}");
    }

    let thousand = Script::new(bytewise(1000), exact(1));
    let drive = Drive::to_end(LimitedBody::new(thousand, 10));
    assert_eq!(drive.too_large().read(), 11);
    assert_eq!(drive.too_large().declared(), Some(1));
}

#[test]
fn the_error_says_whether_all_was_read() {
    // A body that declares nothing cannot prove that it is over.
    for steps in [vec![data(4), data(7)], vec![data(4), data(7), data(1)]] {
        let drive = Drive::to_end(LimitedBody::new(Script::new(steps, Hint::Undeclared), 10));
        let error = drive.too_large();
        assert_eq!((error.read(), error.read_is_total()), (11, false));
    }
    let ends = Huge { frame: 11, left: 1 };
    let error = failure(LimitedBody::new(ends, 10));
    assert_eq!((error.read(), error.read_is_total()), (11, true));
    let goes_on = Huge { frame: 11, left: 2 };
    let error = failure(LimitedBody::new(goes_on, 10));
    assert_eq!((error.read(), error.read_is_total()), (11, false));
}

/// Frames that claim to hold `frame` bytes each.
#[derive(Debug)]
struct Huge {
    frame: usize,
    left: usize,
}

impl Default for Huge {
    fn default() -> Self {
        Self {
            frame: usize::MAX,
            left: 3,
        }
    }
}

#[derive(Debug)]
struct HugeData(usize);

impl Buf for HugeData {
    fn remaining(&self) -> usize {
        self.0
    }

    fn chunk(&self) -> &[u8] {
        &[]
    }

    fn advance(&mut self, count: usize) {
        self.0 -= count;
    }
}

impl Body for Huge {
    type Data = HugeData;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<HugeData>, Infallible>>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Poll::Ready(None);
        };
        self.left = left;
        Poll::Ready(Some(Ok(Frame::data(HugeData(self.frame)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }
}

fn next<B: Body + Unpin>(body: &mut B) -> Option<Result<Frame<B::Data>, B::Error>> {
    body.frame().now_or_never().expect("always ready")
}

/// The error of a body that fails before its end.
fn failure<B>(mut body: LimitedBody<B>) -> TooLarge
where
    B: Body + Unpin,
    B::Error: StdError + Send + Sync + 'static,
    B::Data: Debug,
{
    loop {
        if let Err(error) = next(&mut body).expect("it did not fail") {
            assert!(next(&mut body).is_none());
            return error.too_large().unwrap().clone();
        }
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn no_count_overflows_however_large_the_frames() {
    let mut body = LimitedBody::new(Huge::default(), u64::MAX);
    assert!(next(&mut body).unwrap().is_ok());
    assert_eq!((body.read(), body.remaining()), (u64::MAX, Some(0)));
    let error = failure(body);
    assert_eq!((error.limit(), error.read()), (u64::MAX, u64::MAX));

    let mut unlimited = LimitedBody::<Huge>::default();
    assert_eq!((unlimited.limit(), unlimited.remaining()), (None, None));
    for _ in 0..3 {
        assert!(next(&mut unlimited).unwrap().is_ok());
        assert_eq!(unlimited.read(), u64::MAX);
    }
    assert!(next(&mut unlimited).is_none());

    for limit in [0, N as u64, u64::MAX - 1] {
        let error = failure(LimitedBody::new(Huge::default(), limit));
        assert_eq!(error.read(), u64::MAX);
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn a_count_that_no_u64_can_hold_is_not_a_total() {
    let two = Huge {
        left: 2,
        ..Huge::default()
    };
    let error = failure(LimitedBody::new(two, u64::MAX));
    assert!(!error.read_is_total());
}

#[test]
fn data_of_any_type_is_counted() {
    for (text, passes) in [("ten bytes.", true), ("eleven byte", false)] {
        let chunk = |text: &'static str| text.as_bytes();
        let (head, tail) = text.split_at(3);
        let mut body = LimitedBody::new(Full::new(chunk(head).chain(chunk(tail))), 10);
        assert_eq!(next(&mut body).unwrap().is_ok(), passes);
        let mut body = LimitedBody::new(text.to_string(), 10);
        assert_eq!(next(&mut body).unwrap().is_ok(), passes);
    }
}

#[test]
fn without_a_limit_everything_passes() {
    let mut body = LimitedBody::<String>::default();
    assert_eq!(stage(&body), OVER);
    *body.get_mut().unwrap() = "x".repeat(1 << 20);
    assert_eq!(
        next(&mut body).unwrap().unwrap().into_data().unwrap().len(),
        1 << 20
    );
    assert!(next(&mut body).is_none());
}

#[test]
fn nested_limits_both_hold_and_the_error_is_of_the_one_that_fired() {
    for (outer, inner, fired) in [(10, 100, 10), (100, 10, 10), (10, 10, 10)] {
        for variant in VARIANTS {
            let script = Script::new([data(10), data(1)], variant);
            let body = LimitedBody::new(LimitedBody::new(script, inner), outer);
            let drive = Drive::to_end(body);
            assert_eq!(drive.too_large().limit(), fired);
            let source = drive.error.as_ref().unwrap().source().unwrap();
            assert!(
                source.source().is_none(),
                "one limit below another looks like one"
            );
        }
    }
}

// Send, Sync and Unpin exactly when the wrapped body is.
type SyncOnly = MutexGuard<'static, ()>;
type SendOnly = Cell<()>;
type Neither = Rc<()>;

assert_impl_all!(LimitedBody<()>: Send, Sync, Unpin, Debug);
assert_impl_all!(LimitedBody<SyncOnly>: Sync, Unpin);
assert_not_impl_any!(LimitedBody<SyncOnly>: Send);
assert_impl_all!(LimitedBody<SendOnly>: Send, Unpin);
assert_not_impl_any!(LimitedBody<SendOnly>: Sync);
assert_not_impl_any!(LimitedBody<Neither>: Send, Sync);
assert_impl_all!(LimitedBody<PhantomPinned>: Send, Sync);
assert_not_impl_any!(LimitedBody<PhantomPinned>: Unpin);

struct NoDefault;
assert_impl_all!(LimitedBody<String>: Default);
assert_not_impl_any!(LimitedBody<NoDefault>: Default);
assert_not_impl_any!(LimitedBody<()>: Clone, Copy);

assert_impl_all!(ResponseBody<String>: Send, Sync, Unpin, Debug, Default);
assert_not_impl_any!(ResponseBody<String>: Clone);
assert_not_impl_any!(ResponseBody<NoDefault>: Default);
assert_not_impl_any!(ResponseBody<SyncOnly>: Send);
assert_not_impl_any!(ResponseBody<SendOnly>: Sync);
assert_not_impl_any!(ResponseBody<PhantomPinned>: Unpin);
assert_impl_all!(TruncatedBody<String>: Send, Sync, Unpin, Debug, Default);
assert_not_impl_any!(TruncatedBody<String>: Clone);

assert_impl_all!(RequestSizeLimitLayer: Clone, Send, Sync, Debug, Unpin);
assert_impl_all!(ClientRequestSizeLimitLayer: Clone, Send, Sync, Debug, Unpin);
assert_impl_all!(ResponseSizeLimitLayer: Clone, Send, Sync, Debug, Unpin);
assert_impl_all!(TruncateLayer: Clone, Send, Sync, Debug, Unpin);
assert_impl_all!(RequestSizeLimit<()>: Clone, Send, Sync, Debug);
assert_impl_all!(ClientRequestSizeLimit<()>: Clone, Send, Sync, Debug);
assert_impl_all!(ResponseSizeLimit<()>: Clone, Send, Sync, Debug);
assert_impl_all!(Truncate<()>: Clone, Send, Sync, Debug);

assert_impl_all!(Error: StdError, Send, Sync);
assert_impl_all!(TooLarge: StdError, Send, Sync, Clone, Eq);
const _: fn() = || {
    fn is_static<T: 'static>() {}
    is_static::<Error>();
    is_static::<TooLarge>();
};
