//! What a simulated rank does by itself: load, compute, send, keep alive, watch the others.
//! The clock is the caller's.

use std::time::Duration;

use stagelink_proto::{
    ProtocolError,
    frame::Kind,
    keepalive::{Hearing, Watch},
    open::Open,
    plan::Plan,
    progress::{Phase, Progress},
    ready::Ready,
};

use super::{FIRST_ROUND, RING_IN, Rank};
use crate::pipe::Wire;

impl Rank {
    /// When this rank must be looked at next, whatever arrives.
    pub(crate) fn wake_at(&self) -> Duration {
        let hearing = self.hearing.values().map(Hearing::silent_at);
        let watches = self.watches.values().filter_map(Watch::stalled_at);
        let jobs = self.jobs.front().map(|job| job.done_at);
        let load = (!self.ready).then_some(self.manner.load);
        let report = self.report.as_ref().map(|(at, _)| *at);
        if let Some(at) = self.bye_due {
            return self
                .report
                .as_ref()
                .map_or(at, |(report, _)| at.min(*report));
        }
        let own = [Some(self.keep_alive.due_at()), jobs, load, report];
        own.into_iter()
            .flatten()
            .chain(hearing)
            .chain(watches)
            .min()
            .unwrap()
    }

    /// What this rank does by itself: load, compute, send, keep alive, watch. Errors name a rank.
    pub(super) fn act(
        &mut self,
        wire: &mut Wire,
        now: Duration,
    ) -> Result<(), (Option<u32>, ProtocolError)> {
        let own = Some(self.rank);
        self.load(wire, now).map_err(|error| (own, error))?;
        if self.opened && self.rank == 0 {
            self.lead(wire, now).map_err(|error| (own, error))?;
        }
        self.compute(now);
        self.send_rows(wire, now).map_err(|error| (own, error))?;
        if self.keep_alive.is_due(now) {
            self.send_keep_alive(wire, now)
                .map_err(|error| (own, error))?;
        }
        for (&peer, hearing) in &self.hearing {
            hearing.check(now).map_err(|error| (Some(peer), error))?;
        }
        for (&peer, watch) in &self.watches {
            watch.check(now).map_err(|error| (Some(peer), error))?;
        }
        Ok(())
    }

    pub(super) fn load(&mut self, wire: &mut Wire, now: Duration) -> Result<(), ProtocolError> {
        if !self.ready && now >= self.manner.load && self.links.contains_key(&RING_IN) {
            self.ready = true;
            self.phase = Phase::Idle;
            let ready = Ready {
                rank: self.rank,
                load_ms: 1,
                tensor_bytes_held: 2,
                tensor_bytes_read: 3,
            };
            match &mut self.boot {
                Some(boot) => boot.ready(ready)?,
                None => self.send_to_lead(wire, now, Kind::Ready, &ready.encode())?,
            }
        }
        let all_ready = self
            .boot
            .as_ref()
            .is_some_and(|boot| boot.unready().next().is_none());
        if all_ready && !self.opened {
            let open = Open::new(FIRST_ROUND, 2_000, 3)?;
            self.send_to_followers(wire, now, (Kind::Open, None, 0), &open.encode())?;
            self.open(&open, now);
        }
        Ok(())
    }

    pub(super) fn send_keep_alive(
        &mut self,
        wire: &mut Wire,
        now: Duration,
    ) -> Result<(), ProtocolError> {
        self.keep_alive.sent(now);
        if self.rank == 0 && self.opened {
            let round = self.next_round;
            self.next_round += 1;
            let mut payload = Vec::new();
            Plan::keep_alive().encode(&mut payload);
            return self.send_to_followers(wire, now, (Kind::Plan, Some(round), 0), &payload);
        }
        let progress = Progress {
            rank: self.rank,
            phase: self.phase,
            round: 0,
            counter: self.counter,
            busy_limit_ms: if self.phase == Phase::Computing {
                self.manner.busy_limit_ms
            } else {
                0
            },
            done: 0,
        };
        if self.rank == 0 {
            self.send_to_followers(wire, now, (Kind::Progress, None, 0), &progress.encode())
        } else {
            self.send_to_lead(wire, now, Kind::Progress, &progress.encode())
        }
    }
}
