//! Many arrays into one, element by element, in the order of the ranks and with one rounding.
//!
//! Two sources are read in one pass; more go through accumulators that stay in the first-level cache. A result
//! with one target that is no source is written where it belongs; else a block of it is made aside and then copied,
//! past the caches if so wanted. The loops are plain, and compiled for each width of `simd.rs`: that is most of what it takes
//! to compile libcomm, so what gives the same bits for two types is compiled for one of them.
#![expect(unsafe_code, reason = "reads slots and user memory through pointers")]

use std::mem::MaybeUninit;

use crate::element::{Arithmetic, Element};
use crate::simd::{fetch, instances, stream};
use crate::types::Op;

/// Elements whose accumulators stay in the first-level cache.
const BLOCK: usize = 512;

/// Whether what comes out depends on the bits alone, and not on whether they stand for signed numbers.
fn is_of_bits(op: Op) -> bool {
    !matches!(op, Op::Min | Op::Max | Op::Avg)
}

/// Reduces `count` elements of the sources into every target; a target may be one of the sources. With `streaming`, targets
/// are written past the caches and the caller drains.
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
) {
    // SAFETY: the caller's; a signed integer and its unsigned one have the same size and alignment, and all bits are valid,
    // so a slice of pointers to the one is one of pointers to the other.
    unsafe {
        if T::IS_SIGNED && is_of_bits(op) {
            let sources = std::slice::from_raw_parts(sources.as_ptr().cast(), sources.len());
            let targets = std::slice::from_raw_parts(targets.as_ptr().cast(), targets.len());
            return reduce_as::<T::Bits>(op, sources, count, targets, streaming);
        }
        reduce_as::<T>(op, sources, count, targets, streaming);
    }
}

instances! {
    /// As [`reduce`], which all call.
    ///
    /// # Safety
    /// The same.
    unsafe fn reduce_as<T: Arithmetic>(
        op: Op,
        sources: &[*const T],
        count: usize,
        targets: &[*mut T],
        streaming: bool,
    ) = by_op;
}

/// One pass over a chunk between two ranks.
#[derive(Clone, Copy)]
pub(crate) struct Pass<T> {
    /// In the order of the ranks; one of them is `slot`.
    pub(crate) sources: [*const T; 2],
    pub(crate) count: usize,
    pub(crate) target: *mut T,
    /// Write results past the caches.
    pub(crate) streaming: bool,
    /// What was read in this place may be overwritten.
    pub(crate) slot: *mut u8,
    /// What comes there, and its length in bytes.
    pub(crate) next: (*const u8, usize),
}

/// Reduces two sources into the target, and puts other data where one of them was.
///
/// # Safety
/// Sources are readable and the target writable for `count` elements, aligned to the element. The slot is one of the
/// sources and writable for what comes next, which is readable and no more than `count` elements. The target may be
/// the other source, or the slot if nothing comes there; else it overlaps nothing here.
pub(crate) unsafe fn reduce_and_refill<T: Element>(op: Op, pass: Pass<T>) {
    let Pass { sources: [a, b], count, target, streaming, slot, next } = pass;
    // SAFETY: the caller's; as in `reduce`.
    unsafe {
        if T::IS_SIGNED && is_of_bits(op) {
            let (sources, target) = ([a.cast(), b.cast()], target.cast());
            return refill_as::<T::Bits>(op, Pass { sources, count, target, streaming, slot, next });
        }
        refill_as::<T>(op, pass);
    }
}

instances! {
    /// As [`reduce_and_refill`], which all call.
    ///
    /// # Safety
    /// The same.
    unsafe fn refill_as<T: Arithmetic>(op: Op, pass: Pass<T>) = pass_by_op;
}

instances! {
    /// Makes means of sums, in place. Of floats only: sums of integers do not fit them.
    ///
    /// # Safety
    /// Readable and writable for `count` elements.
    pub(crate) unsafe fn divide<T: Element>(sums: *mut T, count: usize, ranks: u32) = mean_of_each;
}

#[inline(always)]
unsafe fn mean_of_each<T: Element>(sums: *mut T, count: usize, ranks: u32) {
    if T::HAS_BITS {
        return;
    }
    // SAFETY: the caller's.
    for sum in unsafe { std::slice::from_raw_parts_mut(sums, count) } {
        *sum = T::mean(sum.wide(), ranks);
    }
}

