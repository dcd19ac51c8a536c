//! The summary as a picture (SVG): lines over a size, or a strip and a box for each variant.

use std::fmt::Write;

use crate::experiment::figures::Better;
use crate::experiment::matrix::Variant;
use crate::experiment::number;
use crate::experiment::stats::describe::{self, median_of_sorted};
use crate::experiment::stats::rng::Rng;
use crate::experiment::stats::warnings::short;
use crate::experiment::summary::{Row, Summary};
use crate::real::{exp, ln, log10, pow};

use super::{figure, order_of_values};

/// Told apart by people who do not see all colours, on white and on black.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f"];
const WIDTH: f64 = 860.0;
/// No more strips or lines fit into one picture.
const MOST_STRIPS: usize = 40;
const MOST_LINES: usize = 12;

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#222}.t{font-size:15px;font-weight:600}.s{fill:#666}\
.g{stroke:#ddd;stroke-width:1}.a{stroke:#888;stroke-width:1}.bg{fill:#fff}.e{text-anchor:end}.m{text-anchor:middle}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#999}.g{stroke:#333}.bg{fill:#161a1d}}";

/// The picture.
pub fn svg(summary: &Summary) -> String {
    match size_parameter(summary) {
        Some(parameter) => lines(summary, &parameter),
        None => strips(summary),
    }
}

/// The parameter with the most numbers, three at least.
fn size_parameter(summary: &Summary) -> Option<String> {
    let first = &summary.rows.first()?.variant;
    let distinct = |name: &str| order_of_values(summary.rows.iter().filter_map(|row| row.variant.get(name)));
    let candidates = first.0.iter().filter_map(|(name, _)| {
        let values = distinct(name);
        let all_numbers = values.iter().all(|value| number::parse(value).is_some());
        (all_numbers && values.len() >= 3).then_some((values.len(), name.clone()))
    });
    candidates.max_by_key(|(count, _)| *count).map(|(_, name)| name)
}

fn opened(height: f64, summary: &Summary, subtitle: &str) -> String {
    let better = if summary.better == Better::Lower { "less is better" } else { "more is better" };
    let unit = summary.unit.as_deref().map(|unit| format!(" in {unit}")).unwrap_or_default();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\
         <style>{STYLE}</style><rect class=\"bg\" width=\"{WIDTH}\" height=\"{height}\"/>"
    );
    let _ = write!(
        svg,
        "<text class=\"t\" x=\"16\" y=\"24\">{}: {}{unit}</text>",
        escaped(&summary.name),
        escaped(&summary.metric)
    );
    let _ = write!(svg, "<text class=\"s\" x=\"16\" y=\"42\">{subtitle}; {better}</text>");
    svg
}

/// From values to places on an axis.
#[derive(Debug, Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// Logarithmic where values span a factor of 8 or more and none is 0 or less.
    fn over(values: &[f64], from: f64, to: f64) -> Scale {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log = low > 0.0 && high / low >= 8.0;
        if log {
            return Scale { low: ln(low), high: ln(high), from, to, log };
        }
        // A linear axis leaves a little room, and has a length even for one value.
        let room = if high > low { (high - low) * 0.05 } else { high.abs().max(1.0) * 0.05 };
        let start = if low >= 0.0 && low < (high - low) { 0.0 } else { low - room };
        Scale { low: start, high: high + room, from, to, log }
    }

    fn at(&self, value: f64) -> f64 {
        let value = if self.log { ln(value) } else { value };
        let part = if self.high > self.low { (value - self.low) / (self.high - self.low) } else { 0.5 };
        self.from + part * (self.to - self.from)
    }

    /// Round values between the ends.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (low, high) = (exp(self.low), exp(self.high));
            let decades = (log10(low).floor() as i32)..=(log10(high).ceil() as i32);
            let steps: &[f64] = if high / low > 1e3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            return decades
                .flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)))
                .filter(|tick| (low * 0.999..=high * 1.001).contains(tick))
                .collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let power = pow(10.0, log10(rough).floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|step| step * power).find(|step| *step >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|index| index as f64 * step).take_while(|tick| *tick <= self.high).take(20).collect()
    }
}

