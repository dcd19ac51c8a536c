//! The summary as text.

use std::fmt::Write;

use crate::experiment::figures::Better;
use crate::experiment::stats::compare::{Comparison, LEVEL};
use crate::experiment::summary::{Against, Summary};

use super::figure;

/// The table, the comparisons, and the warnings.
pub fn text(summary: &Summary) -> String {
    let mut text = String::new();
    let failed = if summary.failed > 0 { format!(", {} failed", summary.failed) } else { String::new() };
    let _ = writeln!(
        text,
        "{}: {} combinations, {} trials{failed}; {}",
        summary.name,
        summary.rows.len(),
        summary.trials,
        summary.metric
    );
    text.push('\n');
    text.push_str(&rows(summary));
    sections(summary, &mut text);
    text
}

fn rows(summary: &Summary) -> String {
    let names: Vec<String> = summary
        .rows
        .first()
        .map(|row| row.variant.0.iter().map(|(name, _)| name.clone()).collect())
        .unwrap_or_default();
    let mut heads = names.clone();
    heads.extend(["trials", "median", "95 % interval", "MAD", "min", "max"].map(String::from));
    let others: Vec<&String> = summary.figures.iter().filter(|name| **name != summary.metric).collect();
    heads.extend(others.iter().map(|name| name.to_string()));
    let mut lines = vec![heads];
    for row in &summary.rows {
        let unit = summary.unit.as_deref();
        let mut cells: Vec<String> = row.variant.0.iter().map(|(_, value)| value.clone()).collect();
        let failed = if row.failed > 0 { format!(" ({} failed)", row.failed) } else { String::new() };
        match &row.description {
            Some(description) => {
                let interval = description.interval.map_or_else(
                    || "–".into(),
                    |interval| format!("{} … {}", figure(interval.low, unit), figure(interval.high, unit)),
                );
                cells.push(format!("{}{failed}", description.count));
                cells.extend([
                    figure(description.median, unit),
                    interval,
                    figure(description.mad, unit),
                    figure(description.min, unit),
                    figure(description.max, unit),
                ]);
            }
            None => {
                cells.push(format!("0{failed}"));
                cells.extend(std::iter::repeat_n("–".to_owned(), 5));
            }
        }
        cells.extend(others.iter().map(|name| {
            let unit = if *name == crate::experiment::figures::WALL { Some("s") } else { None };
            row.others.get(*name).map_or_else(|| "–".into(), |value| figure(*value, unit))
        }));
        lines.push(cells);
    }
    aligned(&lines, names.len())
}

/// Columns side by side: the first `left` to the left, the others to the right.
pub(crate) fn aligned(lines: &[Vec<String>], left: usize) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut out = String::new();
        for (column, cell) in line.iter().enumerate() {
            let space = " ".repeat(widths[column] - cell.chars().count());
            let _ = if column < left { write!(out, "  {cell}{space}") } else { write!(out, "  {space}{cell}") };
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

fn sections(summary: &Summary, text: &mut String) {
    if let Some(parameter) = summary.compared.as_ref().filter(|_| !summary.comparisons.is_empty()) {
        let _ = writeln!(
            text,
            "\n{parameter} compared, ratio of {} with its {:.0} % interval:",
            summary.metric,
            100.0 * LEVEL
        );
        text.push_str(&comparisons(summary, &summary.comparisons));
    }
    if !summary.earlier.is_empty() {
        let _ = writeln!(
            text,
            "\nCompared with the earlier results, ratio of {} with its {:.0} % interval:",
            summary.metric,
            100.0 * LEVEL
        );
        text.push_str(&comparisons(summary, &summary.earlier));
    }
    if !summary.marked.is_empty() {
        let verb = if summary.left_out_marked {
            "were left out"
        } else {
            "are marked; --leave-out-marked looks at the others only"
        };
        let kinds: Vec<String> =
            summary.marked.iter().map(|(kind, count)| format!("{count} {}", kind.replace('_', " "))).collect();
        let _ = writeln!(text, "\nTrials whose circumstances changed {verb}: {}", kinds.join(", "));
    }
    for (index, (variant, warning)) in summary.warnings().into_iter().enumerate() {
        let place = if variant.is_empty() { String::new() } else { format!("{variant}: ") };
        let start = if index == 0 { "\n" } else { "" };
        let _ = writeln!(text, "{start}warning: {place}{}\n  try: {}", warning.what, warning.try_);
    }
}

fn comparisons(summary: &Summary, all: &[Against]) -> String {
    let line = |against: &Against| {
        let (range, verdict) = words(&against.comparison, summary.better);
        vec![against.at.to_string(), format!("{} / {}", against.this, against.base), range, verdict]
    };
    let lines: Vec<Vec<String>> = all.iter().map(line).collect();
    aligned(&lines, 4)
}

/// The ratio with its interval, and what it means.
pub fn words(comparison: &Comparison, better: Better) -> (String, String) {
    match comparison {
        Comparison::Different { ratio, interval } => {
            let is_better = (*ratio < 1.0) == (better == Better::Lower);
            let percent = 100.0 * (ratio - 1.0);
            (
                format!("{ratio:.3} ({:.3} … {:.3})", interval.low, interval.high),
                format!("{percent:+.1} %, {}", if is_better { "better" } else { "worse" }),
            )
        }
        Comparison::NoDifferenceSeen { ratio, interval } => {
            (format!("{ratio:.3} ({:.3} … {:.3})", interval.low, interval.high), "no difference seen".into())
        }
        Comparison::TooFew => ("–".into(), "too few trials to tell: 4 of each at least".into()),
        Comparison::NotPositive => ("–".into(), "no ratio: a figure is 0 or negative".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::summary::tests::results;
    use crate::experiment::summary::{Wanted, summarize};

    #[test]
    fn the_table_says_what_differs_and_what_does_not() {
        let results = results(
            &["n=2 algo=ring", "n=2 algo=tree", "n=16 algo=ring", "n=16 algo=tree"],
            &[0.010, 0.013, 0.020, 0.020],
        );
        let text = text(&summarize(&results, &Wanted::default(), None));
        let expected = "test: 4 combinations, 48 trials; wall_s

  n   algo  trials    median        95 % interval       MAD       min       max
  2   ring      12  10.20 ms  10.02 ms … 10.30 ms  100.0 µs  10.00 ms  10.40 ms";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("n=2   algo=tree / algo=ring  1.300 (1.275 … 1.325)  +30.0 %, worse\n"), "{text}");
        assert!(text.contains("n=16  algo=tree / algo=ring  1.000 (0.981 … 1.020)  no difference seen\n"), "{text}");
    }
}
