//! The dialling half of boot: a follower's link to the lead, and every rank's link to the next.
//!
//! Who comes to the listener is `boot`'s.

use std::net::SocketAddr;

use stagelink_proto::Refusal;
use stagelink_proto::conversation::LinkEnd;
use stagelink_proto::frame::{Header, Kind};
use stagelink_proto::hello::{Link, Role};
use stagelink_proto::limits;
use stagelink_proto::proof::TrafficKey;

use crate::boot::{BULK_LANE, Boot, ROW_LANE, own_fault};
use crate::control_link::ControlLink;
use crate::deadline::Deadline;
use crate::dial::{Dial, never_answered};
use crate::error::LinkError;
use crate::members::Member;
use crate::outgoing::Outgoing;
use crate::seal::single_frame;
use crate::socket::Socket;
use crate::telling::{broken, to_message};

impl Boot<'_> {
    /// Dial the lead until it answers, and say what this stage is; the launch id.
    pub(crate) fn link_to_lead(
        &self,
        lead: SocketAddr,
        launch_id: [u8; 16],
    ) -> Result<[u8; 16], LinkError> {
        let address = Some(lead);
        self.shared.members().put(Member {
            rank: 0,
            address,
            ..Member::default()
        });
        let settings = self.settings(launch_id, u64::from(limits::PLAN_BYTES_MAX));
        let mut dial = Dial::new(lead, self.secret.clone(), settings, Link::Control, 0);
        let (linked, socket) = loop {
            if self.deadline.is_over() {
                return Err(never_answered(&dial, "rank 0", self.deadline).by(0));
            }
            self.wait(None, Some(&dial))?;
            match dial.advance() {
                Ok(Some(made)) => break made,
                Ok(None) => {}
                Err(failure) => return Err(self.dial_failed(failure, 0)),
            }
        };
        let mut payload = Vec::new();
        self.own
            .encode(&mut payload)
            .map_err(|error| own_fault(&error))?;
        let now = self.shared.clock.now();
        let made = self.linked_socket(socket, &linked, Role::Connector);
        let mut link = ControlLink::new(made, LinkEnd::FollowerControl, 0, now);
        link.send(Kind::Describe, None, &payload)
            .map_err(|error| own_fault(&error))?;
        self.shared.star().links.push(link);
        self.shared.kick.set();
        Ok(linked.launch_id)
    }

    /// A lane to the next rank, whose address is known by now; the row lane first.
    pub(crate) fn dial_next(&self, launch_id: [u8; 16]) -> Result<Dial, LinkError> {
        self.dial_lane(launch_id, ROW_LANE)
    }

    fn dial_lane(&self, launch_id: [u8; 16], lane: u8) -> Result<Dial, LinkError> {
        let rank = self.next_rank();
        let address = self
            .shared
            .members()
            .get(rank)
            .and_then(|member| member.address);
        let address = address.ok_or_else(|| {
            let error = Refusal::BadAddress.error("expected the next rank's address");
            self.condemn(broken(
                &self.shared.name(rank),
                rank,
                &error,
                "in the roster",
            ))
        })?;
        let mut settings = self.settings(launch_id, self.rows_bytes_max());
        settings.lane = lane;
        Ok(Dial::new(
            address,
            self.secret.clone(),
            settings,
            Link::Ring,
            rank,
        ))
    }

    /// Let the dial of the next rank go on.
    pub(crate) fn advance_dial(&self, dial: Option<&mut Dial>) -> Result<(), LinkError> {
        let Some(dial) = dial.filter(|_| self.outgoing_is_free()) else {
            return Ok(());
        };
        match dial.advance() {
            Ok(None) => Ok(()),
            Ok(Some((linked, socket))) => {
                let made = self.linked_socket(socket, &linked, Role::Connector);
                let is_first = linked.peer.lane == ROW_LANE;
                let (place, link) = if is_first {
                    *dial = self.dial_lane(linked.launch_id, BULK_LANE)?;
                    let link = Outgoing::new(made, self.own.buffers);
                    (&self.shared.outgoing, link)
                } else {
                    let link = Outgoing::bulk(made, self.own.buffers);
                    (&self.shared.bulk_out.link, link)
                };
                if let Ok(mut place) = place.lock() {
                    *place = Some(link);
                }
                Ok(())
            }
            Err(failure) => {
                let fault = self.dial_failed(failure, self.next_rank());
                if fault.reason == Refusal::Key.name() {
                    // A rank whose boot has ended closes too; then the lead's fate says why.
                    let patience = Deadline::after(limits::FATE_WAIT);
                    return Err(self.shared.fate.settle(fault, patience));
                }
                Err(self.condemn(fault))
            }
        }
    }

    /// One fate frame on a connection that is not linked; sequence 2 follows the handshake's 0, 1.
    ///
    /// It is sealed with `key` where it answers a welcome (section 4.6).
    pub(crate) fn tell(&self, socket: &Socket, fault: &LinkError, key: Option<&TrafficKey>) {
        let mut payload = Vec::new();
        to_message(fault, self.own.rank, self.own.world).encode(&mut payload);
        let checksums = self.checksums || self.suite.is_sealed();
        if let Ok(header) = Header::for_payload(Kind::Fate, 2, 0, &payload, checksums) {
            let frame = match key {
                Some(key) => single_frame(self.suite, key, &header, &payload),
                None => Some([&header.encode(), payload.as_slice()].concat()),
            };
            // It is a courtesy: the refusal stands without it.
            let _ = socket.send(&frame.unwrap_or_default());
        }
        socket.finish();
    }
}
