//! The control links of a process with what has come on them, and the timers that they keep.
//!
//! It finds faults and names the link; `control` puts them into words and makes them the fate.

use std::collections::VecDeque;
use std::time::Duration;

use stagelink_proto::Refusal;
use stagelink_proto::conversation::LinkState;
use stagelink_proto::describe::Description;
use stagelink_proto::error::ProtocolError;
use stagelink_proto::fate::Fate as FateMessage;
use stagelink_proto::figures::Figures;
use stagelink_proto::frame::Kind;
use stagelink_proto::limits;
use stagelink_proto::open::Open;
use stagelink_proto::plan::Plan;
use stagelink_proto::progress::Progress;
use stagelink_proto::ready::Ready;
use stagelink_proto::roster::Roster;

use crate::activity::Doing;
use crate::control::Shared;
use crate::control_link::{ControlLink, Message, Reading};
use crate::stuck::{Seen, Stuck, stuck};

/// Rounds whose sizes are kept: as many as may be unfinished at once.
const SIZES_MAX: usize = limits::ROUNDS_IN_FLIGHT_MAX as usize;

/// The control links with what has come on them.
#[derive(Debug)]
pub(crate) struct Star {
    pub(crate) links: Vec<ControlLink>,
    pub(crate) descriptions: Vec<Description>,
    pub(crate) roster: Option<Roster>,
    pub(crate) readies: Vec<Ready>,
    /// What followers' loops came to, as they said before their byes.
    pub(crate) figures: Vec<Figures>,
    pub(crate) open: Option<Open>,
    pub(crate) next_round: u64,
    /// This side has said bye.
    pub(crate) is_closing: bool,
    reading: Reading,
    interval: Duration,
    silent_intervals: u32,
    last_sent: Duration,
    /// What a read has brought; empty between two reads.
    taken: Vec<Message>,
    /// Bytes of the rows of the last rounds, for the time that they may take.
    sizes: VecDeque<(u64, u32)>,
    /// What the own engine did when it was last looked at, and since when.
    own: Option<(Doing, Duration)>,
}

/// A fault of one control link, before it is put into words.
pub(crate) type Fault = (u32, LinkFault);

/// What is wrong with a control link.
#[derive(Debug)]
pub(crate) enum LinkFault {
    Lost,
    Broken(ProtocolError),
    Silent(Duration),
    Stalled(Duration),
    Stuck(Stuck),
    Told(FateMessage),
}

impl Star {
    pub(crate) fn new(
        own: Description,
        reading: Reading,
        interval: Duration,
        silent_intervals: u32,
    ) -> Self {
        Self {
            links: Vec::new(),
            descriptions: vec![own],
            roster: None,
            readies: Vec::new(),
            figures: Vec::new(),
            open: None,
            next_round: 1,
            is_closing: false,
            reading,
            interval,
            silent_intervals,
            last_sent: Duration::ZERO,
            taken: Vec::new(),
            sizes: VecDeque::with_capacity(SIZES_MAX),
            own: None,
        }
    }

    pub(crate) fn link(&mut self, rank: u32) -> Option<&mut ControlLink> {
        self.links.iter_mut().find(|link| link.rank == rank)
    }

    /// Queue one message on every link that is still there.
    pub(crate) fn send_all(
        &mut self,
        kind: Kind,
        round: Option<u64>,
        payload: &[u8],
    ) -> Result<(), (u32, ProtocolError)> {
        for link in self.links.iter_mut().filter(|link| !link.is_gone) {
            link.send(kind, round, payload)
                .map_err(|error| (link.rank, error))?;
        }
        Ok(())
    }

    /// Send a plan under the next round number; its rows take `rows_bytes` on a boundary.
    pub(crate) fn send_plan(
        &mut self,
        payload: &[u8],
        rows_bytes: u32,
        now: Duration,
    ) -> Result<u64, (u32, ProtocolError)> {
        let round = self.next_round;
        self.send_all(Kind::Plan, Some(round), payload)?;
        self.next_round += 1;
        self.last_sent = now;
        if rows_bytes > 0 {
            if self.sizes.len() == SIZES_MAX {
                self.sizes.pop_front();
            }
            self.sizes.push_back((round, rows_bytes));
        }
        Ok(round)
    }

    /// Whether every peer has said bye or is gone.
    pub(crate) fn is_quiet(&self) -> bool {
        self.links
            .iter()
            .all(|link| link.is_gone || link.state() == LinkState::Closing)
    }

    /// Whether queued bytes wait for room.
    pub(crate) fn has_unsent(&self) -> bool {
        self.links
            .iter()
            .any(|link| link.connection.has_unsent() && !link.is_gone)
    }

    pub(crate) fn set_timers(&mut self, open: Open) {
        self.interval = open.interval();
        self.silent_intervals = open.silent_intervals();
        self.open = Some(open);
    }

    pub(crate) fn silent_limit(&self) -> Duration {
        // Before open the other side may keep another interval: the default, if it is longer.
        let interval = match self.open {
            Some(_) => self.interval,
            None => self.interval.max(limits::KEEPALIVE_INTERVAL),
        };
        interval * self.silent_intervals
    }

    /// Send the keep-alive when it is due; returns how long nothing is due.
    pub(crate) fn keep_alive(&mut self, shared: &Shared) -> Result<Duration, Fault> {
        let now = shared.clock.now();
        let since = now.saturating_sub(self.last_sent);
        if let Some(left) = self
            .interval
            .checked_sub(since)
            .filter(|left| !left.is_zero())
        {
            return Ok(left);
        }
        self.send_sign_of_life(shared, now)?;
        Ok(self.interval)
    }

