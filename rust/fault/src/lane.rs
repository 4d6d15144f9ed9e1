//! One direction of one connection: what may be read now, and what is written next and when.
//!
//! It holds no socket and reads no clock; `connection` drives it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::command::{CommandError, Order};
use crate::draw::{Draw, Use};
use crate::faults::{Chunk, Ending, Faults, Mark, Slice};
use crate::limits::{MARKS_MAX, PACE_STEP, QUEUE_BYTES_MAX, READ_BYTES_MAX};
use crate::rewrite::{Rewrite, drawn_bit};
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
    /// No write before this moment.
    next_write: Duration,
    /// Bytes left of the slice that is being written.
    slice_left: u64,
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
            next_write: Duration::ZERO,
            slice_left: 0,
        }
    }

    /// Carry out `order`; false when its offset has gone by.
    pub(crate) fn apply(&mut self, order: Order, now: Duration) -> Result<bool, CommandError> {
        match order {
            Order::Latency { fixed, jitter } => {
                self.faults.latency = fixed;
                self.faults.jitter = jitter;
            }
            Order::Rate { bytes_per_second } => self.faults.rate = Some(bytes_per_second.max(1)),
            Order::Slice { bytes_max, pause } => {
                let bytes_max = bytes_max.max(1);
                self.faults.slice = Some(Slice { bytes_max, pause });
            }
            Order::FlipRate { n } => self.faults.flip_rate = Some(n.max(1)),
            Order::BlackHole { at: None } => self.hold = Hold::Now,
            Order::HalfClose { at: None } => return Ok(self.end_here(Ending::HalfClose, now)),
            Order::Reset { at: None } => self.reset = true,
            Order::BlackHole { at: Some(at) } => {
                return self.mark(at, Mark::End(Ending::BlackHole), now);
            }
            Order::HalfClose { at: Some(at) } => {
                return self.mark(at, Mark::End(Ending::HalfClose), now);
            }
            Order::Reset { at: Some(at) } => return self.mark(at, Mark::End(Ending::Reset), now),
            Order::Truncate { at } => return self.mark(at, Mark::End(Ending::Close), now),
            Order::Flip { at, mask } => {
                let mask = mask.unwrap_or_else(|| drawn_bit(self.draw, at));
                return self.mark(at, Mark::Flip(mask), now);
            }
            Order::Duplicate { at, bytes } => {
                return self.mark(at, Mark::Chunk(Chunk::Duplicate, bytes.max(1)), now);
            }
            Order::Reorder { at, bytes } => {
                return self.mark(at, Mark::Chunk(Chunk::Reorder, bytes.max(1)), now);
            }
            Order::Heal => self.heal(now),
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
            Some(_) if self.next_write > now => return Next::Until(self.next_write),
            Some(_) => {}
        }
        let most = self.piece_bytes_max();
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
        self.slice_left = self.slice_left.saturating_sub(count as u64);
        if let Some(slice) = self.faults.slice
            && self.slice_left == 0
        {
            self.next_write = self.next_write.max(now + slice.pause);
        }
        if let Some(rate) = self.faults.rate {
            // A late wake-up is caught up, by at most two steps.
            let base = self.next_write.max(now.saturating_sub(2 * PACE_STEP));
            self.next_write = base + time_of(count as u64, rate);
        }
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
        self.next_write = now;
        self.slice_left = 0;
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

    /// The most bytes of the next write, at least 1.
    fn piece_bytes_max(&mut self) -> usize {
        let mut most = u64::MAX;
        if let Some(slice) = self.faults.slice {
            if self.slice_left == 0 {
                let drawn = self.draw.below(Use::Slice, self.given, slice.bytes_max);
                self.slice_left = 1 + drawn;
            }
            most = self.slice_left;
        }
        if let Some(rate) = self.faults.rate {
            let steps = u64::try_from(1_000 / PACE_STEP.as_millis()).unwrap_or(1);
            most = most.min((rate / steps).max(1));
        }
        usize::try_from(most).unwrap_or(usize::MAX)
    }
}

