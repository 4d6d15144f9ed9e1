//! The receiving side of the bulk lane: posted buffers, and the thread that fills them.
//!
//! What a frame's bytes must be is judged by `incoming`; the caller's side is `posted`.

mod withdrawn;

use std::collections::VecDeque;
use std::os::fd::AsFd;

use rustix::event::PollFd;
use stagelink_proto::Refusal;
use stagelink_proto::error::ProtocolError;
use stagelink_proto::limits;
use stagelink_proto::plan::Plan;
use stagelink_proto::progress::Phase;
use stagelink_proto::rows::{Boundary, ExpectedRows, RowsFormat};

use crate::boundary::Trouble;
use crate::connection::LinkFigures;
use crate::control::Shared;
use crate::deadline::SLICE;
use crate::incoming::Incoming;
use crate::lent::LentMut;
use crate::plans::PLANS_QUEUED_MAX;
use crate::slots::{Completions, Slot, Step};
use crate::socket::{READ, poll};
use crate::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering, PoisonError};
use crate::wait::{Strategy, Wait};
use crate::wake::Wake;
use withdrawn::Withdrawn;

/// Frames that plans have announced and that have not come: those of plans that wait to be begun,
/// and those of rounds in flight.
const DUE_MAX: usize = PLANS_QUEUED_MAX + limits::ROUNDS_IN_FLIGHT_MAX as usize;

/// The receiving side of the bulk lane.
#[derive(Debug)]
pub(crate) struct BulkIn {
    /// Held by whoever receives: the background thread, or a caller while nothing is posted.
    pub(crate) link: Mutex<Option<Incoming>>,
    pub(crate) slots: Vec<Slot>,
    state: Mutex<State>,
    /// Gets the background thread to look: a buffer, a frame, a cancelled slot, the end.
    nudge: Wake,
    /// Credits that the previous rank is still to be told of.
    pub(crate) untold: Arc<AtomicU32>,
    pub(crate) completions: Arc<Completions>,
    figures: Mutex<LinkFigures>,
    format: RowsFormat,
    boundary: Boundary,
    /// What a posted buffer must hold: it is a credit for any frame.
    bytes_min: usize,
}

/// A buffer that was handed over.
#[derive(Debug)]
struct Handed {
    rows: Option<LentMut<'static>>,
    /// The round and the rows that came, once done.
    result: (u64, u32),
}

#[derive(Debug)]
struct State {
    handed: Vec<Handed>,
    /// Slots whose buffers wait to be filled, first one first.
    posted: VecDeque<usize>,
    /// Bulk frames that plans have announced, in the order of their rounds.
    due: VecDeque<ExpectedRows>,
    /// The slot that is being filled.
    filling: Option<usize>,
    /// Credits that were given for buffers which were withdrawn; the next buffers take them over.
    hollow: u32,
    is_ended: bool,
}

impl BulkIn {
    pub(crate) fn new(
        buffers: u16,
        format: RowsFormat,
        boundary: Boundary,
        rows_max: u32,
        completions: Arc<Completions>,
    ) -> std::io::Result<Self> {
        let places = usize::from(buffers);
        let taps = format.draft_width > 0;
        let slots: std::io::Result<Vec<Slot>> = (0..places).map(|_| Slot::new()).collect();
        let handed = (0..places).map(|_| Handed {
            rows: None,
            result: (0, 0),
        });
        Ok(Self {
            link: Mutex::new(None),
            slots: slots?,
            state: Mutex::new(State {
                handed: handed.collect(),
                posted: VecDeque::with_capacity(places),
                due: VecDeque::with_capacity(DUE_MAX),
                filling: None,
                hollow: 0,
                is_ended: false,
            }),
            nudge: Wake::new()?,
            untold: Arc::new(AtomicU32::new(0)),
            completions,
            figures: Mutex::new(LinkFigures::default()),
            format,
            boundary,
            bytes_min: usize::try_from(format.payload_bytes(rows_max, taps)).unwrap_or(usize::MAX),
        })
    }

    /// A plan announces its rows, where they come on this lane. Errors: more than are ever due.
    pub(crate) fn announce(&self, round: u64, plan: &Plan) -> Result<(), ProtocolError> {
        // A plan that no frame can carry is refused where it is admitted.
        let frame = ExpectedRows::of_plan(round, plan, self.boundary, &self.format);
        match frame.ok().flatten().filter(ExpectedRows::is_bulk) {
            Some(frame) => self.expect(frame),
            None => Ok(()),
        }
    }

