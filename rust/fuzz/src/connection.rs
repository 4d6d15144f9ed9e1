//! A whole connection after its handshake: flags, a state, a seed of cuts, then the peer's bytes.
//!
//! However the bytes are cut into reads, and whichever way they are read, the same frames come
//! and the same rule is broken at the same place.

use stagelink_proto::Refusal;
use stagelink_proto::conversation::{Conversation, LinkEnd, LinkState};
use stagelink_proto::frame::{FrameRules, Header, checksum};
use stagelink_proto::incoming::{Event, Incoming, Want};
use stagelink_proto::message::{Message, Surroundings};

use crate::payload::check;
use crate::repair::repair;
use crate::source::Source;

const PAYLOAD_MAX: usize = 64 << 10;
const ENDS: [LinkEnd; 4] = [
    LinkEnd::LeadControl,
    LinkEnd::FollowerControl,
    LinkEnd::RingAcceptor { tokens: false },
    LinkEnd::RingConnector { tokens: false },
];
const STATES: [LinkState; 8] = [
    LinkState::Linked,
    LinkState::Described,
    LinkState::Placed,
    LinkState::Ready,
    LinkState::Open,
    LinkState::Closing,
    LinkState::Refusing,
    LinkState::Ended,
];

/// What came out of a connection.
#[derive(Debug, PartialEq)]
enum Seen {
    Header(Header),
    Frame(Header, Vec<u8>),
    End(Result<(), Refusal>),
}

/// # Panics
///
/// Where a rule does not hold.
pub fn judge(input: &[u8]) {
    let mut source = Source::new(input);
    let (flags, place, seed) = (source.u8(), source.u8(), source.u16());
    let mut stream = source.rest().to_vec();
    if flags & 2 != 0 {
        repair(&mut stream);
    }
    let rules = FrameRules {
        checksums: flags & 1 == 0,
        payload_max: PAYLOAD_MAX as u64,
        sealed: false,
    };
    let whole = push_all(&stream, rules, |_| usize::MAX);
    let cut = |at: usize| 1 + (at.wrapping_mul(31) ^ usize::from(seed)) % 67;
    assert_eq!(push_all(&stream, rules, cut), whole, "cut into reads");
    assert_eq!(push_all(&stream, rules, |_| 1), whole, "byte by byte");
    assert_eq!(read_all(&stream, rules, cut), whole, "read into place");
    follow(&whole, place);
}

/// Everything by `Incoming::push`, in reads of `cut(offset)` bytes.
fn push_all(stream: &[u8], rules: FrameRules, cut: impl Fn(usize) -> usize) -> Vec<Seen> {
    let mut incoming = Incoming::new(rules);
    let mut seen = Vec::new();
    let mut payload = Vec::new();
    let mut at = 0;
    while at < stream.len() {
        let end = at.saturating_add(cut(at)).min(stream.len());
        let mut piece = &stream[at..end];
        at = end;
        // An empty payload is complete without another byte.
        while !piece.is_empty() || is_complete(&incoming) {
            match incoming.push(piece, &mut payload) {
                Ok((taken, event)) => {
                    piece = &piece[taken..];
                    match event {
                        Event::NeedMore => assert!(piece.is_empty(), "input was left"),
                        Event::Header(header) => {
                            payload = memory(&header);
                            seen.push(Seen::Header(header));
                        }
                        Event::Frame(header) => {
                            seen.push(Seen::Frame(header, std::mem::take(&mut payload)));
                        }
                    }
                }
                Err(error) => {
                    seen.push(Seen::End(Err(error.refusal)));
                    return seen;
                }
            }
        }
    }
    seen.push(Seen::End(incoming.end().map_err(|error| error.refusal)));
    seen
}

/// Everything by the calls that a socket uses: bytes go straight to where they belong.
fn read_all(stream: &[u8], rules: FrameRules, cut: impl Fn(usize) -> usize) -> Vec<Seen> {
    let mut incoming = Incoming::new(rules);
    let mut seen = Vec::new();
    let mut payload = Vec::new();
    let mut at = 0;
    let end = loop {
        let left = (stream.len() - at).min(cut(at));
        let step = match incoming.want() {
            Want::Header { bytes } => {
                let count = left.min(bytes);
                if count == 0 {
                    break incoming.end();
                }
                incoming.header_space()[..count].copy_from_slice(&stream[at..at + count]);
                at += count;
                incoming.header_received(count).map(|header| {
                    if let Some(header) = header {
                        payload = memory(&header);
                        seen.push(Seen::Header(header));
                    }
                })
            }
            Want::Payload { bytes: 0, .. } => incoming.finish(checksum(&payload)).map(|header| {
                seen.push(Seen::Frame(header, std::mem::take(&mut payload)));
            }),
            Want::Payload { offset, bytes, .. } => {
                let count = left.min(bytes);
                if count == 0 {
                    break incoming.end();
                }
                payload[offset..offset + count].copy_from_slice(&stream[at..at + count]);
                at += count;
                incoming.payload_received(count)
            }
        };
        if let Err(error) = step {
            break Err(error);
        }
    };
    seen.push(Seen::End(end.map_err(|error| error.refusal)));
    seen
}

fn is_complete(incoming: &Incoming) -> bool {
    matches!(incoming.want(), Want::Payload { bytes: 0, .. })
}

fn memory(header: &Header) -> Vec<u8> {
    let bytes = usize::try_from(header.payload_bytes).expect("a header within its limit");
    assert!(
        bytes <= PAYLOAD_MAX,
        "no memory is asked for beyond the limit"
    );
    vec![0; bytes]
}

/// The state table and each payload, as far as the connection goes.
fn follow(seen: &[Seen], place: u8) {
    let end = ENDS[usize::from(place & 3)];
    let state = STATES[usize::from(place >> 2 & 7)];
    let mut conversation = Conversation::at(end, state, 2);
    if place & 32 != 0 {
        conversation.opened(1);
    }
    for one in seen {
        let Seen::Frame(header, payload) = one else {
            continue;
        };
        if header.checksummed {
            assert_eq!(header.payload_checksum, checksum(payload));
        }
        let before = conversation.state();
        if conversation.receive(header).is_err() {
            assert_eq!(
                conversation.state(),
                before,
                "a refused frame changes nothing"
            );
            return;
        }
        assert_ne!(before, LinkState::Ended, "nothing comes after a fate");
        match Message::parse(header, payload, &Surroundings::default()) {
            Ok(message) => check(&message, payload),
            Err(_) => return,
        }
    }
}
