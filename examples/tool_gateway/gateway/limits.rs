//! How many bytes a tool may answer with.

use std::env::{self, VarError};

use bytesize::ByteSize;

use super::Log;

/// Lowers or raises both limits, in bytes or as `64KiB`.
pub(crate) const VARIABLE: &str = "TOOL_MAX_RESPONSE_BYTES";

pub(crate) const DEFAULT: u64 = 10 * 1024 * 1024;

/// In bytes, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of the answer of an upstream, once decoded.
    pub(crate) upstream: u64,
    /// Of the result that is sent, all of it.
    pub(crate) result: u64,
}

impl Limits {
    pub(crate) const fn of(bytes: u64) -> Self {
        Self {
            upstream: bytes,
            result: bytes,
        }
    }

    pub(crate) fn from_env(log: &Log) -> Self {
        Self::by_setting(env::var(VARIABLE), log)
    }

    /// By what [`env::var`] says. What cannot be read is the default and a warning, and never no limit.
    pub(crate) fn by_setting(setting: Result<String, VarError>, log: &Log) -> Self {
        let problem = match setting {
            Err(VarError::NotPresent) => return Self::of(DEFAULT),
            Err(error) => error.to_string(),
            Ok(text) => match text.trim().parse() {
                // What is too large to be counted comes as the highest number there is.
                Ok(ByteSize(bytes)) if bytes < u64::MAX => return Self::of(bytes),
                _ => format!("{text:?} is not a size such as 64KiB"),
            },
        };
        log(&format!(
            "warning: {VARIABLE}: {problem}; the limit is {DEFAULT} bytes"
        ));
        Self::of(DEFAULT)
    }
}