    /// A frame is to come.
    pub(crate) fn expect(&self, frame: ExpectedRows) -> Result<(), ProtocolError> {
        let mut state = self.lock();
        if state.due.len() == DUE_MAX {
            return Err(Refusal::TooManyRounds.error("expected fewer rounds ahead"));
        }
        state.due.push_back(frame);
        if !state.posted.is_empty() {
            self.nudge.set();
        }
        Ok(())
    }

    /// Frames that are still to come.
    pub(crate) fn due(&self) -> usize {
        self.lock().due.len()
    }

    /// Take a buffer; its slot's number and turn. `Err` says why not.
    pub(crate) fn post(&self, rows: LentMut<'static>) -> Result<(usize, u64), String> {
        if rows.len() < self.bytes_min {
            return Err(format!(
                "the buffer has {} bytes, but a posted one is for any round and needs {}",
                rows.len(),
                self.bytes_min
            ));
        }
        let mut state = self.lock();
        let free = self.slots.iter().position(|slot| slot.step() == Step::Free);
        let Some(index) = free else {
            return Err(format!(
                "all {} buffers are posted; wait for one",
                self.slots.len()
            ));
        };
        if let Some(handed) = state.handed.get_mut(index) {
            handed.rows = Some(rows);
        }
        let turn = self.slots[index].begin();
        state.posted.push_back(index);
        if state.hollow > 0 {
            state.hollow -= 1;
        } else {
            self.untold.fetch_add(1, Ordering::AcqRel);
        }
        if state.is_ended {
            self.end_waiting(&mut state);
        }
        drop(state);
        self.nudge.set();
        Ok((index, turn))
    }

    /// What came into a slot, where the transfer of `turn` is done; the slot is free then.
    pub(crate) fn collect(&self, index: usize, turn: u64) -> Option<(u64, u32)> {
        let mut state = self.lock();
        if self.slots[index].step_of(turn) != Step::Done {
            return None;
        }
        let result = state.handed.get(index).map(|it| it.result);
        self.release(&mut state, index);
        result
    }

    /// Take a slot's memory back; returns when the thread has left it.
    pub(crate) fn withdraw(&self, index: usize, turn: u64) {
        let slot = &self.slots[index];
        loop {
            let mut state = self.lock();
            match slot.step_of(turn) {
                Step::Free => return,
                Step::Waiting => {
                    state.posted.retain(|it| *it != index);
                    // Its credit is given; the next buffer that is posted makes it good.
                    state.hollow += 1;
                    if let Some(handed) = state.handed.get_mut(index) {
                        handed.rows = None;
                    }
                    slot.enter(Step::Free);
                    return;
                }
                Step::Done | Step::Ended => return self.release(&mut state, index),
                Step::Moving => slot.cancel(),
            }
            drop(state);
            self.nudge.set();
            // The thread leaves its socket at the nudge; there is no limit, since the memory is
            // the caller's to free once this returns.
            let _ = poll(&mut [PollFd::new(slot, READ)], SLICE);
        }
    }

    /// Begin to receive `round` without a posted buffer; `Err` says why not.
    pub(crate) fn begin_inline(&self, round: u64) -> Result<ExpectedRows, String> {
        let state = self.lock();
        if !state.posted.is_empty() || state.filling.is_some() {
            return Err(format!("rows of round {round} come into a posted buffer"));
        }
        let due = state.due.front().copied();
        due.filter(|frame| frame.round == round).ok_or_else(|| {
            due.map_or_else(
                || format!("rows of round {round} are not due"),
                |due| {
                    format!(
                        "rows of round {round} are not due, those of {} are",
                        due.round
                    )
                },
            )
        })
    }

