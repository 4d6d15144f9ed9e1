//! `AddressFilter`: answers a C library's callback for addresses that are known, without Python.
//!
//! It knows no library and reads nothing behind an address.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// What the library calls, and what is called for an address that is not known.
type Callback = unsafe extern "C" fn(*mut c_void, bool, *mut c_void) -> bool;

/// Answers false for known addresses and asks another callback about all others.
#[pyclass(frozen, module = "stagelink._native")]
pub(crate) struct AddressFilter {
    // Boxed, so that what the library holds stays where it is.
    inner: Box<Filter>,
}

struct Filter {
    known: Mutex<HashSet<usize>>,
    unknown: Callback,
}

impl Filter {
    /// A panic inside leaves a set as whole as any.
    fn known(&self) -> MutexGuard<'_, HashSet<usize>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl AddressFilter {
    #[new]
    fn new(unknown: usize) -> PyResult<Self> {
        if unknown == 0 {
            return Err(PyValueError::new_err("expected the address of a callback"));
        }
        // SAFETY: whoever gives the address answers for its being that of such a function, as with
        // every function that ctypes is told of.
        let unknown = unsafe { std::mem::transmute::<usize, Callback>(unknown) };
        let known = Mutex::default();
        let inner = Box::new(Filter { known, unknown });
        Ok(Self { inner })
    }

    /// Address of the function for the library.
    #[getter]
    #[expect(clippy::unused_self, reason = "it goes with `data`")]
    fn callback(&self) -> usize {
        answer as Callback as usize
    }

    /// What the library must hand to that function as its last argument.
    #[getter]
    fn data(&self) -> usize {
        std::ptr::from_ref(&*self.inner) as usize
    }

    fn add(&self, address: usize) {
        self.inner.known().insert(address);
    }

    fn clear(&self) {
        self.inner.known().clear();
    }

    fn __len__(&self) -> usize {
        self.inner.known().len()
    }
}

/// The function for the library, from whichever thread it calls.
unsafe extern "C" fn answer(address: *mut c_void, ask: bool, data: *mut c_void) -> bool {
    // SAFETY: `data` is that of a filter which outlives the library's use of it: so says its
    // docstring, and only shared references to it are ever made.
    let filter = unsafe { &*data.cast_const().cast::<Filter>() };
    // The lock is gone before the other callback runs, which adds what it has looked at.
    if filter.known().contains(&(address as usize)) {
        return false;
    }
    // SAFETY: see `new`. It gets what the library gave, but the data, which are not its own.
    unsafe { (filter.unknown)(address, ask, std::ptr::null_mut()) }
}
