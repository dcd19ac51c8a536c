//! What looks wrong in a variant's figures, each with something to try.

use serde::Serialize;

use super::describe::{mad, median, sorted};
use crate::real::log10;

/// A doubt about figures, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Which kind, for scripts.
    pub kind: Kind,
    /// One sentence.
    pub what: String,
    /// Something to try.
    #[serde(rename = "try")]
    pub try_: &'static str,
}

/// The kinds of doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Some trials lie far from the others.
    Outliers,
    /// The very first does.
    SlowFirst,
    /// Figures rise or fall in the course of the sweep.
    Drift,
    /// Figures come in two groups.
    TwoGroups,
    /// Fewer trials than an interval needs.
    FewTrials,
}

/// Fewer figures say nothing about their own distribution.
const FEWEST: usize = 10;
/// Fewer figures of one heap look like two too often.
const FEWEST_FOR_GROUPS: usize = 15;
/// Further from the median than so many robust deviations is far. Of a million normal figures one is; the deviation
/// itself is known less well from few figures, so there it is a little more.
const FAR: f64 = 5.0;
/// From a MAD to the deviation that a normal distribution with this MAD has.
const DEVIATION_PER_MAD: f64 = 1.482_6;
/// Figures closer to each other than this part of their median are never called odd.
const NEGLIGIBLE: f64 = 0.01;

/// All doubts about `figures`, which are in the order in which they were measured. `show` writes a figure.
pub fn warnings(figures: &[f64], show: &dyn Fn(f64) -> String) -> Vec<Warning> {
    if figures.len() < super::describe::FEWEST_FOR_INTERVAL {
        let what = match figures.len() {
            1 => "there is 1 trial, too few to tell noise from difference".to_owned(),
            count => format!("there are {count} trials, too few to tell noise from difference"),
        };
        return vec![Warning { kind: Kind::FewTrials, what, try_: "--repeat 10 or more" }];
    }
    let (center, scale) = center_and_scale(figures);
    let is_far = |figure: &&f64| (**figure - center).abs() > scale;
    let far = if figures.len() < FEWEST { 0 } else { figures.iter().filter(is_far).count() };
    let mut found = Vec::new();
    // A second group is no handful of outliers, and a trend makes none.
    if let Some(warning) = two_groups(figures, show) {
        found.push(warning);
    } else if far == 1 && is_far(&&figures[0]) {
        found.push(Warning {
            kind: Kind::SlowFirst,
            what: format!("the first trial ({}) lies far from the others (median {})", show(figures[0]), show(center)),
            try_: "--warmup 1: caches, files and clocks were cold",
        });
    } else if far > 0 {
        let worst = figures.iter().copied().max_by(|a, b| (a - center).abs().total_cmp(&(b - center).abs()));
        found.push(Warning {
            kind: Kind::Outliers,
            what: format!("{far} of {} trials lie far from the median {}; the furthest is {}", figures.len(), show(center), show(worst.unwrap_or(center))),
            try_: "look at the circumstances of these trials (load, clocks, link); close other programs, or measure longer",
        });
    }
    found.extend(drift(figures, show));
    found
}

/// The median, and the distance from it that counts as far.
fn center_and_scale(figures: &[f64]) -> (f64, f64) {
    let center = median(figures);
    let far = FAR * (1.0 + 4.0 / figures.len() as f64);
    (center, far * (DEVIATION_PER_MAD * mad(figures, center)).max(NEGLIGIBLE / 5.0 * center.abs()))
}

/// Whether later figures are larger, or smaller: Spearman's rank correlation with the time, sure at 1 in 1000,
/// and a change between the first and the last third that is worth a word.
fn drift(figures: &[f64], show: &dyn Fn(f64) -> String) -> Option<Warning> {
    if figures.len() < FEWEST {
        return None;
    }
    let order: Vec<f64> = (0..figures.len()).map(|index| index as f64).collect();
    let correlation = pearson(&order, &ranks(figures))?;
    let third = figures.len() / 3;
    let (early, late) = (median(&figures[..third]), median(&figures[figures.len() - third..]));
    let change = (late - early) / early.abs();
    if correlation.abs() * (figures.len() as f64 - 1.0).sqrt() < 3.29 || change.abs() < NEGLIGIBLE {
        return None;
    }
    Some(Warning {
        kind: Kind::Drift,
        what: format!(
            "figures drift: from {} in the first third to {} in the last ({:+.1} %)",
            show(early),
            show(late),
            100.0 * change
        ),
        try_: "--warmup, a pause between trials, or a fixed clock; variants stay comparable with --order interleaved or random",
    })
}