#[inline(always)]
unsafe fn pass_by_op<T: Arithmetic>(op: Op, pass: Pass<T>) {
    // SAFETY: the caller's, for each of the calls.
    unsafe {
        match op {
            Op::Sum if !T::IS_SIGNED => over(pass, |a, b| T::narrow(T::sum(a.widen(), b.widen()))),
            Op::Prod if !T::IS_SIGNED => over(pass, |a, b| T::narrow(T::prod(a.widen(), b.widen()))),
            Op::Min => over(pass, |a, b| T::narrow(T::min(a.widen(), b.widen()))),
            Op::Max => over(pass, |a, b| T::narrow(T::max(a.widen(), b.widen()))),
            Op::BitAnd if T::HAS_BITS && !T::IS_SIGNED => over(pass, T::bit_and),
            Op::BitOr if T::HAS_BITS && !T::IS_SIGNED => over(pass, T::bit_or),
            Op::BitXor if T::HAS_BITS && !T::IS_SIGNED => over(pass, T::bit_xor),
            Op::All if T::HAS_BITS && !T::IS_SIGNED => over(pass, |a, b| T::all(a.truth(), b)),
            Op::Any if T::HAS_BITS && !T::IS_SIGNED => over(pass, |a, b| T::any(a.truth(), b)),
            Op::Avg => over(pass, |a, b| T::mean(T::wide_sum(a.wide(), b.wide()), 2)),
            // Refused before anything is sent, or done as other elements.
            _ => {}
        }
    }
}

/// Bytes that a pass takes at a time: a few lines, so that the reads of several are on their way at once, and no more
/// than stay in registers or near.
const TURN: usize = 256;

/// How far ahead of its use a line of the slot is asked for.
const AHEAD: usize = 1024;

#[repr(align(64))]
struct Turn([MaybeUninit<u8>; TURN]);

/// # Safety
/// As for [`reduce_and_refill`].
#[inline(always)]
unsafe fn over<T: Arithmetic>(pass: Pass<T>, make: impl Fn(T, T) -> T + Copy) {
    let Pass { sources: [a, b], count, target, streaming, slot, next: (next, next_bytes) } = pass;
    let size = size_of::<T>();
    let head = if streaming { target.align_offset(64).min(count) } else { 0 };
    // SAFETY: inside the caller's ranges.
    unsafe { pairwise(target, a, b, head, make) };
    let (mut at, mut put) = (head, 0);
    let mut turn = Turn([MaybeUninit::uninit(); TURN]);
    while count - at >= TURN / size {
        for line in (0..TURN).step_by(64) {
            fetch(slot.wrapping_add(at * size + AHEAD + line));
        }
        let made = turn.0.as_mut_ptr().cast::<T>();
        // SAFETY: as above. `put` is no further than `at`, so what is overwritten was read.
        unsafe {
            pairwise(made, a.add(at), b.add(at), TURN / size, make);
            if put + TURN <= next_bytes {
                std::ptr::copy_nonoverlapping(next.add(put), slot.add(put), TURN);
                put += TURN;
            }
            let (from, to) = (made.cast_const().cast::<u8>(), target.add(at).cast::<u8>());
            match streaming {
                true => stream(from, to, TURN),
                false => std::ptr::copy_nonoverlapping(from, to, TURN),
            }
        }
        at += TURN / size;
    }
    // SAFETY: as above, and then all is read.
    unsafe {
        pairwise(target.add(at), a.add(at), b.add(at), count - at, make);
        std::ptr::copy_nonoverlapping(next.add(put), slot.add(put), next_bytes - put);
    }
}

/// Element by element, through pointers, since `out` may be one of the sources.
///
/// # Safety
/// Readable and writable for `count` elements.
#[inline(always)]
unsafe fn pairwise<T: Copy>(out: *mut T, a: *const T, b: *const T, count: usize, make: impl Fn(T, T) -> T) {
    for at in 0..count {
        // SAFETY: the caller's.
        unsafe { out.add(at).write(make(a.add(at).read(), b.add(at).read())) };
    }
}

