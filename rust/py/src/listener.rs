//! `Listener`: the bound socket that a ring is joined with.
//!
//! It accepts nothing; `Ring.join` takes it.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use stagelink_net::error::LinkError;
use stagelink_net::listen;

use crate::errors;

/// A bound listening socket; refuses a wildcard, a foreign or a taken address with `ConfigError`.
#[pyclass(frozen, module = "stagelink._native")]
pub(crate) struct Listener {
    address: String,
    inside: Mutex<Option<listen::Listener>>,
}

#[pymethods]
impl Listener {
    /// Bind ``host:port`` or ``[v6]:port``; port 0 lets the kernel choose.
    #[new]
    fn new(py: Python<'_>, address: &str) -> PyResult<Self> {
        let bound = py.detach(|| listen::Listener::bind(address));
        let bound = bound.map_err(|error| errors::to_python(py, &error))?;
        Ok(Self {
            address: bound.address().to_string(),
            inside: Mutex::new(Some(bound)),
        })
    }

    /// The address that was really bound, ``host:port``.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    fn __repr__(&self) -> String {
        format!("Listener({:?})", self.address)
    }
}

impl Listener {
    /// Take the socket out; a second time there is none.
    pub(crate) fn take(&self) -> Result<listen::Listener, LinkError> {
        let inside = self
            .inside
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        inside.ok_or_else(|| {
            LinkError::config(
                "listener_used",
                "the listener was used up by an earlier join",
            )
        })
    }
}
