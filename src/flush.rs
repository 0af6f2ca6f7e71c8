use std::{
    task::{Context, Poll, ready},
    time::Duration,
};

use http::Version;

use crate::{
    error::Error,
    task::{SyncTask, sleep},
};

/// How long the connection task of HTTP/2 is given to send what is queued for a stream. A reset of the
/// stream drops what is left in the queue.
const SENDING: Duration = Duration::from_millis(10);

/// What makes a server send the head and what passed before an error of the body comes.
///
/// Without it the client may see a connection that closes with no response at all, which it takes for
/// a reason to repeat the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// The connection polls the body, and flushes when that is Pending.
    ByYielding,
    /// Another task polls the body. Where there are no timers, this is as `ByYielding`.
    ByWaiting,
}

impl Flush {
    /// What it takes for a response that a server sends by this version of HTTP, with a declared length
    /// or not.
    pub(crate) fn for_response(version: Version, is_declared: bool) -> Option<Self> {
        if version >= Version::HTTP_2 {
            return Some(Self::ByWaiting);
        }
        // To HTTP/1.0, without a length, what was flushed would look like the whole.
        (version >= Version::HTTP_11 || is_declared).then_some(Self::ByYielding)
    }
}

/// Makes a server send what a body has yielded so far, before the body goes on: is Pending a few times,
/// each time having woken the task.
#[derive(Debug, Default)]
pub(crate) struct Yields {
    left: u8,
}

impl Yields {
    /// An encoder outside takes the first as a sign to flush its own buffer, and does not hand it on.
    pub(crate) const TO_FLUSH: Self = Self { left: 2 };

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(left) = self.left.checked_sub(1) else {
            return Poll::Ready(());
        };
        self.left = left;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// An error on its way out of a body.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    // Behind a pointer, as most bodies never fail and all of them are moved.
    waiting: Option<Box<Waiting>>,
    flush: Option<Flush>,
}

#[derive(Debug)]
struct Waiting {
    error: Error,
    timer: Option<SyncTask>,
    yields: Yields,
}

impl Failure {
    pub(crate) fn new(flush: Option<Flush>) -> Self {
        Self {
            waiting: None,
            flush,
        }
    }

    pub(crate) fn set(&mut self, error: Error) {
        self.waiting = Some(Box::new(Waiting {
            error,
            timer: None,
            yields: Yields::default(),
        }));
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// The error, if there is one, once what came before it has had the time to be sent.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Error>> {
        let Some(waiting) = &mut self.waiting else {
            return Poll::Ready(None);
        };
        if let Some(flush) = self.flush.take() {
            waiting.start(flush);
        }
        ready!(waiting.poll(cx));
        Poll::Ready(self.waiting.take().map(|waiting| waiting.error))
    }
}

impl Waiting {
    fn start(&mut self, flush: Flush) {
        let timer = (flush == Flush::ByWaiting)
            .then(|| sleep(SENDING))
            .flatten();
        self.timer = timer.map(SyncTask::new);
        if self.timer.is_none() {
            self.yields = Yields::TO_FLUSH;
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.yields.poll(cx));
        match &mut self.timer {
            Some(timer) => timer.poll(cx),
            None => Poll::Ready(()),
        }
    }
}
