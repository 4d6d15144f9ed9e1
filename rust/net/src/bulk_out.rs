//! The sending side of the bulk lane: filled buffers in the order of their rounds, and the
//! background thread that sends them against credits.
//!
//! How a frame is written is `outgoing`'s; the caller's side is `posted`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFd;
use stagelink_proto::progress::Phase;
use stagelink_proto::rows::ExpectedRows;

use crate::boundary::Trouble;
use crate::connection::LinkFigures;
use crate::control::Shared;
use crate::deadline::SLICE;
use crate::lent::Lent;
use crate::outgoing::Outgoing;
use crate::slots::{Completions, Slot, Step};
use crate::socket::{READ, poll};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use crate::wait::{Interrupt, Strategy, Wait};
use crate::wake::Wake;

/// The sending side of the bulk lane.
#[derive(Debug)]
pub(crate) struct BulkOut {
    /// Held by whoever sends: the background thread, or a caller while nothing is posted.
    pub(crate) link: Mutex<Option<Outgoing>>,
    pub(crate) slots: Vec<Slot>,
    state: Mutex<State>,
    nudge: Wake,
    /// Readable while nothing is posted.
    idle: Wake,
    pub(crate) completions: Arc<Completions>,
    figures: Mutex<LinkFigures>,
}

/// One frame that is to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    pub(crate) frame: ExpectedRows,
    pub(crate) rows: Lent<'static>,
    /// CRC-32C of the rows, where frames carry it.
    pub(crate) checksum: u32,
}

#[derive(Debug)]
struct State {
    jobs: Vec<Option<Leaving>>,
    queue: VecDeque<usize>,
    /// The thread sends one that is no longer queued.
    is_sending: bool,
    is_ended: bool,
}

impl BulkOut {
    pub(crate) fn new(buffers: u16, completions: Arc<Completions>) -> std::io::Result<Self> {
        let places = usize::from(buffers);
        let slots: std::io::Result<Vec<Slot>> = (0..places).map(|_| Slot::new()).collect();
        let idle = Wake::new()?;
        idle.set();
        Ok(Self {
            link: Mutex::new(None),
            slots: slots?,
            state: Mutex::new(State {
                jobs: vec![None; places],
                queue: VecDeque::with_capacity(places),
                is_sending: false,
                is_ended: false,
            }),
            nudge: Wake::new()?,
            idle,
            completions,
            figures: Mutex::new(LinkFigures::default()),
        })
    }

