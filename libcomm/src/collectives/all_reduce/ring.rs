//! Ring: partial results go around, each rank adding its own; then the results go around.
//!
//! A block is n shares of up to one chunk. Reduce-scatter, step t = 0 … n - 2: rank r sends share r - t (its own data
//! first, then what came from the left with its own added) and receives share r - t - 1 from its left neighbour.
//! After it r holds share r + 1 complete. All-gather, n - 1 more steps: r sends share r + 1 - t and receives share
//! r - t. Each rank talks to two neighbours only and moves 2 (n - 1) / n of the bytes in and out. 16-bit floats are
//! rounded at each hop, so two-shot is closer to the true sum; the bits are the same on all ranks, since each
//! share has one chain.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use std::ops::Range;

use crate::collectives::reduce::reduce;
use crate::collectives::{pieces, share};
use crate::element::Element;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Piece, Region, Steps};
use crate::types::Op;

/// # Safety
/// As for [`super::run`]. `op` is not an average of integers, whose partial sums do not fit the element.
pub(super) unsafe fn run<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    let ranks = steps.size() as usize;
    if count == 0 || ranks == 1 {
        steps.reclaim()?;
        steps.post()?;
        steps.await_all()?;
    }
    let per_block = ranks * (steps.chunk_bytes() / size_of::<T>());
    for (number, piece) in (0..).zip(pieces(count, per_block)) {
        // SAFETY: the caller's; blocks lie inside its buffers.
        unsafe { Block { steps: &mut *steps, send, recv, piece, op, number }.run()? };
    }
    Ok(())
}

struct Block<'s, 'a, T> {
    steps: &'s mut Steps<'a>,
    send: *const T,
    recv: *mut T,
    piece: Range<usize>,
    op: Op,
    /// Which block of the call it is, which messages call its chunk.
    number: u64,
}

impl<T: Element> Block<'_, '_, T> {
    /// Elements of the share that is `back` places before share number `from`.
    fn share(&self, from: u32, back: u32) -> Range<usize> {
        let ranks = self.steps.size();
        let share = share(self.piece.len(), size_of::<T>(), ranks, (from + ranks - back) % ranks);
        self.piece.start + share.start..self.piece.start + share.end
    }

    /// # Safety
    /// As for [`super::run`], for the piece.
    unsafe fn run(mut self) -> Result<(), CommError> {
        let ranks = self.steps.size();
        if ranks == 1 {
            let at = self.piece.start;
            // SAFETY: the caller's.
            unsafe { reduce(self.op, &[self.send.add(at)], self.piece.len(), &[self.recv.add(at)], false) };
            return Ok(());
        }
        for hop in 0..ranks - 1 {
            // SAFETY: the caller's.
            unsafe { self.reduce_hop(hop)? };
        }
        for hop in 0..ranks - 1 {
            // SAFETY: the caller's.
            unsafe { self.gather_hop(hop)? };
        }
        Ok(())
    }

    /// Sends share r - hop: our own data, then what came from the left with our own added.
    ///
    /// # Safety
    /// As for [`super::run`], for the piece, after all hops before this one.
    unsafe fn reduce_hop(&mut self, hop: u32) -> Result<(), CommError> {
        self.ready_to_write()?;
        let share = self.share(self.steps.rank(), hop);
        let whole = Piece::whole(share.len() * size_of::<T>());
        // SAFETY: the share lies inside the caller's data; the slot is reclaimed from the one rank that reads it.
        unsafe {
            if hop == 0 {
                self.steps.put(whole, self.send.add(share.start).cast());
            } else {
                let partial = self.steps.scratch(whole.bytes).cast::<T>();
                self.add_own(&share, partial, false)?;
                self.steps.put(whole, partial.cast());
            }
            self.damage(Stage::Chunk, &share);
        }
        self.steps.post()?;
        self.steps.await_rank(self.left())
    }

    /// Sends share r + 1 - hop of the result, which is ours to complete in the first hop and came from the left in
    /// the others; takes share r - hop from the left.
    ///
    /// In place, each share of our own data was used before the result takes its place: the last one just now.
    ///
    /// # Safety
    /// As for [`super::run`], for the piece, after all hops before this one.
    unsafe fn gather_hop(&mut self, hop: u32) -> Result<(), CommError> {
        self.ready_to_write()?;
        let (me, left) = (self.steps.rank(), self.left());
        let share = self.share(me + 1, hop);
        // SAFETY: as in the hops before; the left one's slot is read after it has posted.
        unsafe {
            let result = self.recv.add(share.start);
            if hop == 0 {
                self.add_own(&share, result, true)?;
            }
            self.steps.put(Piece::whole(share.len() * size_of::<T>()), result.cast());
            self.damage(Stage::Reduced, &share);
        }
        self.steps.post()?;
        self.steps.await_rank(left)?;
        let share = self.share(me, hop);
        // SAFETY: as above.
        unsafe {
            let target = self.recv.add(share.start).cast();
            self.steps.take(left, Piece::whole(share.len() * size_of::<T>()), target, self.number)
        }
    }

    fn left(&self) -> u32 {
        let ranks = self.steps.size();
        (self.steps.rank() + ranks - 1) % ranks
    }

    /// Our slot is read by the right neighbour; before the first step of a call, anyone may have read it.
    fn ready_to_write(&mut self) -> Result<(), CommError> {
        match self.steps.greeted() {
            true => self.steps.reclaim_from((self.steps.rank() + 1) % self.steps.size()),
            false => self.steps.reclaim(),
        }
    }

    /// What came from the left for `share`, with our own added, into `target`; finished if it is complete.
    ///
    /// # Safety
    /// `target` is writable for the share, and the left neighbour has posted it.
    unsafe fn add_own(&self, share: &Range<usize>, target: *mut T, complete: bool) -> Result<(), CommError> {
        let left = self.left();
        let came = self.steps.peer(left, Region::Chunk, 0);
        // SAFETY: the caller's; the share lies inside our own data.
        unsafe {
            self.steps.check(left, Piece::whole(share.len() * size_of::<T>()), came, self.number)?;
            let own = self.send.add(share.start);
            let op = if self.op == Op::Avg { Op::Sum } else { self.op };
            reduce(op, &[came.cast(), own], share.len(), &[target], false);
            if complete && self.op == Op::Avg {
                let ranks = self.steps.size();
                for element in std::slice::from_raw_parts_mut(target, share.len()) {
                    *element = T::mean(element.wide(), ranks);
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// The slot of the next step holds `share` and is not yet posted.
    unsafe fn damage(&self, stage: Stage, share: &Range<usize>) {
        let slot = self.steps.slot(Region::Chunk, 0);
        // SAFETY: the caller's.
        unsafe { self.steps.maybe_damage(stage, self.number, slot, share.len() * size_of::<T>()) };
    }
}
