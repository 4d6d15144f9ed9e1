//! A ring of simulated ranks on one virtual clock: made from options, run, and broken as they say.
//! It judges nothing; ranks, wire and history do their own part.

use std::time::Duration;

use stagelink_proto::describe::Description;

use crate::descriptions::description;
use crate::draw::Draw;
use crate::faults::{Direction, Fault, Place, What, When};
use crate::history::History;
use crate::mutant::Mutant;
use crate::node::Node;
use crate::options::Options;
use crate::wire::{Ends, Wire};

/// Well beyond every run: what does not end by then hangs.
pub(crate) const END: Duration = Duration::from_secs(3_600);
/// The least step of the clock.
const TICK: Duration = Duration::from_micros(1);

/// What all ranks share: the clock, the wire, chance, and who writes down what happens.
pub(crate) struct Sim {
    pub(crate) now: Duration,
    pub(crate) wire: Wire,
    pub(crate) draw: Draw,
    pub(crate) history: History,
    pub(crate) interval_ms: u32,
    pub(crate) silent_intervals: u32,
    mutant: Option<Mutant>,
}

impl Sim {
    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

/// A fault and what became of it.
pub(crate) struct Happening {
    pub(crate) what: What,
    when: When,
    /// When its plans were sent.
    armed_at: Option<Duration>,
    is_over: bool,
    /// When it took effect.
    pub(crate) since: Option<Duration>,
    /// Every rank had heard by then that the ring runs.
    pub(crate) was_open: bool,
    /// The pipe of a flipped bit.
    pipe: Option<usize>,
}

/// What a process does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Process {
    Runs,
    Dead,
    FrozenUntil(Option<Duration>),
}

pub(crate) struct Ring {
    pub(crate) options: Options,
    pub(crate) sim: Sim,
    pub(crate) nodes: Vec<Node>,
    pub(crate) processes: Vec<Process>,
    pub(crate) happenings: Vec<Happening>,
    pub(crate) steps: u64,
}

impl Ring {
    pub(crate) fn new(options: Options) -> Self {
        let world = options.world;
        let mut draw = Draw::new(options.seed, 2);
        let wire = Wire::new(Draw::new(options.seed, 3), options.links, world);
        let mut launch_id = [0; 16];
        launch_id[..8].copy_from_slice(&draw.next().to_le_bytes());
        launch_id[15] = 1;
        let sim = Sim {
            now: Duration::ZERO,
            wire,
            draw,
            history: History::new(world, options.buffers),
            interval_ms: options.interval_ms,
            silent_intervals: options.silent_intervals,
            mutant: options.mutant,
        };
        let describe = |rank| Description {
            buffers: options.buffers,
            rounds_in_flight_max: options.rounds_in_flight,
            ..description(rank, world)
        };
        let nodes = (0..world).map(|rank| Node::new(describe(rank), &options, launch_id));
        let happening = |fault: &Fault| Happening {
            what: fault.what,
            when: fault.when,
            armed_at: None,
            is_over: false,
            since: None,
            was_open: false,
            pipe: None,
        };
        Self {
            nodes: nodes.collect(),
            processes: vec![Process::Runs; world as usize],
            happenings: options.faults.iter().map(happening).collect(),
            options,
            sim,
            steps: 0,
        }
    }

    /// Runs until every rank that is left is done, or the end of time.
    pub(crate) fn run(&mut self) {
        while self.sim.now < END && !self.is_over() && self.sim.history.is_sound() {
            self.steps += 1;
            self.break_things();
            for (node, process) in self.nodes.iter_mut().zip(&mut self.processes) {
                match *process {
                    Process::FrozenUntil(Some(until)) if until <= self.sim.now => {
                        *process = Process::Runs;
                    }
                    Process::Runs => {}
                    _ => continue,
                }
                node.step(&mut self.sim);
            }
            self.look_at_effects();
            self.sim.now = self.next();
            self.sim.history.now = self.sim.now;
        }
    }

    pub(crate) fn is_hanging(&self) -> bool {
        self.sim.now >= END && !self.is_over()
    }

    pub(crate) fn survivors(&self) -> impl Iterator<Item = &Node> {
        let each = self.nodes.iter().zip(&self.processes);
        each.filter(|(_, process)| **process == Process::Runs)
            .map(|(node, _)| node)
    }

    fn is_open(&self) -> bool {
        self.nodes.iter().all(|node| node.is_open)
    }

    fn is_over(&self) -> bool {
        let may_wake = |it: &Process| matches!(it, Process::FrozenUntil(Some(_)));
        self.survivors().all(|node| node.is_over) && !self.processes.iter().any(may_wake)
    }

    fn next(&mut self) -> Duration {
        let soon = self.sim.now + TICK;
        if std::mem::take(&mut self.sim.wire.made_room) {
            return soon;
        }
        let now = self.sim.now;
        let wakes = self.survivors().filter_map(|node| {
            let starts = self.options.engines[node.rank as usize].starts;
            if starts > now {
                Some(starts)
            } else {
                node.wake_at(now)
            }
        });
        let thaws = self.processes.iter().filter_map(|process| match process {
            Process::FrozenUntil(until) => *until,
            _ => None,
        });
        let faults = self.happenings.iter().filter_map(Happening::due_at);
        let all = wakes
            .chain(thaws)
            .chain(faults)
            .chain(self.sim.wire.next_at(now));
        all.min().unwrap_or(END).max(soon)
    }

