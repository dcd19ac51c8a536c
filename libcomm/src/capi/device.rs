//! The calls that are for GPU memory alone.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::{arguments::*, comm_at, guarded, null, on};
use crate::comm::Comm;
use crate::types::Operation;

/// Gives everyone the root's data in the order of a CUDA stream; see the header.
///
/// # Safety
/// As for `comm_broadcast`, until the stream is through.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_broadcast_stream(
    comm: *const Comm,
    buffer: *mut c_void,
    count: usize,
    type_: c_int,
    root: c_int,
    stream: *mut c_void,
) -> c_int {
    let call = Operation::Broadcast;
    // SAFETY: the caller's.
    unsafe {
        on(comm, call, |comm| {
            comm.broadcast_stream_raw(buffer, count, data_type(type_, call)?, rank(root, "root", call)?, stream)
        })
    }
}

/// Registers GPU memory with all ranks; see the header.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_register(comm: *const Comm, address: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(comm, Operation::Register, |comm| comm.register_raw(address, bytes)) }
}

/// Ends that; see the header.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_deregister(comm: *const Comm, address: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(comm, Operation::Register, |comm| comm.deregister_raw(address)) }
}

/// Registered GPU memory; see the header.
///
/// # Safety
/// As for `comm_rank`, and `address` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_alloc_device(comm: *const Comm, bytes: usize, address: *mut *mut c_void) -> c_int {
    guarded(|| {
        if address.is_null() {
            return Err(null("comm_alloc_device: address"));
        }
        // SAFETY: the caller's, and not null.
        unsafe { *address = std::ptr::null_mut() };
        // SAFETY: the caller's.
        let memory = unsafe { comm_at(comm, Operation::Register) }?.alloc_device_raw(bytes)?;
        // SAFETY: as above.
        unsafe { *address = memory };
        Ok(())
    })
}

/// Gives it back; see the header.
///
/// # Safety
/// As for `comm_rank`, and nobody uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_free_device(comm: *const Comm, address: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        on(comm, Operation::Register, |comm| if address.is_null() { Ok(()) } else { comm.free_device_raw(address) })
    }
}

/// Why data between GPUs goes through the host; see the header.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_detour(comm: *const Comm) -> *const c_char {
    // SAFETY: the caller's.
    unsafe { comm.as_ref() }.and_then(Comm::detour_c).map_or(std::ptr::null(), CStr::as_ptr)
}
