//! `RowsBuffer`: aligned memory that Python sees through the buffer protocol, and memory that
//! Python lends to one call.
//!
//! It neither sends nor receives; the borrowed addresses go to stagelink-net.

#![allow(unsafe_code)]

use std::ffi::c_int;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use stagelink_net::buffers::{AlignedBuffer, BUFFER_BYTES_MAX};
use stagelink_net::lent::{Lent, LentMut};

use crate::errors;

/// Zeroed host memory for rows, 64-byte aligned, writable through the buffer protocol.
#[pyclass(frozen, module = "stagelink._native")]
pub(crate) struct RowsBuffer {
    memory: AlignedBuffer,
}

#[pymethods]
impl RowsBuffer {
    #[new]
    fn new(py: Python<'_>, size: i64) -> PyResult<Self> {
        let size = usize::try_from(size)
            .map_err(|_| PyValueError::new_err("size is negative, expected 0..=1 GiB"))?;
        let memory = AlignedBuffer::new(size.min(BUFFER_BYTES_MAX + 1));
        let memory = memory.map_err(|error| errors::to_python(py, &error))?;
        Ok(Self { memory })
    }

    fn __len__(&self) -> usize {
        self.memory.len()
    }

    /// What Python 3.12 makes of the buffer protocol by itself, for 3.11.
    fn __buffer__<'py>(
        slf: &Bound<'py, Self>,
        #[expect(unused_variables, reason = "every view of it is the same")] flags: c_int,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(slf.as_any())
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view was given"));
        }
        let start = slf.get().memory.as_ptr().cast();
        let len = ffi::Py_ssize_t::try_from(slf.get().memory.len())?;
        // SAFETY: `view` is Python's to fill; the memory lives as long as the object, and the
        // view takes a reference to it. Format "B" and one dimension are what FillInfo sets.
        let failed =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 0, flags) } != 0;
        if failed {
            Err(PyErr::fetch(slf.py()))
        } else {
            Ok(())
        }
    }
}

/// A Python object's memory, held by its buffer export for the length of one call.
pub(crate) struct Export {
    view: PyUntypedBuffer,
}

impl Export {
    /// Take the export of a contiguous object; `writable` refuses a read-only one.
    pub(crate) fn new(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        let view = PyUntypedBuffer::get(object)?;
        if !view.is_c_contiguous() {
            return Err(PyTypeError::new_err("rows must be a C-contiguous buffer"));
        }
        if writable && view.readonly() {
            return Err(PyTypeError::new_err(
                "rows must be a writable buffer, came a read-only one",
            ));
        }
        Ok(Self { view })
    }

    /// The memory for reading.
    pub(crate) fn lend(&self) -> Lent<'_> {
        // SAFETY: the export keeps the memory mapped; that nobody writes meanwhile is the
        // caller's side of the bargain, and breaking it spoils rows, not memory.
        unsafe {
            Lent::new(
                self.view.buf_ptr().cast::<u8>().cast_const(),
                self.view.len_bytes(),
            )
        }
    }

    /// The memory for writing.
    pub(crate) fn lend_mut(&mut self) -> LentMut<'_> {
        // SAFETY: as above, and `new` refused a read-only export.
        unsafe { LentMut::new(self.view.buf_ptr().cast(), self.view.len_bytes()) }
    }
}
