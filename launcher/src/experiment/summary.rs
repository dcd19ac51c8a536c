//! What a sweep's trials say together: a row for each variant, comparisons, warnings.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::figures::{Better, WALL};
use super::journal::{FigureNote, Results, State, Trial};
use super::marks::{Mark, marks};
use super::matrix::Variant;
use super::number;
use super::show;
use super::stats::compare::{Comparison, compare};
use super::stats::describe::Description;
use super::stats::warnings::{Kind, Warning, warnings};

/// All that reports are made of.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Of the sweep.
    pub name: String,
    /// The figure that everything is about.
    pub metric: String,
    /// Written behind it.
    pub unit: Option<String>,
    /// Which way is better.
    pub better: Better,
    /// All figures that trials have.
    pub figures: Vec<String>,
    /// One for each variant.
    pub rows: Vec<Row>,
    /// The parameter whose values were compared.
    pub compared: Option<String>,
    /// Variants against each other.
    pub comparisons: Vec<Against>,
    /// Variants against earlier results.
    pub earlier: Vec<Against>,
    /// Marks and how many trials have them.
    pub marked: Vec<(String, usize)>,
    /// How many trials there are, warm-ups and failed ones too.
    pub trials: usize,
    /// How many of them failed.
    pub failed: usize,
    /// Whether marked trials were left out.
    pub left_out_marked: bool,
}

/// One variant.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Its parameters.
    pub variant: Variant,
    /// What its figures say; `None` if there are none.
    pub description: Option<Description>,
    /// The figures themselves in the order of their trials.
    pub values: Vec<f64>,
    /// Medians of all other figures.
    pub others: BTreeMap<String, f64>,
    /// Trials that failed.
    pub failed: usize,
    /// Trials that are marked.
    pub marked: usize,
    /// The greatest memory of a rank.
    pub max_rss_kib: Option<u64>,
    /// The median of CPU seconds of all ranks.
    pub cpu_s: Option<f64>,
    /// Doubts.
    pub warnings: Vec<Warning>,
}

/// A variant against another.
#[derive(Debug, Clone, Serialize)]
pub struct Against {
    /// What is the same in both.
    pub at: Variant,
    /// The one that is compared.
    pub this: String,
    /// With which.
    pub base: String,
    /// What came out.
    #[serde(flatten)]
    pub comparison: Comparison,
}

/// What a report shall be about.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The figure; `None` is the sweep's own choice.
    pub metric: Option<String>,
    /// The parameter to compare; `None` is the sweep's own choice.
    pub compare: Option<String>,
    /// Without trials whose circumstances changed.
    pub leave_out_marked: bool,
}

/// Sums up.
pub fn summarize(results: &Results, wanted: &Wanted, earlier: Option<&Results>) -> Summary {
    let header = &results.header;
    let metric = metric(results, wanted);
    let FigureNote { unit, better, .. } = header.note(&metric);
    let marks = marks_of(results);
    let rows: Vec<Row> =
        (0..header.variants.len()).map(|variant| row(results, &marks, variant, &metric, wanted)).collect();
    let compared = wanted.compare.clone().or_else(|| header.compare.clone()).or_else(|| compared(&header.variants));
    let mut counts: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (index, marks) in marks.iter().enumerate() {
        for mark in marks {
            // Numbers differ from trial to trial; what they are about is told once.
            let key = serde_json::to_value(mark.kind)
                .ok()
                .and_then(|kind| kind.as_str().map(String::from))
                .unwrap_or_default();
            counts.entry(key).or_default().insert(index);
        }
    }
    Summary {
        name: header.name.clone(),
        unit,
        better,
        figures: figure_names(results),
        comparisons: compared.as_deref().map(|parameter| comparisons(&rows, parameter)).unwrap_or_default(),
        earlier: earlier.map(|earlier| against(results, earlier, &metric, wanted)).unwrap_or_default(),
        marked: counts.into_iter().map(|(kind, trials)| (kind, trials.len())).collect(),
        trials: results.trials.len(),
        failed: results.trials.iter().filter(|trial| trial.state != State::Done).count(),
        left_out_marked: wanted.leave_out_marked,
        rows,
        metric,
        compared,
    }
}

