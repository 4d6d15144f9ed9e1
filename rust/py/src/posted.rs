//! `Posted`: a Python buffer in the link's hands, and the memory that outlives it where it must.
//!
//! It moves no bytes; stagelink-net's threads do, and they never touch the interpreter.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use stagelink_net::posted::Posted as Inside;

use crate::buffer::Held;
use crate::ring::{Ring, Signals, seconds};

/// A buffer that was handed to the link, from ``post_*`` until its transfer is over.
#[pyclass(frozen, module = "stagelink._native")]
pub(crate) struct Posted {
    inside: Option<Inside>,
    /// Released by a Python thread once the link has left the memory.
    held: Mutex<Option<Held>>,
    ring: Py<Ring>,
}

/// A send that nobody waits for; its memory is held until it is gone.
pub(crate) struct Orphan {
    // Dropped before the memory, and only then waits for nothing.
    inside: Inside,
    #[expect(dead_code, reason = "released when it is dropped")]
    held: Option<Held>,
}

impl Orphan {
    pub(crate) fn is_over(&self) -> bool {
        self.inside.is_over()
    }
}

impl Posted {
    pub(crate) fn new(inside: Inside, held: Held, ring: Py<Ring>) -> Self {
        Self {
            inside: Some(inside),
            held: Mutex::new(Some(held)),
            ring,
        }
    }

    fn release(&self) {
        // Taken out first: to release an export may run code of its exporter.
        let held = self
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(held);
    }
}

#[pymethods]
impl Posted {
    /// Whether ``wait`` would return at once; no system call. True after a failure too.
    fn ready(&self) -> bool {
        self.inside.as_ref().is_none_or(Inside::is_ready)
    }

    /// Wait until the buffer is filled, or the kernel has all of it; the round and its rows.
    #[pyo3(signature = (seconds = None))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<(u64, u32)> {
        let limit = seconds.map(self::seconds);
        let Some(inside) = &self.inside else {
            return Ok((0, 0));
        };
        let result = Signals::wait(py, |signals| inside.wait(limit, signals));
        if inside.is_over() {
            self.release();
        }
        result
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind, error, traceback))]
    #[expect(unused_variables, reason = "the names of the protocol")]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let Some(inside) = &self.inside else {
            return Ok(());
        };
        if !inside.is_leaving() {
            py.detach(|| inside.take_back());
            self.release();
        } else if kind.is_none() {
            self.wait(py, None)?;
        }
        Ok(())
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        let held = self
            .held
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(inside) = self.inside.take() else {
            return;
        };
        if inside.is_leaving() {
            self.ring.get().adopt(Orphan { inside, held });
        } else {
            // Returns when the thread has left the memory; the thread wants no interpreter lock.
            drop(inside);
            drop(held);
        }
    }
}
