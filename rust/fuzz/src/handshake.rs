//! The handshake: one end against arbitrary bytes, or two honest ends with a hostile wire between.
//!
//! First byte: 0 the acceptor reads the input, 1 the connector does, else both ends play. Then two
//! bytes of settings a side, a byte of circumstances, and up to four changes of
//! the wire (frame, offset, mask).

use stagelink_proto::fingerprint::Fingerprint;
use stagelink_proto::handshake::{
    Acceptor, CHALLENGE_FRAME, Connector, Decision, HELLO_FRAME, Linked, Links, NotLinked,
    PROOF_FRAME, Proving, WELCOME_FRAME,
};
use stagelink_proto::hello::{Link, Settings};
use stagelink_proto::proof::Secret;

use crate::repair::repair;
use crate::source::Source;

const KEY: [u8; 32] = [7; 32];
const NEAR_NONCE: [u8; 32] = [0x11; 32];
const FAR_NONCE: [u8; 32] = [0x22; 32];
const LAUNCH: [u8; 16] = [0xA0; 16];

/// # Panics
///
/// Where a rule does not hold.
pub fn judge(input: &[u8]) {
    let mut source = Source::new(input);
    match source.u8() {
        0 => accept_anything(&mut source),
        1 => connect_to_anything(&mut source),
        _ => play(&mut source),
    }
}

/// Nobody without the key gets past the proof.
fn accept_anything(source: &mut Source<'_>) {
    let mut hello: [u8; HELLO_FRAME] = source.array();
    let mut proof: [u8; PROOF_FRAME] = source.array();
    repair(&mut hello);
    repair(&mut proof);
    let acceptor = Acceptor::new(Secret::from_key(&KEY), settings(1, 0), Links::Both);
    if let Ok((greeted, _)) = acceptor.hello(&hello, FAR_NONCE) {
        assert!(
            greeted.proof(&proof).is_err(),
            "a stranger has proved the key"
        );
    }
}

/// Nobody without the key is believed.
fn connect_to_anything(source: &mut Source<'_>) {
    let mut challenge: [u8; CHALLENGE_FRAME] = source.array();
    repair(&mut challenge);
    let connector = connector(0, 0);
    let (greeting, _) = connector.start(NEAR_NONCE).expect("a hello can be sent");
    let Ok((proving, _)) = greeting.challenge(&challenge) else {
        return;
    };
    let mut answer = source.bytes(WELCOME_FRAME + 128).to_vec();
    repair(&mut answer);
    if let Some(header) = answer.first_chunk() {
        let _ = Proving::payload_bytes(header);
    }
    let refused = proving
        .answer(&answer)
        .expect_err("a stranger was believed");
    assert!(
        !refused.fate_due && refused.text.is_none(),
        "a stranger was answered"
    );
}

/// One change of one frame in transit.
#[derive(Clone, Copy)]
struct Change {
    frame: u8,
    offset: u8,
    mask: u8,
}

fn change(frame: &mut [u8], number: u8, changes: &[Change]) -> bool {
    let before = frame.to_vec();
    for one in changes.iter().filter(|one| one.frame % 4 == number) {
        let offset = usize::from(one.offset) % frame.len();
        frame[offset] ^= one.mask;
    }
    let touched = before != frame;
    if touched {
        // Whoever can change a frame can make its checksums good again.
        repair(frame);
    }
    touched && before != frame
}

