//! A simulated rank from its first dial to its open: links, description, roster, readiness.
//! The handshakes are `handshake`'s.

use std::time::Duration;

use stagelink_proto::conversation::LinkEnd as Side;
use stagelink_proto::describe::Description;
use stagelink_proto::fingerprint::Fingerprint;
use stagelink_proto::frame::Kind;
use stagelink_proto::handshake::{Acceptor, Connector, Linked, Links};
use stagelink_proto::hello::{Link, OPTION_NO_CHECKSUM, Settings};
use stagelink_proto::keepalive::{Hearing, Watch};
use stagelink_proto::limits::JOIN_LIMIT;
use stagelink_proto::open::Open;
use stagelink_proto::progress::Phase;
use stagelink_proto::proof::Secret;
use stagelink_proto::ready::Ready;
use stagelink_proto::{ProtocolError, Refusal};

use super::handshake::{Accepted, Dialled, Dialling, Pending, ends_the_boot};
use super::{Node, RING_IN, RING_OUT};
use crate::link_end::LinkEnd;
use crate::ring::Sim;
use crate::wire::Ends;

/// The first round of the simulated ring.
pub(crate) const FIRST_ROUND: u64 = 5;
/// How much longer a follower waits, so that the lead, which knows who is missing, speaks first.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn join_limit(rank: u32) -> Duration {
    if rank == 0 {
        JOIN_LIMIT
    } else {
        JOIN_LIMIT + PATIENCE
    }
}

impl Node {
    pub(super) fn advance_boot(&mut self, sim: &mut Sim) {
        if self.loading_since.is_some() {
            return;
        }
        sim.wire.listen(self.rank);
        self.advance_dial(sim);
        let knows_launch = self.launch_id != [0; 16];
        while knows_launch && let Some(ends) = sim.wire.accept(self.rank) {
            let links = if self.rank == 0 {
                Links::Both
            } else {
                Links::Ring
            };
            let acceptor = Acceptor::new(secret(), self.settings(), links);
            self.pending.push(Pending::new(ends, acceptor, sim.now));
        }
        for mut pending in std::mem::take(&mut self.pending) {
            let is_free = |link, rank| match link {
                Link::Ring => !self.links.contains_key(&RING_IN),
                Link::Control => self.boot.as_ref().is_some_and(|boot| boot.is_free(rank)),
            };
            match pending.advance(is_free, sim) {
                Accepted::Nothing => self.pending.push(pending),
                Accepted::Linked(linked, ends) => self.arrived(&linked, ends, sim),
                Accepted::Refused(rank, error) if ends_the_boot(&error) => {
                    self.fail(sim, error.refusal, Some(rank), &error.to_string());
                }
                Accepted::Refused(..) | Accepted::Gone => {}
            }
        }
        if self.links.contains_key(&RING_IN) && self.links.contains_key(&RING_OUT) {
            sim.wire.stop_listening(self.rank, sim.now);
            self.loading_since = Some(sim.now);
            self.phase = Phase::Loading;
        } else if sim.now >= self.join_by && self.fate_at.is_none() {
            self.never_joined(sim);
        }
    }

    fn advance_dial(&mut self, sim: &mut Sim) {
        let Some(mut dialling) = self.dialling.take() else {
            return;
        };
        let connector = Connector::new(secret(), self.settings(), dialling.link, dialling.to);
        match dialling.advance(self.rank, connector, sim) {
            Dialled::Nothing => self.dialling = Some(dialling),
            Dialled::Linked(linked, ends) if dialling.link == Link::Control => {
                self.launch_id = linked.launch_id;
                self.control(sim, 0, ends);
            }
            Dialled::Linked(_, ends) => {
                let side = Side::RingConnector { tokens: false };
                let link = LinkEnd::new(dialling.to, side, ends, self.rules);
                self.links.insert(RING_OUT, link);
            }
            Dialled::Failed(error, ends) => {
                sim.wire.abort(ends, sim.now, 100);
                self.fail(sim, error.refusal, Some(dialling.to), &error.to_string());
            }
        }
    }

    fn arrived(&mut self, linked: &Linked, ends: Ends, sim: &mut Sim) {
        let peer = linked.peer.rank;
        if linked.peer.link == Link::Ring {
            let side = Side::RingAcceptor { tokens: false };
            self.links
                .insert(RING_IN, LinkEnd::new(peer, side, ends, self.rules));
            return;
        }
        if let Some(boot) = &mut self.boot {
            boot.linked(peer).unwrap();
        }
        self.control(sim, peer, ends);
    }

