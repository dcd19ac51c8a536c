//! One-shot: everyone reads everything and reduces all of it.
//!
//! In step k, rank r copies chunk k into its slot, and, a few KiB of each at a time, reduces chunk k - 1 from all n slots
//! into its result; then all wait for all. Each rank reads n x the bytes, so with three ranks and more it wins only where
//! a step costs more than the data. With two ranks, as many bytes cross from core to core as in two-shot (each byte of
//! each rank once), in one step less and without the copy back: it wins at every size, and has a file of its own
//! (`pair.rs`).
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use std::ops::Range;

use super::pair;
use crate::collectives::reduce::reduce;
use crate::collectives::{Sources, piece_at, pieces};
use crate::element::Element;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Piece, Region, Steps};
use crate::simd::drain;
use crate::types::Op;

/// Of the chunk to copy and of the chunk to reduce, as much at a time.
const TURN_BYTES: usize = 4096;

/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    if count == 0 {
        steps.post()?;
        return steps.await_all();
    }
    // SAFETY: the caller's.
    unsafe {
        match steps.verifies() {
            checked if steps.size() == 2 && (checked || !steps.has_fault()) => pair::run(steps, send, recv, count, op),
            true => run_checked(steps, send, recv, count, op),
            false => run_unchecked(steps, send, recv, count, op),
        }
    }
}

/// # Safety
/// As for [`super::run`].
unsafe fn run_unchecked<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    let size = size_of::<T>();
    let streaming = super::is_streaming(count * size);
    let per_chunk = match streaming {
        true => (steps.chunk_bytes() / 2 / size).max(1),
        false => steps.chunk_bytes() / size,
    };
    let chunks = count.div_ceil(per_chunk);
    for step in 0..=chunks {
        let put = piece_at(count, per_chunk, step);
        let made = step.checked_sub(1).map_or(0..0, |chunk| piece_at(count, per_chunk, chunk));
        if !put.is_empty() {
            steps.reclaim()?;
        }
        // SAFETY: the pieces lie inside the caller's buffers; the slot to fill is reclaimed, and those to read are
        // posted. In place, a chunk of the result is written a step after it was copied.
        unsafe { turns(steps, send, recv, put.clone(), made, op, streaming) };
        if !put.is_empty() {
            // SAFETY: the slot is ours until we post.
            unsafe { steps.maybe_damage(Stage::Chunk, step as u64, steps.slot(Region::Chunk, 0), put.len() * size) };
            steps.post()?;
            steps.await_all()?;
        }
    }
    if streaming {
        drain();
    }
    Ok(())
}

/// Copies `put` into the slot and reduces `made` from those of the last step, in turns.
///
/// # Safety
/// As above.
unsafe fn turns<T: Element>(
    steps: &Steps<'_>,
    send: *const T,
    recv: *mut T,
    put: Range<usize>,
    made: Range<usize>,
    op: Op,
    streaming: bool,
) {
    let size = size_of::<T>();
    let turn = match put.is_empty() || made.is_empty() {
        true => usize::MAX,
        false => TURN_BYTES / size,
    };
    // Our own data is nearer where it came from, and in place it is still there; a fault is made in the slot.
    let from_slot = |rank: u32| rank != steps.rank() || steps.has_fault();
    let slots = Sources::of(steps.size(), |rank| match (made.is_empty(), from_slot(rank)) {
        (true, _) => std::ptr::null(),
        (false, true) => steps.peer(rank, Region::Chunk, 0).cast::<T>(),
        (false, false) => send.wrapping_add(made.start),
    });
    let mut at = 0;
    while at < put.len() || at < made.len() {
        let copied = at.min(put.len())..put.len().min(at.saturating_add(turn));
        if !copied.is_empty() {
            // SAFETY: the caller's.
            unsafe {
                steps.fill(
                    Region::Chunk,
                    copied.start * size,
                    send.add(put.start + copied.start).cast(),
                    copied.len() * size,
                )
            };
        }
        let reduced = at.min(made.len())..made.len().min(at.saturating_add(turn));
        if !reduced.is_empty() {
            let sources = slots.at(reduced.start);
            // SAFETY: the caller's.
            unsafe { reduce(op, &sources, reduced.len(), &[recv.add(made.start + reduced.start)], streaming) };
        }
        at = at.saturating_add(turn);
    }
}

/// With checksums: a chunk is put, waited for, checked and reduced.
///
/// # Safety
/// As for [`super::run`].
unsafe fn run_checked<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    let size = size_of::<T>();
    let ranks = steps.size();
    for (chunk, piece) in (0..).zip(pieces(count, steps.chunk_bytes() / size)) {
        let whole = Piece::whole(piece.len() * size);
        steps.reclaim()?;
        // SAFETY: the piece lies inside the caller's buffers; slots are read after their ranks have posted. In
        // place, the result of a piece is written after the piece was copied.
        unsafe {
            steps.put(whole, send.add(piece.start).cast());
            steps.maybe_damage(Stage::Chunk, chunk, steps.slot(Region::Chunk, 0), whole.bytes);
        }
        steps.post()?;
        steps.await_all()?;
        // SAFETY: as above.
        unsafe {
            for rank in 0..ranks {
                steps.check(rank, whole, steps.peer(rank, Region::Chunk, 0), chunk)?;
            }
            let sources = Sources::of(ranks, |rank| steps.peer(rank, Region::Chunk, 0).cast());
            reduce(op, &sources, piece.len(), &[recv.add(piece.start)], false);
        }
    }
    Ok(())
}
