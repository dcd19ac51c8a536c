//! The calls that move data or wait: each checks what C cannot promise and goes on to its Rust twin.

use std::ffi::{c_int, c_void};

use super::{arguments::*, on};
use crate::comm::Comm;
use crate::types::Operation;

/// Waits for all.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_barrier(comm: *const Comm) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(comm, Operation::Barrier, |comm| comm.barrier()) }
}

/// Reduces over all ranks; see the header.
///
/// # Safety
/// As for `comm_rank`, and `send` and `recv` hold `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_allreduce(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    op_: c_int,
) -> c_int {
    let call = Operation::AllReduce;
    // SAFETY: the caller's.
    unsafe { on(comm, call, |comm| comm.all_reduce_raw(send, recv, count, data_type(type_, call)?, op(op_, call)?)) }
}

/// Reduces over all ranks in the order of a CUDA stream; see the header.
///
/// # Safety
/// As for `comm_allreduce`, until the stream is through.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_allreduce_stream(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    op_: c_int,
    stream: *mut c_void,
) -> c_int {
    let call = Operation::AllReduce;
    // SAFETY: the caller's.
    unsafe {
        on(comm, call, |comm| {
            comm.all_reduce_stream_raw(send, recv, count, data_type(type_, call)?, op(op_, call)?, stream)
        })
    }
}

/// Whether a call that has returned has failed since; see the header.
///
/// # Safety
/// As for `comm_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_async_error(comm: *const Comm) -> c_int {
    // SAFETY: the caller's.
    unsafe { on(comm, Operation::AllReduce, |comm| comm.async_error()) }
}

/// Reduces over all ranks, a part for each; see the header.
///
/// # Safety
/// As for `comm_rank`; `send` holds `count` elements for each rank, and `recv` `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_reduce_scatter(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    op_: c_int,
) -> c_int {
    let call = Operation::ReduceScatter;
    // SAFETY: the caller's.
    unsafe {
        on(comm, call, |comm| comm.reduce_scatter_raw(send, recv, count, data_type(type_, call)?, op(op_, call)?))
    }
}

/// Puts everyone's data together; see the header.
///
/// # Safety
/// As for `comm_rank`; `send` holds `count` elements, and `recv` `count` for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_allgather(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
) -> c_int {
    let call = Operation::AllGather;
    // SAFETY: the caller's.
    unsafe { on(comm, call, |comm| comm.all_gather_raw(send, recv, count, data_type(type_, call)?)) }
}

/// The same with an amount for each rank; see the header.
///
/// # Safety
/// As for `comm_rank`; `counts` holds one number for each rank, `send` this rank's elements, and `recv` all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_allgatherv(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    counts: *const usize,
    type_: c_int,
) -> c_int {
    let call = Operation::AllGatherV;
    // SAFETY: the caller's.
    unsafe {
        on(comm, call, |comm| comm.all_gather_v_raw(send, recv, per_rank(counts, comm, call)?, data_type(type_, call)?))
    }
}

/// Gives everyone the root's data; see the header.
///
/// # Safety
/// As for `comm_rank`, and `buffer` holds `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_broadcast(
    comm: *const Comm,
    buffer: *mut c_void,
    count: usize,
    type_: c_int,
    root: c_int,
) -> c_int {
    let call = Operation::Broadcast;
    // SAFETY: the caller's.
    unsafe {
        on(comm, call, |comm| comm.broadcast_raw(buffer, count, data_type(type_, call)?, rank(root, "root", call)?))
    }
}

/// Reduces over all ranks into the root; see the header.
///
/// # Safety
/// As for `comm_rank`, and `send` holds `count` elements, and the root's `recv` too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_reduce(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    op_: c_int,
    root: c_int,
) -> c_int {
    let call = Operation::Reduce;
    // SAFETY: the caller's.
    unsafe {
        on(comm, call, |comm| {
            comm.reduce_raw(send, recv, count, data_type(type_, call)?, op(op_, call)?, rank(root, "root", call)?)
        })
    }
}

/// Reduces over ranks 0 to this one; see the header.
///
/// # Safety
/// As for `comm_rank`, and `send` and `recv` hold `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_scan(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    op_: c_int,
) -> c_int {
    let call = Operation::Scan;
    // SAFETY: the caller's.
    unsafe { on(comm, call, |comm| comm.scan_raw(send, recv, count, data_type(type_, call)?, op(op_, call)?)) }
}

/// Puts everyone's data together at the root; see the header.
///
/// # Safety
/// As for `comm_rank`, and `send` holds `count` elements, and the root's `recv` that many for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_gather(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    root: c_int,
) -> c_int {
    let call = Operation::Gather;
    // SAFETY: the caller's.
    unsafe {
        on(comm, call, |comm| comm.gather_raw(send, recv, count, data_type(type_, call)?, rank(root, "root", call)?))
    }
}

/// Gives everyone their part of the root's data; see the header.
///
/// # Safety
/// As for `comm_rank`, and the root's `send` holds `count` elements for each rank, and `recv` `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_scatter(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
    root: c_int,
) -> c_int {
    let call = Operation::Scatter;
    // SAFETY: the caller's.
    unsafe {
        on(comm, call, |comm| comm.scatter_raw(send, recv, count, data_type(type_, call)?, rank(root, "root", call)?))
    }
}

/// Gives everyone their part of everyone's data; see the header.
///
/// # Safety
/// As for `comm_rank`, and `send` and `recv` hold `count` elements for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_alltoall(
    comm: *const Comm,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    type_: c_int,
) -> c_int {
    let call = Operation::AllToAll;
    // SAFETY: the caller's.
    unsafe { on(comm, call, |comm| comm.all_to_all_raw(send, recv, count, data_type(type_, call)?)) }
}

/// Sends to one rank; see the header.
///
/// # Safety
/// As for `comm_rank`, and `data` holds `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_send(
    comm: *const Comm,
    data: *const c_void,
    count: usize,
    type_: c_int,
    to: c_int,
    tag_: c_int,
) -> c_int {
    let call = Operation::Send;
    // SAFETY: the caller's.
    unsafe {
        on(comm, call, |comm| {
            comm.send_raw(data, count, data_type(type_, call)?, rank(to, "to", call)?, tag(tag_, call)?)
        })
    }
}

/// Receives from one rank; see the header.
///
/// # Safety
/// As for `comm_rank`, and `data` holds `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_recv(
    comm: *const Comm,
    data: *mut c_void,
    count: usize,
    type_: c_int,
    from: c_int,
    tag_: c_int,
) -> c_int {
    let call = Operation::Recv;
    // SAFETY: the caller's.
    unsafe {
        on(comm, call, |comm| {
            comm.recv_raw(data, count, data_type(type_, call)?, rank(from, "from", call)?, tag(tag_, call)?)
        })
    }
}

/// Both at once; see the header.
///
/// # Safety
/// As for `comm_rank`, and `send` holds `send_count` elements and `recv` `recv_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn comm_sendrecv(
    comm: *const Comm,
    send: *const c_void,
    send_count: usize,
    to: c_int,
    recv: *mut c_void,
    recv_count: usize,
    from: c_int,
    type_: c_int,
    tag_: c_int,
) -> c_int {
    let call = Operation::SendRecv;
    // SAFETY: the caller's.
    unsafe {
        on(comm, call, |comm| {
            let (to, from) = (rank(to, "to", call)?, rank(from, "from", call)?);
            let (data_type, tag) = (data_type(type_, call)?, tag(tag_, call)?);
            comm.send_recv_raw(send, send_count, to, recv, recv_count, from, data_type, tag)
        })
    }
}