    fn break_things(&mut self) {
        let now = self.sim.now;
        let plans = self.nodes[0]
            .work
            .as_ref()
            .map_or(0, |work| work.plans_sent);
        for index in 0..self.happenings.len() {
            let it = &mut self.happenings[index];
            if let When::Plans(count, _) = it.when
                && plans >= count
            {
                it.armed_at.get_or_insert(now);
            }
            if it.is_over || it.due_at().is_none_or(|at| at > now) {
                continue;
            }
            it.is_over = true;
            let what = it.what;
            self.sim.history.note(|| format!("{what:?}"));
            let took_effect = self.break_one(index, what);
            let was_open = self.is_open();
            let it = &mut self.happenings[index];
            it.since = took_effect.then_some(now);
            it.was_open = was_open;
        }
    }

    /// True where it took effect at once.
    fn break_one(&mut self, index: usize, what: What) -> bool {
        let now = self.sim.now;
        match what {
            What::Kill { rank, tail_percent } => {
                if !self.is_running(rank) {
                    return false;
                }
                self.nodes[rank as usize].die(&mut self.sim, tail_percent);
                self.processes[rank as usize] = Process::Dead;
            }
            What::Freeze { rank, time } => {
                if !self.is_running(rank) {
                    return false;
                }
                self.processes[rank as usize] = Process::FrozenUntil(time.map(|time| now + time));
            }
            What::Hang { rank } => {
                self.nodes[rank as usize].is_hanging = true;
                return false;
            }
            What::EngineFails { rank } => {
                let node = &mut self.nodes[rank as usize];
                if node.fate_at.is_some() || node.bye_due.is_some() || !node.is_open {
                    return false;
                }
                node.is_failing = true;
            }
            What::Breaks { rank, rule } => {
                self.nodes[rank as usize].rule = Some(rule);
                return false;
            }
            link => return self.break_link(index, link),
        }
        true
    }

    /// The same for faults of a link; where it is not made yet nothing happens.
    fn break_link(&mut self, index: usize, what: What) -> bool {
        let now = self.sim.now;
        match what {
            What::Reset {
                place,
                tail_percent,
            } => {
                let Some(ends) = self.ends(place) else {
                    return false;
                };
                self.sim.wire.reset(ends, now, tail_percent);
            }
            What::HalfClose { place, direction } => {
                let Some(ends) = self.ends(place) else {
                    return false;
                };
                self.sim.wire.finish(pipe(ends, direction), now);
            }
            What::BlackHole { place, direction } => {
                let Some(ends) = self.ends(place) else {
                    return false;
                };
                for way in [Direction::There, Direction::Back] {
                    if direction.is_none_or(|only| only == way) {
                        self.sim.wire.stall(pipe(ends, way), None);
                    }
                }
            }
            What::Stall {
                place,
                direction,
                time,
            } => {
                let Some(ends) = self.ends(place) else {
                    return false;
                };
                self.sim.wire.stall(pipe(ends, direction), Some(now + time));
            }
            What::Flip {
                place,
                direction,
                after,
                bit,
            } => {
                let Some(ends) = self.ends(place) else {
                    return false;
                };
                let pipe = pipe(ends, direction);
                self.sim.wire.flip(pipe, after, bit);
                self.happenings[index].pipe = Some(pipe);
                return false;
            }
            _ => return false,
        }
        true
    }

    /// Faults that take effect some time after they were set up.
    fn look_at_effects(&mut self) {
        let was_open = self.is_open();
        for it in self
            .happenings
            .iter_mut()
            .filter(|it| it.is_over && it.since.is_none())
        {
            it.since = match it.what {
                What::Hang { rank } => self.nodes[rank as usize].hung_at,
                What::Breaks { rank, .. } => self.nodes[rank as usize].broke_at,
                What::Flip { .. } => it.pipe.and_then(|pipe| self.sim.wire.flipped_at(pipe)),
                _ => None,
            };
            it.was_open = was_open;
        }
    }

    fn is_running(&self, rank: u32) -> bool {
        let rank = rank as usize;
        self.processes[rank] == Process::Runs && !self.nodes[rank].is_over
    }

    fn ends(&self, place: Place) -> Option<Ends> {
        self.sim.wire.place(place.link, place.from)
    }
}

impl Happening {
    fn due_at(&self) -> Option<Duration> {
        if self.is_over {
            return None;
        }
        match self.when {
            When::At(at) => Some(at),
            When::Plans(_, after) => self.armed_at.map(|at| at + after),
        }
    }
}

fn pipe(ends: Ends, direction: Direction) -> usize {
    match direction {
        Direction::There => ends.out,
        Direction::Back => ends.into,
    }
}
