//! N ranks on a virtual clock: boot, rounds, delays, slow and stuck engines, lost peers.
//! The machines are the crate's own; sockets, clocks and engines are simulated, all from one seed.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "small numbers of a simulation"
)]

#[path = "support/descriptions.rs"]
mod descriptions;
#[path = "support/link_end.rs"]
mod link_end;
#[path = "support/pipe.rs"]
mod pipe;
#[path = "support/rank/mod.rs"]
mod rank;
#[path = "support/ring.rs"]
mod ring;

use std::time::Duration;

use pipe::Draw;
use rank::Manner;
use ring::{DELAY_MS, Ring};
use stagelink_proto::{Refusal, keepalive::Timers, limits::FATE_WAIT};

const WORLDS: [u32; 4] = [2, 3, 5, 8];
/// Well beyond every run: what does not end by then hangs.
const END: Duration = Duration::from_secs(3_600);

/// Loads within a second, computes within 20 ms.
fn brisk(_: u32, draw: &mut Draw) -> Manner {
    Manner {
        load: draw.millis(1_000),
        compute: draw.millis(20),
        busy_limit_ms: 5_000,
        wedged_in: None,
    }
}

/// The longest that a failure which closes a socket may take to reach all: the fate wait, and a
/// few delays.
fn named_within() -> Duration {
    FATE_WAIT + Duration::from_millis(8 * DELAY_MS)
}

/// Silence is found by three intervals after the last frame, which was at most one before.
fn silence_found_within() -> Duration {
    let timers = Timers::default();
    timers.silence_limit() + timers.interval + named_within()
}

#[test]
fn every_ring_boots_runs_its_rounds_and_ends_orderly() {
    for world in WORLDS {
        for seed in 0..20 {
            let mut ring = Ring::new(seed, world, brisk);
            ring.run(END);
            ring.assert_finished();
        }
    }
}

#[test]
fn a_stage_that_loads_for_minutes_is_not_declared_dead() {
    for world in WORLDS {
        let mut ring = Ring::new(1, world, |rank, draw| {
            let load = if rank == world - 1 { 300 } else { 0 };
            Manner {
                load: Duration::from_secs(load),
                ..brisk(rank, draw)
            }
        });
        ring.run(END);
        ring.assert_finished();
    }
}

#[test]
fn a_stage_that_computes_for_a_minute_is_not_declared_dead() {
    for world in WORLDS {
        for slow in [0, world - 1] {
            let mut ring = Ring::new(2, world, |rank, draw| {
                let compute = if rank == slow {
                    Duration::from_secs(60)
                } else {
                    draw.millis(20)
                };
                Manner {
                    compute,
                    busy_limit_ms: 120_000,
                    ..brisk(rank, draw)
                }
            });
            ring.run(END);
            ring.assert_finished();
            assert!(
                ring.ranks[1].keep_alives > 20,
                "the lead keeps alive mid-round"
            );
        }
    }
}

#[test]
fn a_stage_that_dies_at_any_time_is_named_by_every_other_within_a_second() {
    let mut named = 0;
    for world in WORLDS {
        for seed in 0..40 {
            let mut ring = Ring::new(seed, world, brisk);
            let at = ring.wire.draw.millis(1_600);
            let victim = ring.wire.draw.below(u64::from(world)) as u32;
            ring.run(at);
            if ring.is_closing() {
                continue;
            }
            let since = ring.now;
            ring.kill(victim);
            ring.run(END);
            if ring.is_closing() {
                continue;
            }
            named += 1;
            assert!(named_within() < Duration::from_secs(1));
            ring.assert_named(victim, since, named_within());
        }
    }
    assert!(named > 100, "most died before the orderly end: {named}");
}

#[test]
fn a_stage_that_freezes_is_named_by_every_other_after_three_silent_intervals() {
    let mut named = 0;
    for world in WORLDS {
        for seed in 0..10 {
            let mut ring = Ring::new(seed, world, brisk);
            let at = ring.wire.draw.millis(1_600);
            let victim = ring.wire.draw.below(u64::from(world)) as u32;
            ring.run(at);
            if ring.is_closing() {
                continue;
            }
            let since = ring.now;
            ring.freeze(victim);
            ring.run(END);
            if ring.is_closing() {
                continue;
            }
            named += 1;
            ring.assert_named(victim, since, silence_found_within());
        }
    }
    assert!(named > 25, "most froze before the orderly end: {named}");
}

#[test]
fn an_engine_that_hangs_is_named_although_its_process_lives() {
    for world in WORLDS {
        let stuck = world - 1;
        let mut ring = Ring::new(3, world, |rank, draw| {
            let wedged_in = (rank == stuck).then_some(12);
            Manner {
                wedged_in,
                ..brisk(rank, draw)
            }
        });
        ring.run(END);
        ring.assert_named(stuck, Duration::ZERO, Duration::from_secs(60));
        let refusal = ring.ranks[0].fate.fate().unwrap().refusal;
        assert_eq!(refusal, Refusal::Stalled);
    }
}

#[test]
fn a_flipped_bit_ends_the_ring_and_never_a_wrong_row() {
    let mut flipped = 0;
    for seed in 0..120 {
        let mut ring = Ring::new(seed, 3, brisk);
        let at = Duration::from_secs(1) + ring.wire.draw.millis(400);
        ring.run(at);
        if ring.is_closing() || !ring.wire.flip() {
            continue;
        }
        ring.run(END);
        if ring.is_closing() {
            continue;
        }
        flipped += 1;
        for rank in &ring.ranks {
            let fate = rank.fate.fate().expect("every rank ends");
            let is_damage = matches!(
                fate.refusal,
                Refusal::BadMagic | Refusal::HeaderChecksum | Refusal::PayloadChecksum
            );
            assert!(is_damage, "{fate:?}");
        }
    }
    assert!(flipped > 20, "enough bits were under way: {flipped}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = || {
        let mut ring = Ring::new(11, 5, brisk);
        ring.run(END);
        (ring.now, ring.ranks[0].rows_checked)
    };
    assert_eq!(run(), run());
}
