//! The calls that are for GPU memory alone.

use std::ffi::{c_int, c_void};

use super::{arguments::*, on};
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