/// How long `count` bytes take at `rate` bytes in a second.
fn time_of(count: u64, rate: u64) -> Duration {
    let nanoseconds = u128::from(count) * 1_000_000_000 / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn lane(orders: &[Order]) -> Lane {
        let mut lane = Lane::new(Draw::new(5, 0));
        for &order in orders {
            assert!(lane.apply(order, Duration::ZERO).unwrap());
        }
        lane
    }

    /// Writes all that goes until nothing more happens; returns it with the moment of the last.
    fn drain(lane: &mut Lane, mut now: Duration) -> (Vec<u8>, Vec<usize>, Duration) {
        let (mut out, mut pieces) = (Vec::new(), Vec::new());
        loop {
            match lane.next(now) {
                Next::Write(bytes) => {
                    let count = bytes.len();
                    out.extend_from_slice(bytes);
                    pieces.push(count);
                    lane.wrote(count, now);
                }
                Next::Until(moment) => now = moment,
                Next::Idle | Next::End(_) => return (out, pieces, now),
            }
        }
    }

    #[test]
    fn latency_keeps_the_order_when_jitter_would_turn_it() {
        let mut lane = lane(&[Order::Latency {
            fixed: 10 * MS,
            jitter: 50 * MS,
        }]);
        for byte in 0..100 {
            lane.take(&mut [byte], Duration::ZERO);
        }
        let (out, _, last) = drain(&mut lane, Duration::ZERO);
        assert_eq!(out, (0..100).collect::<Vec<u8>>());
        assert!((10 * MS..60 * MS).contains(&last), "{last:?}");
    }

    #[test]
    fn a_rate_is_paced_in_small_steps() {
        let mut lane = lane(&[Order::Rate {
            bytes_per_second: 100_000,
        }]);
        lane.take(&mut vec![0; 50_000], Duration::from_secs(1));
        let (out, pieces, last) = drain(&mut lane, Duration::from_secs(1));
        assert_eq!(out.len(), 50_000);
        assert!(pieces.iter().all(|&piece| piece <= 500), "{pieces:?}");
        let took = last.saturating_sub(Duration::from_secs(1));
        assert!((480 * MS..=500 * MS).contains(&took), "{took:?}");
    }

    #[test]
    fn slices_are_drawn_from_the_seed_and_lose_nothing() {
        let orders = [Order::Slice {
            bytes_max: 7,
            pause: Duration::ZERO,
        }];
        let input: Vec<u8> = (0..200).collect();
        let run = |cut: usize| {
            let mut lane = lane(&orders);
            for piece in input.chunks(cut) {
                lane.take(&mut piece.to_vec(), Duration::ZERO);
            }
            drain(&mut lane, Duration::ZERO)
        };
        let (out, pieces, _) = run(200);
        assert_eq!(out, input);
        assert!(pieces.iter().all(|&piece| (1..=7).contains(&piece)));
        assert!(pieces.windows(2).any(|two| two[0] != two[1]));
        assert_eq!(run(200).1, pieces);
        assert_eq!(run(50).0, input);
    }

    #[test]
    fn a_black_hole_reads_and_writes_nothing_until_it_is_healed() {
        let mut lane = lane(&[Order::BlackHole { at: Some(2) }]);
        assert_eq!(lane.room(), 2);
        lane.take(&mut [1, 2], Duration::ZERO);
        assert_eq!(drain(&mut lane, Duration::ZERO).0, [1, 2]);
        assert_eq!(lane.room(), 0);
        assert!(lane.status().held);
        lane.apply(Order::Heal, MS).unwrap();
        lane.take(&mut [3], MS);
        assert_eq!(drain(&mut lane, MS).0, [3]);
    }

    #[test]
    fn what_was_queued_before_a_black_hole_goes_on_after_it() {
        let mut lane = lane(&[]);
        lane.take(&mut [1, 2], Duration::ZERO);
        lane.apply(Order::BlackHole { at: None }, Duration::ZERO)
            .unwrap();
        assert_eq!(lane.next(MS), Next::Idle);
        lane.apply(Order::Heal, MS).unwrap();
        assert_eq!(drain(&mut lane, MS).0, [1, 2]);
    }

    #[test]
    fn an_ending_comes_after_the_bytes_before_it_and_swallows_the_rest() {
        let mut lane = lane(&[Order::Truncate { at: 3 }]);
        assert_eq!(lane.room(), 3);
        lane.take(&mut [1, 2, 3], Duration::ZERO);
        lane.take(&mut [4, 5], Duration::ZERO);
        assert_eq!(lane.next(MS), Next::Write(&[1, 2, 3]));
        lane.wrote(3, MS);
        assert_eq!(lane.next(MS), Next::End(Ending::Close));
        assert!(lane.is_over());
    }

    #[test]
    fn a_fault_behind_the_stream_is_reported_as_past() {
        let mut lane = lane(&[]);
        lane.take(&mut [1, 2], Duration::ZERO);
        let order = Order::Flip { at: 1, mask: None };
        assert!(!lane.apply(order, Duration::ZERO).unwrap());
    }

    #[test]
    fn a_full_queue_stops_the_reading() {
        let mut lane = lane(&[Order::Latency {
            fixed: Duration::from_secs(60),
            jitter: Duration::ZERO,
        }]);
        while lane.room() > 0 {
            let count = lane.room();
            lane.take(&mut vec![0; count], Duration::ZERO);
        }
        assert_eq!(lane.status().taken, QUEUE_BYTES_MAX as u64);
    }

    #[test]
    fn marks_have_a_limit() {
        let mut lane = lane(&[]);
        let mut flip = |at| lane.apply(Order::Flip { at, mask: None }, Duration::ZERO);
        for at in 0..MARKS_MAX as u64 {
            assert!(flip(at).unwrap());
        }
        assert_eq!(flip(9).unwrap_err().reason, "too_many_marks");
    }
}
