//! Polls a body by hand and writes down what came of it.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::Bytes;
use http_body::Body;
use tower_body_limit::{Error, TooLarge};

use super::Log;

/// A waker that counts.
#[derive(Debug, Default)]
pub struct Wakes(AtomicUsize);

impl Wakes {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls a future once; says what came of it and how often it woke its task.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> (Poll<F::Output>, usize) {
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let poll = Pin::new(future).poll(&mut Context::from_waker(&waker));
    (poll, wakes.count())
}

/// Asserts that a future over a body that is always ready, and never ends, stops from time to time
/// and asks to be polled again.
#[track_caller]
pub fn assert_gives_way(mut future: impl Future + Unpin, log: &Log) {
    for _ in 0..5 {
        let before = log.polls();
        let (poll, wakes) = poll_once(&mut future);
        assert!(poll.is_pending());
        assert_eq!(wakes, 1);
        assert!((1..=1024).contains(&(log.polls() - before)));
    }
}

/// A body and what it has yielded so far.
#[derive(Debug)]
pub struct Drive<B> {
    pub body: B,
    pub frames: Vec<Bytes>,
    pub error: Option<Error>,
    steps: Vec<String>,
}

impl<B: Body<Data = Bytes, Error = Error> + Unpin> Drive<B> {
    pub fn new(body: B) -> Self {
        Self {
            body,
            frames: Vec::new(),
            error: None,
            steps: Vec::new(),
        }
    }

    /// A body that was polled until its end, or until it stalled.
    pub fn to_end(body: B) -> Self {
        let mut drive = Self::new(body);
        drive.run();
        drive
    }

    /// Polls once. Says the number of bytes, `trailers`, `pending` (and woken), `stall` (pending
    /// and not woken), `breach`, `failure` or `end`.
    pub fn step(&mut self) -> &str {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let poll = Pin::new(&mut self.body).poll_frame(&mut Context::from_waker(&waker));
        let step = match poll {
            Poll::Pending if wakes.count() > 0 => "pending".into(),
            Poll::Pending => "stall".into(),
            Poll::Ready(None) => "end".into(),
            Poll::Ready(Some(Err(error))) => {
                let step = error.too_large().map_or("failure", |_| "breach").into();
                self.error = Some(error);
                step
            }
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => {
                    let step = data.len().to_string();
                    self.frames.push(data);
                    step
                }
                Err(_) => "trailers".into(),
            },
        };
        self.steps.push(step);
        self.steps.last().unwrap()
    }

    /// Polls until the end, which has to be one for ever, or until nobody would poll again.
    pub fn run(&mut self) {
        while !matches!(self.step(), "end" | "stall") {
            assert!(self.steps.len() < 10_000, "it does not end");
        }
        if self.steps.last().unwrap() == "end" {
            assert!(self.body.is_end_stream());
            assert_eq!(self.body.size_hint().exact(), Some(0));
            for _ in 0..3 {
                assert_eq!(self.step(), "end");
                self.steps.pop();
            }
        }
    }

    /// All steps so far: `"4 4 pending breach end"`.
    pub fn outline(&self) -> String {
        self.steps.join(" ")
    }

    pub fn data(&self) -> Vec<u8> {
        self.frames.concat()
    }

    #[track_caller]
    pub fn too_large(&self) -> &TooLarge {
        let error = self.error.as_ref().expect("it did not fail");
        error.too_large().expect("it failed for another reason")
    }
}
