//! Runs a [`NodePlan`] to its [`Outcome`]: one loop over everything that can happen.
//!
//! [`state`] decides, [`text`] words it, [`signals`] turns signals into values; this file only waits, reads
//! and does what it is told.

pub mod signals;
pub mod state;
pub mod text;

use std::path::Path;
use std::time::{Duration, Instant};

use nix::libc;
use rankd::frame::{FrameReader, encode};
use rankd::proto::{FromNode, NodePlan, ToNode};
use rankd::{Node, RankStdio};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

use crate::doctor::watch::{self, Change, Look, Watcher};
use crate::job::{Job, OnFault};
use crate::output::{self, ChildStdio, Finished, OutputError, OwnStdio, RunningRelay, Spec};
use crate::report::jsonl::Jsonl;
use crate::topology::{ErrorRates, PciAddress};
use signals::Signals;
use state::{Action, Cause, Event, JobState};

/// How long a process that outlives all ranks may keep their output open before prun goes on without it.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);
/// How long rankd may take to read a message before it is taken for dead.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// Why an attempt could not even begin.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// Pipes, files or threads for output.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// rankd or its keeper.
    #[error(transparent)]
    Node(#[from] rankd::start::StartError),
}

/// One start of a job, from the plan to its last process.
#[derive(Debug)]
pub struct Outcome {
    /// prun's exit code for it.
    pub code: i32,
    /// Whether a rank's failure is what ended it, so that another start may go better.
    pub rank_failed: bool,
    /// Errors of each GPU's link meanwhile, where they are counted.
    pub error_rates: Vec<(PciAddress, ErrorRates)>,
    /// What failed of the machine meanwhile, where that is to end in another start.
    pub faults: Option<Vec<Change>>,
}

/// What an attempt needs beside the job and its plan.
#[derive(Debug)]
pub struct Setting<'a> {
    /// Signals, blocked since prun began.
    pub signals: &'a Signals,
    /// This machine's name.
    pub host: &'a str,
    /// 0 for the first start.
    pub restart: u32,
    /// Where JSON lines go.
    pub json: Option<&'a Jsonl>,
    /// Where the machine's files are.
    pub root: &'a Path,
    /// GPUs to look at meanwhile, each with its ranks; none: nobody looks.
    pub watched: Vec<(usize, Vec<u32>)>,
}

/// Runs `plan` to its end and tells the user how it ended.
///
/// # Errors
/// [`AttemptError`] if nothing could be started; nothing is left then.
pub fn attempt(job: &Job, plan: NodePlan, setting: &Setting<'_>) -> Result<Outcome, AttemptError> {
    let started = Instant::now();
    let mut state = JobState::new(plan.world_size, &job.ending, started);
    let (children, relay) = output::open(Spec {
        output: &job.output,
        stdin: job.stdin,
        world_size: plan.world_size,
        job_id: &plan.job_id,
        host: setting.host,
        started,
        append: setting.restart > 0,
        own: OwnStdio::inherit()?,
    })?;
    let plan = with_terminals(plan, &children);
    if let Some(json) = setting.json {
        json.start(job, &plan, setting.restart);
    }
    let node = rankd::start(plan, children.into_iter().map(rank_stdio).collect())?;
    let relay = match relay.start() {
        Ok(relay) => relay,
        Err(error) => {
            node.cancel();
            return Err(error.into());
        }
    };
    let mut supervisor = Supervisor {
        node,
        reader: FrameReader::default(),
        relay,
        signals: setting.signals,
        json: setting.json,
        watcher: if setting.watched.is_empty() { None } else { Watcher::start(setting.root) },
        watched: &setting.watched,
        on_fault: job.placement.on_fault,
        faults: Vec::new(),
        error_rates: Vec::new(),
    };
    supervisor.watch(&mut state);
    supervisor.finish_watching(&mut state);
    let (faults, error_rates) = (std::mem::take(&mut supervisor.faults), std::mem::take(&mut supervisor.error_rates));
    let finished = supervisor.finish(&mut state);
    say_how_it_ended(job, &state, &finished, setting, started);
    let restarts = job.placement.on_fault == OnFault::Restart;
    // A rank may have died of the fault before it was seen.
    let failed = matches!(state.verdict(), Some((Cause::Rank { .. } | Cause::Machine(_), _)));
    Ok(Outcome {
        code: state.exit_code(),
        rank_failed: matches!(state.verdict(), Some((Cause::Rank { .. }, _))),
        error_rates,
        faults: (restarts && failed && !faults.is_empty()).then_some(faults),
    })
}

