//! From a listener and a key to a complete ring: handshakes, descriptions, roster, boundary links.
//!
//! One loop on the calling thread drives all handshakes; the control links that they end in are
//! the control thread's at once. Loading and opening come later (`ring`).

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::PollFd;
use stagelink_proto::conversation::LinkEnd;
use stagelink_proto::describe::Description;
use stagelink_proto::error::ProtocolError;
use stagelink_proto::fingerprint::Fingerprint;
use stagelink_proto::frame::{FrameRules, Kind};
use stagelink_proto::handshake::{Acceptor, Linked, Links};
use stagelink_proto::hello::{Link, OPTION_NO_CHECKSUM, Role, Settings, Suite};
use stagelink_proto::layout::Layout;
use stagelink_proto::limits;
use stagelink_proto::proof::Secret;
use stagelink_proto::roster::Roster;

use crate::accept::{Arrival, Place, Reception};
use crate::boot_faults::refused;
use crate::connection::LinkedSocket;
use crate::control::Shared;
use crate::control_link::ControlLink;
use crate::deadline::Deadline;
use crate::dial::Dial;
use crate::error::{Kind as ErrorKind, LinkError};
use crate::incoming::Incoming;
use crate::members::Member;
use crate::outgoing::Outgoing;
use crate::seal::Seals;
use crate::socket::{READ, Socket, poll};
use crate::wait::Interrupt;

/// The lanes of a boundary link (docs/protocol.md 2).
pub(crate) const ROW_LANE: u8 = 0;
/// The other lane.
pub(crate) const BULK_LANE: u8 = 1;

/// How much later than its own deadline a linked follower gives up, so that the lead, which knows
/// who is missing, speaks first.
const FOLLOWER_PATIENCE: Duration = Duration::from_secs(1);

/// What the handshakes of one rank need.
pub(crate) struct Boot<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) secret: Secret,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) own: Description,
    pub(crate) suite: Suite,
    pub(crate) checksums: bool,
    pub(crate) deadline: Deadline,
    pub(crate) interrupt: &'a dyn Interrupt,
}

/// What a complete ring agrees on.
pub(crate) struct Agreed {
    pub(crate) launch_id: [u8; 16],
    /// What all stages together can do; known to the lead only.
    pub(crate) layout: Option<Layout>,
    /// The lowest rank that cannot cut a stream's state back, as far as this rank knows.
    pub(crate) no_keep: Option<u32>,
    /// Who came meanwhile and was not let in, in words; empty where nobody was.
    pub(crate) strangers: String,
}

