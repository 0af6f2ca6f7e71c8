use std::{
    cell::Cell,
    fmt,
    future::poll_fn,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::Body;

use crate::{
    flush::Yields,
    task::{SyncTask, Task},
    turns::Turns,
};

/// When nothing has come for so long, the client has stopped writing and waits for the rest of the
/// answer. Or it is slow: so the answer goes out, and the drain goes on without it.
const QUIET: Duration = Duration::from_millis(250);

/// How much of a refused request is read and discarded, and for how long.
#[derive(Clone)]
pub(crate) struct DrainPolicy {
    budget: u64,
    deadline: Duration,
    // None where there is nothing to keep the time.
    sleep: Sleep,
    // None where there is nothing to run a drain that goes on without its answer.
    spawn: Option<fn(Task)>,
}

type Sleep = Arc<dyn Fn(Duration) -> Option<Task> + Send + Sync>;

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
            spawn: None,
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
            spawn: Some(crate::task::spawn),
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
            turns: Turns::default(),
        };
        let draining = Draining {
            yields: Yields::TO_FLUSH,
            discard: Some(discard),
            clock,
            spawn: self.spawn,
        };
        Some(Drain(SyncTask::new(Box::pin(draining))))
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
    turns: Turns,
}

/// Whether the client may still be writing when a drain ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// All of the request has come, or the connection has failed.
    Whole,
    /// The budget is used up.
    Cut,
}

impl<B> Discard<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    fn poll(&mut self, heard: &mut bool, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            ready!(self.turns.poll(cx));
            let frame = {
                let _discarding = Discarding::set(true);
                ready!(Pin::new(&mut self.body).poll_frame(cx))
            };
            let Some(Ok(frame)) = frame else {
                return Poll::Ready(End::Whole);
            };
            *heard = true;
            // A frame without data costs something too, or it could come for ever.
            let cost = frame.data_ref().map_or(0, Bytes::len).max(1) as u64;
            match self.budget.checked_sub(cost) {
                Some(budget) => self.budget = budget,
                None => return Poll::Ready(End::Cut),
            }
        }
    }

    /// Goes on when the answer is out. Then keeps the connection open a little longer: closed on a
    /// client that is still writing, it would be reset before that has read the answer.
    async fn see_off(mut self, left: Option<Task>, sleep: Sleep) {
        if let Some(mut left) = left {
            let end = poll_fn(|cx| match self.poll(&mut false, cx) {
                Poll::Pending => left.as_mut().poll(cx).map(|()| End::Cut),
                end => end,
            });
            if end.await == End::Whole {
                return;
            }
        }
        // Not made before, as its time would run while the rest is still drained.
        if let Some(linger) = sleep(QUIET) {
            linger.await;
        }
    }
}

/// The part of a drain that the answer waits for.
struct Draining<B> {
    // The answer goes out before what has come already is read.
    yields: Yields,
    // None once it has ended.
    discard: Option<Discard<B>>,
    clock: Clock,
    spawn: Option<fn(Task)>,
}

impl<B> Future for Draining<B>
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(discard) = &mut this.discard else {
            return Poll::Ready(());
        };
        ready!(this.yields.poll(cx));
        // The body first: what has come was heard, however late this task has its turn.
        let left = match discard.poll(&mut this.clock.heard, cx) {
            Poll::Ready(End::Whole) => {
                this.discard = None;
                return Poll::Ready(());
            }
            Poll::Ready(End::Cut) => None,
            Poll::Pending => {
                ready!(this.clock.poll(cx));
                (this.clock.sleep)(this.clock.left)
            }
        };
        if let (Some(discard), Some(spawn)) = (this.discard.take(), this.spawn) {
            let sleep = Arc::clone(&this.clock.sleep);
            spawn(Box::pin(discard.see_off(left, sleep)));
        }
        Poll::Ready(())
    }
}

/// Ends at the deadline, or before it when nothing was heard for a while. One timer serves for both.
struct Clock {
    sleep: Sleep,
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

/// Runs code of the user's in which limits are in force, whatever it is called from.
pub(crate) fn with_limits_in_force<T>(run: impl FnOnce() -> T) -> T {
    let _in_force = Discarding::set(false);
    run()
}

struct Discarding {
    before: bool,
}

impl Discarding {
    fn set(discarding: bool) -> Self {
        Self {
            before: DISCARDING.replace(discarding),
        }
    }
}

impl Drop for Discarding {
    fn drop(&mut self) {
        DISCARDING.set(self.before);
    }
}