/// The marks of each trial.
pub fn marks_of(results: &Results) -> Vec<Vec<Mark>> {
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
    marks(&results.trials, cpus)
}

/// Wall time, what the experiment declared, and whatever else was reported.
pub fn figure_names(results: &Results) -> Vec<String> {
    let mut names: Vec<String> = vec![WALL.into()];
    let reported = results.trials.iter().flat_map(|trial| trial.figures.keys());
    for name in results.header.figures.keys().chain(reported) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

fn metric(results: &Results, wanted: &Wanted) -> String {
    let chosen = wanted.metric.clone().or_else(|| results.header.metric.clone());
    chosen.or_else(|| results.header.figures.keys().next().cloned()).unwrap_or_else(|| WALL.into())
}

/// Indices of a variant's trials that count, in the order in which they ran.
fn measured(results: &Results, marks: &[Vec<Mark>], variant: usize, wanted: &Wanted) -> Vec<usize> {
    let counts = |&index: &usize| {
        let trial = &results.trials[index];
        trial.key.variant == variant && !trial.key.warmup && (!wanted.leave_out_marked || marks[index].is_empty())
    };
    let mut found: Vec<usize> = (0..results.trials.len()).filter(counts).collect();
    found.sort_by(|&a, &b| results.trials[a].started.total_cmp(&results.trials[b].started));
    found
}

fn row(results: &Results, marks: &[Vec<Mark>], variant: usize, metric: &str, wanted: &Wanted) -> Row {
    let trials: Vec<&Trial> =
        measured(results, marks, variant, wanted).into_iter().map(|index| &results.trials[index]).collect();
    let values_of = |name: &str| -> Vec<f64> {
        let take = results.header.note(name).take;
        trials.iter().filter_map(|trial| trial.figure(name, take)).collect()
    };
    let values = values_of(metric);
    let unit = results.header.note(metric).unit;
    let median = |values: &[f64]| Description::of(values).map(|description| description.median);
    let others = figure_names(results).into_iter().filter(|name| name != metric);
    let cpu: Vec<f64> = trials.iter().filter(|trial| trial.state == State::Done).map(|trial| trial.cpu_s()).collect();
    let all = (0..results.trials.len()).filter(|&index| results.trials[index].key.variant == variant);
    Row {
        variant: results.header.variants[variant].clone(),
        description: Description::of(&values),
        others: others.filter_map(|name| median(&values_of(&name)).map(|median| (name, median))).collect(),
        failed: all.clone().filter(|&index| results.trials[index].state != State::Done).count(),
        marked: all.filter(|&index| !marks[index].is_empty()).count(),
        max_rss_kib: trials.iter().filter_map(|trial| trial.max_rss_kib()).max(),
        cpu_s: median(&cpu),
        warnings: if values.is_empty() {
            Vec::new()
        } else {
            warnings(&values, &|value| show::figure(value, unit.as_deref()))
        },
        values,
    }
}

/// The only parameter that varies, or the last whose values are words: those are alternatives to choose from.
fn compared(variants: &[Variant]) -> Option<String> {
    let names: Vec<&String> = variants.first()?.0.iter().map(|(name, _)| name).collect();
    let values = |name: &str| variants.iter().filter_map(|variant| variant.get(name)).collect::<BTreeSet<_>>();
    let varying: Vec<&&String> = names.iter().filter(|name| values(name).len() > 1).collect();
    match varying.as_slice() {
        [only] => Some((**only).clone()),
        _ => varying
            .iter()
            .rev()
            .find(|name| values(name).iter().any(|value| number::parse(value).is_none()))
            .map(|name| (**name).clone()),
    }
}

fn comparisons(rows: &[Row], parameter: &str) -> Vec<Against> {
    let mut found = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let Some(value) = row.variant.get(parameter) else { continue };
        let at = row.variant.without(parameter);
        // The first variant that differs in nothing else has the first value.
        let Some(base) = rows[..index].iter().find(|base| base.variant.without(parameter) == at) else { continue };
        let name = |value: &str| format!("{parameter}={value}");
        found.push(Against {
            this: name(value),
            base: name(base.variant.get(parameter).unwrap_or_default()),
            comparison: compare(&base.values, &row.values),
            at,
        });
    }
    found
}

