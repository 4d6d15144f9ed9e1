//! The simulated lead: collects descriptions, makes plans, ends the ring in order.
//! Its workload is drawn: streams of several steps with partly accepted rows.

use std::time::Duration;

use stagelink_proto::{
    ProtocolError,
    describe::Description,
    frame::Kind,
    limits::BYE_WAIT,
    plan::{Entry, Op, Plan, PlanParts, Returns},
    rows::Boundary,
};

use super::{Rank, engine::first_values};
use crate::pipe::{Draw, Wire};

impl Rank {
    pub(super) fn described(
        &mut self,
        it: Description,
        wire: &mut Wire,
        now: Duration,
    ) -> Result<(), ProtocolError> {
        let boot = self.boot.as_mut().unwrap();
        boot.described(it)?;
        if boot.undescribed().next().is_some() {
            return Ok(());
        }
        let layout = boot.layout()?;
        assert_eq!(layout.layers, self.description.layers);
        let mut payload = Vec::new();
        boot.roster()?.encode(&mut payload)?;
        self.placed = true;
        self.send_to_followers(wire, now, (Kind::Roster, None, 0), &payload)
    }

    /// The lead's scheduler: some idle streams take their next step; all closed is the end.
    pub(super) fn lead(&mut self, wire: &mut Wire, now: Duration) -> Result<(), ProtocolError> {
        while self.owed.check().is_ok() && self.awaited.check().is_ok() {
            let Some(plan) = self.next_plan(&mut wire.draw) else {
                break;
            };
            self.streams.admit(&plan)?;
            let round = self.next_round;
            self.next_round += 1;
            self.keep_alive.sent(now);
            self.counter += 1;
            let mut payload = Vec::new();
            plan.encode(&mut payload);
            self.send_to_followers(wire, now, (Kind::Plan, Some(round), 0), &payload)?;
            self.begin(round, plan.clone(), Boundary::Return, Boundary::Forward)?;
            if plan.rows() > 0 {
                let values = first_values(&plan);
                self.start(round, plan, values, now);
            }
        }
        let idle = self.awaited.is_empty() && self.owed.is_empty();
        if self.steps_left.is_empty() && idle && self.bye_due.is_none() {
            self.bye_due = Some(now + BYE_WAIT);
            for link in self.links.values_mut() {
                link.send(wire, now, (Kind::Bye, None, 0), &[])?;
            }
        }
        Ok(())
    }

    pub(super) fn next_plan(&mut self, draw: &mut Draw) -> Option<Plan> {
        let busy: Vec<u32> = self
            .plans
            .values()
            .flat_map(|plan| plan.entries().iter().map(|entry| entry.id))
            .collect();
        // Opens ascend, so that a stream waits for all before it.
        let opened = self.streams.open().last().map_or(0, |stream| stream.id);
        let mut entries = Vec::new();
        let mut returns = Vec::new();
        let ids: Vec<u32> = self.steps_left.keys().copied().collect();
        for id in ids {
            let is_new = self.streams.stream(id).is_none();
            if busy.contains(&id) || (is_new && id < opened) || draw.below(4) == 0 {
                if is_new {
                    break;
                }
                continue;
            }
            entries.push(self.next_entry(id, draw));
            let rows = entries.last().map_or(0, |entry| entry.rows);
            returns.push(match draw.below(3) {
                _ if rows == 0 => Returns::None,
                0 => Returns::All,
                1 => Returns::Last,
                _ => Returns::None,
            });
        }
        if entries.is_empty() {
            return None;
        }
        let parts = PlanParts {
            entries,
            returns: Some(returns),
            ..PlanParts::default()
        };
        Some(Plan::from_parts(parts, &self.bounds()).unwrap())
    }

    pub(super) fn next_entry(&mut self, id: u32, draw: &mut Draw) -> Entry {
        let rows = u32::try_from(1 + draw.below(4)).unwrap();
        let blank = Entry {
            id,
            op: Op::Open,
            first: 0,
            rows,
            accepted: 0,
            resume: 0,
            generation: 0,
        };
        let Some(&stream) = self.streams.stream(id) else {
            return blank;
        };
        let left = self.steps_left.get_mut(&id).unwrap();
        *left -= 1;
        let generation = stream.generation;
        if *left == 0 {
            self.steps_left.remove(&id);
            return Entry {
                op: Op::Close,
                rows: 0,
                generation,
                ..blank
            };
        }
        let accepted = u32::try_from(draw.below(u64::from(stream.rows) + 1)).unwrap();
        let first = stream.first + accepted;
        Entry {
            op: Op::Continue,
            first,
            accepted,
            generation,
            ..blank
        }
    }
}
