//! All descriptions together: one a rank, same format, every layer once (docs/protocol.md 6.1.1).
//! It names the first broken rule and the rank that breaks it; it does not choose a placement.

use alloc::vec::Vec;

use crate::{
    bytes::to_usize,
    describe::{Description, Sampler},
    error::{ProtocolError, Refusal},
    plan::PlanBounds,
    rows::RowsFormat,
    streams::Capacity,
};

/// What all stages together can do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Layout {
    /// Layers of the model.
    pub layers: u32,
    /// Format of every boundary's rows.
    pub rows_format: RowsFormat,
    /// Which stage samples.
    pub sampler: Sampler,
    /// What a plan may hold so that every stage takes it.
    pub plan_bounds: PlanBounds,
    /// The tightest stage's capacity.
    pub capacity: Capacity,
    /// Rows of a full prompt chunk.
    pub chunk_rows: u32,
    /// Rows buffers of every boundary.
    pub buffers: u16,
    /// Rounds with rows that may be on the ring at once.
    pub rounds_in_flight_max: u16,
}

impl Layout {
    /// Checks all descriptions, in any order, the lead's among them.
    ///
    /// Errors: the table of section 6.1.1 with the rank that it names, `never_joined` where a rank
    /// is missing.
    pub fn agree(descriptions: &[Description], world: u32) -> Result<Self, ProtocolError> {
        let ranks = in_rank_order(descriptions, world)?;
        let lead = *ranks
            .first()
            .ok_or_else(|| Refusal::NeverJoined.error("no description"))?;
        for check in [
            check_world,
            check_version,
            check_layers,
            check_format,
            check_shapes,
            check_batch_invariance,
        ] {
            for description in &ranks {
                check(lead, description, world).map_err(|error| error.of_rank(description.rank))?;
            }
        }
        check_ranges(
            ranks.iter().map(|rank| (rank.rank, rank.first, rank.end)),
            lead.layers,
        )?;
        for check in [check_kv_rows, check_states] {
            for description in &ranks {
                check(description).map_err(|error| error.of_rank(description.rank))?;
            }
        }
        Ok(Self::tightest(lead, &ranks))
    }

    fn tightest(lead: &Description, ranks: &[&Description]) -> Self {
        let all = |bits: fn(&Description) -> u32| {
            ranks.iter().fold(u32::MAX, |all, rank| all & bits(rank))
        };
        let least = |number: fn(&Description) -> u64| {
            ranks.iter().map(|rank| number(rank)).min().unwrap_or(0)
        };
        let states = u32::try_from(least(|rank| u64::from(rank.states))).unwrap_or(u32::MAX);
        let rounds = ranks.iter().map(|rank| rank.rounds_in_flight_max).min();
        Self {
            layers: lead.layers,
            rows_format: lead.rows_format(),
            sampler: lead.sampler,
            plan_bounds: PlanBounds {
                streams_max: lead.streams_max,
                rows_max: lead.rows_max,
                ops: all(|rank| rank.ops),
                blocks: all(|rank| rank.blocks),
                draft_width: lead.draft_width,
            },
            capacity: Capacity {
                context: lead.context,
                states,
                kv_rows: least(|rank| rank.kv_rows),
            },
            chunk_rows: lead.chunk_rows,
            buffers: lead.buffers,
            rounds_in_flight_max: rounds.unwrap_or(1),
        }
    }
}

/// Checks that `(rank, first, end)` in rank order cover `0..layers` exactly once.
///
/// Errors: `range_gap`, `range_overlap`, `range_overrun`, with the rank.
pub fn check_ranges(
    ranges: impl IntoIterator<Item = (u32, u32, u32)>,
    layers: u32,
) -> Result<(), ProtocolError> {
    let (mut reached, mut last) = (0_u32, 0_u32);
    for (rank, first, end) in ranges {
        if first != reached {
            let refusal = if first > reached {
                Refusal::RangeGap
            } else {
                Refusal::RangeOverlap
            };
            return Err(refusal.numbers("first layer", reached, first).of_rank(rank));
        }
        if end > layers {
            let error = Refusal::RangeOverrun.outside("end of the layers", 0_u32, layers, end);
            return Err(error.of_rank(rank));
        }
        (reached, last) = (end, rank);
    }
    if reached != layers {
        let error = Refusal::RangeGap.numbers("the last layer's end", layers, reached);
        return Err(error.of_rank(last));
    }
    Ok(())
}

