//! One-shot between two ranks: one pass over a chunk reduces what the other sent and sends what comes next.
//!
//! In step k, rank r puts chunk k into its slot and posts. Two steps are on their way at a time: while r reads chunk k of
//! the other, the other has chunk k + 1 of r, so neither waits for the other's pace. Two ranks change parts every second
//! step, so the slot of r's step k + 2 is the very memory from which it reads chunk k: a pass reads a line, adds its own
//! data, writes the result, and puts chunk k + 2 where the line was. Each line goes from core to core once, full both ways.
//!
//! # Who may write when
//!
//! The slot of step s + 2 was written by the other in step s, and read by this rank alone, here in the same pass. So all
//! that must be known before it is written is that the other has posted step s, which is what reading it needs anyway;
//! and for the first two steps of a call, in which the slots may have been read by the other as its own in an earlier
//! call, that the other has posted the step before, which is waited for.
//!
//! # What was tried
//!
//! Two ranks on two cores of a Xeon (2 MiB L2 a core, a virtual machine), f32, buffers as malloc gives them, µs, November
//! 2026, C programs of nothing but these loops, while all else was held:
//!
//! | | 1 KiB | 16 KiB | 64 KiB | 1 MiB | 16 MiB |
//! | --- | --- | --- | --- | --- | --- |
//! | each its own slots, lines claimed ahead (`prefetchw`), turns of 4 KiB | 0.60 | 4.1 | 10.3 | 185 | 3300 |
//! | parts changed every second step, else the same | 0.46 | 2.6 | 7.9 | 153 | 2790 |
//! | parts changed, a chunk posted before the last one is read | 0.46 | 2.6 | 7.8 | 138 | 2720 |
//! | parts changed, one pass a chunk, one step on its way | | | | 147 | 2400 |
//! | **parts changed, one pass a chunk, two steps on their way** | 0.46 | 2.6 | 7.0 | **117** | **2250** |
//! | that, four steps on their way | | | | 120 | 2290 |
//! | that, results not past the caches | | | | 142 | 3800 |
//! | that, half of the results past the caches | | | | 120 | |
//! | `process_vm_readv` from the other's buffers, two-shot | | | 13 | 171 | 2900 |
//! | data and flag in each line (56 + 8 bytes) | 0.45 | 2.7 | 7.5 | | |
//! | lines handed over after the post (`cldemote`) | **0.43** | 3.8 | 13 | | |
//!
//! Chunks of 64 and 128 KiB are equal, of 32 KiB lose a fifth at 1 MiB. Reading 1 KiB ahead gains 5 % at 64 KiB.
//!
//! With checksums, in libcomm, under prun and each rank on a core, medians of two turns, while compilers were stopped; without
//! checksums 10 to 11 µs for 64 KiB, 121 to 146 for 1 MiB, 2300 to 2600 for 16 MiB:
//!
//! | | 64 KiB | 1 MiB | 16 MiB |
//! | --- | --- | --- | --- |
//! | results past the caches, read again at the end, turns of 4 KiB | 14 to 15 | 361 to 394 | 6660 to 6830 |
//! | the same, turns of 1 KiB, as far as the pass asks ahead | 15 to 17 | 285 to 341 | 5440 to 5970 |
//! | results in the caches, read again at the end, turns of 4 KiB | 15 | 253 to 267 | 6350 to 7360 |
//! | **results past the caches, read again while later chunks are made, 1 KiB** | 13 to 14 | 264 to 282 | 4520 to 4690 |
//! | results in the caches, the same, 4 KiB (**below 8 MiB**) | 15 | 232 to 270 | 4730 to 5880 |
//!
//! What limits: a core has so many requests to other caches and to memory on their way at a time, whatever they are for.
//! Alone, 1 MiB takes 46 µs to read from memory, 60 to write there, and 62 to read out of the other core's cache: 168 for
//! all three, of which the pass takes 141 at 16 MiB. At 1 MiB what is sent stays in the core's own cache. 16 KiB are read
//! at half the speed, since they lie in the first-level cache of the other core, from which lines come slower than from
//! its second.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use crate::collectives::piece_at;
use crate::collectives::reduce::{Pass, reduce_and_refill};
use crate::element::Element;
use crate::error::CommError;
use crate::fault::Stage;
use crate::protocol::simple::{Steps, bytes_at};
use crate::simd::{drain, hand_over};
use crate::types::Op;
use crate::verify::{TURN_BYTES, line_end};

/// Slots of both ranks and both steps, and what is read and written beside them, stay in a core's own cache.
const CHUNK_BYTES: usize = 64 << 10;

/// Up to here the lines reach the other sooner if they are on their way before it asks for them. Of more of them, each
/// takes longer to leave than to be fetched.
const HANDED_OVER_BYTES: usize = 2048;

