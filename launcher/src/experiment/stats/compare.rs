//! Two variants' trials as a ratio: how many times as long (or as much) the second takes, between which limits.
//!
//! The ratio is Hodges and Lehmann's: the median over all pairs of a trial of one and a trial of the other. Its
//! interval holds just those ratios that a rank-sum test would not refuse. No distribution is assumed, one odd
//! trial moves neither, and with noise like the normal one hardly more trials are needed than for means.

use serde::Serialize;

use super::describe::Interval;
use crate::real::{exp, ln};

/// How often a comparison of two equal variants may say "different": 3 of 100 times.
pub const LEVEL: f64 = 0.97;
/// Up to this many trials of each the distribution of the rank sum is counted out; above, a normal one is the same.
const COUNTED_UP_TO: usize = 30;

/// What comparing two lists of figures gave.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Comparison {
    /// The interval of the ratio does not hold 1.
    Different {
        /// Second over first.
        ratio: f64,
        /// Where it lies, [`LEVEL`] sure.
        interval: Interval,
    },
    /// It holds 1: there may be a difference, but none outside of the interval.
    NoDifferenceSeen {
        /// Second over first.
        ratio: f64,
        /// Where it lies, [`LEVEL`] sure.
        interval: Interval,
    },
    /// So few trials could not show any difference, however large.
    TooFew,
    /// Ratios make no sense for figures of 0 or below.
    NotPositive,
}

/// Compares figures of two variants.
pub fn compare(first: &[f64], second: &[f64]) -> Comparison {
    if first.iter().chain(second).any(|value| value.is_nan() || *value <= 0.0) {
        return Comparison::NotPositive;
    }
    let Some(outside) = outside(first.len(), second.len()) else { return Comparison::TooFew };
    let logs = |values: &[f64]| values.iter().map(|value| ln(*value)).collect::<Vec<f64>>();
    let (first, second) = (logs(first), logs(second));
    let mut differences: Vec<f64> = second.iter().flat_map(|b| first.iter().map(move |a| b - a)).collect();
    let last = differences.len() - 1;
    let mut ordered = |place: usize| *differences.select_nth_unstable_by(place, f64::total_cmp).1;
    let interval = Interval { low: exp(ordered(outside)), high: exp(ordered(last - outside)) };
    let ratio = exp((ordered(last / 2) + ordered(last.div_ceil(2))) / 2.0);
    match interval.holds(1.0) {
        true => Comparison::NoDifferenceSeen { ratio, interval },
        false => Comparison::Different { ratio, interval },
    }
}

/// How many of the sorted pairwise ratios lie outside of the interval at each end; `None` if not even the whole
/// range is sure enough.
fn outside(first: usize, second: usize) -> Option<usize> {
    let tail = (1.0 - LEVEL) / 2.0;
    if first == 0 || second == 0 {
        return None;
    }
    let below = if first.max(second) <= COUNTED_UP_TO {
        // The most pairs such that the rank-sum statistic falls below their number with probability `tail` at most.
        let probabilities = rank_sum_distribution(first, second);
        let mut sum = 0.0;
        probabilities
            .iter()
            .take_while(|probability| {
                sum += *probability;
                sum <= tail
            })
            .count()
    } else {
        let (n, m) = (first as f64, second as f64);
        let deviation = (n * m * (n + m + 1.0) / 12.0).sqrt();
        (n * m / 2.0 - QUANTILE_AT_TAIL * deviation).floor().max(0.0) as usize
    };
    below.checked_sub(1)
}

/// Where a normal distribution has (1 - [`LEVEL`]) / 2 above it.
const QUANTILE_AT_TAIL: f64 = 2.170_090_378;

/// The probabilities of 0, 1, 2, … pairs in which the second is smaller, if both come from one distribution.
fn rank_sum_distribution(first: usize, second: usize) -> Vec<f64> {
    // p[n][m] by which list the greatest value is in: if in the first, it beats all m of the second.
    let pairs = first * second;
    let mut rows: Vec<Vec<f64>> = vec![vec![0.0; pairs + 1]; second + 1];
    rows.iter_mut().for_each(|row| row[0] = 1.0);
    for n in 1..=first {
        let before = rows.clone();
        rows[0] = before[0].clone();
        for m in 1..=second {
            let (from_first, from_second) = (n as f64 / (n + m) as f64, m as f64 / (n + m) as f64);
            let row: Vec<f64> = (0..=pairs)
                .map(|pair| {
                    let greatest_in_first = if pair >= m { before[m][pair - m] } else { 0.0 };
                    from_first * greatest_in_first + from_second * rows[m - 1][pair]
                })
                .collect();
            rows[m] = row;
        }
    }
    rows.swap_remove(second)
}

