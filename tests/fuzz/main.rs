//! What a fuzzer does to the crate: here the inputs that it has found, and some made up at random.
//! `.ci/fuzz` looks for more of them, guided by coverage.

#![allow(missing_docs, unreachable_pub)]

#[path = "../support/body_model.rs"]
mod body_model;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/witness.rs"]
mod witness;

#[cfg(feature = "json")]
#[path = "../support/json_cases.rs"]
mod json_cases;
#[cfg(feature = "json")]
#[path = "../support/json_oracle.rs"]
mod json_oracle;
#[cfg(feature = "records")]
#[path = "../support/records_model.rs"]
mod records_model;

pub mod body;
#[cfg(all(feature = "json", feature = "records"))]
pub mod events;
mod input;
#[cfg(feature = "json")]
pub mod json;
pub mod nested;
#[cfg(feature = "records")]
pub mod records;
pub mod request;

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use proptest::{collection::vec, prelude::*, test_runner::TestRunner};

    use super::support::miri::usually;

    fn replay(name: &str, target: fn(&[u8])) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
        let inputs: Vec<_> = fs::read_dir(corpus.join(name))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(inputs.len() > 9, "the corpus of {name} is gone");
        for path in inputs.iter().step_by(usually(1, 30)) {
            println!("{}", path.display());
            target(&fs::read(path).unwrap());
        }

        let config = ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(usually(2000, 2))
        };
        let run = |bytes: Vec<u8>| {
            target(&bytes);
            Ok(())
        };
        let made_up = TestRunner::new(config).run(&vec(any::<u8>(), 0..200), run);
        made_up.unwrap_or_else(|error| panic!("{error}"));
    }

    #[test]
    fn the_counting_body() {
        replay("body", super::body::run);
    }

    #[test]
    fn the_request_service() {
        replay("request", super::request::run);
    }

    #[cfg(feature = "records")]
    #[test]
    fn records() {
        replay("records", super::records::run);
    }

    #[cfg(feature = "json")]
    #[test]
    fn json() {
        replay("json", super::json::run);
    }

    #[test]
    fn nested_limits() {
        replay("nested", super::nested::run);
    }

    #[cfg(all(feature = "json", feature = "records"))]
    #[test]
    fn events() {
        replay("events", super::events::run);
    }
}
