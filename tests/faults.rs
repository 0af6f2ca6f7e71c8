//! Clients that do not keep to the rules, and what is left of a server when they are gone.
//!
//! `cargo bench --bench faults` lets some thousands of them come.

#![cfg(feature = "tokio")]
#![allow(missing_docs)]

#[path = "support/faults.rs"]
mod faults;
mod support;

// The only test here: it counts the panics of the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_survives_everybody() {
    let report = faults::run(340).await;
    assert_eq!(report.faults(), [""; 0], "{report:?}");
}
