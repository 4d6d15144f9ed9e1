//! What must hold for every input, however hostile: one function a target, and it panics where it
//! does not hold.
//!
//! It makes no input; libFuzzer (`fuzz_targets/`) and `replay` do.
#![forbid(unsafe_code)]

pub mod connection;
pub mod handshake;
pub mod header;
pub mod layout;
pub mod payload;
pub mod plans;
mod repair;
mod source;

/// A target: its name, which is also the name of its folder of seeds, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 6] = [
    ("header", header::judge),
    ("payload", payload::judge),
    ("connection", connection::judge),
    ("handshake", handshake::judge),
    ("plans", plans::judge),
    ("layout", layout::judge),
];
