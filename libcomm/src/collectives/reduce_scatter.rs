//! ReduceScatter: everyone gets their share of the reduction of all.
//!
//! A chunk is a piece of each rank's share, side by side. For each, rank r copies its n pieces into its slot, waits
//! for all, and reduces its own piece from all slots. Each element is reduced once, in the order of the ranks.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use crate::collectives::recompute::{Kept, Part};
use crate::collectives::reduce::reduce;
use crate::collectives::{Sources, pieces};
use crate::element::Element;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Piece, Region, Steps, bytes_at};
use crate::types::Op;
use crate::verify::checksum;

/// # Safety
/// `send` is readable for n times `count` elements and `recv` writable for `count`, aligned to the element; `recv`
/// is this rank's share in `send` or does not overlap it.
pub(crate) unsafe fn run<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    let (me, ranks) = (steps.rank(), steps.size());
    let size = size_of::<T>();
    // Whole lines, at least one: a chunk is no smaller than a line a rank.
    let piece_bytes = steps.chunk_bytes() / ranks as usize / 64 * 64;
    if count == 0 {
        steps.reclaim()?;
        steps.post()?;
        return steps.await_all();
    }
    // SAFETY: the caller's.
    let kept = unsafe { Kept::of(steps, send, ranks as usize * count) };
    let mut made = Vec::new();
    for (chunk, piece) in (0..).zip(pieces(count, piece_bytes / size)) {
        let bytes = piece.len() * size;
        let part = |rank: u32| {
            let offset = rank as usize * piece_bytes;
            Piece { region: Region::Chunk, offset, bytes, index: rank }
        };
        steps.reclaim()?;
        // SAFETY: pieces lie inside the caller's buffers; slots are read after their ranks have posted. In place,
        // a piece of the result is written after that piece was copied.
        unsafe {
            for rank in 0..ranks {
                let source = send.add(rank as usize * count + piece.start).cast();
                steps.put(part(rank), source);
            }
            let last = (ranks - 1) as usize * piece_bytes + bytes;
            steps.maybe_damage(Stage::Chunk, chunk, steps.slot(Region::Chunk, 0), last);
        }
        steps.post()?;
        steps.await_all()?;
        // SAFETY: as above.
        unsafe {
            let source = |rank| steps.peer(rank, Region::Chunk, part(me).offset);
            for rank in 0..ranks {
                steps.check(rank, part(me), source(rank), chunk)?;
            }
            let target = recv.add(piece.start);
            let sources = Sources::of(ranks, |rank| source(rank).cast());
            reduce(op, &sources, piece.len(), &[target], false);
            steps.maybe_damage(Stage::Reduction, chunk, target.cast(), bytes);
            if steps.verifies() {
                made.push(checksum(bytes_at(target.cast(), bytes)));
                steps.maybe_damage(Stage::Result, chunk, target.cast(), bytes);
            }
        }
    }
    // SAFETY: the caller's.
    unsafe {
        check_own_result(steps, recv, count, piece_bytes / size, &made)?;
        let elements = me as usize * count..(me as usize + 1) * count;
        kept.check(steps, op, Part { elements, result: recv, ranks })
    }
}

/// No other rank has this result, so it is compared with what it was when it was made; then all wait for all, so
/// that nobody returns success while another one has found damage.
///
/// # Safety
/// `recv` is readable for `count` elements.
unsafe fn check_own_result<T: Element>(
    steps: &mut Steps<'_>,
    recv: *const T,
    count: usize,
    piece: usize,
    made: &[u64],
) -> Result<(), CommError> {
    if !steps.verifies() {
        return Ok(());
    }
    for ((chunk, piece), made) in (0..).zip(pieces(count, piece)).zip(made) {
        // SAFETY: the piece lies inside the result.
        let found = checksum(unsafe { bytes_at(recv.add(piece.start).cast(), piece.len() * size_of::<T>()) });
        if found != *made {
            return Err(steps.own_result_changed(chunk, *made, found));
        }
    }
    steps.reclaim()?;
    steps.post()?;
    steps.await_all()
}
