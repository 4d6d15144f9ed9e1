//! Which frames may come and go on one link, and with which sequence (docs/protocol.md 3.1, 10).
//! It looks at headers only; what a payload says is judged by its own module.

use crate::{
    error::{ProtocolError, Refusal},
    frame::{Header, Kind},
};

/// Which end of which link this is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkEnd {
    /// The lead's end of a control link.
    LeadControl,
    /// A follower's end of its control link.
    FollowerControl,
    /// The end of a ring link that takes rows, or tokens on rank 0 of a chain.
    RingAcceptor {
        /// The sampler is the last rank and this is rank 0.
        tokens: bool,
    },
    /// The end of a ring link that sends rows or tokens.
    RingConnector {
        /// The sampler is the last rank and this is the last rank.
        tokens: bool,
    },
    /// The end of a ring link's bulk lane that takes rows.
    BulkAcceptor,
    /// The end of a ring link's bulk lane that sends rows.
    BulkConnector,
}

/// Where a link stands after its handshake.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkState {
    /// The handshake is made.
    Linked,
    /// Control: the lead has the description.
    Described,
    /// Control: the follower has the roster.
    Placed,
    /// Control: the follower is loaded and warm.
    Ready,
    /// Control: the ring runs.
    Open,
    /// The peer said bye.
    Closing,
    /// An acceptor has sent its refusal and waits for the fate that answers it.
    Refusing,
    /// The peer sent a fate.
    Ended,
}

/// One link after its handshake: what may be received and sent next.
#[derive(Clone, Debug)]
pub struct Conversation {
    end: LinkEnd,
    state: LinkState,
    receive_sequence: Sequence,
    send_sequence: Sequence,
    receive_round: Round,
    send_round: Round,
    said_bye: bool,
}

impl Conversation {
    /// A link whose handshake is made.
    #[must_use]
    pub const fn new(end: LinkEnd) -> Self {
        Self {
            end,
            state: LinkState::Linked,
            receive_sequence: Sequence::after_handshake(),
            send_sequence: Sequence::after_handshake(),
            receive_round: Round::Unknown,
            send_round: Round::Unknown,
            said_bye: false,
        }
    }

    /// An acceptor's connection after its refused frame: only a fate may come.
    #[must_use]
    pub const fn refusing(end: LinkEnd) -> Self {
        Self {
            state: LinkState::Refusing,
            ..Self::new(end)
        }
    }

    /// A link in the middle of its life, for tools that judge one piece of it.
    #[must_use]
    pub const fn at(end: LinkEnd, state: LinkState, receive_sequence: u64) -> Self {
        let receive_sequence = Sequence {
            next: receive_sequence,
        };
        Self {
            state,
            receive_sequence,
            ..Self::new(end)
        }
    }

    /// Where the link stands.
    #[must_use]
    pub const fn state(&self) -> LinkState {
        self.state
    }

    /// True where tokens come instead of rows.
    #[must_use]
    pub const fn takes_tokens(&self) -> bool {
        matches!(self.end, LinkEnd::RingAcceptor { tokens: true })
    }

    /// True once this side has sent its bye.
    #[must_use]
    pub const fn has_said_bye(&self) -> bool {
        self.said_bye
    }

    /// Takes a header that has arrived: its sequence, then the state table.
    ///
    /// The round of rows and tokens is judged by `in_flight`, after the credits. Errors:
    /// `bad_sequence`, `unexpected_kind`; nothing has changed then.
    pub fn receive(&mut self, header: &Header) -> Result<(), ProtocolError> {
        let kind = header.kind;
        let mut sequence = self.receive_sequence;
        let mut round = self.receive_round;
        if kind == Kind::Plan {
            round.advance(kind, header.sequence)?;
        } else if !kind.carries_round() {
            sequence.advance(header.sequence)?;
        }
        let state = self.state_after_receiving(kind)?;
        (self.state, self.receive_sequence, self.receive_round) = (state, sequence, round);
        Ok(())
    }

    /// Says that a frame of this kind is about to leave; returns its header's sequence field.
    ///
    /// `round` is the round number of plan, rows and tokens frames. Errors: `local` where the peer
    /// would refuse the frame; nothing has changed then.
    pub fn send(&mut self, kind: Kind, round: Option<u64>) -> Result<u64, ProtocolError> {
        if !self.may_send(kind) {
            return Err(Refusal::Local.text(alloc::format!(
                "{} may not be sent in state {:?} of {:?}",
                kind.name(),
                self.state,
                self.end
            )));
        }
        let number = if kind.carries_round() {
            let number = round.ok_or_else(|| Refusal::Local.error("expected a round number"))?;
            self.send_round.advance(kind, number)?;
            number
        } else {
            self.send_sequence.take()?
        };
        self.state = match kind {
            Kind::Ready => LinkState::Ready,
            Kind::Open => LinkState::Open,
            _ => self.state,
        };
        self.said_bye |= kind == Kind::Bye;
        Ok(number)
    }

    /// The open message said which round comes first; both ends call it.
    pub fn opened(&mut self, first_round: u64) {
        (self.receive_round, self.send_round) =
            (Round::Next(first_round), Round::Next(first_round));
    }