/// One description a rank: the descriptions sorted by rank.
fn in_rank_order(
    descriptions: &[Description],
    world: u32,
) -> Result<Vec<&Description>, ProtocolError> {
    let mut ranks: Vec<&Description> = descriptions.iter().collect();
    ranks.sort_by_key(|description| description.rank);
    let twice = ranks
        .iter()
        .zip(ranks.iter().skip(1))
        .find(|(a, b)| a.rank == b.rank);
    if let Some((description, _)) = twice {
        let error = Refusal::RankDuplicate.error("expected one description of each rank");
        return Err(error.of_rank(description.rank));
    }
    let missing = (0..world).zip(0_usize..).find(|&(rank, index)| {
        ranks
            .get(index)
            .is_none_or(|description| description.rank > rank)
    });
    if let Some((rank, _)) = missing {
        return Err(Refusal::NeverJoined
            .error("expected its description")
            .of_rank(rank));
    }
    if let Some(description) = ranks.get(to_usize(world)) {
        let (last, got) = (world.saturating_sub(1), description.rank);
        let error = Refusal::RankDescription.outside("rank", 0_u32, last, got);
        return Err(error.of_rank(got));
    }
    Ok(ranks)
}

fn check_world(_: &Description, it: &Description, world: u32) -> Result<(), ProtocolError> {
    same(Refusal::WorldDescription, "world", world, it.world)
}

fn check_version(lead: &Description, it: &Description, _: u32) -> Result<(), ProtocolError> {
    if it.engine_version == lead.engine_version {
        return Ok(());
    }
    Err(Refusal::EngineVersion.text(alloc::format!(
        "expected engine version {}, got {}",
        lead.engine_version,
        it.engine_version
    )))
}

fn check_layers(lead: &Description, it: &Description, _: u32) -> Result<(), ProtocolError> {
    same(Refusal::Layers, "layers", lead.layers, it.layers)
}

fn check_format(lead: &Description, it: &Description, _: u32) -> Result<(), ProtocolError> {
    same(Refusal::FormatWidth, "width", lead.width, it.width)?;
    same(Refusal::FormatPlanes, "planes", lead.planes, it.planes)?;
    if it.row_dtype != lead.row_dtype {
        return Err(Refusal::FormatDtype.named(lead.row_dtype.name(), it.row_dtype.name()));
    }
    same(
        Refusal::DraftWidth,
        "draft_width",
        lead.draft_width,
        it.draft_width,
    )?;
    if it.sampler != lead.sampler {
        return Err(Refusal::Sampler.named(lead.sampler.name(), it.sampler.name()));
    }
    Ok(())
}

fn check_shapes(lead: &Description, it: &Description, _: u32) -> Result<(), ProtocolError> {
    same(
        Refusal::Shapes,
        "chunk_rows",
        lead.chunk_rows,
        it.chunk_rows,
    )?;
    same(Refusal::Shapes, "rows_max", lead.rows_max, it.rows_max)?;
    same(
        Refusal::Shapes,
        "streams_max",
        lead.streams_max,
        it.streams_max,
    )?;
    same(Refusal::Shapes, "context", lead.context, it.context)?;
    same(Refusal::Shapes, "buffers", lead.buffers, it.buffers)
}

fn check_batch_invariance(
    lead: &Description,
    it: &Description,
    _: u32,
) -> Result<(), ProtocolError> {
    let refusal = Refusal::BatchInvariance;
    match (lead.batch_invariant, it.batch_invariant) {
        (true, false) => Err(refusal.error("expected the promise that rank 0 makes, got none")),
        (false, true) => Err(refusal.error("expected no promise, as rank 0 makes none, got one")),
        _ => Ok(()),
    }
}

fn check_kv_rows(it: &Description) -> Result<(), ProtocolError> {
    if it.kv_rows >= u64::from(it.context) {
        return Ok(());
    }
    Err(Refusal::CapacityKvRows.outside("kv_rows", it.context, u64::MAX, it.kv_rows))
}

fn check_states(it: &Description) -> Result<(), ProtocolError> {
    if it.states >= it.streams_max {
        return Ok(());
    }
    Err(Refusal::CapacityStates.outside("states", it.streams_max, u32::MAX, it.states))
}

fn same<T: Copy + Into<u64> + PartialEq>(
    refusal: Refusal,
    what: &'static str,
    expected: T,
    got: T,
) -> Result<(), ProtocolError> {
    if expected == got {
        Ok(())
    } else {
        Err(refusal.numbers(what, expected, got))
    }
}
