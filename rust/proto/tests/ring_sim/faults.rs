//! What goes wrong in a run, and what every rank may then say.
//! It breaks nothing itself; `ring` does, and `judge` compares.

use std::time::Duration;

use stagelink_proto::hello::Link;

use crate::draw::Draw;
use crate::options::Options;

/// One link of the ring, by the rank that dialled it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    pub(crate) link: Link,
    pub(crate) from: u32,
}

impl Place {
    pub(crate) fn to(self, world: u32) -> u32 {
        match self.link {
            Link::Control => 0,
            Link::Ring => (self.from + 1) % world,
        }
    }
}

/// The longest stop after which the ring goes on.
const HEALING_MAX: Duration = Duration::from_secs(4);
/// Kinds of faults, those of a broken rule each for itself.
pub(crate) const KINDS: [&str; 13] = [
    "kill",
    "freeze",
    "hang",
    "engine",
    "reset",
    "half close",
    "black hole",
    "stall",
    "flip",
    "stale plan",
    "double rows",
    "extra credit",
    "skipped round",
];

/// When something goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    At(Duration),
    /// So long after the lead has sent so many plans.
    Plans(u64, Duration),
}

/// Which way a fault of one direction goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Direction {
    /// From the rank that dialled.
    There,
    Back,
}

/// A rank that breaks a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Rule {
    /// The lead sends a plan with the generation before the last cut.
    StalePlan,
    /// A rows frame goes out twice.
    DoubleRows,
    /// A credit for a buffer that was never filled.
    ExtraCredit,
    /// A plan's round number is left out.
    SkippedRound,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// The process dies; of what it had sent last, so many bytes of a hundred still arrive.
    Kill {
        rank: u32,
        tail_percent: u64,
    },
    /// The process stops and its kernel goes on; for ever, or for a time.
    Freeze {
        rank: u32,
        time: Option<Duration>,
    },
    /// The engine never comes back from its next forward.
    Hang {
        rank: u32,
    },
    /// The engine raises.
    EngineFails {
        rank: u32,
    },
    /// Both ends see a reset.
    Reset {
        place: Place,
        tail_percent: u64,
    },
    /// One direction ends.
    HalfClose {
        place: Place,
        direction: Direction,
    },
    /// Nothing arrives any more, in one direction or both.
    BlackHole {
        place: Place,
        direction: Option<Direction>,
    },
    /// Nothing arrives for a time; then all does.
    Stall {
        place: Place,
        direction: Direction,
        time: Duration,
    },
    /// One bit of the byte that leaves so many bytes later.
    Flip {
        place: Place,
        direction: Direction,
        after: u64,
        bit: u8,
    },
    Breaks {
        rank: u32,
        rule: Rule,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) when: When,
    pub(crate) what: What,
}

impl What {
    /// True where the ring goes on afterwards.
    pub(crate) fn heals(&self) -> bool {
        match *self {
            Self::Stall { .. } => true,
            Self::Freeze { time, .. } => time.is_some_and(|time| time <= HEALING_MAX),
            _ => false,
        }
    }

    /// How long it lasts, where it heals.
    pub(crate) fn lasts(&self) -> Duration {
        match *self {
            Self::Stall { time, .. }
            | Self::Freeze {
                time: Some(time), ..
            } if self.heals() => time,
            _ => Duration::ZERO,
        }
    }

    /// How long `rank` itself does nothing.
    pub(crate) fn stops(&self, rank: u32) -> Duration {
        match *self {
            Self::Freeze {
                rank: frozen,
                time: Some(time),
            } if rank == frozen => time,
            _ => Duration::ZERO,
        }
    }

    /// Its place among the kinds of faults.
    pub(crate) const fn kind(&self) -> usize {
        match self {
            Self::Kill { .. } => 0,
            Self::Freeze { .. } => 1,
            Self::Hang { .. } => 2,
            Self::EngineFails { .. } => 3,
            Self::Reset { .. } => 4,
            Self::HalfClose { .. } => 5,
            Self::BlackHole { .. } => 6,
            Self::Stall { .. } => 7,
            Self::Flip { .. } => 8,
            Self::Breaks { rule, .. } => 9 + *rule as usize,
        }
    }

