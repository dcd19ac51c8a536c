//! Two-shot: each rank reduces its share from all, and hands it to all.
//!
//! In step k, rank r: copies chunk k into its slot; reduces its share of chunk k - 1 from all slots of the last
//! step and puts it beside; waits for all; copies the others' shares of chunk k - 1 into its result. So c chunks
//! take c + 1 steps, and each rank reads and writes every byte about twice, whatever n is. Each element is reduced
//! once, by one rank, in the order of the ranks: the same bits everywhere, and one rounding.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use crate::collectives::reduce::reduce;
use crate::collectives::{Sources, piece_at, share};
use crate::element::Element;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Piece, Region, Steps};
use crate::simd::drain;
use crate::types::Op;

/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    let per_chunk = steps.chunk_bytes() / size_of::<T>();
    let chunks = count.div_ceil(per_chunk);
    let ranks = steps.size();
    let me = steps.rank();
    let streaming = super::is_streaming(count * size_of::<T>());
    steps.stream_results(streaming);
    for step in 0..=chunks {
        steps.reclaim()?;
        // SAFETY: chunks and shares lie inside the caller's buffers, and slots are read after their ranks have
        // posted. In place, what is written to chunk `step - 1` was copied in one step before.
        unsafe {
            if step < chunks {
                put_chunk(steps, send, piece_at(count, per_chunk, step), step as u64);
            }
            if let Some(chunk) = step.checked_sub(1) {
                reduce_share(steps, send, recv, piece_at(count, per_chunk, chunk), op, chunk as u64)?;
            }
        }
        steps.post()?;
        steps.await_all()?;
        let Some(chunk) = step.checked_sub(1) else { continue };
        let piece = piece_at(count, per_chunk, chunk);
        for distance in 1..ranks {
            let rank = (me + distance) % ranks;
            let share = share(piece.len(), size_of::<T>(), ranks, rank);
            let reduced = reduced(share.len() * size_of::<T>(), ranks);
            // SAFETY: as above.
            unsafe {
                let target = recv.add(piece.start + share.start).cast();
                steps.take(rank, reduced, target, chunk as u64)?;
            }
        }
    }
    if streaming {
        drain();
    }
    Ok(())
}

/// # Safety
/// `send` is readable at `piece`, and the slot is reclaimed.
unsafe fn put_chunk<T: Element>(steps: &mut Steps<'_>, send: *const T, piece: std::ops::Range<usize>, chunk: u64) {
    let size = size_of::<T>();
    let ranks = steps.size();
    // One copy a share, since each share has a checksum of its own.
    for rank in 0..ranks {
        if rank == steps.rank() && !steps.verifies() && !steps.has_fault() {
            continue; // reduced from where it is
        }
        let share = share(piece.len(), size, ranks, rank);
        // SAFETY: the caller's.
        unsafe {
            let source = send.add(piece.start + share.start).cast();
            let part = part(share.start * size, share.len() * size, rank);
            steps.put(part, source);
        }
    }
    // SAFETY: our own slot, not posted yet.
    unsafe { steps.maybe_damage(Stage::Chunk, chunk, steps.slot(Region::Chunk, 0), piece.len() * size) };
}

/// Reduces this rank's share of `piece` from all slots into its result, and puts it into its next slot.
///
/// # Safety
/// `send` is readable and `recv` writable at `piece`, and all ranks have posted the step with `piece`.
unsafe fn reduce_share<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    piece: std::ops::Range<usize>,
    op: Op,
    chunk: u64,
) -> Result<(), CommError> {
    let size = size_of::<T>();
    let (me, ranks) = (steps.rank(), steps.size());
    let share = share(piece.len(), size, ranks, me);
    let part = part(share.start * size, share.len() * size, me);
    // SAFETY: the share lies inside the piece; its sources were posted, and its target is the caller's.
    unsafe {
        for rank in 0..ranks {
            steps.check(rank, part, steps.peer(rank, part.region, part.offset), chunk)?;
        }
        let target = recv.add(piece.start + share.start);
        let sources = Sources::of(ranks, |rank| match rank == me && !steps.verifies() && !steps.has_fault() {
            true => send.add(piece.start + share.start), // not copied
            false => steps.peer(rank, part.region, part.offset).cast(),
        });
        match steps.verifies() {
            true => {
                reduce(op, &sources, share.len(), &[target], false);
                steps.put(reduced(part.bytes, ranks), target.cast());
            }
            false => {
                let slot = steps.slot(Region::Reduced, 0).cast::<T>();
                reduce(op, &sources, share.len(), &[slot, target], false);
            }
        }
        steps.maybe_damage(Stage::Reduced, chunk, steps.slot(Region::Reduced, 0), part.bytes);
    }
    Ok(())
}

/// Rank `rank`'s share of a chunk, in the slot of a rank that has not reduced it yet.
fn part(offset: usize, bytes: usize, rank: u32) -> Piece {
    Piece { region: Region::Chunk, offset, bytes, index: rank }
}

/// A share in the slot of the rank that has reduced it.
fn reduced(bytes: usize, ranks: u32) -> Piece {
    Piece { region: Region::Reduced, offset: 0, bytes, index: ranks }
}
