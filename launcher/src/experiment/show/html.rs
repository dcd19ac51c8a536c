//! The report in one file: what came out, a picture, doubts, circumstances, and every trial.

use std::fmt::Write;

use crate::experiment::journal::{Results, State, Trial};
use crate::experiment::matrix::Variant;
use crate::experiment::stats::compare::{Comparison, LEVEL};
use crate::experiment::summary::{Against, Summary, marks_of};
use crate::real::ln;

use super::csv::state;
use super::figure;
use super::plot::{escaped, svg};
use super::table::words;

const STYLE: &str = include_str!("report.css");
/// More rows than this make a page slow; the CSV has all.
const MOST_TRIALS: usize = 2_000;

/// The page. It needs no other file and runs no script.
pub fn page(results: &Results, summary: &Summary, earlier: Option<&Results>) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{name}: prun sweep</title><style>{STYLE}</style>\n<main>\n<header><h1>{name}</h1>",
        name = escaped(&summary.name)
    );
    page.push_str(&lead(results, summary));
    page.push_str("</header>\n");
    let _ = writeln!(page, "<section><figure>{}</figure></section>", svg(summary));
    page.push_str(&table(summary));
    if let Some(parameter) = summary.compared.as_ref().filter(|_| !summary.comparisons.is_empty()) {
        page.push_str(&comparisons(&format!("{parameter} compared"), summary, &summary.comparisons));
    }
    if earlier.is_some() {
        page.push_str(&comparisons("Compared with the earlier results", summary, &summary.earlier));
    }
    page.push_str(&doubts(summary));
    page.push_str(&circumstances(results));
    page.push_str(&trials(results, summary));
    page.push_str("</main></html>\n");
    page
}

fn lead(results: &Results, summary: &Summary) -> String {
    let started = results.trials.iter().map(|trial| trial.started).fold(f64::INFINITY, f64::min);
    let when = date(started).map(|date| format!(" on {date}")).unwrap_or_default();
    let host = results.trials.first().map(|trial| format!(", {}", escaped(&trial.setting.host))).unwrap_or_default();
    let failed = match summary.failed {
        0 => String::new(),
        failed => format!(", <b class=\"bad\">{failed} failed</b>"),
    };
    format!(
        "<p>{} combinations, {} trials{failed}{when}{host}. Figure: <b>{}</b>.</p><pre class=\"cmd\">prun {} -- {}</pre>",
        summary.rows.len(),
        summary.trials,
        escaped(&summary.metric),
        escaped(&results.header.job_flags.join(" ")),
        escaped(&results.header.program.join(" "))
    )
}

fn date(seconds: f64) -> Option<String> {
    let time = jiff::Timestamp::from_second(seconds.is_finite().then_some(seconds as i64)?).ok()?;
    Some(time.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M %Z").to_string())
}

fn table(summary: &Summary) -> String {
    let names: Vec<&str> = summary
        .rows
        .first()
        .map(|row| row.variant.0.iter().map(|(name, _)| name.as_str()).collect())
        .unwrap_or_default();
    let others: Vec<&String> = summary.figures.iter().filter(|name| **name != summary.metric).collect();
    let mut html = String::from("<section><h2>Results</h2><div class=\"wide\"><table><thead><tr>");
    for name in &names {
        let _ = write!(html, "<th>{}</th>", escaped(name));
    }
    for name in ["trials", "median", "95 % interval", "MAD", "min", "max"]
        .into_iter()
        .chain(others.iter().map(|name| name.as_str()))
        .chain(["memory", "CPU"])
    {
        let _ = write!(html, "<th class=\"r\">{}</th>", escaped(name));
    }
    html.push_str("</tr></thead><tbody>");
    let unit = summary.unit.as_deref();
    let best = best(summary);
    for (index, row) in summary.rows.iter().enumerate() {
        html.push_str(if best.contains(&index) { "<tr class=\"best\">" } else { "<tr>" });
        for (_, value) in &row.variant.0 {
            let _ = write!(html, "<td>{}</td>", escaped(value));
        }
        let mut cell = |text: String| {
            let _ = write!(html, "<td class=\"r\">{text}</td>");
        };
        let failed =
            if row.failed > 0 { format!(" <b class=\"bad\">{} failed</b>", row.failed) } else { String::new() };
        cell(format!("{}{failed}", row.values.len()));
        match &row.description {
            Some(it) => {
                cell(format!("<b>{}</b>", figure(it.median, unit)));
                cell(it.interval.map_or_else(
                    || "–".into(),
                    |interval| format!("{} … {}", figure(interval.low, unit), figure(interval.high, unit)),
                ));
                [it.mad, it.min, it.max].map(|value| figure(value, unit)).into_iter().for_each(&mut cell);
            }
            None => (0..5).for_each(|_| cell("–".into())),
        }
        for name in &others {
            let unit = if *name == crate::experiment::figures::WALL { Some("s") } else { None };
            cell(row.others.get(*name).map_or_else(|| "–".into(), |value| figure(*value, unit)));
        }
        cell(row.max_rss_kib.map_or_else(|| "–".into(), |kib| format!("{:.1} MiB", kib as f64 / 1024.0)));
        cell(row.cpu_s.map_or_else(|| "–".into(), |seconds| figure(seconds, Some("s"))));
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div></section>\n");
    html
}

/// The row with the best median among those that differ in the compared parameter only.
fn best(summary: &Summary) -> Vec<usize> {
    let Some(parameter) = &summary.compared else { return Vec::new() };
    let sign = if summary.better == crate::experiment::figures::Better::Lower { 1.0 } else { -1.0 };
    let mut groups: Vec<(Variant, Vec<(f64, usize)>)> = Vec::new();
    for (index, row) in summary.rows.iter().enumerate() {
        let Some(description) = &row.description else { continue };
        let rest = row.variant.without(parameter);
        match groups.iter_mut().find(|(known, _)| *known == rest) {
            Some((_, rows)) => rows.push((sign * description.median, index)),
            None => groups.push((rest, vec![(sign * description.median, index)])),
        }
    }
    let several = groups.into_iter().filter(|(_, rows)| rows.len() > 1);
    several
        .filter_map(|(_, rows)| rows.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)))
        .map(|(_, index)| index)
        .collect()
}

