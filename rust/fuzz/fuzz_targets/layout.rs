//! `stagelink_fuzz::layout` for cargo-fuzz.
//!
//! It adds nothing to it.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| stagelink_fuzz::layout::judge(input));
