//! Inline: the data travels in the post itself, beside its stamp, so that one transfer of a line or two from core to
//! core is all that a call costs. Everyone reads everyone's; one step, up to 104 bytes.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use std::mem::MaybeUninit;

use crate::collectives::reduce::reduce;
use crate::element::Element;
use crate::error::CommError;
use crate::protocol::simple::{INLINE_BYTES, Steps, bytes_at};
use crate::shm::atomic::Relaxed;
use crate::shm::layout::INLINE_WORDS;
use crate::types::Op;

/// More ranks than this read too many lines each.
pub(super) const RANKS: usize = 16;

/// # Safety
/// As for [`super::run`]; the data fits [`INLINE_BYTES`], and there are up to [`RANKS`] ranks.
pub(super) unsafe fn run<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    let (ranks, bytes) = (steps.size() as usize, count * size_of::<T>());
    debug_assert!(bytes <= INLINE_BYTES && ranks <= RANKS);
    // SAFETY: the caller's.
    steps.post_with(unsafe { bytes_at(send.cast(), bytes) })?;
    steps.await_all()?;
    if ranks == 2 {
        let mut other = [0u64; INLINE_WORDS];
        let words = &steps.inline_of(1 - steps.rank())[..bytes.div_ceil(8)];
        for (place, word) in other.iter_mut().zip(words) {
            *place = word.load(Relaxed);
        }
        let other = other.as_ptr().cast::<T>();
        let sources = if steps.rank() == 0 { [send, other] } else { [other, send] };
        // SAFETY: the words are aligned for any element and as many as the elements take; the rest is the caller's.
        unsafe { reduce(op, &sources, count, &[recv], false) };
        return Ok(());
    }
    let mut data = [const { MaybeUninit::<[u64; INLINE_WORDS]>::uninit() }; RANKS];
    let mut sources = [std::ptr::null::<T>(); RANKS];
    for ((rank, data), source) in (0..ranks as u32).zip(&mut data).zip(&mut sources) {
        let words = &steps.inline_of(rank)[..bytes.div_ceil(8)];
        let target = data.as_mut_ptr().cast::<u64>();
        for (at, word) in words.iter().enumerate() {
            // SAFETY: no more words than `data` has.
            unsafe { target.add(at).write(word.load(Relaxed)) };
        }
        *source = target.cast_const().cast();
    }
    // SAFETY: as many words as the elements take were written, aligned for any of them; the target is the caller's.
    unsafe { reduce(op, &sources[..ranks], count, &[recv], false) };
    Ok(())
}

/// What travels with its checksum in a post.
pub(super) const CHECKED_BYTES: usize = INLINE_BYTES - 8;

/// The same with a checksum behind the data.
///
/// # Safety
/// As for [`super::run`]; the data fits [`CHECKED_BYTES`], and there are up to [`RANKS`] ranks.
pub(super) unsafe fn run_checked<T: Element>(
    steps: &mut Steps<'_>,
    send: *const T,
    recv: *mut T,
    count: usize,
    op: Op,
) -> Result<(), CommError> {
    let (ranks, bytes) = (steps.size() as usize, count * size_of::<T>());
    debug_assert!(bytes <= CHECKED_BYTES && ranks <= RANKS);
    // SAFETY: the caller's.
    steps.post_checked(unsafe { bytes_at(send.cast(), bytes) })?;
    steps.await_all()?;
    let mut data = [const { MaybeUninit::<[u64; INLINE_WORDS]>::uninit() }; RANKS];
    let mut sources = [std::ptr::null::<T>(); RANKS];
    for ((rank, data), source) in (0..ranks as u32).zip(&mut data).zip(&mut sources) {
        *source = match rank == steps.rank() {
            true => send,
            false => data.write(steps.checked_of(rank, bytes)?).as_ptr().cast(),
        };
    }
    // SAFETY: as many words as the elements take were written, aligned for any of them; the rest is the caller's. In place,
    // each element is read before its place is written.
    unsafe { reduce(op, &sources[..ranks], count, &[recv], false) };
    Ok(())
}
