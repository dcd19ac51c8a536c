//! The random numbers behind the split, the shuffles and the first weights: SplitMix64, a few lines that give
//! the same numbers on every machine and with every version of every library.

/// SplitMix64: a counter with a step of the golden ratio, stirred by [`mix`].
pub struct Rng {
    state: u64,
}

/// What a sequence is for. Each purpose has its own sequence, so that a resumed run can make the shuffle of
/// epoch 7 without having made the six before it.
#[derive(Clone, Copy)]
pub enum Purpose {
    /// Which images are held out.
    Split,
    /// The first weights.
    Weights,
    /// The order of the images in this epoch.
    Epoch(u32),
}

impl Rng {
    /// The sequence of `seed` for one purpose.
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        let stream = match purpose {
            Purpose::Split => 0,
            Purpose::Weights => 1,
            Purpose::Epoch(epoch) => 2 + u64::from(epoch),
        };
        Self { state: mix(seed) ^ mix(!stream) }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number in `-limit..limit`, one of 2²⁴ equally likely ones.
    pub fn within(&mut self, limit: f32) -> f32 {
        let unit = (self.bits() >> 40) as f32 / (1 << 24) as f32;
        (2.0 * unit - 1.0) * limit
    }

    /// A number in `0..limit`; its bias is below limit / 2⁶⁴.
    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.bits()) * limit as u128) >> 64) as usize
    }

    /// Puts `items` in random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// SplitMix64's finisher: a bijection in which every input bit moves about half of the output bits.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_numbers() {
        let mut rng = Rng { state: 1_234_567 };
        assert_eq!(rng.bits(), 6_457_827_717_110_365_317);
        assert_eq!(rng.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_shuffle_keeps_every_item_and_depends_on_the_purpose() {
        let shuffled = |purpose| {
            let mut items: Vec<usize> = (0..100).collect();
            Rng::new(1, purpose).shuffle(&mut items);
            items
        };
        let mut sorted = shuffled(Purpose::Epoch(0));
        assert_ne!(sorted, shuffled(Purpose::Epoch(1)));
        assert_eq!(sorted, shuffled(Purpose::Epoch(0)));
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100));
    }
}