#[inline(always)]
unsafe fn by_op<T: Arithmetic>(op: Op, sources: &[*const T], count: usize, targets: &[*mut T], streaming: bool) {
    let to = To { targets, streaming };
    let ranks = sources.len() as u32;
    // SAFETY: the caller's, for each of the calls.
    unsafe {
        match op {
            Op::Sum if !T::IS_SIGNED => fold(sources, count, to, T::widen, |a, x| T::sum(a, x.widen()), T::narrow),
            Op::Prod if !T::IS_SIGNED => fold(sources, count, to, T::widen, |a, x| T::prod(a, x.widen()), T::narrow),
            Op::Min => fold(sources, count, to, T::widen, |a, x| T::min(a, x.widen()), T::narrow),
            Op::Max => fold(sources, count, to, T::widen, |a, x| T::max(a, x.widen()), T::narrow),
            Op::BitAnd if T::HAS_BITS && !T::IS_SIGNED => fold(sources, count, to, |x| x, T::bit_and, |x| x),
            Op::BitOr if T::HAS_BITS && !T::IS_SIGNED => fold(sources, count, to, |x| x, T::bit_or, |x| x),
            Op::BitXor if T::HAS_BITS && !T::IS_SIGNED => fold(sources, count, to, |x| x, T::bit_xor, |x| x),
            Op::All if T::HAS_BITS && !T::IS_SIGNED => fold(sources, count, to, T::truth, T::all, |x| x),
            Op::Any if T::HAS_BITS && !T::IS_SIGNED => fold(sources, count, to, T::truth, T::any, |x| x),
            Op::Avg => fold(sources, count, to, T::wide, |a, x| T::wide_sum(a, x.wide()), |sum| T::mean(sum, ranks)),
            _ => {} // as in `pass_by_op`
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
unsafe fn fold<T: Arithmetic, A: Copy>(
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
    let mut sums = [const { MaybeUninit::<A>::uninit() }; BLOCK];
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
                [a] => out.iter_mut().zip(read(*a)).for_each(|(out, a)| _ = out.write(last(first(*a)))),
                [a, b] => two(out, read(*a), read(*b), |a, b| last(next(first(a), b))),
                [a, b, middle @ .., end] => {
                    let sums = &mut sums[..length];
                    two(sums, read(*a), read(*b), |a, b| next(first(a), b));
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
fn two<T: Copy, A>(out: &mut [MaybeUninit<A>], a: &[T], b: &[T], make: impl Fn(T, T) -> A) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        out.write(make(*a, *b));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One pass with all offsets within a line, with more, less and nothing to come, in place and not.
    #[test]
    fn a_pass_reduces_all_and_refills_all_and_touches_nothing_else() {
        const ROOM: usize = 1000;
        for count in [0, 1, 63, 64, 65, 300, 700] {
            for come in [0, count / 2, count] {
                for (to, streaming, in_place) in
                    [(16, false, false), (17, true, false), (20, true, true), (31, false, true)]
                {
                    let own: Vec<f32> = (0..ROOM).map(|i| i as f32).collect();
                    let mut slot: Vec<f32> = (0..ROOM).map(|i| 1000.0 * i as f32).collect();
                    let next: Vec<f32> = (0..ROOM).map(|i| -(i as f32)).collect();
                    let mut target = if in_place { own.clone() } else { vec![f32::NAN; ROOM] };
                    let before = target.clone();
                    // SAFETY: all ranges lie inside their vectors; the slot begins at 8, own data at `to`.
                    unsafe {
                        let out = target.as_mut_ptr().add(to);
                        let a = if in_place { out.cast_const() } else { own.as_ptr().add(to) };
                        let slot = slot.as_mut_ptr().add(8);
                        let pass = Pass {
                            sources: [a, slot],
                            count,
                            target: out,
                            streaming,
                            slot: slot.cast(),
                            next: (next.as_ptr().add(3).cast(), 4 * come),
                        };
                        reduce_and_refill(Op::Sum, pass);
                        crate::simd::drain();
                    }
                    let (reduced, came) = (to..to + count, 8..8 + come);
                    for (i, (made, before)) in target.iter().zip(&before).enumerate() {
                        let own_and_slot = || i as f32 + 1000.0 * (i - to + 8) as f32;
                        let wanted = if reduced.contains(&i) { own_and_slot() } else { *before };
                        assert_eq!(made.to_bits(), wanted.to_bits(), "{count} {come} {to} {i}");
                    }
                    for (i, found) in slot.iter().enumerate() {
                        let wanted = if came.contains(&i) { -((i - 8 + 3) as f32) } else { 1000.0 * i as f32 };
                        assert_eq!(*found, wanted, "{count} {come} {to} {i}");
                    }
                }
            }
        }
    }
}
