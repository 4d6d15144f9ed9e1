//! What a seed means: the ring, its links and engines, its work and its faults.
//! It runs nothing; the numbers are printed with a failure.

use std::time::Duration;

use crate::draw::Draw;
use crate::faults::{self, Fault};
use crate::mutant::Mutant;

/// One run, expanded from its seed.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) world: u32,
    /// Buffers of a boundary, and so credits.
    pub(crate) buffers: u16,
    pub(crate) rounds_in_flight: u16,
    pub(crate) chunk_rows: u32,
    pub(crate) checksums: bool,
    pub(crate) interval_ms: u32,
    pub(crate) silent_intervals: u32,
    pub(crate) links: LinkOptions,
    /// By rank.
    pub(crate) engines: Vec<EngineOptions>,
    pub(crate) streams: Vec<StreamOptions>,
    /// Of a hundred: a stream that could go on sits out this plan.
    pub(crate) skip_percent: u64,
    pub(crate) faults: Vec<Fault>,
    pub(crate) mutant: Option<Mutant>,
}

/// How every link behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkOptions {
    pub(crate) delay_max_us: u64,
    pub(crate) bytes_per_second: u64,
    /// Most bytes of one read; 1 splits everything into single bytes.
    pub(crate) piece_max: u64,
    /// What a boundary's sending kernel takes before it blocks; the receiving one holds as much.
    pub(crate) kernel_bytes: usize,
}

/// How one rank's engine behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineOptions {
    /// Start of the process.
    pub(crate) starts: Duration,
    pub(crate) load: Duration,
    pub(crate) compute_us: u64,
    /// 0: no limit.
    pub(crate) busy_limit_ms: u32,
    /// One forward that takes long: which one, and how long.
    pub(crate) slow: Option<(u64, Duration)>,
}

impl EngineOptions {
    /// Its limit is beyond all that it does, with what a stalled link may add between two reports.
    pub(crate) fn has_limit(&mut self, interval_ms: u32) {
        let slow = self
            .slow
            .map_or(0, |(_, time)| u32::try_from(time.as_millis()).unwrap_or(0));
        let least = if slow > 0 { slow + 8_000 } else { interval_ms };
        self.busy_limit_ms = self.busy_limit_ms.max(least);
    }
}

/// One stream's work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamOptions {
    pub(crate) arrives: Duration,
    pub(crate) prompt_rows: u32,
    pub(crate) decodes: u32,
    /// Rows of a decode round; more than one is a draft to verify, partly accepted.
    pub(crate) decode_rows_max: u32,
    /// Decodes after which the client goes away.
    pub(crate) cancels_after: Option<u32>,
}

impl Options {
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut draw = Draw::new(seed, 1);
        let world = draw.small(2, 9);
        let interval_ms = draw.small(700, 2_001);
        let silent_intervals = draw.small(3, 6);
        let engines = (0..world).map(|_| engine(&mut draw, interval_ms));
        let engines: Vec<EngineOptions> = engines.collect();
        let links = LinkOptions {
            delay_max_us: draw.pick(&[1, 200, 8_000, 40_000]),
            bytes_per_second: draw.pick(&[4_000, 50_000, 1_000_000, 1_000_000_000]),
            piece_max: draw.pick(&[1, 3, 64, 4_096]),
            kernel_bytes: draw.pick(&[256, 700, 4_096]),
        };
        let chunk_rows = draw.small(2, 17);
        let patient = draw.chance(15);
        let streams = (0..draw.between(1, 5)).map(|_| stream(&mut draw, chunk_rows, patient));
        let streams = streams.collect();
        let mut options = Self {
            seed,
            world,
            buffers: draw.pick(&[1, 2, 2, 3]),
            rounds_in_flight: draw.pick(&[1, 2, 3, 4, 9]),
            chunk_rows,
            checksums: draw.chance(85),
            interval_ms,
            silent_intervals,
            links,
            engines,
            streams,
            skip_percent: draw.pick(&[0, 0, 30, 60]),
            faults: Vec::new(),
            mutant: None,
        };
        options.faults = faults::of_options(&mut options, &mut draw);
        options
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_millis(u64::from(self.interval_ms))
    }

    /// How long a peer may be silent once the ring is open.
    pub(crate) fn dead_time(&self) -> Duration {
        self.interval() * self.silent_intervals
    }

    pub(crate) fn load_longest(&self) -> Duration {
        let loads = self.engines.iter().map(|engine| engine.load);
        loads.max().unwrap_or_default()
    }

    /// When the last stream arrives: until then the ring may be idle.
    pub(crate) fn idle_longest(&self) -> Duration {
        let arrivals = self.streams.iter().map(|stream| stream.arrives);
        arrivals.max().unwrap_or_default()
    }

    /// The longest forward of a slow engine, all of them together.
    pub(crate) fn slow_total(&self) -> Duration {
        let slow = self.engines.iter().filter_map(|engine| engine.slow);
        slow.map(|(_, time)| time).sum()
    }
}

fn engine(draw: &mut Draw, interval_ms: u32) -> EngineOptions {
    let slow = draw.chance(12).then(|| {
        let time = draw.millis(3_000, 90_000);
        (draw.below(12), time)
    });
    let limit = draw.pick(&[0, 1, 4]) * interval_ms;
    let mut engine = EngineOptions {
        starts: draw.millis(0, 300),
        load: if draw.chance(10) {
            draw.millis(5_000, 120_000)
        } else {
            draw.millis(0, 400)
        },
        compute_us: draw.pick(&[10, 1_000, 20_000, 300_000]),
        busy_limit_ms: limit,
        slow,
    };
    if slow.is_some() && limit > 0 {
        engine.has_limit(interval_ms);
    }
    engine
}

fn stream(draw: &mut Draw, chunk_rows: u32, patient: bool) -> StreamOptions {
    let decodes = draw.small(0, 9);
    StreamOptions {
        arrives: if patient {
            draw.millis(0, 30_000)
        } else {
            Duration::ZERO
        },
        prompt_rows: draw.small(1, chunk_rows * 5),
        decodes,
        decode_rows_max: draw.pick(&[1, 1, 4]),
        cancels_after: draw.chance(25).then(|| draw.small(0, decodes + 1)),
    }
}
