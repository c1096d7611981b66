//! Runs one target of `crates/fuzz` under libFuzzer: `cargo xtask fuzz`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::run_selected(input));
