//! One-shot: everyone reads everything and reduces all of it.
//!
//! For each chunk, rank r: copies it into its slot; waits for all; reduces the chunk from all n slots into its
//! result. One step a chunk; n × the bytes are read by each rank, so it wins only where the step costs more than
//! the data.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use crate::collectives::pieces;
use crate::collectives::reduce::reduce;
use crate::element::Element;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Region, Steps};
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
    let size = size_of::<T>();
    let ranks = steps.size();
    let me = steps.rank();
    if count == 0 {
        steps.post();
        return steps.await_all();
    }
    for (chunk, piece) in (0..).zip(pieces(count, steps.chunk_bytes() / size)) {
        let bytes = piece.len() * size;
        steps.reclaim()?;
        // SAFETY: the piece lies inside the caller's buffers; slots are read after their ranks have posted. In
        // place, the result of a piece is written after the piece was copied.
        unsafe {
            steps.put(Region::Chunk, 0, send.add(piece.start).cast(), bytes, me);
            steps.maybe_damage(Stage::Chunk, chunk, steps.slot(Region::Chunk, 0), bytes);
        }
        steps.post();
        steps.await_all()?;
        // SAFETY: as above.
        unsafe {
            for rank in 0..ranks {
                steps.check(rank, steps.peer(rank, Region::Chunk, 0), bytes, rank, chunk)?;
            }
            let source = |rank| steps.peer(rank, Region::Chunk, 0).cast();
            reduce(op, ranks, source, piece.len(), recv.add(piece.start));
        }
    }
    Ok(())
}
