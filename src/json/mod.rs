//! JSON that fits into a limit and stays JSON.

mod answer;
mod engine;
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

/// Makes a document fit into the limit of `fit`.
///
/// # Errors
///
/// [`Unfit`] if that cannot be done.
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
