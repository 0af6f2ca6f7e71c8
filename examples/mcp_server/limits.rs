//! The two limits, as the environment has them.

use std::env::VarError;

use bytesize::ByteSize;

/// The most that a request may have, 1 MiB if it is not set.
pub(crate) const REQUEST: &str = "MCP_MAX_REQUEST";
/// The most that a message of the server may have, 10 MiB if it is not set.
pub(crate) const RESPONSE: &str = "MCP_MAX_RESPONSE";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) request: u64,
    pub(crate) response: u64,
}

impl Limits {
    /// Asks `setting` for each, as `std::env::var` answers.
    pub(crate) fn read<F>(setting: F) -> Result<Self, String>
    where
        F: Fn(&str) -> Result<String, VarError>,
    {
        let limit = |name: &str, default| match setting(name) {
            Ok(text) => parse(name, &text),
            Err(VarError::NotPresent) => Ok(default),
            Err(VarError::NotUnicode(text)) => Err(unreadable(name, &text.to_string_lossy())),
        };
        Ok(Self {
            request: limit(REQUEST, 1024 * 1024)?,
            response: limit(RESPONSE, 10 * 1024 * 1024)?,
        })
    }
}

fn parse(name: &str, text: &str) -> Result<u64, String> {
    match text.parse() {
        // What is too large to be counted comes as the highest number there is.
        Ok(ByteSize(limit)) if limit < u64::MAX => Ok(limit),
        _ => Err(unreadable(name, text)),
    }
}

fn unreadable(name: &str, text: &str) -> String {
    format!("{name}={text:?} is not a size in bytes such as 4096, 64KiB or 1.5MB")
}
