//! What the bulk lane's threads share memory through, so that a model can put its own in place.
//!
//! `rust/models` compiles the bulk lane against loom's; here it is the standard library's.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