/// Whether the figures are two heaps: one cut through them explains nearly all of their variance, and neither side
/// is just a few.
fn two_groups(figures: &[f64], show: &dyn Fn(f64) -> String) -> Option<Warning> {
    let count = figures.len();
    if count < FEWEST_FOR_GROUPS {
        return None;
    }
    let sorted = sorted(figures);
    let total: f64 = sorted.iter().sum();
    let mean = total / count as f64;
    let variance: f64 = sorted.iter().map(|figure| (figure - mean).powi(2)).sum();
    let smallest_group = (count / 10).max(4);
    let mut below = 0.0;
    let mut best = (0.0, 0);
    for (cut, figure) in sorted.iter().enumerate() {
        if cut >= smallest_group && count - cut >= smallest_group {
            let (low, high) = (below / cut as f64, (total - below) / (count - cut) as f64);
            let between = cut as f64 * (low - mean).powi(2) + (count - cut) as f64 * (high - mean).powi(2);
            if between > best.0 {
                best = (between, cut);
            }
        }
        below += figure;
    }
    let (between, cut) = best;
    if variance <= 0.0 || between / variance < EXPLAINED {
        return None;
    }
    let (low, high) = (median(&sorted[..cut]), median(&sorted[cut..]));
    // The gap must be wide beside the spread on both of its sides.
    let gap = sorted[cut] - sorted[cut - 1];
    let spread = mad(&sorted[..cut], low).max(mad(&sorted[cut..], high));
    if gap < 3.0 * spread || (high - low) < NEGLIGIBLE * low.abs() {
        return None;
    }
    Some(Warning {
        kind: Kind::TwoGroups,
        what: format!(
            "trials come in two groups: {cut} around {} and {} around {}",
            show(low),
            count - cut,
            show(high)
        ),
        try_: "--bind core or numa, and a look at what differs (placement, clocks, algorithm chosen); the median may jump between the groups",
    })
}

/// Of a normal distribution the best cut explains 64 % of the variance, of a uniform one 75 %.
const EXPLAINED: f64 = 0.88;

/// Ranks from 1; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let same = order[start..].iter().take_while(|&&index| values[index] == values[order[start]]).count();
        for &index in &order[start..start + same] {
            ranks[index] = start as f64 + (same as f64 + 1.0) / 2.0;
        }
        start += same;
    }
    ranks
}

/// `None` where one of the lists does not vary.
fn pearson(a: &[f64], b: &[f64]) -> Option<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let product: f64 = a.iter().zip(b).map(|(a, b)| (a - mean_a) * (b - mean_b)).sum();
    let square = |values: &[f64], mean: f64| values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    let scale = (square(a, mean_a) * square(b, mean_b)).sqrt();
    (scale > 0.0).then(|| product / scale)
}

/// A figure with four digits that count.
pub fn short(figure: f64) -> String {
    if figure == 0.0 || !figure.is_finite() {
        return format!("{figure}");
    }
    let digits = 3 - log10(figure.abs()).floor() as i32;
    if (-2..=8).contains(&digits) { format!("{figure:.*}", digits.max(0) as usize) } else { format!("{figure:.3e}") }
}

#[cfg(test)]
mod tests {
    use super::super::rng::Rng;
    use super::super::rng::noise::{heavy_tail, normal};
    use super::*;

    fn kinds(figures: &[f64]) -> Vec<Kind> {
        warnings(figures, &short).into_iter().map(|warning| warning.kind).collect()
    }

