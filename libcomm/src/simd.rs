//! Moving bytes and running loops at the width of the processor that is there, found out when the program runs.
//!
//! Loops are written once, plainly and `inline(always)`; [`instances!`] compiles them again for AVX2 and AVX-512, where the
//! compiler makes wider code of the same source. So every width gives the same bits.
#![expect(unsafe_code, reason = "copies through pointers, with instructions that need a feature")]

/// What the processor can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Width {
    /// What every processor of this architecture can.
    Plain,
    /// 32 bytes.
    Avx2,
    /// 64 bytes.
    Avx512,
}

/// Found out once.
pub(crate) fn width() -> Width {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            return Width::Avx512;
        }
        if is_x86_feature_detected!("avx2") {
            return Width::Avx2;
        }
    }
    Width::Plain
}

/// Declares `fn $name` that runs the `inline(always)` function `$body` compiled for the processor at hand.
macro_rules! instances {
    ($(#[$doc:meta])* $visibility:vis unsafe fn $name:ident $(<$generic:ident: $bound:path>)? ($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $body:path;) => {
        $(#[$doc])*
        $visibility unsafe fn $name $(<$generic: $bound>)? ($($arg: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            unsafe fn avx2 $(<$generic: $bound>)? ($($arg: $type),*) $(-> $result)? {
                // SAFETY: the caller's.
                unsafe { $body($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
            unsafe fn avx512 $(<$generic: $bound>)? ($($arg: $type),*) $(-> $result)? {
                // SAFETY: the caller's.
                unsafe { $body($($arg),*) }
            }
            // SAFETY: the caller's; the processor has what `width` says.
            unsafe {
                match $crate::simd::width() {
                    #[cfg(target_arch = "x86_64")]
                    $crate::simd::Width::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::simd::Width::Avx2 => avx2($($arg),*),
                    _ => $body($($arg),*),
                }
            }
        }
    };
}
pub(crate) use instances;

const LINE: usize = 64;
type Line = [u8; LINE];
/// How far ahead of a store its line is asked for.
const AHEAD: usize = 1024;

instances! {
    /// Copies into memory that another processor has read: each line is asked for some time before it is written, since
    /// getting it back costs as much as reading it did.
    ///
    /// # Safety
    /// As for `copy_nonoverlapping`.
    pub(crate) unsafe fn copy_to_shared(source: *const u8, target: *mut u8, bytes: usize) = copy_claiming;
}

#[inline(always)]
unsafe fn copy_claiming(source: *const u8, target: *mut u8, bytes: usize) {
    let whole = bytes / LINE * LINE;
    for at in (0..AHEAD.min(whole)).step_by(LINE) {
        claim(target.wrapping_add(at));
    }
    for at in (0..whole).step_by(LINE) {
        if at + AHEAD < bytes {
            claim(target.wrapping_add(at + AHEAD));
        }
        // SAFETY: inside the caller's ranges.
        unsafe { target.add(at).cast::<Line>().write_unaligned(source.add(at).cast::<Line>().read_unaligned()) };
    }
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(source.add(whole), target.add(whole), bytes - whole) };
}

/// Asks for a line to be written. Does nothing where the processor does not know it.
#[inline(always)]
pub(crate) fn claim(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it cannot fault, and processors that lack it take it for a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks for a line to be read.
#[inline(always)]
pub(crate) fn fetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it cannot fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Moves lines that another processor is about to read out of this one's own caches, to where it finds them sooner.
#[inline(always)]
pub(crate) fn hand_over(address: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes).step_by(LINE) {
        // SAFETY: `cldemote`, a hint; it cannot fault, and processors that lack it take it for a no-op.
        unsafe {
            std::arch::asm!("cldemote [{}]", in(reg) address.wrapping_add(at), options(nostack, preserves_flags, readonly))
        };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, bytes);
}

instances! {
    /// Copies past the caches, for data that would not stay in them. Others see it once [`drain`] has returned.
    ///
    /// # Safety
    /// As for `copy_nonoverlapping`.
    pub(crate) unsafe fn copy_streaming(source: *const u8, target: *mut u8, bytes: usize) = stream;
}

/// Lines are written with stores as wide as the processor has: with four of 16 bytes each, an AllReduce of 4 ranks on 2 cores
/// and 16 MiB took a fifth longer than with one of 64 (Xeon virtual machine, 2026-11-30).
#[inline(always)]
pub(crate) unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        let head = target.align_offset(LINE).min(bytes);
        let lines = (bytes - head) / LINE;
        let done = head + lines * LINE;
        // SAFETY: inside the caller's ranges; the streamed part is aligned, for it begins at a line, and the processor has
        // what `width` says.
        unsafe {
            std::ptr::copy_nonoverlapping(source, target, head);
            match width() {
                Width::Avx512 => lines::of_64(source.add(head), target.add(head), lines),
                Width::Avx2 => lines::of_32(source.add(head), target.add(head), lines),
                Width::Plain => lines::of_16(source.add(head), target.add(head), lines),
            }
            std::ptr::copy_nonoverlapping(source.add(done), target.add(done), bytes - done);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, bytes)
    }
}

/// Whole lines past the caches, with stores of each width.
#[cfg(target_arch = "x86_64")]
mod lines {
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_stream_si128, _mm256_loadu_si256, _mm256_stream_si256,
        _mm512_loadu_si512, _mm512_stream_si512,
    };

    macro_rules! lines {
        ($name:ident, $feature:literal, $unit:ty, $load:ident, $store:ident) => {
            /// # Safety
            /// As for `copy_nonoverlapping`, of whole lines to where a line begins.
            #[inline]
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(source: *const u8, target: *mut u8, lines: usize) {
                for at in (0..lines * super::LINE).step_by(size_of::<$unit>()) {
                    // SAFETY: the caller's.
                    unsafe { $store(target.add(at).cast(), $load(source.add(at).cast())) };
                }
            }
        };
    }

    lines!(of_16, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128);
    lines!(of_32, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256);
    lines!(of_64, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512);
}

/// Orders streamed stores before whatever is stored next.
pub(crate) fn drain() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an instruction that every x86-64 processor has.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_moves_every_byte_and_no_other() {
        let source: Vec<u8> = (0..6000).map(|i| (i * 31 % 251) as u8).collect();
        for copy in [copy_to_shared, copy_streaming] {
            for bytes in [0, 1, 63, 64, 65, 127, 1000, 1024, 1087, 4097] {
                for (from, to) in [(0, 0), (1, 0), (0, 3), (7, 64), (64, 13)] {
                    let mut target = vec![0xa5u8; 6000];
                    // SAFETY: both ranges lie inside their vectors.
                    unsafe { copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), bytes) };
                    drain();
                    assert_eq!(target[to..to + bytes], source[from..from + bytes]);
                    assert!(target[..to].iter().chain(&target[to + bytes..]).all(|byte| *byte == 0xa5));
                }
            }
        }
    }
}
