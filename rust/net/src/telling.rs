//! The ring's fate on the wire: as a message, and told on every link before the links end.
//!
//! Which fate it is has been decided (`fate`).

use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use stagelink_proto::Refusal;
use stagelink_proto::conversation::LinkState;
use stagelink_proto::error::ProtocolError;
use stagelink_proto::fate::Fate as FateMessage;
use stagelink_proto::frame::Kind;

use crate::control::Shared;
use crate::deadline::Deadline;
use crate::error::{Kind as ErrorKind, LinkError, kind_of};
use crate::socket::Socket;

/// How long the fate may take to leave, so that a peer that reads nothing holds nobody up.
const SPREAD_LIMIT: Duration = Duration::from_millis(200);

/// A peer's broken rule as an error.
pub(crate) fn broken(name: &str, rank: u32, error: &ProtocolError, place: &str) -> LinkError {
    let kind = match kind_of(error.refusal) {
        kind @ (ErrorKind::Refused | ErrorKind::PeerLost | ErrorKind::Deadline) => kind,
        _ => ErrorKind::PeerProtocol,
    };
    let blamed = error.rank.unwrap_or(rank);
    LinkError::new(kind, error.refusal, format!("{name}: {error} {place}")).by(blamed)
}

/// The error that another rank's fate message tells.
pub(crate) fn from_message(fate: &FateMessage) -> LinkError {
    let error = LinkError::new(kind_of(fate.refusal), fate.refusal, fate.text());
    match fate.culprit {
        Some(culprit) => error.by(culprit),
        None => error,
    }
}

/// The fate message that tells an error.
pub(crate) fn to_message(error: &LinkError, reporter: u32, world: u32) -> FateMessage {
    let refusal = Refusal::from_name(error.reason).unwrap_or(Refusal::Local);
    // A peer that claimed a rank beyond the world cannot be named on the wire but in the text.
    let culprit = error.rank.filter(|rank| *rank < world);
    FateMessage::new(refusal, culprit, reporter, &error.text)
}

/// Tell the fate on every link, then end the links: in order where it went out, else by a reset.
pub(crate) fn spread(shared: &Shared, cause: &LinkError) {
    let mut payload = Vec::new();
    to_message(cause, shared.rank, shared.world).encode(&mut payload);
    let limit = Deadline::after(SPREAD_LIMIT);
    {
        let mut star = shared.star();
        for link in star.links.iter_mut().filter(|link| !link.is_gone) {
            if link.state() != LinkState::Ended {
                // A link that takes no more bytes is reset below.
                let _ = link.send(Kind::Fate, None, &payload);
            }
        }
    }
    while shared.star().has_unsent() && !limit.is_over() {
        std::thread::sleep(Duration::from_millis(2));
        for link in &mut shared.star().links {
            link.connection.flush();
        }
    }
    for link in &shared.star().links {
        end(&link.connection.socket, !link.connection.has_unsent());
    }
    end_ring(&shared.outgoing, limit, |link| {
        let said = link.say(Kind::Fate, &payload);
        end(link.socket(), said);
    });
    end_ring(&shared.incoming, limit, |link| {
        let said = link.say(Kind::Fate, &payload);
        end(link.socket(), said);
    });
    // The bulk lane carries no words (docs/protocol.md 6.6).
    end_ring(&shared.bulk_out.link, limit, |link| {
        end(link.socket(), false);
    });
    end_ring(&shared.bulk_in.link, limit, |link| {
        end(link.socket(), false);
    });
    shared.news.set();
}

fn end(socket: &Socket, was_told: bool) {
    if was_told {
        socket.finish();
    } else {
        socket.reset();
    }
}

/// Use a ring link once the main thread, which the fate has woken, lets go of it.
fn end_ring<T>(link: &Mutex<Option<T>>, limit: Deadline, mut tell: impl FnMut(&mut T)) {
    loop {
        match link.try_lock() {
            Ok(mut guard) => {
                if let Some(link) = guard.as_mut() {
                    tell(link);
                }
                return;
            }
            Err(TryLockError::Poisoned(poisoned)) => {
                if let Some(link) = poisoned.into_inner().as_mut() {
                    tell(link);
                }
                return;
            }
            Err(TryLockError::WouldBlock) if limit.is_over() => return,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
