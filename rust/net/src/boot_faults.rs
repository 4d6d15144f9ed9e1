//! What can go wrong at boot, in the words that every rank reports.
//!
//! It decides nothing but the words and who is to blame.

use std::net::SocketAddr;

use stagelink_proto::Refusal;
use stagelink_proto::error::ProtocolError;

use crate::accept::{BOOT_ENDED, Reception};
use crate::boot::Boot;
use crate::dial::{Dial, DialFailure, never_answered};
use crate::error::{Kind as ErrorKind, LinkError};

impl Boot<'_> {
    pub(crate) fn misplaced(&self, error: &ProtocolError) -> LinkError {
        let rank = error.rank.unwrap_or(0);
        let name = self.shared.name(rank);
        let text = format!("{name}: {error}; {}", hint(error.refusal));
        LinkError::new(ErrorKind::Refused, error.refusal, text)
            .by(rank)
            .during("join")
    }

    pub(crate) fn dial_failed(&self, failure: DialFailure, rank: u32) -> LinkError {
        let DialFailure { not_linked, socket } = failure;
        let error = &not_linked.error;
        let name = self.shared.name(rank);
        let text = match (error.refusal, &not_linked.text) {
            (Refusal::Key, _) => format!(
                "{name} closed the connection after this rank's proof: the two key files differ"
            ),
            (_, Some(text)) if text.starts_with(BOOT_ENDED) => format!("{name}: {text}"),
            (refusal, Some(_)) if (40..=48).contains(&refusal.number()) => {
                let (meaning, hint) = (refusal.meaning(), hint(refusal));
                format!("{name} refused this rank: {refusal}: {meaning}; {hint}")
            }
            (refusal, Some(text)) => {
                format!(
                    "{name} refused this rank: {refusal}: {text}; {}",
                    hint(refusal)
                )
            }
            (refusal, None) => format!("{name}: {error}; {}", hint(refusal)),
        };
        let fault = LinkError::new(ErrorKind::Refused, error.refusal, text)
            .by(rank)
            .during("join");
        if not_linked.fate_due {
            self.tell(&socket, &fault, not_linked.fate_key.as_deref());
        }
        fault
    }

    pub(crate) fn never_joined(&self, reception: &Reception) -> LinkError {
        let seconds = self.deadline.seconds();
        let strangers = reception.strangers.summary();
        let star = self.shared.star();
        let missing: Vec<u32> = (1..self.own.world)
            .filter(|rank| star.descriptions.iter().all(|other| other.rank != *rank))
            .collect();
        drop(star);
        let (culprit, what) = match missing.as_slice() {
            [] => {
                let last = self.own.world - 1;
                (
                    last,
                    format!("{} did not close the ring", self.shared.name(last)),
                )
            }
            [rank] => (*rank, format!("rank {rank} never joined")),
            [first, ..] => {
                let all: Vec<String> = missing.iter().map(ToString::to_string).collect();
                (*first, format!("ranks {} never joined", all.join(", ")))
            }
        };
        let text = format!("{what} within {seconds} s{strangers}");
        LinkError::new(ErrorKind::Deadline, Refusal::NeverJoined, text)
            .by(culprit)
            .after_seconds(seconds)
    }

    pub(crate) fn ring_incomplete(&self, dial: Option<&Dial>, reception: &Reception) -> LinkError {
        let seconds = self.deadline.seconds();
        let strangers = reception.strangers.summary();
        match dial {
            Some(dial) if self.outgoing_is_free() => {
                let rank = self.next_rank();
                never_answered(dial, &format!("rank {rank}"), self.deadline).by(rank)
            }
            Some(_) => {
                let rank = (self.own.rank + self.own.world - 1) % self.own.world;
                let name = self.shared.name(rank);
                let text = format!("{name} did not dial this rank within {seconds} s{strangers}");
                LinkError::new(ErrorKind::Deadline, Refusal::NeverJoined, text)
                    .by(rank)
                    .after_seconds(seconds)
            }
            None => {
                let name = self.shared.name(0);
                let own = self.own.rank;
                let text = format!(
                    "not every rank joined {name} within the {seconds} s that rank {own} waits\
                     {strangers}; start those that are missing, with --join-seconds alike"
                );
                LinkError::new(ErrorKind::Deadline, Refusal::NeverJoined, text)
                    .after_seconds(seconds)
            }
        }
    }
}

pub(crate) fn refused(rank: u32, address: Option<SocketAddr>, error: &ProtocolError) -> LinkError {
    let from = address
        .map(|address| format!(" ({})", address.ip()))
        .unwrap_or_default();
    let text = format!(
        "rank {rank}{from} was refused: {error}; {}",
        hint(error.refusal)
    );
    LinkError::new(ErrorKind::Refused, error.refusal, text).by(rank)
}

/// What a person should do about a refusal at boot.
fn hint(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::BadLink => "give --lead the address that rank 0 listens on",
        Refusal::World => "start every rank with the same number of stages",
        Refusal::RankTaken => "give every process a rank of its own",
        Refusal::Rank | Refusal::PeerRank => "check the ranks that the processes were started with",
        Refusal::Launch => "it is of an earlier start; start all ranks anew",
        Refusal::Suite => "give every rank the same --seal, or none of them",
        Refusal::Options => "set the payload checksum alike on every rank",
        Refusal::FingerprintConfig | Refusal::FingerprintTensors => {
            "give every rank the same checkpoint"
        }
        Refusal::FingerprintTokenizer | Refusal::FingerprintTemplate => {
            "give every rank the same tokenizer and chat template"
        }
        Refusal::FingerprintDtype | Refusal::FormatDtype => "give every rank the same --dtype",
        Refusal::FingerprintPlacement => "give every rank the same --layers, or none of them",
        Refusal::FingerprintVersions | Refusal::Protocol | Refusal::EngineVersion => {
            "install the same release on every rank"
        }
        Refusal::FingerprintShapes | Refusal::Shapes => {
            "give every rank the same --context, --streams-max and --chunk-rows"
        }
        Refusal::BatchInvariance => "give --batch-invariant to every rank, or to none",
        Refusal::RangeGap | Refusal::RangeOverlap | Refusal::RangeOverrun => {
            "give every rank the same --layers, each layer once and in rank order"
        }
        Refusal::CapacityKvRows | Refusal::CapacityStates => {
            "give every rank a smaller --context or --streams-max, or that rank another engine"
        }
        _ => "start every rank with the same settings",
    }
}
