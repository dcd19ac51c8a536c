//! rankd: the one loop of a node.
//!
//! It starts the ranks, watches them, passes on what prun asks, and ends them by itself when prun or the
//! keeper is gone. It is single-threaded: all that can happen comes through one `epoll`, and nothing in the
//! loop blocks. As a child subreaper it gets every orphan of its ranks, so "no child at all" means that
//! nothing of the job is left.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use comm::node::{JobSegment, JoinServer, RankExit};
use nix::sys::signal::{SigSet, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::epoll;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::cgroup::JobCgroup;
use crate::child::Spawner;
use crate::control::Control;
use crate::fork::{
    NextEnded, Reaped, become_subreaper, is_stopped, keep_only, next_ended, parent_pid, reap, set_name, signal_group,
};
use crate::keeper::{KILL_LIMIT, KILL_ROUND, RANKD_DONE, remove_cgroup, timespec};
use crate::processes::{descendants, describe, signal_descendants};
use crate::program::Refusal;
use crate::proto::{ExitStatus, FromNode, NodePlan, ReportReason, ToNode, Usage};
use crate::stall::{Stall, somebody_waits};
use crate::start::{RankStdio, exit};
use crate::starter::Starter;

/// How long processes that outlive their ranks may take to end by themselves before they are asked to.
pub const LEFTOVER_WAIT: Duration = Duration::from_millis(100);
/// How long they have then, before they are killed.
pub const LEFTOVER_GRACE: Duration = Duration::from_millis(100);
/// How long ranks may take to stop after SIGTSTP before SIGSTOP makes them.
const STOP_WAIT: Duration = Duration::from_millis(200);
/// Between two rounds of the loop at most so many ranks are started.
const SPAWN_BATCH: usize = 32;

/// What an epoll event is about: small numbers for the fixed descriptors, then one per rank.
mod token {
    pub const CONTROL: u64 = 0;
    pub const SIGNALS: u64 = 1;
    pub const KEEPER: u64 = 2;
    pub const JOIN: u64 = 3;
    pub const FIRST_RANK: u64 = 16;
}

/// Runs a node's job to its end; gives rankd's exit code.
pub(crate) fn run(
    plan: NodePlan,
    stdio: Vec<RankStdio>,
    control: OwnedFd,
    cgroup: Option<JobCgroup>,
    keeper_pid: i32,
) -> i32 {
    set_name(c"rankd");
    become_subreaper();
    let mut keep = vec![control.as_raw_fd()];
    keep.extend(cgroup.as_ref().map(JobCgroup::raw_fd));
    keep.extend(
        stdio.iter().flat_map(|rank| [rank.stdin.as_raw_fd(), rank.stdout.as_raw_fd(), rank.stderr.as_raw_fd()]),
    );
    // SAFETY: all other descriptors belong to values of prun's that this process never touches again.
    #[expect(unsafe_code, reason = "the fork left us copies of descriptors that are not ours")]
    unsafe {
        keep_only(&mut keep);
    }
    match Rankd::new(plan, control, cgroup, keeper_pid) {
        Ok(rankd) => rankd.run(stdio),
        Err(_) => exit::NO_LOOP,
    }
}

/// One rank as rankd sees it.
struct Rank {
    rank: u32,
    /// Process and pidfd while it lives.
    running: Option<(i32, OwnedFd)>,
}

/// How far the end has come. Only ever moves down this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Ending {
    /// Not begun, or prun does it.
    No,
    /// rankd has asked the ranks to end by itself; SIGKILL at this moment.
    Asked { kill_at: Instant },
    /// All ranks are gone, something that they started is not; it is asked to end at this moment.
    Leftovers { ask_at: Instant },
    /// It was asked; SIGKILL at this moment.
    LeftoversAsked { kill_at: Instant },
    /// SIGKILL for everything, again at `next`, given up at `give_up`.
    Killing { next: Instant, give_up: Instant },
}

