//! The figures that a trial's program reports: by `comm_report`, in its output, or as lines of JSON.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use regex::bytes::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::stats::describe;

/// No more of an output is searched for figures.
const SEARCHED: u64 = 64 << 20;

/// The figure that every trial has: seconds from the start of its ranks to the end of the last.
pub const WALL: &str = "wall_s";

/// A figure that trials report.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Its name in tables.
    pub name: String,
    /// Where it is found.
    pub source: Source,
    /// What a trial with several of them counts as.
    pub take: Take,
    /// Written behind it.
    pub unit: Option<String>,
    /// Which way is better.
    pub better: Better,
}

/// Where a figure is found.
#[derive(Debug, Clone)]
pub enum Source {
    /// `comm_report(name, value)`.
    Reported,
    /// In the output: the group `value`, the first group, or all that matches.
    Regex(Regex),
    /// In lines of the output that are JSON objects: this key, or `outer.inner`.
    Json(String),
}

/// What a trial with several samples counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Take {
    /// Their median.
    #[default]
    Median,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// The last.
    Last,
    /// All together.
    Sum,
}

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Less, as for times.
    #[default]
    Lower,
    /// More, as for rates.
    Higher,
}

/// One value as it was reported.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The value.
    pub value: f64,
    /// Who reported it, where that is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rank: Option<u32>,
}

impl Take {
    /// What these samples count as.
    pub fn of(self, samples: &[Sample]) -> Option<f64> {
        let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
        let last = *values.last()?;
        Some(match self {
            Take::Median => describe::median(&values),
            Take::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
            Take::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Take::Last => last,
            Take::Sum => values.iter().sum(),
        })
    }
}

/// All samples of a trial: the figures that were asked for, and whatever `comm_report` named besides.
pub fn collect(figures: &[Figure], outputs: &[&Path], reports: &Path) -> BTreeMap<String, Vec<Sample>> {
    let mut found: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
    for (name, sample) in text_of(reports).split(|&byte| byte == b'\n').filter_map(reported) {
        found.entry(name).or_default().push(sample);
    }
    let wants_output = figures.iter().any(|figure| !matches!(figure.source, Source::Reported));
    let outputs: Vec<Vec<u8>> =
        if wants_output { outputs.iter().map(|path| text_of(path)).collect() } else { Vec::new() };
    for figure in figures {
        let values: Vec<f64> = outputs
            .iter()
            .flat_map(|text| match &figure.source {
                Source::Reported => Vec::new(),
                Source::Regex(regex) => matches(regex, text),
                Source::Json(key) => {
                    text.split(|&byte| byte == b'\n').filter_map(|line| json_value(line, key)).collect()
                }
            })
            .collect();
        if !values.is_empty() {
            found
                .entry(figure.name.clone())
                .or_default()
                .extend(values.into_iter().map(|value| Sample { value, rank: None }));
        }
    }
    found
}

fn text_of(path: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(SEARCHED).read_to_end(&mut text);
    }
    text
}

/// `{"report":"latency_us","value":3.2,"rank":0}`, as libcomm writes it.
fn reported(line: &[u8]) -> Option<(String, Sample)> {
    let line: Value = serde_json::from_slice(line).ok()?;
    let name = line.get("report")?.as_str()?.to_owned();
    let value = line.get("value")?.as_f64()?;
    let rank = line.get("rank").and_then(Value::as_u64).and_then(|rank| u32::try_from(rank).ok());
    (name != WALL).then_some((name, Sample { value, rank }))
}

fn matches(regex: &Regex, text: &[u8]) -> Vec<f64> {
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.trim().replace(',', "").parse::<f64>().ok();
    regex
        .captures_iter(text)
        .filter_map(|groups| groups.name("value").or(groups.get(1)).or(groups.get(0)))
        .filter_map(|found| number(found.as_bytes()))
        .filter(|value| value.is_finite())
        .collect()
}

fn json_value(line: &[u8], key: &str) -> Option<f64> {
    let line = line.trim_ascii();
    if line.first() != Some(&b'{') {
        return None;
    }
    let line: Value = serde_json::from_slice(line).ok()?;
    key.split('.').try_fold(&line, |value, key| value.get(key))?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_reports_output_and_json() {
        let output = b"size 4096\ntime: 1,234.5 us\nnoise \xff\ntime: 7 us\n{\"p\": {\"q\": 3}}\n{broken\n";
        assert_eq!(matches(&Regex::new(r"time: ([0-9.,]+) us").unwrap(), output), [1234.5, 7.0]);
        assert_eq!(matches(&Regex::new(r"size (?<value>\d+)").unwrap(), output), [4096.0]);
        assert!(matches(&Regex::new(r"\d+ us").unwrap(), output).is_empty());
        let values: Vec<f64> = output.split(|&byte| byte == b'\n').filter_map(|line| json_value(line, "p.q")).collect();
        assert_eq!(values, [3.0]);
        let (name, sample) = reported(br#"{"report":"loss","value":0.5,"rank":3}"#).unwrap();
        assert_eq!((name.as_str(), sample), ("loss", Sample { value: 0.5, rank: Some(3) }));
        assert!(reported(b"{\"report\":\"loss\",\"val").is_none());
    }

    #[test]
    fn several_samples_count_as_one_figure() {
        let samples = [3.0, 1.0, 2.0].map(|value| Sample { value, rank: None });
        let taken = [Take::Median, Take::Min, Take::Max, Take::Last, Take::Sum].map(|take| take.of(&samples));
        assert_eq!(taken, [2.0, 1.0, 3.0, 2.0, 6.0].map(Some));
        assert_eq!(Take::Median.of(&[]), None);
    }
}
