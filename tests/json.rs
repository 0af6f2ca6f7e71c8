//! Fitting JSON documents, against a slow oracle and case by case.
#![cfg(feature = "json")]

mod support {
    pub mod json_cases;
    pub mod json_oracle;
}

use proptest::prelude::*;
use serde::de::IgnoredAny;
use support::{
    json_cases::{self, settings},
    json_oracle,
};
use tower_body_limit::json::{Fit, Marker, Pointer, Unfit, UnfitReason, fit};

fn is_valid(text: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_limit_the_outcome_is_that_of_the_oracle((text, spec) in json_cases::case()) {
        for limit in 0..=text.len() as u64 {
            let fitted = fit(text.as_bytes(), &settings!(spec, limit));
            match json_oracle::fit(&text, &spec, limit) {
                Ok(expected) => {
                    let fitted = fitted.map_err(|unfit| TestCaseError::fail(format!(
                        "limit {limit}: {unfit:?} instead of {expected}"
                    )))?;
                    prop_assert_eq!(str::from_utf8(fitted.bytes()).unwrap(), &*expected, "limit {}", limit);
                    prop_assert!(limit == text.len() as u64 || is_valid(fitted.bytes()));
                    prop_assert_eq!(fitted.report().len(), fitted.bytes().len() as u64);
                }
                Err(reasons) => {
                    let unfit = fitted.map(|fitted| fitted.into_bytes()).map_err(|unfit| unfit.reason());
                    let reason = unfit.map_or_else(|reason| format!("{reason:?}"), |text| format!("{text:?}"));
                    prop_assert!(reasons.contains(&&*reason), "limit {}: {} and not {:?}", limit, reason, reasons);
                }
            }
        }
    }
}
