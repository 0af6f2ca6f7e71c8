//! JSON that fits into a limit, and is still JSON.
//!
//! A text that is cut after so many bytes is no JSON any more. Here the document is understood as it
//! passes, and what has to go goes in whole pieces: whitespace, then items off the end of an array or the
//! end of a string, as [`Fit`] says. What is left out is said inside the document, and all of it together
//! is within the limit.
//!
//! ```text
//! {"took": 3, "rows": [{"id": 0}, {"id": 1}, {"id": 2}, ... {"id": 999}], "more": false}
//!
//! {"took":3,"rows":[{"id":0},{"id":1}],"more":false,"truncated":true,"next_offset":2,"cap_reason":"size_limit"}
//! ```
//!
//! | for | there is |
//! |---|---|
//! | a document in memory | [`fit`] |
//! | the responses of a service | [`JsonFitLayer`] |
//! | event streams, with the feature `records` | [`JsonFitLayer`](JsonFitLayer#event-streams) |
//! | what cannot be made to fit | [`Unfit`], and [`rpc_error`] as an answer |
//!
//! Whatever is kept is byte for byte what it was: numbers of any size and precision, escapes, the order of
//! members, duplicate keys. Memory does not grow with the document, and what comes out does not depend on
//! the frames it came in.
//!
//! # What is checked
//!
//! A document within its limit is not looked at. Of a larger one the structure, the numbers, literals and
//! escapes are checked to the end, and what is kept is checked for control characters in strings and for
//! UTF-8 (RFC 8259). What is no JSON is [reported](UnfitReason::Malformed) and never mended. A byte order
//! mark is taken for whitespace.
//!
//! # Examples
//!
//! ```
//! use tower_body_limit::json::{Fit, UnfitReason, fit};
//!
//! let settings = Fit::array_at(110, "/result/rows").markers_at("/result/_meta");
//! let rows = "[1,2,3,4],".repeat(20);
//! let answer = format!(r#"{{"id":7,"result":{{"rows":[{rows}0]}}}}"#);
//!
//! let fitted = fit(answer.as_bytes(), &settings).unwrap();
//! assert_eq!(
//!     fitted.bytes(),
//!     r#"{"id":7,"result":{"rows":[[1,2,3,4]],"_meta":{"truncated":true,"next_offset":1,"cap_reason":"size_limit"}}}"#
//! );
//! assert_eq!((fitted.report().kept(), fitted.report().total()), (Some(1), Some(21)));
//!
//! let unfit = fit(answer.as_bytes(), &settings.limit(20)).unwrap_err();
//! assert_eq!((unfit.reason(), unfit.id()), (UnfitReason::TooLarge, Some("7")));
//! ```

mod answer;
mod document;
mod engine;
#[cfg(feature = "records")]
mod events;
mod finish;
mod layer;
mod pointer;
mod report;
mod rope;
mod scan;
mod settings;
mod store;
mod template;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

pub use answer::rpc_error;
pub use layer::{BaseOffset, FitLimit, JsonFit, JsonFitLayer};
pub use pointer::{Pointer, PointerError};
pub use report::{FitReport, Fitted, Unfit, UnfitReason};
pub use settings::{Fit, Marker};

use engine::Engine;

/// Makes a document in memory fit into the limit of `fit`.
///
/// A document of at most that many bytes is copied as it is. The limit is inclusive.
///
/// # Cost
///
/// One pass over the document. What is kept is copied twice, so at most twice the limit is allocated, and
/// once more for [`Fit::largest_array_in`].
///
/// # Errors
///
/// [`Unfit`], which says why.
///
/// # Examples
///
/// ```
/// use tower_body_limit::json::{Fit, UnfitReason, fit};
///
/// let fitted = fit(b"[ 1e400, 2 ]", &Fit::compact(9)).unwrap();
/// assert_eq!(fitted.bytes(), "[1e400,2]");
///
/// let unfit = fit(b"[ 1e400, 2 ]", &Fit::compact(8)).unwrap_err();
/// assert_eq!(unfit.reason(), UnfitReason::TooLarge);
/// assert_eq!(unfit.to_string(), "the JSON document does not fit into 8 bytes: what has to be kept of it is larger");
/// ```
#[doc(alias = "truncate_json")]
pub fn fit(json: &[u8], fit: &Fit) -> Result<Fitted, Unfit> {
    let original = json.len() as u64;
    if original <= fit.limit {
        let report = FitReport::unchanged(fit.limit, original);
        let data = Bytes::copy_from_slice(json);
        return Ok(Fitted { report, data });
    }
    let mut engine = Engine::new(Arc::new(fit.clone()));
    if let Err(stop) = engine.feed(json) {
        return Err(engine.unfit(stop, Some(original)));
    }
    let (report, blocks) = engine.finish()?;
    let mut data = BytesMut::with_capacity(blocks.iter().map(Bytes::len).sum());
    for block in blocks {
        data.extend_from_slice(&block);
    }
    let data = data.freeze();
    Ok(Fitted { report, data })
}
