//! `Description`: what a stage says of itself at boot, checked when it is made.
//!
//! Address, port and process are the link's to fill in.

use pyo3::prelude::*;
use stagelink_proto::describe::{
    BLOCKS_LEAST, Description as Inside, KvDtype, OPS_LEAST, RowDtype, Sampler,
};

use stagelink_proto::plan::BLOCK_TOKEN_IDS;

use crate::errors;

/// What a stage says of itself at boot (docs/protocol.md 6.1), without its address; immutable.
#[pyclass(frozen, module = "stagelink._native")]
pub(crate) struct Description {
    inside: Inside,
}

#[pymethods]
impl Description {
    /// Check every limit; raises ``LocalProtocolError`` with the rule's code.
    #[new]
    #[pyo3(signature = (*, rank, world, first, end, layers, width, planes, row_dtype, kv_dtype,
        chunk_rows, rows_max, streams_max, context, states, kv_rows, weight_bytes, engine_version,
        backend, device, host, buffers = 16, rounds_in_flight_max = 1, batch_invariant = false,
        keep = true, token_ids = false))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments, one for each field"
    )]
    fn new(
        py: Python<'_>,
        rank: u32,
        world: u32,
        first: u32,
        end: u32,
        layers: u32,
        width: u32,
        planes: u8,
        row_dtype: &str,
        kv_dtype: &str,
        chunk_rows: u32,
        rows_max: u32,
        streams_max: u32,
        context: u32,
        states: u32,
        kv_rows: u64,
        weight_bytes: u64,
        engine_version: String,
        backend: String,
        device: String,
        host: String,
        buffers: u16,
        rounds_in_flight_max: u16,
        batch_invariant: bool,
        keep: bool,
        token_ids: bool,
    ) -> PyResult<Self> {
        let dtypes = RowDtype::from_name(row_dtype)
            .and_then(|row_dtype| Ok((row_dtype, KvDtype::from_name(kv_dtype)?)));
        let (row_dtype, kv_dtype) = dtypes.map_err(|error| errors::local(py, &error))?;
        let inside = Inside {
            rank,
            world,
            first,
            end,
            layers,
            width,
            planes,
            row_dtype,
            kv_dtype,
            sampler: Sampler::First,
            chunk_rows,
            rows_max,
            streams_max,
            context,
            states,
            kv_rows,
            draft_width: 0,
            buffers,
            rounds_in_flight_max,
            ops: OPS_LEAST,
            blocks: BLOCKS_LEAST | if token_ids { BLOCK_TOKEN_IDS } else { 0 },
            batch_invariant,
            keep,
            weight_bytes,
            process: 0,
            port: 1,
            engine_version,
            backend,
            device,
            host,
            // Stands in until the link knows the address that it listens on.
            address: "127.0.0.1".into(),
            taps: Vec::new(),
        };
        inside.check().map_err(|error| errors::local(py, &error))?;
        Ok(Self { inside })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.inside.rank
    }

    #[getter]
    fn first(&self) -> u32 {
        self.inside.first
    }

    #[getter]
    fn end(&self) -> u32 {
        self.inside.end
    }

    fn __repr__(&self) -> String {
        let Inside {
            rank,
            world,
            first,
            end,
            ..
        } = &self.inside;
        format!("Description(rank={rank}, world={world}, first={first}, end={end})")
    }
}

impl Description {
    pub(crate) fn inside(&self) -> Inside {
        self.inside.clone()
    }
}
