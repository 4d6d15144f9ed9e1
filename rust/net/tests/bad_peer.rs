//! Strangers and holders of the key that do not fit: who is told what, and who goes on.
//! Honest ranks that fail are in `fail_fast`.

mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use stagelink_net::error::{Kind, LinkError};
use stagelink_proto::fingerprint::Fingerprint;
use stagelink_proto::frame::{Header, Kind as FrameKind};
use stagelink_proto::handshake::{CHALLENGE_FRAME, Connector, WELCOME_FRAME};
use stagelink_proto::hello::{self, Link};
use stagelink_proto::proof::Secret;

use support::{KEY, KeyFile, follow, join, join_each, open_ring, settings};

#[test]
fn strangers_are_closed_without_a_word_and_the_real_peer_still_joins() {
    let outcomes = join_each(
        2,
        |_| {},
        |address| {
            let greetings: [&[u8]; 4] = [
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\r\n",
                &[0x16; 400],
                &[0; 160],
                b"SLNK",
            ];
            let mut strangers = Vec::new();
            for greeting in greetings.iter().cycle().take(40) {
                let mut stranger = TcpStream::connect(address).unwrap();
                // The listener may have closed already; then there is nobody to write to.
                let _ = stranger.write_all(greeting);
                strangers.push(stranger);
            }
            let mut whole = TcpStream::connect(address).unwrap();
            whole.write_all(&[7; 160]).unwrap();
            whole
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            // Either end of the connection, and never a byte of an answer.
            assert!(matches!(whole.read(&mut [0; 64]), Ok(0) | Err(_)));
            strangers.push(whole);
            // They stay connected, so that the real peer must get in beside them.
            std::mem::forget(strangers);
        },
    );
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn a_wrong_key_is_named_at_once_on_the_follower_and_counted_by_the_lead() {
    let key = KeyFile::new(KEY);
    let mut lead = settings(0, 2, None, &key);
    lead.join_limit = Duration::from_millis(600);
    let address = lead.listener.address().to_string();
    thread::scope(|scope| {
        let lead = scope.spawn(|| join(lead).unwrap_err());
        let other = KeyFile::new([8; 32]);
        let start = Instant::now();
        let error = join(settings(1, 2, Some(address), &other)).unwrap_err();
        assert_eq!(
            (error.reason, error.kind, error.rank),
            ("key", Kind::Refused, Some(0))
        );
        assert!(start.elapsed() < Duration::from_millis(400));
        let error = lead.join().unwrap();
        assert_eq!((error.reason, error.rank), ("never_joined", Some(1)));
        let text = "rank 1 never joined within 0.6 s; \
                    3 connections failed the key proof from 127.0.0.1";
        assert_eq!(error.text, text);
    });
}

#[test]
fn a_lead_that_is_not_there_is_named_with_its_address() {
    let key = KeyFile::new(KEY);
    let nobody = settings(0, 2, None, &key).listener.address();
    let mut follower = settings(1, 2, Some(nobody.to_string()), &key);
    follower.join_limit = Duration::from_millis(300);
    let error = join(follower).unwrap_err();
    assert_eq!(
        (error.reason, error.rank, error.seconds),
        ("never_joined", Some(0), Some(0.3))
    );
    assert_eq!(
        error.text,
        format!(
            "rank 0 at {nobody} did not answer within 0.3 s (connection refused); \
             is it running, is the address right?"
        )
    );
}

#[test]
fn an_acceptor_that_says_nothing_is_named_with_its_address() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let key = KeyFile::new(KEY);
    let mut follower = settings(1, 2, Some(silent.local_addr().unwrap().to_string()), &key);
    follower.join_limit = Duration::from_millis(300);
    let error = join(follower).unwrap_err();
    assert_eq!((error.reason, error.rank), ("never_joined", Some(0)));
}

