//! Kernels that prove and measure the way between two GPUs, before anyone relies on it: `device/probe.cu` in Rust.

use crate::args::Address;

/// Blocks and threads of a launch that shall fill a link.
pub const BLOCKS: u32 = 132;
/// Threads of each.
pub const THREADS: u32 = 512;

/// The arguments of each of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProbeArgs {
    /// Written: the pattern, or the peer's flag.
    pub to: Address,
    /// Read: what came, or the own flag.
    pub from: Address,
    /// Counts words that are not as they were sent; 8 bytes. After a ping, the nanoseconds that it took.
    pub result: Address,
    /// Length of the pattern in words of 8 bytes, an even number; of a ping, how often it goes there and back.
    pub count: u64,
    /// Tells one pattern from another.
    pub seed: u64,
    /// Longest wait of a ping, in nanoseconds.
    pub limit_ns: u64,
    /// 1 for the one that begins a ping.
    pub first: u64,
}

/// Word `i` of a pattern: what `pattern` in `device/probe.cu` writes.
pub fn pattern(seed: u64, i: u64) -> u64 {
    let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
    let x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 32
}

const _: () = assert!(size_of::<ProbeArgs>() == 56);

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn patterns_differ_from_word_to_word_and_from_seed_to_seed() {
        let words: std::collections::BTreeSet<u64> =
            (0..4).flat_map(|seed| (0..1000).map(move |i| pattern(seed, i))).collect();
        assert_eq!(words.len(), 4000);
    }
}