impl Boot<'_> {
    /// Rank 0: take every follower in, check and place them, close the ring.
    pub(crate) fn lead(
        &self,
        listener: crate::listen::Listener,
        launch_id: [u8; 16],
    ) -> Result<Agreed, LinkError> {
        let settings = self.settings(launch_id, u64::from(limits::PLAN_BYTES_MAX));
        let acceptor = Acceptor::new(self.secret.clone(), settings, Links::Both);
        let mut reception = Reception::new(listener.into_socket(), acceptor);
        let gathered = self.gather(&mut reception, launch_id);
        let layout = gathered.inspect_err(|error| reception.dismiss(error))?;
        let star = self.shared.star();
        let cannot = star.descriptions.iter().filter(|stage| !stage.keep);
        let no_keep = cannot.map(|stage| stage.rank).min();
        drop(star);
        Ok(Agreed {
            launch_id,
            layout,
            no_keep,
            strangers: reception.strangers.told(),
        })
    }

    fn gather(
        &self,
        reception: &mut Reception,
        launch_id: [u8; 16],
    ) -> Result<Option<Layout>, LinkError> {
        let mut dial = None;
        let mut layout = None;
        while !self.is_ring_complete() {
            if self.deadline.is_over() {
                return Err(self.condemn(self.never_joined(reception)));
            }
            self.wait(Some(reception), dial.as_ref())?;
            self.receive_arrivals(reception)?;
            if layout.is_none() && self.shared.star().descriptions.len() == self.world() {
                layout = Some(self.place_all()?);
                dial = Some(self.dial_next(launch_id)?);
            }
            self.advance_dial(dial.as_mut())?;
        }
        Ok(layout)
    }

    /// Every other rank: find the lead, say what this stage is, get its place, close the ring.
    pub(crate) fn follow(
        &self,
        listener: crate::listen::Listener,
        lead: SocketAddr,
        launch_id: [u8; 16],
    ) -> Result<Agreed, LinkError> {
        let launch_id = self.link_to_lead(lead, launch_id)?;
        let settings = self.settings(launch_id, self.rows_bytes_max());
        let acceptor = Acceptor::new(self.secret.clone(), settings, Links::Ring);
        let mut reception = Reception::new(listener.into_socket(), acceptor);
        let mut dial = None;
        let patience = Deadline::after(self.deadline.remaining() + FOLLOWER_PATIENCE);
        while !self.is_ring_complete() {
            if patience.is_over() {
                return Err(self.condemn(self.ring_incomplete(dial.as_ref(), &reception)));
            }
            self.wait(Some(&reception), dial.as_ref())?;
            self.receive_arrivals(&mut reception)?;
            if dial.is_none() {
                let roster = self.shared.star().roster.clone();
                if let Some(roster) = roster {
                    self.learn(&roster);
                    dial = Some(self.dial_next(launch_id)?);
                }
            }
            self.advance_dial(dial.as_mut())?;
        }
        Ok(Agreed {
            launch_id,
            layout: None,
            no_keep: (!self.own.keep).then_some(self.own.rank),
            strangers: reception.strangers.told(),
        })
    }

    fn receive_arrivals(&self, reception: &mut Reception) -> Result<(), LinkError> {
        let mut refusals = Vec::new();
        let place = |link, lane, rank| {
            let is_free = match link {
                Link::Control => self.shared.star().link(rank).is_none(),
                Link::Ring => self.incoming_is_free(lane),
            };
            if is_free { Place::Free } else { Place::Taken }
        };
        // A place is taken at once, so that a second claim in the same pass finds it taken.
        reception.advance(place, |arrival| match arrival {
            Arrival::Linked(linked, socket) => self.arrived(&linked, socket),
            other => refusals.push(other),
        });
        for refusal in refusals {
            match refusal {
                Arrival::Linked(..) => {}
                // It is told why on its own connection; the ring goes on waiting.
                Arrival::TurnedAway { rank, error } => {
                    reception.strangers.turned_away(rank, &error);
                }
                Arrival::Refused {
                    rank,
                    address,
                    error,
                } => {
                    return Err(self.condemn(refused(rank, address, &error)));
                }
            }
        }
        Ok(())
    }

    fn arrived(&self, linked: &Linked, socket: Socket) {
        let rank = linked.peer.rank;
        let address = socket.peer();
        let made = self.linked_socket(socket, linked, Role::Acceptor);
        if linked.peer.link == Link::Ring {
            let (place, incoming) = if linked.peer.lane == ROW_LANE {
                let incoming = Incoming::new(made, self.own.buffers);
                (&self.shared.incoming, incoming)
            } else {
                let untold = Arc::clone(&self.shared.bulk_in.untold);
                let incoming = Incoming::bulk(made, self.own.buffers, untold);
                (&self.shared.bulk_in.link, incoming)
            };
            if let Ok(mut place) = place.lock() {
                *place = Some(incoming);
            }
            return;
        }
        self.shared.members().put(Member {
            rank,
            address,
            ..Member::default()
        });
        let now = self.shared.clock.now();
        let link = ControlLink::new(made, LinkEnd::LeadControl, rank, now);
        self.shared.star().links.push(link);
        self.shared.kick.set();
    }

    /// The lead has all descriptions: check them together and hand out the roster.
    fn place_all(&self) -> Result<Layout, LinkError> {
        let mut descriptions = self.shared.star().descriptions.clone();
        descriptions.sort_by_key(|description| description.rank);
        for description in &descriptions {
            self.shared.members().put(member_of(description));
        }
        let agreed = Layout::agree(&descriptions, self.own.world).and_then(|layout| {
            let mut payload = Vec::new();
            Roster::of_descriptions(&descriptions)?.encode(&mut payload)?;
            Ok((layout, payload))
        });
        let (layout, payload) = agreed.map_err(|error| self.condemn(self.misplaced(&error)))?;
        let sent = self.shared.star().send_all(Kind::Roster, None, &payload);
        sent.map_err(|(_, error)| self.condemn(own_fault(&error)))?;
        Ok(layout)
    }

    fn learn(&self, roster: &Roster) {
        for (rank, place) in (0_u32..).zip(roster.members()) {
            let ip = place.address.parse().ok();
            self.shared.members().put(Member {
                rank,
                first: place.first,
                end: place.end,
                host: place.host.clone(),
                address: ip.map(|ip| SocketAddr::new(ip, place.port)),
                ..Member::default()
            });
        }
    }

    pub(crate) fn wait(
        &self,
        reception: Option<&Reception>,
        dial: Option<&Dial>,
    ) -> Result<(), LinkError> {
        self.shared.fate.check()?;
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.shared.fate.as_fd(), READ),
            PollFd::from_borrowed_fd(self.shared.news.as_fd(), READ),
        ];
        if let Some(reception) = reception {
            fds.extend(
                reception
                    .descriptors()
                    .map(|fd| PollFd::from_borrowed_fd(fd, READ)),
            );
        }
        let mut patience = self.deadline.slice().max(Duration::from_millis(1));
        if let Some(dial) = dial.filter(|_| self.outgoing_is_free()) {
            patience = patience.min(dial.patience());
            fds.extend(
                dial.interest()
                    .map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)),
            );
        }
        // A poll that fails is tried again after the checks; the deadline bounds it.
        let _ = poll(&mut fds, patience);
        self.shared.news.clear();
        self.shared.fate.check()?;
        if self.interrupt.is_pending() {
            Err(LinkError::interrupted())
        } else {
            Ok(())
        }
    }

    /// Make `error` the fate of the ring, unless there is one already.
    pub(crate) fn condemn(&self, error: LinkError) -> LinkError {
        self.shared.fate.set(error.during("join")).clone()
    }

    pub(crate) fn settings(&self, launch_id: [u8; 16], payload_need: u64) -> Settings {
        let own = &self.own;
        let mut settings = Settings::new(own.rank, own.world, self.fingerprint.clone());
        settings.suite = self.suite;
        // A sealed link has tags instead, and says nothing of checksums (section 4.1).
        settings.options = if self.checksums || self.suite.is_sealed() {
            0
        } else {
            OPTION_NO_CHECKSUM
        };
        settings.launch_id = launch_id;
        settings.payload_need = payload_need;
        settings
    }

    pub(crate) fn rows_bytes_max(&self) -> u64 {
        let taps = self.own.draft_width > 0;
        self.own
            .rows_format()
            .payload_bytes(self.own.rows_max, taps)
    }

    fn rules(&self) -> FrameRules {
        let sealed = self.suite.is_sealed();
        FrameRules {
            checksums: self.checksums && !sealed,
            sealed,
            ..FrameRules::default()
        }
    }

    /// What a connection needs to go on after its handshake.
    pub(crate) fn linked_socket(&self, socket: Socket, linked: &Linked, own: Role) -> LinkedSocket {
        LinkedSocket {
            socket,
            rules: self.rules(),
            seals: Seals::of(self.suite, linked, own),
        }
    }

    fn world(&self) -> usize {
        self.own.world as usize
    }

    pub(crate) fn next_rank(&self) -> u32 {
        (self.own.rank + 1) % self.own.world
    }

    fn incoming_is_free(&self, lane: u8) -> bool {
        let link = if lane == ROW_LANE {
            &self.shared.incoming
        } else {
            &self.shared.bulk_in.link
        };
        link.lock().is_ok_and(|link| link.is_none())
    }

    /// A lane to the next rank is still to be made.
    pub(crate) fn outgoing_is_free(&self) -> bool {
        let is_free = |link: &Mutex<Option<Outgoing>>| link.lock().is_ok_and(|link| link.is_none());
        is_free(&self.shared.outgoing) || is_free(&self.shared.bulk_out.link)
    }

    fn is_ring_complete(&self) -> bool {
        let is_coming = self.incoming_is_free(ROW_LANE) || self.incoming_is_free(BULK_LANE);
        !is_coming && !self.outgoing_is_free()
    }
}

/// A rank's facts as its description tells them.
pub(crate) fn member_of(description: &Description) -> Member {
    let ip = description.address.parse().ok();
    Member {
        rank: description.rank,
        first: description.first,
        end: description.end,
        host: description.host.clone(),
        address: ip.map(|ip| SocketAddr::new(ip, description.port)),
        backend: description.backend.clone(),
        device: description.device.clone(),
        process: description.process,
        weight_bytes: description.weight_bytes,
        kv_dtype: Some(description.kv_dtype),
        batch_invariant: description.batch_invariant,
        keep: description.keep,
    }
}

/// Something of ours that the protocol forbids.
pub(crate) fn own_fault(error: &ProtocolError) -> LinkError {
    LinkError::new(ErrorKind::LocalProtocol, error.refusal, error.to_string())
}
