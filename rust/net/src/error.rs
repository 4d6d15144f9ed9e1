//! What can go wrong on a link, in the words that every rank reports.
//!
//! It decides nothing: whoever sees the fault says which kind it is and who is to blame.

use std::fmt;

use stagelink_proto::error::Refusal;

/// Which class of `stagelink.errors` an error becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file, an address or an argument is wrong.
    Config,
    /// Boot said no.
    Refused,
    /// This process tried to send something that the protocol forbids.
    LocalProtocol,
    /// A peer sent something that the protocol forbids.
    PeerProtocol,
    /// A peer closed, reset or vanished.
    PeerLost,
    /// Something did not happen in time.
    Deadline,
    /// An engine failed.
    Engine,
    /// A signal ended the wait; the caller has the exception that belongs to it.
    Interrupted,
}

/// One fault: its class, its stable reason, who is to blame, and one line for a person.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkError {
    /// The class of the fault.
    pub kind: Kind,
    /// Stable code: a name of docs/protocol.md 9, or one of this crate's own (`key_mode`).
    pub reason: &'static str,
    /// The rank that is to blame, where one is known.
    pub rank: Option<u32>,
    /// What was being done.
    pub operation: Option<&'static str>,
    /// The limit that ran out, for a deadline.
    pub seconds: Option<f64>,
    /// What was expected, what came, from which rank, what to do.
    pub text: String,
}

impl LinkError {
    /// A fault of `kind` with a reason of section 9.
    #[must_use]
    pub fn new(kind: Kind, refusal: Refusal, text: impl Into<String>) -> Self {
        Self::with_reason(kind, refusal.name(), text)
    }

    /// A wrong file, address or argument.
    #[must_use]
    pub fn config(reason: &'static str, text: impl Into<String>) -> Self {
        Self::with_reason(Kind::Config, reason, text)
    }

    /// A wait that a signal ended.
    #[must_use]
    pub fn interrupted() -> Self {
        Self::new(
            Kind::Interrupted,
            Refusal::Interrupted,
            "interrupted by a signal",
        )
    }

    /// The same fault, blamed on `rank`.
    #[must_use]
    pub fn by(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// The same fault, seen while doing `operation`.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.operation = Some(operation);
        self
    }

    /// The same fault, with the limit that ran out.
    #[must_use]
    pub fn after_seconds(mut self, seconds: f64) -> Self {
        self.seconds = Some(seconds);
        self
    }

    fn with_reason(kind: Kind, reason: &'static str, text: impl Into<String>) -> Self {
        Self {
            kind,
            reason,
            rank: None,
            operation: None,
            seconds: None,
            text: text.into(),
        }
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for LinkError {}

/// The class that a refusal code has where it arrives from another rank.
#[must_use]
pub fn kind_of(refusal: Refusal) -> Kind {
    match refusal.number() {
        130 | 135 => Kind::PeerLost,
        131..=133 | 136 => Kind::Deadline,
        134 => Kind::Engine,
        20..=79 | 139 => Kind::Refused,
        _ => Kind::PeerProtocol,
    }
}
