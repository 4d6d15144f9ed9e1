//! Streams against a plain model: the same verdict, and no change where a plan is refused.
//! The rules that need no state have vectors.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*, test_runner::RngSeed};
use stagelink_proto::{
    Refusal,
    plan::{Entry, Op, Plan, PlanBounds, PlanParts},
    streams::{Capacity, Streams},
};

const CAPACITY: Capacity = Capacity {
    context: 12,
    states: 3,
    kv_rows: 15,
};

/// What a stream's state is, said as plainly as section 6.7 says it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    open: BTreeMap<u32, (i64, i64, i64)>,
    opened: i64,
}

impl Model {
    fn admit(&mut self, entries: &[Entry]) -> Result<(), Refusal> {
        let before = self.clone();
        let verdict = entries
            .iter()
            .try_for_each(|entry| self.apply(entry))
            .and_then(|()| {
                let positions: i64 = self
                    .open
                    .values()
                    .map(|(first, rows, _)| first + rows)
                    .sum();
                if positions > CAPACITY.kv_rows.cast_signed() {
                    Err(Refusal::KvFull)
                } else {
                    Ok(())
                }
            });
        if verdict.is_err() {
            *self = before;
        }
        verdict
    }

    fn apply(&mut self, entry: &Entry) -> Result<(), Refusal> {
        let (first, rows) = (i64::from(entry.first), i64::from(entry.rows));
        let fits = first + rows <= i64::from(CAPACITY.context);
        if matches!(entry.op, Op::Open | Op::Resume) {
            if i64::from(entry.id) <= self.opened {
                return Err(Refusal::StreamReused);
            }
            if self.open.len() == CAPACITY.states as usize {
                return Err(Refusal::StreamsFull);
            }
            if !fits {
                return Err(Refusal::ContextOverrun);
            }
            self.opened = i64::from(entry.id);
            let generation = i64::from(entry.op == Op::Resume);
            self.open.insert(entry.id, (first, rows, generation));
            return Ok(());
        }
        let &(begun, had, generation) = self.open.get(&entry.id).ok_or(Refusal::UnknownStream)?;
        if i64::from(entry.generation) != generation {
            return Err(Refusal::StaleGeneration);
        }
        if matches!(entry.op, Op::Close | Op::Cancel) {
            self.open.remove(&entry.id);
            return Ok(());
        }
        let accepted = i64::from(entry.accepted);
        if accepted > had {
            return Err(Refusal::AcceptedOutside);
        }
        if first != begun + accepted {
            return Err(Refusal::WrongPosition);
        }
        if !fits {
            return Err(Refusal::ContextOverrun);
        }
        let cut_back = i64::from(accepted < had);
        self.open
            .insert(entry.id, (first, rows, generation + cut_back));
        Ok(())
    }

    fn state(&self) -> Vec<(u32, i64, i64, i64)> {
        self.open
            .iter()
            .map(|(&id, &(first, rows, generation))| (id, first, rows, generation))
            .collect()
    }
}

/// An entry that is right for the model, or nearly.
fn entry(model: &Model, id: u32, (op, rows, slip): (u8, u32, u8)) -> Entry {
    let op = Op::from_number(op).unwrap();
    let open = model.open.get(&id).copied().unwrap_or((0, 0, 0));
    let narrow = |value: i64| u32::try_from(value.max(0)).unwrap();
    let blank = Entry {
        id,
        op,
        first: 0,
        rows,
        accepted: 0,
        resume: 0,
        generation: 0,
    };
    let off = |which: u8| i64::from(slip == which);
    match op {
        Op::Open => blank,
        Op::Resume => Entry {
            first: 3,
            resume: 2,
            ..blank
        },
        Op::Close | Op::Cancel => Entry {
            rows: 0,
            generation: narrow(open.2 + off(1)),
            ..blank
        },
        Op::Continue => {
            let accepted = open.1 - i64::from(rows % 2) + 2 * off(2);
            Entry {
                first: narrow(open.0 + accepted.max(0) + off(3)),
                accepted: narrow(accepted),
                generation: narrow(open.2 + off(1)),
                ..blank
            }
        }
    }
}

type Round = Vec<(u32, (u8, u32, u8))>;

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let op = prop_oneof![2 => Just(1_u8), 6 => Just(2), 1 => Just(3), 1 => Just(4), 1 => Just(5)];
    vec(vec((1_u32..9, (op, 1_u32..5, 0_u8..12)), 1..4), 1..30)
}

fn plan_of(entries: Vec<Entry>) -> Plan {
    let parts = PlanParts {
        entries,
        ..PlanParts::default()
    };
    Plan::from_parts(parts, &PlanBounds::default()).unwrap()
}

fn state(streams: &Streams) -> Vec<(u32, i64, i64, i64)> {
    let open = streams.open().iter();
    open.map(|it| (it.id, it.first.into(), it.rows.into(), it.generation.into()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(812),
        ..ProptestConfig::default()
    })]

    #[test]
    fn streams_admit_exactly_what_the_model_admits(rounds in rounds()) {
        let (mut model, mut streams) = (Model::default(), Streams::new(CAPACITY));
        for mut round in rounds {
            round.sort_by_key(|(id, _)| *id);
            round.dedup_by_key(|(id, _)| *id);
            let entries: Vec<Entry> =
                round.into_iter().map(|(id, what)| entry(&model, id, what)).collect();
            let expected = model.admit(&entries);
            let got = streams.admit(&plan_of(entries)).map_err(|error| error.refusal);
            prop_assert_eq!(got, expected);
            prop_assert_eq!(state(&streams), model.state());
        }
    }
}

#[test]
fn a_plan_whose_last_entry_is_refused_changes_no_stream_of_the_others() {
    let mut streams = Streams::new(CAPACITY);
    let open = |id| Entry {
        id,
        op: Op::Open,
        first: 0,
        rows: 2,
        accepted: 0,
        resume: 0,
        generation: 0,
    };
    streams.admit(&plan_of(vec![open(1)])).unwrap();
    let goes_on = Entry {
        op: Op::Continue,
        first: 1,
        accepted: 1,
        ..open(1)
    };
    let stale = Entry {
        op: Op::Close,
        rows: 0,
        generation: 0,
        ..open(2)
    };
    let before = state(&streams);
    let error = streams.admit(&plan_of(vec![goes_on, stale])).unwrap_err();
    assert_eq!(error.refusal, Refusal::UnknownStream);
    assert_eq!(state(&streams), before);
}

#[test]
fn a_missed_rollback_is_a_stale_generation() {
    let mut streams = Streams::new(CAPACITY);
    let open = Entry {
        id: 1,
        op: Op::Open,
        first: 0,
        rows: 4,
        accepted: 0,
        resume: 0,
        generation: 0,
    };
    streams.admit(&plan_of(vec![open])).unwrap();
    let cut = Entry {
        op: Op::Continue,
        first: 2,
        rows: 1,
        accepted: 2,
        ..open
    };
    streams.admit(&plan_of(vec![cut])).unwrap();
    let unaware = Entry {
        op: Op::Continue,
        first: 3,
        rows: 1,
        accepted: 1,
        ..open
    };
    let error = streams.admit(&plan_of(vec![unaware])).unwrap_err();
    assert_eq!(error.refusal, Refusal::StaleGeneration);
    streams
        .admit(&plan_of(vec![Entry {
            generation: 1,
            ..unaware
        }]))
        .unwrap();
}
