//! What a simulated rank does by itself: load, compute, send, keep alive, watch the others.
//! The clock is the caller's.

use std::time::Duration;

use stagelink_proto::frame::Kind;
use stagelink_proto::keepalive::Hearing;
use stagelink_proto::plan::Plan;
use stagelink_proto::progress::{Phase, Progress};
use stagelink_proto::{ProtocolError, Refusal};

use super::Node;
use crate::link_end::LinkEnd;
use crate::mutant::Mutant;
use crate::ring::Sim;

impl Node {
    /// When this rank must be looked at next, whatever arrives.
    pub(crate) fn wake_at(&self, now: Duration) -> Option<Duration> {
        if self.is_over {
            return None;
        }
        if self.fate_at.is_some() {
            return self.telling_until;
        }
        let suspicion = self.suspicion.as_ref().map(|(at, _)| *at);
        if self.bye_due.is_some() {
            return [self.bye_due, suspicion].into_iter().flatten().min();
        }
        let forward = self.forward.as_ref().map(|forward| forward.done_at);
        let work = self.work.as_ref().and_then(|work| work.wake_at(now));
        let lates = self.links.values().filter_map(LinkEnd::late_at);
        let stall = self.own_watch.stalled_at();
        let silent = self.hearing.values().map(Hearing::silent_at);
        let own = [
            Some(self.keep_alive.due_at()),
            forward,
            work,
            suspicion,
            self.boot_wake_at(),
        ];
        let all = own
            .into_iter()
            .flatten()
            .chain(lates)
            .chain(stall)
            .chain(silent);
        all.filter(|&at| at > now).min()
    }

    /// What this rank does by itself. Errors name a rank.
    pub(super) fn act(&mut self, sim: &mut Sim) -> Result<(), (Option<u32>, ProtocolError)> {
        let own = Some(self.rank);
        if self.is_failing {
            return Err((own, Refusal::Engine.error("the engine raised")));
        }
        self.load(sim).map_err(|error| (own, error))?;
        if self.is_open && self.rank == 0 {
            self.lead(sim).map_err(|error| (own, error))?;
        }
        self.end_forward(sim);
        self.begin_forward(sim);
        self.send_rows(sim).map_err(|error| (own, error))?;
        self.begin_forward(sim);
        self.break_credit(sim).map_err(|error| (own, error))?;
        self.keep_alive(sim).map_err(|error| (own, error))?;
        let progress = self.progress();
        self.own_watch
            .report(&progress, sim.now)
            .map_err(|error| (own, error))?;
        self.watch(sim)
    }

    fn progress(&self) -> Progress {
        let is_computing = self.phase == Phase::Computing;
        Progress {
            rank: self.rank,
            phase: self.phase,
            round: 0,
            counter: self.counter,
            busy_limit_ms: if is_computing {
                self.manner.busy_limit_ms
            } else {
                0
            },
            done: 0,
        }
    }

    fn watch(&self, sim: &Sim) -> Result<(), (Option<u32>, ProtocolError)> {
        for (&peer, hearing) in &self.hearing {
            if !sim.is(Mutant::IgnoresSilence) {
                hearing
                    .check(sim.now)
                    .map_err(|error| (Some(peer), error))?;
            }
        }
        if self.rank == 0 && !sim.is(Mutant::IgnoresStalls) {
            // Of the lead nobody else hears whether its engine gets on. A mark that is passed by a
            // moment counts as well as one that is reached.
            let at = sim.now + Duration::from_micros(1);
            self.own_watch.check(at).map_err(|error| (Some(0), error))?;
        }
        let since = self
            .forward_since()
            .filter(|_| sim.is(Mutant::TakesSlowForDead));
        if since.is_some_and(|since| sim.now > since + self.timers.silence_limit()) {
            return Err((
                Some(self.rank),
                Refusal::Silent.error("it computes for too long"),
            ));
        }
        Ok(())
    }

    fn keep_alive(&mut self, sim: &mut Sim) -> Result<(), ProtocolError> {
        let is_hushed = self.forward.is_some() && sim.is(Mutant::HushesWhileComputing);
        if !self.keep_alive.is_due(sim.now) || is_hushed {
            return Ok(());
        }
        self.keep_alive.sent(sim.now);
        let progress = self.progress();
        if self.rank == 0 && self.is_open {
            self.send_plan(&Plan::keep_alive(), sim).map(|_| ())
        } else if self.rank == 0 {
            self.send_to_followers(sim, (Kind::Progress, None, 0), &progress.encode())
        } else {
            self.send_to_lead(sim, Kind::Progress, &progress.encode())
        }
    }
}
