use std::{
    fmt,
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task that a body can hold and be Sync nevertheless, as some frameworks want bodies to be.
// The mutex is never locked.
pub(crate) struct SyncTask(Mutex<Task>);

impl SyncTask {
    pub(crate) fn new(task: Task) -> Self {
        Self(Mutex::new(task))
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
            .poll(cx)
    }
}

impl fmt::Debug for SyncTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SyncTask")
    }
}

/// A sleep by tokio, if this is a task of a tokio runtime with timers.
#[cfg(feature = "tokio")]
pub(crate) fn sleep(duration: Duration) -> Option<Task> {
    tokio::runtime::Handle::try_current().ok()?;
    // A runtime without timers says so only by panicking.
    let sleep = std::panic::catch_unwind(|| tokio::time::sleep(duration)).ok()?;
    Some(Box::pin(sleep))
}

#[cfg(not(feature = "tokio"))]
pub(crate) fn sleep(_: Duration) -> Option<Task> {
    None
}

/// Runs a task by itself, where there is a runtime.
#[cfg(feature = "tokio")]
pub(crate) fn spawn(task: Task) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(task);
    }
}
