//! A simulated rank's two boundary links: posted buffers and credits in, rows against credits out.
//! What the rows mean is the engine's.

use stagelink_proto::ProtocolError;
use stagelink_proto::frame::{Header, Kind};

use super::engine::{self, Job};
use super::{Node, RING_IN, RING_OUT};
use crate::faults::Rule;
use crate::mutant::Mutant;
use crate::ring::Sim;

/// One posted buffer.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) bytes: Vec<u8>,
    is_taken: bool,
}

impl Memory {
    pub(super) fn free(&mut self) {
        self.is_taken = false;
    }
}

impl Node {
    /// A rows frame begins to fill the first free buffer.
    pub(super) fn fill(&mut self, header: &Header, sim: &mut Sim) {
        let free = self.memory.iter().position(|memory| !memory.is_taken);
        // A mutant gives credits for buffers that are lent: the machine's count is fooled then.
        let buffer = free.unwrap_or(0);
        let memory = &mut self.memory[buffer];
        memory.is_taken = true;
        memory.bytes.clear();
        memory
            .bytes
            .resize(usize::try_from(header.payload_bytes).unwrap_or(0), 0);
        self.filling = Some(buffer);
        sim.history.filling(self.rank, buffer, header.sequence);
    }

    /// Rows are complete.
    pub(super) fn rows(&mut self, round: u64, sim: &mut Sim) -> Result<(), ProtocolError> {
        let Some(buffer) = self.filling.take() else {
            return Ok(());
        };
        self.awaited.finish(round)?;
        let bytes = &self.memory[buffer].bytes;
        sim.history.delivered(self.rank, buffer, round, bytes);
        self.frames_taken += 1;
        if sim.is(Mutant::DeliversTwice) && self.frames_taken.is_multiple_of(7) {
            sim.history.delivered(self.rank, buffer, round, bytes);
        }
        if self.rank == 0 {
            self.returned(round, buffer, sim)
        } else {
            self.ready.push_back((round, buffer));
            Ok(())
        }
    }

    /// Frames leave one after the other, each against a credit, as the kernel takes them.
    pub(super) fn send_rows(&mut self, sim: &mut Sim) -> Result<(), ProtocolError> {
        loop {
            let Some(link) = self.links.get_mut(&RING_OUT) else {
                return Ok(());
            };
            link.flush(sim);
            if link.has_unsent() {
                return Ok(());
            }
            if let Some(job) = self.sending.take() {
                self.owed.finish(job.round)?;
                if let Some(buffer) = job.buffer {
                    self.release(job.round, buffer, sim)?;
                }
            }
            let is_free = self.credits.is_ready() || sim.is(Mutant::SendsWithoutCredit);
            if !is_free {
                return Ok(());
            }
            let Some(job) = self.outgoing.pop_front() else {
                return Ok(());
            };
            if self.credits.is_ready() {
                self.credits.take()?;
                self.unreturned += 1;
            }
            self.start(job, sim)?;
        }
    }

    fn start(&mut self, job: Job, sim: &mut Sim) -> Result<(), ProtocolError> {
        let is_last = self.rank + 1 == self.world;
        let payload = engine::payload(&job, is_last);
        let count = u32::try_from(payload.len() / 8).unwrap_or(0);
        let Some(link) = self.links.get_mut(&RING_OUT) else {
            return Ok(());
        };
        sim.history.sent(link.peer, job.round, &payload);
        link.send(sim, (Kind::Rows, Some(job.round), count), &payload)?;
        if self.rule == Some(Rule::DoubleRows) {
            let sum = self.rules.checksums;
            let header = Header::for_payload(Kind::Rows, job.round, count, &payload, sum)?;
            link.push(sim, &header, &payload);
            self.rule = None;
            self.broke_at = Some(sim.now);
        }
        self.sending = Some(job);
        Ok(())
    }

    /// The engine is done with a buffer: its credit goes back.
    pub(super) fn release(
        &mut self,
        round: u64,
        buffer: usize,
        sim: &mut Sim,
    ) -> Result<(), ProtocolError> {
        let memory = &mut self.memory[buffer];
        memory.is_taken = false;
        sim.history
            .released(self.rank, buffer, round, &memory.bytes);
        if sim.is(Mutant::ReleasesEarly) {
            return Ok(());
        }
        self.buffers.release(1)?;
        self.credits_held_back += 1;
        if sim.is(Mutant::DropsCredits) && self.credits_held_back.is_multiple_of(5) {
            return Ok(());
        }
        self.give_credit(1, sim)
    }

    pub(super) fn give_credit(&mut self, count: u32, sim: &mut Sim) -> Result<(), ProtocolError> {
        sim.history.credit_given(self.rank, count);
        let Some(link) = self.links.get_mut(&RING_IN) else {
            return Ok(());
        };
        link.send(sim, (Kind::Credit, None, count), &[])
    }

    /// Breaks the rule of credits, where that is this rank's fault.
    pub(super) fn break_credit(&mut self, sim: &mut Sim) -> Result<(), ProtocolError> {
        if self.rule != Some(Rule::ExtraCredit) || !self.is_open {
            return Ok(());
        }
        let Some(link) = self.links.get_mut(&RING_IN) else {
            return Ok(());
        };
        self.rule = None;
        self.broke_at = Some(sim.now);
        let count = u32::from(self.description.buffers) + 1;
        link.send(sim, (Kind::Credit, None, count), &[])
    }
}
