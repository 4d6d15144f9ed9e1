//! The lead's boot and the agreement of all descriptions: each rule, and the rank that it names.
//! Boots of whole rings are in `ring_sim`.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

#[path = "support/descriptions.rs"]
mod descriptions;

use descriptions::description;
use stagelink_proto::{
    ProtocolError, Refusal,
    boot::LeadBoot,
    describe::{Description, RowDtype, Sampler},
    handshake::{predecessor, successor},
    layout::{Layout, check_ranges},
    ready::Ready,
    roster::Roster,
};

/// How one description is broken.
type Change = fn(&mut Description);

fn verdict(change: impl Fn(&mut Vec<Description>)) -> (Refusal, Option<u32>) {
    let mut all: Vec<Description> = (0..3).map(|rank| description(rank, 3)).collect();
    change(&mut all);
    let error = Layout::agree(&all, 3).unwrap_err();
    (error.refusal, error.rank)
}

fn named<T: std::fmt::Debug>(verdict: Result<T, ProtocolError>) -> (Refusal, Option<u32>) {
    let error = verdict.unwrap_err();
    (error.refusal, error.rank)
}

#[test]
fn every_rule_of_the_layout_names_its_rank() {
    let cases: [(&str, Refusal, Change); 15] = [
        ("world", Refusal::WorldDescription, |it| it.world = 4),
        ("version", Refusal::EngineVersion, |it| {
            it.engine_version = "2".into();
        }),
        ("layers", Refusal::Layers, |it| it.layers = 13),
        ("width", Refusal::FormatWidth, |it| it.width = 3),
        ("planes", Refusal::FormatPlanes, |it| it.planes = 2),
        ("dtype", Refusal::FormatDtype, |it| {
            it.row_dtype = RowDtype::Float16;
        }),
        ("draft", Refusal::DraftWidth, |it| it.draft_width = 1),
        ("sampler", Refusal::Sampler, |it| it.sampler = Sampler::Last),
        ("chunk", Refusal::Shapes, |it| it.chunk_rows = 8),
        ("buffers", Refusal::Shapes, |it| it.buffers = 3),
        ("invariance", Refusal::BatchInvariance, |it| {
            it.batch_invariant = true;
        }),
        ("gap", Refusal::RangeGap, |it| it.first += 1),
        ("overlap", Refusal::RangeOverlap, |it| it.first -= 1),
        ("kv", Refusal::CapacityKvRows, |it| it.kv_rows = 255),
        ("states", Refusal::CapacityStates, |it| it.states = 3),
    ];
    for (what, refusal, change) in cases {
        assert_eq!(
            verdict(|all| change(&mut all[2])),
            (refusal, Some(2)),
            "{what}"
        );
    }
}

#[test]
fn layers_that_no_rank_holds_at_the_end_are_a_gap_of_the_last_rank() {
    assert_eq!(verdict(|all| all[2].end = 11), (Refusal::RangeGap, Some(2)));
}

#[test]
fn layers_beyond_the_model_are_an_overrun() {
    assert_eq!(
        verdict(|all| all[2].end = 13),
        (Refusal::RangeOverrun, Some(2))
    );
}

#[test]
fn the_first_fault_in_rank_order_is_named() {
    assert_eq!(
        named(check_ranges([(0, 0, 9), (1, 4, 20)], 8)),
        (Refusal::RangeOverrun, Some(0))
    );
    assert_eq!(
        named(check_ranges([(0, 1, 4), (1, 4, 8)], 8)),
        (Refusal::RangeGap, Some(0))
    );
}

#[test]
fn a_missing_description_names_the_rank_that_never_joined() {
    assert_eq!(
        verdict(|all| drop(all.remove(1))),
        (Refusal::NeverJoined, Some(1))
    );
}

#[test]
fn backends_and_kv_dtypes_may_differ() {
    let mut all: Vec<Description> = (0..3).map(|rank| description(rank, 3)).collect();
    all[1].backend = "other".into();
    all[1].kv_dtype = stagelink_proto::describe::KvDtype::Q8;
    Layout::agree(&all, 3).unwrap();
}

#[test]
fn every_rank_may_promise_batch_invariance_and_some_may_lack_keep() {
    let mut all: Vec<Description> = (0..3).map(|rank| description(rank, 3)).collect();
    for it in &mut all {
        it.batch_invariant = true;
    }
    all[1].keep = false;
    Layout::agree(&all, 3).unwrap();
}

#[test]
fn the_tightest_stage_bounds_the_ring() {
    let mut all: Vec<Description> = (0..3).map(|rank| description(rank, 3)).collect();
    all[0].rounds_in_flight_max = 8;
    all[1].kv_rows = 300;
    all[2].ops |= 1 << 5;
    all[2].states = 9;
    let layout = Layout::agree(&all, 3).unwrap();
    assert_eq!(layout.rounds_in_flight_max, 3);
    assert_eq!((layout.capacity.kv_rows, layout.capacity.states), (300, 4));
    assert_eq!(layout.plan_bounds.ops, all[0].ops);
}

#[test]
fn the_lead_opens_once_every_rank_is_linked_described_and_ready() {
    let mut boot = LeadBoot::new(description(0, 3)).unwrap();
    assert_eq!(boot.undescribed().collect::<Vec<_>>(), [1, 2]);
    assert!(!boot.is_free(0) && boot.is_free(1) && !boot.is_free(3));
    for rank in [2, 1] {
        boot.linked(rank).unwrap();
        assert_eq!(named(boot.linked(rank)), (Refusal::RankTaken, Some(rank)));
        assert_eq!(named(boot.layout()).0, Refusal::NeverJoined);
        boot.described(description(rank, 3)).unwrap();
    }
    assert_eq!(
        named(boot.described(description(1, 3))),
        (Refusal::RankDuplicate, Some(1))
    );
    boot.layout().unwrap();
    for rank in [0, 1, 2] {
        assert_eq!(boot.unready().count(), 3 - rank as usize);
        let ready = Ready {
            rank,
            load_ms: 0,
            tensor_bytes_held: 0,
            tensor_bytes_read: 0,
        };
        boot.ready(ready).unwrap();
    }
    assert_eq!(boot.unready().next(), None);
    assert_eq!(boot.roster().unwrap().world(), 3);
}

#[test]
fn a_follower_refuses_a_roster_that_leaves_a_layer_out() {
    let all: Vec<Description> = (0..3).map(|rank| description(rank, 3)).collect();
    let mut bytes = Vec::new();
    Roster::of_descriptions(&all)
        .unwrap()
        .encode(&mut bytes)
        .unwrap();
    assert_eq!(
        Roster::parse(&bytes, 3, 12)
            .unwrap()
            .member(1)
            .unwrap()
            .first,
        4
    );
    assert_eq!(
        named(Roster::parse(&bytes, 3, 13)),
        (Refusal::RangeGap, Some(2))
    );
}

#[test]
fn ranks_go_round_the_ring() {
    for world in 2..9 {
        for rank in 0..world {
            assert_eq!(successor(rank, world), (rank + 1) % world);
            assert_eq!(predecessor(successor(rank, world), world), rank);
        }
    }
}