fn comparisons(title: &str, summary: &Summary, all: &[Against]) -> String {
    let mut html = format!(
        "<section><h2>{}</h2><p>Ratio of {}, {:.0} % sure to lie in the interval.</p><div class=\"wide\"><table><tbody>",
        escaped(title),
        escaped(&summary.metric),
        100.0 * LEVEL
    );
    let reach = reach(all);
    for against in all {
        let (range, verdict) = words(&against.comparison, summary.better);
        let class = match &against.comparison {
            Comparison::Different { .. } if verdict.ends_with("better") => "good",
            Comparison::Different { .. } => "bad",
            _ => "quiet",
        };
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{} / {}</td><td class=\"r\">{range}</td><td>{}</td><td class=\"{class}\">{verdict}</td></tr>",
            escaped(&against.at.to_string()),
            escaped(&against.this),
            escaped(&against.base),
            bar(&against.comparison, reach)
        );
    }
    html.push_str("</tbody></table></div></section>\n");
    html
}

/// How far from 1 the intervals of a table reach, on a logarithmic scale that shows at least 2 %.
fn reach(all: &[Against]) -> f64 {
    let ends = all.iter().filter_map(|against| match &against.comparison {
        Comparison::Different { interval, .. } | Comparison::NoDifferenceSeen { interval, .. } => {
            Some([interval.low, interval.high])
        }
        _ => None,
    });
    ends.flatten().map(|end| ln(end).abs()).filter(|end| end.is_finite()).fold(0.02, f64::max)
}

/// The interval as a bar around a line at 1.
fn bar(comparison: &Comparison, reach: f64) -> String {
    let (Comparison::Different { ratio, interval } | Comparison::NoDifferenceSeen { ratio, interval }) = comparison
    else {
        return String::new();
    };
    let at = |ratio: f64| 70.0 + 64.0 * (ln(ratio) / reach).clamp(-1.0, 1.0);
    format!(
        "<svg width=\"140\" height=\"16\" class=\"bar\"><path d=\"M70 0v16\"/><rect x=\"{:.1}\" y=\"5\" width=\"{:.1}\" height=\"6\" rx=\"2\"/><circle cx=\"{:.1}\" cy=\"8\" r=\"3.5\"/></svg>",
        at(interval.low),
        (at(interval.high) - at(interval.low)).max(1.0),
        at(*ratio)
    )
}

fn doubts(summary: &Summary) -> String {
    let warnings = summary.warnings();
    if warnings.is_empty() && summary.marked.is_empty() {
        return "<section><h2>Doubts</h2><p>None: no outliers, no drift, no groups, and the circumstances stayed the same.</p></section>\n".into();
    }
    let mut html = String::from("<section><h2>Doubts</h2><ul class=\"doubts\">");
    for (variant, warning) in warnings {
        let place = if variant.is_empty() { String::new() } else { format!("<b>{}</b>: ", escaped(&variant)) };
        let _ = write!(
            html,
            "<li>{place}{}<br><span class=\"try\">try: {}</span></li>",
            escaped(&warning.what),
            escaped(warning.try_)
        );
    }
    for (kind, count) in &summary.marked {
        let _ = write!(
            html,
            "<li>{count} trials are marked: {}{}</li>",
            escaped(&kind.replace('_', " ")),
            if summary.left_out_marked { "; they were left out" } else { "" }
        );
    }
    html.push_str("</ul></section>\n");
    html
}

