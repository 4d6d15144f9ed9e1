//! One direction of one connection: what may be read now, and what is written next and when.
//!
//! It holds no socket and reads no clock; `connection` drives it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::command::{CommandError, Order};
use crate::draw::{Draw, Use};
use crate::faults::{Ending, Faults, Mark, mark_of};
use crate::limits::{MARKS_MAX, QUEUE_BYTES_MAX, READ_BYTES_MAX};
use crate::pace::Pace;
use crate::rewrite::Rewrite;
use crate::status::LaneStatus;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<'a> {
    /// Nothing until something comes in.
    Idle,
    /// Nothing before this moment.
    Until(Duration),
    /// Write these, then say how many went.
    Write(&'a [u8]),
    /// End the stream so; the lane has nothing to do any more.
    End(Ending),
}

/// Whether the sender's bytes are still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// They are forwarded.
    Open,
    /// The stream was ended by a command: they are swallowed.
    Swallowed,
    /// The sender ended it.
    Ended,
}

/// How far a black hole is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    None,
    /// It begins after what is queued.
    Coming,
    Now,
}

#[derive(Debug)]
struct Item {
    due: Duration,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Bytes, of which the first so many went already.
    Bytes(Vec<u8>, usize),
    End(Ending),
}

/// The state of one direction.
#[derive(Debug)]
pub(crate) struct Lane {
    draw: Draw,
    faults: Faults,
    rewrite: Rewrite,
    queue: VecDeque<Item>,
    queued_bytes: usize,
    input: Input,
    hold: Hold,
    reset: bool,
    over: bool,
    taken: u64,
    given: u64,
    pace: Pace,
}

impl Lane {
    /// A fresh direction with its own draws.
    pub(crate) fn new(draw: Draw) -> Self {
        Self {
            draw,
            faults: Faults::default(),
            rewrite: Rewrite::default(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            input: Input::Open,
            hold: Hold::None,
            reset: false,
            over: false,
            taken: 0,
            given: 0,
            pace: Pace::default(),
        }
    }

    /// Carry out `order`; false when its offset has gone by.
    pub(crate) fn apply(&mut self, order: Order, now: Duration) -> Result<bool, CommandError> {
        if let Some((at, mark)) = mark_of(order, self.draw) {
            return self.mark(at, mark, now);
        }
        match order {
            Order::BlackHole { .. } => self.hold = Hold::Now,
            Order::HalfClose { .. } => return Ok(self.end_here(Ending::HalfClose, now)),
            Order::Reset { .. } => self.reset = true,
            Order::Heal => self.heal(now),
            other => self.faults.set(other),
        }
        Ok(true)
    }

    /// How many bytes may be read from the sender now.
    pub(crate) fn room(&self) -> usize {
        match self.input {
            Input::Ended => 0,
            Input::Swallowed => READ_BYTES_MAX,
            Input::Open if self.hold != Hold::None => 0,
            Input::Open => {
                let offset = self.rewrite.offset();
                let end = self.faults.next_end(offset);
                let before_end = end.map_or(u64::MAX, |(at, _)| at - offset);
                QUEUE_BYTES_MAX
                    .saturating_sub(self.queued_bytes)
                    .min(READ_BYTES_MAX)
                    .min(usize::try_from(before_end).unwrap_or(usize::MAX))
            }
        }
    }

    /// The sender sent these.
    pub(crate) fn take(&mut self, bytes: &mut [u8], now: Duration) {
        if self.input != Input::Open {
            return;
        }
        let due = self.due(now);
        let mut out = Vec::with_capacity(bytes.len());
        self.taken += bytes.len() as u64;
        self.rewrite.take(bytes, &self.faults, self.draw, &mut out);
        self.push_bytes(out, due);
        self.faults.forget_before(self.rewrite.offset());
        self.meet_end(now);
    }

    /// The sender ended its stream: in order, or (`Ending::Reset`) not.
    pub(crate) fn take_end(&mut self, how: Ending, now: Duration) {
        if self.input == Input::Open {
            self.end_here(how, now);
        }
        self.input = Input::Ended;
    }

    /// The receiver takes nothing any more.
    pub(crate) fn lose_receiver(&mut self) {
        self.over = true;
        self.swallow();
        self.queue.clear();
        self.queued_bytes = 0;
    }

    /// What to do now.
    pub(crate) fn next(&mut self, now: Duration) -> Next<'_> {
        if self.reset {
            self.reset = false;
            self.over = true;
            return Next::End(Ending::Reset);
        }
        if self.hold == Hold::Now || self.over {
            return Next::Idle;
        }
        match self.queue.front() {
            None => return Next::Idle,
            Some(item) if item.due > now => return Next::Until(item.due),
            Some(Item {
                what: What::End(ending),
                ..
            }) => {
                let ending = *ending;
                self.queue.pop_front();
                return self.reach(ending);
            }
            Some(_) => {}
        }
        if let Some(moment) = self.pace.wait_until(now) {
            return Next::Until(moment);
        }
        let most = self.pace.bytes_max(&self.faults, self.draw, self.given);
        match self.queue.front() {
            Some(Item {
                what: What::Bytes(bytes, gone),
                ..
            }) => Next::Write(&bytes[*gone..gone.saturating_add(most).min(bytes.len())]),
            _ => Next::Idle,
        }
    }

