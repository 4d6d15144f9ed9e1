//! What every link of a ring has counted since it was made.
//!
//! It counts nothing itself.

use super::Ring;
use crate::connection::LinkFigures;
use crate::wait::Strategy;

/// The link's figures for one peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerFigures {
    /// `control`, `next` or `previous`.
    pub link: &'static str,
    /// The other end's rank.
    pub rank: u32,
    /// How waits for this peer are spent.
    pub strategy: Strategy,
    /// Counters since the link was made.
    pub figures: LinkFigures,
}

impl Ring {
    /// Counters of every link since it was made.
    #[must_use]
    pub fn figures(&self) -> Vec<PeerFigures> {
        let mut all: Vec<PeerFigures> = self
            .shared
            .star()
            .links
            .iter()
            .map(|link| PeerFigures {
                link: "control",
                rank: link.rank,
                // The control thread's own; it sleeps.
                strategy: Strategy::Block,
                figures: link.connection.figures,
            })
            .collect();
        if let Ok(Some(link)) = self.shared.outgoing.lock().as_deref() {
            let figures = link.figures();
            all.push(PeerFigures {
                link: "next",
                rank: self.next_rank(),
                strategy: self.terms.strategy,
                figures,
            });
        }
        if let Ok(Some(link)) = self.shared.incoming.lock().as_deref() {
            let figures = link.figures();
            all.push(PeerFigures {
                link: "previous",
                rank: self.previous_rank(),
                strategy: self.terms.strategy,
                figures,
            });
        }
        for (link, rank, figures) in [
            (
                "next_bulk",
                self.next_rank(),
                self.shared.bulk_out.figures(),
            ),
            (
                "previous_bulk",
                self.previous_rank(),
                self.shared.bulk_in.figures(),
            ),
        ] {
            all.push(PeerFigures {
                link,
                rank,
                // The threads of the bulk lane sleep.
                strategy: Strategy::Block,
                figures,
            });
        }
        all
    }
}
