//! LL, for those who compare protocols: data travels beside the stamp that announces it, in the post, whatever the size.
//!
//! A step moves 104 bytes of each rank to all, in one or two cache lines that hold data and flag, so that no second line
//! has to be fetched. That is what `inline.rs` does for messages of one step, where it is the fastest; for more, slots win
//! from the second step on. Taken only if `PRUN_PROTO=ll` asks for it.
#![expect(unsafe_code, reason = "user memory comes as pointers")]

use crate::collectives::reduce::reduce;
use crate::collectives::{Sources, pieces};
use crate::element::Element;
use crate::error::CommError;
use crate::protocol::simple::{INLINE_BYTES, Steps, bytes_at};
use crate::shm::atomic::Relaxed;
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
    if count == 0 {
        return steps.meet();
    }
    let size = size_of::<T>();
    let words = INLINE_BYTES / 8;
    let mut data = vec![0u64; words * steps.size() as usize];
    for piece in pieces(count, INLINE_BYTES / size) {
        let bytes = piece.len() * size;
        // SAFETY: the piece lies inside the caller's buffer.
        steps.post_with(unsafe { bytes_at(send.add(piece.start).cast(), bytes) })?;
        steps.await_all()?;
        for (rank, data) in (0..).zip(data.chunks_exact_mut(words)) {
            data.iter_mut().zip(steps.inline_of(rank)).for_each(|(data, word)| *data = word.load(Relaxed));
        }
        let sources = Sources::of(steps.size(), |rank| data[words * rank as usize..].as_ptr().cast::<T>());
        // SAFETY: as many words as the elements take were read; in place, the piece was sent before.
        unsafe { reduce(op, &sources, piece.len(), &[recv.add(piece.start)], false) };
    }
    Ok(())
}
