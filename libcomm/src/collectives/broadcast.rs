//! Broadcast: everyone gets the root's data.
//!
//! For each chunk, the root copies it into its slot and posts; the others wait for the root, copy it out, and post
//! the next step, which tells the root that the slot is free. The root can be one chunk ahead.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use crate::collectives::pieces;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Piece, Region, Steps};

/// # Safety
/// `send` is readable at the root and `recv` writable everywhere, for `bytes` bytes; at the root they are the same
/// or do not overlap.
pub(crate) unsafe fn run(
    steps: &mut Steps<'_>,
    send: *const u8,
    recv: *mut u8,
    bytes: usize,
    root: u32,
) -> Result<(), CommError> {
    let is_root = steps.rank() == root;
    if bytes == 0 {
        steps.reclaim()?;
        steps.post()?;
        return steps.await_all();
    }
    for (chunk, piece) in (0..).zip(pieces(bytes, steps.chunk_bytes())) {
        if is_root {
            steps.reclaim()?;
            // SAFETY: the piece lies inside the caller's buffer, and the slot is reclaimed.
            unsafe {
                steps.put(Piece::whole(piece.len()), send.add(piece.start));
                steps.maybe_damage(Stage::Chunk, chunk, steps.slot(Region::Chunk, 0), piece.len());
            }
        }
        steps.post()?;
        steps.await_rank(root)?;
        // SAFETY: as above; the root has posted the piece.
        unsafe {
            match is_root {
                true => std::ptr::copy(send.add(piece.start), recv.add(piece.start), piece.len()),
                false => {
                    let target = recv.add(piece.start);
                    steps.take(root, Piece::whole(piece.len()), target, chunk)?;
                }
            }
        }
    }
    // SAFETY: the caller's.
    unsafe { steps.compare_results(recv, bytes) }
}
