#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod body;
mod client_request;
mod collect;
mod drain;
mod error;
mod hold;
#[cfg(feature = "json")]
#[cfg_attr(docsrs, doc(cfg(feature = "json")))]
pub mod json;
mod length;
mod media;
mod memory;
mod policy;
mod request;
pub mod respond;
mod response;
mod truncate;
mod turns;
mod watch;

pub use body::LimitedBody;
pub use client_request::{ClientRequestSizeLimit, ClientRequestSizeLimitLayer};
pub use collect::{BodyLimitExt, Collected, Prefix};
pub use error::{Error, Subject, TooLarge};
pub use policy::Policy;
pub use request::{RequestSizeLimit, RequestSizeLimitLayer};
pub use respond::{RequestHead, ResponseBody};
pub use response::{ResponseSizeLimit, ResponseSizeLimitLayer};
pub use truncate::{Truncate, TruncateLayer, TruncatedBody, Truncation, TruncationHandle};
pub use watch::{BodyEnd, Outcome};
