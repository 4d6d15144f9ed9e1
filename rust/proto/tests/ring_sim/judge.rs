//! Whether a finished run is as it must be: ended in order, or by the right name in time.
//! What may never happen in between the history has noted already.

use std::time::Duration;

use stagelink_proto::Refusal;
use stagelink_proto::hello::Link;
use stagelink_proto::keepalive::Timers;
use stagelink_proto::limits::{BYE_WAIT, JOIN_LIMIT};

use crate::faults::{KINDS, Rule, What};
use crate::node::{Node, Work};
use crate::options::Options;
use crate::ring::{Happening, Ring};
use crate::wire::USER_TIMEOUT;

/// How long a run's rounds may take that are not slow.
const WORK: Duration = Duration::from_secs(60);

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) finished: u64,
    pub(crate) named: u64,
    /// A fault came when the ring was ending anyway.
    pub(crate) late: u64,
    pub(crate) rows: u64,
    pub(crate) steps: u64,
    /// Faults that took effect, by kind.
    pub(crate) effects: [u64; KINDS.len()],
}

/// Runs a seed to its end. Errors: every rule that was broken.
pub(crate) fn run(options: Options) -> Result<Verdict, Vec<String>> {
    let mut ring = Ring::new(options);
    ring.run();
    judge(&mut ring)
}

/// The same with all that happened, for a person.
pub(crate) fn trace(options: Options) -> (Result<Verdict, Vec<String>>, Vec<String>) {
    let mut ring = Ring::new(options);
    ring.sim.history.trace = Some(Vec::new());
    ring.run();
    let verdict = judge(&mut ring);
    (verdict, ring.sim.history.trace.take().unwrap_or_default())
}

fn judge(ring: &mut Ring) -> Result<Verdict, Vec<String>> {
    let rows = ring.nodes[0]
        .work
        .as_ref()
        .map_or(0, |work| work.rows_checked);
    let mut verdict = Verdict {
        rows,
        steps: ring.steps,
        ..Verdict::default()
    };
    for it in ring.happenings.iter().filter(|it| it.since.is_some()) {
        verdict.effects[it.what.kind()] += 1;
    }
    let mut faults = Vec::new();
    let lasting = ring
        .happenings
        .iter()
        .filter(|it| it.since.is_some() && !it.what.heals());
    let lasting: Vec<&Happening> = lasting.collect();
    let closed_at = ring.nodes[0]
        .bye_due
        .and_then(|due| due.checked_sub(BYE_WAIT));
    let is_late = |it: &Happening| {
        let by = it.since.map(|since| since + limit(it, &ring.options));
        closed_at.is_some_and(|closed| by.is_some_and(|by| closed < by))
    };
    let may_finish = lasting.iter().all(|it| is_late(it) || may_go_unseen(it));
    let has_ended = ring.survivors().any(|node| node.fate().is_some());
    if ring.sim.history.is_sound() {
        if ring.is_hanging() {
            let left = ring.survivors().filter(|node| !node.is_over);
            let left: Vec<String> = left.map(Node::standing).collect();
            faults.push(format!("the run hangs: {left:?}"));
        } else if may_finish && !has_ended {
            verdict.finished = 1;
            finished(ring, &mut faults);
        } else if lasting.iter().any(|it| is_late(it)) {
            verdict.late = 1;
        } else {
            verdict.named = 1;
            named(ring, &lasting, &mut faults);
        }
    }
    if verdict.finished == 1 && faults.is_empty() && lasting.is_empty() {
        ring.sim.history.finished();
    }
    faults.splice(0..0, ring.sim.history.broken.drain(..));
    if faults.is_empty() {
        Ok(verdict)
    } else {
        Err(faults)
    }
}

/// A fault that may never be met: a link that carries nothing more, a handshake tried again.
fn may_go_unseen(it: &Happening) -> bool {
    match it.what {
        What::Flip { .. } => true,
        What::Freeze { time, .. } => time.is_some() && !it.was_open,
        What::Reset { place, .. }
        | What::HalfClose { place, .. }
        | What::BlackHole { place, .. } => place.link == Link::Ring || !it.was_open,
        What::Breaks { rule, .. } => matches!(rule, Rule::DoubleRows | Rule::ExtraCredit),
        _ => false,
    }
}

fn finished(ring: &Ring, faults: &mut Vec<String>) {
    for node in ring.survivors() {
        if node.bye_due.is_none() || node.open_streams() > 0 || node.buffers.taken() > 0 {
            faults.push(format!("rank {} did not finish its work", node.rank));
        }
    }
    if !ring.nodes[0].work.as_ref().is_some_and(Work::is_done) {
        faults.push("the lead did not finish its work".to_owned());
    }
}

