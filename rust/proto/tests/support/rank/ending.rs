//! How a simulated rank ends: bye, its own failure, another's fate.
//! A follower reports to the lead first and waits for the lead's word.

use std::time::Duration;

use stagelink_proto::{
    ProtocolError, Refusal,
    fate::Fate,
    frame::Kind,
    limits::{BYE_WAIT, FATE_WAIT},
};

use super::{RING_OUT, Rank};
use crate::pipe::Wire;

impl Rank {
    pub(super) fn answer_bye(
        &mut self,
        wire: &mut Wire,
        now: Duration,
    ) -> Result<(), ProtocolError> {
        self.bye_due = Some(now + BYE_WAIT);
        self.send_to_lead(wire, now, Kind::Bye, &[])?;
        self.links
            .get_mut(&RING_OUT)
            .unwrap()
            .send(wire, now, (Kind::Bye, None, 0), &[])
    }

    /// A failure was seen: the lead ends the ring, a follower reports and waits for the lead.
    pub(super) fn fail(
        &mut self,
        wire: &mut Wire,
        now: Duration,
        refusal: Refusal,
        culprit: Option<u32>,
        text: &str,
    ) {
        let fate = Fate::new(refusal, culprit, self.rank, text);
        if self.rank == 0 {
            self.end(wire, now, fate);
        } else if self.report.is_none() {
            let mut payload = Vec::new();
            fate.encode(&mut payload);
            self.send_to_lead(wire, now, Kind::Fate, &payload).unwrap();
            self.report = Some((now + FATE_WAIT, fate));
        }
    }

    /// The ring ends here: the first fate wins and goes out on every link.
    pub(super) fn end(&mut self, wire: &mut Wire, now: Duration, fate: Fate) {
        let mut payload = Vec::new();
        fate.encode(&mut payload);
        if self.fate.see(fate) {
            self.fate_at = Some(now);
            for link in self.links.values_mut() {
                link.send(wire, now, (Kind::Fate, None, 0), &payload)
                    .unwrap();
                link.close(wire, now);
            }
        }
    }

    pub(super) fn send_to_lead(
        &mut self,
        wire: &mut Wire,
        now: Duration,
        kind: Kind,
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        self.links
            .get_mut(&0)
            .unwrap()
            .send(wire, now, (kind, None, 0), payload)
    }

    pub(super) fn send_to_followers(
        &mut self,
        wire: &mut Wire,
        now: Duration,
        what: (Kind, Option<u64>, u32),
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        for rank in 1..self.world {
            self.links
                .get_mut(&rank)
                .unwrap()
                .send(wire, now, what, payload)?;
        }
        Ok(())
    }
}
