//! The beta distribution: where the middle of a sample falls among all values that could have come.

use crate::real::{exp, ln};

/// The value below which a draw from Beta(`shape`, `shape`) falls with this `probability`.
pub fn symmetric_quantile(shape: f64, probability: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    // Each round halves what is unknown; 50 leave less than 1e-15.
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if symmetric_below(shape, middle) < probability { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// The probability that a draw from Beta(`shape`, `shape`) falls below `x`.
fn symmetric_below(shape: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x > 0.5 {
        return 1.0 - symmetric_below(shape, 1.0 - x);
    }
    let log_front = shape * (ln(x) + ln(1.0 - x)) + ln_gamma(2.0 * shape) - 2.0 * ln_gamma(shape);
    exp(log_front) * continued_fraction(shape, x) / shape
}

/// Lentz's way through the continued fraction of the incomplete beta function, which converges for x ≤ 1/2.
fn continued_fraction(shape: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let away_from_zero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - 2.0 * shape * x / (shape + 1.0));
    let mut result = d;
    for step in 1..300 {
        let m = f64::from(step);
        let double = shape + 2.0 * m;
        let even = m * (shape - m) * x / ((double - 1.0) * double);
        let odd = -(shape + m) * (2.0 * shape + m) * x / (double * (double + 1.0));
        for term in [even, odd] {
            d = 1.0 / away_from_zero(1.0 + term * d);
            c = away_from_zero(1.0 + term / c);
            result *= d * c;
        }
        if (d * c - 1.0).abs() < 1e-14 {
            break;
        }
    }
    result
}

/// Stirling's series, after a step up to where it is good to 1e-14.
fn ln_gamma(x: f64) -> f64 {
    let mut x = x;
    let mut below = 0.0;
    while x < 12.0 {
        below += ln(x);
        x += 1.0;
    }
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3)) + 1.0 / (1260.0 * x.powi(5)) - 1.0 / (1680.0 * x.powi(7));
    (x - 0.5) * ln(x) - x + 0.5 * ln(std::f64::consts::TAU) + series - below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_agrees_with_what_can_be_counted() {
        // A draw from Beta(k, k) is the k-th of 2k - 1 uniform ones: below x if at least k of them are.
        let counted = |k: i32, x: f64| {
            let n = 2 * k - 1;
            let mut choose = 1.0;
            let mut total = 0.0;
            for hits in 0..=n {
                if hits >= k {
                    total += choose * x.powi(hits) * (1.0 - x).powi(n - hits);
                }
                choose *= f64::from(n - hits) / f64::from(hits + 1);
            }
            total
        };
        for k in [1, 2, 3, 8, 20] {
            for x in [0.01, 0.1, 0.3, 0.5, 0.62, 0.9] {
                let (ours, exact) = (symmetric_below(f64::from(k), x), counted(k, x));
                assert!((ours - exact).abs() < 1e-12, "Beta({k}, {k}) below {x}: {ours} and {exact}");
            }
        }
        assert!((ln_gamma(0.5) - ln(std::f64::consts::PI.sqrt())).abs() < 1e-12);
    }

    #[test]
    fn quantiles_turn_probabilities_back() {
        for shape in [1.0, 2.5, 8.0, 125.5, 5_000.0] {
            for probability in [0.015, 0.025, 0.5, 0.975] {
                let x = symmetric_quantile(shape, probability);
                assert!((symmetric_below(shape, x) - probability).abs() < 1e-9, "{shape} {probability}");
            }
        }
    }
}
