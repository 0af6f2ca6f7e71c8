//! What a limited body does, in ten lines.

#![allow(dead_code, missing_docs, unreachable_pub)]

use std::slice;

use crate::support::Step::{self, Data, Fail, Trailers};

pub fn bytes_of(steps: &[Step]) -> Vec<u8> {
    let data = steps.iter().filter_map(|step| match step {
        Data(data) => Some(&data[..]),
        _ => None,
    });
    data.collect::<Vec<_>>().concat()
}

/// What a limited body does.
pub fn limited(steps: &[Step], limit: u64, declared: bool) -> String {
    if declared && bytes_of(steps).len() as u64 > limit {
        return "breach end".into();
    }
    let (mut read, mut seen) = (0, String::new());
    for step in steps {
        read += bytes_of(slice::from_ref(step)).len() as u64;
        if read > limit {
            return seen + "breach end";
        }
        seen += &name(step, u64::MAX);
    }
    seen + "end"
}

/// What a step looks like of which `left` bytes are wanted.
pub fn name(step: &Step, left: u64) -> String {
    match step {
        Data(data) => format!("{} ", (data.len() as u64).min(left)),
        Trailers => "trailers ".into(),
        Fail => "failure ".into(),
        _ => "pending ".into(),
    }
}