    /// In which part of 500 experiments of `count` trials there is a warning of this kind.
    fn rate(kind: Kind, count: usize, draw: impl Fn(&mut Rng, f64) -> f64) -> f64 {
        let mut rng = Rng::new(0xbee);
        let warned = (0..500).filter(|_| {
            let figures: Vec<f64> = (0..count).map(|at| draw(&mut rng, at as f64 / count as f64)).collect();
            kinds(&figures).contains(&kind)
        });
        warned.count() as f64 / 500.0
    }

    #[test]
    fn plain_noise_and_fixed_figures_are_no_cause_for_doubt() {
        assert_eq!(kinds(&[3.0; 50]), []);
        for kind in [Kind::Outliers, Kind::SlowFirst, Kind::Drift, Kind::TwoGroups] {
            for count in [10, 15, 30, 100] {
                let normal_rate = rate(kind, count, |rng, _| 100.0 + 5.0 * normal(rng));
                assert!(normal_rate <= 0.02, "{kind:?} {count} normal {normal_rate}");
                let uniform_rate = rate(kind, count, |rng, _| 100.0 + 5.0 * rng.unit());
                assert!(uniform_rate <= 0.03, "{kind:?} {count} uniform {uniform_rate}");
            }
        }
    }

    #[test]
    fn two_modes_are_two_groups() {
        let draw = |share: f64| {
            move |rng: &mut Rng, _| if rng.unit() < share { 100.0 + normal(rng) } else { 115.0 + normal(rng) }
        };
        for share in [0.3, 0.5, 0.7] {
            let (warned, drifts) = (rate(Kind::TwoGroups, 40, draw(share)), rate(Kind::Drift, 40, draw(share)));
            assert!(warned >= 0.98 && drifts <= 0.02, "{share}: {warned} {drifts}");
        }
    }

    #[test]
    fn a_trend_is_drift() {
        let warned = rate(Kind::Drift, 30, |rng, at| 100.0 + 15.0 * at + 2.0 * normal(rng));
        assert!(warned >= 0.95, "{warned}");
        let step = rate(Kind::Drift, 30, |rng, at| if at < 0.6 { 100.0 } else { 120.0 } + 2.0 * normal(rng));
        assert!(step >= 0.95, "{step}");
        let up_and_negligible = rate(Kind::Drift, 30, |rng, at| 100.0 + 0.2 * at + 0.01 * normal(rng));
        assert_eq!(up_and_negligible, 0.0);
    }

    #[test]
    fn a_heavy_tail_has_outliers() {
        let warned = rate(Kind::Outliers, 100, |rng, _| 100.0 + 2.0 * heavy_tail(rng));
        assert!(warned >= 0.9, "{warned}");
        let mut figures: Vec<f64> = (0..20).map(|at| 100.0 + f64::from(at % 5)).collect();
        figures[7] = 190.0;
        let found = warnings(&figures, &short);
        assert_eq!(found[0].what, "1 of 20 trials lie far from the median 102.0; the furthest is 190.0");
    }

    #[test]
    fn a_slow_start_is_told_from_other_outliers() {
        let mut figures: Vec<f64> = (0..20).map(|at| 100.0 + f64::from(at % 5)).collect();
        figures[0] = 190.0;
        assert_eq!(kinds(&figures), [Kind::SlowFirst]);
    }

    #[test]
    fn few_trials_are_called_few() {
        assert_eq!(kinds(&[1.0]), [Kind::FewTrials]);
        assert_eq!(kinds(&[1.0, 2.0, 3.0, 50.0]), [Kind::FewTrials]);
        assert_eq!(kinds(&[1.0, 1.01, 1.0, 1.02, 3.0]), []);
    }

    #[test]
    fn figures_are_shown_with_four_digits() {
        let table = [
            (0.0, "0"),
            (0.001234567, "0.001235"),
            (1.0, "1.000"),
            (99.5, "99.50"),
            (123456.0, "123456"),
            (-2.5, "-2.500"),
            (1e-9, "1.000e-9"),
            (3e12, "3.000e12"),
        ];
        for (figure, text) in table {
            assert_eq!(short(figure), text);
        }
    }
}
