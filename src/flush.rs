use std::{
    mem,
    task::{Context, Poll},
};

use crate::error::Error;

/// An error on its way out of a body.
///
/// After [`flush_first`](Self::flush_first) it returns Pending once before the error, waking itself. A server
/// then sends the head and what passed, so the client sees a response that breaks off and not a
/// connection that closes without one, which it would take for a reason to repeat the request.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    error: Option<Error>,
    flush: bool,
}

impl Failure {
    pub(crate) fn new(error: Option<Error>) -> Self {
        let flush = false;
        Self { error, flush }
    }

    pub(crate) fn flush_first(&mut self) {
        self.flush = true;
    }

    pub(crate) fn set(&mut self, error: Error) {
        self.error = Some(error);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.error.is_some()
    }

    /// The error, if there is one, once what came before it has had the time to be sent.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Error>> {
        if self.error.is_some() && mem::take(&mut self.flush) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.error.take())
    }
}
