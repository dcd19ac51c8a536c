//! Which part of a batch a rank takes.

use std::ops::Range;

/// The part of `len` items that `rank` of `size` takes. The parts follow each other without a gap, and their
/// lengths differ by at most one; with more ranks than items some are empty.
pub fn share(len: usize, rank: usize, size: usize) -> Range<usize> {
    len * rank / size..len * (rank + 1) / size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_each_item_once_and_are_even() {
        for size in 1..=9 {
            for len in 0..=40 {
                let shares: Vec<_> = (0..size).map(|rank| share(len, rank, size)).collect();
                assert!(shares.iter().cloned().flatten().eq(0..len), "{len} items, {size} ranks");
                assert!(shares.iter().all(|part| part.len() == len / size || part.len() == len.div_ceil(size)));
            }
        }
    }
}
