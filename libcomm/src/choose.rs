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
}

impl Algorithm {
    /// From its name, as [`crate::env::ALGO`] has it.
    pub fn parse(name: &str) -> Option<Algorithm> {
        match name {
            "one_shot" => Some(Algorithm::OneShot),
            "two_shot" => Some(Algorithm::TwoShot),
            "ring" => Some(Algorithm::Ring),
            _ => None,
        }
    }
}

/// Up to here, with three ranks and more, a second step costs more than reading everyone's data.
const ONE_SHOT_BYTES: usize = 8192;

/// The same on all ranks, since it depends on nothing but what all agree on.
///
/// A forced ring does not average integers: their partial sums would not fit the element. Two-shot does it then.
pub(crate) fn choose(forced: Option<Algorithm>, ranks: u32, bytes: usize, data_type: DataType, op: Op) -> Algorithm {
    let is_float = !data_type.is_integer();
    match forced {
        Some(Algorithm::Ring) if op == Op::Avg && !is_float => Algorithm::TwoShot,
        Some(forced) => forced,
        None if ranks <= 2 || bytes <= ONE_SHOT_BYTES => Algorithm::OneShot,
        None => Algorithm::TwoShot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_decides_unless_an_algorithm_is_forced() {
        let sum = |forced, bytes| choose(forced, 3, bytes, DataType::F32, Op::Sum);
        assert_eq!(sum(None, 4), Algorithm::OneShot);
        assert_eq!(sum(None, 1 << 20), Algorithm::TwoShot);
        assert_eq!(choose(None, 2, 1 << 20, DataType::F32, Op::Sum), Algorithm::OneShot);
        assert_eq!(sum(Some(Algorithm::Ring), 4), Algorithm::Ring);
        assert_eq!(choose(Some(Algorithm::Ring), 3, 4, DataType::I8, Op::Avg), Algorithm::TwoShot);
        assert_eq!(choose(Some(Algorithm::Ring), 3, 4, DataType::BF16, Op::Avg), Algorithm::Ring);
    }
}
