//! One trial: starts a prun for it, and makes a [`Trial`] of what it left behind.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

use super::child;
use super::circumstances::{Moment, ProgramFile, Setting, Watch};
use super::figures;
use super::journal::{State, Trial};
use super::matrix::Variant;
use super::schedule::TrialKey;
use super::spec::Experiment;
use crate::exit;

/// Failures that are prun's or the machine's and worth another start: the kind of cause in prun's JSON result. A
/// rank's own exit is none of them, whatever its code; prun that ends with no result at all is one too.
pub const RETRIED: [&str; 4] = ["output", "keeper_killed", "rankd_gone", "rankd_asked"];

/// A trial that runs.
#[derive(Debug)]
pub struct Running {
    /// Which one.
    pub key: TrialKey,
    /// How many starts of it failed before, and how.
    pub retried: Vec<String>,
    child: Child,
    pidfd: OwnedFd,
    directory: PathBuf,
    command: Vec<OsString>,
    before: Moment,
    program: Option<ProgramFile>,
    began: Instant,
    started: SystemTime,
}

/// Where a trial's outputs are, from the sweep's directory.
pub fn directory(key: TrialKey) -> PathBuf {
    let letter = if key.warmup { 'w' } else { 'r' };
    Path::new("trials").join(format!("{:04}", key.variant)).join(format!("{letter}{:04}", key.repetition))
}

/// The command of a trial, as one would type it.
pub fn command(experiment: &Experiment, variant: &Variant) -> Vec<OsString> {
    let mut command: Vec<OsString> = vec!["prun".into()];
    command.extend(experiment.job_flags.iter().map(|flag| variant.fill(flag)));
    command.push("--".into());
    command.extend(experiment.program.iter().map(|word| variant.fill(word)));
    command
}

/// Starts a trial.
///
/// Its files are new, even if an interrupted sweep had begun it: then this waits until that start is gone, which holds
/// a lock on its file of messages.
pub fn start(experiment: &Experiment, key: TrialKey, retried: Vec<String>, watch: &Watch) -> io::Result<Running> {
    let directory = directory(key);
    let path = experiment.out.join(&directory);
    fs::create_dir_all(&path)?;
    let path = fs::canonicalize(&path)?;
    let messages = File::options().append(true).create(true).open(path.join("stderr"))?;
    flock(&messages, FlockOperation::LockExclusive)?;
    messages.set_len(0)?;
    for old in ["events.jsonl", "reports.jsonl"] {
        let _ = fs::remove_file(path.join(old));
    }
    let output = File::create(path.join("stdout"))?;
    let command = command(experiment, &experiment.variants[key.variant]);
    let program = ProgramFile::find(Path::new(&command[experiment.job_flags.len() + 2]));
    let mut reports = OsString::from(format!("{}=", comm::env::REPORT_FILE));
    reports.push(path.join("reports.jsonl"));
    let mut starting = Command::new("/proc/self/exe");
    starting.arg0("prun").arg(child::WORD).arg(std::process::id().to_string());
    starting.arg("--json").arg(path.join("events.jsonl")).arg("-x").arg(reports);
    if let Some(limit) = experiment
        .trials
        .timeout
        .filter(|_| !command.iter().any(|word| word.to_string_lossy().starts_with("--timeout")))
    {
        starting.arg(format!("--timeout={}ms", limit.as_millis().max(1)));
    }
    // A group of its own, so that Ctrl-C reaches it once, through the sweep.
    starting.args(&command[1..]).process_group(0).stdin(Stdio::null()).stdout(output).stderr(messages);
    let before = watch.now();
    let (began, started) = (Instant::now(), SystemTime::now());
    let child = starting.spawn()?;
    let pid = Pid::from_child(&child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(Running { key, retried, child, pidfd, directory, command, before, program, began, started })
}

impl Running {
    /// Readable once it has ended.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Passes a signal on.
    pub fn signal(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Takes its end, which has come.
    pub fn finish(mut self, experiment: &Experiment, watch: &Watch, setting: &Setting) -> io::Result<Box<Trial>> {
        let status = self.child.wait()?;
        let total_s = self.began.elapsed().as_secs_f64();
        let after = watch.now();
        let path = experiment.out.join(&self.directory);
        let result = result_line(&path.join("events.jsonl"));
        let cause = result
            .as_ref()
            .and_then(|result| result.get("cause")?.get("kind")?.as_str())
            .unwrap_or_default()
            .to_owned();
        let code =
            result.as_ref().and_then(|result| result.get("code")?.as_i64()).and_then(|code| i32::try_from(code).ok());
        let code = code.or(status.code()).unwrap_or(i32::from(exit::REFUSED));
        let state = match cause.as_str() {
            "time_limit" => State::TimedOut,
            cause if RETRIED.contains(&cause) || result.is_none() => State::Infrastructure,
            _ if code == 0 => State::Done,
            _ => State::Failed,
        };
        let ranks: Vec<Value> =
            result.as_ref().and_then(|result| result.get("ranks")?.as_array().cloned()).unwrap_or_default();
        let ends: Option<Vec<f64>> = ranks.iter().map(|rank| rank.get("after_s")?.as_f64()).collect();
        let wall_s = ends.filter(|ends| !ends.is_empty()).map(|ends| ends.into_iter().fold(0.0, f64::max));
        let message = result.as_ref().and_then(|result| result.get("message")?.as_str().map(String::from));
        let message = message.or_else(|| if state == State::Done { None } else { last_line(&path.join("stderr")) });
        let outputs = [path.join("stdout"), path.join("stderr")];
        Ok(Box::new(Trial {
            key: self.key,
            parameters: experiment.variants[self.key.variant].clone(),
            state,
            code,
            message,
            wall_s,
            total_s,
            started: self.started.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64()),
            ranks,
            figures: figures::collect(&experiment.figures, &[&outputs[0], &outputs[1]], &path.join("reports.jsonl")),
            command: self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            program: self.program,
            before: self.before,
            after,
            setting: setting.clone(),
            retried: self.retried,
            directory: self.directory,
        }))
    }
}

/// The last result that prun wrote; with restarts there are several.
fn result_line(events: &Path) -> Option<Value> {
    let text = fs::read(events).ok()?;
    let lines = text.rsplit(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    lines.into_iter().find(|line| line.get("event").and_then(Value::as_str) == Some("result"))
}

fn last_line(messages: &Path) -> Option<String> {
    let text = fs::read(messages).ok()?;
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(4096)..]).into_owned();
    text.lines().rfind(|line| !line.trim().is_empty()).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::args::SweepArgs;
    use crate::experiment::file;

    #[test]
    fn the_command_can_be_typed_again() {
        let args = SweepArgs {
            np: Some("2,4".into()),
            param: vec!["chunk=4K".into()],
            env: vec!["A={chunk}".into()],
            program: ["./b", "", "{chunk}", "{rank}"].map(OsString::from).to_vec(),
            ..SweepArgs::default()
        };
        let experiment = file::experiment(&args).unwrap();
        let words = command(&experiment, &experiment.variants[1]);
        assert_eq!(words, ["prun", "-n4", "-x", "A=4K", "--", "./b", "", "4K", "{rank}"]);
    }
}
