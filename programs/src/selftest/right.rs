//! Whether a result is what the ranks' data gives. Pure.

use comm::{DataType, Op, reference};

use super::rank::Sample;

/// The first element of `result` that is wrong. `rounds`: a ring of three ranks and more made it, which adds in another
/// order than the oracle and rounds at each hop.
pub(super) fn first_wrong<T: Sample>(sends: &[Vec<T>], op: Op, result: &[T], rounds: bool) -> Option<usize> {
    let right = reference::all_reduce(sends, op);
    // Sums of samples are whole sixteenths, which these types hold in any order.
    let is_whole = op == Op::Sum && matches!(T::TYPE, DataType::F32 | DataType::F64);
    let exact = !rounds || is_whole || matches!(op, Op::Min | Op::Max);
    let magnitude = |i: usize| {
        let column: Vec<f64> = sends.iter().map(|send| send[i].real().abs()).collect();
        reference::reduce_column(&column, op)
    };
    (0..right.len()).find(|&i| match result.get(i) {
        Some(found) if found.same(right[i]) => false,
        Some(found) if !exact => !is_near(*found, right[i], magnitude(i), sends.len()),
        _ => true,
    })
}

/// Whether the two are no further apart than so many roundings of the reduction of the absolute values, as
/// `PRUN_VERIFY=full` has it.
fn is_near<T: Sample>(found: T, right: T, magnitude: f64, ranks: usize) -> bool {
    let (found, right) = (found.real(), right.real());
    if found.is_finite() && right.is_finite() {
        return (found - right).abs() <= magnitude * 2.0 * ranks as f64 * T::EPSILON;
    }
    // Of these samples only products of f16 can overflow, and the order decides at which hop.
    T::TYPE == DataType::F16
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::super::rank::data;
    use super::*;

    const OPS: [Op; 5] = [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg];
    const COUNT: usize = 2000;

    fn sends<T: Sample>(ranks: u32) -> Vec<Vec<T>> {
        (0..ranks).map(|rank| data(rank, COUNT, 5)).collect()
    }

    /// As a ring does it: from another rank on, and rounded at each hop.
    fn by_ring<T: Sample>(sends: &[Vec<T>], op: Op) -> Vec<T> {
        let ranks = sends.len();
        let hop = if op == Op::Avg { Op::Sum } else { op };
        let element = |i: usize| {
            let sum = (1..=ranks).map(|k| sends[k % ranks][i]).reduce(|a, b| reference::reduce_column(&[a, b], hop));
            let sum = sum.expect("ranks");
            if op == Op::Avg { T::mean(sum.wide(), ranks as u32) } else { sum }
        };
        (0..COUNT).map(element).collect()
    }

    fn a_ring_may_round<T: Sample>() {
        for ranks in 3..=8 {
            let sends = sends::<T>(ranks);
            for op in OPS {
                assert_eq!(
                    first_wrong(&sends, op, &by_ring(&sends, op), true),
                    None,
                    "{} {op}, {ranks} ranks",
                    T::TYPE
                );
            }
        }
    }

    #[test]
    fn the_roundings_of_a_ring_are_right() {
        a_ring_may_round::<f64>();
        a_ring_may_round::<f32>();
        a_ring_may_round::<f16>();
        a_ring_may_round::<bf16>();
        let sends = sends::<bf16>(3);
        let rounded = by_ring(&sends, Op::Prod);
        assert!(first_wrong(&sends, Op::Prod, &rounded, false).is_some(), "where nothing rounds, every bit counts");
    }

    fn damage_is_found<T: Sample>() {
        let sends = sends::<T>(3);
        for op in [Op::Sum, Op::Prod, Op::Avg] {
            let wrong = |result: &[T]| first_wrong(&sends, op, result, true);
            let lost = by_ring(&sends[..2], op);
            assert!(wrong(&lost).is_some(), "{} {op}: a rank's part is lost", T::TYPE);
            let right = by_ring(&sends, op);
            let tripled: Vec<T> = right.iter().map(|x| reference::reduce_column(&[*x; 3], Op::Sum)).collect();
            assert!(wrong(&tripled).is_some(), "{} {op}: a factor of n", T::TYPE);
            assert_eq!(wrong(&right[..COUNT - 1]), Some(COUNT - 1), "{} {op}: an element is missing", T::TYPE);
        }
    }

    #[test]
    fn a_lost_addend_and_a_factor_are_found() {
        damage_is_found::<f64>();
        damage_is_found::<f32>();
        damage_is_found::<f16>();
        damage_is_found::<bf16>();
    }

    #[test]
    fn one_wrong_bit_is_found_where_it_is_more_than_a_rounding() {
        let sends_f32 = sends::<f32>(4);
        let mut result = by_ring(&sends_f32, Op::Sum);
        result[1234] = f32::from_bits(result[1234].to_bits() ^ 1);
        assert_eq!(first_wrong(&sends_f32, Op::Sum, &result, true), Some(1234), "sums are exact");
        let sends_bf16 = sends::<bf16>(4);
        let mut result = by_ring(&sends_bf16, Op::Avg);
        result[77] = bf16::from_bits(result[77].to_bits() ^ 1 << 9);
        assert_eq!(first_wrong(&sends_bf16, Op::Avg, &result, true), Some(77));
        let sends_i32 = sends::<i32>(4);
        let mut result = by_ring(&sends_i32, Op::Prod);
        result[1999] ^= 1;
        assert_eq!(first_wrong(&sends_i32, Op::Prod, &result, false), Some(1999));
    }

    #[test]
    fn what_is_not_finite_is_right_only_where_products_overflow() {
        let sends = [vec![f16::from_f32(300.0)], vec![f16::from_f32(300.0)], vec![f16::from_f32(0.25)]];
        assert_eq!(first_wrong(&sends, Op::Prod, &[f16::INFINITY], true), None);
        let sends = [vec![bf16::ONE], vec![bf16::ONE], vec![bf16::ONE]];
        assert_eq!(first_wrong(&sends, Op::Avg, &[bf16::NAN], true), Some(0));
    }
}