#[cfg(test)]
mod tests {
    use super::super::rng::Rng;
    use super::super::rng::noise::{heavy_tail, normal};
    use super::*;

    #[test]
    fn the_rank_sum_is_counted_as_by_hand() {
        assert_eq!(rank_sum_distribution(1, 1), [0.5, 0.5]);
        let two: Vec<f64> = [1.0, 1.0, 2.0, 1.0, 1.0].iter().map(|count| count / 6.0).collect();
        let ours = rank_sum_distribution(2, 2);
        assert!(ours.iter().zip(&two).all(|(a, b)| (a - b).abs() < 1e-15), "{ours:?}");
        let total: f64 = rank_sum_distribution(30, 17).iter().sum();
        assert!((total - 1.0).abs() < 1e-12);
        // 4 and 4: one order of 70 puts all of one list first, which is just below 1.5 %.
        assert_eq!((outside(4, 4), outside(3, 3), outside(3, 100), outside(0, 5)), (Some(0), None, Some(38), None));
    }

    #[test]
    fn counting_and_the_normal_distribution_agree_where_they_meet() {
        let counted = outside(30, 30).unwrap() as f64;
        let deviation = (900.0_f64 * 61.0 / 12.0).sqrt();
        assert!((450.0 - QUANTILE_AT_TAIL * deviation - 1.0 - counted).abs() < 2.0, "{counted}");
    }

    #[test]
    fn fixed_figures_differ_or_they_do_not() {
        let a = [2.0; 6];
        assert!(matches!(compare(&a, &[3.0; 6]), Comparison::Different { ratio, .. } if (ratio - 1.5).abs() < 1e-12));
        assert!(matches!(compare(&a, &a), Comparison::NoDifferenceSeen { ratio: 1.0, .. }));
        assert_eq!(compare(&a, &[3.0; 2]), Comparison::TooFew);
        assert_eq!(compare(&a, &[0.0; 6]), Comparison::NotPositive);
        assert_eq!(compare(&[], &a), Comparison::TooFew);
    }

    #[test]
    fn one_odd_trial_changes_little() {
        let a: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i)).collect();
        let mut b = a.clone();
        b[3] = 1e9;
        assert!(matches!(compare(&a, &b), Comparison::NoDifferenceSeen { ratio, .. } if ratio < 1.05));
    }

    /// In how many of `rounds` experiments a difference is reported.
    fn seen(rounds: u32, count: usize, factor: f64, draw: impl Fn(&mut Rng) -> f64) -> f64 {
        let mut rng = Rng::new(0xab);
        let seen = (0..rounds).filter(|_| {
            let a: Vec<f64> = (0..count).map(|_| draw(&mut rng)).collect();
            let b: Vec<f64> = (0..count).map(|_| factor * draw(&mut rng)).collect();
            matches!(compare(&a, &b), Comparison::Different { .. })
        });
        seen.count() as f64 / f64::from(rounds)
    }

    fn five_percent(rng: &mut Rng) -> f64 {
        100.0 + 5.0 * normal(rng)
    }

    #[test]
    fn ten_percent_are_found_with_15_trials_and_equal_variants_are_called_equal() {
        let found = seen(200, 15, 1.1, five_percent);
        assert!(found >= 0.9, "{found}");
        let wrong = seen(500, 15, 1.0, five_percent);
        assert!(wrong <= 0.05, "{wrong}");
    }

    #[test]
    #[ignore = "seconds in a release build, minutes in others: make simulate"]
    fn two_percent_under_five_percent_noise_are_found_with_250_trials() {
        let found = seen(200, 250, 1.02, five_percent);
        println!("2 % under 5 % noise, 250 trials of each: found in {:.1} % of 200 sweeps", 100.0 * found);
        assert!(found >= 0.9);
        let found = seen(200, 15, 1.10, five_percent);
        println!("10 % under 5 % noise, 15 trials of each: found in {:.1} % of 200 sweeps", 100.0 * found);
        assert!(found >= 0.9);
        for count in [4, 5, 8, 15, 30, 50, 250] {
            let normal = seen(2_000, count, 1.0, five_percent);
            let heavy = seen(2_000, count, 1.0, |rng| exp(0.05 * heavy_tail(rng)));
            println!(
                "A/A, {count} trials of each: \"different\" in {:.2} % (normal) and {:.2} % (heavy tail) of 2000",
                100.0 * normal,
                100.0 * heavy
            );
            assert!(normal <= 0.05 && heavy <= 0.05);
        }
    }
}
