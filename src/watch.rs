use std::{fmt, pin::Pin, sync::Arc, thread};

use http_body::Body;

use crate::{
    body::Bound,
    drain::with_limits_in_force,
    error::{Subject, TooLarge},
};

/// How a body came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// All of it was read.
    Complete,
    /// It was too large, or failed for a reason of its own.
    Failed,
    /// It was dropped before its end.
    Dropped,
}

/// What a layer reports of a message once its body is over: see `on_end` of the layers.
#[derive(Clone, Debug)]
pub struct BodyEnd {
    bound: Bound,
    read: u64,
    outcome: Outcome,
}

impl BodyEnd {
    pub(crate) fn new(bound: Bound, read: u64, outcome: Outcome) -> Self {
        Self {
            bound,
            read,
            outcome,
        }
    }

    /// The limit, in bytes, `None` for no limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.bound.limit
    }

    /// How many bytes of data were passed on.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Whether the body was read to its end.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// What the limit was put on.
    #[must_use]
    pub fn subject(&self) -> Subject {
        self.bound.subject
    }

    /// The label of the layer, if it was given one.
    #[must_use]
    pub fn label(&self) -> Option<&'static str> {
        self.bound.label
    }
}

/// Somebody who wants to know what becomes of a limited body.
pub(crate) trait Watch<B>: Send + Sync {
    /// The body is over its limit. What is left of it is in `rest`, to be taken; it is dropped
    /// otherwise.
    fn breached(&self, error: &TooLarge, rest: Pin<&mut Option<B>>);

    /// The body is over, for whatever reason. Called once.
    fn ended(&self, end: BodyEnd);

    /// Whether a body that is dropped has nothing more to give.
    fn is_complete(&self, inner: &B) -> bool;
}

/// The one who watches a body, if there is anybody.
pub(crate) struct Watcher<B>(pub(crate) Option<Arc<dyn Watch<B>>>);

impl<B> Watcher<B> {
    pub(crate) const NOBODY: Self = Self(None);
}

impl<B> fmt::Debug for Watcher<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Watcher"
        } else {
            "nobody"
        })
    }
}

/// The callbacks of a layer, and with the feature `tracing` its event.
#[derive(Clone, Default)]
pub(crate) struct Callbacks {
    on_breach: Option<Callback<TooLarge>>,
    on_end: Option<Callback<BodyEnd>>,
}

type Callback<T> = Arc<dyn Fn(&T) + Send + Sync>;

impl Callbacks {
    pub(crate) fn set_on_breach(&mut self, f: impl Fn(&TooLarge) + Send + Sync + 'static) {
        self.on_breach = Some(Arc::new(f));
    }

    pub(crate) fn set_on_end(&mut self, f: impl Fn(&BodyEnd) + Send + Sync + 'static) {
        self.on_end = Some(Arc::new(f));
    }

    /// A watcher for a body that only has to be reported, if anybody wants that.
    pub(crate) fn watcher<B: Body>(self: &Arc<Self>) -> Watcher<B> {
        let wanted = cfg!(feature = "tracing") || self.on_breach.is_some() || self.on_end.is_some();
        Watcher(wanted.then(|| Arc::clone(self) as _))
    }

    /// Reports a message that was refused for what it declares.
    pub(crate) fn refused(&self, error: &TooLarge, bound: Bound) {
        self.breach(error);
        self.end(&BodyEnd::new(bound, 0, Outcome::Failed));
    }

    // A callback that panics while a panic unwinds would abort the process.
    pub(crate) fn breach(&self, error: &TooLarge) {
        if thread::panicking() {
            return;
        }
        #[cfg(feature = "tracing")]
        tracing::warn!(
            limit = error.limit,
            declared = error.declared,
            read = error.read,
            record_offset = error.record_offset,
            subject = %error.subject,
            label = error.label,
            "a size limit was exceeded",
        );
        if let Some(on_breach) = &self.on_breach {
            with_limits_in_force(|| on_breach(error));
        }
    }

    pub(crate) fn end(&self, end: &BodyEnd) {
        if let Some(on_end) = self.on_end.as_ref().filter(|_| !thread::panicking()) {
            with_limits_in_force(|| on_end(end));
        }
    }
}

impl<B: Body> Watch<B> for Callbacks {
    fn breached(&self, error: &TooLarge, _: Pin<&mut Option<B>>) {
        self.breach(error);
    }

    fn ended(&self, end: BodyEnd) {
        self.end(&end);
    }

    fn is_complete(&self, inner: &B) -> bool {
        is_complete(inner)
    }
}

// A server that has announced a length stops reading when it has it.
pub(crate) fn is_complete<B: Body>(inner: &B) -> bool {
    inner.is_end_stream() || inner.size_hint().exact() == Some(0)
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks")
            .field("on_breach", &self.on_breach.is_some())
            .field("on_end", &self.on_end.is_some())
            .finish()
    }
}
