//! The four frames of a link over pipes, with their deadlines and the tries of a dialling end.
//! What a made link is for `boot` decides.

use std::time::Duration;

use stagelink_proto::handshake::{
    Acceptor, CHALLENGE_FRAME, Connector, Decision, Greeted, Greeting, HELLO_FRAME, Linked,
    PROOF_FRAME, Proving,
};
use stagelink_proto::hello::Link;
use stagelink_proto::limits::{HANDSHAKE_LIMIT, HEADER_BYTES};
use stagelink_proto::{ProtocolError, Refusal};

use crate::ring::Sim;
use crate::wire::Ends;

const PAUSE: Duration = Duration::from_millis(200);

/// A peer that is being dialled.
pub(crate) struct Dialling {
    pub(crate) link: Link,
    pub(crate) to: u32,
    next_try: Duration,
    shaking: Option<Shaking>,
}

struct Shaking {
    ends: Ends,
    limit: Duration,
    bytes: Vec<u8>,
    stage: Option<Stage>,
}

enum Stage {
    Challenge(Box<Greeting>),
    Answer(Box<Proving>),
}

/// What a step of a dialling end came to.
pub(crate) enum Dialled {
    Nothing,
    Linked(Box<Linked>, Ends),
    /// The boot ends.
    Failed(ProtocolError, Ends),
}

impl Dialling {
    pub(crate) fn control(starts: Duration) -> Self {
        Self {
            link: Link::Control,
            to: 0,
            next_try: starts,
            shaking: None,
        }
    }

    pub(crate) fn ring(to: u32, now: Duration) -> Self {
        Self {
            link: Link::Ring,
            to,
            next_try: now,
            shaking: None,
        }
    }

    pub(crate) fn ends(&self) -> Option<Ends> {
        self.shaking.as_ref().map(|shaking| shaking.ends)
    }

    pub(crate) fn wake_at(&self) -> Duration {
        self.shaking.as_ref().map_or(self.next_try, |it| it.limit)
    }

    pub(crate) fn advance(&mut self, rank: u32, connector: Connector, sim: &mut Sim) -> Dialled {
        if self.shaking.is_none() && sim.now >= self.next_try {
            self.begin(rank, connector, sim);
        }
        let Some(shaking) = self.shaking.as_mut() else {
            return Dialled::Nothing;
        };
        let ends = shaking.ends;
        let step = shaking.advance(sim);
        match step {
            Ok(None) if sim.now < shaking.limit => Dialled::Nothing,
            Ok(Some(linked)) => {
                self.shaking = None;
                Dialled::Linked(linked, ends)
            }
            Err(Some(error)) => Dialled::Failed(error, ends),
            Ok(None) | Err(None) => {
                sim.wire.abort(ends, sim.now, 100);
                self.shaking = None;
                self.next_try = sim.now + PAUSE;
                Dialled::Nothing
            }
        }
    }

    fn begin(&mut self, rank: u32, connector: Connector, sim: &mut Sim) {
        self.next_try = sim.now + PAUSE;
        let Some(ends) = sim.wire.dial(self.link, rank, self.to) else {
            return;
        };
        let (greeting, hello) = connector.start(sim.draw.nonce()).unwrap();
        sim.wire.write(ends.out, &hello, sim.now);
        self.shaking = Some(Shaking {
            ends,
            limit: sim.now + HANDSHAKE_LIMIT,
            bytes: Vec::new(),
            stage: Some(Stage::Challenge(Box::new(greeting))),
        });
    }
}

impl Shaking {
    /// `Err(None)`: to be tried again.
    fn advance(&mut self, sim: &mut Sim) -> Result<Option<Box<Linked>>, Option<ProtocolError>> {
        loop {
            let wanted = self.wanted().map_err(Some)?;
            let is_whole = fill(&mut self.bytes, self.ends.into, wanted, sim);
            if !is_whole {
                let is_lost = sim.wire.has_ended(self.ends.into, sim.now);
                return if is_lost { self.closed() } else { Ok(None) };
            }
            // A header tells how much follows it.
            if self.wanted().map_err(Some)? > wanted {
                continue;
            }
            let bytes = std::mem::take(&mut self.bytes);
            match self.stage.take() {
                Some(Stage::Challenge(greeting)) => {
                    let proved = greeting.challenge(&bytes);
                    let (proving, proof) = proved.map_err(|failed| Some(failed.error))?;
                    sim.wire.write(self.ends.out, &proof, sim.now);
                    self.stage = Some(Stage::Answer(Box::new(proving)));
                }
                Some(Stage::Answer(proving)) => {
                    let linked = proving.answer(&bytes);
                    return linked
                        .map(|linked| Some(Box::new(linked)))
                        .map_err(|failed| Some(failed.error));
                }
                None => return Err(None),
            }
        }
    }

