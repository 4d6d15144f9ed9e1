//! The plans that a follower has heard and not begun: a bounded queue with a descriptor to wait on.
//!
//! Order is the control link's; nothing is checked here but the bound.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stagelink_proto::plan::Plan;

use crate::wake::Wake;

/// Most plans with streams that wait to be begun.
pub(crate) const PLANS_QUEUED_MAX: usize = 64;

/// A round and its plan.
pub(crate) type Announced = (u64, Plan);

/// The queue; one thread pushes and one takes.
#[derive(Debug)]
pub(crate) struct PlanQueue {
    inside: Mutex<Inside>,
    wake: Wake,
}

#[derive(Debug)]
struct Inside {
    waiting: VecDeque<Announced>,
    /// Plans that were taken out of their boxes, for the memory of further ones.
    spares: Vec<Plan>,
    is_ended: bool,
}

/// What a look into the queue found.
pub(crate) enum Taken {
    Plan(Announced),
    Nothing,
    Ended,
}

impl PlanQueue {
    pub(crate) fn new() -> std::io::Result<Self> {
        let waiting = VecDeque::with_capacity(PLANS_QUEUED_MAX);
        Ok(Self {
            inside: Mutex::new(Inside {
                waiting,
                spares: Vec::with_capacity(PLANS_QUEUED_MAX),
                is_ended: false,
            }),
            wake: Wake::new()?,
        })
    }

    /// Add a plan; false when the queue is full.
    pub(crate) fn push(&self, plan: Announced) -> bool {
        let mut inside = self.lock();
        if inside.waiting.len() == PLANS_QUEUED_MAX {
            return false;
        }
        inside.waiting.push_back(plan);
        drop(inside);
        self.wake.set();
        true
    }

    /// A plan was begun, and its memory may be used again.
    pub(crate) fn give_back(&self, plan: Plan) {
        let mut inside = self.lock();
        if inside.spares.len() < PLANS_QUEUED_MAX {
            inside.spares.push(plan);
        }
    }

    /// Move what was given back into `spares`.
    pub(crate) fn hand_back(&self, spares: &mut Vec<Plan>) {
        spares.append(&mut self.lock().spares);
    }

    /// No plan will follow those that wait.
    pub(crate) fn end(&self) {
        self.lock().is_ended = true;
        self.wake.set();
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.lock().is_ended
    }

    pub(crate) fn take(&self) -> Taken {
        let mut inside = self.lock();
        match inside.waiting.pop_front() {
            Some(plan) => Taken::Plan(plan),
            None if inside.is_ended => Taken::Ended,
            None => {
                // Cleared under the lock, so that no later push is lost.
                self.wake.clear();
                Taken::Nothing
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        // Nothing panics while it holds this lock.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for PlanQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
