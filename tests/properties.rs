//! The two bodies against models of ten lines, for random frames and limits.

#[path = "support/body_model.rs"]
mod body_model;
mod support;

use std::{
    cmp::Ordering::{Equal, Greater},
    slice,
};

use body_model::{bytes_of, limited, name};
use bytes::Bytes;
use futures_util::FutureExt;
use proptest::{collection::vec, prelude::*};
use support::{
    Hint, Script,
    Step::{self, Data, Fail, Pending, Trailers},
    VARIANTS,
    drive::Drive,
};
use tower_body_limit::{
    BodyLimitExt, Truncation,
    Truncation::{Complete, Truncated, Unknown},
};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let data = vec(any::<u8>(), 0..12).prop_map(|bytes| Data(bytes.into()));
    let step = prop_oneof![6 => data, 1 => Just(Pending), 1 => Just(Data(Bytes::new()))];
    let end = prop_oneof![2 => Just(None), 1 => Just(Some(Trailers)), 1 => Just(Some(Fail))];
    (vec(step, 0..12), end).prop_map(|(steps, end)| steps.into_iter().chain(end).collect())
}

fn limits() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 12 => 0..80_u64, 1 => Just(u64::MAX)]
}

/// What a truncated body does, and how it says that it ended.
fn truncated(steps: &[Step], limit: u64, declared: bool) -> (String, Truncation) {
    let all = bytes_of(steps).len() as u64;
    let (mut read, mut seen) = (0, String::new());
    for step in steps {
        if read >= limit {
            break;
        }
        seen += &name(step, limit - read);
        read += bytes_of(slice::from_ref(step)).len() as u64;
    }
    let end = match (declared, read.cmp(&limit)) {
        _ if seen.ends_with("failure ") => Unknown,
        (true, Equal) if all > limit => Truncated,
        (false, Equal) => Unknown,
        (_, Greater) => Truncated,
        _ => Complete,
    };
    (seen + "end", end)
}

/// The same bytes, cut at other places.
fn cut_at(bytes: &[u8], cuts: &[usize]) -> Vec<Step> {
    let mut rest = Bytes::copy_from_slice(bytes);
    let pieces = cuts.iter().map(|&cut| rest.split_to(cut.min(rest.len())));
    let mut steps = pieces.map(Data).collect::<Vec<_>>();
    steps.push(Data(rest));
    steps
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn a_limited_body_does_what_the_model_does(steps in steps(), limit in limits()) {
        for variant in VARIANTS {
            let declared = matches!(variant, Hint::Declared);
            let expected = limited(&steps, limit, declared);
            let drive = Drive::to_end(Script::new(steps.clone(), variant).limited(limit));
            prop_assert_eq!(drive.outline(), expected);
            prop_assert!(drive.data().len() as u64 <= limit);
            prop_assert!(bytes_of(&steps).starts_with(&drive.data()));
        }
    }

    #[test]
    fn a_truncated_body_does_what_the_model_does(steps in steps(), limit in limits()) {
        for variant in VARIANTS {
            let declared = matches!(variant, Hint::Declared);
            let expected = truncated(&steps, limit, declared);
            let drive = Drive::to_end(Script::new(steps.clone(), variant).truncated(limit));
            let end = drive.body.handle().get().unwrap();
            prop_assert_eq!((drive.outline(), end), expected);
            prop_assert!(bytes_of(&steps).starts_with(&drive.data()));
        }
    }

    #[test]
    fn the_outcome_does_not_depend_on_the_frames(
        bytes in vec(any::<u8>(), 0..80),
        cuts in vec(0..20_usize, 0..10),
        limit in limits(),
    ) {
        for variant in VARIANTS {
            let whole = || Script::new(cut_at(&bytes, &[]), variant.clone());
            let pieces = || Script::new(cut_at(&bytes, &cuts), variant.clone());
            let breaks = [whole(), pieces()].map(|script| {
                Drive::to_end(script.limited(limit)).error.is_some()
            });
            prop_assert_eq!(breaks, [bytes.len() as u64 > limit; 2]);

            let one = whole().collect_prefix(limit).now_or_never().unwrap();
            let many = pieces().collect_prefix(limit).now_or_never().unwrap();
            prop_assert_eq!(one.bytes(), many.bytes());
            prop_assert_eq!(one.text(), many.text());
            prop_assert!(one.text().len() as u64 <= limit);
            if matches!(variant, Hint::Declared) {
                prop_assert_eq!(one.end(), many.end());
            }
        }
    }
}
