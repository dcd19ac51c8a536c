//! `results.jsonl`: what a sweep is, and one line for each finished trial.
//!
//! A line is written with one call when its trial has ended. Whatever kills the sweep, each line but perhaps the last
//! is whole; a torn last line is cut off before the sweep goes on. Only one sweep at a time holds the file.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::circumstances::{Moment, ProgramFile, Setting};
use super::figures::{Better, Figure, Sample, Take, WALL};
use super::matrix::Variant;
use super::schedule::TrialKey;
use super::spec::Experiment;
use crate::refused::Refused;

/// The name of the file in a sweep's directory.
pub const FILE: &str = "results.jsonl";
/// The format of its lines.
const FORMAT: u32 = 1;
/// Lines reach the disk at least so often; a kill loses nothing that was written, only a power cut can.
const SYNC_EVERY: Duration = Duration::from_secs(2);

/// The first line: what the sweep is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Of the lines.
    pub format: u32,
    /// What tables and plots call it.
    pub name: String,
    /// Program and arguments with their placeholders.
    pub program: Vec<String>,
    /// Flags of each trial's prun.
    pub job_flags: Vec<String>,
    /// The combinations; trials name them by their index.
    pub variants: Vec<Variant>,
    /// How figures are read.
    pub figures: BTreeMap<String, FigureNote>,
    /// The figure that is compared.
    pub metric: Option<String>,
    /// The parameter whose values are compared.
    pub compare: Option<String>,
}

/// What a table must know of a figure.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FigureNote {
    /// What several samples count as.
    pub take: Take,
    /// Written behind it.
    pub unit: Option<String>,
    /// Which way is better.
    pub better: Better,
}

impl Header {
    /// Of this experiment.
    pub fn of(experiment: &Experiment) -> Header {
        let texts =
            |words: &[std::ffi::OsString]| words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let note = |figure: &Figure| FigureNote { take: figure.take, unit: figure.unit.clone(), better: figure.better };
        Header {
            format: FORMAT,
            name: experiment.name.clone(),
            program: texts(&experiment.program),
            job_flags: texts(&experiment.job_flags),
            variants: experiment.variants.clone(),
            figures: experiment.figures.iter().map(|figure| (figure.name.clone(), note(figure))).collect(),
            metric: experiment.report.metric.clone(),
            compare: experiment.report.compare.clone(),
        }
    }

    /// What differs so much that trials of the two must not stand in one file.
    fn difference(&self, other: &Header) -> Option<&'static str> {
        if self.program != other.program {
            Some("the program or its arguments")
        } else if self.job_flags != other.job_flags {
            Some("the options of its job")
        } else if self.variants != other.variants {
            Some("the combinations of parameters")
        } else {
            None
        }
    }

    /// What is known of a figure.
    pub fn note(&self, figure: &str) -> FigureNote {
        let wall = || FigureNote { unit: Some("s".into()), ..FigureNote::default() };
        self.figures.get(figure).cloned().unwrap_or_else(|| if figure == WALL { wall() } else { FigureNote::default() })
    }
}

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Every rank ended with 0.
    Done,
    /// A rank failed, or the program could not be started.
    Failed,
    /// It took too long.
    TimedOut,
    /// prun or the machine failed, and again when it was retried.
    Infrastructure,
}

/// One trial, with everything that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Which one it is.
    pub key: TrialKey,
    /// Its parameters.
    pub parameters: Variant,
    /// How it ended.
    pub state: State,
    /// The exit code of its prun.
    pub code: i32,
    /// The sentence about a failure.
    pub message: Option<String>,
    /// Seconds from the start of its ranks to the end of the last.
    pub wall_s: Option<f64>,
    /// The same with all that prun and the sweep do around it.
    pub total_s: f64,
    /// When it began, seconds since 1970.
    pub started: f64,
    /// The ranks, each with how it ended and what it used.
    pub ranks: Vec<Value>,
    /// What the program reported, every sample.
    pub figures: BTreeMap<String, Vec<Sample>>,
    /// The command that does the same again.
    pub command: Vec<String>,
    /// Its program's file.
    pub program: Option<ProgramFile>,
    /// How the machine was before.
    pub before: Moment,
    /// And after.
    pub after: Moment,
    /// What stayed the same for the sweep.
    pub setting: Setting,
    /// Earlier starts of this trial that prun or the machine failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retried: Vec<String>,
    /// Where its outputs are, from the sweep's directory.
    pub directory: PathBuf,
}