fn lines(summary: &Summary, parameter: &str) -> String {
    let (left, right, top, bottom) = (84.0, 24.0, 62.0, 372.0);
    let rows: Vec<(&Row, f64)> = summary
        .rows
        .iter()
        .filter(|row| row.description.is_some())
        .filter_map(|row| Some((row, number::parse(row.variant.get(parameter)?)?)))
        .collect();
    let series = series(&rows, parameter);
    let ends = rows.iter().filter_map(|(row, _)| row.description.as_ref()).flat_map(|it| {
        let interval = it.interval.map_or([it.median; 2], |interval| [interval.low, interval.high]);
        [it.median, interval[0], interval[1]]
    });
    let ys: Vec<f64> = ends.collect();
    if ys.is_empty() {
        return empty(summary);
    }
    let xs: Vec<f64> = rows.iter().map(|(_, x)| *x).collect();
    let x = Scale::over(&xs, left + 12.0, WIDTH - right - 12.0);
    let y = Scale::over(&ys, bottom - 6.0, top + 6.0);
    let shown = series.len().min(MOST_LINES);
    let height = bottom + 58.0 + 20.0 * (shown as f64 / 3.0).ceil();
    let mut svg = opened(height, summary, &format!("median and 95 % interval against {}", escaped(parameter)));
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ = write!(
            svg,
            "<path class=\"g\" d=\"M{left} {at:.1}H{:.1}\"/><text class=\"e\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - right,
            left - 8.0,
            at + 4.0,
            escaped(&tick_text(tick, summary))
        );
    }
    let values = order_of_values(rows.iter().filter_map(|(row, _)| row.variant.get(parameter)));
    let every = values.len().div_ceil(12);
    for (index, value) in values.iter().enumerate().filter(|(index, _)| index % every == 0) {
        let at = x.at(number::parse(value).unwrap_or(0.0));
        let _ = write!(
            svg,
            "<path class=\"g\" d=\"M{at:.1} {top}V{bottom}\"/><text class=\"m\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 18.0,
            escaped(value)
        );
        let _ = index;
    }
    let _ = write!(svg, "<path class=\"a\" fill=\"none\" d=\"M{left} {top}V{bottom}H{:.1}\"/>", WIDTH - right);
    let _ = write!(
        svg,
        "<text class=\"s m\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        (left + WIDTH - right) / 2.0,
        bottom + 36.0,
        escaped(parameter)
    );
    for (index, (name, points)) in series.iter().take(MOST_LINES).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let dash = if index >= COLOURS.len() { " stroke-dasharray=\"5 3\"" } else { "" };
        let path: Vec<String> = points
            .iter()
            .map(|(row, at)| {
                format!("{:.1} {:.1}", x.at(*at), y.at(row.description.as_ref().map_or(0.0, |it| it.median)))
            })
            .collect();
        let _ =
            write!(svg, "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash} d=\"M{}\"/>", path.join("L"));
        for (row, at) in points {
            let Some(it) = &row.description else { continue };
            let (px, py) = (x.at(*at), y.at(it.median));
            if let Some(interval) = it.interval {
                let _ = write!(
                    svg,
                    "<path stroke=\"{colour}\" stroke-width=\"1.2\" d=\"M{px:.1} {:.1}V{:.1}\"/>",
                    y.at(interval.low),
                    y.at(interval.high)
                );
            }
            let _ = write!(
                svg,
                "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{}: {}</title></circle>",
                escaped(&row.variant.to_string()),
                figure(it.median, summary.unit.as_deref())
            );
        }
        let (lx, ly) = (left + 250.0 * (index % 3) as f64, bottom + 62.0 + 20.0 * (index / 3) as f64);
        let _ = write!(
            svg,
            "<path stroke=\"{colour}\" stroke-width=\"3\"{dash} d=\"M{lx:.1} {:.1}h18\"/><text x=\"{:.1}\" y=\"{ly:.1}\">{}</text>",
            ly - 4.0,
            lx + 24.0,
            escaped(&cut(name, 34))
        );
    }
    if series.len() > MOST_LINES {
        let _ = write!(
            svg,
            "<text class=\"s e\" x=\"{:.1}\" y=\"{:.1}\">{} more are not drawn</text>",
            WIDTH - right,
            top - 8.0,
            series.len() - MOST_LINES
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// The rows of each combination of the other parameters, along the size. Parameters that never vary are not named.
fn series<'r>(rows: &[(&'r Row, f64)], parameter: &str) -> Vec<(String, Vec<(&'r Row, f64)>)> {
    let varies = |name: &str| {
        let mut values = rows.iter().map(|(row, _)| row.variant.get(name));
        let first = values.next().flatten();
        values.any(|value| value != first)
    };
    let mut found: Vec<(Variant, Vec<(&Row, f64)>)> = Vec::new();
    for (row, x) in rows {
        let rest = row.variant.without(parameter);
        match found.iter_mut().find(|(known, _)| *known == rest) {
            Some((_, points)) => points.push((row, *x)),
            None => found.push((rest, vec![(row, *x)])),
        }
    }
    found
        .into_iter()
        .map(|(rest, mut points)| {
            points.sort_by(|(_, a), (_, b)| a.total_cmp(b));
            let named = Variant(rest.0.into_iter().filter(|(name, _)| varies(name)).collect());
            (if named.0.is_empty() { "all trials".to_owned() } else { named.to_string() }, points)
        })
        .collect()
}

fn strips(summary: &Summary) -> String {
    let rows: Vec<&Row> = summary.rows.iter().filter(|row| !row.values.is_empty()).take(MOST_STRIPS).collect();
    let all: Vec<f64> = rows.iter().flat_map(|row| row.values.iter().copied()).collect();
    if all.is_empty() {
        return empty(summary);
    }
    let longest = rows.iter().map(|row| row.variant.to_string().chars().count()).max().unwrap_or(0).min(34);
    let (left, right, top) = (34.0 + 7.0 * longest as f64, 30.0, 66.0);
    let step = 40.0;
    let bottom = top + step * rows.len() as f64;
    let x = Scale::over(&all, left + 10.0, WIDTH - right - 10.0);
    let mut svg = opened(bottom + 42.0, summary, "each trial, the middle half of them as a box, the median as a line");
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = write!(
            svg,
            "<path class=\"g\" d=\"M{at:.1} {top}V{bottom}\"/><text class=\"m\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 18.0,
            escaped(&tick_text(tick, summary))
        );
    }
    let _ = write!(svg, "<path class=\"a\" d=\"M{left} {bottom}H{:.1}\"/>", WIDTH - right);
    for (index, row) in rows.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let middle = top + step * (index as f64 + 0.5);
        let sorted = describe::sorted(&row.values);
        let quarter = |values: &[f64]| x.at(median_of_sorted(values));
        let half = sorted.len().div_ceil(2);
        let (low, high) = (quarter(&sorted[..half]), quarter(&sorted[sorted.len() - half..]));
        let median = x.at(median_of_sorted(&sorted));
        let name = cut(&row.variant.to_string(), 34);
        let _ = write!(
            svg,
            "<text class=\"e\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left - 10.0,
            middle + 4.0,
            escaped(if name.is_empty() { "all trials" } else { &name })
        );
        let _ = write!(
            svg,
            "<rect x=\"{low:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"22\" rx=\"2\" fill=\"{colour}\" fill-opacity=\".18\" stroke=\"{colour}\"/>",
            middle - 11.0,
            (high - low).max(0.5)
        );
        let mut rng = Rng::new(index as u64);
        for value in &row.values {
            let shift = 14.0 * (rng.unit() - 0.5);
            let _ = write!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.2\" fill=\"{colour}\" fill-opacity=\".65\"/>",
                x.at(*value),
                middle + shift
            );
        }
        let _ = write!(
            svg,
            "<path stroke=\"{colour}\" stroke-width=\"2.5\" d=\"M{median:.1} {:.1}v26\"><title>{}</title></path>",
            middle - 13.0,
            figure(median_of_sorted(&sorted), summary.unit.as_deref())
        );
    }
    if summary.rows.len() > MOST_STRIPS {
        let _ = write!(
            svg,
            "<text class=\"s e\" x=\"{:.1}\" y=\"{:.1}\">{} more are not drawn</text>",
            WIDTH - right,
            top - 8.0,
            summary.rows.len() - MOST_STRIPS
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn empty(summary: &Summary) -> String {
    format!("{}</svg>\n", opened(60.0, summary, "no trial has this figure"))
}

/// Times in the unit that fits, rates and the like without theirs, which the title has.
fn tick_text(tick: f64, summary: &Summary) -> String {
    let text = match summary.unit.as_deref() {
        Some("s") => figure(tick, Some("s")),
        _ => short(tick),
    };
    // 20.00 ms says no more than 20 ms.
    let (number, unit) = text.split_once(' ').map_or((text.as_str(), ""), |(number, unit)| (number, unit));
    let number = if number.contains('.') && !number.contains('e') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    };
    format!("{number} {unit}").trim_end().to_owned()
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        text.to_owned()
    } else {
        format!("{}…", text.chars().take(most - 1).collect::<String>())
    }
}

