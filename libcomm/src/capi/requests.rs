//! Communicators made of others, and calls that return before they are done.

use std::ffi::{c_int, c_void};

use super::arguments::{data_type, op};
use super::{comm_at, guarded, null, on};
use crate::comm::{Comm, Request};
use crate::error::CommError;
use crate::types::Operation;

/// A request in C: it keeps what it needs of its communicator.
pub type CRequest = Request<'static, ()>;

/// Makes new communicators; see the header.
///
/// # Safety
/// As for `comm_rank`, and `part` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_split(comm: *const Comm, color: c_int, key: c_int, part: *mut *mut Comm) -> c_int {
    // SAFETY: the caller's.
    unsafe { made(comm, Operation::Split, part, |comm| comm.split(u32::try_from(color).ok(), key)) }
}

/// Makes a communicator with the same ranks; see the header.
///
/// # Safety
/// As for `comm_rank`, and `copy` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_dup(comm: *const Comm, copy: *mut *mut Comm) -> c_int {
    // SAFETY: the caller's.
    unsafe { made(comm, Operation::Dup, copy, |comm| comm.dup().map(Some)) }
}

/// # Safety
/// `comm` is null or from `comm_init`, and `new` null or writable.
unsafe fn made(
    comm: *const Comm,
    operation: Operation,
    new: *mut *mut Comm,
    make: impl FnOnce(&Comm) -> Result<Option<Comm>, CommError>,
) -> c_int {
    guarded(|| {
        if new.is_null() {
            return Err(null("the place for the new communicator"));
        }
        // SAFETY: the caller's, and not null.
        unsafe { *new = std::ptr::null_mut() };
        // SAFETY: the caller's.
        if let Some(made) = make(unsafe { comm_at(comm, operation) }?)? {
            // SAFETY: as above.
            unsafe { *new = Box::into_raw(Box::new(made)) };
        }
        Ok(())
    })
}

/// Starts to reduce over all ranks; see the header.
///
/// # Safety
/// As for `comm_allreduce`, until the request is done, and `request` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_iallreduce(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    op_: c_int,
    request: *mut *mut CRequest,
) -> c_int {
    let call = Operation::AllReduce;
    // SAFETY: the caller's.
    unsafe {
        started(comm, call, request, |comm| {
            comm.start_all_reduce_raw(send, recv, count, data_type(type_, call)?, op(op_, call)?)
        })
    }
}

/// Starts to wait for all; see the header.
///
/// # Safety
/// As for `comm_rank`, and `request` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_ibarrier(comm: *const Comm, request: *mut *mut CRequest) -> c_int {
    // SAFETY: the caller's.
    unsafe { started(comm, Operation::Barrier, request, |comm| comm.start_barrier()) }
}

/// # Safety
/// `comm` is null or from `comm_init`, and `request` null or writable.
unsafe fn started<'a>(
    comm: *const Comm,
    operation: Operation,
    request: *mut *mut CRequest,
    start: impl FnOnce(&'a Comm) -> Result<Request<'a, ()>, CommError>,
) -> c_int {
    let place = request;
    // SAFETY: the caller's.
    unsafe {
        on(comm, operation, |comm: &'a Comm| {
            if place.is_null() {
                return Err(CommError::invalid(operation, "the place for the request is null"));
            }
            *place = std::ptr::null_mut();
            *place = Box::into_raw(Box::new(start(comm)?.detached()));
            Ok(())
        })
    }
}

/// Whether a request is done; if so it is gone, with its result. See the header.
///
/// # Safety
/// `request` is null or points to null or to one that was started and is not done, and `done` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_test(request: *mut *mut CRequest, done: *mut c_int) -> c_int {
    guarded(|| {
        if request.is_null() || done.is_null() {
            return Err(null("comm_test: request or done"));
        }
        // SAFETY: the caller's, and not null.
        let finished = unsafe { (*request).as_ref() }.is_none_or(|request| request.test());
        // SAFETY: as above.
        unsafe { *done = c_int::from(finished) };
        // SAFETY: the caller's.
        if finished { unsafe { finish(request) } } else { Ok(()) }
    })
}

/// Returns once a request is done; then it is gone. See the header.
///
/// # Safety
/// `request` is null or points to null or to one that was started and is not done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_wait(request: *mut *mut CRequest) -> c_int {
    guarded(|| {
        if request.is_null() {
            return Err(null("comm_wait: request"));
        }
        // SAFETY: the caller's.
        unsafe { finish(request) }
    })
}

/// # Safety
/// `request` points to null or to one that was started.
unsafe fn finish(request: *mut *mut CRequest) -> Result<(), CommError> {
    // SAFETY: the caller's; it is taken out of its place, so it is given back once.
    let taken = unsafe { std::ptr::replace(request, std::ptr::null_mut()) };
    if taken.is_null() {
        return Ok(());
    }
    // SAFETY: from the Box of `started`.
    unsafe { Box::from_raw(taken) }.finish()
}
