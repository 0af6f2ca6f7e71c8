//! A body that plays a script, for tests that have to know what was asked of it.

#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod drive;
pub mod miri;

#[cfg(not(fuzzing))]
pub mod net;

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};

/// One thing that a scripted body does when it is polled.
#[derive(Clone, Debug)]
pub enum Step {
    /// A frame of data, empty or not.
    Data(Bytes),
    /// A frame of trailers, `x-trailer: end` and a digest of the whole.
    Trailers,
    /// Pending once, with a wake-up.
    Pending,
    /// Pending for ever, without a wake-up.
    Stall,
    /// An error, after which there is nothing.
    Fail,
}

/// A frame of `len` bytes.
pub fn data(len: usize) -> Step {
    Step::Data(Bytes::from(vec![b'x'; len]))
}

/// What a scripted body says about its length.
#[derive(Clone, Debug)]
pub enum Hint {
    /// What it has in fact, counted down as it goes.
    Declared,
    /// Nothing.
    Undeclared,
    /// Nothing but that it has ended, once it has.
    EndOnly,
    /// Always this, true or not.
    Fixed(SizeHint),
}

/// Both ways to send a body; every limit test runs in both.
pub const VARIANTS: [Hint; 2] = [Hint::Declared, Hint::Undeclared];

/// What was done to a scripted body. Stays readable when that is gone.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    polls: AtomicUsize,
    dropped: AtomicBool,
}

impl Log {
    /// How many times the body was polled.
    pub fn polls(&self) -> usize {
        self.0.polls.load(Ordering::SeqCst)
    }

    /// Whether the body was dropped.
    pub fn dropped(&self) -> bool {
        self.0.dropped.load(Ordering::SeqCst)
    }
}

/// Plays its steps in order. Panics when it is polled after its end or its error.
#[derive(Debug)]
pub struct Script {
    steps: VecDeque<Step>,
    /// Played again and again once the steps are done.
    refrain: Option<Step>,
    hint: Hint,
    over: bool,
    log: Log,
}

impl Script {
    pub fn new(steps: impl IntoIterator<Item = Step>, hint: Hint) -> Self {
        Self {
            steps: steps.into_iter().collect(),
            refrain: None,
            hint,
            over: false,
            log: Log::default(),
        }
    }

    /// A body that repeats one step for ever and declares nothing.
    pub fn endless(step: Step) -> Self {
        let mut script = Self::new([], Hint::Undeclared);
        script.refrain = Some(step);
        script
    }

    pub fn log(&self) -> Log {
        self.log.clone()
    }

    fn left(&self) -> u64 {
        let len = |step: &Step| match step {
            Step::Data(data) => data.len() as u64,
            _ => 0,
        };
        self.steps.iter().map(len).sum()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.log.0.dropped.store(true, Ordering::SeqCst);
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        assert!(!self.over, "polled after its end");
        let polls = self.log.0.polls.fetch_add(1, Ordering::SeqCst);
        assert!(polls < 1_000_000, "polled without an end");
        let step = self.steps.pop_front().or_else(|| self.refrain.clone());
        Poll::Ready(match step {
            Some(Step::Data(data)) => Some(Ok(Frame::data(data))),
            Some(Step::Trailers) => {
                let end = HeaderValue::from_static("end");
                let digest = HeaderValue::from_static("sha-256=:x:");
                let trailers = HeaderMap::from_iter([
                    (HeaderName::from_static("x-trailer"), end),
                    (HeaderName::from_static("content-digest"), digest),
                ]);
                Some(Ok(Frame::trailers(trailers)))
            }
            Some(Step::Pending) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(Step::Stall) => {
                self.steps.push_front(Step::Stall);
                return Poll::Pending;
            }
            Some(Step::Fail) => {
                self.over = true;
                Some(Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "the script failed",
                )))
            }
            None => {
                self.over = true;
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.hint, Hint::Declared | Hint::EndOnly)
            && self.steps.is_empty()
            && self.refrain.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.hint {
            Hint::Declared => SizeHint::with_exact(self.left()),
            Hint::Undeclared | Hint::EndOnly => SizeHint::new(),
            // Copy only in newer versions than the oldest that this has to pass with.
            Hint::Fixed(hint) => SizeHint::clone(hint),
        }
    }
}