/// For text and attributes of SVG and HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::summary::tests::results;
    use crate::experiment::summary::{Wanted, summarize};

    fn drawn(variants: &[&str], factors: &[f64]) -> String {
        svg(&summarize(&results(variants, factors), &Wanted::default(), None))
    }

    #[test]
    fn sizes_make_lines_and_words_make_strips() {
        let by_size = drawn(
            &["size=1K a=x", "size=32K a=x", "size=1M a=x", "size=1K a=<y>", "size=32K a=<y>", "size=1M a=<y>"],
            &[0.001, 0.002, 0.03, 0.001, 0.003, 0.04],
        );
        assert_eq!(
            (by_size.matches("<circle").count(), by_size.contains("a=&lt;y&gt;"), by_size.contains("against size")),
            (6, true, true)
        );
        let by_name = drawn(&["a=x", "a=y"], &[1.0, 2.0]);
        assert_eq!((by_name.matches("<rect").count(), by_name.matches("<circle").count()), (3, 24));
        for picture in [by_size, by_name] {
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }

    #[test]
    fn axes_have_round_ticks() {
        assert_eq!(Scale::over(&[0.5, 9.0], 0.0, 1.0).ticks(), [0.5, 1.0, 2.0, 5.0]);
        assert_eq!(Scale::over(&[100.0, 120.0], 0.0, 1.0).ticks(), [100.0, 105.0, 110.0, 115.0, 120.0]);
        assert_eq!(Scale::over(&[3.0, 10.0], 0.0, 1.0).ticks(), [0.0, 5.0, 10.0]);
        assert!(Scale::over(&[7.0], 0.0, 1.0).at(7.0) == 0.5);
    }
}
