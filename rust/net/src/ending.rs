//! How a ring ends: in order by bye, or by the first failure, which every call then reports.
//!
//! The other ranks are told by the control thread; this file waits until they have been.

use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::PollFd;
use stagelink_proto::Refusal;
use stagelink_proto::fate::Fate as FateMessage;
use stagelink_proto::figures::Figures;
use stagelink_proto::frame::Kind;
use stagelink_proto::limits;
use stagelink_proto::progress::Phase;

use crate::boot::own_fault;
use crate::boundary::Trouble;
use crate::control::Shared;
use crate::deadline::Deadline;
use crate::error::{Kind as ErrorKind, LinkError};
use crate::ring::{Ring, misuse};
use crate::socket::{READ, poll};
use crate::telling::{broken, from_message};

/// How long a call that reports the fate waits for the other ranks to be told, before its process
/// may end.
const TOLD_LIMIT: Duration = Duration::from_millis(400);

impl Ring {
    /// End the ring for every rank, this rank being to blame; returns when they have been told.
    pub fn fail(&self, refusal: Refusal, text: &str) {
        self.shared.fail(refusal, text);
    }

    /// Errors: the ring's fate, once there is one; for who makes no other call for a while.
    pub fn check(&self) -> Result<(), LinkError> {
        self.shared.fate.check().map_err(|error| self.told(error))
    }

    /// Follower, after rank 0's bye and before `close`: say what this rank's loop came to.
    ///
    /// Errors: `LocalProtocol` at another time, or the ring's fate where that is why there was no
    /// bye, nothing having been sent.
    pub fn tell_figures(&self, figures: &Figures) -> Result<(), LinkError> {
        self.check_process()?;
        if self.rank() == 0 || !self.shared.plans.is_ended() {
            self.shared.fate.check().map_err(|error| self.told(error))?;
            return Err(misuse(
                "figures are told by a follower, once rank 0 has said bye",
            ));
        }
        // A lead that is gone or has failed after its bye needs no figures, and this rank is done.
        let _ = self
            .shared
            .star()
            .send_all(Kind::Figures, None, &figures.encode());
        Ok(())
    }

    /// Rank 0, after `close`: what followers' loops came to, of those that said so, by rank.
    #[must_use]
    pub fn told_figures(&self) -> Vec<Figures> {
        let mut all = self.shared.star().figures.clone();
        all.sort_by_key(|one| one.rank);
        all
    }

    /// Orderly end: rank 0 says bye to all, a follower answers; nothing after a failure or twice.
    pub fn close(&self) {
        let deadline = Deadline::after(limits::BYE_WAIT);
        let is_follower = self.rank() != 0;
        if std::process::id() != self.process || self.lock_control().is_none() {
            return;
        }
        if is_follower && !self.shared.plans.is_ended() && self.shared.fate.cause().is_none() {
            self.fail(Refusal::Interrupted, "left the ring before rank 0's bye");
        }
        if self.shared.fate.cause().is_none() {
            self.say_bye();
            while !self.is_quiet(is_follower) && !deadline.is_over() {
                let mut fds = [
                    PollFd::new(&self.shared.news, READ),
                    PollFd::new(&self.shared.fate, READ),
                ];
                let _ = poll(&mut fds, deadline.slice());
                self.shared.news.clear();
                if self.shared.fate.cause().is_some() {
                    break;
                }
            }
        }
        self.end_control();
        for link in &self.shared.star().links {
            link.connection.socket.finish();
        }
    }

    fn say_bye(&self) {
        if let Ok(mut link) = self.shared.outgoing.try_lock()
            && let Some(link) = link.as_mut()
        {
            link.say(Kind::Bye, &[]);
        }
        let mut star = self.shared.star();
        // A follower that is gone already needs no bye.
        let _ = star.send_all(Kind::Bye, None, &[]);
        star.is_closing = true;
        drop(star);
        self.shared.kick.set();
    }

    fn is_quiet(&self, is_follower: bool) -> bool {
        let star = self.shared.star();
        if is_follower {
            !star.has_unsent()
        } else {
            star.is_quiet()
        }
    }

    fn end_control(&self) {
        let thread = self.lock_control().take();
        self.shared.stop();
        if let Some(thread) = thread {
            // It holds no lock and waits for nobody, so it ends within its poll's slice.
            let _ = thread.join();
        }
        self.end_bulk();
    }

