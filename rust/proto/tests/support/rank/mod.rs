//! One simulated rank: the real machines of boot, plans, rows, credits and timers.
//! Its engine is arithmetic on one number a row; its sockets are pipes.

mod ending;
mod engine;
mod lead;
mod life;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use stagelink_proto::{
    ProtocolError, Refusal,
    boot::LeadBoot,
    conversation::{LinkEnd as Side, LinkState},
    describe::Description,
    fate::{Fate, FirstFate},
    frame::{Header, Kind},
    in_flight::{Buffers, Credits, InFlight},
    keepalive::{Hearing, KeepAlive, Timers, Watch},
    message::{Message, Surroundings},
    open::Open,
    plan::{Plan, PlanBounds},
    progress::Phase,
    rows::{Boundary, ExpectedRows},
    streams::{Capacity, Streams},
};

use crate::{
    link_end::{Arrival, LinkEnd},
    pipe::Wire,
};

/// The first round of the simulated ring.
const FIRST_ROUND: u64 = 5;
/// Control links by the peer's rank; the two ring links have keys that no rank has.
const RING_IN: u32 = 1_000;
const RING_OUT: u32 = 1_001;

/// How one rank behaves.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) load: Duration,
    pub(crate) compute: Duration,
    pub(crate) busy_limit_ms: u32,
    /// The engine never comes back from this round.
    pub(crate) wedged_in: Option<u64>,
}

/// Rows that an engine works on.
struct Job {
    round: u64,
    plan: Plan,
    values: Vec<u64>,
    done_at: Duration,
}

#[allow(
    clippy::struct_excessive_bools,
    reason = "steps of boot that come in any order"
)]
#[allow(clippy::struct_field_names, reason = "a rank's rank is its number")]
pub(crate) struct Rank {
    pub(crate) rank: u32,
    world: u32,
    pub(crate) manner: Manner,
    description: Description,
    boot: Option<LeadBoot>,
    pub(crate) placed: bool,
    opened: bool,
    ready: bool,
    pub(crate) links: BTreeMap<u32, LinkEnd>,
    streams: Streams,
    awaited: InFlight,
    owed: InFlight,
    pub(crate) credits: Credits,
    pub(crate) buffers: Buffers,
    plans: BTreeMap<u64, Plan>,
    jobs: VecDeque<Job>,
    outgoing: VecDeque<Job>,
    phase: Phase,
    counter: u64,
    keep_alive: KeepAlive,
    timers: Timers,
    hearing: BTreeMap<u32, Hearing>,
    watches: BTreeMap<u32, Watch>,
    pub(crate) fate: FirstFate,
    pub(crate) fate_at: Option<Duration>,
    report: Option<(Duration, Fate)>,
    /// This rank has said bye and waits so long for the other side's.
    pub(crate) bye_due: Option<Duration>,
    is_over: bool,
    // The lead's workload.
    next_round: u64,
    steps_left: BTreeMap<u32, u32>,
    pub(crate) rows_checked: u32,
    pub(crate) keep_alives: u32,
}

impl Rank {
    pub(crate) fn new(description: Description, manner: Manner, streams: u32, steps: u32) -> Self {
        let timers = Timers::default();
        let capacity = Capacity {
            context: description.context,
            states: description.states,
            kv_rows: description.kv_rows,
        };
        let is_lead = description.rank == 0;
        Self {
            rank: description.rank,
            world: description.world,
            manner,
            boot: is_lead.then(|| LeadBoot::new(description.clone()).unwrap()),
            placed: false,
            opened: false,
            ready: false,
            links: BTreeMap::new(),
            streams: Streams::new(capacity),
            awaited: InFlight::new(description.rounds_in_flight_max),
            owed: InFlight::new(description.rounds_in_flight_max),
            credits: Credits::new(description.buffers),
            buffers: Buffers::new(description.buffers),
            description,
            plans: BTreeMap::new(),
            jobs: VecDeque::new(),
            outgoing: VecDeque::new(),
            phase: Phase::Loading,
            counter: 0,
            keep_alive: KeepAlive::new(&timers, Duration::ZERO),
            timers,
            hearing: BTreeMap::new(),
            watches: BTreeMap::new(),
            fate: FirstFate::new(),
            fate_at: None,
            report: None,
            bye_due: None,
            is_over: false,
            next_round: FIRST_ROUND,
            steps_left: (1..=streams).map(|id| (id, steps)).collect(),
            rows_checked: 0,
            keep_alives: 0,
        }
    }

