use std::{
    cell::Cell,
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::Body;

use crate::{
    task::{SyncTask, Task},
    turns::Turns,
};

/// A drain through which nothing came for so long has ended: the client has stopped writing, and waits
/// for the rest of the answer.
const QUIET: Duration = Duration::from_millis(250);

/// How much of a refused request is read and discarded, and for how long.
#[derive(Clone)]
pub(crate) struct DrainPolicy {
    budget: u64,
    deadline: Duration,
    // None where there is nothing to keep the time.
    sleep: Arc<dyn Fn(Duration) -> Option<Task> + Send + Sync>,
}

impl DrainPolicy {
    pub(crate) fn new<F, T>(budget: u64, deadline: Duration, sleep: F) -> Self
    where
        F: Fn(Duration) -> T + Send + Sync + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        let sleep = move |duration| Some(Box::pin(sleep(duration)) as Task);
        Self {
            budget,
            deadline,
            sleep: Arc::new(sleep),
        }
    }

    /// What is drained unless told otherwise: nothing, where there is no clock.
    pub(crate) fn standard() -> Option<Self> {
        #[cfg(feature = "tokio")]
        return Some(Self::by_tokio(16 * 1024 * 1024, Duration::from_secs(5)));
        #[cfg(not(feature = "tokio"))]
        return None;
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn by_tokio(budget: u64, deadline: Duration) -> Self {
        Self {
            budget,
            deadline,
            sleep: Arc::new(crate::task::sleep),
        }
    }

    pub(crate) fn covers(&self, remainder: u64) -> bool {
        remainder <= self.budget
    }

    pub(crate) fn start<B>(&self, body: B) -> Option<Drain>
    where
        B: Body<Data = Bytes> + Unpin + Send + 'static,
    {
        let mut clock = Clock {
            sleep: Arc::clone(&self.sleep),
            left: self.deadline,
            pulse: None,
            heard: true,
        };
        if !clock.start_pulse() {
            return None;
        }
        let discard = Discard {
            body,
            budget: self.budget,
            clock,
            turns: Turns::default(),
        };
        Some(Drain(SyncTask::new(Box::pin(discard))))
    }
}

impl fmt::Debug for DrainPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {:?}", self.budget, self.deadline)
    }
}

/// A refused request that is being read and discarded.
#[derive(Debug)]
pub(crate) struct Drain(SyncTask);

impl Drain {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx)
    }
}

struct Discard<B> {
    body: B,
    budget: u64,
    clock: Clock,
    turns: Turns,
}

impl<B> Future for Discard<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.clock.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            ready!(this.turns.poll(cx));
            let frame = {
                let _discarding = Discarding::enter();
                ready!(Pin::new(&mut this.body).poll_frame(cx))
            };
            let Some(Ok(frame)) = frame else {
                return Poll::Ready(());
            };
            this.clock.heard = true;
            // A frame without data costs something too, or it could come for ever.
            let cost = frame.data_ref().map_or(0, Bytes::len).max(1) as u64;
            match this.budget.checked_sub(cost) {
                Some(budget) => this.budget = budget,
                None => return Poll::Ready(()),
            }
        }
    }
}

/// Ends at the deadline, or before it when nothing was heard for a while. One timer serves for both.
struct Clock {
    sleep: Arc<dyn Fn(Duration) -> Option<Task> + Send + Sync>,
    left: Duration,
    pulse: Option<Task>,
    heard: bool,
}

impl Clock {
    fn start_pulse(&mut self) -> bool {
        let pulse = self.left.min(QUIET);
        self.left -= pulse;
        self.pulse = (self.sleep)(pulse);
        self.pulse.is_some()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(pulse) = &mut self.pulse {
            ready!(pulse.as_mut().poll(cx));
            let goes_on = mem::take(&mut self.heard) && !self.left.is_zero();
            if !goes_on || !self.start_pulse() {
                self.pulse = None;
            }
        }
        Poll::Ready(())
    }
}

thread_local! {
    static DISCARDING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is polling a body only to discard what it yields.
///
/// Another limit may stand between the body and the connection. What is discarded does not count for
/// it: it would report a second breach and end the drain.
pub(crate) fn is_discarding() -> bool {
    DISCARDING.get()
}

struct Discarding {
    before: bool,
}

impl Discarding {
    fn enter() -> Self {
        Self {
            before: DISCARDING.replace(true),
        }
    }
}

impl Drop for Discarding {
    fn drop(&mut self) {
        DISCARDING.set(self.before);
    }
}