    /// The ranks that may be named for it.
    pub(crate) fn culprits(&self, world: u32) -> Vec<u32> {
        match *self {
            Self::Kill { rank, .. }
            | Self::Freeze { rank, .. }
            | Self::Hang { rank }
            | Self::EngineFails { rank }
            | Self::Breaks { rank, .. } => vec![rank],
            Self::Reset { place, .. }
            | Self::HalfClose { place, .. }
            | Self::BlackHole { place, .. }
            | Self::Stall { place, .. }
            | Self::Flip { place, .. } => vec![place.from, place.to(world)],
        }
    }
}

/// The faults of a run: none, one, two, and some that heal.
pub(crate) fn of_options(options: &mut Options, draw: &mut Draw) -> Vec<Fault> {
    let mut faults = Vec::new();
    let lasting = draw.pick(&[0, 0, 0, 0, 1, 1, 1, 1, 1, 2]);
    for _ in 0..lasting {
        let what = lasting_fault(options, draw);
        if let What::Hang { rank } = what {
            // An engine without a limit may compute for ever.
            options.engines[rank as usize].has_limit(options.interval_ms);
        }
        faults.push(Fault {
            when: when(draw),
            what,
        });
    }
    let healing = draw.pick(&[0, 0, 0, 1, 1, 2]);
    for _ in 0..healing {
        let what = healing_fault(options, draw, healing);
        faults.push(Fault {
            when: when(draw),
            what,
        });
    }
    faults
}

fn when(draw: &mut Draw) -> When {
    if draw.chance(20) {
        return When::At(draw.millis(0, 1_500));
    }
    let plans = draw.between(1, 16);
    When::Plans(
        plans,
        draw.pick(&[
            Duration::ZERO,
            Duration::from_millis(1),
            draw.clone().millis(0, 500),
        ]),
    )
}

fn lasting_fault(options: &Options, draw: &mut Draw) -> What {
    let rank = draw.rank(options.world);
    let place = place(options, draw);
    let direction = direction(draw);
    let tail_percent = draw.pick(&[0, 50, 90, 100]);
    match draw.below(12) {
        0 | 1 => What::Kill { rank, tail_percent },
        2 | 3 => {
            // One that goes on after it was given up finds out what happened.
            let time = draw.chance(30).then(|| draw.millis(12_000, 90_000));
            What::Freeze { rank, time }
        }
        4 => What::Hang { rank },
        5 => What::EngineFails { rank },
        6 => What::Reset {
            place,
            tail_percent,
        },
        7 => What::HalfClose { place, direction },
        8 => What::BlackHole {
            place,
            direction: draw.chance(50).then_some(direction),
        },
        9 | 10 if options.checksums => {
            let after = draw.below(600);
            let bit = u8::try_from(draw.below(8)).unwrap_or(0);
            What::Flip {
                place,
                direction,
                after,
                bit,
            }
        }
        _ => {
            let rule = draw.pick(&[
                Rule::StalePlan,
                Rule::DoubleRows,
                Rule::ExtraCredit,
                Rule::SkippedRound,
            ]);
            let of_the_lead = matches!(rule, Rule::StalePlan | Rule::SkippedRound);
            What::Breaks {
                rank: if of_the_lead { 0 } else { rank },
                rule,
            }
        }
    }
}

/// Short enough that the sum of all stays below the dead-line, a keep-alive's wait included.
fn healing_fault(options: &Options, draw: &mut Draw, of: u64) -> What {
    let dead = options.dead_time().min(Duration::from_secs(6));
    let interval = options.interval().max(Duration::from_secs(2).min(dead / 3));
    let most = dead
        .saturating_sub(interval + Duration::from_millis(600))
        .min(HEALING_MAX);
    let most = u64::try_from(most.as_millis()).unwrap_or(0) / of;
    let time = draw.millis(1, most.max(2));
    if draw.chance(40) {
        let rank = draw.rank(options.world);
        return What::Freeze {
            rank,
            time: Some(time),
        };
    }
    What::Stall {
        place: place(options, draw),
        direction: direction(draw),
        time,
    }
}

fn place(options: &Options, draw: &mut Draw) -> Place {
    if draw.chance(50) {
        let from = draw.small(1, options.world);
        return Place {
            link: Link::Control,
            from,
        };
    }
    Place {
        link: Link::Ring,
        from: draw.rank(options.world),
    }
}

fn direction(draw: &mut Draw) -> Direction {
    draw.pick(&[Direction::There, Direction::Back])
}
