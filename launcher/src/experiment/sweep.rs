//! Runs a sweep: the one loop that starts trials, waits for them and writes down what came of them.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::libc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};

use super::circumstances::{Setting, Watch};
use super::figures::WALL;
use super::journal::{Header, Journal, State, Trial};
use super::progress::Progress;
use super::schedule::{Done, Next, Schedule, TrialKey};
use super::spec::Experiment;
use super::trial::{self, Running};
use crate::refused::Refused;
use crate::supervise::signals::{Signals, signal_name};

/// Who ends a whole job (`scancel`, a time limit, an administrator's loop of kills) signals all its processes, in any
/// order: a rank may have died of it before the sweep is told. What a trial that seems to have ended so counts for is decided
/// so long after its end.
const SAME_SIGNAL: Duration = Duration::from_millis(250);

/// How a sweep ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All trials are done.
    Complete,
    /// The time is used up.
    OutOfTime,
    /// A signal ended it.
    Signal(i32),
    /// Its program cannot be started: this is prun's code for it.
    CannotStart(i32),
}

/// Runs the trials that `experiment` still lacks.
///
/// # Errors
/// [`Refused`] if it cannot begin, or its results cannot be written.
pub fn run(
    experiment: &Experiment,
    inherited: &[(OsString, OsString)],
    resume: bool,
    quiet: bool,
) -> Result<End, Refused> {
    check(experiment, inherited)?;
    let signals = Signals::block().map_err(|cause| Refused::new("cannot watch for signals").because(cause))?;
    let (journal, earlier) = Journal::open(&experiment.out, &Header::of(experiment), resume)?;
    let mut schedule = Schedule::new(&experiment.trials, experiment.variants.len());
    let metric = experiment.report.metric.clone();
    let spent = earlier.iter().map(|trial| trial.total_s).sum::<f64>();
    for trial in &earlier {
        schedule.finish(trial.key, done(experiment, metric.as_deref(), trial));
    }
    let any_success = earlier.iter().any(|trial| trial.state == State::Done);
    let mut sweep = Sweep {
        experiment,
        signals,
        journal,
        watch: Watch::new(Path::new("/")),
        setting: Setting::read(Path::new("/"), inherited),
        progress: Progress::new(quiet, schedule.done()),
        schedule,
        metric,
        running: Vec::new(),
        held: Vec::new(),
        cpus: std::thread::available_parallelism().map_or(1, |count| count.get()),
        deadline: experiment
            .trials
            .budget
            .map(|budget| Instant::now() + budget.saturating_sub(Duration::from_secs_f64(spent))),
        any_success,
        end: None,
    };
    let result = sweep.run();
    sweep.progress.end();
    let synced = sweep.journal.sync();
    result.and(synced).map_err(|cause| cannot_go_on(experiment, &cause))?;
    Ok(sweep.end.unwrap_or(End::Complete))
}

fn cannot_go_on(experiment: &Experiment, cause: &io::Error) -> Refused {
    Refused::new(format!("cannot go on with the sweep in {}", experiment.out.display()))
        .because(cause)
        .try_instead("--resume, once there is room and permission")
}

/// Every variant's job is read as prun will read it, so that a wrong option is found before the first trial.
fn check(experiment: &Experiment, inherited: &[(OsString, OsString)]) -> Result<(), Refused> {
    for variant in experiment.variants.iter().take(1_000) {
        match crate::command::read(trial::command(experiment, variant), inherited) {
            Ok(_) => {}
            Err(refused) => {
                return Err(Refused { message: format!("a trial cannot be started: {}", refused.message), ..refused });
            }
        }
    }
    Ok(())
}

/// What the schedule must know.
fn done(experiment: &Experiment, metric: Option<&str>, trial: &Trial) -> Done {
    let first = || experiment.figures.first().map(|figure| figure.name.as_str());
    let name = metric.or_else(first).unwrap_or(WALL);
    let take =
        experiment.figures.iter().find(|figure| figure.name == name).map(|figure| figure.take).unwrap_or_default();
    Done { figure: trial.figure(name, take) }
}

struct Sweep<'a> {
    experiment: &'a Experiment,
    signals: Signals,
    journal: Journal,
    watch: Watch,
    setting: Setting,
    progress: Progress,
    schedule: Schedule,
    metric: Option<String>,
    running: Vec<Running>,
    held: Vec<Held>,
    cpus: usize,
    deadline: Option<Instant>,
    any_success: bool,
    end: Option<End>,
}

/// A trial that ended as if it had been signalled.
struct Held {
    until: Instant,
    trial: Box<Trial>,
    /// Why earlier starts of it failed.
    retried: Vec<String>,
}

