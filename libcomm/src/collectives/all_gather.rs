//! AllGather: everyone gets everyone's data, in the order of the ranks.
//!
//! For each chunk, rank r copies it into its slot, waits for all, and copies the others' out.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use crate::collectives::pieces;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Piece, Region, Steps};

/// # Safety
/// `send` is readable for `bytes` bytes and `recv` writable for n times as many; `send` is this rank's place in
/// `recv` or does not overlap it.
pub(crate) unsafe fn run(steps: &mut Steps<'_>, send: *const u8, recv: *mut u8, bytes: usize) -> Result<(), CommError> {
    let (me, ranks) = (steps.rank(), steps.size());
    if bytes == 0 {
        steps.reclaim()?;
        steps.post()?;
        return steps.await_all();
    }
    for (chunk, piece) in (0..).zip(pieces(bytes, steps.chunk_bytes())) {
        steps.reclaim()?;
        // SAFETY: pieces lie inside the caller's buffers; slots are read after their ranks have posted.
        unsafe {
            steps.put(Piece::whole(piece.len()), send.add(piece.start));
            steps.maybe_damage(Stage::Chunk, chunk, steps.slot(Region::Chunk, 0), piece.len());
        }
        steps.post()?;
        steps.await_all()?;
        // SAFETY: as above.
        unsafe {
            let place = |rank: u32| recv.add(rank as usize * bytes + piece.start);
            std::ptr::copy(send.add(piece.start), place(me), piece.len());
            for distance in 1..ranks {
                let rank = (me + distance) % ranks;
                steps.take(rank, Piece::whole(piece.len()), place(rank), chunk)?;
            }
        }
    }
    // SAFETY: the caller's.
    unsafe { steps.compare_results(recv, ranks as usize * bytes) }
}
