//! Holders of the key whose settings do not fit: the same name on every rank, and nothing hangs.
//! Strangers and peers that break rules are in `bad_peer`.

mod support;

use std::thread;
use std::time::Duration;

use stagelink_net::error::{Kind, LinkError};
use stagelink_net::join::Settings;
use stagelink_net::ring::Ring;
use stagelink_proto::hello::Suite;

use support::{KEY, KeyFile, join, join_each, ready, settings};

/// What a case alters.
type Change<'a> = &'a dyn Fn(&mut Settings);

fn errors(outcomes: Vec<Result<Ring, LinkError>>) -> Vec<LinkError> {
    outcomes
        .into_iter()
        .map(|outcome| outcome.expect_err("a boot that cannot succeed"))
        .collect()
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
    for (rank, error) in errors(join_each(4, change, |_| {})).into_iter().enumerate() {
        // A rank that dials only after the boot has ended finds nobody, and can name nothing else.
        let is_late = error.reason == "never_joined" && error.text.contains("connection refused");
        let is_party = matches!(rank, 0 | 2);
        let is_named = error.reason == "fingerprint_config";
        assert!(is_named || (is_late && !is_party), "rank {rank}: {error}");
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
fn a_suite_that_differs_is_named_on_both_ends() {
    let pairs = [
        (Suite::Psk, Suite::SealedAes),
        (Suite::SealedAes, Suite::Psk),
        (Suite::SealedChaCha, Suite::SealedAes),
    ];
    for (lead, follower) in pairs {
        let change = |settings: &mut Settings| {
            let is_lead = settings.description.rank == 0;
            settings.suite = if is_lead { lead } else { follower };
        };
        for error in errors(join_each(2, change, |_| {})) {
            assert_eq!(error.reason, "suite", "{error}");
            assert!(error.text.contains("--seal"), "{error}");
        }
    }
}

#[test]
fn a_differing_field_of_a_sealed_ring_is_named_on_both_ends() {
    let change = |settings: &mut Settings| {
        settings.suite = Suite::SealedAes;
        settings.fields[2][0] ^= u8::from(settings.description.rank == 1);
    };
    for error in errors(join_each(2, change, |_| {})) {
        assert_eq!(error.reason, "fingerprint_tokenizer", "{error}");
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
fn a_promise_of_batch_invariance_that_some_ranks_lack_is_named_on_every_rank() {
    for those_that_promise in [[true, true, false], [false, true, false]] {
        let change = |settings: &mut Settings| {
            let rank = settings.description.rank as usize;
            settings.description.batch_invariant = those_that_promise[rank];
        };
        let odd = if those_that_promise[0] { 2 } else { 1 };
        for error in errors(join_each(3, change, |_| {})) {
            assert_eq!(
                (error.reason, error.rank, error.kind),
                ("batch_invariance", Some(odd), Kind::Refused),
                "{error}"
            );
            assert!(error.text.contains("--batch-invariant"), "{error}");
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
            for ring in &rings {
                scope.spawn(move || ready(ring).unwrap());
            }
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
fn settings_that_cannot_work_are_refused_before_anything_is_sent() {
    let key = KeyFile::new(KEY);
    let lead = |address: &str| Some(address.to_owned());
    let cases: [(&str, Change<'_>); 6] = [
        ("lead", &|settings| settings.lead = None),
        ("bad_address", &|settings| settings.lead = lead("nonsense")),
        ("bad_address", &|settings| {
            settings.lead = lead("0.0.0.0:7000");
        }),
        ("listen_loopback", &|settings| {
            settings.lead = lead("10.1.2.3:7000");
        }),
        ("key_missing", &|settings| settings.key_file.push('x')),
        ("keepalive", &|settings| settings.keepalive = Duration::ZERO),
    ];
    for (reason, change) in cases {
        let mut follower = settings(1, 2, Some("127.0.0.1:1".into()), &key);
        change(&mut follower);
        let error = join(follower).unwrap_err();
        assert_eq!(
            (error.reason, error.kind),
            (reason, Kind::Config),
            "{error}"
        );
    }
}
