//! Strangers and holders of the key that do not fit: who is told what, and who goes on.
//! Honest ranks that fail are in `fail_fast`.

mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use stagelink_net::error::{Kind, LinkError};
use stagelink_net::join::Settings;
use stagelink_net::ring::Ring;
use stagelink_net::wait::Uninterrupted;
use stagelink_proto::fingerprint::Fingerprint;
use stagelink_proto::frame::{Header, Kind as FrameKind};
use stagelink_proto::handshake::{CHALLENGE_FRAME, Connector, WELCOME_FRAME};
use stagelink_proto::hello::{self, Link};
use stagelink_proto::proof::Secret;

use support::{KEY, KeyFile, follow, join, open_ring, ready, settings};

/// Join a ring of `world` with every rank's settings altered; each rank's outcome, rank 0 first.
fn join_each(
    world: u32,
    change: impl Fn(&mut Settings) + Sync,
    visit: impl FnOnce(SocketAddr) + Send,
) -> Vec<Result<Ring, LinkError>> {
    let key = KeyFile::new(KEY);
    let mut lead = settings(0, world, None, &key);
    change(&mut lead);
    let address = lead.listener.address();
    let (change, key) = (&change, &key);
    thread::scope(|scope| {
        let lead = scope.spawn(move || join(lead));
        visit(address);
        let mut handles = vec![lead];
        for rank in 1..world {
            handles.push(scope.spawn(move || {
                let mut follower = settings(rank, world, Some(address.to_string()), key);
                change(&mut follower);
                join(follower)
            }));
        }
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap())
            .collect()
    })
}

fn errors(outcomes: Vec<Result<Ring, LinkError>>) -> Vec<LinkError> {
    outcomes
        .into_iter()
        .map(|outcome| outcome.expect_err("a boot that cannot succeed"))
        .collect()
}

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
                    1 connection failed the key proof from 127.0.0.1";
        assert_eq!(error.text, text);
    });
}

#[test]
fn the_field_of_the_fingerprint_that_differs_is_named_on_every_rank() {
    let names = [
        "config",
        "tensors",
        "tokenizer",
        "template",
        "dtype",
        "placement",
        "versions",
        "shapes",
    ];
    for (index, name) in names.into_iter().enumerate() {
        let change = |settings: &mut Settings| {
            if settings.description.rank == 1 {
                settings.fields[index] = [99; 32];
            }
        };
        for error in errors(join_each(2, change, |_| {})) {
            assert_eq!(error.reason, format!("fingerprint_{name}"));
            assert_eq!(error.kind, Kind::Refused);
        }
    }
}

#[test]
fn one_rank_that_does_not_fit_ends_the_boot_of_all() {
    let change = |settings: &mut Settings| {
        if settings.description.rank == 2 {
            settings.fields[0] = [99; 32];
        }
    };
    for error in errors(join_each(4, change, |_| {})) {
        assert_eq!(error.reason, "fingerprint_config", "{error}");
    }
}

#[test]
fn worlds_that_differ_are_named_on_both_ends() {
    let change = |settings: &mut Settings| {
        if settings.description.rank == 1 {
            settings.description.world = 3;
        }
    };
    for error in errors(join_each(2, change, |_| {})) {
        assert_eq!(error.reason, "world", "{error}");
    }
}

#[test]
fn a_checksum_option_that_differs_is_named_on_both_ends() {
    let change = |settings: &mut Settings| settings.checksums = settings.description.rank == 0;
    for error in errors(join_each(2, change, |_| {})) {
        assert_eq!(error.reason, "options", "{error}");
    }
}

#[test]
fn a_gap_an_overlap_and_an_overrun_name_the_rank_on_every_rank() {
    let cases = [
        ("range_gap", 11, 20),
        ("range_overlap", 9, 20),
        ("range_overrun", 10, 31),
    ];
    for (reason, first, end) in cases {
        let change = |settings: &mut Settings| {
            if settings.description.rank == 1 {
                (settings.description.first, settings.description.end) = (first, end);
            }
        };
        for error in errors(join_each(3, change, |_| {})) {
            assert_eq!((error.reason, error.rank), (reason, Some(1)), "{error}");
            assert!(
                error.text.starts_with("rank 1 (host1 127.0.0.1:"),
                "{error}"
            );
        }
    }
}

