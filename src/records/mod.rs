//! Bounds each record of a stream, a server-sent event or a line, and not the stream.
//!
//! [`finder`] finds the records of a stream in its chunks: [`sse`] and [`lines`], by the searches in
//! [`search`]. [`body`] fails at a record that is too large, or has it taken out by [`skip`], which
//! leaves a [`remnant`] of an event behind. [`request`] and [`response`] are the layers.

mod body;
mod config;
pub(crate) mod finder;
mod lines;
pub(crate) mod remnant;
mod request;
mod response;
mod search;
mod skip;
pub(crate) mod sse;

pub use body::{RecordKind, RecordLimitedBody};
pub use request::{RequestRecordLimit, RequestRecordLimitLayer};
pub use response::{RecordLimit, RecordLimitLayer};
