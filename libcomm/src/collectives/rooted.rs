//! Reduce, Gather and Scatter: one rank, the root, has everyone's data, or everyone has a part of its.
//!
//! For each chunk, who sends copies it into its slot; all wait for all; who receives reads the slots. In Scatter a chunk is
//! a piece of each rank's part, side by side.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use crate::collectives::recompute::{Kept, Part};
use crate::collectives::reduce::reduce;
use crate::collectives::{Sources, pieces};
use crate::element::Element;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Piece, Region, Steps};
use crate::types::Op;

/// # Safety
/// `send` is readable, and at the root `recv` writable, for `count` elements, aligned to the element; they are the same
/// or do not overlap.
pub(crate) unsafe fn reduce_to<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
    root: u32,
) -> Result<(), CommError> {
    let (ranks, me, size) = (steps.size(), steps.rank(), size_of::<T>());
    if count == 0 {
        return steps.meet();
    }
    // SAFETY: the caller's.
    let kept = unsafe { Kept::of(steps, send, count) };
    for (chunk, piece) in (0..).zip(pieces(count, steps.chunk_bytes() / size)) {
        let whole = Piece::whole(piece.len() * size);
        steps.reclaim()?;
        // SAFETY: the piece lies inside the caller's buffer, and the slot is reclaimed.
        unsafe { steps.put(whole, send.add(piece.start).cast()) };
        steps.post()?;
        steps.await_all()?;
        if me != root {
            continue;
        }
        let sources = Sources::of(ranks, |rank| steps.peer(rank, Region::Chunk, 0));
        // SAFETY: all have posted; in place, the result of a piece is written after the piece was copied.
        unsafe {
            for (rank, source) in (0..ranks).zip(sources.iter()) {
                steps.check(rank, whole, *source, chunk)?;
            }
            let sources = Sources::of(ranks, |rank| sources[rank as usize].cast());
            reduce(op, &sources, piece.len(), &[recv.add(piece.start)], false);
            steps.maybe_damage(Stage::Reduction, chunk, recv.add(piece.start).cast(), whole.bytes);
        }
    }
    let elements = if me == root { 0..count } else { 0..0 };
    // SAFETY: the caller's.
    unsafe { kept.check(steps, op, Part { elements, result: recv, ranks }) }
}

/// # Safety
/// `send` is readable for `bytes` bytes and at the root `recv` writable for n times as many; `send` is the root's place in
/// `recv` or does not overlap it.
pub(crate) unsafe fn gather(
    steps: &mut Steps<'_>,
    send: *const u8,
    recv: *mut u8,
    bytes: usize,
    root: u32,
) -> Result<(), CommError> {
    if bytes == 0 {
        return steps.meet();
    }
    for (chunk, piece) in (0..).zip(pieces(bytes, steps.chunk_bytes())) {
        let whole = Piece::whole(piece.len());
        steps.reclaim()?;
        // SAFETY: the piece lies inside the caller's buffer, and the slot is reclaimed.
        unsafe {
            steps.put(whole, send.add(piece.start));
            steps.maybe_damage(Stage::Chunk, chunk, steps.slot(Region::Chunk, 0), piece.len());
        }
        steps.post()?;
        steps.await_all()?;
        for rank in (0..steps.size()).filter(|_| steps.rank() == root) {
            let target = recv.wrapping_add(rank as usize * bytes + piece.start);
            // SAFETY: all have posted, and the target lies in the root's buffer.
            unsafe {
                match rank == root {
                    true => std::ptr::copy(send.add(piece.start), target, piece.len()),
                    false => steps.take(rank, whole, target, chunk)?,
                }
            }
        }
    }
    Ok(())
}

/// # Safety
/// At the root `send` is readable for n times `bytes` bytes, and `recv` is writable for `bytes`; at the root it is its
/// place in `send` or does not overlap it.
pub(crate) unsafe fn scatter(
    steps: &mut Steps<'_>,
    send: *const u8,
    recv: *mut u8,
    bytes: usize,
    root: u32,
) -> Result<(), CommError> {
    let (ranks, me) = (steps.size(), steps.rank());
    if bytes == 0 {
        return steps.meet();
    }
    let most = steps.chunk_bytes() / ranks as usize / 64 * 64;
    for (chunk, piece) in (0..).zip(pieces(bytes, most)) {
        let part =
            |rank: u32| Piece { region: Region::Chunk, offset: rank as usize * most, bytes: piece.len(), index: rank };
        steps.reclaim()?;
        for rank in (0..ranks).filter(|rank| me == root && *rank != root) {
            // SAFETY: the parts lie inside the root's buffer, and the slot is reclaimed.
            unsafe { steps.put(part(rank), send.add(rank as usize * bytes + piece.start)) };
        }
        let struck = steps.slot(Region::Chunk, part((root + 1) % ranks).offset);
        // SAFETY: that part of our slot.
        unsafe { steps.maybe_damage(Stage::Chunk, chunk, struck, piece.len()) };
        steps.post()?;
        steps.await_all()?;
        // SAFETY: the root has posted, and the piece lies inside the caller's buffer.
        unsafe {
            let target = recv.add(piece.start);
            match me == root {
                true => std::ptr::copy(send.add(me as usize * bytes + piece.start), target, piece.len()),
                false => steps.take(root, part(me), target, chunk)?,
            }
        }
    }
    Ok(())
}
