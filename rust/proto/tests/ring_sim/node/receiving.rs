//! What a simulated rank does with what arrives: headers that wait, frames, plans, the open.
//! Which bytes are a frame its link's end decides.

use stagelink_proto::frame::{Header, Kind};
use stagelink_proto::keepalive::{Hearing, KeepAlive, Timers};
use stagelink_proto::message::{Message, Surroundings};
use stagelink_proto::open::Open;
use stagelink_proto::plan::Plan;
use stagelink_proto::progress::{Phase, Progress};
use stagelink_proto::rows::{Boundary, ExpectedRows};
use stagelink_proto::{ProtocolError, Refusal};

use super::{Node, RING_IN};
use crate::link_end::Arrival;
use crate::mutant::Mutant;
use crate::ring::Sim;

impl Node {
    /// Reads one thing from one link; false where there is nothing more.
    pub(super) fn receive(&mut self, key: u32, sim: &mut Sim) -> bool {
        let Some(link) = self.links.get_mut(&key) else {
            return false;
        };
        let peer = link.peer;
        let mut payload = std::mem::take(&mut link.payload);
        let memory = match self.filling.filter(|_| key == RING_IN) {
            Some(buffer) => &mut self.memory[buffer].bytes,
            None => &mut payload,
        };
        let arrival = link.receive(sim, memory);
        link.payload = payload;
        let handled = match arrival {
            Ok(Arrival::Nothing) => match link.header {
                Some(header) => self.header(key, &header, sim),
                None => return false,
            },
            Ok(Arrival::Header(header)) => self.header(key, &header, sim),
            Ok(Arrival::Frame(header)) => {
                if let Some(hearing) = self.hearing.get_mut(&key) {
                    hearing.heard(sim.now);
                }
                self.frame(key, &header, sim).map(|()| true)
            }
            Ok(Arrival::Lost) => {
                self.lost(key, peer, sim);
                return false;
            }
            Err(error) => Err(error),
        };
        handled.unwrap_or_else(|error| {
            let culprit = error.rank.unwrap_or(peer);
            self.fail(sim, error.refusal, Some(culprit), &error.to_string());
            false
        })
    }

    /// Rows wait until their plan is here; every other header is taken at once.
    fn header(&mut self, key: u32, header: &Header, sim: &mut Sim) -> Result<bool, ProtocolError> {
        if header.kind == Kind::Rows {
            if self.awaited.is_empty() {
                return Ok(false);
            }
            self.buffers.fill()?;
            self.awaited.check_rows(header)?;
            self.fill(header, sim);
        }
        if let Some(link) = self.links.get_mut(&key) {
            link.take(sim.now);
        }
        Ok(true)
    }

    fn frame(&mut self, key: u32, header: &Header, sim: &mut Sim) -> Result<(), ProtocolError> {
        let link = &self.links[&key];
        let around = Surroundings {
            rank: link.peer,
            world: self.world,
            layers: self.description.layers,
            plan_bounds: self.bounds(),
        };
        let message = match header.kind {
            Kind::Rows => Message::Rows,
            _ => Message::parse(header, &link.payload, &around)?,
        };
        match message {
            Message::Describe(it) => self.described(*it, sim),
            Message::Roster(_) => {
                self.is_placed = true;
                self.dial_next(sim.now);
                Ok(())
            }
            Message::Ready(ready) => self.boot.as_mut().map_or(Ok(()), |boot| boot.ready(ready)),
            Message::Open(open) => {
                self.open(&open, sim);
                Ok(())
            }
            Message::Plan(plan) => self.plan(header.sequence, plan, sim),
            Message::Rows => self.rows(header.sequence, sim),
            Message::Credit => {
                self.credits.receive(header.count)?;
                self.unreturned = self.unreturned.saturating_sub(header.count);
                sim.history.credit_received(link.peer, header.count);
                Ok(())
            }
            Message::Progress(it) => self.progressed(key, &it, sim),
            Message::Fate(fate) => {
                self.told(sim, fate);
                Ok(())
            }
            Message::Bye if self.rank != 0 && key == 0 => self.answer_bye(sim),
            _ => Ok(()),
        }
    }

    /// A peer's engine stands still only by two of its own reports: in between it may have got on.
    fn progressed(&mut self, key: u32, it: &Progress, sim: &Sim) -> Result<(), ProtocolError> {
        let Some(watch) = self.watches.get_mut(&key) else {
            return Ok(());
        };
        watch.report(it, sim.now)?;
        if sim.is(Mutant::IgnoresStalls) {
            return Ok(());
        }
        watch.check(sim.now)
    }

    pub(super) fn open(&mut self, open: &Open, sim: &Sim) {
        for link in self.links.values_mut() {
            link.conversation.opened(open.first_round());
        }
        self.timers = Timers::of_open(open);
        self.keep_alive = KeepAlive::new(&self.timers, sim.now);
        // The other side sends by the new interval only from its own open on.
        let since = if sim.is(Mutant::KeepsOldHearing) {
            self.loading_since.unwrap_or_default()
        } else {
            sim.now
        };
        for hearing in self.hearing.values_mut() {
            *hearing = Hearing::new(&self.timers, since);
        }
        self.is_open = true;
        self.phase = Phase::Idle;
    }

    fn plan(&mut self, round: u64, plan: Plan, sim: &mut Sim) -> Result<(), ProtocolError> {
        if plan.is_keep_alive() {
            return Ok(());
        }
        if plan.rows() > 0 {
            self.owed.check()?;
        }
        match self.streams.admit(&plan) {
            Err(error) if error.refusal == Refusal::StaleGeneration => {
                if !sim.is(Mutant::SkipsGenerations) {
                    return Err(error);
                }
            }
            admitted => admitted?,
        }
        sim.history.admitted(self.rank, round, &plan);
        let out = if self.rank + 1 == self.world {
            Boundary::Return
        } else {
            Boundary::Forward
        };
        self.begin(round, plan, Boundary::Forward, out)
    }

    /// A round begins: what is to come, what is to leave, and the engine's own part.
    pub(super) fn begin(
        &mut self,
        round: u64,
        plan: Plan,
        comes: Boundary,
        leaves: Boundary,
    ) -> Result<(), ProtocolError> {
        let format = self.description.rows_format();
        if let Some(expected) = ExpectedRows::of_plan(round, &plan, comes, &format)? {
            self.awaited.begin(expected)?;
        }
        if let Some(expected) = ExpectedRows::of_plan(round, &plan, leaves, &format)? {
            self.owed.begin(expected)?;
        }
        self.plans.insert(round, plan);
        Ok(())
    }
}
