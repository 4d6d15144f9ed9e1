//! What crossed a connection, and which faults took effect.
//!
//! It counts nothing itself; the lanes do.

use std::fmt;

/// What one direction did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStatus {
    /// Bytes that came from the sender.
    pub taken: u64,
    /// Bytes that were written to the receiver.
    pub given: u64,
    /// Bytes that a flip changed.
    pub flipped: u64,
    /// Chunks that were sent twice.
    pub duplicated: u64,
    /// Pairs of chunks that changed places.
    pub reordered: u64,
    /// Whether a black hole holds everything back.
    pub held: bool,
}

/// What one connection did so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Its number, from 0 in the order of acceptance.
    pub id: u64,
    /// Whether it has not ended yet.
    pub open: bool,
    /// Towards the target.
    pub up: LaneStatus,
    /// Back from the target.
    pub down: LaneStatus,
}

impl fmt::Display for LaneStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{{\"taken\":{},\"given\":{},\"flipped\":{},\"duplicated\":{},\"reordered\":{},\
             \"held\":{}}}",
            self.taken, self.given, self.flipped, self.duplicated, self.reordered, self.held
        )
    }
}

/// As an object of JSON.
impl fmt::Display for ConnectionStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{{\"id\":{},\"open\":{},\"up\":{},\"down\":{}}}",
            self.id, self.open, self.up, self.down
        )
    }
}
