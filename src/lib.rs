#![doc = include_str!("../README.md")]
// A link to a picture leads nowhere from a page of documentation, so it is drawn into the page.
#![doc = "\n# The picture\n\n<style>img[src$='costs.svg'] { display: none }</style>\n\n"]
#![doc = include_str!("../benches/costs.svg")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod body;
mod client_request;
mod collect;
mod control;
mod drain;
mod error;
mod flush;
#[doc = include_str!("guide.md")]
pub mod guide {}
mod hold;
#[cfg(feature = "json")]
#[cfg_attr(docsrs, doc(cfg(feature = "json")))]
pub mod json;
mod length;
mod macros;
mod media;
mod policy;
#[cfg(feature = "records")]
mod records;
mod remainder;
mod request;
pub mod respond;
mod response;
mod response_body;
mod task;
mod truncate;
mod turns;
mod watch;

pub use body::LimitedBody;
pub use client_request::{ClientRequestSizeLimit, ClientRequestSizeLimitLayer};
pub use collect::{BodyLimitExt, Collected, Prefix};
pub use control::{LimitControl, SetLimitError, SetRequestLimit, SetRequestLimitLayer};
pub use error::{Error, Subject, TooLarge};
pub use policy::{MediaTypeLimits, Policy, RequestLimit, ResponseLimit, StatusLimits};
#[cfg(feature = "records")]
#[cfg_attr(docsrs, doc(cfg(feature = "records")))]
pub use records::{
    RecordKind, RecordLimit, RecordLimitLayer, RecordLimitedBody, RequestRecordLimit,
    RequestRecordLimitLayer,
};
pub use request::{RequestSizeLimit, RequestSizeLimitLayer};
pub use respond::RequestHead;
pub use response::{ResponseSizeLimit, ResponseSizeLimitLayer};
pub use response_body::ResponseBody;
pub use truncate::{Truncate, TruncateLayer, TruncatedBody, Truncation, TruncationHandle};
pub use watch::{BodyEnd, Outcome};
