//! One simulated rank: the real machines of handshake, boot, plans, rows, credits and timers.
//! Its engine is arithmetic on one number a row; its sockets are pipes.

mod boot;
mod boundary;
mod ending;
mod engine;
mod handshake;
mod lead;
mod life;
mod receiving;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use stagelink_proto::boot::LeadBoot;
use stagelink_proto::conversation::LinkState;
use stagelink_proto::describe::Description;
use stagelink_proto::fate::{Fate, FirstFate};
use stagelink_proto::frame::FrameRules;
use stagelink_proto::in_flight::{Buffers, Credits, InFlight};
use stagelink_proto::keepalive::{Hearing, KeepAlive, Timers, Watch};
use stagelink_proto::plan::{Plan, PlanBounds};
use stagelink_proto::progress::Phase;
use stagelink_proto::streams::{Capacity, Streams};

use crate::faults::Rule;
use crate::link_end::LinkEnd;
use crate::mutant::Mutant;
use crate::options::{EngineOptions, Options};
use crate::ring::Sim;
use boundary::Memory;
use engine::{Engine, Forward, Job};
use handshake::{Dialling, Pending};
pub(crate) use lead::Work;

/// Control links by the peer's rank; the two ring links have keys that no rank has.
pub(crate) const RING_IN: u32 = 1_000;
pub(crate) const RING_OUT: u32 = 1_001;

#[allow(
    clippy::struct_excessive_bools,
    reason = "steps of boot that come in any order"
)]
pub(crate) struct Node {
    pub(crate) rank: u32,
    world: u32,
    manner: EngineOptions,
    description: Description,
    rules: FrameRules,
    launch_id: [u8; 16],
    boot: Option<LeadBoot>,
    dialling: Option<Dialling>,
    pending: Vec<Pending>,
    join_by: Duration,
    is_placed: bool,
    /// Both ring links are made, and the engine has been loading since.
    loading_since: Option<Duration>,
    is_ready: bool,
    pub(crate) is_open: bool,
    pub(crate) links: BTreeMap<u32, LinkEnd>,
    streams: Streams,
    awaited: InFlight,
    owed: InFlight,
    credits: Credits,
    pub(crate) buffers: Buffers,
    memory: Vec<Memory>,
    filling: Option<usize>,
    /// Full buffers, oldest first.
    ready: VecDeque<(u64, usize)>,
    plans: BTreeMap<u64, Plan>,
    engine: Engine,
    forward: Option<Forward>,
    outgoing: VecDeque<Job>,
    /// The frame that the kernel takes just now.
    sending: Option<Job>,
    pub(crate) is_hanging: bool,
    pub(crate) hung_at: Option<Duration>,
    /// The engine raises next.
    pub(crate) is_failing: bool,
    /// A rule that this rank is to break as soon as it can.
    pub(crate) rule: Option<Rule>,
    /// When it broke it.
    pub(crate) broke_at: Option<Duration>,
    phase: Phase,
    counter: u64,
    keep_alive: KeepAlive,
    timers: Timers,
    hearing: BTreeMap<u32, Hearing>,
    watches: BTreeMap<u32, Watch>,
    fate: FirstFate,
    pub(crate) fate_at: Option<Duration>,
    /// What a lost boundary link suggests, until another rank knows better.
    suspicion: Option<(Duration, Fate)>,
    /// Boundary links that have ended.
    lost_ring: Vec<u32>,
    /// The fate goes out until then.
    telling_until: Option<Duration>,
    /// This rank has said bye and waits so long for the other side's.
    pub(crate) bye_due: Option<Duration>,
    pub(crate) is_over: bool,
    pub(crate) work: Option<Work>,
    /// Frames that left and whose credits are not back.
    unreturned: u32,
    /// The rank's own control thread watches its engine too: of the lead nobody else hears.
    own_watch: Watch,
    credits_held_back: u32,
    frames_taken: u64,
}

