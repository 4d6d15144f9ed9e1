//! Descriptions that agree with each other, for tests that break one of them.
//! They are of no real model.

use stagelink_proto::describe::{BLOCKS_LEAST, Description, KvDtype, OPS_LEAST, RowDtype, Sampler};

/// The description of `rank`, four layers each.
pub(crate) fn description(rank: u32, world: u32) -> Description {
    Description {
        rank,
        world,
        first: rank * 4,
        end: rank * 4 + 4,
        layers: world * 4,
        width: 2,
        planes: 1,
        row_dtype: RowDtype::Float32,
        kv_dtype: KvDtype::Float32,
        sampler: Sampler::First,
        chunk_rows: 16,
        rows_max: 64,
        streams_max: 4,
        context: 256,
        states: 4,
        kv_rows: 1_024,
        draft_width: 0,
        buffers: 2,
        rounds_in_flight_max: 3,
        ops: OPS_LEAST,
        blocks: BLOCKS_LEAST,
        batch_invariant: false,
        keep: true,
        weight_bytes: 0,
        process: 0,
        port: 7_000 + u16::try_from(rank).unwrap(),
        engine_version: "1".into(),
        backend: "simulated".into(),
        device: String::new(),
        host: format!("host{rank}"),
        address: "127.0.0.1".into(),
        taps: Vec::new(),
    }
}