struct Rankd {
    plan: NodePlan,
    control: Control,
    epoll: OwnedFd,
    signals: SignalFd,
    keeper: Option<OwnedFd>,
    cgroup: Option<JobCgroup>,
    segment: Option<JobSegment>,
    join: Option<JoinServer>,
    ranks: Vec<Rank>,
    all_started: bool,
    ending: Ending,
    stop_asked: Option<Instant>,
    stall: Option<Stall>,
    failure_reported: bool,
}

impl Rankd {
    fn new(plan: NodePlan, control: OwnedFd, cgroup: Option<JobCgroup>, keeper_pid: i32) -> io::Result<Rankd> {
        let local_size = u32::try_from(plan.ranks.len()).unwrap_or(u32::MAX);
        // First, so that it gets the lowest free number: see `child::keep_descriptors`.
        let segment =
            JobSegment::create(&plan.job_id, plan.world_size, local_size).map_err(|error| log::warn!("{error}")).ok();
        let mask: SigSet =
            [NixSignal::SIGCHLD, NixSignal::SIGTERM, NixSignal::SIGINT, NixSignal::SIGHUP, NixSignal::SIGQUIT]
                .into_iter()
                .collect();
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let control = Control::new(control);
        // The keeper may have died before its number was pinned; then our parent is another.
        let keeper = Pid::from_raw(keeper_pid)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            .filter(|_| parent_pid() == keeper_pid);
        let join =
            segment.as_ref().and_then(|_| JoinServer::bind(&plan.job_id, rustix::process::getuid().as_raw()).ok());
        add(&epoll, control.as_fd(), token::CONTROL)?;
        add(&epoll, signals.as_fd(), token::SIGNALS)?;
        if let Some(keeper) = &keeper {
            add(&epoll, keeper.as_fd(), token::KEEPER)?;
        }
        if let Some(join) = &join {
            add(&epoll, join.as_fd(), token::JOIN)?;
        }
        let stall = plan.stall_ms.map(|ms| Stall::new(Duration::from_millis(ms), Instant::now()));
        Ok(Rankd {
            plan,
            control,
            epoll,
            signals,
            keeper,
            cgroup,
            segment,
            join,
            ranks: Vec::new(),
            all_started: false,
            ending: Ending::No,
            stop_asked: None,
            stall,
            failure_reported: false,
        })
    }

    fn run(mut self, stdio: Vec<RankStdio>) -> i32 {
        self.control.send_in_company(&FromNode::Ready {
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            cgroup: self.cgroup.is_some(),
        });
        if self.keeper.is_none() {
            self.on_keeper_gone();
        }
        self.start_ranks(stdio);
        let code = loop {
            if self.reap_orphans() {
                break RANKD_DONE;
            }
            if self.gave_up() {
                break exit::LEFT_BEHIND;
            }
            self.on_time();
            self.turn(self.next_deadline());
        };
        if code == RANKD_DONE {
            self.control.send(&FromNode::Empty);
        }
        if self.keeper_is_gone() || self.control.is_closed() {
            // Nobody may be left to remove the cgroup after us: a keeper that was killed together with prun can
            // still look alive. One cannot remove the cgroup that one sits in.
            if let Some(cgroup) = &self.cgroup {
                cgroup.leave();
            }
            remove_cgroup(self.cgroup.take());
        }
        self.control.flush_blocking();
        // This process ends now, and the kernel closes all descriptors at once.
        std::mem::forget(self);
        code
    }

