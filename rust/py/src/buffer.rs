//! `RowsBuffer`: aligned memory that Python sees through the buffer protocol, and memory that
//! Python lends, to one call or until a transfer is over.
//!
//! It neither sends nor receives; the borrowed addresses go to stagelink-net.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;

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

/// Memory that has no buffer protocol, by its address: a torch tensor's ``data_ptr()``.
#[pyclass(frozen, module = "stagelink._native")]
pub(crate) struct Borrowed {
    address: usize,
    nbytes: usize,
    owner: Py<PyAny>,
}

#[pymethods]
impl Borrowed {
    #[new]
    fn new(address: usize, nbytes: usize, owner: Py<PyAny>) -> PyResult<Self> {
        let is_none = address == 0 && nbytes > 0;
        if is_none || address.checked_add(nbytes).is_none() || nbytes > BUFFER_BYTES_MAX {
            let text = "expected the address of at most 1 GiB of memory";
            return Err(PyValueError::new_err(text));
        }
        Ok(Self {
            address,
            nbytes,
            owner,
        })
    }

    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    fn __len__(&self) -> usize {
        self.nbytes
    }
}

/// A Python object's memory, held by its buffer export or its owner.
///
/// It asks for bytes alone, without the shapes and formats that the exporter would have to make.
pub(crate) struct Held {
    start: *mut u8,
    len: usize,
    keeper: Keeper,
}

/// What keeps the memory mapped.
enum Keeper {
    View(Box<ffi::Py_buffer>),
    #[expect(dead_code, reason = "it is only kept alive")]
    Owner(Py<PyAny>),
}

// SAFETY: an address and a reference; the reference is given up with the interpreter lock held, and
// who uses the address answers for it.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Held {
    /// Take the export of a contiguous object; `writable` refuses a read-only one.
    pub(crate) fn new(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Self> {
        if let Ok(borrowed) = object.cast_exact::<Borrowed>() {
            let borrowed = borrowed.get();
            return Ok(Self {
                start: borrowed.address as *mut u8,
                len: borrowed.nbytes,
                keeper: Keeper::Owner(borrowed.owner.clone_ref(object.py())),
            });
        }
        let flags = if writable {
            ffi::PyBUF_WRITABLE
        } else {
            ffi::PyBUF_SIMPLE
        };
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: both pointers are valid, and the view stays where it is until it is released.
        let failed =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } != 0;
        if failed {
            let raised = PyErr::fetch(object.py());
            let text = format!("rows must be a contiguous buffer, writable to receive: {raised}");
            return Err(PyTypeError::new_err(text));
        }
        Ok(Self {
            start: view.buf.cast(),
            len: usize::try_from(view.len).unwrap_or(0),
            keeper: Keeper::View(view),
        })
    }

    /// The memory for reading, for a transfer that the value outlives: `Posted` sees to that.
    pub(crate) fn rows_out(&self) -> Lent<'static> {
        // SAFETY: `Posted` keeps the value until the link has left the memory; where posting fails,
        // the link has not taken it.
        unsafe { self.lend_out() }
    }

    /// The memory for writing, for a transfer that the value outlives: `Posted` sees to that.
    pub(crate) fn rows_in(&self) -> LentMut<'static> {
        // SAFETY: as above.
        unsafe { self.lend_out_mut() }
    }

    /// # Safety
    ///
    /// The value must outlive the use of the result.
    unsafe fn lend_out(&self) -> Lent<'static> {
        // SAFETY: the keeper keeps the memory mapped; that nobody writes meanwhile is the caller's
        // side of the bargain, and breaking it spoils rows, not memory.
        unsafe { Lent::new(self.start.cast_const(), self.len) }
    }

    /// # Safety
    ///
    /// The value must outlive the use of the result.
    unsafe fn lend_out_mut(&self) -> LentMut<'static> {
        // SAFETY: as above, and `new` asked for a writable export.
        unsafe { LentMut::new(self.start, self.len) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Keeper::View(view) = &mut self.keeper else {
            return;
        };
        // Without an interpreter there is nothing left to give the export back to.
        let _ = Python::try_attach(|_| {
            // SAFETY: taken in `new` and released only here, with the lock held.
            unsafe { ffi::PyBuffer_Release(&raw mut **view) }
        });
    }
}

/// Memory that is lent for the length of one call.
pub(crate) struct Export<'py> {
    held: Held,
    // The value stays where the lock is held.
    py: PhantomData<Python<'py>>,
}

impl<'py> Export<'py> {
    /// As [`Held::new`].
    pub(crate) fn new(object: &Bound<'py, PyAny>, writable: bool) -> PyResult<Self> {
        let held = Held::new(object, writable)?;
        let py = PhantomData;
        Ok(Self { held, py })
    }

    /// The memory for reading.
    pub(crate) fn lend(&self) -> Lent<'_> {
        // SAFETY: the result cannot outlive the borrow of the value.
        unsafe { self.held.lend_out() }
    }

    /// The memory for writing.
    pub(crate) fn lend_mut(&mut self) -> LentMut<'_> {
        // SAFETY: as above.
        unsafe { self.held.lend_out_mut() }
    }
}