    /// The control link to `peer` is made.
    pub(crate) fn control(&mut self, wire: &mut Wire, peer: u32, pipes: (usize, usize)) {
        let side = if self.rank == 0 {
            Side::LeadControl
        } else {
            Side::FollowerControl
        };
        self.links.insert(peer, LinkEnd::new(peer, side, pipes));
        self.hearing
            .insert(peer, Hearing::new(&self.timers, Duration::ZERO));
        self.watches.insert(peer, Watch::new(Duration::ZERO));
        if let Some(boot) = &mut self.boot {
            boot.linked(peer).unwrap();
        } else {
            let mut payload = Vec::new();
            self.description.encode(&mut payload).unwrap();
            self.send_to_lead(wire, Duration::ZERO, Kind::Describe, &payload)
                .unwrap();
        }
    }

    /// The two ring links are made.
    pub(crate) fn ring(&mut self, before: (u32, (usize, usize)), after: (u32, (usize, usize))) {
        let acceptor = Side::RingAcceptor { tokens: false };
        let connector = Side::RingConnector { tokens: false };
        self.links
            .insert(RING_IN, LinkEnd::new(before.0, acceptor, before.1));
        self.links
            .insert(RING_OUT, LinkEnd::new(after.0, connector, after.1));
    }

    /// The ring has ended here, orderly or not.
    pub(crate) fn is_done(&self) -> bool {
        self.fate_at.is_some() || self.is_over
    }

    pub(crate) fn open_streams(&self) -> usize {
        self.streams.open().len()
    }

    /// Everything that is due now; a broken rule ends in a fate.
    pub(crate) fn step(&mut self, wire: &mut Wire, now: Duration) {
        let keys: Vec<u32> = self.links.keys().copied().collect();
        for key in keys {
            while self.fate_at.is_none() && self.receive(key, wire, now) {}
        }
        if self.fate_at.is_some() {
            return;
        }
        if self.bye_due.is_none()
            && let Err((culprit, error)) = self.act(wire, now)
        {
            self.fail(wire, now, error.refusal, culprit, &error.to_string());
        }
        if let Some((_, fate)) = self.report.take_if(|(at, _)| *at <= now) {
            self.end(wire, now, fate);
        }
        let closing = |link: &LinkEnd| link.conversation.state() == LinkState::Closing;
        let answered = self
            .links
            .iter()
            .filter(|(key, _)| **key < self.world)
            .all(|it| closing(it.1));
        self.is_over = self.bye_due.is_some_and(|at| answered || at <= now);
    }

    /// Reads one thing from one link; false where there is nothing more.
    fn receive(&mut self, key: u32, wire: &mut Wire, now: Duration) -> bool {
        let link = self.links.get_mut(&key).unwrap();
        let peer = link.peer;
        let handled = match link.receive(wire, now) {
            Ok(Arrival::Nothing) => match link.header {
                Some(header) => self.header(key, &header),
                None => return false,
            },
            Ok(Arrival::Header(header)) => self.header(key, &header),
            Ok(Arrival::Frame(header, payload)) => {
                if let Some(hearing) = self.hearing.get_mut(&key) {
                    hearing.heard(now);
                }
                self.frame(key, &header, &payload, wire, now).map(|()| true)
            }
            Ok(Arrival::Lost) => Err(Refusal::PeerLost.error("the connection ended")),
            Err(error) => Err(error),
        };
        handled.unwrap_or_else(|error| {
            self.fail(wire, now, error.refusal, Some(peer), &error.to_string());
            false
        })
    }

