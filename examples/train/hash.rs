//! FNV-1a, 64 bits: tells whether two ranks hold the same weights and whether a checkpoint is whole.
//! It guards against damage, not against malice.

/// The hash of `bytes`. Each step is a bijection of the state, so that a single altered byte is always seen.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    #[test]
    fn gives_the_published_hashes() {
        assert_eq!(super::fnv1a([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(super::fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
    }
}
