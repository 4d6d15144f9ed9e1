//! `RowsBuffer`: aligned memory that Python sees through the buffer protocol, and memory that
//! Python lends to one call.
//!
//! It neither sends nor receives; the borrowed addresses go to stagelink-net.

#![allow(unsafe_code)]

use std::ffi::c_int;

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
///
/// It asks for bytes alone, without the shapes and formats that the exporter would have to make.
pub(crate) struct Export<'py> {
    view: Box<ffi::Py_buffer>,
    // Releasing the view takes the interpreter lock, so the value stays where the lock is held.
    py: Python<'py>,
}

impl<'py> Export<'py> {
    /// Take the export of a contiguous object; `writable` refuses a read-only one.
    pub(crate) fn new(object: &Bound<'py, PyAny>, writable: bool) -> PyResult<Self> {
        let flags = if writable {
            ffi::PyBUF_WRITABLE
        } else {
            ffi::PyBUF_SIMPLE
        };
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: both pointers are valid, and the view stays where it is until it is released.
        let failed =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } != 0;
        if !failed {
            return Ok(Self {
                view,
                py: object.py(),
            });
        }
        let raised = PyErr::fetch(object.py());
        let text = format!("rows must be a contiguous buffer, writable to receive: {raised}");
        Err(PyTypeError::new_err(text))
    }

    /// The memory for reading.
    pub(crate) fn lend(&self) -> Lent<'_> {
        // SAFETY: the export keeps the memory mapped; that nobody writes meanwhile is the
        // caller's side of the bargain, and breaking it spoils rows, not memory.
        unsafe { Lent::new(self.view.buf.cast::<u8>().cast_const(), self.len()) }
    }

    /// The memory for writing.
    pub(crate) fn lend_mut(&mut self) -> LentMut<'_> {
        // SAFETY: as above, and `new` asked for a writable export.
        unsafe { LentMut::new(self.view.buf.cast(), self.len()) }
    }

    fn len(&self) -> usize {
        usize::try_from(self.view.len).unwrap_or(0)
    }
}

impl Drop for Export<'_> {
    fn drop(&mut self) {
        // The token shows that the lock is held.
        let _ = self.py;
        // SAFETY: taken in `new` and released only here.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) }
    }
}