fn circumstances(results: &Results) -> String {
    let Some(trial) = results.trials.first() else { return String::new() };
    let setting = &trial.setting;
    let mut rows: Vec<(&str, String)> = vec![
        ("Machine", setting.host.clone()),
        ("CPU", setting.cpu.clone().unwrap_or_else(|| "unknown".into())),
        ("CPUs used", setting.cpus_allowed.clone().unwrap_or_else(|| "unknown".into())),
        ("GPUs", if setting.gpus.is_empty() { "none".into() } else { setting.gpus.join(", ") }),
        ("Kernel", setting.kernel.clone()),
        ("prun", setting.prun.clone()),
        ("Directory", setting.directory.display().to_string()),
    ];
    if let Some(git) = &setting.git {
        let changed =
            if git.changed_files > 0 { format!(", {} files changed", git.changed_files) } else { String::new() };
        rows.push((
            "Commit",
            format!(
                "{}{}{changed}",
                git.branch.as_deref().map(|branch| format!("{branch} ")).unwrap_or_default(),
                git.commit
            ),
        ));
    }
    if let Some(governor) = &trial.before.governor {
        rows.push(("Governor", governor.clone()));
    }
    let loads: Vec<f64> = results.trials.iter().filter_map(|trial| trial.before.load).collect();
    if !loads.is_empty() {
        let (low, high) =
            loads.iter().fold((f64::INFINITY, 0f64), |(low, high), load| (low.min(*load), high.max(*load)));
        rows.push(("Load", format!("{low:.1} to {high:.1}")));
    }
    for link in &trial.after.links {
        let speed = link.speed.as_deref().unwrap_or("unknown speed");
        let width = link.width.map_or_else(|| "unknown width".into(), |width| format!("x{width}"));
        rows.push(("Link", format!("{} {speed} {width}", link.device)));
    }
    rows.extend(setting.environment.iter().map(|(name, value)| ("Variable", format!("{name}={value}"))));
    let mut html = String::from("<section><h2>Circumstances</h2><table class=\"plain\"><tbody>");
    for (name, value) in rows {
        let _ = write!(html, "<tr><th>{name}</th><td>{}</td></tr>", escaped(&value));
    }
    html.push_str("</tbody></table></section>\n");
    html
}

fn trials(results: &Results, summary: &Summary) -> String {
    let marks = marks_of(results);
    let note = results.header.note(&summary.metric);
    let mut html = format!(
        "<section><details><summary>All {} trials</summary><div class=\"wide\"><table><thead><tr><th>combination</th><th class=\"r\">no.</th><th>state</th><th class=\"r\">{}</th><th class=\"r\">wall</th><th>remarks</th></tr></thead><tbody>",
        results.trials.len(),
        escaped(&summary.metric)
    );
    for (trial, marks) in results.trials.iter().zip(&marks).take(MOST_TRIALS) {
        let value = trial
            .figure(&summary.metric, note.take)
            .map_or_else(|| "–".into(), |value| figure(value, summary.unit.as_deref()));
        let wall = trial.wall_s.map_or_else(|| "–".into(), |wall| figure(wall, Some("s")));
        let _ = write!(
            html,
            "<tr><td>{}</td><td class=\"r\">{}</td><td class=\"{}\">{}</td><td class=\"r\">{value}</td><td class=\"r\">{wall}</td><td>{}</td></tr>",
            escaped(&trial.parameters.to_string()),
            if trial.key.warmup { "warm-up".into() } else { (trial.key.repetition + 1).to_string() },
            if trial.state == State::Done { "quiet" } else { "bad" },
            state(trial.state).replace('_', " "),
            escaped(&remarks(trial, &marks.iter().map(|mark| mark.what.as_str()).collect::<Vec<_>>()))
        );
    }
    html.push_str("</tbody></table></div></details></section>\n");
    html
}

fn remarks(trial: &Trial, marks: &[&str]) -> String {
    let retried = trial.retried.iter().map(|why| format!("started again: {why}"));
    let message = trial.message.clone().filter(|_| trial.state != State::Done);
    message.into_iter().chain(retried).chain(marks.iter().map(|mark| mark.to_string())).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::summary::tests::results;
    use crate::experiment::summary::{Wanted, summarize};

    #[test]
    fn the_page_needs_nothing_else_and_closes_what_it_opens() {
        let results = results(&["a=<script>", "a=y"], &[1.0, 2.0]);
        let page = page(&results, &summarize(&results, &Wanted::default(), None), None);
        assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="));
        for tag in ["main", "section", "table", "tbody", "thead", "tr", "td", "svg", "figure", "details", "div"] {
            let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