/// # Safety
/// As for [`super::run`]; there are two ranks, and data to move.
pub(super) unsafe fn run<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    let size = size_of::<T>();
    let streaming = super::is_streaming(count * size) && !(steps.verifies() && count * size < VERIFIED_IN_CACHE_BYTES);
    let per_chunk = steps.chunk_bytes().min(CHUNK_BYTES) / size;
    let chunks = count.div_ceil(per_chunk);
    steps.reclaim()?;
    for chunk in 0..chunks.min(2) {
        let piece = piece_at(count, per_chunk, chunk);
        // SAFETY: the piece lies inside the caller's buffer; the slot is ours, since the other has posted the last step.
        unsafe { steps.fill_front(send.add(piece.start).cast(), piece.len() * size, chunk as u64) };
        steps.post()?;
        if chunk == 0 {
            if count * size <= HANDED_OVER_BYTES {
                let sum = if steps.verifies() { 8 } else { 0 };
                hand_over(steps.posted_slot(), count * size + sum);
            }
            steps.await_all()?;
        }
    }
    for chunk in 0..chunks {
        let back = u64::from(chunk + 1 < chunks);
        steps.await_other(back)?;
        let (made, next) = (piece_at(count, per_chunk, chunk), piece_at(count, per_chunk, chunk + 2));
        let slot = steps.slot_of_other(back);
        // SAFETY: the pieces lie inside the caller's buffers; in place, the result of a chunk is written two chunks after
        // it was sent. The slot is posted, and ours for the step that comes next.
        unsafe {
            let (own, target) = (send.add(made.start), recv.add(made.start));
            let sources = match steps.rank() {
                0 => [own, slot.cast_const().cast()],
                _ => [slot.cast_const().cast(), own],
            };
            let next = (send.add(next.start).cast(), next.len() * size);
            let pass = Pass { sources, count: made.len(), target, streaming, slot, next };
            match steps.verifies() {
                true => pass_checked(steps, op, pass, back, chunk, &Whole { recv, count, per_chunk })?,
                false => reduce_and_refill(op, pass),
            }
        }
        if !next.is_empty() {
            steps.post()?;
        }
    }
    if streaming {
        drain();
    }
    Ok(())
}

/// With checksums, results below this stay in the caches: they are read again.
const VERIFIED_IN_CACHE_BYTES: usize = 8 << 20;

/// What is summed at a time where results go past the caches: as much as the pass has asked for ahead.
const STREAMED_TURN_BYTES: usize = 1024;

/// The result, of which a pass makes a chunk.
struct Whole<T> {
    recv: *mut T,
    count: usize,
    per_chunk: usize,
}

/// A pass with checksums: what arrived and what comes next are summed a turn at a time, just before the pass over that turn
/// finds them in the first-level cache; and as much is read again of the result, of the chunk before.
///
/// # Safety
/// As for [`reduce_and_refill`]; the slot is that of the other's step `back` before this rank's last, and the whole result is
/// valid, and made up to this chunk.
unsafe fn pass_checked<T: Element>(
    steps: &mut Steps<'_>,
    op: Op,
    pass: Pass<T>,
    back: u64,
    chunk: usize,
    whole: &Whole<T>,
) -> Result<(), CommError> {
    let size = size_of::<T>();
    let Pass { sources: [a, b], count, target, slot, next: (next, next_bytes), .. } = pass;
    let bytes = count * size;
    // SAFETY: the other wrote it before it posted; ours comes there only below.
    let sent = unsafe { Steps::sum_behind(slot, bytes).read() };
    let (mut arrived, mut leaving) = (steps.sum_of(back), steps.next_sum());
    let most = if pass.streaming { STREAMED_TURN_BYTES } else { TURN_BYTES };
    let (mut summed, mut made) = (0, 0);
    while summed < bytes {
        let turn = most.min(bytes - summed);
        let leaves = next_bytes.saturating_sub(summed).min(turn);
        // SAFETY: inside the caller's ranges; the pass has overwritten nothing of the slot from `summed` on.
        unsafe {
            arrived.add(bytes_at(slot.wrapping_add(summed), turn));
            if leaves != 0 {
                leaving.add(bytes_at(next.wrapping_add(summed), leaves));
            }
            steps.sum_result(whole.recv.cast(), whole.count * size, chunk * whole.per_chunk * size, turn);
        }
        summed += turn;
        let end = line_end(target.cast(), summed, bytes) / size;
        let (from, to) = ((made * size).min(next_bytes), (end * size).min(next_bytes));
        // SAFETY: a part of the caller's pass.
        unsafe {
            let part = Pass {
                sources: [a.add(made), b.add(made)],
                count: end - made,
                target: target.add(made),
                slot: slot.add(made * size),
                next: (next.wrapping_add(from), to - from),
                ..pass
            };
            reduce_and_refill(op, part);
        }
        made = end;
    }
    if next_bytes != 0 {
        // SAFETY: the slot is ours until we post, and has room for a checksum.
        unsafe {
            Steps::sum_behind(slot, next_bytes).write(leaving.end());
            steps.maybe_damage(Stage::Chunk, chunk as u64 + 2, slot, next_bytes);
        }
    }
    steps.judge(1 - steps.rank(), chunk as u64, sent, arrived)
}
