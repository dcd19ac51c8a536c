//! Many arrays into one, element by element, in the order of the ranks and with one rounding.
//!
//! Up to four sources are read in one pass; more go through accumulators that stay in the first-level cache. A result
//! with one target that is no source is written where it belongs; else a block of it is made aside and then copied,
//! past the caches if so wanted. The loops are plain, and compiled for each width of `simd.rs`.
#![expect(unsafe_code, reason = "reads slots and user memory through pointers")]

use std::mem::MaybeUninit;

use crate::element::Element;
use crate::simd::{instances, stream};
use crate::types::Op;

/// Elements whose accumulators stay in the first-level cache.
const BLOCK: usize = 512;

instances! {
    /// Reduces `count` elements of the sources into every target; a target may be one of the sources. With
    /// `streaming`, targets are written past the caches and the caller drains.
    ///
    /// Starting with the first source, not with zero, keeps the sign of a zero.
    ///
    /// # Safety
    /// Sources are readable and targets writable for `count` elements, all aligned to the element. A target is a
    /// source itself or overlaps none, and targets do not overlap each other.
    pub(crate) unsafe fn reduce<T: Element>(
        op: Op,
        sources: &[*const T],
        count: usize,
        targets: &[*mut T],
        streaming: bool,
    ) = by_op;
}

#[inline(always)]
unsafe fn by_op<T: Element>(op: Op, sources: &[*const T], count: usize, targets: &[*mut T], streaming: bool) {
    let to = To { targets, streaming };
    let ranks = sources.len() as u32;
    // SAFETY: the caller's, for each of the calls.
    unsafe {
        match op {
            Op::Sum => fold(sources, count, to, T::widen, |a, x| T::sum(a, x.widen()), T::narrow),
            Op::Prod => fold(sources, count, to, T::widen, |a, x| T::prod(a, x.widen()), T::narrow),
            Op::Min => fold(sources, count, to, T::widen, |a, x| T::min(a, x.widen()), T::narrow),
            Op::Max => fold(sources, count, to, T::widen, |a, x| T::max(a, x.widen()), T::narrow),
            Op::BitAnd => fold(sources, count, to, |x| x, T::bit_and, |x| x),
            Op::BitOr => fold(sources, count, to, |x| x, T::bit_or, |x| x),
            Op::BitXor => fold(sources, count, to, |x| x, T::bit_xor, |x| x),
            Op::All => fold(sources, count, to, T::truth, T::all, |x| x),
            Op::Any => fold(sources, count, to, T::truth, T::any, |x| x),
            Op::Avg => fold(sources, count, to, T::wide, |a, x| T::wide_sum(a, x.wide()), |sum| T::mean(sum, ranks)),
        }
    }
}

/// Where a result goes.
#[derive(Clone, Copy)]
struct To<'a, T> {
    targets: &'a [*mut T],
    streaming: bool,
}

/// # Safety
/// As for [`reduce`].
#[inline(always)]
unsafe fn fold<T: Element, A: Copy>(
    sources: &[*const T],
    count: usize,
    to: To<'_, T>,
    first: impl Fn(T) -> A + Copy,
    next: impl Fn(A, T) -> A + Copy,
    last: impl Fn(A) -> T + Copy,
) {
    let direct = match to.targets {
        [target] if !to.streaming && !sources.contains(&target.cast_const()) => Some(*target),
        _ => None,
    };
    let mut aside = [const { MaybeUninit::<T>::uninit() }; BLOCK];
    for start in (0..count).step_by(BLOCK) {
        let length = BLOCK.min(count - start);
        // SAFETY: inside the caller's ranges. The output is no source: either apart or ours.
        unsafe {
            let out = match direct {
                Some(target) => std::slice::from_raw_parts_mut(target.add(start).cast::<MaybeUninit<T>>(), length),
                None => &mut aside[..length],
            };
            let read = |source: *const T| std::slice::from_raw_parts(source.add(start), length);
            match sources {
                [a] => each(out, [read(*a)], |[a]| last(first(a))),
                [a, b] => each(out, [read(*a), read(*b)], |[a, b]| last(next(first(a), b))),
                [a, b, c] => {
                    let sources = [read(*a), read(*b), read(*c)];
                    each(out, sources, |[a, b, c]| last(next(next(first(a), b), c)));
                }
                [a, b, c, d] => {
                    let sources = [read(*a), read(*b), read(*c), read(*d)];
                    each(out, sources, |[a, b, c, d]| last(next(next(next(first(a), b), c), d)));
                }
                [front @ .., end] => {
                    let mut sums = [const { MaybeUninit::<A>::uninit() }; BLOCK];
                    let sums = &mut sums[..length];
                    let [a, b, middle @ ..] = front else { unreachable!("five sources or more") };
                    each(sums, [read(*a), read(*b)], |[a, b]| next(first(a), b));
                    for source in middle {
                        for (sum, x) in sums.iter_mut().zip(read(*source)) {
                            sum.write(next(sum.assume_init(), *x));
                        }
                    }
                    for ((out, sum), x) in out.iter_mut().zip(sums).zip(read(*end)) {
                        out.write(last(next(sum.assume_init(), *x)));
                    }
                }
                [] => {}
            }
            if direct.is_none() {
                for target in to.targets {
                    let (from, into) = (aside.as_ptr().cast::<u8>(), target.add(start).cast::<u8>());
                    match to.streaming {
                        true => stream(from, into, length * size_of::<T>()),
                        false => std::ptr::copy_nonoverlapping(from, into, length * size_of::<T>()),
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn each<T: Copy, A, const N: usize>(out: &mut [MaybeUninit<A>], sources: [&[T]; N], make: impl Fn([T; N]) -> A) {
    let sources = sources.map(|source| &source[..out.len()]);
    for (i, out) in out.iter_mut().enumerate() {
        out.write(make(std::array::from_fn(|n| sources[n][i])));
    }
}
