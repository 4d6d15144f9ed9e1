//! The bulk lane's own sources, compiled against loom: its threads, wakes and memory are modelled.
//! The sockets under it are stand-ins that deliver a frame or do not; nothing here ships.
//!
//! `receiving` and `sending` run every interleaving. A wait that only its timeout would end is a
//! deadlock here.
#![allow(
    dead_code,
    missing_docs,
    reason = "the sources are used for their hand-over only"
)]

extern crate self as rustix;

/// The product's files, as they are.
#[path = "../../net/src"]
pub mod net {
    pub mod bulk_in;
    pub mod bulk_out;
    pub mod slots;
}
pub use net::{bulk_in, bulk_out, slots};

// What they stand on, modelled.
pub mod stage;
#[path = "wakes.rs"]
mod wakes;

pub(crate) mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;
}
pub(crate) mod wake {
    pub(crate) use crate::wakes::Wake;
}
pub(crate) mod event {
    pub(crate) use crate::wakes::PollFd;
}
pub(crate) mod socket {
    pub(crate) use crate::wakes::{READ, poll};
}
pub(crate) mod deadline {
    pub(crate) const SLICE: std::time::Duration = std::time::Duration::from_millis(50);
}
pub(crate) mod plans {
    pub(crate) const PLANS_QUEUED_MAX: usize = 64;
}
pub(crate) mod boundary {
    pub(crate) use crate::stage::Trouble;
}
pub(crate) mod connection {
    pub(crate) use crate::stage::LinkFigures;
}
pub(crate) mod control {
    pub(crate) use crate::stage::Shared;
}
pub(crate) mod incoming {
    pub(crate) use crate::stage::Incoming;
}
pub(crate) mod outgoing {
    pub(crate) use crate::stage::Outgoing;
}
pub(crate) mod lent {
    pub(crate) use crate::stage::{Lent, LentMut};
}
pub(crate) mod wait {
    pub(crate) use crate::stage::{Interrupt, Strategy, Wait};
}

#[cfg(test)]
mod receiving;
#[cfg(test)]
mod sending;
