//! Scan: rank r gets the reduction of ranks 0 to r, in their order.
//!
//! For each chunk, rank r copies it into its slot, waits for all, and reduces the slots up to its own.
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
/// `send` is readable and `recv` writable for `count` elements, aligned to the element, and they are the same or do not
/// overlap.
pub(crate) unsafe fn run<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    if count == 0 {
        return steps.meet();
    }
    // SAFETY: the caller's.
    let kept = unsafe { Kept::of(steps, send, count) };
    for (chunk, piece) in (0..).zip(pieces(count, steps.chunk_bytes() / size_of::<T>())) {
        let whole = Piece::whole(piece.len() * size_of::<T>());
        steps.reclaim()?;
        // SAFETY: the piece lies inside the caller's buffer, and the slot is reclaimed.
        unsafe { steps.put(whole, send.add(piece.start).cast()) };
        steps.post()?;
        steps.await_all()?;
        let sources = Sources::of(steps.rank() + 1, |rank| steps.peer(rank, Region::Chunk, 0));
        // SAFETY: all have posted; in place, the result of a piece is written after the piece was copied.
        unsafe {
            for (rank, source) in (0..).zip(sources.iter()) {
                steps.check(rank, whole, *source, chunk)?;
            }
            let sources = Sources::of(steps.rank() + 1, |rank| sources[rank as usize].cast());
            reduce(op, &sources, piece.len(), &[recv.add(piece.start)], false);
            steps.maybe_damage(Stage::Reduction, chunk, recv.add(piece.start).cast(), whole.bytes);
        }
    }
    let part = Part { elements: 0..count, result: recv, ranks: steps.rank() + 1 };
    // SAFETY: the caller's.
    unsafe { kept.check(steps, op, part) }
}