#[test]
fn a_second_process_of_a_rank_is_refused_and_the_first_is_not_disturbed() {
    let key = KeyFile::new(KEY);
    let lead = settings(0, 3, None, &key);
    let address = lead.listener.address().to_string();
    thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let lead = scope.spawn(|| join(lead).unwrap());
        for _ in 0..2 {
            let (sender, first) = (sender.clone(), settings(1, 3, Some(address.clone()), &key));
            scope.spawn(move || sender.send(join(first)).unwrap());
        }
        let refused = receiver
            .recv_timeout(Duration::from_secs(5))
            .unwrap()
            .unwrap_err();
        assert_eq!(
            (refused.reason, refused.kind),
            ("rank_taken", Kind::Refused)
        );
        let last = scope.spawn(|| join(settings(2, 3, Some(address.clone()), &key)).unwrap());
        let first = receiver
            .recv_timeout(Duration::from_secs(5))
            .unwrap()
            .unwrap();
        let rings = [lead.join().unwrap(), first, last.join().unwrap()];
        thread::scope(|scope| {
            rings.iter().for_each(|ring| {
                scope.spawn(move || ready(ring).unwrap());
            })
        });
    });
}

#[test]
fn a_rank_of_another_launch_is_turned_away_alone() {
    let key = KeyFile::new(KEY);
    let mut lead = settings(0, 2, None, &key);
    lead.launch_id = Some([1; 16]);
    let address = lead.listener.address().to_string();
    thread::scope(|scope| {
        let lead = scope.spawn(|| join(lead));
        let mut stale = settings(1, 2, Some(address.clone()), &key);
        stale.launch_id = Some([2; 16]);
        assert_eq!(join(stale).unwrap_err().reason, "launch");
        let real = join(settings(1, 2, Some(address), &key)).unwrap();
        assert_eq!(real.launch_id(), [1; 16]);
        lead.join().unwrap().unwrap();
    });
}

#[test]
fn a_follower_that_never_comes_is_named_by_all_who_came() {
    let key = KeyFile::new(KEY);
    let mut lead = settings(0, 4, None, &key);
    lead.join_limit = Duration::from_millis(500);
    let address = lead.listener.address().to_string();
    thread::scope(|scope| {
        let mut handles = vec![scope.spawn(|| join(lead).unwrap_err())];
        for rank in [1, 3] {
            let follower = settings(rank, 4, Some(address.clone()), &key);
            handles.push(scope.spawn(|| join(follower).unwrap_err()));
        }
        for error in handles.into_iter().map(|handle| handle.join().unwrap()) {
            assert_eq!(
                (error.reason, error.rank),
                ("never_joined", Some(2)),
                "{error}"
            );
            assert_eq!(error.text, "rank 2 never joined within 0.5 s");
        }
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

#[test]
fn settings_that_cannot_work_are_refused_before_anything_is_sent() {
    let key = KeyFile::new(KEY);
    let refuse = |change: &dyn Fn(&mut Settings)| {
        let mut follower = settings(1, 2, Some("127.0.0.1:1".into()), &key);
        change(&mut follower);
        Ring::join(follower, &Uninterrupted).unwrap_err()
    };
    let cases: [(&str, &dyn Fn(&mut Settings)); 6] = [
        ("lead", &|settings| settings.lead = None),
        ("bad_address", &|settings| {
            settings.lead = Some("nonsense".into())
        }),
        ("bad_address", &|settings| {
            settings.lead = Some("0.0.0.0:7000".into())
        }),
        ("listen_loopback", &|settings| {
            settings.lead = Some("10.1.2.3:7000".into())
        }),
        ("key_missing", &|settings| {
            settings.key_file = "/nonexistent/key".into()
        }),
        ("keepalive", &|settings| {
            settings.keepalive = Duration::from_millis(1)
        }),
    ];
    for (reason, change) in cases {
        let error = refuse(change);
        assert_eq!(
            (error.reason, error.kind),
            (reason, Kind::Config),
            "{error}"
        );
    }
}