    /// The control link to `peer` is made.
    fn control(&mut self, sim: &mut Sim, peer: u32, ends: Ends) {
        let side = if self.rank == 0 {
            Side::LeadControl
        } else {
            Side::FollowerControl
        };
        self.links
            .insert(peer, LinkEnd::new(peer, side, ends, self.rules));
        self.hearing
            .insert(peer, Hearing::new(&self.timers, sim.now));
        self.watches.insert(peer, Watch::new(sim.now));
        if self.rank != 0 {
            let mut payload = Vec::new();
            self.description.encode(&mut payload).unwrap();
            self.send_to_lead(sim, Kind::Describe, &payload).unwrap();
        }
    }

    pub(super) fn described(
        &mut self,
        it: Description,
        sim: &mut Sim,
    ) -> Result<(), ProtocolError> {
        let Some(boot) = self.boot.as_mut() else {
            return Ok(());
        };
        boot.described(it)?;
        if boot.undescribed().next().is_some() {
            return Ok(());
        }
        boot.layout()?;
        let mut payload = Vec::new();
        boot.roster()?.encode(&mut payload)?;
        self.is_placed = true;
        self.dial_next(sim.now);
        self.send_to_followers(sim, (Kind::Roster, None, 0), &payload)
    }

    pub(super) fn dial_next(&mut self, now: Duration) {
        self.dialling = Some(Dialling::ring((self.rank + 1) % self.world, now));
    }

    pub(super) fn load(&mut self, sim: &mut Sim) -> Result<(), ProtocolError> {
        let Some(since) = self.loading_since else {
            return Ok(());
        };
        if !self.is_ready && sim.now >= since + self.manner.load {
            self.is_ready = true;
            self.phase = Phase::Idle;
            let ready = Ready {
                rank: self.rank,
                load_ms: 1,
                tensor_bytes_held: 2,
                tensor_bytes_read: 3,
            };
            match &mut self.boot {
                Some(boot) => boot.ready(ready)?,
                None => self.send_to_lead(sim, Kind::Ready, &ready.encode())?,
            }
        }
        let boot = self.boot.as_ref();
        if !self.is_open && boot.is_some_and(|boot| boot.unready().next().is_none()) {
            let open = Open::new(FIRST_ROUND, sim.interval_ms, sim.silent_intervals)?;
            self.send_to_followers(sim, (Kind::Open, None, 0), &open.encode())?;
            self.open(&open, sim);
        }
        Ok(())
    }

    pub(super) fn boot_wake_at(&self) -> Option<Duration> {
        if let Some(since) = self.loading_since {
            return (!self.is_ready).then(|| since + self.manner.load);
        }
        let pending = self.pending.iter().map(|pending| pending.limit);
        let dialling = self.dialling.as_ref().map(Dialling::wake_at);
        pending.chain(dialling).chain([self.join_by]).min()
    }

    /// The deadline of the boot has passed.
    fn never_joined(&mut self, sim: &mut Sim) {
        let missing = self
            .boot
            .as_ref()
            .and_then(|boot| boot.undescribed().next());
        let culprit = match (self.rank, missing) {
            (0, Some(rank)) => Some(rank),
            _ if !self.links.contains_key(&0) && self.rank != 0 => Some(0),
            _ if !self.is_placed => None,
            _ if !self.links.contains_key(&RING_OUT) => Some((self.rank + 1) % self.world),
            _ => Some((self.rank + self.world - 1) % self.world),
        };
        self.fail(
            sim,
            Refusal::NeverJoined,
            culprit,
            "the ring was not complete in time",
        );
    }

    /// Connections that are not links yet.
    pub(super) fn unlinked(&self) -> Vec<Ends> {
        let dialling = self.dialling.as_ref().and_then(Dialling::ends);
        self.pending
            .iter()
            .map(|pending| pending.ends)
            .chain(dialling)
            .collect()
    }

    fn settings(&self) -> Settings {
        Settings {
            launch_id: self.launch_id,
            options: if self.rules.checksums {
                0
            } else {
                OPTION_NO_CHECKSUM
            },
            ..Settings::new(self.rank, self.world, Fingerprint::new([[3; 32]; 8]))
        }
    }
}

fn secret() -> Secret {
    Secret::from_key(&[1; 32])
}
