//! What may happen on a stagelink ring, decided without sockets, clock or threads.
//! It never waits, reads or sends: callers bring bytes and the time, and get bytes and verdicts.
//!
//! The words and rules are those of `docs/protocol.md`; a module is named as its section's noun.
//! Time is a [`core::time::Duration`] since any start that the caller keeps to.
#![no_std]
#![warn(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]
#![cfg_attr(
    test,
    allow(clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used)
)]

extern crate alloc;

pub mod boot;
mod bytes;
pub mod cancel;
pub mod conversation;
pub mod describe;
pub mod error;
pub mod fate;
pub mod fingerprint;
pub mod frame;
pub mod handshake;
pub mod hello;
pub mod in_flight;
pub mod incoming;
pub mod keepalive;
pub mod layout;
pub mod limits;
pub mod message;
pub mod open;
pub mod plan;
mod prefix;
pub mod progress;
pub mod proof;
pub mod ready;
pub mod refused;
pub mod roster;
pub mod rows;
pub mod streams;
#[cfg(feature = "vectors")]
pub mod vector;

pub use error::{ProtocolError, Refusal};