/// Every rank that is left has ended in time and names a rank that is to blame.
fn named(ring: &Ring, lasting: &[&Happening], faults: &mut Vec<String>) {
    let world = ring.options.world;
    let first = lasting.iter().filter_map(|it| it.since).min();
    let Some(first) = first else {
        let fates = ring.survivors().filter_map(|node| node.fate());
        let fates: Vec<String> = fates.map(|fate| format!("{fate:?}")).collect();
        faults.push(format!(
            "nothing lasting was wrong, but the ring ended: {fates:?}"
        ));
        return;
    };
    let culprits: Vec<u32> = lasting
        .iter()
        .flat_map(|it| it.what.culprits(world))
        .collect();
    let limits = lasting
        .iter()
        .filter_map(|it| Some(it.since? + limit(it, &ring.options)));
    let healing: Duration = ring.happenings.iter().map(|it| it.what.lasts()).sum();
    let all_by = limits.max().unwrap_or_default() + healing;
    for node in ring.survivors() {
        let rank = node.rank;
        let Some((fate, at)) = node.fate().zip(node.fate_at) else {
            faults.push(format!("rank {rank} has no named error"));
            continue;
        };
        // A rank that the lead's fate could not reach knows only that the lead did not answer.
        let is_right = fate.culprit.is_some_and(|culprit| {
            culprits.contains(&culprit) || (culprit == 0 && !node.links.contains_key(&0))
        });
        // A rank that was stopped itself, and goes on, cannot tell what it missed: it only ends.
        let stopped: Duration = lasting.iter().map(|it| it.what.stops(rank)).sum();
        if !is_right && stopped.is_zero() {
            faults.push(format!(
                "rank {rank} names another than {culprits:?}: {fate:?}"
            ));
        }
        let by = all_by + stopped;
        if at > by {
            let (at, by) = (at.as_secs_f64(), by.as_secs_f64());
            faults.push(format!(
                "rank {rank} ended at {at:.3} s, not by {by:.3} s: {fate:?}"
            ));
        }
        if at < first {
            faults.push(format!(
                "rank {rank} ended before anything was wrong: {fate:?}"
            ));
        }
        check_refusal(lasting, fate.refusal, faults);
    }
}

/// The longest that a fault may stay without a named error on every rank.
fn limit(it: &Happening, options: &Options) -> Duration {
    let dead = options.dead_time() + options.interval();
    let is_boundary = match it.what {
        What::Reset { place, .. }
        | What::HalfClose { place, .. }
        | What::BlackHole { place, .. }
        | What::Flip { place, .. } => place.link == Link::Ring,
        What::Breaks { .. } => true,
        _ => false,
    };
    // Rows have to cross a boundary before anyone can know that it is broken.
    let until_used = if is_boundary {
        options.load_longest() + options.slow_total() + options.idle_longest() + WORK
    } else {
        Duration::ZERO
    };
    // Who is not linked yet is missed at the join's deadline only; who is, by the timers that
    // hold before open.
    let until_open = if it.was_open {
        Duration::ZERO
    } else {
        let before_open = Timers::default();
        JOIN_LIMIT + before_open.silence_limit() + before_open.interval
    };
    let own = match it.what {
        What::Hang { rank } => {
            let limit = options.engines[rank as usize].busy_limit_ms;
            Duration::from_millis(u64::from(limit)) + options.interval() * 2
        }
        What::BlackHole { .. } if is_boundary => USER_TIMEOUT,
        _ => Duration::ZERO,
    };
    own + until_open + until_used + dead
}

fn check_refusal(lasting: &[&Happening], refusal: Refusal, faults: &mut Vec<String>) {
    let [it] = lasting else { return };
    let fits = match it.what {
        What::Hang { .. } => refusal == Refusal::Stalled,
        What::EngineFails { .. } => refusal == Refusal::Engine,
        What::Breaks {
            rule: Rule::StalePlan,
            ..
        } => refusal == Refusal::StaleGeneration,
        What::Breaks {
            rule: Rule::SkippedRound,
            ..
        } => refusal == Refusal::BadSequence,
        What::Breaks {
            rule: Rule::DoubleRows,
            ..
        } => {
            matches!(refusal, Refusal::RowsRound | Refusal::NoCredit)
        }
        What::Breaks {
            rule: Rule::ExtraCredit,
            ..
        } => refusal == Refusal::CreditOverflow,
        _ => true,
    };
    if !fits {
        faults.push(format!("{:?} ended as {refusal:?}", it.what));
    }
}

impl Verdict {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            finished: self.finished + other.finished,
            named: self.named + other.named,
            late: self.late + other.late,
            rows: self.rows + other.rows,
            steps: self.steps + other.steps,
            effects: std::array::from_fn(|kind| self.effects[kind] + other.effects[kind]),
        }
    }
}
