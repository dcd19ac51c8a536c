//! The calls at plain addresses, on host memory.
#![expect(unsafe_code, reason = "the untyped calls take pointers")]

use std::ffi::c_void;

use super::Comm;
use super::check::{Buffers, Call, applies};
use super::core::Core;
use crate::choose::Algorithm;
use crate::collectives::{all_gather, all_gather_v, all_reduce, all_to_all, broadcast, reduce_scatter, rooted, scan};
use crate::cuda;
use crate::device;
use crate::element::with_type;
use crate::error::CommError;
use crate::types::{DataType, Op, Operation};
use crate::verify::Verify;

impl Comm {
    /// [`all_reduce`](Comm::all_reduce) on `count` elements at plain addresses; in place where both are the same.
    ///
    /// # Safety
    /// `send` is readable and `recv` writable for `count` elements, and nobody else touches them meanwhile.
    pub unsafe fn all_reduce_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
    ) -> Result<(), CommError> {
        if cuda::sys::is_loaded()
            && count != 0
            && device::device_of(Operation::AllReduce, send as u64, recv as u64)?.is_some()
        {
            // SAFETY: the caller's, in the default stream.
            return unsafe { self.all_reduce_stream_raw(send, recv, count, data_type, op, std::ptr::null_mut()) };
        }
        // SAFETY: the caller's.
        unsafe { self.all_reduce_host(send, recv, count, data_type, op) }
    }

    /// # Safety
    /// As for [`all_reduce_raw`](Comm::all_reduce_raw), on host memory.
    pub(super) unsafe fn all_reduce_host(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
    ) -> Result<(), CommError> {
        if let Some(requests) = self.requests.get() {
            requests.drain(&self.core);
        }
        // SAFETY: the caller's.
        unsafe { self.core.all_reduce(send, recv, count, data_type, op) }
    }

    /// [`reduce_scatter`](Comm::reduce_scatter) at plain addresses: `count` elements of result a rank. In place
    /// where `recv` is this rank's part of `send`.
    ///
    /// # Safety
    /// `send` is readable for `count` times [`size`](Comm::size) elements and `recv` writable for `count`, and
    /// nobody else touches them meanwhile.
    pub unsafe fn reduce_scatter_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
    ) -> Result<(), CommError> {
        let operation = Operation::ReduceScatter;
        applies(operation, data_type, op)?;
        let ranks = self.size() as usize;
        Buffers { operation, send, recv, data_type }.check(count, ranks, 1, self.rank() as usize)?;
        let call = Call { data_type: Some(data_type), op: Some(op), count, ..Call::plain(operation) };
        self.call(call, |steps| {
            // SAFETY: the caller's buffers, checked to be aligned and in place or apart.
            with_type!(data_type, T => unsafe {
                reduce_scatter::run::<T>(steps, send.cast(), recv.cast(), count, op)
            })
        })
    }

    /// [`all_gather`](Comm::all_gather) at plain addresses: `count` elements from each rank. In place where `send`
    /// is this rank's part of `recv`.
    ///
    /// # Safety
    /// `send` is readable for `count` elements and `recv` writable for `count` times [`size`](Comm::size), and
    /// nobody else touches them meanwhile.
    pub unsafe fn all_gather_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
    ) -> Result<(), CommError> {
        let operation = Operation::AllGather;
        let ranks = self.size() as usize;
        let bytes = Buffers { operation, send, recv, data_type }.check(count, 1, ranks, self.rank() as usize)?;
        let call = Call { data_type: Some(data_type), count, ..Call::plain(operation) };
        // SAFETY: the caller's buffers, checked to be in place or apart.
        self.call(call, |steps| unsafe { all_gather::run(steps, send.cast(), recv.cast(), bytes) })
    }

    /// [`all_gather_v`](Comm::all_gather_v) at plain addresses: `counts[r]` elements from rank r, one after the other. In
    /// place where `send` is this rank's part of `recv`.
    ///
    /// # Safety
    /// `send` is readable for this rank's count and `recv` writable for all of them, and nobody else touches them
    /// meanwhile.
    pub unsafe fn all_gather_v_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        counts: &[usize],
        data_type: DataType,
    ) -> Result<(), CommError> {
        let operation = Operation::AllGatherV;
        let (me, size) = (self.rank() as usize, data_type.bytes());
        let total = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count)).unwrap_or(usize::MAX);
        // What matters of each buffer by itself, then of the two together.
        Buffers { operation, send: recv, recv, data_type }.check(total, 1, 1, 0)?;
        Buffers { operation, send, recv: send.cast_mut(), data_type }.check(counts[me], 1, 1, 0)?;
        let before: usize = counts[..me].iter().sum();
        let (from, to) = (send as usize, recv as usize);
        let apart = from + counts[me] * size <= to || to + total * size <= from;
        if counts[me] != 0 && !apart && from != to + before * size {
            let why = "send and recv overlap; send must be this rank's place in recv or apart";
            return Err(CommError::invalid(operation, why));
        }
        let lengths: Vec<usize> = counts.iter().map(|count| count * size).collect();
        let call = Call { data_type: Some(data_type), count: total, ..Call::plain(operation) };
        // SAFETY: the caller's buffers, checked to be in place or apart.
        self.call(call, |steps| unsafe { all_gather_v::run(steps, send.cast(), recv.cast(), &lengths) })
    }

    /// [`broadcast`](Comm::broadcast) at a plain address.
    ///
    /// # Safety
    /// `buffer` is valid for `count` elements, and nobody else touches it meanwhile.
    pub unsafe fn broadcast_raw(
        &self,
        buffer: *mut c_void,
        count: usize,
        data_type: DataType,
        root: u32,
    ) -> Result<(), CommError> {
        let operation = Operation::Broadcast;
        Buffers { operation, send: buffer, recv: buffer, data_type }.check(count, 1, 1, 0)?;
        self.is_rank(operation, root)?;
        let on_device = || device::device_of(operation, buffer as u64, buffer as u64);
        if cuda::sys::is_loaded() && count != 0 && on_device()?.is_some() {
            // SAFETY: the caller's, in the default stream.
            return unsafe { self.broadcast_stream_raw(buffer, count, data_type, root, std::ptr::null_mut()) };
        }
        // SAFETY: the caller's.
        unsafe { self.broadcast_host(buffer, count, data_type, root) }
    }

    /// # Safety
    /// As for [`broadcast_raw`](Comm::broadcast_raw), on host memory; the arguments were looked at.
    pub(super) unsafe fn broadcast_host(
        &self,
        buffer: *mut c_void,
        count: usize,
        data_type: DataType,
        root: u32,
    ) -> Result<(), CommError> {
        let bytes = count * data_type.bytes();
        let call = Call { data_type: Some(data_type), root: Some(root), count, ..Call::plain(Operation::Broadcast) };
        // SAFETY: the caller's buffer.
        self.call(call, |steps| unsafe { broadcast::run(steps, buffer.cast(), buffer.cast(), bytes, root) })
    }

    /// [`reduce`](Comm::reduce) at plain addresses.
    ///
    /// # Safety
    /// `send` is readable, and at the root `recv` writable, for `count` elements, and nobody else touches them
    /// meanwhile.
    pub unsafe fn reduce_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
        root: u32,
    ) -> Result<(), CommError> {
        let operation = Operation::Reduce;
        applies(operation, data_type, op)?;
        let target = if root == self.rank() { recv } else { send.cast_mut() };
        Buffers { operation, send, recv: target, data_type }.check(count, 1, 1, 0)?;
        self.is_rank(operation, root)?;
        let call = Call { data_type: Some(data_type), op: Some(op), root: Some(root), count, ..Call::plain(operation) };
        self.call(call, |steps| {
            // SAFETY: the caller's buffers, checked to be aligned and the same or apart.
            with_type!(data_type, T => unsafe {
                rooted::reduce_to::<T>(steps, send.cast(), recv.cast(), count, op, root)
            })
        })
    }

    /// [`gather`](Comm::gather) at plain addresses: `count` elements from each rank. In place where the root's `send`
    /// is its part of `recv`.
    ///
    /// # Safety
    /// `send` is readable for `count` elements and the root's `recv` writable for `count` times
    /// [`size`](Comm::size), and nobody else touches them meanwhile.
    pub unsafe fn gather_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        root: u32,
    ) -> Result<(), CommError> {
        let operation = Operation::Gather;
        let bytes = match root == self.rank() {
            true => {
                Buffers { operation, send, recv, data_type }.check(count, 1, self.size() as usize, root as usize)?
            }
            false => Buffers { operation, send, recv: send.cast_mut(), data_type }.check(count, 1, 1, 0)?,
        };
        self.is_rank(operation, root)?;
        let call = Call { data_type: Some(data_type), root: Some(root), count, ..Call::plain(operation) };
        // SAFETY: the caller's buffers, checked to be in place or apart.
        self.call(call, |steps| unsafe { rooted::gather(steps, send.cast(), recv.cast(), bytes, root) })
    }

    /// [`scatter`](Comm::scatter) at plain addresses: `count` elements to each rank. In place where the root's `recv`
    /// is its part of `send`.
    ///
    /// # Safety
    /// The root's `send` is readable for `count` times [`size`](Comm::size) elements, and `recv` writable for `count`,
    /// and nobody else touches them meanwhile.
    pub unsafe fn scatter_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        root: u32,
    ) -> Result<(), CommError> {
        let operation = Operation::Scatter;
        let bytes = match root == self.rank() {
            true => {
                Buffers { operation, send, recv, data_type }.check(count, self.size() as usize, 1, root as usize)?
            }
            false => Buffers { operation, send: recv, recv, data_type }.check(count, 1, 1, 0)?,
        };
        self.is_rank(operation, root)?;
        let call = Call { data_type: Some(data_type), root: Some(root), count, ..Call::plain(operation) };
        // SAFETY: the caller's buffers, checked to be in place or apart.
        self.call(call, |steps| unsafe { rooted::scatter(steps, send.cast(), recv.cast(), bytes, root) })
    }

    /// [`all_to_all`](Comm::all_to_all) at plain addresses: `count` elements from each rank to each.
    ///
    /// # Safety
    /// `send` is readable and `recv` writable for `count` times [`size`](Comm::size) elements, and nobody else touches
    /// them meanwhile.
    pub unsafe fn all_to_all_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
    ) -> Result<(), CommError> {
        let operation = Operation::AllToAll;
        let ranks = self.size() as usize;
        let bytes = Buffers { operation, send, recv, data_type }.check(count, ranks, ranks, 0)?;
        if count != 0 && send == recv.cast_const() {
            return Err(CommError::invalid(operation, "send and recv are the same; they must be apart"));
        }
        let call = Call { data_type: Some(data_type), count, ..Call::plain(operation) };
        // SAFETY: the caller's buffers, checked to be apart.
        self.call(call, |steps| unsafe { all_to_all::run(steps, send.cast(), recv.cast(), bytes) })
    }

    /// [`scan`](Comm::scan) at plain addresses; in place where both are the same.
    ///
    /// # Safety
    /// `send` is readable and `recv` writable for `count` elements, and nobody else touches them meanwhile.
    pub unsafe fn scan_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
    ) -> Result<(), CommError> {
        let operation = Operation::Scan;
        applies(operation, data_type, op)?;
        Buffers { operation, send, recv, data_type }.check(count, 1, 1, 0)?;
        let call = Call { data_type: Some(data_type), op: Some(op), count, ..Call::plain(operation) };
        self.call(call, |steps| {
            // SAFETY: the caller's buffers, checked to be aligned and the same or apart.
            with_type!(data_type, T => unsafe { scan::run::<T>(steps, send.cast(), recv.cast(), count, op) })
        })
    }

    pub(super) fn is_rank(&self, operation: Operation, root: u32) -> Result<(), CommError> {
        match root < self.size() {
            true => Ok(()),
            false => Err(CommError::invalid(operation, format!("root {root} is none of the {} ranks", self.size()))),
        }
    }
}

impl Core {
    /// An AllReduce on host memory, in turn with the other calls.
    ///
    /// # Safety
    /// As for [`all_reduce_raw`](Comm::all_reduce_raw).
    pub(super) unsafe fn all_reduce(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
    ) -> Result<(), CommError> {
        let operation = Operation::AllReduce;
        applies(operation, data_type, op)?;
        Buffers { operation, send, recv, data_type }.check(count, 1, 1, 0)?;
        let call = Call { data_type: Some(data_type), op: Some(op), count, ..Call::plain(operation) };
        let settings = &self.job.settings;
        // What rounds at each hop or level has other bits than the order of the ranks.
        let in_order = (settings.invariant || settings.verify == Verify::Full) && self.group.size() >= 3;
        let algorithm = settings.algorithm.map(|forced| match forced {
            Algorithm::Ring | Algorithm::Hierarchical { .. } if in_order => Algorithm::TwoShot,
            forced => forced,
        });
        self.call(call, |steps| {
            // SAFETY: the caller's buffers, checked to be aligned and the same or apart.
            with_type!(data_type, T => unsafe {
                all_reduce::run::<T>(steps, algorithm, send.cast(), recv.cast(), count, op)
            })
        })
    }
}
