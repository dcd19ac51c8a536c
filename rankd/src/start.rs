//! prun's side of a node: starts keeper and rankd, and holds what prun needs to talk to them.
//!
//! On prun's own node both are forked, not executed anew: the plan and the ranks' descriptors are simply
//! there, and a start takes 0.5 ms less. They are told apart in `ps` by name (`prun`, `prun-keeper`, `rankd`).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use thiserror::Error;

use crate::cgroup::JobCgroup;
use crate::fork::{Fork, Forked, Reaped, become_subreaper, exit_now, fork, reap, set_name};
use crate::keeper::{self, RankdEnd, rankd_end};
use crate::processes::Bystanders;
use crate::proto::NodePlan;
use crate::run;

/// One rank's standard input, output and error, as the rank will have them; all above 2.
#[derive(Debug)]
pub struct RankStdio {
    /// Standard input; ranks that read nothing share one `/dev/null`.
    pub stdin: Arc<OwnedFd>,
    /// Standard output.
    pub stdout: Arc<OwnedFd>,
    /// Standard error; may be the same as standard output.
    pub stderr: Arc<OwnedFd>,
}

/// Why a node could not be started. Nothing runs then.
#[derive(Debug, Error)]
#[error(
    "cannot start rankd\n  cause: {call}: {cause}\n  try: fewer processes or open files on this machine (`ulimit -a`)"
)]
pub struct StartError {
    call: &'static str,
    cause: io::Error,
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    /// The stream to rankd: frames of `ToNode` down and `FromNode` up.
    pub control: OwnedFd,
    keeper: Forked,
    keeper_end: Option<RankdEnd>,
    _lifeline: OwnedFd,
    job_id: String,
    bystanders: Bystanders,
}

/// Starts keeper and rankd for `plan`; rankd starts the ranks at once.
///
/// The caller must have one thread and have all signals blocked.
///
/// # Errors
/// [`StartError`] if the machine gives no descriptor or process.
pub fn start(plan: NodePlan, stdio: Vec<RankStdio>) -> Result<Node, StartError> {
    let failed = |call| move |cause: rustix::io::Errno| StartError { call, cause: cause.into() };
    // If keeper and rankd are both killed, their orphans come to us; see `Node::end`.
    become_subreaper();
    let (control, rankd_control) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
            .map_err(failed("socketpair"))?;
    let (keeper_lifeline, lifeline) = pipe_with(PipeFlags::CLOEXEC).map_err(failed("pipe"))?;
    let (job_id, bystanders) = (plan.job_id.clone(), Bystanders::now());
    // SAFETY: the caller has one thread.
    #[expect(unsafe_code, reason = "fork")]
    let forked = unsafe { fork(None) };
    match forked {
        Ok(Fork::Child) => {
            drop((control, lifeline));
            in_child(|| be_keeper(plan, stdio, rankd_control, keeper_lifeline))
        }
        Ok(Fork::Parent(keeper)) => {
            Ok(Node { control, keeper, keeper_end: None, _lifeline: lifeline, job_id, bystanders })
        }
        Err(cause) => Err(StartError { call: "clone3", cause }),
    }
}

/// The cgroup is made here and not by prun: whoever makes a thing must be there to remove it when prun is killed.
fn be_keeper(plan: NodePlan, stdio: Vec<RankStdio>, control: OwnedFd, lifeline: OwnedFd) -> i32 {
    let _ = rustix::process::setsid();
    set_name(c"prun-keeper");
    become_subreaper();
    let grace = Duration::from_millis(plan.grace_ms);
    let cgroup = if plan.use_cgroup { JobCgroup::create(&plan.job_id) } else { None };
    let keeper_pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: a fresh fork of a process with one thread has one thread.
    #[expect(unsafe_code, reason = "fork")]
    let into_cgroup = unsafe { fork(cgroup.as_ref().map(JobCgroup::raw_fd)) };
    // The directory may exist and yet take no process (another controller's rule): then without.
    let (forked, cgroup) = match into_cgroup {
        Err(_) if cgroup.is_some() => {
            keeper::remove_cgroup(cgroup);
            // SAFETY: as above.
            #[expect(unsafe_code, reason = "fork")]
            (unsafe { fork(None) }, None)
        }
        other => (other, cgroup),
    };
    match forked {
        Ok(Fork::Child) => {
            drop(lifeline);
            in_child(|| run::run(plan, stdio, control, cgroup, keeper_pid))
        }
        Ok(Fork::Parent(rankd)) => {
            drop((control, stdio));
            keeper::watch(rankd, lifeline, cgroup, grace)
        }
        Err(_) => {
            keeper::remove_cgroup(cgroup);
            exit::NO_RANKD
        }
    }
}

/// Exit codes of rankd and keeper themselves; prun turns them into sentences.
pub mod exit {
    /// The keeper could not fork rankd.
    pub const NO_RANKD: i32 = 101;
    /// rankd or keeper panicked: a bug.
    pub const PANIC: i32 = 102;
    /// rankd could not set up its loop.
    pub const NO_LOOP: i32 = 103;
    /// Processes that SIGKILL does not end are left.
    pub const LEFT_BEHIND: i32 = 104;
}

/// Runs `body` as the whole rest of this process; not even a panic gets back into prun's code.
fn in_child(body: impl FnOnce() -> i32) -> ! {
    let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(exit::PANIC);
    exit_now(code)
}

impl Node {
    /// Readable once the keeper has ended, which it does last.
    pub fn keeper_pidfd(&self) -> &OwnedFd {
        &self.keeper.pidfd
    }

    /// How rankd ended, once the keeper has; `None` until then. Never blocks.
    pub fn keeper_end(&mut self) -> Option<RankdEnd> {
        if self.keeper_end.is_none() {
            self.keeper_end = match reap(self.keeper.pid) {
                Reaped::Child { status, .. } => Some(rankd_end(status)),
                Reaped::NoneEnded => None,
                Reaped::NoChildren => Some(RankdEnd::KeeperKilled { signal: 0 }),
            };
        }
        self.keeper_end
    }

    /// Ends a job that prun cannot go on with, as if prun had been killed, and waits for its end.
    pub fn cancel(self) -> RankdEnd {
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both);
        self.end()
    }

    /// Waits until keeper and rankd are gone and makes sure that nothing of the job is left, even if both were killed.
    ///
    /// Call it when rankd has said that it is empty, or when its stream has ended.
    pub fn end(mut self) -> RankdEnd {
        let end = loop {
            if let Some(end) = self.keeper_end() {
                break end;
            }
            let mut fds = [PollFd::new(&self.keeper.pidfd, PollFlags::IN)];
            keeper::wait(&mut fds, None);
        };
        if end != RankdEnd::Done {
            self.sweep();
        }
        end
    }

    /// What keeper and rankd could not do since they were killed: end what has come to us as their orphans, or
    /// sits in the job's cgroup. Done when no child is left but those we had before: the keeper is reaped, so its
    /// children are ours by now, and theirs as soon as they are dead.
    fn sweep(&mut self) {
        let give_up = Instant::now() + keeper::KILL_LIMIT;
        let cgroup = JobCgroup::find(&self.job_id);
        while Instant::now() < give_up {
            if let Some(cgroup) = &cgroup {
                cgroup.kill_all();
            }
            while let Reaped::Child { .. } = reap(-1) {}
            if !self.bystanders.kill_others() {
                break;
            }
            std::thread::sleep(keeper::KILL_ROUND);
        }
        keeper::remove_cgroup(cgroup);
    }
}
