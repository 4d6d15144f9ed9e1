//! From a complete ring to one that runs: readies to rank 0, open to all; and every progress note.
//!
//! Loading itself is the engine's.

use std::os::fd::AsFd as _;
use std::time::Duration;

use stagelink_proto::Refusal;
use stagelink_proto::frame::Kind;
use stagelink_proto::open::Open;
use stagelink_proto::progress::Phase;
use stagelink_proto::ready::Ready;

use crate::boot::own_fault;
use crate::control_link::ControlLink;
use crate::deadline::Deadline;
use crate::error::{Kind as ErrorKind, LinkError};
use crate::ring::Ring;
use crate::socket::READ;
use crate::wait::{Interrupt, Strategy, Wait};

impl Ring {
    /// Tell that this stage is loaded; returns when the ring is open.
    ///
    /// Errors: the ring's fate; `deadline`, which is then the ring's fate.
    pub fn ready(
        &self,
        ready: Ready,
        limit: Duration,
        interrupt: &dyn Interrupt,
    ) -> Result<(), LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        self.progress(Phase::Idle, 0, Duration::ZERO, 0);
        if self.rank() != 0 {
            let mut star = self.shared.star();
            let sent = star.send_all(Kind::Ready, None, &ready.encode());
            drop(star);
            sent.map_err(|(_, error)| self.unsent(own_fault(&error)))?;
        }
        let deadline = Deadline::after(limit);
        loop {
            if self.advance_open()? {
                return Ok(());
            }
            let mut wait = Wait::new(&self.shared.fate, interrupt, Strategy::Block);
            let news = wait.until(self.shared.news.as_fd(), READ, Some(deadline));
            self.shared.news.clear();
            if !news.map_err(|error| self.ended(error))? && !self.advance_open()? {
                return Err(self.condemn(self.not_opened(deadline)));
            }
        }
    }

    /// Note what the engine does; every call moves the counter that keep-alives carry.
    pub fn progress(&self, phase: Phase, round: u64, busy_limit: Duration, done: u64) {
        if self.shared.activity.enter(phase, round, busy_limit, done) {
            let now = self.shared.clock.now();
            // A link that takes nothing is judged by the control thread.
            let _ = self.shared.star().send_sign_of_life(&self.shared, now);
        }
    }

    /// Open the ring where all are ready; true once it is open.
    fn advance_open(&self) -> Result<bool, LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))?;
        let mut star = self.shared.star();
        if star.open.is_some() {
            return Ok(true);
        }
        if self.rank() != 0 || star.readies.len() < self.world() as usize - 1 {
            return Ok(false);
        }
        let millis = u32::try_from(self.terms.keepalive.as_millis()).unwrap_or(u32::MAX);
        let open = Open::new(1, millis, self.terms.silent_intervals);
        let open = open.map_err(|error| own_fault(&error))?;
        let sent = star.send_all(Kind::Open, None, &open.encode());
        if let Err((_, error)) = sent {
            drop(star);
            return Err(self.unsent(own_fault(&error)));
        }
        for link in &mut star.links {
            link.opened(open.first_round());
        }
        star.next_round = open.first_round();
        star.set_timers(open);
        Ok(true)
    }

    fn not_opened(&self, deadline: Deadline) -> LinkError {
        let seconds = deadline.seconds();
        let star = self.shared.star();
        let late = (1..self.world())
            .find(|rank| star.readies.iter().all(|ready| ready.rank != *rank))
            .filter(|_| self.rank() == 0)
            .unwrap_or(0);
        let seen = star
            .links
            .iter()
            .find(|link| link.rank == late)
            .map(ControlLink::last_seen);
        drop(star);
        let name = self.shared.name(late);
        let what = if late == 0 {
            "did not open the ring"
        } else {
            "was not ready"
        };
        let seen = seen
            .map(|seen| format!("; last seen {seen}"))
            .unwrap_or_default();
        let text = format!("{name} {what} within {seconds} s{seen}");
        LinkError::new(ErrorKind::Deadline, Refusal::Deadline, text)
            .by(late)
            .after_seconds(seconds)
            .during("ready")
    }
}
