//! A rank's facts as Python sees them.
//!
//! It knows no link.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use stagelink_net::members::Member;
use stagelink_proto::describe::KvDtype;

/// What is known of one rank; on rank 0 what it described too.
pub(crate) fn member_dict<'py>(
    py: Python<'py>,
    member: &Member,
    is_lead: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let shown = PyDict::new(py);
    shown.set_item("rank", member.rank)?;
    shown.set_item("first", member.first)?;
    shown.set_item("end", member.end)?;
    shown.set_item("host", &member.host)?;
    shown.set_item("address", member.address.map(|address| address.to_string()))?;
    if is_lead {
        shown.set_item("backend", &member.backend)?;
        shown.set_item("device", &member.device)?;
        shown.set_item("process", member.process)?;
        shown.set_item("weight_bytes", member.weight_bytes)?;
        shown.set_item("kv_dtype", member.kv_dtype.map(KvDtype::name))?;
        shown.set_item("batch_invariant", member.batch_invariant)?;
        shown.set_item("keep", member.keep)?;
    }
    Ok(shown)
}