    fn wanted(&self) -> Result<usize, ProtocolError> {
        if matches!(self.stage, Some(Stage::Challenge(_))) {
            return Ok(CHALLENGE_FRAME);
        }
        match self.bytes.first_chunk() {
            None => Ok(HEADER_BYTES),
            Some(head) => Ok(HEADER_BYTES + Proving::payload_bytes(head)?),
        }
    }

    fn closed(&mut self) -> Result<Option<Box<Linked>>, Option<ProtocolError>> {
        match self.stage.take() {
            Some(Stage::Answer(proving)) => Err(Some(proving.closed().error)),
            _ => Err(None),
        }
    }
}

/// A connection before its proof.
pub(crate) struct Pending {
    pub(crate) ends: Ends,
    pub(crate) limit: Duration,
    bytes: Vec<u8>,
    stage: Option<Awaits>,
}

enum Awaits {
    Hello(Box<Acceptor>),
    Proof(Box<Greeted>),
}

/// What a step of a pending connection came to.
pub(crate) enum Accepted {
    Nothing,
    Linked(Box<Linked>, Ends),
    Refused(u32, ProtocolError),
    Gone,
}

impl Pending {
    pub(crate) fn new(ends: Ends, acceptor: Acceptor, now: Duration) -> Self {
        let stage = Some(Awaits::Hello(Box::new(acceptor)));
        Self {
            ends,
            limit: now + HANDSHAKE_LIMIT,
            bytes: Vec::new(),
            stage,
        }
    }

    pub(crate) fn advance(
        &mut self,
        is_free: impl Fn(Link, u32) -> bool,
        sim: &mut Sim,
    ) -> Accepted {
        let ends = self.ends;
        loop {
            let is_hello = matches!(self.stage, Some(Awaits::Hello(_)));
            let wanted = if is_hello { HELLO_FRAME } else { PROOF_FRAME };
            if !fill(&mut self.bytes, ends.into, wanted, sim) {
                if sim.wire.has_ended(ends.into, sim.now) || sim.now >= self.limit {
                    return self.gone(sim);
                }
                return Accepted::Nothing;
            }
            let bytes = std::mem::take(&mut self.bytes);
            match self.stage.take() {
                Some(Awaits::Hello(acceptor)) => {
                    let Ok((greeted, challenge)) = acceptor.hello(&bytes, sim.draw.nonce()) else {
                        return self.gone(sim);
                    };
                    sim.wire.write(ends.out, &challenge, sim.now);
                    self.stage = Some(Awaits::Proof(Box::new(greeted)));
                }
                Some(Awaits::Proof(greeted)) => {
                    let Ok(verified) = greeted.proof(&bytes) else {
                        return self.gone(sim);
                    };
                    let (link, rank) = (verified.peer().link, verified.peer().rank);
                    return match verified.decide(is_free(link, rank)).unwrap() {
                        Decision::Welcome(linked, welcome) => {
                            sim.wire.write(ends.out, &welcome, sim.now);
                            Accepted::Linked(Box::new(linked), ends)
                        }
                        Decision::Refuse(error, refused) => {
                            sim.wire.write(ends.out, &refused, sim.now);
                            sim.wire.finish(ends.out, sim.now);
                            Accepted::Refused(rank, error)
                        }
                    };
                }
                None => return Accepted::Gone,
            }
        }
    }

    fn gone(&self, sim: &mut Sim) -> Accepted {
        sim.wire.abort(self.ends, sim.now, 100);
        Accepted::Gone
    }
}

/// True for refusals that end the whole boot.
pub(crate) fn ends_the_boot(error: &ProtocolError) -> bool {
    !matches!(
        error.refusal,
        Refusal::Launch | Refusal::RankTaken | Refusal::Lane
    )
}

/// Reads until `bytes` holds `wanted`; false where more has to come.
fn fill(bytes: &mut Vec<u8>, pipe: usize, wanted: usize, sim: &mut Sim) -> bool {
    while bytes.len() < wanted {
        let piece = sim.wire.read_at_most(pipe, wanted - bytes.len(), sim.now);
        if piece.is_empty() {
            return false;
        }
        bytes.extend(piece);
    }
    true
}
