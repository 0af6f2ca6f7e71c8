use std::{
    fmt, mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What is left of a request whose body breached, to be drained, if that is wanted.
pub(crate) struct Remainder<B>(Mutex<Rest<B>>);

enum Rest<B> {
    Wanted,
    Kept(B),
    Unwanted,
}

impl<B> Remainder<B> {
    pub(crate) fn new(wanted: bool) -> Self {
        let rest = if wanted { Rest::Wanted } else { Rest::Unwanted };
        Self(Mutex::new(rest))
    }

    /// What is left of the request. From now on a breach drops it.
    pub(crate) fn take(&self) -> Option<B> {
        match mem::replace(&mut *self.lock(), Rest::Unwanted) {
            Rest::Kept(rest) => Some(rest),
            Rest::Wanted | Rest::Unwanted => None,
        }
    }

    pub(crate) fn keep(&self, rest: &mut Option<B>) {
        let mut kept = self.lock();
        if matches!(*kept, Rest::Wanted) {
            if let Some(rest) = rest.take() {
                *kept = Rest::Kept(rest);
            }
        }
    }

    // Nothing that can panic happens under this lock.
    fn lock(&self) -> MutexGuard<'_, Rest<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> fmt::Debug for Remainder<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remainder").finish_non_exhaustive()
    }
}
