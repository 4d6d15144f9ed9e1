//! One rank's end of the ring: join, ready, then plans and rows until bye or the first failure.
//!
//! The calling thread drives the boundary links; the control thread (`control`) does the rest.

mod figures;
mod frames;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use stagelink_proto::Refusal;
use stagelink_proto::limits;
use stagelink_proto::plan::{Plan, PlanBounds};
use stagelink_proto::progress::Phase;
use stagelink_proto::ready::Ready;
use stagelink_proto::rows::{ExpectedRows, RowsFormat};

use crate::boot::own_fault;
use crate::control::Shared;
use crate::error::{Kind as ErrorKind, LinkError};
use crate::incoming::Incoming;
use crate::lent::{Lent, LentMut};
use crate::members::Member;
use crate::outgoing::Outgoing;
use crate::plans::{PLANS_QUEUED_MAX, Taken};
use crate::rounds::{Rounds, check_begun};
use crate::socket::READ;
use crate::telling::broken;
use crate::wait::{Interrupt, Strategy, Wait};

pub use figures::PeerFigures;
pub(crate) use frames::check_room;

/// One rank's end of a complete ring.
#[derive(Debug)]
pub struct Ring {
    pub(crate) shared: Arc<Shared>,
    pub(crate) control: Mutex<Option<JoinHandle<()>>>,
    pub(crate) bulk: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) terms: Terms,
    pub(crate) rounds: Mutex<Rounds>,
    /// The process that made it; a forked child must not touch the links.
    pub(crate) process: u32,
}

/// What does not change after boot.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) launch_id: [u8; 16],
    pub(crate) strategy: Strategy,
    /// Rows frames carry checksums.
    pub(crate) checksums: bool,
    pub(crate) keepalive: Duration,
    pub(crate) silent_intervals: u32,
    pub(crate) format: RowsFormat,
    pub(crate) bounds: PlanBounds,
    /// The lowest rank that cannot cut a stream's state back.
    pub(crate) no_keep: Option<u32>,
    /// Who came during boot and was not let in.
    pub(crate) strangers: String,
}

impl Ring {
    /// The own rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// Who came to the listener during boot and was not let in, counted; empty where nobody was.
    #[must_use]
    pub fn strangers(&self) -> &str {
        &self.terms.strangers
    }

