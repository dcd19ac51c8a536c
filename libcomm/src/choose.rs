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
}

/// Up to here, with three ranks and more, a second step costs more than reading everyone's data.
const ONE_SHOT_BYTES: usize = 8192;

/// The same on all ranks, since it depends on nothing but what all agree on.
///
/// A forced ring does not average integers: their partial sums would not fit the element. Neither does a hierarchy, where
/// an average is over the ranks of one level. Two-shot does it then.
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
        Some(forced) => forced,
        None if ranks.count() <= 2 || bytes <= ONE_SHOT_BYTES => Algorithm::OneShot,
        None if ranks.has_domains() && op != Op::Avg => Algorithm::Hierarchical { group: 0 },
        None => Algorithm::TwoShot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Some3(bool);

    impl Ranks for Some3 {
        fn count(&self) -> u32 {
            3
        }
        fn has_domains(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn size_decides_unless_an_algorithm_is_forced() {
        let sum = |forced, bytes| choose(forced, &Some3(false), bytes, DataType::F32, Op::Sum);
        assert_eq!(sum(None, 4), Algorithm::OneShot);
        assert_eq!(sum(None, 1 << 20), Algorithm::TwoShot);
        assert_eq!(sum(Some(Algorithm::Ring), 4), Algorithm::Ring);
        assert_eq!(choose(Some(Algorithm::Ring), &Some3(false), 4, DataType::I8, Op::Avg), Algorithm::TwoShot);
        assert_eq!(choose(Some(Algorithm::Ring), &Some3(false), 4, DataType::BF16, Op::Avg), Algorithm::Ring);
    }

    #[test]
    fn ranks_in_groups_go_by_groups_but_for_averages() {
        let with = |op, bytes| choose(None, &Some3(true), bytes, DataType::F32, op);
        assert_eq!(with(Op::Sum, 4), Algorithm::OneShot);
        assert_eq!(with(Op::Sum, 1 << 20), Algorithm::Hierarchical { group: 0 });
        assert_eq!(with(Op::Avg, 1 << 20), Algorithm::TwoShot);
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
