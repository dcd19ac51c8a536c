//! Hierarchical: inside groups of ranks that are near each other first, then across them.
//!
//! G groups of g ranks. A chunk is g shares. Its three steps, for member i of a group:
//!
//! 1. copy the chunk into the slot; wait for the group;
//! 2. reduce share i of the group's chunks; wait for member i of each other group;
//! 3. reduce those G partial shares into the result and the slot; wait for the group; copy the others' shares out.
//!
//! Of each byte, only one in g crosses between groups, where a flat two-shot fetches (N - g) / N of all from afar, and a
//! rank looks at g + G posts a step instead of N. Every rank of a column reduces the same partial shares in the same order,
//! so all have the same bits; but since each level rounds, not those of the other algorithms.
//!
//! Which ranks are near is in `domains.rs`. The gain can only be measured where there is more than one domain; see
//! `docs/host-collectives.md`.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use crate::collectives::reduce::reduce;
use crate::collectives::{Sources, pieces, share};
use crate::domains::Domains;
use crate::element::Element;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Piece, Region, Steps};
use crate::types::Op;

/// # Safety
/// As for [`super::run`]. `op` is no average: there are two levels, and it is over all ranks.
pub(super) unsafe fn run<T: Element>(
    steps: &mut Steps<'_>,
    domains: &Domains,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    if count == 0 {
        return steps.meet();
    }
    let (group, column) = (domains.group_of(steps.rank()), domains.column_of(steps.rank()));
    let me = domains.place_of(steps.rank());
    let (size, ranks) = (size_of::<T>(), group.len() as u32);
    for (chunk, piece) in (0..).zip(pieces(count, steps.chunk_bytes() / size)) {
        let share_of = |place: u32| share(piece.len(), size, ranks, place);
        let part = |place: u32| {
            let share = share_of(place);
            Piece { region: Region::Chunk, offset: share.start * size, bytes: share.len() * size, index: place }
        };
        let ours = share_of(me);
        let partial = Piece { region: Region::Reduced, offset: 0, bytes: ours.len() * size, index: steps.size() };

        // The slot was last read by the column, in the second step of the chunk before.
        match chunk {
            0 => steps.reclaim()?,
            _ => column.iter().try_for_each(|rank| steps.reclaim_from(*rank))?,
        }
        // SAFETY: shares lie inside the caller's buffer, and the slot is reclaimed.
        unsafe {
            for place in 0..ranks {
                steps.put(part(place), send.add(piece.start + share_of(place).start).cast());
            }
            steps.maybe_damage(Stage::Chunk, chunk, steps.slot(Region::Chunk, 0), piece.len() * size);
        }
        steps.post()?;
        group.iter().try_for_each(|rank| steps.await_rank(*rank))?;

        // This slot was last read by the group, in the third step of the chunk before, and the group has posted since.
        let sources = Sources::of(ranks, |place| steps.peer(group[place as usize], Region::Chunk, ours.start * size));
        // SAFETY: the group has posted; our share of the result is ours to write.
        unsafe {
            for (rank, source) in group.iter().zip(sources.iter()) {
                steps.check(*rank, part(me), *source, chunk)?;
            }
            let sources = Sources::of(ranks, |place| sources[place as usize].cast::<T>());
            let aside = steps.scratch(partial.bytes).cast::<T>();
            reduce(op, &sources, ours.len(), &[aside], false);
            steps.put(partial, aside.cast());
            steps.maybe_damage(Stage::Reduced, chunk, steps.slot(Region::Reduced, 0), partial.bytes);
        }
        steps.post()?;
        column.iter().try_for_each(|rank| steps.await_rank(*rank))?;

        // This slot was read by the group in the first step.
        group.iter().try_for_each(|rank| steps.reclaim_from(*rank))?;
        let sources = Sources::of(column.len() as u32, |level| steps.peer(column[level as usize], Region::Reduced, 0));
        // SAFETY: the column has posted; the share lies inside the caller's buffer, and its own data is copied.
        unsafe {
            for (rank, source) in column.iter().zip(sources.iter()) {
                steps.check(*rank, partial, *source, chunk)?;
            }
            let target = recv.add(piece.start + ours.start);
            let sources = Sources::of(column.len() as u32, |level| sources[level as usize].cast::<T>());
            let aside = steps.scratch(partial.bytes).cast::<T>();
            reduce(op, &sources, ours.len(), &[aside], false);
            steps.put(partial, aside.cast());
            std::ptr::copy_nonoverlapping(aside, target, ours.len());
            steps.maybe_damage(Stage::Reduced, chunk, steps.slot(Region::Reduced, 0), partial.bytes);
        }
        steps.post()?;
        for (place, rank) in (0..).zip(group).filter(|(place, _)| *place != me) {
            steps.await_rank(*rank)?;
            let share = share_of(place);
            let theirs = Piece { bytes: share.len() * size, ..partial };
            // SAFETY: the rank has posted; the share lies inside the caller's buffer.
            unsafe { steps.take(*rank, theirs, recv.add(piece.start + share.start).cast(), chunk)? };
        }
    }
    Ok(())
}
