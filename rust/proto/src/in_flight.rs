//! Which rounds are on the ring, and which buffers may be filled (docs/protocol.md 6.6, 6.7).
//! It owns no buffer; it counts rounds and credits.

use alloc::collections::VecDeque;

use crate::{
    error::{ProtocolError, Refusal},
    frame::Header,
    rows::ExpectedRows,
};

/// Rounds with rows that have begun here and are not finished, oldest first.
///
/// On the lead a round begins with its plan and is finished when its rows are back; on a follower
/// it begins with its plan and is finished when its rows were sent on.
#[derive(Clone, Debug)]
pub struct InFlight {
    most: usize,
    rounds: VecDeque<ExpectedRows>,
}

impl InFlight {
    /// Room for `rounds_in_flight_max` rounds, made here.
    #[must_use]
    pub fn new(rounds_in_flight_max: u16) -> Self {
        let most = usize::from(rounds_in_flight_max);
        Self {
            most,
            rounds: VecDeque::with_capacity(most),
        }
    }

    /// Whether one more round may begin. Errors: `too_many_rounds`.
    pub fn check(&self) -> Result<(), ProtocolError> {
        if self.rounds.len() < self.most {
            return Ok(());
        }
        let most = u64::try_from(self.most).unwrap_or(u64::MAX);
        let got = most.saturating_add(1);
        Err(Refusal::TooManyRounds.outside("rounds in flight", 0_u32, most, got))
    }

    /// A round begins; `expected` is the rows frame that is to come. Errors: `too_many_rounds`.
    pub fn begin(&mut self, expected: ExpectedRows) -> Result<(), ProtocolError> {
        self.check()?;
        self.rounds.push_back(expected);
        Ok(())
    }

    /// The oldest round that is not finished.
    #[must_use]
    pub fn oldest(&self) -> Option<&ExpectedRows> {
        self.rounds.front()
    }

    /// Compares a rows frame with the oldest round. Errors: `rows_round`, `rows_count`,
    /// `rows_size` and those of tokens; nothing has changed.
    pub fn check_rows(&self, header: &Header) -> Result<(), ProtocolError> {
        match self.oldest() {
            Some(expected) => expected.check(header),
            None => {
                Err(Refusal::RowsRound.numbers("no rows, not of round", 0_u32, header.sequence))
            }
        }
    }

    /// The oldest round is finished. Errors: `local` where that is not `round`.
    pub fn finish(&mut self, round: u64) -> Result<ExpectedRows, ProtocolError> {
        match self.rounds.front() {
            Some(oldest) if oldest.round == round => {}
            oldest => {
                let expected = oldest.map_or(0, |oldest| oldest.round);
                return Err(Refusal::Local.numbers("the oldest round", expected, round));
            }
        }
        self.rounds
            .pop_front()
            .ok_or_else(|| Refusal::Local.error("no round is in flight"))
    }

    /// Rounds that are not finished.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rounds.len()
    }

    /// True where no round is on the ring.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rounds.is_empty()
    }
}

/// The sender's side of a boundary: how many of the receiver's buffers it may fill.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Credits {
    buffers: u32,
    held: u32,
}

impl Credits {
    /// All of the receiver's buffers are free at the start.
    #[must_use]
    pub fn new(buffers: u16) -> Self {
        Self {
            buffers: u32::from(buffers),
            held: u32::from(buffers),
        }
    }

    /// A bulk lane: a buffer is free from when it is posted, and none is at the start.
    #[must_use]
    pub fn none_posted(buffers: u16) -> Self {
        Self {
            buffers: u32::from(buffers),
            held: 0,
        }
    }

    /// True where a rows or tokens frame may be started.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.held > 0
    }

    /// Takes the credit of a frame that is about to leave. Errors: `no_credit`.
    pub fn take(&mut self) -> Result<(), ProtocolError> {
        self.held = self
            .held
            .checked_sub(1)
            .ok_or_else(|| Refusal::NoCredit.error("all of the receiver's buffers are full"))?;
        Ok(())
    }

    /// Takes a credit frame's count. Errors: `credit_overflow`; nothing has changed then.
    pub fn receive(&mut self, count: u32) -> Result<(), ProtocolError> {
        let held = self.held.saturating_add(count);
        if held > self.buffers {
            let most = self.buffers;
            return Err(Refusal::CreditOverflow.outside("credits", 0_u32, most, held));
        }
        self.held = held;
        Ok(())
    }
}

/// The receiver's side of a boundary: which of its buffers are full or lent to the engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Buffers {
    buffers: u32,
    taken: u32,
}

impl Buffers {
    /// All buffers are free at the start.
    #[must_use]
    pub fn new(buffers: u16) -> Self {
        Self {
            buffers: u32::from(buffers),
            taken: 0,
        }
    }

    /// A bulk lane: a buffer is free from when it is posted, and none is at the start.
    #[must_use]
    pub fn none_posted(buffers: u16) -> Self {
        Self {
            buffers: u32::from(buffers),
            taken: u32::from(buffers),
        }
    }

    /// A frame begins to fill a buffer. Errors: `no_credit` where none is free.
    pub fn fill(&mut self) -> Result<(), ProtocolError> {
        if self.taken >= self.buffers {
            let most = self.buffers;
            let got = self.taken.saturating_add(1);
            return Err(Refusal::NoCredit.outside("buffers in use", 0_u32, most, got));
        }
        self.taken = self.taken.saturating_add(1);
        Ok(())
    }

    /// `count` buffers are free again and a credit frame of as many leaves. Errors: `local`.
    pub fn release(&mut self, count: u32) -> Result<(), ProtocolError> {
        self.taken = self
            .taken
            .checked_sub(count)
            .ok_or_else(|| Refusal::Local.error("more buffers released than were filled"))?;
        Ok(())
    }

    /// Credits that are worth a frame now, on a row lane: all that are owed once they are half of
    /// the buffers. Sooner would cost every hop a frame, and the sender has the other half.
    #[must_use]
    pub const fn due(&self) -> u32 {
        if self.taken.saturating_mul(2) >= self.buffers {
            self.taken
        } else {
            0
        }
    }

    /// Buffers that are full, lent or not posted.
    #[must_use]
    pub const fn taken(&self) -> u32 {
        self.taken
    }
}
