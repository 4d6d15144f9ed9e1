//! When the wait for a posted buffer's bytes ends early: its owner wants it back.
//!
//! It decides nothing about the bytes.

use crate::control::Shared;
use crate::slots::Slot;
use crate::wait::Interrupt;

/// Ends a wait for bytes whose buffer its owner wants back.
pub(super) struct Withdrawn<'a> {
    pub(super) slot: &'a Slot,
    pub(super) shared: &'a Shared,
}

impl Interrupt for Withdrawn<'_> {
    fn is_pending(&self) -> bool {
        self.slot.is_cancelled() || self.shared.is_stopping()
    }
}
