//! AllGatherV: everyone gets everyone's data, of which each rank has another amount.
//!
//! As AllGather, until the longest is through. That all mean the same amounts is seen in the first step, whose post
//! carries a checksum of them.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use crate::collectives::piece_at;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Piece, Region, Steps};
use crate::shm::atomic::Relaxed;
use crate::verify::checksum;

/// # Safety
/// `send` is readable for this rank's length, `recv` writable for all of them; `send` is this rank's place in `recv` or
/// does not overlap it.
pub(crate) unsafe fn run(
    steps: &mut Steps<'_>,
    send: *const u8,
    recv: *mut u8,
    lengths: &[usize],
) -> Result<(), CommError> {
    let (ranks, me) = (steps.size(), steps.rank());
    let words: Vec<u8> = lengths.iter().flat_map(|length| (*length as u64).to_le_bytes()).collect();
    let sum = checksum(&words);
    let place = |rank: u32| lengths[..rank as usize].iter().sum::<usize>();
    let per_chunk = steps.chunk_bytes();
    let chunks = lengths.iter().max().map_or(0, |longest| longest.div_ceil(per_chunk)).max(1);
    for chunk in 0..chunks {
        let piece = |rank: u32| piece_at(lengths[rank as usize], per_chunk, chunk);
        let own = piece(me);
        steps.reclaim()?;
        // SAFETY: the piece lies inside the caller's buffer, and the slot is reclaimed.
        unsafe {
            steps.put(Piece::whole(own.len()), send.wrapping_add(own.start));
            steps.maybe_damage(Stage::Chunk, chunk as u64, steps.slot(Region::Chunk, 0), own.len());
        }
        steps.post_with(&sum.to_ne_bytes())?;
        steps.await_all()?;
        if chunk == 0 {
            let other = (0..ranks).find(|rank| steps.inline_of(*rank)[0].load(Relaxed) != sum);
            if let Some(rank) = other {
                return Err(CommError::CountsDiffer { rank });
            }
        }
        for distance in 0..ranks {
            let rank = (me + distance) % ranks;
            let piece = piece(rank);
            let target = recv.wrapping_add(place(rank) + piece.start);
            // SAFETY: all have posted, and the pieces lie inside the caller's buffers.
            unsafe {
                match rank == me {
                    true => std::ptr::copy(send.wrapping_add(own.start), target, own.len()),
                    false => steps.take(rank, Piece::whole(piece.len()), target, chunk as u64)?,
                }
            }
        }
    }
    Ok(())
}