/// Both ends hold the key; the wire may change bytes, and the ends may disagree.
///
/// Circumstances: bit 0 the place is taken; bits 1 to 3 which links the acceptor takes; bit 4 a
/// control link; bit 5 the connector believes that it dials the lead.
fn play(source: &mut Source<'_>) {
    let (near, far, free) = (source.u16(), source.u16(), source.u8());
    let changes: [Change; 4] = std::array::from_fn(|_| Change {
        frame: source.u8(),
        offset: source.u8(),
        mask: source.u8(),
    });
    let secret = Secret::from_key(&KEY);
    let links = [Links::Both, Links::Ring, Links::Control][usize::from(free >> 1 & 7) % 3];
    let acceptor = Acceptor::new(secret, settings(1, far), links);
    let (greeting, mut hello) = connector(near, free >> 4)
        .start(NEAR_NONCE)
        .expect("a hello can be sent");
    let mut hurt = change(&mut hello, 0, &changes);
    let Ok((greeted, mut challenge)) = acceptor.hello(&hello, FAR_NONCE) else {
        return;
    };
    hurt |= change(&mut challenge, 1, &changes);
    let Ok((proving, mut proof)) = greeting.challenge(&challenge) else {
        return;
    };
    hurt |= change(&mut proof, 2, &changes);
    let Ok(verified) = greeted.proof(&proof) else {
        return;
    };
    assert!(!hurt, "a changed frame was taken");
    match verified
        .decide(free & 1 == 0)
        .expect("an answer can be sent")
    {
        Decision::Welcome(there, mut welcome) => {
            let bent = change(&mut welcome, 3, &changes);
            match proving.answer(&welcome) {
                Ok(here) => check_link(&here, &there, bent),
                Err(_) => assert!(bent || near != far, "two equal ends must link"),
            }
        }
        Decision::Refuse(error, mut refused) => {
            let bent = change(&mut refused, 3, &changes);
            let answer = proving
                .answer(&refused)
                .expect_err("a refused end has linked");
            check_refusal(&answer, bent, error.refusal.name());
        }
    }
}

fn check_link(here: &Linked, there: &Linked, changed: bool) {
    assert!(!changed, "a changed welcome was taken");
    assert_eq!(here.launch_id, there.launch_id);
    assert!(here.traffic_to_acceptor == there.traffic_to_acceptor);
    assert!(here.traffic_to_connector == there.traffic_to_connector);
    let (far, near) = (&here.peer, &there.peer);
    assert_eq!(
        (far.world, far.options, far.suite),
        (near.world, near.options, near.suite)
    );
    assert_eq!((far.link, far.lanes), (near.link, near.lanes));
    assert_eq!((far.rank, far.peer_rank), (near.peer_rank, near.rank));
    assert_eq!(far.fingerprint, near.fingerprint);
}

fn check_refusal(answer: &NotLinked, changed: bool, reason: &str) {
    let name = answer.error.refusal.name();
    if changed {
        assert!(answer.text.is_none(), "a changed refusal was believed");
    } else {
        assert!(
            name.starts_with(reason),
            "refused for {reason}, reported as {name}"
        );
    }
}

/// `place`: bit 0 for a control link, bit 1 to believe that it dials the lead.
fn connector(bits: u16, place: u8) -> Connector {
    let link = if place & 1 == 0 {
        Link::Ring
    } else {
        Link::Control
    };
    let peer_rank = 1 - u32::from(place >> 1 & 1);
    Connector::new(Secret::from_key(&KEY), settings(0, bits), link, peer_rank)
}

/// Settings that differ from the usual in one place for each bit.
fn settings(rank: u32, bits: u16) -> Settings {
    let flag = |number: u16| u8::from(bits >> number & 1 == 1);
    let bit = |number: u16| u32::from(flag(number));
    let mut fields = [[1; 32]; 8];
    fields[usize::from(bits >> 8) % 8] = [1 + flag(11); 32];
    let mut own = Settings::new(rank, 2 + bit(0), Fingerprint::new(fields));
    own.options = bit(1);
    own.lanes += flag(2);
    own.lane += flag(3);
    own.rank = (rank + bit(4)) % own.world;
    own.payload_max >>= 10 * bit(5);
    own.payload_need = u64::from(bit(6)) << 24;
    own.launch_id = LAUNCH.map(|byte| byte + flag(7));
    own
}
