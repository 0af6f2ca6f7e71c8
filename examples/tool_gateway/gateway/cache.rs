//! Payloads that were sent once.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

/// What is held in total, in bytes.
const CAPACITY: usize = 64 * 1024 * 1024;

/// Holds payloads as they came, for gateways that may have different limits.
#[derive(Default)]
pub(crate) struct Cache(Mutex<Held>);

#[derive(Default)]
struct Held {
    payloads: HashMap<String, Bytes>,
    bytes: usize,
}

impl Cache {
    pub(crate) fn get(&self, key: &str) -> Option<Bytes> {
        self.held().payloads.get(key).cloned()
    }

    pub(crate) fn put(&self, key: String, payload: Bytes) {
        let mut held = self.held();
        if payload.len() > CAPACITY - held.bytes {
            *held = Held::default();
        }
        if payload.len() <= CAPACITY {
            held.bytes += payload.len();
            let old = held.payloads.insert(key, payload);
            held.bytes -= old.map_or(0, |old| old.len());
        }
    }

    /// How many payloads are in it.
    pub(crate) fn len(&self) -> usize {
        self.held().payloads.len()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
