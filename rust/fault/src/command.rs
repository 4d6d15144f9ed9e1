//! The commands of the proxy as values.
//!
//! It applies nothing; [`crate::parse`] reads them from lines.

use std::fmt;
use std::time::Duration;

/// One of the two streams of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the side that dialled the proxy to the target.
    Up = 0,
    /// From the target back.
    Down = 1,
}

/// What to do to one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Delay each piece by `fixed` and up to `jitter` more.
    Latency {
        /// The least delay.
        fixed: Duration,
        /// The most that is drawn on top of it.
        jitter: Duration,
    },
    /// Forward at most so many bytes in a second.
    Rate {
        /// At least 1.
        bytes_per_second: u64,
    },
    /// Write in pieces of 1..=`bytes_max` bytes.
    Slice {
        /// At least 1.
        bytes_max: u64,
        /// Time between two pieces.
        pause: Duration,
    },
    /// Forward nothing, now or from an offset on; the connection stays open.
    BlackHole {
        /// First byte that does not cross; `None` is now.
        at: Option<u64>,
    },
    /// End this direction as if its sender had, now or before an offset.
    HalfClose {
        /// First byte that does not cross; `None` is now.
        at: Option<u64>,
    },
    /// End both directions in order, before an offset of this one.
    Truncate {
        /// First byte that does not cross.
        at: u64,
    },
    /// End the connection with RST at both ends, now or before an offset.
    Reset {
        /// First byte that does not cross; `None` is now.
        at: Option<u64>,
    },
    /// Exclusive-or one byte.
    Flip {
        /// The byte's offset.
        at: u64,
        /// With what; `None` is one drawn bit.
        mask: Option<u8>,
    },
    /// Turn one drawn bit in one byte of `n`, drawn.
    FlipRate {
        /// At least 1, which hits every byte.
        n: u64,
    },
    /// Send a chunk twice.
    Duplicate {
        /// Offset of the chunk.
        at: u64,
        /// Its length, at least 1.
        bytes: usize,
    },
    /// Swap a chunk with the one of the same length after it.
    Reorder {
        /// Offset of the first chunk.
        at: u64,
        /// Length of each, at least 1.
        bytes: usize,
    },
    /// Forget every fault of this direction.
    Heal,
}

/// An order and whom it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub order: Order,
    /// In which direction; `None` is both.
    pub direction: Option<Direction>,
    /// On which connection; `None` is all, those to come included.
    pub connection: Option<u64>,
}

impl Command {
    /// Whether the command is meant for this direction.
    #[must_use]
    pub fn is_for(&self, direction: Direction) -> bool {
        self.direction.is_none_or(|wanted| wanted == direction)
    }

    /// Whether a connection that opens later is told, too. An ending without an offset happens to
    /// what is open, and then is over.
    #[must_use]
    pub fn lasts(&self) -> bool {
        !matches!(
            self.order,
            Order::HalfClose { at: None } | Order::Reset { at: None }
        )
    }
}

/// One line of the control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Change something.
    Apply(Command),
    /// Tell what happened so far.
    Status,
}

/// A command that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// Stable code: `unknown_verb`, `bad_number`, `missing_number`, `trailing_word`,
    /// `no_connection`, `too_many_rules` or `too_many_marks`.
    pub reason: &'static str,
    /// What was expected and what came.
    pub text: String,
}

impl CommandError {
    pub(crate) fn new(reason: &'static str, text: impl Into<String>) -> Self {
        Self {
            reason,
            text: text.into(),
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.reason, self.text)
    }
}

impl std::error::Error for CommandError {}
