//! Nanoseconds to encode and to parse what a round sends: headers, plans, progress.
//! It measures no socket and no checksum of rows. Run: `cargo bench -p stagelink-proto`.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints, and fails by panicking"
)]

use std::{hint::black_box, time::Instant};

use stagelink_proto::{
    frame::{FrameRules, Header, Kind, checksum},
    plan::{Entry, Op, Plan, PlanBounds, PlanParts, Returns},
    progress::{Phase, Progress},
    streams::{Capacity, Streams},
};

const TRIALS: u32 = 15;

/// The median over trials of the mean nanoseconds of one call.
fn measure(name: &str, mut call: impl FnMut()) {
    let calls = if std::env::args().any(|it| it == "--smoke") {
        10
    } else {
        20_000
    };
    let mut trials: Vec<f64> = (0..TRIALS)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(|_| call());
            start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
        })
        .collect();
    trials.sort_by(f64::total_cmp);
    println!("{name:<28} {:>10.1} ns", trials[trials.len() / 2]);
}

fn decode_plan(streams: u32) -> Plan {
    let entry = |id| Entry {
        id,
        op: Op::Open,
        first: 0,
        rows: 1,
        accepted: 0,
        resume: 0,
        generation: 0,
    };
    let entries: Vec<Entry> = (1..=streams).map(entry).collect();
    let returns = Some(vec![Returns::All; entries.len()]);
    let parts = PlanParts {
        entries,
        returns,
        ..PlanParts::default()
    };
    Plan::from_parts(parts, &PlanBounds::default()).unwrap()
}

fn main() {
    let header = Header::for_payload(Kind::Rows, 812, 1, &vec![0; 20_480], true).unwrap();
    let bytes = header.encode();
    measure("header, encode", || {
        black_box(black_box(&header).encode());
    });
    measure("header, parse", || {
        black_box(Header::parse(black_box(&bytes), &FrameRules::default()).unwrap());
    });
    for streams in [1, 16, 1_024] {
        let plan = decode_plan(streams);
        let bounds = PlanBounds::default();
        let mut out = Vec::new();
        measure(&format!("plan of {streams}, encode"), || {
            out.clear();
            black_box(&plan).encode(&mut out);
        });
        let mut kept = Plan::with_capacity(&bounds);
        measure(&format!("plan of {streams}, parse"), || {
            kept.parse_into(black_box(&out), &bounds).unwrap();
        });
        let capacity = Capacity {
            context: 8,
            states: streams,
            kv_rows: u64::MAX,
        };
        let open = Streams::new(capacity);
        measure(&format!("plan of {streams}, check"), || {
            open.check(black_box(&kept)).unwrap();
        });
    }
    let progress = Progress {
        rank: 1,
        phase: Phase::Computing,
        round: 9,
        counter: 7,
        busy_limit_ms: 1,
        done: 0,
    };
    let payload = progress.encode();
    measure("progress, parse", || {
        black_box(Progress::parse(black_box(&payload), 1).unwrap());
    });
    measure("checksum of 512 bytes", || {
        black_box(checksum(black_box(&[7; 512])));
    });
}
