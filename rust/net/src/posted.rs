//! The caller's side of the bulk lane: buffers handed over, waited for, and taken back; and the
//! threads that serve them.
//!
//! What the threads do is `bulk_in`'s and `bulk_out`'s.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use stagelink_proto::Refusal;
use stagelink_proto::progress::Phase;

use crate::boot::own_fault;
use crate::bulk_out::Leaving;
use crate::control::Shared;
use crate::deadline::Deadline;
use crate::error::{Kind, LinkError};
use crate::lent::{Lent, LentMut};
use crate::ring::{Ring, misuse};
use crate::slots::{Slot, Step};
use crate::socket::READ;
use crate::wait::{Interrupt, Strategy, Wait};

/// Start the threads of the bulk lane.
pub(crate) fn spawn(shared: &Arc<Shared>) -> std::io::Result<Vec<JoinHandle<()>>> {
    let (incoming, outgoing) = (Arc::clone(shared), Arc::clone(shared));
    let receiver = Builder::new().name("stagelink-in".into());
    let sender = Builder::new().name("stagelink-out".into());
    Ok(vec![
        receiver.spawn(move || incoming.bulk_in.run(&incoming))?,
        sender.spawn(move || outgoing.bulk_out.run(&outgoing))?,
    ])
}

/// Which direction a buffer was posted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Receive,
    Send,
    /// Its rows went on the row lane, in the call itself.
    Gone(u64, u32),
}

/// A buffer in the link's hands.
///
/// Dropping it gives the memory back: a receive is cancelled, which ends the ring where bytes of
/// its frame have come; a send is waited for. Neither returns before the link has left the memory.
#[derive(Debug)]
pub struct Posted {
    shared: Arc<Shared>,
    direction: Direction,
    slot: usize,
    turn: u64,
    strategy: Strategy,
    process: u32,
    /// What came of it, once somebody was told.
    result: Mutex<Option<(u64, u32)>>,
}

impl Ring {
    /// Hand over a buffer for the rows of the next round on the bulk lane.
    ///
    /// The bytes must stay mapped until the value that is returned was waited for, or is gone.
    /// Errors: the ring's fate; `local` where all buffers are posted or this one is too small.
    pub fn post_receive(&self, rows: LentMut<'static>) -> Result<Posted, LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        self.check_process()?;
        let slot = self.shared.bulk_in.post(rows);
        let slot = slot.map_err(|text| misuse(&text))?;
        Ok(self.posted(Direction::Receive, slot))
    }

    /// Hand over a round's rows; rows of the row lane are sent by this call itself.
    ///
    /// The bytes must stay mapped and unchanged until the value that is returned was waited for,
    /// or is gone. Errors: those of `send_rows`; `local` where all buffers are posted.
    pub fn post_send(
        &self,
        round: u64,
        rows: Lent<'static>,
        interrupt: &dyn Interrupt,
    ) -> Result<Posted, LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        let frame = self.frame_out(round, rows.len())?;
        if !frame.is_bulk() {
            self.send_rows(round, rows, interrupt)?;
            return Ok(self.posted(Direction::Gone(round, frame.count), (0, 0)));
        }
        self.shared.bulk_out.check().map_err(|text| misuse(&text))?;
        // Made here, while the frame before this one is on the wire.
        let checksum = if self.terms.checksums {
            rows.checksum(frame.memory_bytes())
        } else {
            0
        };
        let leaving = Leaving {
            frame,
            rows,
            checksum,
        };
        let mut rounds = self.rounds();
        // Two threads that post the same round: the second finds it gone.
        rounds
            .out
            .finish(round)
            .map_err(|error| own_fault(&error))?;
        let slot = self.shared.bulk_out.post(leaving);
        drop(rounds);
        let slot = slot.ok_or_else(|| misuse("all buffers for sending are posted"))?;
        self.return_row_credits(round)?;
        Ok(self.posted(Direction::Send, slot))
    }

    /// A descriptor that is readable while a transfer is over that nobody was told of, and for
    /// ever after the ring's fate.
    #[must_use]
    pub fn completions(&self) -> BorrowedFd<'_> {
        self.shared.bulk_in.completions.as_fd()
    }

    /// Send bulk rows in this call, behind those that are posted.
    pub(crate) fn send_bulk(
        &self,
        round: u64,
        rows: Lent<'_>,
        interrupt: &dyn Interrupt,
    ) -> Result<(), LinkError> {
        let frame = self.frame_out(round, rows.len())?;
        let out = &self.shared.bulk_out;
        let mut wait = Wait::new(&self.shared.fate, interrupt, self.terms.strategy);
        while !out.is_idle() {
            wait.again(out.idle_fd(), READ)
                .map_err(|error| self.ended(error))?;
        }
        let mut link = match out.link.try_lock() {
            Ok(link) => link,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(self.taken()),
        };
        let sent = link.as_mut().map_or(Ok(()), |link| {
            let sent = link.send(frame, rows, &mut wait);
            out.note(link.figures());
            sent
        });
        drop(link);
        sent.map_err(|trouble| self.trouble(trouble, self.next_rank(), Phase::Sending, round))?;
        self.rounds()
            .out
            .finish(round)
            .map_err(|error| own_fault(&error))?;
        Ok(())
    }

    /// Receive bulk rows in this call, where no buffer is posted.
    pub(crate) fn receive_bulk(
        &self,
        round: u64,
        mut rows: LentMut<'_>,
        interrupt: &dyn Interrupt,
    ) -> Result<u32, LinkError> {
        let bulk = &self.shared.bulk_in;
        let frame = bulk.begin_inline(round).map_err(|text| misuse(&text))?;
        crate::ring::check_room(&frame, rows.len())?;
        let mut wait = Wait::new(&self.shared.fate, interrupt, self.terms.strategy);
        let mut link = match bulk.link.try_lock() {
            Ok(link) => link,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(self.taken()),
        };
        bulk.grant_inline();
        let received = link.as_mut().map_or(Ok(()), |link| {
            let received = link.receive(frame, &mut rows, &mut wait);
            bulk.end_inline(received.is_ok(), link.figures());
            received
        });
        drop(link);
        received.map_err(|trouble| {
            self.trouble(trouble, self.previous_rank(), Phase::Receiving, round)
        })?;
        Ok(frame.count)
    }

    /// The threads have ended, or end with the fate that is set.
    pub(crate) fn end_bulk(&self) {
        let mut threads = self.bulk.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // They leave their sockets at the nudge, and wait for nobody else.
            let _ = thread.join();
        }
    }

    /// The control thread holds a link to tell the fate, or another thread is inside a call.
    fn taken(&self) -> LinkError {
        match self.shared.fate.check() {
            Err(error) => self.told(error),
            Ok(()) => misuse("another thread is inside this call"),
        }
    }

    fn posted(&self, direction: Direction, (slot, turn): (usize, u64)) -> Posted {
        Posted {
            shared: Arc::clone(&self.shared),
            direction,
            slot,
            turn,
            strategy: self.terms.strategy,
            process: self.process,
            result: Mutex::new(match direction {
                Direction::Gone(round, rows) => Some((round, rows)),
                Direction::Receive | Direction::Send => None,
            }),
        }
    }
}

