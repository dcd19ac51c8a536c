//! `--json`: one line per event, and a last one with the result.
//!
//! Written by a thread of its own, so that a reader who is slow or gone cannot hold up the job. Every line
//! has `event`; times are seconds, `time` since 1970, `after_s` since the start of the job.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rankd::proto::{ExitStatus, FromNode, NodePlan, ReportReason, Usage};
use serde_json::{Value, json};

use crate::doctor::watch::{Change, Look};
use crate::job::{Job, JsonTarget};
use crate::refused::Refused;
use crate::supervise::signals::signal_name;
use crate::supervise::state::{Cause, JobState};

/// The writer of JSON lines.
#[derive(Debug)]
pub struct Jsonl {
    lines: Sender<String>,
    thread: JoinHandle<()>,
    started: Instant,
}

impl Jsonl {
    /// Opens the target; lines are written until [`close`](Jsonl::close).
    ///
    /// # Errors
    /// [`Refused`] if the file cannot be created or the descriptor is not open.
    pub fn open(target: &JsonTarget) -> Result<Jsonl, Refused> {
        let mut out: Box<dyn Write + Send> = match target {
            JsonTarget::File(path) => Box::new(File::create(path).map_err(|cause| {
                Refused::new(format!("cannot write JSON lines to '{}'", path.display()))
                    .because(cause)
                    .try_instead("another file, or a descriptor: --json 3 3>FILE")
            })?),
            JsonTarget::Fd(fd) => Box::new(File::from(duplicate(*fd)?)),
        };
        let (lines, received) = channel::<String>();
        let thread = std::thread::Builder::new().name("json".into()).spawn(move || {
            for line in received {
                if out.write_all(line.as_bytes()).is_err() {
                    break;
                }
            }
        });
        let thread =
            thread.map_err(|cause| Refused::new("cannot start the thread that writes JSON lines").because(cause))?;
        Ok(Jsonl { lines, thread, started: Instant::now() })
    }