    /// The caller's own buffer is a credit, unless one was given already and not used.
    pub(crate) fn grant_inline(&self) {
        let mut state = self.lock();
        if state.hollow > 0 {
            state.hollow -= 1;
        } else {
            self.untold.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Whether rows of `round` are still to come on this lane.
    pub(crate) fn is_due(&self, round: u64) -> bool {
        self.lock().due.iter().any(|frame| frame.round == round)
    }

    /// The round of the frame that comes next; 0 where none is due.
    pub(crate) fn next_round(&self) -> u64 {
        self.lock().due.front().map_or(0, |frame| frame.round)
    }

    /// The caller has received the oldest frame itself, or has not used its credit.
    pub(crate) fn end_inline(&self, is_received: bool, figures: LinkFigures) {
        let mut state = self.lock();
        if is_received {
            state.due.pop_front();
        } else {
            state.hollow += 1;
        }
        drop(state);
        *self.lock_figures() = figures;
    }

    /// Counters as of the last frame.
    pub(crate) fn figures(&self) -> LinkFigures {
        *self.lock_figures()
    }

    pub(crate) fn wake(&self) {
        self.nudge.set();
    }

    /// The background thread: credits out, frames in, until the fate or the end.
    pub(crate) fn run(&self, shared: &Shared) {
        while shared.fate.cause().is_none() && !shared.is_stopping() {
            self.tell_credits();
            if let Some((index, frame, rows)) = self.begin() {
                self.receive(shared, index, frame, rows);
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

    fn tell_credits(&self) {
        if self.untold.load(Ordering::Acquire) > 0
            && let Ok(mut link) = self.link.lock()
            && let Some(link) = link.as_mut()
        {
            // A previous rank that is gone is noticed where rows are expected of it.
            let _ = link.tell_posted();
        }
    }

    fn begin(&self) -> Option<(usize, ExpectedRows, LentMut<'static>)> {
        let mut state = self.lock();
        let frame = *state.due.front()?;
        let index = *state.posted.front()?;
        let rows = state.handed.get_mut(index)?.rows.take()?;
        state.posted.pop_front();
        state.filling = Some(index);
        self.slots[index].enter(Step::Moving);
        Some((index, frame, rows))
    }

    fn receive(
        &self,
        shared: &Shared,
        index: usize,
        frame: ExpectedRows,
        mut rows: LentMut<'static>,
    ) {
        let slot = &self.slots[index];
        let interrupt = Withdrawn { slot, shared };
        let mut wait = Wait::new(&shared.fate, &interrupt, Strategy::Block).nudged_by(&self.nudge);
        let received = match self.link.lock() {
            Ok(mut link) => link.as_mut().map_or(Err(Trouble::Lost), |link| {
                let received = link.receive(frame, &mut rows, &mut wait);
                *self.lock_figures() = link.figures();
                received
            }),
            Err(_) => Err(Trouble::Lost),
        };
        let mut state = self.lock();
        state.filling = None;
        if received.is_ok() {
            state.due.pop_front();
            if let Some(handed) = state.handed.get_mut(index) {
                handed.result = (frame.round, frame.count);
            }
        } else {
            state.hollow += 1;
        }
        drop(state);
        let is_done = received.is_ok();
        let is_torn = matches!(received, Err(Trouble::Torn(_))) && slot.is_cancelled();
        match received {
            // Where nothing of the frame has come, the next buffer takes it.
            Ok(()) | Err(Trouble::Ended(_)) => {}
            Err(_) if is_torn || shared.is_stopping() => {}
            // The fate comes first: whoever waits for the slot looks for it then.
            Err(trouble) => {
                let (peer, round) = (shared.previous_rank(), frame.round);
                let error = shared.trouble(trouble, peer, Phase::Receiving, round);
                shared.fate.set(error);
            }
        }
        self.finish(slot, is_done);
        if is_torn && shared.fate.cause().is_none() {
            let round = frame.round;
            let text = format!("the buffer of round {round} was taken back while it was filled");
            shared.fail(Refusal::Local, &text);
        }
    }

    fn finish(&self, slot: &Slot, is_done: bool) {
        slot.finish(if is_done { Step::Done } else { Step::Ended });
        // Behind it, so that whom the descriptor wakes finds it done.
        self.completions.add();
    }

    fn end_waiting(&self, state: &mut State) {
        while let Some(index) = state.posted.pop_front() {
            if let Some(handed) = state.handed.get_mut(index) {
                handed.rows = None;
            }
            self.finish(&self.slots[index], false);
        }
    }

    fn release(&self, state: &mut State, index: usize) {
        if let Some(handed) = state.handed.get_mut(index) {
            handed.rows = None;
        }
        self.slots[index].enter(Step::Free);
        self.completions.take();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_figures(&self) -> MutexGuard<'_, LinkFigures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
