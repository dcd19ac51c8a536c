//! AllToAll: part i of rank r's data becomes part r of rank i's.
//!
//! A chunk is a piece of each part, side by side. For each, rank r copies its n pieces into its slot, waits for all, and
//! copies its own piece out of every slot.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use crate::collectives::pieces;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Piece, Region, Steps};

/// # Safety
/// `send` is readable and `recv` writable for n times `bytes` bytes; they do not overlap.
pub(crate) unsafe fn run(steps: &mut Steps<'_>, send: *const u8, recv: *mut u8, bytes: usize) -> Result<(), CommError> {
    let (ranks, me) = (steps.size(), steps.rank());
    if bytes == 0 {
        return steps.meet();
    }
    let most = steps.chunk_bytes() / ranks as usize / 64 * 64;
    for (chunk, piece) in (0..).zip(pieces(bytes, most)) {
        let part =
            |rank: u32| Piece { region: Region::Chunk, offset: rank as usize * most, bytes: piece.len(), index: rank };
        let at = |rank: u32| rank as usize * bytes + piece.start;
        steps.reclaim()?;
        for rank in (0..ranks).filter(|rank| *rank != me) {
            // SAFETY: the piece lies inside the caller's buffer, and the slot is reclaimed.
            unsafe { steps.put(part(rank), send.add(at(rank))) };
        }
        let struck = steps.slot(Region::Chunk, part((me + 1) % ranks).offset);
        // SAFETY: that part of our slot.
        unsafe { steps.maybe_damage(Stage::Chunk, chunk, struck, piece.len()) };
        steps.post()?;
        steps.await_all()?;
        // SAFETY: all have posted, and the pieces lie inside the caller's buffers.
        unsafe {
            std::ptr::copy_nonoverlapping(send.add(at(me)), recv.add(at(me)), piece.len());
            for distance in 1..ranks {
                let rank = (me + distance) % ranks;
                steps.take(rank, part(me), recv.add(at(rank)), chunk)?;
            }
        }
    }
    Ok(())
}
