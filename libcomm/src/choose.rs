//! Which algorithm an AllReduce takes: by size and number of ranks, unless one is forced.

use crate::types::{DataType, Op};

/// Who sends what to whom in an AllReduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Everyone reads everything.
    OneShot,
    /// Each rank reduces its share and hands it to all.
    TwoShot,
    /// Partial results go around.
    Ring,
    /// One running result, to which one rank after the other adds its data.
    Chain,
    /// Inside groups of ranks that are near each other, then across them.
    Hierarchical {
        /// Ranks a group, one after the other; 0: as the machine has them.
        group: u32,
    },
}

impl Algorithm {
    /// From its name, as [`crate::env::ALGO`] has it.
    pub fn parse(name: &str) -> Option<Algorithm> {
        match name {
            "one_shot" => Some(Algorithm::OneShot),
            "two_shot" => Some(Algorithm::TwoShot),
            "ring" => Some(Algorithm::Ring),
            "chain" => Some(Algorithm::Chain),
            "hierarchical" => Some(Algorithm::Hierarchical { group: 0 }),
            _ => {
                let group = name.strip_prefix("hierarchical:")?.parse().ok().filter(|group| *group >= 2)?;
                Some(Algorithm::Hierarchical { group })
            }
        }
    }
}

/// How data travels on the host, where that is forced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// In the post, beside the stamp.
    Ll,
    /// Through slots.
    Simple,
}

impl Protocol {
    /// From its name, as [`crate::env::PROTO`] has it.
    pub fn parse(name: &str) -> Option<Protocol> {
        match name {
            "ll" => Some(Protocol::Ll),
            "simple" => Some(Protocol::Simple),
            _ => None,
        }
    }
}

/// What the choice depends on beside the call: the same on all ranks.
pub(crate) trait Ranks {
    fn count(&self) -> u32;
    /// Whether they fall into groups of ranks that are near each other.
    fn has_domains(&self) -> bool;
    /// Whether they are more than the CPUs that they may use, and those are few.
    fn are_crowded(&self) -> bool;
}

/// Up to here, with three ranks and more, a second step costs more than reading everyone's data.
const ONE_SHOT_BYTES: usize = 8192;

/// Up to here, a chain's turns take longer than those of two-shot.
const SHORT_CHAIN_BYTES: usize = 64 << 10;

/// The same on all ranks, since it depends on nothing but what all agree on.
///
/// A chain does not reduce types that are reduced in wider ones, nor what a rank alone has. A forced ring does not average integers: their partial sums
/// would not fit the element. Neither does a hierarchy, where an average is over the ranks of one level. Two-shot does it
/// then.
pub(crate) fn choose(
    forced: Option<Algorithm>,
    ranks: &impl Ranks,
    bytes: usize,
    data_type: DataType,
    op: Op,
) -> Algorithm {
    let is_float = !data_type.is_integer();
    match forced {
        Some(Algorithm::Ring) if op == Op::Avg && !is_float => Algorithm::TwoShot,
        Some(Algorithm::Hierarchical { .. }) if op == Op::Avg => Algorithm::TwoShot,
        Some(Algorithm::Chain) if ranks.count() < 2 || !has_partial_results(data_type, op) => Algorithm::TwoShot,
        Some(forced) => forced,
        None if ranks.count() <= 2 || bytes <= ONE_SHOT_BYTES => Algorithm::OneShot,
        None if ranks.are_crowded() && bytes > SHORT_CHAIN_BYTES && has_partial_results(data_type, op) => {
            Algorithm::Chain
        }
        None if ranks.has_domains() && op != Op::Avg => Algorithm::Hierarchical { group: 0 },
        None => Algorithm::TwoShot,
    }
}

/// Whether the reduction of some ranks is an element, with nothing lost.
fn has_partial_results(data_type: DataType, op: Op) -> bool {
    match data_type {
        DataType::F32 | DataType::F64 => true,
        _ => data_type.is_integer() && op != Op::Avg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Some3 {
        domains: bool,
        crowded: bool,
    }

    impl Ranks for Some3 {
        fn count(&self) -> u32 {
            3
        }
        fn has_domains(&self) -> bool {
            self.domains
        }
        fn are_crowded(&self) -> bool {
            self.crowded
        }
    }

    #[test]
    fn size_decides_unless_an_algorithm_is_forced() {
        let sum = |forced, bytes| choose(forced, &Some3::default(), bytes, DataType::F32, Op::Sum);
        assert_eq!(sum(None, 4), Algorithm::OneShot);
        assert_eq!(sum(None, 1 << 20), Algorithm::TwoShot);
        assert_eq!(sum(Some(Algorithm::Ring), 4), Algorithm::Ring);
        assert_eq!(choose(Some(Algorithm::Ring), &Some3::default(), 4, DataType::I8, Op::Avg), Algorithm::TwoShot);
        assert_eq!(choose(Some(Algorithm::Ring), &Some3::default(), 4, DataType::BF16, Op::Avg), Algorithm::Ring);
    }

    #[test]
    fn ranks_in_groups_go_by_groups_but_for_averages() {
        let ranks = Some3 { domains: true, crowded: false };
        let with = |op, bytes| choose(None, &ranks, bytes, DataType::F32, op);
        assert_eq!(with(Op::Sum, 4), Algorithm::OneShot);
        assert_eq!(with(Op::Sum, 1 << 20), Algorithm::Hierarchical { group: 0 });
        assert_eq!(with(Op::Avg, 1 << 20), Algorithm::TwoShot);
    }

    #[test]
    fn more_ranks_than_cpus_go_by_a_chain_where_its_partial_results_are_elements() {
        let ranks = Some3 { domains: false, crowded: true };
        let with = |data_type, op, bytes| choose(None, &ranks, bytes, data_type, op);
        assert_eq!(with(DataType::F32, Op::Sum, 4), Algorithm::OneShot);
        for (data_type, op) in [(DataType::F32, Op::Avg), (DataType::F64, Op::Min), (DataType::I16, Op::Sum)] {
            assert_eq!(with(data_type, op, 1 << 20), Algorithm::Chain);
        }
        for (data_type, op) in [(DataType::BF16, Op::Sum), (DataType::I32, Op::Avg), (DataType::E4M3, Op::Max)] {
            assert_eq!(with(data_type, op, 1 << 20), Algorithm::TwoShot);
            let forced = choose(Some(Algorithm::Chain), &Some3::default(), 1 << 20, data_type, op);
            assert_eq!(forced, Algorithm::TwoShot);
        }
    }

    #[test]
    fn names_are_read_and_others_refused() {
        assert_eq!(Algorithm::parse("hierarchical"), Some(Algorithm::Hierarchical { group: 0 }));
        assert_eq!(Algorithm::parse("hierarchical:4"), Some(Algorithm::Hierarchical { group: 4 }));
        for wrong in ["hierarchical:", "hierarchical:1", "tree", ""] {
            assert_eq!(Algorithm::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Protocol::parse("simple"), Some(Protocol::Simple));
        assert_eq!(Protocol::parse("ring"), None);
    }
}