/// A follower made by hand: it holds the key, shakes hands, and then does as it likes.
fn shake_hands(address: SocketAddr, rank: u32, world: u32) -> TcpStream {
    let fields = std::array::from_fn(|index| [u8::try_from(index).unwrap(); 32]);
    let settings = hello::Settings::new(rank, world, Fingerprint::new(fields));
    let connector = Connector::new(Secret::from_key(&KEY), settings, Link::Control, 0);
    let (greeting, hello) = connector.start([3; 32]).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&hello).unwrap();
    let mut challenge = [0; CHALLENGE_FRAME];
    stream.read_exact(&mut challenge).unwrap();
    let (proving, proof) = greeting.challenge(&challenge).unwrap();
    stream.write_all(&proof).unwrap();
    let mut welcome = [0; WELCOME_FRAME];
    stream.read_exact(&mut welcome).unwrap();
    proving.answer(&welcome).unwrap();
    stream
}

/// Let a hand-made rank 1 of 2 join, and give what the lead reports.
fn lead_reports(behave: impl FnOnce(&mut TcpStream)) -> LinkError {
    let key = KeyFile::new(KEY);
    let lead = settings(0, 2, None, &key);
    let address = lead.listener.address();
    thread::scope(|scope| {
        let lead = scope.spawn(|| join(lead).unwrap_err());
        let mut stream = shake_hands(address, 1, 2);
        behave(&mut stream);
        lead.join().unwrap()
    })
}

fn frame(kind: FrameKind, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let header = Header::for_payload(kind, sequence, 0, payload, true).unwrap();
    [&header.encode()[..], payload].concat()
}

#[test]
fn bytes_that_are_no_frame_end_the_boot_by_name() {
    let error = lead_reports(|stream| stream.write_all(&[0x55; 64]).unwrap());
    assert_eq!(
        (error.reason, error.rank, error.kind),
        ("bad_magic", Some(1), Kind::PeerProtocol)
    );
}

#[test]
fn a_frame_out_of_order_a_wrong_sequence_and_a_spoilt_payload_are_named() {
    let unexpected = frame(FrameKind::Bye, 2, &[]);
    let sequence = frame(FrameKind::Progress, 3, &[0; 40]);
    let mut spoilt = frame(FrameKind::Progress, 2, &[0; 40]);
    spoilt[40] ^= 1;
    let cases = [
        (unexpected, "unexpected_kind"),
        (sequence, "bad_sequence"),
        (spoilt, "payload_checksum"),
    ];
    for (bytes, reason) in cases {
        let error = lead_reports(|stream| stream.write_all(&bytes).unwrap());
        assert_eq!((error.reason, error.rank), (reason, Some(1)), "{error}");
    }
}

#[test]
fn a_linked_peer_that_closes_at_boot_is_named() {
    let error = lead_reports(|stream| stream.shutdown(std::net::Shutdown::Both).unwrap());
    assert_eq!((error.reason, error.rank), ("peer_lost", Some(1)));
}

#[test]
fn a_half_frame_and_silence_after_it_are_found_by_the_missing_sign_of_life() {
    let half = frame(FrameKind::Progress, 2, &[0; 40]);
    let start = Instant::now();
    let key = KeyFile::new(KEY);
    let mut lead = settings(0, 2, None, &key);
    lead.silent_intervals = 2;
    lead.keepalive = Duration::from_millis(20);
    lead.join_limit = Duration::from_secs(9);
    let address = lead.listener.address();
    let error = thread::scope(|scope| {
        let lead = scope.spawn(|| join(lead).unwrap_err());
        let mut stream = shake_hands(address, 1, 2);
        stream.write_all(&half[..50]).unwrap();
        lead.join().unwrap()
    });
    assert_eq!(
        (error.reason, error.rank, error.kind),
        ("silent", Some(1), Kind::Deadline)
    );
    // Before open the default interval of 2 s counts where it is longer.
    assert!(start.elapsed() > Duration::from_secs(4));
}

#[test]
fn listeners_are_closed_once_the_ring_is_complete() {
    let rings = open_ring(2, |_| {});
    for member in rings[0].members() {
        let connected = TcpStream::connect(member.address.unwrap());
        assert_eq!(
            connected.unwrap_err().kind(),
            std::io::ErrorKind::ConnectionRefused
        );
    }
    thread::scope(|scope| {
        scope.spawn(|| follow(&rings[1]).unwrap());
        rings[0].close();
    });
}
