//! How a simulated rank ends: bye, its own failure, another's fate, a neighbour that is lost.
//! A lost boundary link waits for a rank that knows more.

use std::time::Duration;

use stagelink_proto::conversation::LinkState;
use stagelink_proto::fate::Fate;
use stagelink_proto::frame::Kind;
use stagelink_proto::limits::{BYE_WAIT, FATE_WAIT};
use stagelink_proto::{ProtocolError, Refusal};

use super::{Node, RING_OUT};
use crate::mutant::Mutant;
use crate::ring::Sim;

/// How long a fate may take to leave, so that a peer that reads nothing holds nobody up.
const TELLING: Duration = Duration::from_millis(200);

impl Node {
    pub(super) fn answer_bye(&mut self, sim: &mut Sim) -> Result<(), ProtocolError> {
        self.bye_due = Some(sim.now + BYE_WAIT);
        self.send_to_lead(sim, Kind::Bye, &[])?;
        let link = self.links.get_mut(&RING_OUT);
        link.map_or(Ok(()), |link| link.send(sim, (Kind::Bye, None, 0), &[]))
    }

    /// A connection ended. From the lead's bye on that is as good as a bye.
    pub(super) fn lost(&mut self, key: u32, peer: u32, sim: &mut Sim) {
        if self.bye_due.is_some() {
            return;
        }
        let error = Refusal::PeerLost.error("the connection ended");
        if key < self.world {
            self.fail(sim, error.refusal, Some(peer), &error.to_string());
        } else {
            self.lost_ring.push(key);
        }
    }

    /// A lost boundary link matters once rows have to cross it: after the lead's bye, of which
    /// this rank may not have heard yet, a neighbour closes. The control links mostly tell more.
    pub(super) fn suspect(&mut self, sim: &Sim) {
        let is_missed = |key: &&u32| match **key {
            RING_OUT => self.unreturned > 0 || !self.owed.is_empty(),
            _ => !self.awaited.is_empty(),
        };
        if self.suspicion.is_none()
            && let Some(key) = self.lost_ring.iter().find(is_missed)
        {
            let peer = self.links[key].peer;
            let text = "the connection ended";
            let fate = Fate::new(Refusal::PeerLost, Some(peer), self.rank, text);
            self.suspicion = Some((sim.now + FATE_WAIT, fate));
        }
    }

    /// A failure that this rank saw itself.
    pub(super) fn fail(
        &mut self,
        sim: &mut Sim,
        refusal: Refusal,
        culprit: Option<u32>,
        text: &str,
    ) {
        self.end(sim, Fate::new(refusal, culprit, self.rank, text));
    }

    /// Another rank's word.
    pub(super) fn told(&mut self, sim: &mut Sim, fate: Fate) {
        if self.rank == 0 && sim.is(Mutant::NamesTheReporter) {
            let (refusal, reporter) = (fate.refusal, fate.reporter);
            self.end(
                sim,
                Fate::new(refusal, Some(reporter), reporter, fate.text()),
            );
        } else {
            self.end(sim, fate);
        }
    }

    pub(super) fn end_if_due(&mut self, sim: &mut Sim) {
        if self.fate_at.is_some() {
            return;
        }
        self.suspect(sim);
        if let Some((_, fate)) = self.suspicion.take_if(|(at, _)| *at <= sim.now)
            && self.bye_due.is_none()
        {
            self.end(sim, fate);
            return;
        }
        let Some(due) = self.bye_due else { return };
        let control = (0..self.world).filter(|rank| *rank != self.rank);
        let mut control = control.filter(|rank| self.rank == 0 || *rank == 0);
        if sim.now >= due || control.all(|rank| self.is_quiet(rank)) {
            self.telling_until = Some(sim.now + TELLING);
            self.close_links(sim);
        }
    }

    /// The ring ends here: the first fate wins and goes out on every link.
    fn end(&mut self, sim: &mut Sim, fate: Fate) {
        if self.fate_at.is_some() || self.bye_due.is_some() && self.rank == 0 {
            return;
        }
        let mut payload = Vec::new();
        fate.encode(&mut payload);
        let (rank, now) = (self.rank, sim.now);
        sim.history.note(|| format!("rank {rank} ends: {fate:?}"));
        sim.history.ended(rank);
        self.fate.see(fate);
        self.fate_at = Some(now);
        sim.wire.stop_listening(rank, now);
        let is_inside_rows = self.sending.is_some();
        for (&key, link) in &mut self.links {
            let is_torn = key == RING_OUT && is_inside_rows && link.has_unsent();
            let is_ended = link.conversation.state() == LinkState::Ended;
            if !is_torn && !is_ended && !sim.is(Mutant::TellsFateToNobody) {
                // A link that takes no more bytes is reset in the end.
                let _ = link.send(sim, (Kind::Fate, None, 0), &payload);
            }
        }
        self.telling_until = Some(now + TELLING);
        self.finish_telling(sim);
    }

    /// Closes each link once all has left; at the deadline in any case.
    pub(super) fn finish_telling(&mut self, sim: &mut Sim) {
        if self.fate_at.is_some() && !self.is_over {
            self.close_links(sim);
        }
    }

    fn close_links(&mut self, sim: &mut Sim) {
        let is_due = self.telling_until.is_some_and(|until| sim.now >= until);
        let is_left = sim.is(Mutant::DeliversAfterFate) && !is_due;
        for link in self.links.values_mut() {
            if is_due || (!link.has_unsent() && !is_left) {
                link.close(sim);
            }
        }
        if self.links.values().all(|link| link.is_closed) || self.bye_due.is_some() {
            for link in self.links.values_mut() {
                link.close(sim);
            }
            self.is_over = true;
            sim.wire.stop_listening(self.rank, sim.now);
        }
    }

    /// The process dies: its kernel closes its sockets.
    pub(crate) fn die(&mut self, sim: &mut Sim, tail_percent: u64) {
        sim.wire.stop_listening(self.rank, sim.now);
        for link in self.links.values_mut().filter(|link| !link.is_closed) {
            sim.wire.abort(link.ends, sim.now, tail_percent);
        }
        for ends in self.unlinked() {
            sim.wire.abort(ends, sim.now, tail_percent);
        }
    }

    pub(super) fn send_to_lead(
        &mut self,
        sim: &mut Sim,
        kind: Kind,
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        let link = self.links.get_mut(&0);
        link.map_or(Ok(()), |link| link.send(sim, (kind, None, 0), payload))
    }

    pub(super) fn send_to_followers(
        &mut self,
        sim: &mut Sim,
        what: (Kind, Option<u64>, u32),
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        for rank in 1..self.world {
            if let Some(link) = self.links.get_mut(&rank) {
                link.send(sim, what, payload)?;
            }
        }
        Ok(())
    }
}
