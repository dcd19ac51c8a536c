//! [`Rng`]: random numbers that are the same in every run with the same seed.

/// SplitMix64: a counter and a mixing function. Good enough for shuffles and resampling, not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number below `count`, which is not 0.
    pub fn below(&mut self, count: usize) -> usize {
        // The high half of a product is uniform but for 2^-64 · count, which no experiment can see.
        ((u128::from(self.bits()) * count as u128) >> 64) as usize
    }

    /// A number from 0 up to but not including 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts `items` into a random order, every order being as likely as any other.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
pub(crate) mod noise {
    //! Draws from distributions that tests know the truth about.

    use super::Rng;
    use crate::real::{cos, ln};

    /// Mean 0, deviation 1.
    pub fn normal(rng: &mut Rng) -> f64 {
        let radius = (-2.0 * ln(1.0 - rng.unit())).sqrt();
        radius * cos(std::f64::consts::TAU * rng.unit())
    }

    /// Student's t with 2 degrees of freedom: median 0, so heavy a tail that it has no variance.
    pub fn heavy_tail(rng: &mut Rng) -> f64 {
        normal(rng) / (-ln(1.0 - rng.unit())).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_order_and_another_seed_another() {
        let order = |seed| {
            let mut items: Vec<usize> = (0..20).collect();
            Rng::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = order(1);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_are_uniform() {
        let mut rng = Rng::new(7);
        let mut counts = [0usize; 10];
        for _ in 0..100_000 {
            counts[rng.below(10)] += 1;
        }
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
        let mean = (0..100_000).map(|_| rng.unit()).sum::<f64>() / 100_000.0;
        assert!((0.495..0.505).contains(&mean), "{mean}");
    }
}
