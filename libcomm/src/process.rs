//! Who this process is, and whether another one still exists.

use rustix::io::Errno;
use rustix::process::Pid;

use crate::shm::atomic::Relaxed;
use crate::shm::layout::Status;

/// Writes down who has joined. The namespace tells whether a reader may trust the number.
pub(crate) fn sign(status: &Status) {
    let pid = std::process::id();
    status.pid_started.store(start_time(pid).unwrap_or(0), Relaxed);
    status.pid_namespace.store(namespace().unwrap_or(0), Relaxed);
    status.pid.store(pid, Relaxed);
}

/// Whether the process that joined still exists, as far as can be known: yes, where it cannot.
pub(crate) fn exists(status: &Status) -> bool {
    let Some(pid) = Pid::from_raw(status.pid.load(Relaxed) as i32) else { return true };
    let theirs = status.pid_namespace.load(Relaxed);
    if theirs == 0 || namespace() != Some(theirs) {
        return true;
    }
    if rustix::process::test_kill_process(pid) == Err(Errno::SRCH) {
        return false;
    }
    let started = status.pid_started.load(Relaxed);
    match start_time(status.pid.load(Relaxed)) {
        Some(now) => started == 0 || now == started,
        None => true,
    }
}

/// The namespace in which process numbers count, 0 where it cannot be known.
pub(crate) fn pid_namespace() -> u64 {
    namespace().unwrap_or(0)
}

fn namespace() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").ok().map(|meta| meta.ino())
}

/// In clock ticks since boot: field 22 of /proc/PID/stat, the 20th after the name, which may hold anything.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.get(stat.rfind(')')? + 2..)?;
    after_name.split(' ').nth(19)?.parse().ok()
}
