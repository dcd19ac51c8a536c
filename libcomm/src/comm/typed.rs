//! The calls on slices: lengths are checked here, all else in the calls at plain addresses.
#![expect(unsafe_code, reason = "slices go on as pointers")]

use std::ffi::c_void;
use std::ops::Range;

use super::Comm;
use super::check::same_length;
use crate::element::Element;
use crate::error::CommError;
use crate::types::{Op, Operation};

impl Comm {
    /// Reduces `send` over all ranks into everyone's `recv`. The same bits on every rank and in every run.
    pub fn all_reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), CommError> {
        same_length(Operation::AllReduce, send.len(), recv.len())?;
        // SAFETY: both are slices of that many elements.
        unsafe { self.all_reduce_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), send.len(), T::TYPE, op) }
    }

    /// Reduces `buffer` over all ranks into itself.
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], op: Op) -> Result<(), CommError> {
        let pointer = buffer.as_mut_ptr().cast::<c_void>();
        // SAFETY: a slice of that many elements.
        unsafe { self.all_reduce_raw(pointer, pointer, buffer.len(), T::TYPE, op) }
    }

    /// Reduces `send` over all ranks; rank r gets part r of the result, of `recv.len()` elements.
    /// `send` has [`size`](Comm::size) times as many.
    pub fn reduce_scatter<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), CommError> {
        same_length(Operation::ReduceScatter, send.len(), recv.len() * self.size() as usize)?;
        let (send, count) = (send.as_ptr().cast(), recv.len());
        // SAFETY: slices of that many elements.
        unsafe { self.reduce_scatter_raw(send, recv.as_mut_ptr().cast(), count, T::TYPE, op) }
    }

    /// The same in place: part r of rank r's `buffer` becomes its part of the result, and the rest stays.
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: Op) -> Result<(), CommError> {
        let own = self.own_part(Operation::ReduceScatter, buffer.len())?;
        let send = buffer.as_mut_ptr();
        // SAFETY: a slice with one part a rank, of which `own` is ours.
        unsafe { self.reduce_scatter_raw(send.cast(), send.add(own.start).cast(), own.len(), T::TYPE, op) }
    }

    /// Puts everyone's `send` into everyone's `recv`, in the order of the ranks. `recv` has
    /// [`size`](Comm::size) times as many elements.
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), CommError> {
        same_length(Operation::AllGather, send.len() * self.size() as usize, recv.len())?;
        // SAFETY: slices of that many elements.
        unsafe { self.all_gather_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), send.len(), T::TYPE) }
    }

    /// The same in place: rank r's data is part r of its `buffer`.
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<(), CommError> {
        let own = self.own_part(Operation::AllGather, buffer.len())?;
        let recv = buffer.as_mut_ptr();
        // SAFETY: a slice with one part a rank, of which `own` is ours.
        unsafe { self.all_gather_raw(recv.add(own.start).cast(), recv.cast(), own.len(), T::TYPE) }
    }

    /// Puts the root's `buffer` into everyone's.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: u32) -> Result<(), CommError> {
        // SAFETY: a slice of that many elements.
        unsafe { self.broadcast_raw(buffer.as_mut_ptr().cast(), buffer.len(), T::TYPE, root) }
    }

    /// Reduces `send` over all ranks into the root's `recv`; the others' may be empty.
    pub fn reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op, root: u32) -> Result<(), CommError> {
        let operation = Operation::Reduce;
        self.at_root(operation, root, send.len(), recv.len())?;
        // SAFETY: slices of that many elements.
        unsafe { self.reduce_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), send.len(), T::TYPE, op, root) }
    }

    /// Puts everyone's `send` into the root's `recv`, in the order of the ranks; the others' may be empty.
    pub fn gather<T: Element>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<(), CommError> {
        self.at_root(Operation::Gather, root, send.len() * self.size() as usize, recv.len())?;
        // SAFETY: slices of that many elements.
        unsafe { self.gather_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), send.len(), T::TYPE, root) }
    }

    /// Puts part r of the root's `send` into rank r's `recv`; the others' `send` may be empty.
    pub fn scatter<T: Element>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<(), CommError> {
        self.at_root(Operation::Scatter, root, recv.len() * self.size() as usize, send.len())?;
        // SAFETY: slices of that many elements.
        unsafe { self.scatter_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), recv.len(), T::TYPE, root) }
    }

    /// Puts part i of rank r's `send` into part r of rank i's `recv`; both have one part a rank.
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), CommError> {
        same_length(Operation::AllToAll, send.len(), recv.len())?;
        let count = self.own_part(Operation::AllToAll, send.len())?.len();
        // SAFETY: slices of that many elements a rank.
        unsafe { self.all_to_all_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), count, T::TYPE) }
    }

    /// Reduces `send` over ranks 0 to r into rank r's `recv`; an average is over those.
    pub fn scan<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), CommError> {
        same_length(Operation::Scan, send.len(), recv.len())?;
        // SAFETY: slices of that many elements.
        unsafe { self.scan_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), send.len(), T::TYPE, op) }
    }

    /// Puts everyone's `send` into everyone's `recv`, in the order of the ranks: `counts[r]` elements from rank r,
    /// which all ranks know.
    pub fn all_gather_v<T: Element>(&self, send: &[T], recv: &mut [T], counts: &[usize]) -> Result<(), CommError> {
        let operation = Operation::AllGatherV;
        same_length(operation, counts.len(), self.size() as usize)?;
        same_length(operation, send.len(), counts[self.rank() as usize])?;
        let total = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
        same_length(operation, total.unwrap_or(usize::MAX), recv.len())?;
        // SAFETY: slices of those lengths.
        unsafe { self.all_gather_v_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), counts, T::TYPE) }
    }

    /// Whether the buffer that only the root has has the right length there.
    fn at_root(&self, operation: Operation, root: u32, wanted: usize, found: usize) -> Result<(), CommError> {
        self.is_rank(operation, root)?;
        if root == self.rank() { same_length(operation, wanted, found) } else { Ok(()) }
    }

    /// This rank's part of a buffer that has one for each rank.
    fn own_part(&self, operation: Operation, length: usize) -> Result<Range<usize>, CommError> {
        let ranks = self.size() as usize;
        if !length.is_multiple_of(ranks) {
            return Err(CommError::invalid(operation, format!("{length} elements are no {ranks} equal parts")));
        }
        let part = length / ranks;
        let start = part * self.rank() as usize;
        Ok(start..start + part)
    }
}