    /// Whether one more buffer can be posted; `Err` says why not.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.free().map(|_| ()).ok_or_else(|| {
            let most = self.slots.len();
            format!("all {most} buffers for sending are posted; wait for one")
        })
    }

    /// Take a frame; its slot's number and turn, or `None` where all are taken.
    pub(crate) fn post(&self, leaving: Leaving) -> Option<(usize, u64)> {
        let mut state = self.lock();
        let index = self.free()?;
        *state.jobs.get_mut(index)? = Some(leaving);
        let turn = self.slots[index].begin();
        state.queue.push_back(index);
        self.idle.clear();
        if state.is_ended {
            self.end_waiting(&mut state);
        }
        drop(state);
        self.nudge.set();
        Some((index, turn))
    }

    /// The round and its rows, where the transfer of `turn` is done; the slot is free then.
    pub(crate) fn collect(&self, index: usize, turn: u64) -> Option<(u64, u32)> {
        let mut state = self.lock();
        if self.slots[index].step_of(turn) != Step::Done {
            return None;
        }
        self.release(&mut state, index)
    }

    /// Wait until the thread has left a slot's memory, however long its frame takes.
    pub(crate) fn outlast(&self, index: usize, turn: u64) {
        let slot = &self.slots[index];
        while matches!(slot.step_of(turn), Step::Waiting | Step::Moving) {
            let _ = poll(&mut [PollFd::new(slot, READ)], SLICE);
        }
        let mut state = self.lock();
        if slot.step_of(turn) != Step::Free {
            self.release(&mut state, index);
        }
    }

    /// Whether nothing is posted, so that a caller may send for itself.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.queue.is_empty() && !state.is_sending
    }

    /// Readable while nothing is posted.
    pub(crate) fn idle_fd(&self) -> BorrowedFd<'_> {
        self.idle.as_fd()
    }

    pub(crate) fn figures(&self) -> LinkFigures {
        *self.lock_figures()
    }

    pub(crate) fn note(&self, figures: LinkFigures) {
        *self.lock_figures() = figures;
    }

    pub(crate) fn wake(&self) {
        self.nudge.set();
    }

    /// The background thread: one frame after the other, until the fate or the end.
    pub(crate) fn run(&self, shared: &Shared) {
        while shared.fate.cause().is_none() && !shared.is_stopping() {
            if let Some((index, leaving)) = self.begin() {
                self.send(shared, index, leaving);
                continue;
            }
            let mut fds = [
                PollFd::new(&self.nudge, READ),
                PollFd::from_borrowed_fd(shared.fate.as_fd(), READ),
            ];
            let _ = poll(&mut fds, SLICE * 20);
            self.nudge.clear();
        }
        let mut state = self.lock();
        state.is_ended = true;
        self.end_waiting(&mut state);
        drop(state);
        self.completions.end();
    }

    fn begin(&self) -> Option<(usize, Leaving)> {
        let mut state = self.lock();
        let index = state.queue.pop_front()?;
        let leaving = (*state.jobs.get(index)?)?;
        state.is_sending = true;
        self.slots[index].enter(Step::Moving);
        Some((index, leaving))
    }

    fn send(&self, shared: &Shared, index: usize, leaving: Leaving) {
        let stopping = Stopping(shared);
        let mut wait = Wait::new(&shared.fate, &stopping, Strategy::Block).nudged_by(&self.nudge);
        let sent = match self.link.lock() {
            Ok(mut link) => link.as_mut().map_or(Err(Trouble::Lost), |link| {
                let sent = link.send_with(leaving.frame, leaving.rows, leaving.checksum, &mut wait);
                *self.lock_figures() = link.figures();
                sent
            }),
            Err(_) => Err(Trouble::Lost),
        };
        let mut state = self.lock();
        state.is_sending = false;
        if state.queue.is_empty() {
            self.idle.set();
        }
        drop(state);
        let is_done = sent.is_ok();
        // The fate comes first: whoever waits for the slot looks for it then.
        if let Err(trouble) = sent
            && !shared.is_stopping()
        {
            let (peer, round) = (shared.next_rank(), leaving.frame.round);
            let error = shared.trouble(trouble, peer, Phase::Sending, round);
            shared.fate.set(error);
        }
        self.finish(index, is_done);
    }

    fn finish(&self, index: usize, is_done: bool) {
        let step = if is_done { Step::Done } else { Step::Ended };
        self.slots[index].finish(step);
        // Behind it, so that whom the descriptor wakes finds it done.
        self.completions.add();
    }

    fn release(&self, state: &mut State, index: usize) -> Option<(u64, u32)> {
        let job = state.jobs.get_mut(index)?.take();
        self.slots[index].enter(Step::Free);
        self.completions.take();
        job.map(|job| (job.frame.round, job.frame.count))
    }

    fn end_waiting(&self, state: &mut State) {
        while let Some(index) = state.queue.pop_front() {
            self.finish(index, false);
        }
        self.idle.set();
    }

    fn free(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.step() == Step::Free)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_figures(&self) -> MutexGuard<'_, LinkFigures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a wait of the thread when the process lets go of the ring.
struct Stopping<'a>(&'a Shared);

impl Interrupt for Stopping<'_> {
    fn is_pending(&self) -> bool {
        self.0.is_stopping()
    }
}
