#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::events::run(bytes));
