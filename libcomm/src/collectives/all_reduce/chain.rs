//! Chain: one running result for all, to which one rank after the other adds its data; then all copy it out.
//!
//! For more ranks than CPUs. The result is made in a ring of two halves of up to 8 chunks. In round i, rank r goes through
//! the chunks of half i: rank 0 puts its own data there, each other one waits until rank r - 1 has done a chunk, reduces its
//! own data into it, and posts. Once the last rank has done a chunk it is the result, and all copy it out; after the round's
//! last one they post once more. So a round takes each rank two turns of the scheduler, however many chunks it has; what is
//! used beside the caller's buffers is one ring and not a slot a rank, and stays in the second-level cache while the ranks
//! take turns. Each element is reduced in the order of the ranks. Partial results are elements, so types that are reduced in
//! wider ones go another way.
//!
//! # Posts, and who may write when
//!
//! Where the call has not had its first step, the one with the signature, for which all wait, each rank but the first makes
//! it before anything else; of rank 0 it is the post of its first chunk. Each rank posts after each chunk that it has reduced
//! and after each round that it has copied out: [`Count`]. In the end all have posted the same number of steps; where rank 0
//! has posted one less, it posts once more.
//!
//! - The ring is rank 0's slots of the first two steps from here. Of these the first is its own to write, as in any call.
//!   The second one is free once all have posted the call's first step, and so are in no call before any more. The next call
//!   writes no slot before all have posted this one's last step, which they do when they have copied all.
//! - Rank r changes a chunk after rank r - 1 has posted it (Acquire), and posts it itself (Release): one writer at a time.
//! - Rank 0 writes a half again, in round i + 2, after all have posted the end of round i, and so have copied it out.
//!
//! # What was tried
//!
//! µs for f32, plain buffers, two cores of a Xeon (2 MiB L2 a core, a virtual machine), 2026-11-30, C programs of nothing but
//! these loops, compilers stopped meanwhile, medians of 9:
//!
//! | | n = 4, 64 KiB | 256 KiB | 1 MiB | 16 MiB | n = 8, 64 KiB | 256 KiB | 1 MiB | 16 MiB |
//! | --- | --- | --- | --- | --- | --- | --- | --- | --- |
//! | two-shot, chunks of 256 KiB | 45 | 146 | 504 | 9514 | 85 | 303 | 1520 | 19 769 |
//! | two-shot, chunks of 64 KiB, so that all slots stay in the caches | | | 521 | | | | 1098 | |
//! | chain, a round put before the last one is copied out, halves of 4 x 64 KiB | | | 369 | 5957 | | | 756 | 16 155 |
//! | the same, 8 x 64 KiB | | | 378 | 7721 | | | 838 | 13 429 |
//! | chain, round by round, halves of 4 x 64 KiB | | 84 | 419 | 7876 | | 189 | 828 | 15 484 |
//! | **the same, 8 x 64 KiB (to 64 KiB of message: 16)** | 31 | | 342 | 5672 | 63 | | 738 | 13 168 |
//! | the same, 16 x 64 KiB | | | 389 | 7532 | | | 717 | 14 318 |
//!
//! Lines of the ring asked for ahead, to be read or to be written, changed nothing that could be told from noise.
//!
//! In libcomm itself (release, under prun, medians of turns, µs; before, two-shot): n = 4, 64 KiB 28 to 30 before and 33 to 35
//! after, 1 MiB 554 to 568 and 398 to 420, 16 MiB 11 500 to 12 300 and 8800 to 8900; n = 8, 64 KiB 70 to 105 and 69 to 91, 1 MiB
//! 1198 to 1294 and 883 to 994, 16 MiB 25 700 to 26 900 and 18 300 to 18 600. Of 16 KiB a call of n = 4 took 18 to 24 by a chain
//! and 15 to 18 by two-shot.
//!
//! The limit of both is what each core reads and writes of its ranks' buffers: of n = 8 four times 46 and 60 µs for 1 MiB.
//! Two-shot has 2 n slots of 256 KiB beside that, which leave the second-level caches from n = 4 on. With a CPU for each rank
//! the chain was not tried: there it has its length as delay, and its chunks cross from core to core at each hop.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use std::ops::Range;

use crate::collectives::piece_at;
use crate::collectives::reduce::{Pass, divide, reduce_and_refill};
use crate::element::Element;
use crate::error::CommError;
use crate::protocol::simple::Steps;
use crate::simd::{copy_streaming, copy_to_shared, drain};
use crate::types::Op;

/// Chunks of a half of the ring.
const CHUNKS: usize = 8;
/// The smallest chunk: less data than that is not worth a post.
const LEAST_BYTES: usize = 16 << 10;

/// # Safety
/// As for [`super::run`]. The partial results of `op` are elements.
pub(super) unsafe fn run<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    steps.reclaim()?;
    if count == 0 {
        steps.post()?;
        return steps.await_all();
    }
    let chain = Chain {
        send,
        recv,
        count,
        op,
        per_chunk: per_chunk(count, size_of::<T>(), steps),
        streaming: super::is_streaming(count * size_of::<T>()),
        start: steps.posted(),
        greets: !steps.greeted(),
    };
    let rounds = chain.rounds();
    for round in 0..rounds {
        // SAFETY: the caller's buffers.
        unsafe {
            chain.reduce_round(steps, round)?;
            chain.copy_round(steps, round)?;
        }
    }
    if steps.rank() == 0 && chain.greets {
        steps.post()?;
    }
    if chain.streaming {
        drain();
    }
    Ok(())
}