    /// One round of the loop: waits for something to happen, at most until `deadline`, and deals with it.
    fn turn(&mut self, deadline: Option<Instant>) {
        self.control.flush();
        self.watch_control_writes();
        let timeout = deadline.map(|at| timespec(at.saturating_duration_since(Instant::now())));
        let mut events = Vec::with_capacity(64);
        if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()).is_err() {
            return;
        }
        // The kernel lists descriptors in the order in which they became ready: this is the order of the deaths.
        for event in events {
            match event.data.u64() {
                token::CONTROL => self.on_control(),
                token::SIGNALS => self.on_signals(),
                token::KEEPER => self.on_keeper_gone(),
                token::JOIN => self.on_join(),
                rank => self.on_rank_readable((rank - token::FIRST_RANK) as usize),
            }
        }
    }

    // ---- starting ----

    fn start_ranks(&mut self, stdio: Vec<RankStdio>) {
        let mut spawner = Spawner::new();
        let mut starter = match Starter::new(&self.plan, self.segment.as_ref(), self.join.as_ref()) {
            Ok(starter) => starter,
            Err(refusal) => {
                self.start_failed(0, refusal);
                return;
            }
        };
        for (index, stdio) in stdio.into_iter().enumerate() {
            if index % SPAWN_BATCH == SPAWN_BATCH - 1 {
                self.turn(Some(Instant::now()));
            }
            if self.ending != Ending::No {
                break;
            }
            let rank = self.plan.ranks[index].rank;
            match starter.start(&mut spawner, &self.plan, index, &stdio, self.segment.as_ref()) {
                Ok(child) => {
                    // The pidfd is watched from the first moment, so that deaths are seen in their order.
                    let _ = add(&self.epoll, child.pidfd.as_fd(), token::FIRST_RANK + index as u64);
                    self.control.send_in_company(&FromNode::Started { rank, pid: child.pid });
                    self.ranks.push(Rank { rank, running: Some((child.pid, child.pidfd)) });
                }
                Err(refusal) => {
                    self.start_failed(rank, refusal);
                    break;
                }
            }
        }
        self.all_started = true;
    }

    fn start_failed(&mut self, rank: u32, refusal: Refusal) {
        self.all_started = true;
        self.control.send(&FromNode::StartFailed { rank, reason: refusal.reason, code: refusal.code });
        self.ask_to_end();
    }

    // ---- what happens ----

    fn on_control(&mut self) {
        let messages = match self.control.receive() {
            Ok(messages) => messages,
            // prun is gone, or speaks another version: either way nobody directs this job any more.
            Err(_) => return self.on_prun_gone(),
        };
        for message in messages {
            match message {
                ToNode::Signal(signal) => self.signal_ranks(signal),
                ToNode::Stop => self.stop_ranks(),
                ToNode::Continue => self.continue_ranks(),
                ToNode::Kill => self.kill_all(),
                ToNode::AskReport => self.report(ReportReason::Asked),
            }
        }
        if self.control.is_closed() {
            self.on_prun_gone();
        }
    }

    fn on_prun_gone(&mut self) {
        let _ = epoll::delete(&self.epoll, self.control.as_fd());
        self.control.close();
        if let Some(segment) = &self.segment {
            segment.abort(comm::node::AbortReason::LauncherGone);
        }
        self.ask_to_end();
    }

    fn on_keeper_gone(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            let _ = epoll::delete(&self.epoll, &keeper);
        }
        self.control.send(&FromNode::KeeperGone);
        self.ask_to_end();
    }

    fn keeper_is_gone(&self) -> bool {
        self.keeper.is_none()
    }

    fn on_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let signal = info.ssi_signo as i32;
            // SIGCHLD only wakes the loop: whoever ended is reaped at its head, after the pidfds of this round.
            if signal != libc::SIGCHLD {
                self.control.send(&FromNode::Asked(signal));
                self.ask_to_end();
            }
        }
        self.look_for_stops();
    }

    fn on_join(&mut self) {
        if let (Some(join), Some(segment)) = (&mut self.join, &self.segment) {
            join.serve_ready(segment);
        }
    }

    fn on_rank_readable(&mut self, index: usize) {
        let Some((pid, _)) = self.ranks.get(index).and_then(|rank| rank.running.as_ref()) else { return };
        if let Reaped::Child { status, usage, .. } = reap(*pid) {
            self.on_rank_ended(index, status, usage);
        }
    }

    /// Reaps orphans that have ended. A rank is left to its pidfd, whose place in the kernel's list tells who
    /// died first; it is ready already, so the next round of the loop comes to it at once.
    /// True once there is no child at all: nothing of the job is left.
    fn reap_orphans(&self) -> bool {
        loop {
            match next_ended() {
                NextEnded::Child(pid) if self.is_running_rank(pid) => return false,
                NextEnded::Child(pid) => drop(reap(pid)),
                NextEnded::None => return false,
                NextEnded::NoChildren => return true,
            }
        }
    }

    fn is_running_rank(&self, pid: i32) -> bool {
        self.ranks.iter().any(|rank| rank.running.as_ref().is_some_and(|(running, _)| *running == pid))
    }

    fn on_rank_ended(&mut self, index: usize, status: ExitStatus, usage: Usage) {
        let rank = self.ranks[index].rank;
        if let Some((_, pidfd)) = self.ranks[index].running.take() {
            let _ = epoll::delete(&self.epoll, &pidfd);
        }
        if !status.is_success() && !self.failure_reported {
            self.failure_reported = true;
            self.report_if_joined(ReportReason::Failure);
        }
        if let Some(segment) = &self.segment {
            segment.note_exit(index as u32, rank_exit(status));
        }
        let message = FromNode::Exited { rank, status, usage };
        if status.is_success() {
            self.control.send_in_company(&message);
        } else {
            self.control.send(&message);
        }
        if self.no_rank_runs() && self.ending < (Ending::Leftovers { ask_at: Instant::now() }) {
            self.ending = Ending::Leftovers { ask_at: Instant::now() + LEFTOVER_WAIT };
        }
    }

    fn no_rank_runs(&self) -> bool {
        self.all_started && self.ranks.iter().all(|rank| rank.running.is_none())
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        match self.ending {
            Ending::Asked { kill_at } if now >= kill_at => self.kill_all(),
            Ending::Leftovers { ask_at } if now >= ask_at => {
                let pids = descendants(self.cgroup.as_ref());
                self.control.send(&FromNode::Leftovers(describe(&pids)));
                signal_descendants(&pids, Signal::TERM, self.cgroup.as_ref());
                signal_descendants(&pids, Signal::CONT, self.cgroup.as_ref());
                self.ending = Ending::LeftoversAsked { kill_at: now + LEFTOVER_GRACE };
            }
            Ending::LeftoversAsked { kill_at } if now >= kill_at => self.kill_all(),
            Ending::Killing { next, give_up } if now >= next => {
                self.kill_round();
                self.ending = Ending::Killing { next: now + KILL_ROUND, give_up };
            }
            _ => {}
        }
        if self.stop_asked.is_some_and(|at| now >= at + STOP_WAIT) {
            self.each_running(|pid| signal_group(pid, libc::SIGSTOP));
            self.answer_stop();
        }
        self.look_for_stall(now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let ending = match self.ending {
            Ending::No => None,
            Ending::Asked { kill_at } | Ending::LeftoversAsked { kill_at } => Some(kill_at),
            Ending::Leftovers { ask_at } => Some(ask_at),
            Ending::Killing { next, .. } => Some(next),
        };
        let stop = self.stop_asked.map(|at| at + STOP_WAIT);
        let stall = self.stall.as_ref().filter(|_| self.ending == Ending::No).and_then(Stall::next_look);
        [ending, stop, stall, self.control.next_deadline()].into_iter().flatten().min()
    }

    fn gave_up(&self) -> bool {
        matches!(self.ending, Ending::Killing { give_up, .. } if Instant::now() >= give_up)
    }

    // ---- what is done ----

    /// Begins the end on rankd's own account: SIGTERM now, SIGKILL after the grace period.
    fn ask_to_end(&mut self) {
        if self.ending == Ending::No {
            self.signal_ranks(libc::SIGTERM);
            self.ending = Ending::Asked { kill_at: Instant::now() + Duration::from_millis(self.plan.grace_ms) };
        }
    }

    fn kill_all(&mut self) {
        if !matches!(self.ending, Ending::Killing { .. }) {
            let now = Instant::now();
            self.ending = Ending::Killing { next: now + KILL_ROUND, give_up: now + KILL_LIMIT };
            self.kill_round();
        }
    }

    fn kill_round(&self) {
        self.each_running(|pid| signal_group(pid, libc::SIGKILL));
        signal_descendants(&descendants(self.cgroup.as_ref()), Signal::KILL, self.cgroup.as_ref());
        if self.cgroup.is_some() {
            // What has moved itself to another cgroup is still a descendant.
            signal_descendants(&descendants(None), Signal::KILL, None);
        }
    }

    fn signal_ranks(&self, signal: i32) {
        let asks_to_end = matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT);
        self.each_running(|pid| {
            signal_group(pid, signal);
            if asks_to_end && is_stopped(pid) {
                signal_group(pid, libc::SIGCONT);
            }
        });
    }

    fn each_running(&self, act: impl Fn(i32)) {
        self.ranks.iter().filter_map(|rank| rank.running.as_ref()).for_each(|(pid, _)| act(*pid));
    }

    fn stop_ranks(&mut self) {
        self.signal_ranks(libc::SIGTSTP);
        if let Some(stall) = &mut self.stall {
            stall.pause();
        }
        self.stop_asked = Some(Instant::now());
        self.look_for_stops();
    }

    fn continue_ranks(&mut self) {
        self.stop_asked = None;
        self.signal_ranks(libc::SIGCONT);
        if let Some(stall) = &mut self.stall {
            stall.resume(Instant::now());
        }
    }

    fn look_for_stops(&mut self) {
        if self.stop_asked.is_some()
            && self.ranks.iter().filter_map(|rank| rank.running.as_ref()).all(|(pid, _)| is_stopped(*pid))
        {
            self.answer_stop();
        }
    }

    fn answer_stop(&mut self) {
        self.stop_asked = None;
        self.control.send(&FromNode::Stopped);
    }

    // ---- the flight recorder ----

    fn report_if_joined(&mut self, why: ReportReason) {
        if self.segment.as_ref().is_some_and(JobSegment::anyone_joined) {
            self.report(why);
        }
    }

    fn report(&mut self, why: ReportReason) {
        let Some(segment) = &self.segment else { return };
        let ranks = (0..self.plan.ranks.len() as u32).map(|local_rank| segment.rank_report(local_rank)).collect();
        self.control.send(&FromNode::Report { why, ranks });
    }

    fn look_for_stall(&mut self, now: Instant) {
        let (Some(stall), Some(segment)) = (&mut self.stall, &self.segment) else { return };
        let local_size = self.plan.ranks.len() as u32;
        let waits =
            || somebody_waits(&(0..local_size).map(|local_rank| segment.rank_report(local_rank)).collect::<Vec<_>>());
        if let Some(still) = stall.look(now, || segment.progress(), waits) {
            self.report(ReportReason::Stalled { ms: u64::try_from(still.as_millis()).unwrap_or(u64::MAX) });
        }
    }

    fn watch_control_writes(&mut self) {
        if let Some(writable) = self.control.write_interest_changed() {
            let flags = if writable { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            let _ = epoll::modify(&self.epoll, self.control.as_fd(), epoll::EventData::new_u64(token::CONTROL), flags);
        }
    }
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
    Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
}

fn rank_exit(status: ExitStatus) -> RankExit {
    match status {
        ExitStatus::Code(code) => RankExit::Code(code),
        ExitStatus::Signal { signal, .. } => RankExit::Signal(signal),
    }
}
