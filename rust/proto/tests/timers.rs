//! Keep-alives, silence and stalled engines, at the edge of every limit.
//! Whole rings on a clock are in `ring_sim`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use stagelink_proto::{
    ProtocolError, Refusal,
    keepalive::{Hearing, KeepAlive, Timers, Watch},
    limits,
    open::Open,
    progress::{Phase, Progress},
};

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn refusal(verdict: Result<(), ProtocolError>) -> Option<Refusal> {
    verdict.err().map(|error| error.refusal)
}

fn progress(phase: Phase, counter: u64, busy_limit_ms: u32) -> Progress {
    Progress {
        rank: 1,
        phase,
        round: 0,
        counter,
        busy_limit_ms,
        done: 0,
    }
}

#[test]
fn a_keep_alive_is_due_one_interval_after_the_last_plan() {
    let mut keep_alive = KeepAlive::new(&Timers::default(), at(1_000));
    assert!(!keep_alive.is_due(at(2_999)));
    assert!(keep_alive.is_due(at(3_000)));
    keep_alive.sent(at(2_500));
    assert!(!keep_alive.is_due(at(4_499)));
    assert!(keep_alive.is_due(at(4_500)));
}

#[test]
fn a_peer_is_silent_after_three_intervals_without_a_frame() {
    let mut hearing = Hearing::new(&Timers::default(), at(0));
    hearing.heard(at(500));
    assert_eq!(refusal(hearing.check(at(6_499))), None);
    assert_eq!(refusal(hearing.check(at(6_500))), Some(Refusal::Silent));
}

#[test]
fn a_frame_that_was_heard_earlier_does_not_bring_silence_nearer() {
    let mut hearing = Hearing::new(&Timers::default(), at(1_000));
    hearing.heard(at(400));
    assert_eq!(hearing.silent_at(), at(7_000));
}

#[test]
fn the_open_message_sets_both_timers() {
    let timers = Timers::of_open(&Open::new(1, 20, 2).unwrap());
    assert_eq!(timers.silence_limit(), at(40));
}

#[test]
fn an_engine_whose_counter_moves_is_never_stalled() {
    let mut watch = Watch::new(at(0));
    for step in 0..100 {
        watch
            .report(&progress(Phase::Computing, step, 500), at(step * 400))
            .unwrap();
        assert_eq!(refusal(watch.check(at(step * 400 + 500))), None);
    }
}

#[test]
fn an_engine_that_stands_still_beyond_its_limit_is_stalled() {
    let mut watch = Watch::new(at(0));
    watch
        .report(&progress(Phase::Computing, 4, 500), at(1_000))
        .unwrap();
    watch
        .report(&progress(Phase::Computing, 4, 500), at(1_300))
        .unwrap();
    assert_eq!(refusal(watch.check(at(1_500))), None);
    assert_eq!(refusal(watch.check(at(1_501))), Some(Refusal::Stalled));
}

#[test]
fn a_new_phase_starts_its_own_limit() {
    let mut watch = Watch::new(at(0));
    watch
        .report(&progress(Phase::Computing, 4, 500), at(1_000))
        .unwrap();
    watch
        .report(&progress(Phase::Sending, 4, 500), at(1_400))
        .unwrap();
    assert_eq!(watch.stalled_at(), Some(at(1_900)));
}

#[test]
fn an_engine_without_a_limit_is_never_stalled() {
    let mut watch = Watch::new(at(0));
    watch
        .report(&progress(Phase::Idle, 4, 0), at(1_000))
        .unwrap();
    assert_eq!(refusal(watch.check(Duration::MAX)), None);
}

#[test]
fn a_counter_that_went_backwards_is_refused_and_forgotten() {
    let mut watch = Watch::new(at(0));
    watch
        .report(&progress(Phase::Computing, 4, 500), at(1_000))
        .unwrap();
    let verdict = watch.report(&progress(Phase::Idle, 3, 0), at(1_100));
    assert_eq!(refusal(verdict), Some(Refusal::ProgressBackwards));
    assert_eq!(watch.phase(), Some(Phase::Computing));
}

#[test]
fn a_payload_has_five_seconds_and_its_bytes_at_the_slowest_rate() {
    assert_eq!(limits::payload_limit(0), Duration::from_secs(5));
    assert_eq!(limits::payload_limit(100_000), Duration::from_secs(6));
    assert_eq!(
        limits::payload_limit(10 << 20),
        Duration::from_millis(5_000 + 104_858)
    );
}