    /// Progress, or on a lead whose ring is open an empty plan.
    pub(crate) fn send_sign_of_life(
        &mut self,
        shared: &Shared,
        now: Duration,
    ) -> Result<(), Fault> {
        self.last_sent = now;
        if self.is_closing || shared.plans.is_ended() {
            return Ok(());
        }
        let sent = if shared.rank == 0 && self.open.is_some() {
            let mut payload = Vec::new();
            Plan::keep_alive().encode(&mut payload);
            self.send_plan(&payload, 0, now).map(|_| ())
        } else {
            let doing = shared.activity.now();
            let limit = u32::try_from(doing.busy_limit.as_millis()).unwrap_or(u32::MAX);
            let progress = Progress {
                rank: shared.rank,
                phase: doing.phase,
                round: doing.round,
                counter: doing.counter,
                busy_limit_ms: limit,
                done: doing.done,
            };
            self.send_all(Kind::Progress, None, &progress.encode())
        };
        sent.map_err(|(rank, error)| (rank, LinkFault::Broken(error)))
    }

    /// Read every link whose descriptor was ready, then judge those that were not.
    pub(crate) fn hear(&mut self, shared: &Shared, ready: &[u32]) -> Result<(), Fault> {
        let now = shared.clock.now();
        for index in 0..self.links.len() {
            let rank = self.links[index].rank;
            if self.links[index].is_gone {
                continue;
            }
            self.links[index].connection.flush();
            if ready.contains(&rank) {
                self.hear_one(shared, index, now)?;
            } else {
                self.judge(index, now)?;
            }
        }
        if shared.rank == 0 && self.open.is_some() && !self.is_closing {
            self.judge_own(shared, now)?;
            self.judge_boundaries(shared, now)?;
        }
        Ok(())
    }

    /// After open nobody else hears whether rank 0's own engine gets on.
    fn judge_own(&mut self, shared: &Shared, now: Duration) -> Result<(), Fault> {
        let doing = shared.activity.now();
        match self.own.filter(|(before, _)| *before == doing) {
            None => self.own = Some((doing, now)),
            Some((_, since)) => {
                let limit = doing.busy_limit;
                if !limit.is_zero() && now.saturating_sub(since) > limit {
                    return Err((shared.rank, LinkFault::Stalled(limit)));
                }
            }
        }
        Ok(())
    }

    /// Rows that do not arrive although both ends are alive.
    fn judge_boundaries(&self, shared: &Shared, now: Duration) -> Result<(), Fault> {
        let own = self.own.map(|(doing, since)| Seen {
            phase: doing.phase,
            round: doing.round,
            since,
        });
        let seen = |rank: u32| {
            let link = self.links.iter().find(|link| link.rank == rank);
            if rank == shared.rank {
                own
            } else {
                link.and_then(ControlLink::seen)
            }
        };
        let limit = |round| {
            let known = self.sizes.iter().find(|(of, _)| *of == round);
            limits::payload_limit(known.map_or(0, |(_, bytes)| *bytes))
        };
        stuck(shared.world, now, seen, limit)
            .map_or(Ok(()), |found| Err((found.from, LinkFault::Stuck(found))))
    }

    fn hear_one(&mut self, shared: &Shared, index: usize, now: Duration) -> Result<(), Fault> {
        let reading = self.reading;
        let mut taken = std::mem::take(&mut self.taken);
        let link = &mut self.links[index];
        shared.plans.hand_back(&mut link.spares);
        let rank = link.rank;
        let closed = link
            .read(now, &reading, |message| taken.push(message))
            .map_err(|error| (rank, LinkFault::Broken(error)));
        // What came before the fault counts: a fate is the better cause.
        for message in taken.drain(..) {
            self.take(shared, rank, message)?;
        }
        self.taken = taken;
        let link = &mut self.links[index];
        if closed? {
            if link.state() != LinkState::Closing && !self.is_closing {
                return Err((rank, LinkFault::Lost));
            }
            link.is_gone = true;
            shared.news.set();
        }
        Ok(())
    }

    fn judge(&self, index: usize, now: Duration) -> Result<(), Fault> {
        let link = &self.links[index];
        if self.is_closing || link.state() == LinkState::Closing {
            return Ok(());
        }
        let limit = self.silent_limit();
        if now.saturating_sub(link.heard) > limit {
            return Err((link.rank, LinkFault::Silent(limit)));
        }
        if let Some(limit) = link.stalled() {
            return Err((link.rank, LinkFault::Stalled(limit)));
        }
        Ok(())
    }

    fn take(&mut self, shared: &Shared, rank: u32, message: Message) -> Result<(), Fault> {
        match message {
            Message::Progress | Message::Cancel => return Ok(()),
            Message::Plan(_, plan) if plan.is_keep_alive() => return Ok(()),
            Message::Plan(round, plan) => {
                // Its rows may come into a posted buffer before the plan is begun.
                let announced = shared.bulk_in.announce(round, &plan);
                announced.map_err(|error| (rank, LinkFault::Broken(error)))?;
                if !shared.plans.push((round, plan)) {
                    let error = Refusal::TooManyRounds.error("expected at most 64 plans ahead");
                    return Err((rank, LinkFault::Broken(error)));
                }
                return Ok(());
            }
            Message::Fate(fate) => return Err((rank, LinkFault::Told(fate))),
            Message::Describe(description) => self.descriptions.push(*description),
            Message::Roster(roster) => self.roster = Some(roster),
            Message::Ready(ready) => self.readies.push(ready),
            Message::Figures(figures) => {
                // The last word counts, and a peer that says many takes no more memory.
                self.figures.retain(|other| other.rank != figures.rank);
                self.figures.push(figures);
            }
            Message::Open(open) => self.set_timers(open),
            Message::Bye if shared.rank != 0 => shared.plans.end(),
            Message::Bye => {}
        }
        shared.news.set();
        Ok(())
    }
}