    /// Writes what is left.
    pub fn close(self) {
        drop(self.lines);
        let deadline = Instant::now() + Duration::from_secs(5);
        while !self.thread.is_finished() && Instant::now() < deadline {
            // The writer needs some microseconds; a sweep would wait for each of its trials.
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn write(&self, line: Value) {
        let _ = self.lines.send(format!("{line}\n"));
    }

    fn after(&self) -> f64 {
        seconds(self.started.elapsed())
    }

    /// The job is about to start.
    pub fn start(&self, job: &Job, plan: &NodePlan, restart: u32) {
        let programs: Vec<Value> = job
            .programs
            .iter()
            .map(|program| {
                let argv: Vec<_> = program.argv.iter().map(|word| word.to_string_lossy()).collect();
                json!({ "ranks": program.ranks, "argv": argv })
            })
            .collect();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, seconds);
        self.write(json!({ "event": "start", "time": time, "job": plan.job_id, "ranks": plan.world_size, "restart": restart, "programs": programs }));
    }

    /// prun got a signal.
    pub fn signal(&self, signal: i32) {
        self.write(json!({ "event": "signal", "signal": signal_name(signal), "after_s": self.after() }));
    }

    /// A GPU or its link changed.
    pub fn machine(&self, change: &Change) {
        let line = json!({ "event": "machine", "gpu": change.gpu, "kind": change.kind, "what": change.what, "fault": change.is_fault, "after_s": self.after() });
        self.write(line);
    }

    /// A look at the GPUs: their links, work, clocks, temperature, power and PCIe traffic.
    pub fn look(&self, look: &Look, ranks: &[(usize, Vec<u32>)]) {
        self.write(json!({ "event": "gpus", "gpus": look.fields(ranks), "after_s": self.after() }));
    }

    /// rankd said something.
    pub fn node(&self, message: &FromNode) {
        let after_s = self.after();
        let line = match message {
            FromNode::Ready { pid, cgroup } => {
                json!({ "event": "ready", "rankd_pid": pid, "cgroup": cgroup, "after_s": after_s })
            }
            FromNode::Started { rank, pid } => {
                json!({ "event": "started", "rank": rank, "pid": pid, "after_s": after_s })
            }
            FromNode::StartFailed { rank, reason, code } => {
                json!({ "event": "start_failed", "rank": rank, "reason": reason, "code": code, "after_s": after_s })
            }
            FromNode::Exited { rank, status, usage } => {
                let mut line = json!({ "event": "exited", "rank": rank, "after_s": after_s });
                add(&mut line, status_fields(*status));
                add(&mut line, usage_fields(usage));
                line
            }
            FromNode::Report { why: ReportReason::Stalled { ms }, ranks } => {
                json!({ "event": "stalled", "still_s": *ms as f64 / 1000.0, "calls": ranks, "after_s": after_s })
            }
            FromNode::Leftovers(found) => json!({ "event": "leftovers", "processes": found, "after_s": after_s }),
            FromNode::Report { .. }
            | FromNode::Stopped
            | FromNode::Asked(_)
            | FromNode::KeeperGone
            | FromNode::Empty => return,
        };
        self.write(line);
    }

    /// The job has ended. The last line, unless it is started again.
    pub fn result(
        &self,
        state: &JobState,
        restarts: u32,
        took: Duration,
        tail: Option<&[u8]>,
        message: Option<&String>,
    ) {
        let ranks: Vec<Value> = state
            .ranks
            .iter()
            .enumerate()
            .map(|(rank, state)| {
                let mut line = json!({ "rank": rank, "pid": state.pid });
                if let Some(end) = &state.end {
                    add(&mut line, status_fields(end.status));
                    add(&mut line, usage_fields(&end.usage));
                    add(&mut line, json!({ "after_s": seconds(end.after), "was_asked": end.was_asked }));
                }
                line
            })
            .collect();
        let cause = state.verdict().map(|(cause, after)| {
            let mut line = json!({ "kind": kind(cause), "after_s": seconds(after) });
            match cause {
                Cause::Rank { rank, status } => {
                    add(&mut line, json!({ "rank": rank }));
                    add(&mut line, status_fields(*status));
                }
                Cause::Start { rank, .. } => add(&mut line, json!({ "rank": rank })),
                Cause::Machine(what) => add(&mut line, json!({ "what": what })),
                Cause::Signal(signal) | Cause::RankdAsked(signal) => {
                    add(&mut line, json!({ "signal": signal_name(*signal) }))
                }
                _ => {}
            }
            line
        });
        self.write(json!({
            "event": "result",
            "code": state.exit_code(),
            "cause": cause,
            "message": message,
            "took_s": seconds(took),
            "restart": restarts,
            "ranks": ranks,
            "leftovers": state.leftovers,
            "calls": state.reports,
            "last_output": tail.map(String::from_utf8_lossy),
        }));
    }
}

fn kind(cause: &Cause) -> &'static str {
    match cause {
        Cause::Rank { .. } => "rank_failed",
        Cause::Start { .. } => "start_failed",
        Cause::Signal(_) => "signal",
        Cause::TimeLimit => "time_limit",
        Cause::Sink(_) => "output",
        Cause::Machine(_) => "machine_fault",
        Cause::RankdAsked(_) => "rankd_asked",
        Cause::KeeperGone => "keeper_killed",
        Cause::RankdGone(_) => "rankd_gone",
    }
}

fn status_fields(status: ExitStatus) -> Value {
    match status {
        ExitStatus::Code(code) => json!({ "code": code }),
        ExitStatus::Signal { signal, core } => json!({ "signal": signal_name(signal), "core": core }),
    }
}

fn usage_fields(usage: &Usage) -> Value {
    let cpu = |us: u64| us as f64 / 1e6;
    json!({ "max_rss_kib": usage.max_rss_kib, "user_s": cpu(usage.user_us), "system_s": cpu(usage.system_us) })
}

fn add(line: &mut Value, fields: Value) {
    if let (Value::Object(line), Value::Object(fields)) = (line, fields) {
        line.extend(fields);
    }
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}

fn duplicate(fd: i32) -> Result<OwnedFd, Refused> {
    rankd::fork::duplicate(fd).map_err(|cause| {
        Refused::new(format!("cannot write JSON lines to descriptor {fd}"))
            .because(cause)
            .try_instead(format!("open it in the shell: prun --json {fd} … {fd}>FILE"))
    })
}
