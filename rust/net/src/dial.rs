//! Connect to a peer and shake hands, trying again while the peer may still be starting.
//!
//! It never blocks; boot polls its descriptor and lets it go on.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use stagelink_proto::Refusal;
use stagelink_proto::handshake::{
    CHALLENGE_FRAME, Connector, Greeting, Linked, NotLinked, Proving, REFUSED_FRAME,
};
use stagelink_proto::hello::{Link, Settings};
use stagelink_proto::limits;
use stagelink_proto::proof::Secret;

use crate::accept::{fresh_nonce, send_whole};
use crate::deadline::Deadline;
use crate::error::LinkError;
use crate::socket::{READ, Socket, WRITE};

/// The first and the longest pause between two tries.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(400));

/// Closes after the proof that are taken to mean that the keys differ. One may be an acceptor that
/// ended, or that strangers had filled.
const CLOSES_MAX: u32 = 3;

/// Why a handshake failed for good.
#[derive(Debug)]
pub(crate) struct DialFailure {
    pub(crate) not_linked: Box<NotLinked>,
    /// The connection, where a fate is still to be told on it.
    pub(crate) socket: Socket,
}

/// One peer that is being dialled.
pub(crate) struct Dial {
    address: SocketAddr,
    connector: Connector,
    state: State,
    pause: Duration,
    closes: u32,
    last_trouble: String,
}

#[expect(
    clippy::large_enum_variant,
    reason = "one value a process, only at boot"
)]
enum State {
    Pausing(Deadline),
    Connecting(Socket, Deadline),
    Shaking(Shaking),
}

struct Shaking {
    socket: Socket,
    limit: Deadline,
    bytes: [u8; REFUSED_FRAME],
    filled: usize,
    stage: Option<Stage>,
}

enum Stage {
    Challenge(Box<Greeting>),
    Answer(Box<Proving>),
}

/// What one step of the handshake came to.
#[expect(
    clippy::large_enum_variant,
    reason = "one value a process, only at boot"
)]
enum Step {
    Wait(Shaking),
    Linked(Box<Linked>, Socket),
    Again(String),
    /// Closed after the proof.
    Closed(DialFailure),
    Failed(DialFailure),
}

impl Dial {
    /// Prepare to dial `address`, where `peer_rank` should answer.
    pub(crate) fn new(
        address: SocketAddr,
        secret: Secret,
        settings: Settings,
        link: Link,
        peer_rank: u32,
    ) -> Self {
        Self {
            address,
            connector: Connector::new(secret, settings, link, peer_rank),
            state: State::Pausing(Deadline::after(Duration::ZERO)),
            pause: PAUSES.0,
            closes: 0,
            last_trouble: String::new(),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Why the last try failed, for the text of the deadline.
    pub(crate) fn last_trouble(&self) -> &str {
        &self.last_trouble
    }

    /// What to poll for, if anything.
    pub(crate) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Pausing(_) => None,
            State::Connecting(socket, _) => Some((socket.as_fd(), WRITE)),
            State::Shaking(shaking) => Some((shaking.socket.as_fd(), READ)),
        }
    }

    /// How long a poll may sleep before the next try is due.
    pub(crate) fn patience(&self) -> Duration {
        match &self.state {
            State::Pausing(until) => until.remaining(),
            State::Connecting(_, limit) => limit.remaining(),
            State::Shaking(shaking) => shaking.limit.remaining(),
        }
    }

    /// Go on as far as possible without waiting; the link once it is made.
    pub(crate) fn advance(&mut self) -> Result<Option<(Box<Linked>, Socket)>, DialFailure> {
        let pause = State::Pausing(Deadline::after(self.pause));
        match std::mem::replace(&mut self.state, pause) {
            State::Pausing(until) if !until.is_over() => self.state = State::Pausing(until),
            State::Pausing(_) => match Socket::connect(self.address) {
                Ok(socket) => {
                    let limit = Deadline::after(limits::HANDSHAKE_LIMIT);
                    self.state = State::Connecting(socket, limit);
                }
                Err(error) => self.again(plain(&error)),
            },
            State::Connecting(socket, limit) => self.connected(socket, limit),
            State::Shaking(shaking) => match shaking.advance() {
                Step::Wait(shaking) => self.state = State::Shaking(shaking),
                Step::Linked(linked, socket) => return Ok(Some((linked, socket))),
                Step::Again(trouble) => self.again(trouble),
                Step::Closed(failure) => {
                    self.closes += 1;
                    if self.closes == CLOSES_MAX {
                        return Err(failure);
                    }
                    self.again("it closed the connection after this rank's proof".into());
                }
                Step::Failed(failure) => return Err(failure),
            },
        }
        Ok(None)
    }

