//! A ring of 2 to 8 ranks, run from a seed: delays, splits, stalls, losses, slow and stuck engines.
//! The machines are the crate's own; sockets, clocks and engines are simulated.
//!
//! `RING_SIM_SEED=17 cargo test -p stagelink-proto --test ring_sim replay -- --nocapture` shows
//! one run with its options and all that happened.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]
#![allow(clippy::print_stdout, reason = "a long run shows how far it is")]

#[path = "../support/descriptions.rs"]
mod descriptions;
mod draw;
mod faults;
mod history;
mod judge;
mod link_end;
mod mutant;
mod node;
mod options;
mod ring;
mod wire;

use std::num::NonZero;
use std::ops::Range;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{available_parallelism, scope};

use faults::KINDS;
use judge::Verdict;
use mutant::Mutant;
use options::Options;

const CHUNK: u64 = 500;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// Runs seeds, so many at a time on each core. A failure prints its seed, what that means, and
/// how to see the run again.
fn run(seeds: Range<u64>) -> Verdict {
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new((Verdict::default(), Vec::new()));
    let work = || {
        loop {
            let first = next.fetch_add(CHUNK, Ordering::Relaxed);
            let chunk = first..seeds.end.min(first.saturating_add(CHUNK));
            if chunk.is_empty() {
                return;
            }
            let (verdict, failed) = run_chunk(chunk);
            let mut found = found.lock().unwrap();
            found.0 = found.0.plus(verdict);
            found.1.extend(failed);
            println!("{:?}, {} failed", found.0, found.1.len());
        }
    };
    let cores = available_parallelism().map_or(1, NonZero::get);
    scope(|threads| (0..cores).for_each(|_| drop(threads.spawn(work))));
    let (verdict, mut failed) = found.into_inner().unwrap();
    failed.sort();
    if let Some((seed, faults)) = failed.first() {
        let all: Vec<String> = failed
            .iter()
            .map(|(seed, faults)| format!("{seed}: {}", faults[0]))
            .collect();
        let (options, again) = (Options::of_seed(*seed), again(*seed));
        panic!("{options:#?}\nseed {seed}: {faults:#?}\n{again}\n{all:#?}");
    }
    verdict
}

fn run_chunk(seeds: Range<u64>) -> (Verdict, Vec<(u64, Vec<String>)>) {
    let mut sum = Verdict::default();
    let mut failed = Vec::new();
    for seed in seeds {
        match catch_unwind(|| judge::run(Options::of_seed(seed))) {
            Ok(Ok(verdict)) => sum = sum.plus(verdict),
            Ok(Err(faults)) => failed.push((seed, faults)),
            Err(_) => failed.push((seed, vec!["it panicked".to_owned()])),
        }
    }
    (sum, failed)
}

fn again(seed: u64) -> String {
    let command = "cargo test -p stagelink-proto --test ring_sim replay -- --nocapture";
    format!("to see it again: RING_SIM_SEED={seed} {command}")
}

#[test]
fn a_thousand_rings_finish_or_name_who_is_to_blame() {
    let sum = run(0..1_000);
    println!("{sum:?}");
    assert!(
        sum.finished > 300 && sum.named > 300,
        "both are common: {sum:?}"
    );
    for (kind, count) in KINDS.iter().zip(sum.effects) {
        println!("{kind}: {count}");
        assert!(count > 0, "no {kind} took effect");
    }
}

/// `RING_SIM_FIRST` and `RING_SIM_SEEDS` choose others.
#[test]
#[ignore = "takes minutes: cargo test --release -p stagelink-proto --test ring_sim -- --ignored"]
fn a_hundred_thousand_rings_finish_or_name_who_is_to_blame() {
    let first = number("RING_SIM_FIRST", 0);
    let end = first + number("RING_SIM_SEEDS", 100_000);
    let sum = run(first..end);
    println!("{sum:?}");
}

#[test]
fn every_planted_fault_is_caught_by_some_seed() {
    for mutant in Mutant::ALL {
        let planted = |seed| Options {
            mutant: Some(mutant),
            ..Options::of_seed(seed)
        };
        let caught = (0..2_000).find(|&seed| judge::run(planted(seed)).is_err());
        let seed = caught.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
        let faults = judge::run(planted(seed)).unwrap_err();
        println!("{mutant:?}: seed {seed}: {}", faults[0]);
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..40 {
        let (verdict, history) = judge::trace(Options::of_seed(seed));
        assert_eq!((verdict, history), judge::trace(Options::of_seed(seed)));
    }
}

/// Shows one run: `RING_SIM_SEED=17 cargo test .. replay -- --nocapture`.
#[test]
fn replay() {
    let options = Options::of_seed(number("RING_SIM_SEED", 0));
    let (verdict, history) = judge::trace(options.clone());
    println!("{options:#?}\n{}\n{verdict:#?}", history.join("\n"));
    verdict.unwrap();
}