/// Elements of a chunk: a quarter of the message, so that there is something to do for several, or of a region, so that a
/// half fits a slot.
fn per_chunk(count: usize, size: usize, steps: &Steps<'_>) -> usize {
    let bytes = (count * size / 4).max(LEAST_BYTES).min(steps.chunk_bytes() / 4);
    let unit = if bytes >= 64 { 64 } else { 8 };
    bytes / unit * unit / size
}

struct Chain<T> {
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
    per_chunk: usize,
    streaming: bool,
    /// Steps posted before.
    start: u64,
    /// Whether the call's first step is to be made here.
    greets: bool,
}

/// How many steps a rank has posted when it is so far.
#[derive(Clone, Copy)]
struct Count {
    /// Those before its first chunk.
    before: u64,
    chunks: usize,
}

impl Count {
    /// It has reduced chunk `chunk`.
    fn reduced(self, chunk: usize) -> u64 {
        self.before + (chunk / CHUNKS + chunk + 1) as u64
    }

    /// It has copied round `round`.
    fn copied(self, round: usize) -> u64 {
        self.before + (round + self.chunks.min((round + 1) * CHUNKS) + 1) as u64
    }
}

impl<T: Element> Chain<T> {
    fn chunks(&self) -> usize {
        self.count.div_ceil(self.per_chunk)
    }

    fn rounds(&self) -> usize {
        self.chunks().div_ceil(CHUNKS)
    }

    /// The chunks of a round.
    fn round(&self, round: usize) -> Range<usize> {
        piece_at(self.chunks(), CHUNKS, round)
    }

    fn count_of(&self, rank: u32) -> Count {
        Count { before: self.start + u64::from(self.greets && rank != 0), chunks: self.chunks() }
    }

    /// Where the ring has a chunk.
    fn place(&self, steps: &Steps<'_>, chunk: usize) -> *mut T {
        steps
            .slot_of_first(self.start + (chunk / CHUNKS % 2) as u64)
            .cast::<T>()
            .wrapping_add(chunk % CHUNKS * self.per_chunk)
    }

    /// # Safety
    /// As for [`run`], after the rounds before.
    unsafe fn reduce_round(&self, steps: &mut Steps<'_>, round: usize) -> Result<(), CommError> {
        let (me, last) = (steps.rank(), steps.size() - 1);
        if let Some(before) = round.checked_sub(2).filter(|_| me == 0) {
            for rank in 1..=last {
                steps.await_count(rank, self.count_of(rank).copied(before))?;
            }
        }
        if me != 0 && round == 0 && self.greets {
            steps.post()?;
            steps.await_all()?;
        }
        for chunk in self.round(round) {
            let piece = piece_at(self.count, self.per_chunk, chunk);
            let place = self.place(steps, chunk);
            // SAFETY: the piece lies inside the caller's buffer, and the chunk inside the ring; it is ours, as the head of
            // this file says.
            unsafe {
                let own = self.send.add(piece.start);
                match me {
                    0 => copy_to_shared(own.cast(), place.cast(), piece.len() * size_of::<T>()),
                    _ => {
                        steps.await_count(me - 1, self.count_of(me - 1).reduced(chunk))?;
                        self.hop(place, own, piece.len());
                    }
                }
                if me == last && self.op == Op::Avg {
                    divide(place, piece.len(), steps.size());
                }
            }
            steps.post()?;
            if me == 0 && chunk == 0 && self.greets {
                steps.await_all()?;
            }
        }
        Ok(())
    }

    /// Reduces our own data into a chunk.
    ///
    /// # Safety
    /// `place` is writable and `own` readable for `count` elements.
    unsafe fn hop(&self, place: *mut T, own: *const T, count: usize) {
        let op = if self.op == Op::Avg { Op::Sum } else { self.op };
        let (sources, slot) = ([place.cast_const(), own], place.cast::<u8>());
        // SAFETY: the caller's; nothing comes to where the chunk was.
        unsafe {
            let next = (slot.cast_const(), 0);
            reduce_and_refill(op, Pass { sources, count, target: place, streaming: false, slot, next });
        }
    }

    /// # Safety
    /// As for [`run`], after [`reduce_round`](Chain::reduce_round).
    unsafe fn copy_round(&self, steps: &mut Steps<'_>, round: usize) -> Result<(), CommError> {
        let last = steps.size() - 1;
        for chunk in self.round(round) {
            if steps.rank() != last {
                steps.await_count(last, self.count_of(last).reduced(chunk))?;
            }
            let piece = piece_at(self.count, self.per_chunk, chunk);
            let copy = if self.streaming { copy_streaming } else { std::ptr::copy_nonoverlapping::<u8> };
            // SAFETY: the piece lies inside the caller's buffer. In place, its data was reduced in this round. The chunk is
            // complete, and not written before we post.
            unsafe {
                let target = self.recv.add(piece.start).cast();
                copy(self.place(steps, chunk).cast_const().cast(), target, piece.len() * size_of::<T>());
            }
        }
        steps.post()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counts that others wait for are those that a rank has when it has just done what they stand for.
    #[test]
    fn counts_are_those_of_the_posts() {
        for chunks in [1, 2, 7, 8, 9, 16, 17, 40] {
            for before in [0, 1, 1000] {
                let count = Count { before, chunks };
                let mut posted = before;
                for round in 0..chunks.div_ceil(CHUNKS) {
                    for chunk in piece_at(chunks, CHUNKS, round) {
                        posted += 1;
                        assert_eq!(count.reduced(chunk), posted, "chunk {chunk} of {chunks}");
                    }
                    posted += 1;
                    assert_eq!(count.copied(round), posted, "round {round} of {chunks}");
                }
            }
        }
    }
}