    fn connected(&mut self, socket: Socket, limit: Deadline) {
        match socket.connect_error() {
            None => match self.greet(&socket) {
                Some(greeting) => {
                    self.state = State::Shaking(Shaking {
                        socket,
                        limit,
                        bytes: [0; REFUSED_FRAME],
                        filled: 0,
                        stage: Some(Stage::Challenge(Box::new(greeting))),
                    });
                }
                None => self.again("the hello could not be sent".into()),
            },
            Some(error) if error.kind() == std::io::ErrorKind::NotConnected => {
                if limit.is_over() {
                    self.again("no answer to the connection".into());
                } else {
                    self.state = State::Connecting(socket, limit);
                }
            }
            Some(error) => self.again(plain(&error)),
        }
    }

    fn greet(&self, socket: &Socket) -> Option<Greeting> {
        let nonce = fresh_nonce().ok()?;
        let (greeting, hello) = self.connector.clone().start(nonce).ok()?;
        send_whole(socket, &hello).then_some(greeting)
    }

    fn again(&mut self, trouble: String) {
        self.last_trouble = trouble;
        self.state = State::Pausing(Deadline::after(self.pause));
        self.pause = (self.pause * 2).min(PAUSES.1);
    }
}

impl Shaking {
    fn advance(mut self) -> Step {
        let wanted = match self.wanted() {
            Ok(wanted) => wanted,
            Err(failed) => return self.fail(failed),
        };
        match self.socket.receive(&mut self.bytes[self.filled..wanted]) {
            Ok(count) if count > 0 => self.filled += count,
            Err(Errno::AGAIN | Errno::INTR) if !self.limit.is_over() => return Step::Wait(self),
            Err(Errno::AGAIN | Errno::INTR) => {
                return Step::Again("it accepted the connection but did not shake hands".into());
            }
            _ => return self.closed(),
        }
        // A header tells how much follows it, so look again before judging.
        if self.filled < wanted || self.wanted().is_ok_and(|wanted| self.filled < wanted) {
            return Step::Wait(self);
        }
        self.judge()
    }

    fn wanted(&self) -> Result<usize, Box<NotLinked>> {
        if matches!(self.stage, Some(Stage::Challenge(_))) {
            return Ok(CHALLENGE_FRAME);
        }
        match self.bytes[..self.filled].first_chunk() {
            None => Ok(limits::HEADER_BYTES),
            Some(head) => match Proving::payload_bytes(head) {
                Ok(bytes) => Ok(limits::HEADER_BYTES + bytes),
                Err(error) => Err(Box::new(NotLinked::close(error))),
            },
        }
    }

    fn judge(mut self) -> Step {
        let filled = std::mem::take(&mut self.filled);
        match self.stage.take() {
            Some(Stage::Challenge(greeting)) => {
                let mut challenge = [0; CHALLENGE_FRAME];
                challenge.copy_from_slice(&self.bytes[..CHALLENGE_FRAME]);
                match greeting.challenge(&challenge) {
                    Ok((proving, proof)) => {
                        self.stage = Some(Stage::Answer(Box::new(proving)));
                        if send_whole(&self.socket, &proof) {
                            Step::Wait(self)
                        } else {
                            self.closed()
                        }
                    }
                    Err(failed) => self.fail(failed),
                }
            }
            Some(Stage::Answer(proving)) => match proving.answer(&self.bytes[..filled]) {
                Ok(linked) => Step::Linked(Box::new(linked), self.socket),
                Err(failed) => self.fail(failed),
            },
            None => Step::Again("the handshake was lost".into()),
        }
    }

    fn closed(mut self) -> Step {
        match self.stage.take() {
            Some(Stage::Answer(proving)) => {
                let not_linked = Box::new(proving.closed());
                Step::Closed(DialFailure {
                    not_linked,
                    socket: self.socket,
                })
            }
            // An acceptor that is not ready, or is full, closes before its challenge.
            _ => Step::Again("it closed the connection before its challenge".into()),
        }
    }

    fn fail(self, not_linked: impl Into<Box<NotLinked>>) -> Step {
        Step::Failed(DialFailure {
            not_linked: not_linked.into(),
            socket: self.socket,
        })
    }
}

fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".into(),
        std::io::ErrorKind::TimedOut => "no answer to the connection".into(),
        _ => error.to_string(),
    }
}

/// The error of a peer that did not answer until the deadline.
pub(crate) fn never_answered(dial: &Dial, name: &str, deadline: Deadline) -> LinkError {
    let (address, seconds) = (dial.address(), deadline.seconds());
    let trouble = match dial.last_trouble() {
        "" => String::new(),
        trouble => format!(" ({trouble})"),
    };
    LinkError::new(
        crate::error::Kind::Deadline,
        Refusal::NeverJoined,
        format!(
            "{name} at {address} did not answer within {seconds} s{trouble}; \
             is it running, is the address right?"
        ),
    )
    .after_seconds(seconds)
    .during("join")
}