impl Posted {
    /// Whether [`Self::wait`] returns at once, with a result or with the ring's fate.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_over() || self.shared.fate.cause().is_some()
    }

    /// Whether the link has left the memory.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let step = self.slot().map(|slot| slot.step_of(self.turn));
        !matches!(step, Some(Step::Waiting | Step::Moving))
    }

    /// Wait until the rows have come, or have gone: the round and how many rows it has.
    ///
    /// Errors: the ring's fate; `deadline` after `limit`, the transfer going on; `interrupted`.
    pub fn wait(
        &self,
        limit: Option<Duration>,
        interrupt: &dyn Interrupt,
    ) -> Result<(u64, u32), LinkError> {
        let deadline = limit.map(Deadline::after);
        let shared = &self.shared;
        let mut wait = Wait::new(&shared.fate, interrupt, self.strategy);
        let mut has_waited = false;
        loop {
            if let Some(result) = self.collect() {
                if has_waited {
                    let activity = &shared.activity;
                    activity.enter(Phase::Computing, result.0, Duration::ZERO, 0);
                }
                return Ok(result);
            }
            shared.fate.check().map_err(|error| shared.told(error))?;
            let Some(slot) = self.slot().filter(|_| !self.is_over()) else {
                if self.is_done() {
                    continue;
                }
                return Err(misuse("the buffer was taken back, or the ring is closed"));
            };
            if !has_waited && self.direction == Direction::Receive {
                let round = shared.bulk_in.next_round();
                let activity = &shared.activity;
                activity.enter(Phase::Receiving, round, Duration::ZERO, 0);
            }
            has_waited = true;
            let in_time = wait.until(slot.as_fd(), READ, deadline);
            if !in_time.map_err(|error| shared.ended(error))? && !self.is_over() {
                let seconds = limit.unwrap_or_default().as_secs_f64();
                let text = format!("a posted buffer was not done within {seconds} s");
                return Err(
                    LinkError::new(Kind::Deadline, Refusal::Deadline, text).after_seconds(seconds)
                );
            }
        }
    }

    /// Take the memory back, as dropping the value does; it is of no use afterwards.
    pub fn take_back(&self) {
        // A forked child has a copy of the memory and none of the threads.
        if self.process != std::process::id() {
            return;
        }
        match self.direction {
            Direction::Receive => self.shared.bulk_in.withdraw(self.slot, self.turn),
            Direction::Send => self.shared.bulk_out.outlast(self.slot, self.turn),
            Direction::Gone(..) => {}
        }
    }

    /// Whether it is a send whose memory the link still reads.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.direction == Direction::Send && !self.is_over()
    }

    fn collect(&self) -> Option<(u64, u32)> {
        let mut told = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none() {
            *told = match self.direction {
                Direction::Receive => self.shared.bulk_in.collect(self.slot, self.turn),
                Direction::Send => self.shared.bulk_out.collect(self.slot, self.turn),
                Direction::Gone(round, rows) => Some((round, rows)),
            };
        }
        *told
    }

    fn is_done(&self) -> bool {
        self.slot()
            .is_some_and(|slot| slot.step_of(self.turn) == Step::Done)
    }

    fn slot(&self) -> Option<&Slot> {
        match self.direction {
            Direction::Receive => self.shared.bulk_in.slots.get(self.slot),
            Direction::Send => self.shared.bulk_out.slots.get(self.slot),
            Direction::Gone(..) => None,
        }
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        self.take_back();
    }
}