    fn state_after_receiving(&self, kind: Kind) -> Result<LinkState, ProtocolError> {
        use LinkState::{Closing, Described, Ended, Linked, Open, Placed, Ready, Refusing};
        let after = match (self.end, self.state, kind) {
            (_, Ended, _) => None,
            (_, _, Kind::Fate) => Some(Ended),
            (_, Closing | Refusing, _) => None,
            (LinkEnd::LeadControl, Linked, Kind::Describe) => Some(Described),
            (LinkEnd::LeadControl, Described, Kind::Ready) => Some(Ready),
            (LinkEnd::LeadControl, Open, Kind::Bye) if self.said_bye => Some(Closing),
            (LinkEnd::LeadControl, Open, Kind::Figures) if self.said_bye => Some(Open),
            (LinkEnd::LeadControl, state, Kind::Progress) => Some(state),
            (LinkEnd::FollowerControl, Linked, Kind::Roster) => Some(Placed),
            (LinkEnd::FollowerControl, Linked | Placed | Ready, Kind::Progress) => Some(self.state),
            (LinkEnd::FollowerControl, Ready, Kind::Open)
            | (LinkEnd::FollowerControl, Open, Kind::Plan | Kind::Cancel) => Some(Open),
            (LinkEnd::FollowerControl, Open, Kind::Bye) => Some(Closing),
            (
                LinkEnd::RingAcceptor { tokens: false } | LinkEnd::BulkAcceptor,
                Linked,
                Kind::Rows,
            )
            | (LinkEnd::RingAcceptor { tokens: true }, Linked, Kind::Tokens)
            | (LinkEnd::RingConnector { .. } | LinkEnd::BulkConnector, Linked, Kind::Credit) => {
                Some(Linked)
            }
            (LinkEnd::RingAcceptor { .. } | LinkEnd::RingConnector { .. }, Linked, Kind::Bye) => {
                Some(Closing)
            }
            _ => None,
        };
        after.ok_or_else(|| {
            Refusal::UnexpectedKind.text(alloc::format!(
                "{} may not come in state {:?} of {:?}",
                kind.name(),
                self.state,
                self.end
            ))
        })
    }

    /// The mirror of the peer's state table, as far as this end's own state tells.
    fn may_send(&self, kind: Kind) -> bool {
        use LinkState::{Closing, Described, Ended, Linked, Open, Placed, Ready};
        if kind == Kind::Fate {
            return true;
        }
        match (self.end, self.state, kind) {
            (_, Ended | LinkState::Refusing, _) => false,
            (_, _, _) if self.said_bye => false,
            (LinkEnd::LeadControl, Linked | Described | Ready, Kind::Progress)
            | (LinkEnd::LeadControl, Described, Kind::Roster)
            | (LinkEnd::LeadControl, Ready, Kind::Open)
            | (LinkEnd::LeadControl, Open, Kind::Plan | Kind::Cancel | Kind::Bye)
            | (LinkEnd::FollowerControl, Linked, Kind::Describe)
            | (LinkEnd::FollowerControl, Placed, Kind::Ready)
            | (LinkEnd::FollowerControl, Linked | Placed | Ready | Open, Kind::Progress)
            | (LinkEnd::FollowerControl, Closing, Kind::Figures | Kind::Bye)
            | (LinkEnd::RingAcceptor { .. } | LinkEnd::BulkAcceptor, Linked, Kind::Credit)
            | (
                LinkEnd::RingConnector { tokens: false } | LinkEnd::BulkConnector,
                Linked,
                Kind::Rows,
            )
            | (LinkEnd::RingConnector { tokens: true }, Linked, Kind::Tokens)
            | (
                LinkEnd::RingAcceptor { .. } | LinkEnd::RingConnector { .. },
                Linked | Closing,
                Kind::Bye,
            ) => true,
            _ => false,
        }
    }
}

/// A connection's sequence number in one direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sequence {
    next: u64,
}

impl Sequence {
    /// The handshake's frames took 0 and 1.
    #[must_use]
    pub const fn after_handshake() -> Self {
        Self { next: 2 }
    }

    /// Takes the number of a frame that has arrived. Errors: `bad_sequence`.
    pub fn advance(&mut self, got: u64) -> Result<(), ProtocolError> {
        if got != self.next {
            return Err(Refusal::BadSequence.numbers("sequence", self.next, got));
        }
        self.take().map(|_| ())
    }

    /// The number of the next frame that leaves. Errors: `local` after 2^64 frames.
    pub fn take(&mut self) -> Result<u64, ProtocolError> {
        let number = self.next;
        self.next = number
            .checked_add(1)
            .ok_or_else(|| Refusal::Local.error("the connection's sequence is used up"))?;
        Ok(number)
    }
}

/// Round numbers in one direction: plans without a gap, own rows and tokens strictly ascending.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Round {
    /// Before open on a control link; on a ring link before the first frame.
    Unknown,
    /// Control link: the next plan's round.
    Next(u64),
    /// Ring link: the last frame's round.
    Last(u64),
}

impl Round {
    fn advance(&mut self, kind: Kind, got: u64) -> Result<(), ProtocolError> {
        *self = match (kind, *self) {
            (Kind::Plan, Self::Next(next)) if next == got => Self::Next(
                got.checked_add(1)
                    .ok_or_else(|| Refusal::BadSequence.error("the round numbers are used up"))?,
            ),
            (Kind::Plan, Self::Next(next)) => {
                return Err(Refusal::BadSequence.numbers("plan round", next, got));
            }
            // A plan before open is unexpected_kind, by the state table.
            (Kind::Plan, state) => state,
            (_, Self::Last(last)) if got <= last => {
                let first = last.saturating_add(1);
                return Err(Refusal::RowsRound.outside("rows round", first, u64::MAX, got));
            }
            _ => Self::Last(got),
        };
        Ok(())
    }
}
