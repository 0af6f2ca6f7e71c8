use std::task::{Context, Poll};

/// How many frames a loop takes before it lets other tasks of its thread have their turn.
const FRAMES: u32 = 64;

/// Makes a loop over a body that is always ready give way from time to time.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    taken: u32,
}

impl Turns {
    /// Ready for one more frame, or Pending after having woken the task.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.taken == FRAMES {
            self.taken = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.taken += 1;
        Poll::Ready(())
    }
}