impl Trial {
    /// What it counts as in one figure; `None` if it failed or did not report it.
    pub fn figure(&self, name: &str, take: Take) -> Option<f64> {
        if self.state != State::Done {
            return None;
        }
        if name == WALL { self.wall_s } else { take.of(self.figures.get(name)?) }
    }

    /// The greatest resident memory of its ranks.
    pub fn max_rss_kib(&self) -> Option<u64> {
        self.ranks.iter().filter_map(|rank| rank.get("max_rss_kib")?.as_u64()).max()
    }

    /// CPU seconds of all its ranks.
    pub fn cpu_s(&self) -> f64 {
        let seconds = |rank: &Value, key: &str| rank.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        self.ranks.iter().map(|rank| seconds(rank, "user_s") + seconds(rank, "system_s")).sum()
    }
}

/// What a file of results holds.
#[derive(Debug, Clone)]
pub struct Results {
    /// The sweep.
    pub header: Header,
    /// Its finished trials in the order of their ends.
    pub trials: Vec<Trial>,
    /// Bytes up to the end of the last whole line.
    whole: u64,
}

#[cfg(test)]
impl Results {
    /// As if they had been read.
    pub(crate) fn new(header: Header, trials: Vec<Trial>) -> Results {
        Results { header, trials, whole: 0 }
    }
}

/// Reads the results in a sweep's directory, or in the file itself.
pub fn read(path: &Path) -> Result<Results, Refused> {
    let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
    let text = std::fs::read(&path).map_err(|cause| {
        Refused::new(format!("cannot read the results {}", path.display()))
            .because(cause)
            .try_instead("the directory that `prun sweep` wrote")
    })?;
    parse(&path, &text)
}

fn parse(path: &Path, text: &[u8]) -> Result<Results, Refused> {
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let mut lines = text[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).enumerate();
    let wrong = |number: usize, cause: serde_json::Error| {
        Refused::new(format!("line {} of {} is not one that a sweep writes", number + 1, path.display())).because(cause)
    };
    let Some((_, first)) = lines.next() else {
        return Err(Refused::new(format!("{} holds no results", path.display())));
    };
    let header: Header = serde_json::from_slice(first).map_err(|cause| wrong(0, cause))?;
    if header.format != FORMAT {
        return Err(Refused::new(format!(
            "{} has format {}, and this prun reads {FORMAT}",
            path.display(),
            header.format
        )));
    }
    let trials = lines
        .map(|(number, line)| serde_json::from_slice(line).map_err(|cause| wrong(number, cause)))
        .collect::<Result<Vec<Trial>, _>>()?;
    Ok(Results { header, trials, whole: whole as u64 })
}

/// The file while its sweep runs.
#[derive(Debug)]
pub struct Journal {
    file: File,
    synced: Instant,
}

