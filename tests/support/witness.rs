//! What the layers report, and requests that are too large in each way there is.

#![allow(dead_code, missing_docs, unreachable_pub)]

use std::{
    future::{Pending, pending},
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, Request, header::CONTENT_LENGTH};
use tower_body_limit::{BodyEnd, RequestSizeLimitLayer, TooLarge};

use crate::support::Hint;

/// Writes down what the callbacks of a layer are called with.
#[derive(Clone, Debug, Default)]
pub struct Witness {
    breaches: Arc<Mutex<Vec<TooLarge>>>,
    ends: Arc<Mutex<Vec<BodyEnd>>>,
}

impl Witness {
    /// For `on_breach`.
    pub fn breach(&self) -> impl Fn(&TooLarge) + Send + Sync + 'static {
        let breaches = Arc::clone(&self.breaches);
        move |error| breaches.lock().unwrap().push(error.clone())
    }

    /// For `on_end`.
    pub fn end(&self) -> impl Fn(&BodyEnd) + Send + Sync + 'static {
        let ends = Arc::clone(&self.ends);
        move |end| ends.lock().unwrap().push(end.clone())
    }

    /// The breaches since the last time.
    pub fn breaches(&self) -> Vec<TooLarge> {
        mem::take(&mut *self.breaches.lock().unwrap())
    }

    /// The ends since the last time.
    pub fn ends(&self) -> Vec<BodyEnd> {
        mem::take(&mut *self.ends.lock().unwrap())
    }
}

/// A clock that stands still, and counts how many drains it was started for.
#[derive(Clone, Debug, Default)]
pub struct StoppedClock(Arc<AtomicUsize>);

impl StoppedClock {
    /// For `drain_with`.
    pub fn sleep(&self) -> impl Fn(Duration) -> Pending<()> + Send + Sync + 'static {
        let started = Arc::clone(&self.0);
        move |_| {
            started.fetch_add(1, Ordering::SeqCst);
            pending()
        }
    }

    pub fn started(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// How a server finds out that a request is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// By the length that it declares.
    InTheHead,
    /// When it is read, by the length that it declares: the limit could have been raised by then.
    AtTheFirstRead,
    /// When it is read, as it declares nothing.
    WhileItIsRead,
}

impl Found {
    pub const ALL: [Self; 3] = [Self::InTheHead, Self::AtTheFirstRead, Self::WhileItIsRead];

    /// The layer with which it comes to that.
    pub fn by(self, layer: RequestSizeLimitLayer) -> RequestSizeLimitLayer {
        match self {
            Self::AtTheFirstRead => layer.adjustable(None),
            _ => layer,
        }
    }

    pub fn is_declared(self) -> bool {
        self != Self::WhileItIsRead
    }

    /// What a body has to say of its length for that.
    pub fn hint(self) -> Hint {
        if self.is_declared() {
            Hint::Declared
        } else {
            Hint::Undeclared
        }
    }

    /// A POST that declares `length` if it has to, whatever its body says.
    pub fn post<B>(self, body: B, length: u64) -> Request<B> {
        let mut request = Request::post("/upload").body(body).unwrap();
        if self.is_declared() {
            let length = HeaderValue::from(length);
            request.headers_mut().insert(CONTENT_LENGTH, length);
        }
        request
    }
}
