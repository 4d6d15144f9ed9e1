//! The connections that came to the listener and have not proved the key: few, short, and silent.
//!
//! A stranger costs one of a fixed number of slots for a fixed time, and is told nothing.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::PollFd;
use rustix::io::Errno;
use stagelink_proto::Refusal;
use stagelink_proto::error::ProtocolError;
use stagelink_proto::fate::Fate as FateMessage;
use stagelink_proto::frame::{FrameRules, Header, Kind};
use stagelink_proto::handshake::{Acceptor, Decision, Greeted, HELLO_FRAME, Linked, PROOF_FRAME};
use stagelink_proto::hello::Link;
use stagelink_proto::limits;

use crate::deadline::Deadline;
use crate::error::LinkError;
use crate::socket::{ListenSocket, READ, Socket, poll};
use crate::strangers::Strangers;

/// How long a connection without a whole hello is sure of its slot when others wait for one. A real
/// connector says hello as soon as it is connected, and dials again where it was too late.
const SILENT_SLOT: Duration = Duration::from_millis(20);
/// The same for one that has said hello and proves nothing; a hello needs no key.
const PROVING_SLOT: Duration = Duration::from_millis(250);
/// How much later a source that failed again and again is answered, while slots are free.
const SLOWED: Duration = Duration::from_secs(1);
/// How long a boot that fails goes on telling so to those who are just proving the key.
const DISMISS_LIMIT: Duration = Duration::from_millis(300);
/// How the text of a refusal begins whose cause is not the one that is refused.
pub(crate) const BOOT_ENDED: &str = "the boot has ended: ";
/// Bytes that a pending connection may send: a hello, a proof, or the fate that answers a refusal.
const PENDING_BYTES: usize = limits::HEADER_BYTES + limits::FATE_BYTES_MAX as usize;

/// What to do with a peer that has proved the key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// Its place is to be filled.
    Free,
    /// Its place is filled.
    Taken,
    /// There will be no ring; the error says why.
    Gone(&'a LinkError),
}

/// What came of a connection.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// It proved the key and agrees.
    Linked(Box<Linked>, Socket),
    /// It proved the key, but its settings cannot be those of this ring.
    Refused {
        rank: u32,
        address: Option<SocketAddr>,
        error: ProtocolError,
    },
    /// It proved the key and was turned away alone: a taken place, another launch.
    TurnedAway { rank: u32, error: ProtocolError },
}

/// The listener with its pending connections.
#[derive(Debug)]
pub(crate) struct Reception {
    listener: ListenSocket,
    acceptor: Acceptor,
    pending: [Option<Pending>; limits::PENDING_MAX],
    pub(crate) strangers: Strangers,
}

#[derive(Debug)]
struct Pending {
    socket: Socket,
    source: Option<SocketAddr>,
    age: Deadline,
    /// Until then nobody else gets its slot.
    held: Deadline,
    /// Until then it is not read: its source has failed too often.
    slowed: Option<Deadline>,
    bytes: [u8; PENDING_BYTES],
    filled: usize,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Hello(Box<Acceptor>),
    Proof(Box<Greeted>),
    /// Refused by name; the peer may still say which fingerprint field differs.
    Refusing {
        rank: u32,
        error: ProtocolError,
        until: Deadline,
    },
}

#[expect(
    clippy::large_enum_variant,
    reason = "nothing is allocated for a stranger's bytes"
)]
enum Next {
    Wait(Pending),
    Done(Arrival),
    Gone,
}

impl Reception {
    pub(crate) fn new(listener: ListenSocket, acceptor: Acceptor) -> Self {
        Self {
            listener,
            acceptor,
            pending: Default::default(),
            strangers: Strangers::default(),
        }
    }

