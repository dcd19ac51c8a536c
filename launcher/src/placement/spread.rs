//! Parts of the machine in turn: NUMA nodes or sockets.

use super::cpuset::CpuSet;
use crate::job::RankBy;

/// The part of each rank: one to each in turn, or one part filled after the other.
pub fn deal(parts: &[CpuSet], ranks: usize, order: RankBy) -> Vec<CpuSet> {
    let part = |rank: usize| match order {
        RankBy::Turn | RankBy::Ring => rank % parts.len(),
        RankBy::Fill => rank * parts.len() / ranks,
    };
    if parts.is_empty() {
        vec![CpuSet::default(); ranks]
    } else {
        (0..ranks).map(|rank| parts[part(rank)].clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_take_turns_or_are_filled() {
        let parts: Vec<CpuSet> = ["0-1", "2-3"].map(|part| part.parse().unwrap()).to_vec();
        let shown = |ranks, order| deal(&parts, ranks, order).iter().map(CpuSet::to_string).collect::<Vec<_>>();
        assert_eq!(shown(3, RankBy::Turn), ["0-1", "2-3", "0-1"]);
        assert_eq!(shown(4, RankBy::Fill), ["0-1", "0-1", "2-3", "2-3"]);
        assert_eq!(shown(1, RankBy::Fill), ["0-1"]);
    }
}