impl Node {
    pub(crate) fn new(description: Description, options: &Options, launch_id: [u8; 16]) -> Self {
        let timers = Timers::default();
        let capacity = Capacity {
            context: description.context,
            states: description.states,
            kv_rows: description.kv_rows,
        };
        let (rank, world) = (description.rank, description.world);
        let manner = options.engines[rank as usize];
        let is_lead = rank == 0;
        let rules = FrameRules {
            checksums: options.checksums,
            ..FrameRules::default()
        };
        Self {
            rank,
            world,
            manner,
            rules,
            launch_id: if is_lead { launch_id } else { [0; 16] },
            boot: is_lead.then(|| LeadBoot::new(description.clone()).unwrap()),
            dialling: (!is_lead).then(|| Dialling::control(manner.starts)),
            pending: Vec::new(),
            join_by: manner.starts + boot::join_limit(rank),
            is_placed: false,
            loading_since: None,
            is_ready: false,
            is_open: false,
            links: BTreeMap::new(),
            streams: Streams::new(capacity),
            awaited: InFlight::new(description.rounds_in_flight_max),
            owed: InFlight::new(description.rounds_in_flight_max),
            credits: Credits::new(description.buffers),
            buffers: Buffers::new(description.buffers),
            memory: (0..description.buffers)
                .map(|_| Memory::default())
                .collect(),
            filling: None,
            ready: VecDeque::new(),
            description,
            plans: BTreeMap::new(),
            engine: Engine::new(rank),
            forward: None,
            outgoing: VecDeque::new(),
            sending: None,
            is_hanging: false,
            hung_at: None,
            is_failing: false,
            rule: None,
            broke_at: None,
            phase: Phase::Booting,
            counter: 0,
            keep_alive: KeepAlive::new(&timers, manner.starts),
            timers,
            hearing: BTreeMap::new(),
            watches: BTreeMap::new(),
            fate: FirstFate::new(),
            fate_at: None,
            suspicion: None,
            lost_ring: Vec::new(),
            telling_until: None,
            bye_due: None,
            is_over: false,
            work: is_lead.then(|| Work::new(options)),
            unreturned: 0,
            own_watch: Watch::new(manner.starts),
            credits_held_back: 0,
            frames_taken: 0,
        }
    }

    pub(crate) fn fate(&self) -> Option<&Fate> {
        self.fate.fate()
    }

    pub(crate) fn open_streams(&self) -> usize {
        self.streams.open().len()
    }

    /// Everything that is due now; a broken rule ends in a fate.
    pub(crate) fn step(&mut self, sim: &mut Sim) {
        if self.is_over || sim.now < self.manner.starts {
            return;
        }
        let keys: Vec<u32> = self.links.keys().copied().collect();
        for key in keys {
            while self.may_read(key, sim) && self.receive(key, sim) {}
        }
        if self.fate_at.is_none() {
            self.advance_boot(sim);
        }
        if self.fate_at.is_none()
            && self.bye_due.is_none()
            && let Err((culprit, error)) = self.act(sim)
        {
            self.fail(sim, error.refusal, culprit, &error.to_string());
        }
        self.end_if_due(sim);
        for link in self.links.values_mut() {
            link.flush(sim);
        }
        self.finish_telling(sim);
    }

    /// Where this rank stands, for a person.
    pub(crate) fn standing(&self) -> String {
        let links: Vec<(u32, LinkState)> = self
            .links
            .iter()
            .map(|(key, link)| (*key, link.conversation.state()))
            .collect();
        let (awaits, owes) = (self.awaited.oldest(), self.owed.oldest());
        format!(
            "rank {}: {:?}, awaits {awaits:?}, owes {owes:?}, bye {:?}, fate {:?}, links {links:?}",
            self.rank, self.phase, self.bye_due, self.fate_at
        )
    }

    fn may_read(&self, key: u32, sim: &Sim) -> bool {
        if self.fate_at.is_some() {
            return sim.is(Mutant::DeliversAfterFate) && key == RING_IN && !self.is_over;
        }
        let is_busy = self.forward.is_some() || !self.ready.is_empty();
        !(key == RING_IN && is_busy && sim.is(Mutant::ReadsOnlyWhenIdle))
    }

    fn bounds(&self) -> PlanBounds {
        PlanBounds {
            streams_max: self.description.streams_max,
            rows_max: self.description.rows_max,
            ops: self.description.ops,
            blocks: self.description.blocks,
            draft_width: self.description.draft_width,
        }
    }

    /// A link whose peer has said all.
    fn is_quiet(&self, key: u32) -> bool {
        let state = self.links.get(&key).map(|link| link.conversation.state());
        matches!(state, Some(LinkState::Closing | LinkState::Ended))
    }
}
