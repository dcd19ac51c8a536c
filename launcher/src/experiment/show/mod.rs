//! What people and scripts get to see of a sweep: [`table`], [`csv`], [`plot`] (SVG) and [`html`]; JSON is the
//! [`Summary`](super::summary::Summary) itself.

pub mod csv;
pub mod html;
pub mod plot;
pub mod table;

use super::number;

/// `12.34 ms` for a time in seconds, four digits and the unit for anything else.
pub fn figure(value: f64, unit: Option<&str>) -> String {
    use super::stats::warnings::short;

    let (value, unit) = match unit {
        Some("s") if value.abs() < 1e-3 => (value * 1e6, Some("µs")),
        Some("s") if value.abs() < 1.0 => (value * 1e3, Some("ms")),
        other => (value, other),
    };
    match unit {
        Some(unit) => format!("{} {unit}", short(value)),
        None => short(value),
    }
}

/// Numbers in the order of their size, words in the order in which they came.
pub(crate) fn order_of_values<'v>(values: impl Iterator<Item = &'v str>) -> Vec<&'v str> {
    let mut found: Vec<&str> = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    if found.iter().all(|value| number::parse(value).is_some()) {
        found.sort_by(|a, b| number::parse(a).partial_cmp(&number::parse(b)).unwrap_or(std::cmp::Ordering::Equal));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_get_the_unit_that_fits() {
        let table = [(0.000_012_34, "12.34 µs"), (0.0123, "12.30 ms"), (2.5, "2.500 s"), (0.0, "0 µs")];
        for (value, text) in table {
            assert_eq!(figure(value, Some("s")), text);
        }
        assert_eq!((figure(3.0, Some("GB/s")), figure(3.0, None)), ("3.000 GB/s".into(), "3.000".into()));
    }

    #[test]
    fn numbers_are_ordered_by_size() {
        assert_eq!(order_of_values(["1M", "4K", "64", "4K"].into_iter()), ["64", "4K", "1M"]);
        assert_eq!(order_of_values(["ring", "auto", "2"].into_iter()), ["ring", "auto", "2"]);
    }
}
