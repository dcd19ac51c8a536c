//! Checksums of what travels: whether data arrived as it left.
//!
//! A checksum is the sum, over all 8-byte words, of a mix of the word with its place. The mix is one-to-one for a
//! given place, so a change within one word always changes the sum, and since addition has no order, the sum can
//! be made in any. Changes in several words cancel out once in 2^64.

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
    let words = bytes.chunks_exact(8);
    let tail = words.remainder();
    let mut padded = [0; 8];
    padded[..tail.len()].copy_from_slice(tail);
    let whole = words.len() as u64;
    let sum = words
        .zip(0u64..)
        .map(|(word, place)| mix(u64::from_le_bytes(word.try_into().expect("chunks of eight")), place))
        .fold(0, u64::wrapping_add);
    sum.wrapping_add(mix(u64::from_le_bytes(padded), whole)).wrapping_add(mix(bytes.len() as u64, u64::MAX))
}

/// One-to-one in `word`: adding, multiplying by an odd number and xor with a shifted self can all be undone.
fn mix(word: u64, place: u64) -> u64 {
    let word = word.wrapping_add(place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let word = (word ^ word >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ word >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
