//! Many arrays into one, element by element, in the order of the ranks and with one rounding.
#![expect(unsafe_code, reason = "reads slots and user memory through pointers")]

use crate::element::Element;
use crate::types::Op;

/// Elements whose accumulators stay in the first-level cache.
const BLOCK: usize = 256;

/// Reduces `count` elements of `ranks` sources into `target`, which may be one of the sources.
///
/// Starting with the first source, not with zero, keeps the sign of a zero.
///
/// # Safety
/// `source` gives addresses that are readable, and `target` one that is writable, for `count` elements, all aligned
/// to the element. `target` is a source itself or overlaps none.
pub(crate) unsafe fn reduce<T: Element>(
    op: Op,
    ranks: u32,
    source: impl Fn(u32) -> *const T,
    count: usize,
    target: *mut T,
) {
    // SAFETY: the caller's, for each of the calls.
    unsafe {
        match op {
            Op::Sum => fold(ranks, source, count, target, T::widen, |a, x| T::sum(a, x.widen()), T::narrow),
            Op::Prod => fold(ranks, source, count, target, T::widen, |a, x| T::prod(a, x.widen()), T::narrow),
            Op::Min => fold(ranks, source, count, target, T::widen, |a, x| T::min(a, x.widen()), T::narrow),
            Op::Max => fold(ranks, source, count, target, T::widen, |a, x| T::max(a, x.widen()), T::narrow),
            Op::Avg => {
                let mean = |sum| T::mean(sum, ranks);
                fold(ranks, source, count, target, T::wide, |a, x| T::wide_sum(a, x.wide()), mean)
            }
        }
    }
}

/// # Safety
/// As for [`reduce`].
unsafe fn fold<T: Element, A: Copy + Default>(
    ranks: u32,
    source: impl Fn(u32) -> *const T,
    count: usize,
    target: *mut T,
    first: impl Fn(T) -> A,
    next: impl Fn(A, T) -> A,
    last: impl Fn(A) -> T,
) {
    let mut sums = [A::default(); BLOCK];
    for start in (0..count).step_by(BLOCK) {
        let length = BLOCK.min(count - start);
        // SAFETY: inside the caller's range. Each block is read from all sources before it is written, so the
        // target may be a source.
        let read = |rank: u32| unsafe { std::slice::from_raw_parts(source(rank).add(start), length) };
        for (sum, x) in sums.iter_mut().zip(read(0)) {
            *sum = first(*x);
        }
        for rank in 1..ranks {
            for (sum, x) in sums.iter_mut().zip(read(rank)) {
                *sum = next(*sum, *x);
            }
        }
        // SAFETY: inside the caller's target; the slices above are no longer used.
        let block = unsafe { std::slice::from_raw_parts_mut(target.add(start), length) };
        for (x, sum) in block.iter_mut().zip(&sums) {
            *x = last(*sum);
        }
    }
}