    /// So many bytes of the last `Next::Write` went.
    pub(crate) fn wrote(&mut self, count: usize, now: Duration) {
        let Some(Item {
            what: What::Bytes(bytes, gone),
            ..
        }) = self.queue.front_mut()
        else {
            return;
        };
        *gone += count;
        if *gone >= bytes.len() {
            self.queue.pop_front();
        }
        self.queued_bytes = self.queued_bytes.saturating_sub(count);
        self.given += count as u64;
        self.pace.wrote(count as u64, &self.faults, now);
    }

    /// Whether this direction has nothing to do any more.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Whether the sender's end was seen.
    pub(crate) fn has_ended(&self) -> bool {
        self.input == Input::Ended
    }

    /// What crossed so far.
    pub(crate) fn status(&self) -> LaneStatus {
        let changes = self.rewrite.changes();
        LaneStatus {
            taken: self.taken,
            given: self.given,
            flipped: changes.flipped,
            duplicated: changes.duplicated,
            reordered: changes.reordered,
            held: self.hold == Hold::Now,
        }
    }

    fn mark(&mut self, at: u64, mark: Mark, now: Duration) -> Result<bool, CommandError> {
        if self.input != Input::Open || at < self.rewrite.offset() {
            return Ok(false);
        }
        if self.faults.marks_count() >= MARKS_MAX {
            return Err(CommandError::new(
                "too_many_marks",
                format!(
                    "at most {MARKS_MAX} faults with offsets wait in one direction; heal first"
                ),
            ));
        }
        self.faults.mark(at, mark);
        self.meet_end(now);
        Ok(true)
    }

    fn heal(&mut self, now: Duration) {
        self.faults = Faults::default();
        self.hold = Hold::None;
        self.pace = Pace::default();
        self.queue
            .retain(|item| !matches!(item.what, What::End(Ending::BlackHole)));
        for item in &mut self.queue {
            item.due = now;
        }
        self.flush_chunk(now);
    }

    /// Begin the ending that is set for exactly this offset, if there is one.
    fn meet_end(&mut self, now: Duration) {
        let offset = self.rewrite.offset();
        if let Some((at, ending)) = self.faults.next_end(offset)
            && at == offset
        {
            self.faults.forget_end(offset);
            self.end_here(ending, now);
        }
    }

    /// Queue an ending after what has come; false when the stream has ended before.
    fn end_here(&mut self, ending: Ending, now: Duration) -> bool {
        if self.input != Input::Open {
            return false;
        }
        let due = self.due(now);
        if ending == Ending::BlackHole {
            if self.hold == Hold::None {
                self.hold = Hold::Coming;
            }
        } else {
            self.flush_chunk(due);
            self.input = Input::Swallowed;
        }
        self.queue.push_back(Item {
            due,
            what: What::End(ending),
        });
        true
    }

    fn reach(&mut self, ending: Ending) -> Next<'_> {
        if ending == Ending::BlackHole {
            self.hold = Hold::Now;
            return Next::Idle;
        }
        self.over = true;
        Next::End(ending)
    }

    fn swallow(&mut self) {
        if self.input == Input::Open {
            self.input = Input::Swallowed;
        }
    }

    /// Let go of a chunk that will not be completed.
    fn flush_chunk(&mut self, due: Duration) {
        let mut held = Vec::new();
        self.rewrite.flush(&mut held);
        self.push_bytes(held, due);
    }

    fn push_bytes(&mut self, bytes: Vec<u8>, due: Duration) {
        if bytes.is_empty() {
            return;
        }
        self.queued_bytes += bytes.len();
        self.queue.push_back(Item {
            due,
            what: What::Bytes(bytes, 0),
        });
    }

    /// When what comes now may leave: never before what came earlier.
    fn due(&self, now: Duration) -> Duration {
        let jitter_ns = u64::try_from(self.faults.jitter.as_nanos()).unwrap_or(u64::MAX);
        let offset = self.rewrite.offset();
        let jitter = match jitter_ns {
            0 => Duration::ZERO,
            end => Duration::from_nanos(self.draw.below(Use::Jitter, offset, end)),
        };
        let due = now + self.faults.latency + jitter;
        self.queue.back().map_or(due, |last| due.max(last.due))
    }
}

#[cfg(test)]
mod tests;
