//! The parts of the JSON engine by themselves, fed in chunks cut anywhere.
#![cfg(feature = "json")]
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    rustdoc::broken_intra_doc_links
)]

#[path = "../src/json/engine.rs"]
mod engine;
#[path = "../src/json/finish.rs"]
mod finish;
#[path = "../src/json/pointer.rs"]
mod pointer;
#[path = "../src/json/report.rs"]
mod report;
#[path = "../src/json/rope.rs"]
mod rope;
#[path = "../src/json/scan.rs"]
mod scan;
#[path = "../src/json/settings.rs"]
mod settings;
#[path = "../src/json/store.rs"]
mod store;
mod support {
    pub mod json_cases;
    pub mod json_oracle;
    pub mod miri;
}
#[path = "../src/json/template.rs"]
mod template;

use std::sync::Arc;

use engine::Engine;
use pointer::Pointer;
use proptest::prelude::*;
use report::{FitReport, Unfit};
use settings::{Fit, Marker};
use support::{json_cases, miri::usually};

type Outcome = Result<(FitReport, Vec<u8>), Unfit>;

fn fed<'a>(chunks: impl IntoIterator<Item = &'a [u8]>, fit: &Arc<Fit>) -> Outcome {
    let mut engine = Engine::new(Arc::clone(fit));
    for chunk in chunks {
        if let Err(stop) = engine.feed(chunk) {
            return Err(engine.unfit(stop, None));
        }
    }
    engine
        .finish()
        .map(|(report, blocks)| (report, blocks.concat()))
}

fn at_cuts<'a>(mut text: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut chunks = Vec::new();
    for &cut in cuts.iter().cycle() {
        if text.is_empty() {
            break;
        }
        let (chunk, rest) = text.split_at(cut.min(text.len()));
        chunks.push(chunk);
        text = rest;
    }
    chunks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn the_outcome_does_not_depend_on_the_chunks(
        (text, spec) in json_cases::case(),
        cuts in prop::collection::vec(1_usize..9, 1..9),
        damage in prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut text = text.into_bytes();
        if let Some((at, byte)) = damage {
            let at = at.index(text.len());
            text[at] = byte;
        }
        for limit in (0..text.len() as u64).step_by(usually(1, text.len() / 3 + 1)) {
            let fit = Arc::new(json_cases::settings!(spec, limit).max_scan(text.len() as u64 * 3 / 4 + limit));
            let whole = fed([&text[..]], &fit);
            prop_assert_eq!(&fed(text.chunks(1), &fit), &whole, "limit {}", limit);
            prop_assert_eq!(&fed(at_cuts(&text, &cuts), &fit), &whole, "limit {}", limit);
        }
    }
}