    /// Rows wait until their plan is here; every other header is taken at once.
    fn header(&mut self, key: u32, header: &Header) -> Result<bool, ProtocolError> {
        if header.kind == Kind::Rows {
            if self.awaited.is_empty() {
                return Ok(false);
            }
            self.buffers.fill()?;
            self.awaited.check_rows(header)?;
        }
        self.links.get_mut(&key).unwrap().take();
        Ok(true)
    }

    fn frame(
        &mut self,
        key: u32,
        header: &Header,
        payload: &[u8],
        wire: &mut Wire,
        now: Duration,
    ) -> Result<(), ProtocolError> {
        let around = Surroundings {
            rank: self.links[&key].peer,
            world: self.world,
            layers: self.description.layers,
            plan_bounds: self.bounds(),
        };
        match Message::parse(header, payload, &around)? {
            Message::Describe(it) => self.described(*it, wire, now),
            Message::Roster(roster) => {
                assert_eq!(roster.world(), self.world);
                self.placed = true;
                Ok(())
            }
            Message::Ready(ready) => self.boot.as_mut().unwrap().ready(ready),
            Message::Open(open) => {
                self.open(&open, now);
                Ok(())
            }
            Message::Plan(plan) => self.plan(header.sequence, plan),
            Message::Rows => {
                self.rows(header.sequence, payload, now)?;
                if self.rank == 0 {
                    self.give_credit(wire, now)
                } else {
                    Ok(())
                }
            }
            Message::Credit => self.credits.receive(header.count),
            Message::Progress(it) => self.watches.get_mut(&key).unwrap().report(&it, now),
            Message::Fate(fate) if self.rank == 0 || key != 0 => {
                let text = fate.text().to_owned();
                self.fail(wire, now, fate.refusal, fate.culprit, &text);
                Ok(())
            }
            Message::Fate(fate) => {
                self.end(wire, now, fate);
                Ok(())
            }
            Message::Bye if self.rank != 0 && key == 0 => self.answer_bye(wire, now),
            _ => Ok(()),
        }
    }

    fn open(&mut self, open: &Open, now: Duration) {
        for link in self.links.values_mut() {
            link.conversation.opened(open.first_round());
        }
        self.timers = Timers::of_open(open);
        self.keep_alive = KeepAlive::new(&self.timers, now);
        self.opened = true;
        self.phase = Phase::Idle;
    }

    fn plan(&mut self, round: u64, plan: Plan) -> Result<(), ProtocolError> {
        if plan.is_keep_alive() {
            self.keep_alives += 1;
            return Ok(());
        }
        self.owed.check()?;
        self.streams.admit(&plan)?;
        let out = if self.rank + 1 == self.world {
            Boundary::Return
        } else {
            Boundary::Forward
        };
        self.begin(round, plan, Boundary::Forward, out)
    }

    fn begin(
        &mut self,
        round: u64,
        plan: Plan,
        comes: Boundary,
        leaves: Boundary,
    ) -> Result<(), ProtocolError> {
        let format = self.description.rows_format();
        if let Some(expected) = ExpectedRows::of_plan(round, &plan, comes, &format)? {
            self.awaited.begin(expected)?;
        }
        if let Some(expected) = ExpectedRows::of_plan(round, &plan, leaves, &format)? {
            self.owed.begin(expected)?;
            self.plans.insert(round, plan);
        }
        Ok(())
    }

    fn bounds(&self) -> PlanBounds {
        let Description {
            streams_max,
            rows_max,
            ops,
            blocks,
            draft_width,
            ..
        } = self.description;
        PlanBounds {
            streams_max,
            rows_max,
            ops,
            blocks,
            draft_width,
        }
    }
}