impl Sweep<'_> {
    fn run(&mut self) -> io::Result<()> {
        let mut waiting: Option<TrialKey> = None;
        loop {
            while self.end.is_none() && self.busy() < self.experiment.trials.jobs as usize {
                if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    self.end = Some(End::OutOfTime);
                    break;
                }
                let Some(key) = waiting.take().or_else(|| match self.schedule.advance() {
                    Next::Start(key) => Some(key),
                    Next::Wait | Next::Over => None,
                }) else {
                    break;
                };
                if !self.running.is_empty() && !self.has_room(key) {
                    waiting = Some(key);
                    break;
                }
                self.show_start(key);
                let running = trial::start(self.experiment, key, Vec::new(), &self.watch)?;
                self.running.push(running);
            }
            if self.busy() == 0 {
                return Ok(());
            }
            self.wait()?;
            self.settle()?;
        }
    }

    fn busy(&self) -> usize {
        self.running.len() + self.held.len()
    }

    /// Several trials at once must not share CPUs.
    fn has_room(&self, key: TrialKey) -> bool {
        let ranks = |key: TrialKey| {
            let flag = self.experiment.variants[key.variant].fill(&self.experiment.job_flags[0]);
            flag.to_str().and_then(|flag| flag.strip_prefix("-n")?.parse::<usize>().ok()).unwrap_or(1)
        };
        ranks(key) + self.running.iter().map(|running| ranks(running.key)).sum::<usize>() <= self.cpus
    }

    fn show_start(&mut self, key: TrialKey) {
        let what = format!("{} {}", self.experiment.variants[key.variant], if key.warmup { "(warm-up)" } else { "" });
        self.progress.show(self.schedule.done(), self.schedule.total(), what.trim());
    }

    /// Waits until a trial ends or a signal comes, and does what is to be done about it.
    fn wait(&mut self) -> io::Result<()> {
        let (signalled, ended) = {
            let mut fds = vec![PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
            fds.extend(self.running.iter().map(|running| PollFd::from_borrowed_fd(running.as_fd(), PollFlags::IN)));
            let until = self.held.iter().map(|held| held.until).min();
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            (ready[0], ready[1..].iter().rposition(|ready| *ready))
        };
        if signalled {
            for signal in self.signals.read() {
                self.on_signal(signal);
            }
        }
        match ended {
            Some(at) => {
                let running = self.running.remove(at);
                self.on_end(running)
            }
            None => Ok(()),
        }
    }

    fn on_signal(&mut self, signal: i32) {
        match signal {
            libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT => {
                if self.end.is_none() {
                    self.progress.say(&format!(
                        "prun: {}: ending the trials that run; --resume goes on later",
                        signal_name(signal)
                    ));
                }
                self.end = Some(End::Signal(signal));
                self.running.iter().for_each(|running| running.signal(signal));
            }
            libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => {
                self.running.iter().for_each(|running| running.signal(libc::SIGTSTP));
                let _ = kill_process(getpid(), Signal::STOP);
                self.running.iter().for_each(|running| running.signal(libc::SIGCONT));
            }
            libc::SIGWINCH | libc::SIGCONT | libc::SIGURG | libc::SIGPIPE => {}
            _ => self.running.iter().for_each(|running| running.signal(signal)),
        }
    }

    fn on_end(&mut self, running: Running) -> io::Result<()> {
        let retried = running.retried.clone();
        let trial = running.finish(self.experiment, &self.watch, &self.setting)?;
        let may_have_been_signalled = match trial.state {
            State::Done | State::TimedOut => false,
            State::Failed => trial.code > 128,
            State::Infrastructure => true,
        };
        match may_have_been_signalled && !self.is_being_ended() {
            true => {
                self.held.push(Held { until: Instant::now() + SAME_SIGNAL, trial, retried });
                Ok(())
            }
            false => self.conclude(trial, retried),
        }
    }

    /// Decides about held trials, whose time is over or for which nothing is left to wait for.
    fn settle(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let is_due = |held: &Held, ends: bool| ends || held.until <= now;
        while let Some(at) = self.held.iter().position(|held| is_due(held, self.is_being_ended())) {
            let Held { trial, retried, .. } = self.held.remove(at);
            self.conclude(trial, retried)?;
        }
        Ok(())
    }

    /// Whether trials are being ended that would have gone on.
    fn is_being_ended(&self) -> bool {
        matches!(self.end, Some(End::Signal(_) | End::CannotStart(_)))
    }

    fn conclude(&mut self, trial: Box<Trial>, retried: Vec<String>) -> io::Result<()> {
        let failed = matches!(trial.state, State::Failed | State::Infrastructure);
        if failed && self.is_being_ended() {
            // It says nothing of its program: `--resume` does it again.
            self.schedule.forget(trial.key);
            return Ok(());
        }
        if trial.state == State::Infrastructure && retried.len() < self.experiment.trials.retries as usize {
            let why = trial.message.unwrap_or_else(|| format!("prun ended with {}", trial.code));
            self.progress.say(&format!("prun: {}: starting it again: {why}", trial.parameters));
            let retried = [retried, vec![why]].concat();
            let running = trial::start(self.experiment, trial.key, retried, &self.watch)?;
            self.running.push(running);
            return Ok(());
        }
        self.write_down(&trial)
    }

    fn write_down(&mut self, trial: &Trial) -> io::Result<()> {
        self.journal.append(trial)?;
        self.schedule.finish(trial.key, done(self.experiment, self.metric.as_deref(), trial));
        self.any_success |= trial.state == State::Done;
        if trial.state != State::Done {
            let message = trial.message.as_deref().unwrap_or("it failed").trim_start_matches("prun: ");
            self.progress.say(&format!("prun: {}: {message}", trial.parameters));
            let never_ran = trial.ranks.iter().all(|rank| rank.get("after_s").is_none());
            if !self.any_success && never_ran && self.end.is_none() {
                self.end = Some(End::CannotStart(trial.code));
                self.running.iter().for_each(|running| running.signal(libc::SIGTERM));
            }
        }
        self.progress.show(self.schedule.done(), self.schedule.total(), "");
        Ok(())
    }
}