impl Journal {
    /// Begins a new file, or goes on with the one that is there; then its trials come along.
    pub fn open(directory: &Path, header: &Header, resume: bool) -> Result<(Journal, Vec<Trial>), Refused> {
        let path = directory.join(FILE);
        let failed = |cause: io::Error| {
            Refused::new(format!("cannot write results to {}", path.display()))
                .because(cause)
                .try_instead("another directory: --out DIR")
        };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path).map_err(failed)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Refused::new(format!("another sweep is writing to {}", path.display()))
                .try_instead("another directory: --out DIR")
        })?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(failed)?;
        if !text.contains(&b'\n') {
            // Nothing, or a first line that was torn: the sweep had not begun.
            file.set_len(0).map_err(failed)?;
            let mut journal = Journal { file, synced: Instant::now() };
            journal.append(header).map_err(failed)?;
            return Ok((journal, Vec::new()));
        }
        let results = parse(&path, &text)?;
        if !resume {
            return Err(Refused::new(format!("{} holds {} trials already", path.display(), results.trials.len()))
                .try_instead("--resume to go on with them, or --out DIR for another directory"));
        }
        if let Some(difference) = results.header.difference(header) {
            return Err(Refused::new(format!("{difference} changed since {} was begun", path.display()))
                .try_instead("--out DIR for a new sweep; only how often and in which order may change"));
        }
        file.set_len(results.whole).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok((Journal { file, synced: Instant::now() }, results.trials))
    }

    /// Adds a line.
    pub fn append(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.file.write_all(&text)?;
        if self.synced.elapsed() >= SYNC_EVERY {
            self.sync()?;
        }
        Ok(())
    }

    /// Waits until everything is on the disk.
    pub fn sync(&mut self) -> io::Result<()> {
        self.synced = Instant::now();
        self.file.sync_data()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A header with these variants.
    pub(crate) fn header(variants: &[&str]) -> Header {
        let variant = |text: &&str| {
            let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
            Variant(pairs.map(|(name, value)| (name.into(), value.into())).collect())
        };
        Header {
            format: FORMAT,
            name: "test".into(),
            program: vec!["./bench".into()],
            job_flags: vec!["-n2".into()],
            variants: variants.iter().map(variant).collect(),
            figures: BTreeMap::new(),
            metric: None,
            compare: None,
        }
    }

    /// A trial that took so long.
    pub(crate) fn trial(header: &Header, variant: usize, repetition: u32, wall_s: f64) -> Trial {
        Trial {
            key: TrialKey { variant, warmup: false, repetition },
            parameters: header.variants[variant].clone(),
            state: State::Done,
            code: 0,
            message: None,
            wall_s: Some(wall_s),
            total_s: wall_s + 0.003,
            started: 1.7e9 + f64::from(repetition),
            ranks: vec![serde_json::json!({ "rank": 0, "max_rss_kib": 2048, "user_s": 0.5, "system_s": 0.25 })],
            figures: BTreeMap::new(),
            command: vec!["prun".into()],
            program: None,
            before: Moment::default(),
            after: Moment::default(),
            setting: Setting::default(),
            retried: Vec::new(),
            directory: "trials/0/0".into(),
        }
    }

    #[test]
    fn a_torn_line_is_cut_off_and_the_rest_kept() {
        let directory = std::env::temp_dir().join(format!("prun-test-journal-{}", std::process::id()));
        let header = header(&["n=2 a=x", "n=2 a=y"]);
        let (mut journal, trials) = Journal::open(&directory, &header, false).unwrap();
        assert!(trials.is_empty());
        let first = trial(&header, 1, 0, 0.125);
        journal.append(&first).unwrap();
        let busy = Journal::open(&directory, &header, true).unwrap_err();
        assert!(busy.message.contains("another sweep is writing"), "{busy}");
        drop(journal);
        let path = directory.join(FILE);
        let whole = std::fs::read(&path).unwrap();
        for torn in [&b"{\"key\":{\"var"[..], b"", b"\xff"] {
            std::fs::write(&path, [&whole, torn].concat()).unwrap();
            let (mut journal, trials) = Journal::open(&directory, &header, true).unwrap();
            assert_eq!(trials, std::slice::from_ref(&first));
            journal.append(&trial(&header, 0, 0, 0.25)).unwrap();
            drop(journal);
            assert_eq!(read(&directory).unwrap().trials.len(), 2);
        }
        let not_empty = Journal::open(&directory, &header, false).unwrap_err();
        assert!(not_empty.message.contains("holds 2 trials already"), "{not_empty}");
        let changed = Header { job_flags: vec!["-n4".into()], ..header.clone() };
        let refused = Journal::open(&directory, &changed, true).unwrap_err();
        assert!(refused.message.contains("the options of its job changed"), "{refused}");
        std::fs::write(&path, b"{\"form").unwrap();
        assert!(Journal::open(&directory, &header, false).unwrap().1.is_empty());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
