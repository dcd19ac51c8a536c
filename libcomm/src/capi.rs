//! The C interface: check what C cannot promise, call, turn the error into a code. `include/libcomm.h` declares
//! the same functions; a test compares the two, prototype by prototype and number by number.
//!
//! No panic crosses it, and nothing here ends or signals the process. A pointer to a communicator comes from
//! `comm_init` and is used by nobody after `comm_finalize`; that, and the sizes of buffers, is what C must promise.
#![expect(unsafe_code, reason = "C calls this with pointers")]

mod arguments;
mod calls;
mod codes;
mod device;
mod requests;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::comm::Comm;
use crate::error::CommError;
use crate::types::Operation;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs a call; its error, or panic, becomes a code here and the sentence that `comm_last_error` returns.
fn guarded(call: impl FnOnce() -> Result<(), CommError>) -> c_int {
    let caught = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
        Err(CommError::Internal(text.to_owned()))
    });
    let Err(error) = caught else { return codes::OK };
    // No text of ours has a NUL, except where an environment variable brought one, which it cannot.
    let text = CString::new(error.to_string()).unwrap_or_default();
    // A thread that is ending has no place for it any more; then the code must do.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
    codes::code_of(&error)
}

fn null(name: &str) -> CommError {
    CommError::InvalidArgument { operation: Operation::Barrier, why: format!("{name} is null") }
}

/// # Safety
/// `comm` is null or from `comm_init` and not yet finalized.
unsafe fn comm_at<'a>(comm: *const Comm, operation: Operation) -> Result<&'a Comm, CommError> {
    // SAFETY: the caller's.
    unsafe { comm.as_ref() }.ok_or_else(|| CommError::invalid(operation, "the communicator is null"))
}

/// Runs a call on a communicator that may be null.
///
/// # Safety
/// `comm` is null or from `comm_init` and not yet finalized.
unsafe fn on<'a>(
    comm: *const Comm,
    operation: Operation,
    call: impl FnOnce(&'a Comm) -> Result<(), CommError>,
) -> c_int {
    // SAFETY: the caller's.
    guarded(|| call(unsafe { comm_at(comm, operation) }?))
}

/// Joins; see the header.
///
/// # Safety
/// `comm` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_init(comm: *mut *mut Comm) -> c_int {
    guarded(|| {
        if comm.is_null() {
            return Err(null("comm_init: comm"));
        }
        // SAFETY: the caller's, and not null.
        unsafe { *comm = std::ptr::null_mut() };
        let joined = Box::new(Comm::init()?);
        // SAFETY: as above.
        unsafe { *comm = Box::into_raw(joined) };
        Ok(())
    })
}

/// This rank's number, -1 for a null communicator.
///
/// # Safety
/// `comm` is null or from `comm_init` and not yet finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_rank(comm: *const Comm) -> c_int {
    // SAFETY: the caller's.
    unsafe { comm.as_ref() }.map_or(-1, |comm| comm.rank() as c_int)
}

/// How many ranks there are, -1 for a null communicator.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_size(comm: *const Comm) -> c_int {
    // SAFETY: the caller's.
    unsafe { comm.as_ref() }.map_or(-1, |comm| comm.size() as c_int)
}

/// This rank's number on its node, -1 for a null communicator.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_local_rank(comm: *const Comm) -> c_int {
    // SAFETY: the caller's.
    unsafe { comm.as_ref() }.map_or(-1, |comm| comm.local_rank() as c_int)
}

/// Memory that all ranks can reach; see the header.
///
/// # Safety
/// As for `comm_rank`, and `address` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_alloc(comm: *const Comm, bytes: usize, address: *mut *mut c_void) -> c_int {
    guarded(|| {
        if address.is_null() {
            return Err(null("comm_alloc: address"));
        }
        // SAFETY: the caller's, and not null.
        unsafe { *address = std::ptr::null_mut() };
        // SAFETY: the caller's.
        let memory = unsafe { comm.as_ref() }.ok_or_else(|| null("comm_alloc: comm"))?.alloc_raw(bytes)?;
        // SAFETY: as above.
        unsafe { *address = memory };
        Ok(())
    })
}

/// Gives it back; see the header.
///
/// # Safety
/// As for `comm_rank`, and `address` is null or from `comm_alloc` of it and used by nobody any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_free(comm: *const Comm, address: *mut c_void) -> c_int {
    guarded(|| {
        // SAFETY: the caller's.
        let comm = unsafe { comm.as_ref() }.ok_or_else(|| null("comm_free: comm"))?;
        // SAFETY: the caller's.
        unsafe { comm.free_raw(address) };
        Ok(())
    })
}

/// Leaves together with all; the communicator is gone afterwards, whatever the code. Null is fine.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_finalize(comm: *mut Comm) -> c_int {
    guarded(|| {
        if comm.is_null() {
            return Ok(());
        }
        // SAFETY: from the Box of `comm_init`, and given back once.
        unsafe { Box::from_raw(comm) }.finalize()
    })
}

/// Ends the job for all ranks; see the header.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_abort(comm: *const Comm) -> c_int {
    guarded(|| {
        // SAFETY: the caller's.
        match unsafe { comm.as_ref() }.ok_or_else(|| null("comm_abort: comm"))?.abort() {
            CommError::Forked => Err(CommError::Forked),
            _ => Ok(()),
        }
    })
}

/// Tells a figure of the program's own; see the header.
///
/// # Safety
/// `name` is null or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_report(name: *const c_char, value: f64) -> c_int {
    guarded(|| {
        if name.is_null() {
            return Err(null("comm_report: name"));
        }
        // SAFETY: the caller's, and not null.
        crate::report::report(&unsafe { CStr::from_ptr(name) }.to_string_lossy(), value);
        Ok(())
    })
}

/// The sentence of this thread's last error, empty before the first. Valid until its next one.
#[unsafe(no_mangle)]
pub extern "C" fn comm_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// What a code means, for ever valid.
#[unsafe(no_mangle)]
pub extern "C" fn comm_error_string(code: c_int) -> *const c_char {
    codes::sentence(code).as_ptr()
}

/// The version of the library: major * 10000 + minor * 100 + patch.
#[unsafe(no_mangle)]
pub extern "C" fn comm_version() -> c_uint {
    VERSION
}

const VERSION: c_uint = version_number();

const fn version_number() -> c_uint {
    part(env!("CARGO_PKG_VERSION_MAJOR")) * 10000
        + part(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + part(env!("CARGO_PKG_VERSION_PATCH"))
}

const fn part(digits: &str) -> c_uint {
    let digits = digits.as_bytes();
    let (mut number, mut i) = (0, 0);
    while i < digits.len() {
        number = number * 10 + (digits[i] - b'0') as c_uint;
        i += 1;
    }
    number
}

#[cfg(test)]
mod tests;