fn with_terminals(mut plan: NodePlan, children: &[ChildStdio]) -> NodePlan {
    for (rank, child) in plan.ranks.iter_mut().zip(children) {
        rank.controlling_terminal = child.pty;
    }
    plan
}

fn rank_stdio(child: ChildStdio) -> RankStdio {
    RankStdio { stdin: child.stdin, stdout: child.stdout, stderr: child.stderr }
}

fn say_how_it_ended(job: &Job, state: &JobState, finished: &Finished, setting: &Setting<'_>, started: Instant) {
    let failed_rank = match state.verdict() {
        Some((Cause::Rank { rank, .. }, _)) => Some(*rank),
        _ => None,
    };
    let tail = failed_rank.map(|rank| finished.tail(rank));
    // With one rank its last words stand right above.
    let shown_tail = tail.as_deref().filter(|_| state.ranks.len() > 1);
    let lines = text::summary(state, &job.ending, shown_tail);
    let is_quiet_and_well = job.verbosity < 0 && state.verdict().is_none();
    if !lines.is_empty() && !is_quiet_and_well {
        finished.note(&lines.join("\n"));
    }
    if let Some(json) = setting.json {
        json.result(
            state,
            setting.restart,
            started.elapsed(),
            tail.as_deref(),
            lines.last().filter(|_| state.verdict().is_some()),
        );
    }
}

/// The live parts of a running job.
struct Supervisor<'a> {
    node: Node,
    reader: FrameReader,
    relay: RunningRelay,
    signals: &'a Signals,
    json: Option<&'a Jsonl>,
    watcher: Option<Watcher>,
    watched: &'a [(usize, Vec<u32>)],
    on_fault: OnFault,
    faults: Vec<Change>,
    error_rates: Vec<(PciAddress, ErrorRates)>,
}