fn against(results: &Results, earlier: &Results, metric: &str, wanted: &Wanted) -> Vec<Against> {
    let (now, before) = (marks_of(results), marks_of(earlier));
    let of = |results: &Results, marks: &[Vec<Mark>], variant| row(results, marks, variant, metric, wanted).values;
    let pairs = results.header.variants.iter().enumerate().filter_map(|(index, variant)| {
        let other = earlier.header.variants.iter().position(|other| other == variant)?;
        Some((index, other, variant))
    });
    pairs
        .map(|(index, other, variant)| Against {
            at: variant.clone(),
            this: "now".into(),
            base: "earlier".into(),
            comparison: compare(&of(earlier, &before, other), &of(results, &now, index)),
        })
        .collect()
}

impl Summary {
    /// Warnings of all rows, equal ones of many rows told once.
    pub fn warnings(&self) -> Vec<(String, &Warning)> {
        let mut told: Vec<(String, &Warning)> = Vec::new();
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        let several = self.rows.len() > 1;
        for row in &self.rows {
            for warning in &row.warnings {
                let key = format!("{:?}", warning.kind);
                let times = kinds.entry(key).or_insert(0);
                *times += 1;
                // Too few trials is said of the first; it is the same for all.
                if *times == 1 || (*times <= 3 && warning.kind != Kind::FewTrials) {
                    told.push((if several { row.variant.to_string() } else { String::new() }, warning));
                }
            }
        }
        told
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::journal::tests::{header, trial};
    use super::*;

    /// Results of these variants, whose figures are their factor times a repeating pattern.
    pub(crate) fn results(variants: &[&str], factors: &[f64]) -> Results {
        let header = header(variants);
        let mut trials = Vec::new();
        for repetition in 0..12 {
            for (variant, factor) in factors.iter().enumerate() {
                trials.push(trial(&header, variant, repetition, factor * (1.0 + 0.01 * f64::from(repetition * 7 % 5))));
            }
        }
        Results::new(header, trials)
    }

    #[test]
    fn values_of_one_parameter_are_compared_with_its_first() {
        let results =
            results(&["n=2 algo=ring", "n=2 algo=tree", "n=4 algo=ring", "n=4 algo=tree"], &[1.0, 1.3, 2.0, 2.0]);
        let summary = summarize(&results, &Wanted::default(), None);
        assert_eq!(summary.compared.as_deref(), Some("algo"));
        assert_eq!(summary.comparisons.len(), 2);
        let [slower, same] = &summary.comparisons[..] else { panic!() };
        assert!(matches!(slower.comparison, Comparison::Different { ratio, .. } if (ratio - 1.3).abs() < 0.01));
        assert_eq!(
            (slower.at.to_string(), slower.this.as_str(), slower.base.as_str()),
            ("n=2".into(), "algo=tree", "algo=ring")
        );
        assert!(matches!(same.comparison, Comparison::NoDifferenceSeen { .. }));
        assert_eq!(summary.rows[0].description.as_ref().unwrap().count, 12);
    }

    #[test]
    fn two_files_are_compared_variant_by_variant() {
        let earlier = results(&["n=2", "n=4"], &[1.0, 2.0]);
        let now = results(&["n=4", "n=8"], &[1.5, 3.0]);
        let summary = summarize(&now, &Wanted::default(), Some(&earlier));
        assert_eq!(summary.earlier.len(), 1);
        assert!(
            matches!(summary.earlier[0].comparison, Comparison::Different { ratio, .. } if (ratio - 0.75).abs() < 0.01)
        );
    }

    #[test]
    fn failed_and_marked_trials_do_not_count() {
        let mut results = results(&["n=2"], &[1.0]);
        results.trials[3].state = State::Failed;
        results.trials[4].after.throttled = Some(1);
        results.trials[4].before.throttled = Some(0);
        let summary = summarize(&results, &Wanted { leave_out_marked: true, ..Wanted::default() }, None);
        let row = &summary.rows[0];
        assert_eq!((row.values.len(), row.failed, row.marked, summary.failed), (10, 1, 1, 1));
        assert_eq!(summary.marked, [("throttled".to_owned(), 1)]);
        assert_eq!(summarize(&results, &Wanted::default(), None).rows[0].values.len(), 11);
    }
}
