//! What ranks tell each other first, since their arenas, chunks and ring must be alike.

use kernels::args::MAX_RANKS;

/// What one rank was told, or found out about its device; and what all then go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Of its device.
    pub(super) memory_bytes: u64,
    /// Of its device: grids must be alike.
    pub(super) multiprocessors: u32,
    /// Health of the worst link.
    pub(super) link_health: u32,
    /// The ranks in the order of the ring.
    pub(super) ring: [u8; MAX_RANKS],
}

impl Told {
    pub(super) const BYTES: usize = 16 + MAX_RANKS;

    /// Without a ring, or with more ranks than kernels serve, which never go around one: by their numbers.
    pub(super) fn new(memory_bytes: u64, multiprocessors: u32, link_health: u32, ring: Option<&[u32]>) -> Told {
        let numbers = std::array::from_fn(|k| k as u8);
        let ring = ring
            .filter(|ring| ring.len() <= MAX_RANKS)
            .map_or(numbers, |ring| std::array::from_fn(|k| ring.get(k).map_or(k as u8, |rank| *rank as u8)));
        Told { memory_bytes, multiprocessors, link_health, ring }
    }

    pub(super) fn to_bytes(self) -> [u8; Told::BYTES] {
        let mut bytes = [0; Told::BYTES];
        bytes[..8].copy_from_slice(&self.memory_bytes.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.link_health.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.multiprocessors.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.ring);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Told {
        Told {
            memory_bytes: u64::from_ne_bytes(std::array::from_fn(|k| bytes[k])),
            link_health: u32::from_ne_bytes(std::array::from_fn(|k| bytes[8 + k])),
            multiprocessors: u32::from_ne_bytes(std::array::from_fn(|k| bytes[12 + k])),
            ring: std::array::from_fn(|k| bytes[16 + k]),
        }
    }

    /// The smallest memory, the fewest multiprocessors and the lowest health decide, and the ring of rank 0, whoever asks.
    /// `others` are the peers' words by rank, `None` at one's own place.
    pub(super) fn agreed(self, others: &[Option<Told>]) -> Told {
        let first = others.first().copied().flatten().unwrap_or(self);
        others.iter().flatten().fold(Told { ring: first.ring, ..self }, |agreed, other| Told {
            memory_bytes: agreed.memory_bytes.min(other.memory_bytes),
            multiprocessors: agreed.multiprocessors.min(other.multiprocessors),
            link_health: agreed.link_health.min(other.link_health),
            ..agreed
        })
    }

    /// Of the ring: a rank's position, the rank after it and the one before.
    pub(super) fn around(&self, rank: u32, ranks: u32) -> [u8; 3] {
        let ranks = (ranks as usize).clamp(1, MAX_RANKS);
        let at = self.ring[..ranks].iter().position(|other| u32::from(*other) == rank).unwrap_or(0);
        [at as u8, self.ring[(at + 1) % ranks], self.ring[(at + ranks - 1) % ranks]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_comes_to_the_same() {
        let told = [
            Told::new(80, 132, 100, Some(&[0, 2, 1])),
            Told::new(40, 82, 59, None),
            Told::new(60, 28, 70, Some(&[2, 1, 0])),
        ];
        assert_eq!(Told::from_bytes(&told[0].to_bytes()), told[0]);
        for me in 0..3 {
            let others: Vec<_> = (0..3).map(|rank| (rank != me).then_some(told[rank])).collect();
            assert_eq!(told[me].agreed(&others), Told::new(40, 28, 59, Some(&[0, 2, 1])), "rank {me}");
        }
    }

    #[test]
    fn neighbours_are_those_of_the_order() {
        let told = Told::new(0, 1, 100, Some(&[0, 3, 1, 2]));
        let around = [0, 3, 1, 2].map(|rank| told.around(rank, 4));
        assert_eq!(around, [[0, 3, 2], [1, 1, 0], [2, 2, 3], [3, 0, 1]]);
        assert_eq!(Told::new(0, 1, 100, None).around(0, 1), [0, 0, 0]);
        assert_eq!(Told::new(0, 1, 100, None).around(7, 8), [7, 0, 6]);
    }
}
