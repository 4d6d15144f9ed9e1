//! The Python module `stagelink._native`: a table of contents over the other two crates.
//! It converts and releases the interpreter lock; it decides and waits for nothing itself.
#![allow(
    clippy::doc_markdown,
    reason = "doc comments here are Python's docstrings"
)]
#![allow(
    clippy::needless_pass_by_value,
    reason = "arguments are converted into values"
)]

mod address_filter;
mod buffer;
mod codec;
mod description;
mod errors;
mod figures;
mod listener;
mod members;
mod plan;
mod posted;
mod probe;
mod ring;

/// The link, its messages and its buffers.
#[pyo3::pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::address_filter::AddressFilter;
    #[pymodule_export]
    use crate::buffer::{Borrowed, RowsBuffer};
    #[pymodule_export]
    use crate::codec::{check_key_file, decode_frame, encode_frame, refusal_codes, run_vector};
    #[pymodule_export]
    use crate::description::Description;
    #[pymodule_export]
    use crate::listener::Listener;
    #[pymodule_export]
    use crate::plan::Plan;
    #[pymodule_export]
    use crate::posted::Posted;
    #[pymodule_export]
    use crate::probe::{boundary_sockets, interface_of};
    #[pymodule_export]
    use crate::ring::Ring;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("ROW_LANE_BYTES", stagelink_proto::limits::ROW_LANE_BYTES)?;
        let names = [
            "ROW_LANE_BYTES",
            "AddressFilter",
            "Borrowed",
            "Description",
            "Listener",
            "Plan",
            "Posted",
            "Ring",
            "RowsBuffer",
            "__version__",
            "boundary_sockets",
            "check_key_file",
            "decode_frame",
            "encode_frame",
            "interface_of",
            "refusal_codes",
            "run_vector",
        ];
        module.add("__all__", names.to_vec())
    }
}
