//! Checksums of what travels: whether data arrived as it left.
//!
//! A checksum is the sum, over all 8-byte words, of a mix of the word with its place; since addition has no order, it can be
//! made in any, and has the same value whatever the width of the processor.
//!
//! A change that stays within an aligned half of a word always changes the sum: each flipped bit, and whatever else happens
//! to a single element of up to four bytes. Words that change places, zeros where data was, and changes in several words go
//! unseen once in 2^64 at best; where the same bit of the word is flipped in many of them, as by a line that is stuck, once
//! in 2^32 or more.
//!
//! # What was tried
//!
//! GB/s with one core of a Xeon (AVX-512, a virtual machine that had other work), 4 KiB that stay in the first-level cache,
//! 2026-11-30, a program of nothing but these loops:
//!
//! | | AVX-512 | AVX2 | plain |
//! | --- | --- | --- | --- |
//! | xor with shifted self, multiplied, xored again, word by word | | | 3 |
//! | **x + lower half * upper half, 32 lanes** | 46 | 35 | 5 |
//! | that in 4 rows of 8 lanes, which the compiler leaves alone | 7 | 4 | 6 |
#![expect(unsafe_code, reason = "reads blocks at the width of the processor")]

use crate::simd::{fetch, instances};

/// What is checked, as [`crate::env::VERIFY`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Nothing.
    #[default]
    Off,
    /// Each chunk that travels, and each result against the other ranks'.
    Every,
    /// The same, and results are recomputed from what all ranks sent.
    Full,
}

impl Verify {
    /// From the variable's text. `probe` concerns devices only.
    pub(crate) fn parse(text: &str) -> Option<Verify> {
        match text {
            "off" | "probe" => Some(Verify::Off),
            "every" => Some(Verify::Every),
            "full" => Some(Verify::Full),
            _ => None,
        }
    }
}

/// The checksum of `bytes`, wherever they lie.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = Sum::default();
    sum.add(bytes);
    sum.end()
}

/// A checksum as it grows, piece by piece: so that a piece is summed while it is in the first-level cache for another reason.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    total: u64,
    bytes: usize,
}

/// As much at a time as stays in the first-level cache beside what is made of it.
pub(crate) const TURN_BYTES: usize = 4096;

impl Sum {
    /// One that differs from that of the same data in another place: a slot that still holds what was sent earlier, its
    /// checksum with it, does not pass for what was sent now.
    pub(crate) fn of_step(step: u64) -> Sum {
        Sum { total: scatter(step), bytes: 0 }
    }

    /// The next piece. All but the last are multiples of eight bytes long.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        debug_assert!(self.bytes.is_multiple_of(WORD), "a piece after the last");
        let first = (self.bytes / WORD) as u64;
        let whole = bytes.len() / BLOCK;
        if whole != 0 {
            // SAFETY: the slice has that many blocks.
            self.total = self.total.wrapping_add(unsafe { sum_blocks(bytes.as_ptr(), whole, first) });
        }
        let words = bytes[whole * BLOCK..].chunks_exact(WORD);
        let tail = words.remainder();
        let mut place = first + (whole * LANES) as u64;
        for word in words {
            let word = u64::from_le_bytes(word.try_into().expect("chunks of eight"));
            self.total = self.total.wrapping_add(mix(word, key(place)));
            place += 1;
        }
        if !tail.is_empty() {
            let mut padded = [0; WORD];
            padded[..tail.len()].copy_from_slice(tail);
            self.total = self.total.wrapping_add(mix(u64::from_le_bytes(padded), key(place)));
        }
        self.bytes += bytes.len();
    }

    /// The checksum of all pieces.
    pub(crate) fn end(self) -> u64 {
        self.total.wrapping_add(scatter(!(self.bytes as u64)))
    }
}

const WORD: usize = 8;
const LINE: usize = 64;
/// Words that are summed side by side: as many as fill the registers of the widest processor a few times.
const LANES: usize = 32;
const BLOCK: usize = WORD * LANES;
/// How far ahead of its use a line is asked for.
const AHEAD: usize = 1024;
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// What belongs to a place: different for all of them, since the stride is odd.
#[inline(always)]
fn key(place: u64) -> u64 {
    place.wrapping_add(1).wrapping_mul(STRIDE)
}

