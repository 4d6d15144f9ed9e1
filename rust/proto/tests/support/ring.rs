//! A ring of simulated ranks on one virtual clock: made, run, broken and judged.
//! It decides nothing; ranks and pipes do.

use std::time::Duration;

use stagelink_proto::{
    fingerprint::Fingerprint,
    handshake::{Acceptor, Connector, Decision, Links},
    hello::{Link, Settings},
    proof::Secret,
};

use crate::{
    descriptions::description,
    pipe::{Draw, Pipe, Wire},
    rank::{Manner, Rank},
};

/// Every message takes up to so long.
pub(crate) const DELAY_MS: u64 = 8;

pub(crate) struct Ring {
    pub(crate) ranks: Vec<Rank>,
    pub(crate) wire: Wire,
    pub(crate) now: Duration,
    /// Ranks that do nothing any more: dead (their sockets closed) or frozen (open).
    gone: Vec<u32>,
    linked: bool,
}

impl Ring {
    pub(crate) fn new(seed: u64, world: u32, manner: impl Fn(u32, &mut Draw) -> Manner) -> Self {
        let draw = Draw::new(seed);
        let mut wire = Wire {
            pipes: Vec::new(),
            draw,
            delay_ms: DELAY_MS,
        };
        let ranks = (0..world).map(|rank| {
            let manner = manner(rank, &mut wire.draw);
            Rank::new(description(rank, world), manner, 4, 8)
        });
        let mut ranks: Vec<Rank> = ranks.collect();
        for rank in 1..world {
            shake_hands(Link::Control, rank, 0, world);
            let (connector, acceptor) = wire.connect();
            ranks[rank as usize].control(&mut wire, 0, connector);
            ranks[0].control(&mut wire, rank, acceptor);
        }
        Self {
            ranks,
            wire,
            now: Duration::ZERO,
            gone: Vec::new(),
            linked: false,
        }
    }

    /// Runs until `until`, or until every rank that is left is done.
    pub(crate) fn run(&mut self, until: Duration) {
        while self.now < until && !self.is_over() {
            for rank in &mut self.ranks {
                if !self.gone.contains(&rank.rank) {
                    rank.step(&mut self.wire, self.now);
                }
            }
            if !self.linked && self.ranks.iter().all(|rank| rank.placed) {
                self.link_ring();
            }
            let ranks = self
                .ranks
                .iter()
                .filter(|rank| !self.gone.contains(&rank.rank));
            let wakes = ranks.map(Rank::wake_at);
            let arrivals = self.wire.pipes.iter().filter_map(Pipe::next_at);
            let next = wakes
                .chain(arrivals.filter(|&at| at > self.now))
                .min()
                .unwrap();
            self.now = next.max(self.now + Duration::from_millis(1));
        }
    }

    /// The lead has begun the orderly end; a failure after it may go unseen.
    pub(crate) fn is_closing(&self) -> bool {
        self.ranks[0].bye_due.is_some()
    }

    fn is_over(&self) -> bool {
        let mut left = self
            .ranks
            .iter()
            .filter(|rank| !self.gone.contains(&rank.rank));
        left.all(Rank::is_done)
    }

    fn link_ring(&mut self) {
        self.linked = true;
        let world = self.ranks.len() as u32;
        let mut pipes: Vec<_> = (0..world).map(|_| self.wire.connect()).collect();
        for rank in 0..world {
            let after = (rank + 1) % world;
            shake_hands(Link::Ring, rank, after, world);
        }
        pipes.rotate_right(1);
        for rank in 0..world {
            let before = (rank + world - 1) % world;
            let (_, from_before) = pipes[rank as usize];
            let (to_after, _) = pipes[((rank + 1) % world) as usize];
            self.ranks[rank as usize].ring((before, from_before), ((rank + 1) % world, to_after));
        }
    }

    /// A process dies: the kernel closes its sockets.
    pub(crate) fn kill(&mut self, rank: u32) {
        self.gone.push(rank);
        for link in self.ranks[rank as usize].links.values_mut() {
            link.close(&mut self.wire, self.now);
        }
    }

    /// A process is stopped: its sockets stay open and silent.
    pub(crate) fn freeze(&mut self, rank: u32) {
        self.gone.push(rank);
    }

    /// Every rank that is left has ended, within `limit` of `since`, naming `culprit`.
    pub(crate) fn assert_named(&self, culprit: u32, since: Duration, limit: Duration) {
        for rank in self
            .ranks
            .iter()
            .filter(|rank| !self.gone.contains(&rank.rank))
        {
            let fate = rank.fate.fate().expect("every survivor has a fate");
            let text = format!("rank {} of {}: {fate:?}", rank.rank, self.ranks.len());
            assert_eq!(fate.culprit, Some(culprit), "{text}");
            let took = rank.fate_at.unwrap().checked_sub(since).unwrap();
            assert!(took <= limit, "{text}, after {took:?}");
        }
    }

    pub(crate) fn assert_finished(&self) {
        for rank in &self.ranks {
            let fate = rank.fate.fate();
            assert!(
                rank.bye_due.is_some() && fate.is_none(),
                "rank {}: {fate:?}",
                rank.rank
            );
            assert_eq!(rank.open_streams(), 0);
            assert_eq!(rank.buffers.taken(), 0);
        }
        assert!(self.ranks[0].rows_checked > 0);
    }
}

/// The four frames of one link, made and judged by both ends.
fn shake_hands(link: Link, from: u32, to: u32, world: u32) {
    let settings = |rank| Settings {
        launch_id: [7; 16],
        ..Settings::new(rank, world, Fingerprint::new([[3; 32]; 8]))
    };
    let secret = Secret::from_key(&[1; 32]);
    let links = if to == 0 { Links::Both } else { Links::Ring };
    let connector = Connector::new(secret.clone(), settings(from), link, to);
    let acceptor = Acceptor::new(secret, settings(to), links);
    let (greeting, hello) = connector.start([1; 32]).unwrap();
    let (greeted, challenge) = acceptor.hello(&hello, [2; 32]).unwrap();
    let (proving, proof) = greeting.challenge(&challenge).unwrap();
    match greeted.proof(&proof).unwrap().decide(true).unwrap() {
        Decision::Welcome(_, welcome) => drop(proving.answer(&welcome).unwrap()),
        Decision::Refuse(error, _) => panic!("{error}"),
    }
}
