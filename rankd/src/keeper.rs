//! The keeper: outlives rankd to clean up after it.
//!
//! It sits between prun and rankd, in a session of its own, and does nothing but wait. It is a child
//! subreaper above rankd, so whatever rankd leaves when it is killed comes here, and is ended.
//!
//! | who dies | who ends the ranks |
//! | --- | --- |
//! | prun | rankd sees the end of its stream: TERM, grace, KILL |
//! | rankd | the ranks' death signal at once, their descendants by the keeper |
//! | prun and rankd | the same |
//! | keeper | rankd sees it and ends the job |
//! | keeper and rankd | the ranks' death signal at once, their descendants by prun |
//! | all three | the ranks' death signal; their descendants by the next job, where there are cgroups |

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::cgroup::{JobCgroup, remove_abandoned};
use crate::fork::{Forked, Reaped, keep_only, kill, reap};
use crate::processes::{descendants, signal_descendants};
use crate::proto::ExitStatus;

/// A job that has run for so long has time to look for what others left.
const LONG_JOB: Duration = Duration::from_millis(500);
/// How long rankd may take for its own work beyond the grace period once prun is gone.
const RANKD_MARGIN: Duration = Duration::from_secs(5);
/// How long processes that SIGKILL does not end at once (stuck in a driver) are waited for.
pub(crate) const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How often the list of what is left is read again.
pub(crate) const KILL_ROUND: Duration = Duration::from_millis(20);

/// Waits until rankd is gone and everything it started as well; gives rankd's exit code (128 + signal).
pub(crate) fn watch(rankd: Forked, lifeline: OwnedFd, cgroup: Option<JobCgroup>, grace: Duration) -> i32 {
    let mut keep = vec![rankd.pidfd.as_raw_fd(), lifeline.as_raw_fd()];
    keep.extend(cgroup.as_ref().map(JobCgroup::raw_fd));
    // SAFETY: everything else belongs to values of prun's and rankd's that this process never touches again.
    #[expect(unsafe_code, reason = "the fork left us copies of descriptors that are not ours")]
    unsafe {
        keep_only(&mut keep);
    }
    // A short job must not pay for others: they are looked after only once this one has run for a while.
    let lasts = !ends_within(&rankd, LONG_JOB);
    if lasts && cgroup.is_some() {
        remove_abandoned();
    }
    let code = wait_for_rankd(&rankd, &lifeline, grace);
    end_descendants(cgroup.as_ref());
    remove_cgroup(cgroup);
    code
}

fn ends_within(rankd: &Forked, time: Duration) -> bool {
    let mut fds = [PollFd::new(&rankd.pidfd, PollFlags::IN)];
    wait(&mut fds, Some(Instant::now() + time));
    !fds[0].revents().is_empty()
}

fn wait_for_rankd(rankd: &Forked, lifeline: &OwnedFd, grace: Duration) -> i32 {
    let mut kill_at = None;
    loop {
        if let Reaped::Child { status, .. } = reap(rankd.pid) {
            return status.shell_code();
        }
        let mut fds = vec![PollFd::new(&rankd.pidfd, PollFlags::IN)];
        if kill_at.is_none() {
            // prun holds the other end and never writes: readable means that prun is gone.
            fds.push(PollFd::new(lifeline, PollFlags::IN));
        }
        wait(&mut fds, kill_at);
        let prun_is_gone = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        if prun_is_gone {
            kill_at = Some(Instant::now() + grace + RANKD_MARGIN);
        }
        if kill_at.is_some_and(|at| Instant::now() >= at) {
            kill(&rankd.pidfd);
            kill_at = Some(Instant::now() + KILL_LIMIT);
        }
    }
}

/// SIGKILL for every descendant, until there is none; at most [`KILL_LIMIT`]. True if none is left.
pub(crate) fn end_descendants(cgroup: Option<&JobCgroup>) -> bool {
    let give_up = Instant::now() + KILL_LIMIT;
    loop {
        match reap(-1) {
            Reaped::NoChildren => return true,
            Reaped::Child { .. } => continue,
            Reaped::NoneEnded => {}
        }
        if Instant::now() >= give_up {
            return false;
        }
        if let Some(cgroup) = cgroup.filter(|cgroup| !cgroup.holds_caller()) {
            cgroup.kill_all();
        }
        signal_descendants(&descendants(None), Signal::KILL, None);
        std::thread::sleep(KILL_ROUND);
    }
}

/// Removes the cgroup, or gives up after [`KILL_LIMIT`].
pub(crate) fn remove_cgroup(cgroup: Option<JobCgroup>) {
    let Some(cgroup) = cgroup else { return };
    let give_up = Instant::now() + KILL_LIMIT;
    while !cgroup.remove() && Instant::now() < give_up {
        // Members that are no descendants of ours: all our processes were killed but these had been adopted elsewhere.
        cgroup.kill_all();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// `poll` until `deadline`; interruptions and errors just end the wait.
pub(crate) fn wait(fds: &mut [PollFd<'_>], deadline: Option<Instant>) {
    let timeout = deadline.map(|at| timespec(at.saturating_duration_since(Instant::now())));
    let _ = poll(fds, timeout.as_ref());
}

/// As `poll` and `epoll` take it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// The keeper's exit code when rankd ended as it should.
pub const RANKD_DONE: i32 = 0;

/// What the keeper's own end says of rankd's.
pub fn rankd_end(keeper: ExitStatus) -> RankdEnd {
    match keeper {
        ExitStatus::Code(RANKD_DONE) => RankdEnd::Done,
        ExitStatus::Code(code) if code > 128 => RankdEnd::Killed { signal: code - 128 },
        ExitStatus::Code(code) => RankdEnd::Failed { code },
        ExitStatus::Signal { signal, .. } => RankdEnd::KeeperKilled { signal },
    }
}

/// How rankd ended, as far as prun can tell from its keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankdEnd {
    /// As it should.
    Done,
    /// By a signal.
    Killed {
        /// Which.
        signal: i32,
    },
    /// With a code of its own: a bug, or a start that failed.
    Failed {
        /// Which.
        code: i32,
    },
    /// The keeper itself was killed.
    KeeperKilled {
        /// By which signal.
        signal: i32,
    },
}