    /// The descriptors to poll; the listener itself only while a slot can be had.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = self.has_room().then(|| self.listener.as_fd());
        let heard = self.pending.iter().flatten().filter(|one| !one.is_slowed());
        listener
            .into_iter()
            .chain(heard.map(|one| one.socket.as_fd()))
    }

    /// Accept and read what there is; `place` says what to do with who proves the key.
    pub(crate) fn advance<'a>(
        &mut self,
        mut place: impl FnMut(Link, u8, u32) -> Place<'a>,
        mut arrived: impl FnMut(Arrival),
    ) {
        self.accept_waiting();
        for slot in &mut self.pending {
            let Some(pending) = slot.take() else { continue };
            match pending.advance(&mut self.strangers, &mut place) {
                Next::Wait(pending) => *slot = Some(pending),
                Next::Done(arrival) => arrived(arrival),
                Next::Gone => {}
            }
        }
    }

    /// There will be no ring: tell so to those who are just proving the key.
    ///
    /// Without this they would see a close after their proof, and report that the keys differ.
    pub(crate) fn dismiss(&mut self, why: &LinkError) {
        let limit = Deadline::after(DISMISS_LIMIT);
        loop {
            self.advance(|_, _, _| Place::Gone(why), drop);
            let speaking = self.pending.iter().flatten().filter(|one| !one.is_silent());
            let mut fds: Vec<_> = speaking.map(|one| PollFd::new(&one.socket, READ)).collect();
            if fds.is_empty() || limit.is_over() || poll(&mut fds, limit.slice()).is_err() {
                return;
            }
        }
    }

    fn has_room(&self) -> bool {
        self.pending
            .iter()
            .any(|slot| slot.as_ref().is_none_or(Pending::is_replaceable))
    }

    fn accept_waiting(&mut self) {
        // As many as there are slots at most, so that a flood cannot hold the loop.
        for _ in 0..limits::PENDING_MAX {
            let Some((index, is_full)) = self.slot() else {
                return;
            };
            // Want of descriptors is the machine's trouble; the join deadline ends it.
            let Ok(Some(socket)) = self.listener.accept() else {
                return;
            };
            let source = socket.peer();
            // Where slots are short, who is answered late only keeps others out.
            let is_slowed = !is_full && self.strangers.failed_often(source);
            self.pending[index] = Some(Pending {
                source,
                socket,
                age: Deadline::after(limits::HANDSHAKE_LIMIT),
                held: Deadline::after(SILENT_SLOT),
                slowed: is_slowed.then(|| Deadline::after(SLOWED)),
                bytes: [0; PENDING_BYTES],
                filled: 0,
                stage: Stage::Hello(Box::new(self.acceptor.clone())),
            });
        }
    }

    /// A free slot; or, where none is, one whose connection may be dropped for another.
    ///
    /// Drawn, because with any order a flood could make the real peer the one that goes.
    fn slot(&self) -> Option<(usize, bool)> {
        if let Some(free) = self.pending.iter().position(Option::is_none) {
            return Some((free, false));
        }
        let gives_way = |slot: &Option<Pending>| slot.as_ref().is_some_and(Pending::is_replaceable);
        let count = self.pending.iter().filter(|slot| gives_way(slot)).count();
        let drawn = draw().checked_rem(count)?;
        let places = self.pending.iter().enumerate();
        let mut replaceable = places.filter(|(_, slot)| gives_way(slot));
        replaceable.nth(drawn).map(|(index, _)| (index, true))
    }
}

impl Pending {
    /// Nothing has come of it yet; it may be anybody.
    fn is_silent(&self) -> bool {
        matches!(self.stage, Stage::Hello(_)) && self.filled == 0
    }

    /// It gives way to one that may be faster.
    fn is_replaceable(&self) -> bool {
        !matches!(self.stage, Stage::Refusing { .. }) && self.held.is_over()
    }

    /// It is not read yet.
    fn is_slowed(&self) -> bool {
        self.slowed.is_some_and(|until| !until.is_over())
    }

