//! What may happen on a stagelink ring, decided without sockets, clock or threads.
//! It never waits, reads or sends: callers bring bytes and the time, and get bytes and verdicts.
//!
//! The words and rules are those of `docs/protocol.md`; a module is named as its section's noun.
//! Time is a [`core::time::Duration`] since any start that the caller keeps to.
//!
//! | module | decides |
//! | --- | --- |
//! | [`frame`], [`incoming`] | where a frame begins and ends, and whether its bytes are whole |
//! | [`handshake`], [`hello`], [`proof`], [`fingerprint`] | who may talk |
//! | [`seal`] | where the records of a sealed frame lie, and with which nonce |
//! | [`conversation`] | which frame may come or go next on one link |
//! | [`describe`], [`layout`], [`boot`], [`roster`] | whether these stages are one ring |
//! | [`plan`], [`streams`], [`rows`], [`in_flight`] | what a round does, and whether it fits |
//! | [`keepalive`], [`progress`], [`fate`] | who lives, who gets on, and why the ring ends |
//!
//! One connection, from its bytes to its frames:
//!
//! ```
//! use stagelink_proto::{
//!     frame::{FrameRules, Header, Kind},
//!     incoming::{Event, Incoming},
//! };
//!
//! # fn main() -> Result<(), stagelink_proto::ProtocolError> {
//! let bytes = Header::for_payload(Kind::Bye, 2, 0, &[], true)?.encode();
//! let mut incoming = Incoming::new(FrameRules::default());
//! assert_eq!(incoming.push(&bytes[..20], &mut [])?, (20, Event::NeedMore));
//! let (taken, event) = incoming.push(&bytes[20..], &mut [])?;
//! assert!(taken == 12 && matches!(event, Event::Header(_)));
//! let (_, event) = incoming.push(&[], &mut [])?;
//! assert!(matches!(event, Event::Frame(header) if header.kind == Kind::Bye));
//! # Ok(())
//! # }
//! ```
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
pub mod figures;
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
pub mod seal;
pub mod streams;
#[cfg(feature = "vectors")]
pub mod vector;

pub use error::{ProtocolError, Refusal};
