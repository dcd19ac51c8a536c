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
use crate::protocol::simple::{Piece, Region, Steps};
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
    if count == 0 {
        steps.post()?;
        return steps.await_all();
    }
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
            let source = |rank| steps.peer(rank, Region::Chunk, 0).cast();
            reduce(op, ranks, source, piece.len(), recv.add(piece.start));
        }
    }
    Ok(())
}