    fn advance<'a>(
        mut self,
        strangers: &mut Strangers,
        place: &mut impl FnMut(Link, u8, u32) -> Place<'a>,
    ) -> Next {
        if let Stage::Refusing { .. } = self.stage {
            return self.hear_fate();
        }
        if self.is_slowed() {
            return Next::Wait(self);
        }
        let wanted = if matches!(self.stage, Stage::Hello(_)) {
            HELLO_FRAME
        } else {
            PROOF_FRAME
        };
        match self.socket.receive(&mut self.bytes[self.filled..wanted]) {
            Ok(count) if count > 0 => self.filled += count,
            Err(Errno::AGAIN | Errno::INTR) if !self.age.is_over() => return Next::Wait(self),
            Ok(_) if self.filled == 0 && matches!(self.stage, Stage::Hello(_)) => {
                // A connector that gave up while it waited in the kernel's queue.
                return Next::Gone;
            }
            _ => {
                let error = Refusal::Truncated.error("expected a whole handshake in 5 s");
                strangers.count(self.source, &error);
                return Next::Gone;
            }
        }
        if self.filled < wanted {
            return Next::Wait(self);
        }
        self.filled = 0;
        let source = self.source;
        self.judge(place).unwrap_or_else(|stranger| {
            strangers.count(source, &stranger);
            Next::Gone
        })
    }

    fn judge<'a>(
        mut self,
        place: &mut impl FnMut(Link, u8, u32) -> Place<'a>,
    ) -> Result<Next, ProtocolError> {
        match self.stage {
            Stage::Hello(acceptor) => {
                let nonce = fresh_nonce()?;
                let mut hello = [0; HELLO_FRAME];
                hello.copy_from_slice(&self.bytes[..HELLO_FRAME]);
                let (greeted, challenge) = acceptor
                    .hello(&hello, nonce)
                    .map_err(|stranger| stranger.0)?;
                self.stage = Stage::Proof(Box::new(greeted));
                self.held = Deadline::after(PROVING_SLOT);
                Ok(if send_whole(&self.socket, &challenge) {
                    Next::Wait(self)
                } else {
                    Next::Gone
                })
            }
            Stage::Proof(greeted) => {
                let mut proof = [0; PROOF_FRAME];
                proof.copy_from_slice(&self.bytes[..PROOF_FRAME]);
                let verified = greeted.proof(&proof).map_err(|stranger| stranger.0)?;
                let peer = verified.peer();
                let (link, lane, rank) = (peer.link, peer.lane, peer.rank);
                let is_free = match place(link, lane, rank) {
                    Place::Free => true,
                    Place::Taken => false,
                    Place::Gone(why) => {
                        let refusal = Refusal::from_name(why.reason).unwrap_or(Refusal::Local);
                        let text = format!("{BOOT_ENDED}{}", why.text);
                        send_whole(&self.socket, &verified.refuse(refusal, &text)?);
                        self.socket.finish();
                        return Ok(Next::Gone);
                    }
                };
                match verified.decide(is_free)? {
                    Decision::Welcome(linked, welcome) => {
                        let sent = send_whole(&self.socket, &welcome);
                        let arrival = Arrival::Linked(Box::new(linked), self.socket);
                        Ok(if sent {
                            Next::Done(arrival)
                        } else {
                            Next::Gone
                        })
                    }
                    Decision::Refuse(error, refused) => {
                        send_whole(&self.socket, &refused);
                        let until = Deadline::after(limits::REFUSED_FATE_WAIT);
                        self.stage = Stage::Refusing { rank, error, until };
                        Ok(self.hear_fate())
                    }
                }
            }
            Stage::Refusing { .. } => Ok(Next::Gone),
        }
    }

    /// After a refusal: wait for the peer's word on which field differs, or for its close.
    fn hear_fate(mut self) -> Next {
        let Stage::Refusing { rank, error, until } = &mut self.stage else {
            return Next::Gone;
        };
        let rank = *rank;
        if matches!(
            error.refusal,
            Refusal::Launch | Refusal::RankTaken | Refusal::Lane
        ) {
            self.socket.finish();
            return Next::Done(Arrival::TurnedAway {
                rank,
                error: error.clone(),
            });
        }
        if error.refusal == Refusal::Fingerprint {
            match self.socket.receive(&mut self.bytes[self.filled..]) {
                Ok(count) if count > 0 => self.filled += count,
                Err(Errno::AGAIN | Errno::INTR) if !until.is_over() => return Next::Wait(self),
                _ => {}
            }
            let heard = fate_refusal(&self.bytes[..self.filled]);
            if let Some(field) = heard {
                *error = field.error(field.meaning());
            } else if self.filled > 0 && self.filled < self.bytes.len() && !until.is_over() {
                return Next::Wait(self);
            }
        }
        self.socket.finish();
        Next::Done(Arrival::Refused {
            rank,
            address: self.source,
            error: error.clone(),
        })
    }
}

/// The refusal in a whole fate frame.
fn fate_refusal(bytes: &[u8]) -> Option<Refusal> {
    let (head, payload) = bytes.split_first_chunk()?;
    let header = Header::parse(head, &FrameRules::default()).ok()?;
    let payload = payload.get(..header.payload_bytes as usize)?;
    (header.kind == Kind::Fate).then_some(())?;
    FateMessage::parse(payload, limits::WORLD_MAX)
        .ok()
        .map(|fate| fate.refusal)
}

/// 32 bytes fresh from the operating system.
pub(crate) fn fresh_nonce() -> Result<[u8; 32], ProtocolError> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce)
        .map_err(|_| Refusal::Local.error("the operating system gave no random bytes"))?;
    Ok(nonce)
}

/// A number that nobody can foresee; the same one where the system gives none.
fn draw() -> usize {
    let mut bytes = [0; 4];
    // Without it the draw is known, which is worse than random and better than no slot at all.
    let _ = getrandom::fill(&mut bytes);
    u32::from_le_bytes(bytes) as usize
}

/// Send a handshake frame; it fits an empty send queue, or the connection is of no use.
pub(crate) fn send_whole(socket: &Socket, frame: &[u8]) -> bool {
    socket.send(frame) == Ok(frame.len())
}