    /// Stages of the ring.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.shared.world
    }

    /// The id of this life of the ring.
    #[must_use]
    pub fn launch_id(&self) -> [u8; 16] {
        self.terms.launch_id
    }

    /// All ranks, in order.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.shared.members().all().to_vec()
    }

    /// Rank 0, after `ready`: what each follower said when it was loaded.
    #[must_use]
    pub fn readies(&self) -> Vec<Ready> {
        let mut readies = self.shared.star().readies.clone();
        readies.sort_by_key(|ready| ready.rank);
        readies
    }

    /// Rank 0: admit the plan against the streams and send it to every follower.
    ///
    /// Errors: `LocalProtocol` with the rule's code, nothing having changed; the ring's fate.
    pub fn send_plan(&self, plan: &Plan) -> Result<u64, LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        if self.rank() != 0 {
            return Err(misuse(
                "send_plan is rank 0's call; followers receive plans",
            ));
        }
        self.check_process()?;
        if plan.is_keep_alive() {
            return Err(misuse(
                "a plan without streams is the keep-alive, which is sent for you",
            ));
        }
        let mut rounds = self.rounds();
        let mut star = self.shared.star();
        if star.open.is_none() || star.is_closing {
            return Err(misuse("the ring is not open"));
        }
        let round = star.next_round;
        let frames = self
            .frames(round, plan)
            .map_err(|error| own_fault(&error))?;
        if frames.is_some() {
            let begun = rounds.back.len() + self.shared.bulk_in.due();
            rounds
                .out
                .check()
                .and_then(|()| check_begun(begun, rounds.out.most()))
                .map_err(|e| own_fault(&e))?;
        }
        rounds
            .encode(plan, &self.terms.bounds)
            .and_then(|()| match self.terms.no_keep {
                Some(rank) => rounds.check_no_keep(plan, || self.shared.name(rank)),
                None => Ok(()),
            })
            .map_err(|error| own_fault(&error))?;
        rounds
            .streams
            .admit(plan)
            .map_err(|error| own_fault(&error))?;
        let now = self.shared.clock.now();
        let rows_bytes = frames.as_ref().map_or(0, |(out, _)| out.payload_bytes);
        let sent = star.send_plan(&rounds.payload, rows_bytes, now);
        drop(star);
        sent.map_err(|(rank, error)| {
            let name = self.shared.name(rank);
            self.unsent(broken(&name, rank, &error, "on the control link"))
        })?;
        let bulk = frames.map(|(_, back)| back).filter(ExpectedRows::is_bulk);
        bulk.map_or(Ok(()), |frame| self.shared.bulk_in.expect(frame))
            .and_then(|()| rounds.begin(frames))
            .map_err(|error| own_fault(&error))?;
        Ok(round)
    }

    /// Follower: the next plan with streams, or `None` after rank 0's bye.
    ///
    /// Errors: the ring's fate; a plan that does not fit this stage's streams becomes it.
    pub fn receive_plan(
        &self,
        interrupt: &dyn Interrupt,
    ) -> Result<Option<(u64, Box<Plan>)>, LinkError> {
        let mut plan = Box::<Plan>::default();
        let round = self.receive_plan_into(&mut plan, interrupt)?;
        Ok(round.map(|round| (round, plan)))
    }

    /// As [`Self::receive_plan`], into memory that is used again: the round's number.
    pub fn receive_plan_into(
        &self,
        plan: &mut Plan,
        interrupt: &dyn Interrupt,
    ) -> Result<Option<u64>, LinkError> {
        if self.rank() == 0 {
            return Err(misuse(
                "receive_plan is a follower's call; rank 0 sends plans",
            ));
        }
        self.shared
            .activity
            .enter(Phase::Idle, 0, Duration::ZERO, 0);
        let mut wait = Wait::new(&self.shared.fate, interrupt, self.terms.strategy);
        loop {
            self.shared.fate.check().map_err(|error| self.told(error))?;
            match self.shared.plans.take() {
                Taken::Plan((round, mut came)) => {
                    self.admit(round, &came)?;
                    std::mem::swap(plan, &mut came);
                    self.shared.plans.give_back(came);
                    return Ok(Some(round));
                }
                Taken::Ended => return Ok(None),
                Taken::Nothing => {
                    let fd = std::os::fd::AsFd::as_fd(&self.shared.plans);
                    wait.again(fd, READ).map_err(|error| self.ended(error))?;
                }
            }
        }
    }

    /// Send the round's rows to the next rank; as many of the lent bytes as the plan says.
    pub fn send_rows(
        &self,
        round: u64,
        rows: Lent<'_>,
        interrupt: &dyn Interrupt,
    ) -> Result<(), LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        let frame = self.frame_out(round, rows.len())?;
        self.shared
            .activity
            .enter(Phase::Sending, round, Duration::ZERO, 0);
        if frame.is_bulk() {
            self.send_bulk(round, rows, interrupt)?;
            return self.return_row_credits(round);
        }
        let mut wait = Wait::new(&self.shared.fate, interrupt, self.terms.strategy);
        let mut link = self.outgoing()?;
        let sent = link
            .as_mut()
            .map_or(Ok(()), |link| link.send(frame, rows, &mut wait));
        drop(link);
        sent.map_err(|trouble| self.trouble(trouble, self.next_rank(), Phase::Sending, round))?;
        self.rounds()
            .out
            .finish(round)
            .map_err(|error| own_fault(&error))?;
        self.return_row_credits(round)
    }

    /// The buffer that a round's rows were computed from may be filled again.
    pub(crate) fn return_row_credits(&self, round: u64) -> Result<(), LinkError> {
        // Another thread that receives just now returns the credit itself.
        if let Ok(mut link) = self.shared.incoming.try_lock() {
            let returned = link.as_mut().map_or(Ok(()), Incoming::return_credits);
            drop(link);
            returned.map_err(|trouble| {
                self.trouble(trouble, self.previous_rank(), Phase::Sending, round)
            })?;
        }
        Ok(())
    }

    /// Receive the round's rows from the previous rank; returns how many rows came.
    pub fn receive_rows(
        &self,
        round: u64,
        mut rows: LentMut<'_>,
        interrupt: &dyn Interrupt,
    ) -> Result<u32, LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        self.check_process()?;
        self.shared
            .activity
            .enter(Phase::Receiving, round, Duration::ZERO, 0);
        if self.shared.bulk_in.is_due(round) {
            let count = self.receive_bulk(round, rows, interrupt)?;
            self.shared
                .activity
                .enter(Phase::Computing, round, Duration::ZERO, 0);
            return Ok(count);
        }
        let frame = self.frame_back(round, rows.len())?;
        let mut wait = Wait::new(&self.shared.fate, interrupt, self.terms.strategy);
        let mut link = self.incoming()?;
        let received = link
            .as_mut()
            .map_or(Ok(()), |link| link.receive(frame, &mut rows, &mut wait));
        drop(link);
        received.map_err(|trouble| {
            self.trouble(trouble, self.previous_rank(), Phase::Receiving, round)
        })?;
        self.rounds()
            .back
            .finish(round)
            .map_err(|error| own_fault(&error))?;
        // They are here: whatever the caller does next, it waits for nobody.
        self.shared
            .activity
            .enter(Phase::Computing, round, Duration::ZERO, 0);
        Ok(frame.count)
    }

    /// Send, then receive: one hop of a decode step in one call.
    pub fn exchange(
        &self,
        round: u64,
        rows_out: Lent<'_>,
        rows_in: LentMut<'_>,
        interrupt: &dyn Interrupt,
    ) -> Result<u32, LinkError> {
        // Judged first, so that rows do not leave for which there is no room to come back.
        self.shared.fate.check().map_err(|error| self.told(error))?;
        if !self.shared.bulk_in.is_due(round) {
            self.frame_back(round, rows_in.len())?;
        }
        self.send_rows(round, rows_out, interrupt)?;
        self.receive_rows(round, rows_in, interrupt)
    }

    /// Rounds with rows that may be on the ring at once; on rank 0 the least of all stages'.
    #[must_use]
    pub fn rounds_in_flight_max(&self) -> u16 {
        self.rounds().out.most()
    }

    /// The links are of the process that joined.
    pub(crate) fn check_process(&self) -> Result<(), LinkError> {
        let (own, process) = (std::process::id(), self.process);
        if own == process {
            return Ok(());
        }
        Err(misuse(&format!(
            "the ring belongs to process {process}, not to its child {own}"
        )))
    }

    pub(crate) fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outgoing(&self) -> Result<MutexGuard<'_, Option<Outgoing>>, LinkError> {
        self.boundary(&self.shared.outgoing)
    }

    fn incoming(&self) -> Result<MutexGuard<'_, Option<Incoming>>, LinkError> {
        self.boundary(&self.shared.incoming)
    }

    fn boundary<'a, T>(&self, link: &'a Mutex<T>) -> Result<MutexGuard<'a, T>, LinkError> {
        match link.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                // The control thread takes the links only to tell the fate.
                self.shared.fate.check().map_err(|error| self.told(error))?;
                Err(misuse("another thread is inside this call"))
            }
        }
    }

    pub(crate) fn next_rank(&self) -> u32 {
        self.shared.next_rank()
    }

    pub(crate) fn previous_rank(&self) -> u32 {
        self.shared.previous_rank()
    }
}

pub(crate) fn misuse(text: &str) -> LinkError {
    LinkError::new(ErrorKind::LocalProtocol, Refusal::Local, text)
}

const _: () = assert!(PLANS_QUEUED_MAX >= limits::ROUNDS_IN_FLIGHT_MAX as usize);