    fn lock_control(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn trouble(
        &self,
        trouble: Trouble,
        peer: u32,
        phase: Phase,
        round: u64,
    ) -> LinkError {
        self.shared.trouble(trouble, peer, phase, round)
    }

    pub(crate) fn condemn(&self, error: LinkError) -> LinkError {
        self.shared.condemn_with(error)
    }

    /// A control link that takes no frame has mostly just heard the fate that ends it: the control
    /// thread keeps that in a moment, and it is the cause. The caller holds no lock of the links.
    pub(crate) fn unsent(&self, suspicion: LinkError) -> LinkError {
        let patience = Deadline::after(limits::FATE_WAIT);
        self.told(self.shared.fate.settle(suspicion, patience))
    }

    pub(crate) fn ended(&self, error: LinkError) -> LinkError {
        self.shared.ended(error)
    }

    pub(crate) fn told(&self, error: LinkError) -> LinkError {
        self.shared.told(error)
    }
}

impl Shared {
    /// End the ring for every rank, this rank being to blame; returns when they have been told.
    pub(crate) fn fail(&self, refusal: Refusal, text: &str) {
        let name = self.name(self.rank);
        let kind = crate::error::kind_of(refusal);
        let error = LinkError::new(kind, refusal, format!("{name}: {text}")).by(self.rank);
        self.fate.set(error);
        self.fate.wait_told(Deadline::after(TOLD_LIMIT));
    }

    pub(crate) fn trouble(
        &self,
        trouble: Trouble,
        peer: u32,
        phase: Phase,
        round: u64,
    ) -> LinkError {
        let what = crate::activity::describe(phase, round);
        let operation = if phase == Phase::Sending {
            "send rows"
        } else {
            "receive rows"
        };
        let name = self.name(peer);
        let patience = Deadline::after(limits::FATE_WAIT);
        let error = match trouble {
            Trouble::Ended(error) => return self.ended(error),
            Trouble::Torn(error) if error.kind == ErrorKind::Interrupted => {
                self.fail(Refusal::Interrupted, &format!("interrupted while {what}"));
                return error;
            }
            Trouble::Torn(error) => return self.told(error),
            Trouble::Own(error) => return own_fault(&error).during(operation),
            Trouble::Fate(payload) => match FateMessage::parse(&payload, self.world) {
                Ok(fate) => from_message(&fate),
                Err(error) => broken(&name, peer, &error, &format!("while {what}")),
            },
            Trouble::Broken(error) => broken(&name, peer, &error, &format!("while {what}")),
            Trouble::Late(seconds) => {
                let text =
                    format!("{name}: stopped inside a frame for {seconds:.1} s while {what}");
                LinkError::new(ErrorKind::Deadline, Refusal::Deadline, text)
                    .by(peer)
                    .after_seconds(seconds)
            }
            Trouble::Bye | Trouble::Lost => {
                let how = if matches!(trouble, Trouble::Bye) {
                    "said bye"
                } else {
                    "connection lost"
                };
                let text = format!("{name}: {how} while {what}");
                let error = LinkError::new(ErrorKind::PeerLost, Refusal::PeerLost, text).by(peer);
                // Its control link tells the lead more than its boundary link tells us.
                let settled = self.fate.settle(error.during(operation), patience);
                return self.told(settled);
            }
        };
        self.condemn_with(error.during(operation))
    }

    /// Make `error` the ring's fate unless there is one, and return the one there is.
    pub(crate) fn condemn_with(&self, error: LinkError) -> LinkError {
        let first = self.fate.set(error).clone();
        self.told(first)
    }

    /// A wait that ended: for the fate, or for a signal.
    pub(crate) fn ended(&self, error: LinkError) -> LinkError {
        if error.kind == ErrorKind::Interrupted {
            error
        } else {
            self.told(error)
        }
    }

    /// The other ranks are told before the caller learns of the fate and maybe exits.
    pub(crate) fn told(&self, error: LinkError) -> LinkError {
        self.fate.wait_told(Deadline::after(TOLD_LIMIT));
        error
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A forked child has the descriptors but neither the thread nor the right to end the links.
        if std::process::id() == self.process {
            self.end_control();
        }
    }
}