impl Supervisor<'_> {
    /// The loop: until rankd has said its last word.
    fn watch(&mut self, state: &mut JobState) {
        let mut sink_failed = false;
        while !state.is_over() {
            let mut fds = vec![
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
                PollFd::new(&self.node.control, PollFlags::IN),
            ];
            let failure_fd = self.relay.failure_fd();
            if !sink_failed {
                fds.push(PollFd::from_borrowed_fd(failure_fd, PollFlags::IN));
            }
            let watching = self.watcher.as_ref().and_then(Watcher::fd);
            fds.extend(watching.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            wait(&mut fds, state.next_deadline());
            let mut ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let machine_changed = watching.is_some() && ready.pop() == Some(true);
            drop(fds);
            // Signals first: a Ctrl-C that comes with a rank's death is the reason for it.
            if ready[0] {
                for signal in self.signals.read() {
                    self.json.inspect(|json| json.signal(signal));
                    self.take(state, Event::Signal(signal));
                }
            }
            if ready[1] {
                self.read_node(state);
            }
            if ready.get(2) == Some(&true) {
                sink_failed = true;
                if let Some(failure) = self.relay.failure() {
                    self.take(state, Event::SinkFailed(failure));
                }
            }
            if machine_changed {
                let changes = self.watcher.as_mut().map(Watcher::read).unwrap_or_default();
                let looks = self.watcher.as_mut().map(Watcher::take_looks).unwrap_or_default();
                self.write_looks(&looks);
                self.tell_changes(state, &changes);
            }
            self.take(state, Event::Tick);
        }
    }

    fn write_looks(&self, looks: &[Look]) {
        for look in looks {
            self.json.inspect(|json| json.look(look, self.watched));
        }
    }

    /// Says what changed on the machine; a fault ends the job where that was asked for.
    fn tell_changes(&mut self, state: &mut JobState, changes: &[Change]) {
        for change in changes {
            self.relay.note(&watch::sentence(change, self.watched));
            self.json.inspect(|json| json.machine(change));
        }
        let faults: Vec<Change> = changes.iter().filter(|change| change.is_fault).cloned().collect();
        // What is seen after the last rank has ended, ended nothing.
        if let (Some(first), true) = (faults.first(), self.on_fault != OnFault::Warn && !state.is_over()) {
            self.take(state, Event::MachineFault(first.what.clone()));
        }
        self.faults.extend(faults);
    }

    /// The last look at the machine, and how many changes there were.
    fn finish_watching(&mut self, state: &mut JobState) {
        let Some(watcher) = self.watcher.take() else { return };
        let watch::Finished { new, looks, all, rates } = watcher.finish();
        self.write_looks(&looks);
        self.error_rates = rates;
        self.tell_changes(state, &new);
        if let Some(first) = all.first() {
            let count = all.len();
            let s = if count == 1 { "" } else { "s" };
            self.relay.note(&format!(
                "prun: the machine changed while the job ran ({count} change{s}, first: {})",
                first.what
            ));
        }
    }

    fn read_node(&mut self, state: &mut JobState) {
        // Small on purpose: each page of it that a fork has shared would be copied at the first read.
        let mut buffer = [0u8; 4 << 10];
        let ended = loop {
            match rustix::io::read(&self.node.control, &mut buffer) {
                Ok(0) => break true,
                Ok(count) => self.reader.push(&buffer[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break false,
                Err(_) => break true,
            }
        };
        loop {
            match self.reader.next_message::<FromNode>() {
                Ok(Some(message)) => {
                    self.json.inspect(|json| json.node(&message));
                    self.take(state, Event::Node(message));
                }
                Ok(None) => break,
                Err(error) => {
                    self.relay.note(&format!("error: cannot understand rankd\n  cause: {error}"));
                    return self.take(state, Event::NodeClosed);
                }
            }
        }
        if ended {
            self.take(state, Event::NodeClosed);
        }
    }

    fn take(&mut self, state: &mut JobState, event: Event) {
        for action in state.step(event, Instant::now()) {
            match action {
                Action::Tell(message) => self.tell(&message),
                Action::Note(text) => self.relay.note(&text),
                Action::ResizeTerminals => self.relay.resize(),
                Action::StopSelf => {
                    let pause = self.stop_self();
                    self.take(state, Event::Resumed(pause));
                }
            }
        }
    }

    /// Stops this process like any other that Ctrl-Z reaches; returns when somebody continues it.
    fn stop_self(&self) -> Duration {
        let stopped = Instant::now();
        self.relay.suspend_terminal();
        let _ = kill_process(rustix::process::getpid(), Signal::STOP);
        self.relay.resume_terminal();
        stopped.elapsed()
    }

    /// Sends a message. rankd always reads, so this waits only while it is busy starting ranks.
    fn tell(&self, message: &ToNode) {
        let mut bytes = Vec::new();
        if encode(message, &mut bytes).is_err() {
            return;
        }
        let deadline = Instant::now() + SEND_LIMIT;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() && Instant::now() < deadline {
            match rustix::net::send(&self.node.control, rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait(&mut [PollFd::new(&self.node.control, PollFlags::OUT)], Some(deadline)),
                // rankd is gone; the end of its stream says so.
                Err(_) => return,
            }
        }
    }

    /// All ranks are gone: passes on the rest of their output and waits for keeper and rankd. An interrupt
    /// while somebody does not read our output ends the wait.
    fn finish(self, state: &mut JobState) -> Finished {
        let Supervisor { node, relay, signals, .. } = self;
        // Both at once: neither needs the other, and each takes a moment.
        relay.drain(DRAIN_LIMIT);
        let end = node.end();
        if let Some(Cause::RankdGone(how)) = &mut state.cause {
            *how = Some(end);
        }
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(relay.done_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            ];
            wait(&mut fds, None);
            if !fds[0].revents().is_empty() {
                return finished(relay.finish(Duration::ZERO), state);
            }
            for signal in signals.read() {
                match signal {
                    libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT => {
                        state.step(Event::Signal(signal), Instant::now());
                        return finished(relay.abandon(), state);
                    }
                    libc::SIGTSTP => {
                        let _ = kill_process(rustix::process::getpid(), Signal::STOP);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Takes note of output that failed at the very end.
fn finished(finished: Finished, state: &mut JobState) -> Finished {
    if let Some(failure) = &finished.failure {
        state.step(Event::SinkFailed(failure.clone()), Instant::now());
    }
    finished
}

/// Waits before a restart; gives the signal that ended the wait early.
pub fn pause(signals: &Signals, time: Duration) -> Option<i32> {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        wait(&mut [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)], Some(deadline));
        let ends = |&signal: &i32| matches!(signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT);
        if let Some(signal) = signals.read().into_iter().find(ends) {
            return Some(signal);
        }
    }
    None
}

/// `poll` until `deadline`; interruptions just end the wait.
fn wait(fds: &mut [PollFd<'_>], deadline: Option<Instant>) {
    let timeout = deadline.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(left.subsec_nanos()) }
    });
    let _ = poll(fds, timeout.as_ref());
}