/// x + lower half of x * upper half of x, for the word and its place in x. That is (2^32 + lower) * (upper + 1) - 2^32, and a
/// change of one half alone changes it by the other factor times less than 2^32 either way: never by a multiple of 2^64.
#[inline(always)]
fn mix(word: u64, key: u64) -> u64 {
    let x = word ^ key;
    x.wrapping_add((x & 0xffff_ffff) * (x >> 32))
}

/// One-to-one, and far from the identity.
fn scatter(value: u64) -> u64 {
    let value = (value ^ value >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (value ^ value >> 32).wrapping_mul(STRIDE)
}

instances! {
    /// The sum over whole blocks, of which the first word is number `first`.
    ///
    /// # Safety
    /// `bytes` is readable for so many blocks.
    unsafe fn sum_blocks(bytes: *const u8, blocks: usize, first: u64) -> u64 = sum_blocks_in_lanes;
}

/// In lanes that do not depend on each other, which the compiler makes wide code of; since addition has no order, the result
/// is that of one lane.
#[inline(always)]
unsafe fn sum_blocks_in_lanes(bytes: *const u8, blocks: usize, first: u64) -> u64 {
    let mut keys: [u64; LANES] = std::array::from_fn(|lane| key(first + lane as u64));
    let mut sums = [0u64; LANES];
    for block in 0..blocks {
        for line in (0..BLOCK).step_by(LINE) {
            fetch(bytes.wrapping_add(block * BLOCK + AHEAD + line));
        }
        // SAFETY: the caller's.
        let words = unsafe { bytes.add(block * BLOCK).cast::<[u64; LANES]>().read_unaligned() };
        for lane in 0..LANES {
            sums[lane] = sums[lane].wrapping_add(mix(u64::from_le(words[lane]), keys[lane]));
            keys[lane] = keys[lane].wrapping_add(STRIDE.wrapping_mul(LANES as u64));
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

/// How bytes are moved: source, target, how many.
pub(crate) type Copy = unsafe fn(*const u8, *mut u8, usize);

/// Copies and sums what it copies, a turn at a time. Pieces of the copy end at lines of the target, so that lines written
/// past the caches are whole.
///
/// # Safety
/// As for `copy_nonoverlapping`.
pub(crate) unsafe fn copy_and_sum(copy: Copy, source: *const u8, target: *mut u8, bytes: usize, sum: &mut Sum) {
    let (mut summed, mut copied) = (0, 0);
    while summed < bytes {
        let turn = TURN_BYTES.min(bytes - summed);
        // SAFETY: inside the caller's ranges.
        sum.add(unsafe { std::slice::from_raw_parts(source.add(summed), turn) });
        summed += turn;
        let end = line_end(target, summed, bytes);
        // SAFETY: as above.
        unsafe { copy(source.add(copied), target.add(copied), end - copied) };
        copied = end;
    }
}

/// How many bytes of a turn's `summed` end at a line of the target; all where nothing comes after them.
pub(crate) fn line_end(target: *const u8, summed: usize, bytes: usize) -> usize {
    match summed == bytes {
        true => bytes,
        false => summed - target.wrapping_add(summed).addr() % LINE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_flipped_bit_changes_the_checksum() {
        for length in [1, 7, 8, 9, 64, 100] {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 37 + 11) as u8).collect();
            let right = checksum(&bytes);
            for bit in 0..8 * length {
                let mut wrong = bytes.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(checksum(&wrong), right, "bit {bit} of {length} bytes");
            }
        }
    }

    #[test]
    fn swapped_words_and_cut_zeros_change_the_checksum() {
        let a = [[1u8; 8], [2u8; 8]].concat();
        let b = [[2u8; 8], [1u8; 8]].concat();
        assert_ne!(checksum(&a), checksum(&b));
        assert_ne!(checksum(&[0; 8]), checksum(&[0; 9]));
        assert_ne!(checksum(&[]), checksum(&[0]));
    }

    /// Word by word, as the head of this file says it.
    fn reference(bytes: &[u8]) -> u64 {
        let words = bytes.chunks(8).zip(1u64..).map(|(word, place)| {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            let x = u64::from_le_bytes(padded) ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((1u128 << 32) + u128::from(x as u32)) * (u128::from(x >> 32) + 1) - (1 << 32)
        });
        words.fold(0u64, |sum, word| sum.wrapping_add(word as u64)).wrapping_add(scatter(!(bytes.len() as u64)))
    }

    /// What each width makes of the blocks; all that this processor has.
    fn by_width(bytes: &[u8]) -> Vec<u64> {
        let (address, blocks) = (bytes.as_ptr(), bytes.len() / BLOCK);
        // SAFETY: the slice has that many blocks.
        let mut sums = vec![unsafe { sum_blocks_in_lanes(address, blocks, 0) }];
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2")]
            unsafe fn avx2(bytes: *const u8, blocks: usize) -> u64 {
                // SAFETY: the caller's.
                unsafe { sum_blocks_in_lanes(bytes, blocks, 0) }
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: as above, and the processor can.
                sums.push(unsafe { avx2(address, blocks) });
            }
        }
        // SAFETY: as above.
        sums.push(unsafe { sum_blocks(address, blocks, 0) });
        sums
    }

    proptest! {
        #[test]
        fn every_width_and_every_cut_gives_the_value_of_the_reference(
            bytes in prop::collection::vec(any::<u8>(), 0..3000), skip in 0usize..9, cut in 0usize..300,
        ) {
            let bytes = &bytes[skip.min(bytes.len())..];
            prop_assert_eq!(checksum(bytes), reference(bytes));
            let cut = (8 * cut).min(bytes.len() / 8 * 8);
            let mut sum = Sum::default();
            sum.add(&bytes[..cut]);
            sum.add(&bytes[cut..]);
            prop_assert_eq!(sum.end(), reference(bytes));
            let sums = by_width(bytes);
            prop_assert!(sums.iter().all(|sum| *sum == sums[0]), "{:x?}", sums);
        }

        #[test]
        fn a_change_within_four_bytes_is_always_seen(
            bytes in prop::collection::vec(any::<u8>(), 4..600), at in any::<prop::sample::Index>(), change in 1u32..,
        ) {
            let mut wrong = bytes.clone();
            let at = at.index(bytes.len() / 4) * 4;
            wrong[at..at + 4].iter_mut().zip(change.to_le_bytes()).for_each(|(byte, change)| *byte ^= change);
            prop_assert_ne!(checksum(&wrong), checksum(&bytes));
        }

        #[test]
        fn swapped_and_zeroed_blocks_and_a_stuck_line_are_seen(
            seed in any::<u64>(), block in prop::sample::select(vec![8usize, 64, 256, 4096]), bit in 0u32..64,
        ) {
            let mut state = seed | 1;
            let bytes: Vec<u8> = (0..4 * block).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            }).collect();
            let right = checksum(&bytes);
            let mut swapped = bytes.clone();
            swapped.rotate_left(block);
            prop_assert_ne!(checksum(&swapped), right);
            let mut zeroed = bytes.clone();
            zeroed[block..2 * block].fill(0);
            prop_assert_ne!(checksum(&zeroed), right);
            let mut stuck = bytes.clone();
            stuck.iter_mut().skip(bit as usize / 8).step_by(8).for_each(|byte| *byte ^= 1 << (bit % 8));
            prop_assert_ne!(checksum(&stuck), right);
        }
    }

    #[test]
    fn what_is_copied_is_summed_whatever_its_place() {
        let source: Vec<u8> = (0..20_000).map(|i| (i * 31 % 251) as u8).collect();
        for copy in [crate::simd::copy_to_shared as Copy, crate::simd::copy_streaming] {
            for (bytes, from, to) in [(0, 0, 0), (1, 0, 3), (4095, 1, 0), (4096, 0, 0), (4097, 0, 63), (15_000, 7, 16)]
            {
                let (mut target, mut sum) = (vec![0xa5u8; 20_000], Sum::default());
                // SAFETY: both ranges lie inside their vectors.
                unsafe { copy_and_sum(copy, source.as_ptr().add(from), target.as_mut_ptr().add(to), bytes, &mut sum) };
                crate::simd::drain();
                assert_eq!(target[to..to + bytes], source[from..from + bytes]);
                assert!(target[..to].iter().chain(&target[to + bytes..]).all(|byte| *byte == 0xa5));
                assert_eq!(sum.end(), reference(&source[from..from + bytes]));
            }
        }
    }

    #[test]
    fn the_same_data_of_another_step_has_another_checksum() {
        let sums: Vec<u64> = (0..1000)
            .map(|step| {
                let mut sum = Sum::of_step(step);
                sum.add(&[0; 64]);
                sum.end()
            })
            .collect();
        assert!((1..sums.len()).all(|at| !sums[..at].contains(&sums[at])));
    }
}
