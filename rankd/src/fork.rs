//! The few calls that change what the calling process is: fork, wait, its name, its descriptors.

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{Pid, Signal};

use crate::proto::{ExitStatus, Usage};

/// Which side of a fork one is.
#[derive(Debug)]
pub enum Fork {
    /// The new process.
    Child,
    /// The old one, with a handle on the new.
    Parent(Forked),
}

/// A child made by [`fork`].
#[derive(Debug)]
pub struct Forked {
    /// Its process id.
    pub pid: i32,
    /// Readable once it has ended.
    pub pidfd: OwnedFd,
}

/// `fork` that also gives a pidfd and can put the child straight into a cgroup.
///
/// # Safety
/// The caller has one thread: only that thread lives on in the child, and a lock that another held would stay locked.
pub unsafe fn fork(cgroup: Option<RawFd>) -> io::Result<Fork> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut pidfd: RawFd = -1;
    // SAFETY: all-zero is a valid clone_args: every field is a number, 0 meaning "not used".
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = libc::CLONE_PIDFD as u64;
    arguments.pidfd = (&raw mut pidfd) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(directory) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = directory as u64;
    }
    // SAFETY: no CLONE_VM, so the child gets a copy of everything, our stack included; `arguments` is valid for the call.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>()) } {
        0 => Ok(Fork::Child),
        pid if pid > 0 => {
            // SAFETY: the kernel stored a new descriptor there.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Fork::Parent(Forked { pid: i32::try_from(pid).expect("a pid"), pidfd }))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the calling process at once: no destructors, no flushing of buffers copied from the parent.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process; nothing runs after it.
    unsafe { libc::_exit(code) }
}

/// What [`reap`] found.
#[derive(Debug)]
pub enum Reaped {
    /// This child ended and is gone from the process table.
    Child {
        /// Its process id.
        pid: i32,
        /// How it ended.
        status: ExitStatus,
        /// What it used.
        usage: Usage,
    },
    /// There are children, but none has ended.
    NoneEnded,
    /// There is no such child.
    NoChildren,
}

/// Reaps one ended child: `pid`, or any if it is -1. Never blocks.
pub fn reap(pid: i32) -> Reaped {
    let mut status: c_int = 0;
    // SAFETY: all-zero is a valid rusage to be overwritten; both places are ours.
    let (result, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage), usage)
    };
    match result {
        0 => Reaped::NoneEnded,
        pid if pid > 0 => {
            let status = if libc::WIFSIGNALED(status) {
                ExitStatus::Signal { signal: libc::WTERMSIG(status), core: libc::WCOREDUMP(status) }
            } else {
                ExitStatus::Code(libc::WEXITSTATUS(status))
            };
            Reaped::Child { pid, status, usage: usage_of(&usage) }
        }
        _ => Reaped::NoChildren,
    }
}

fn usage_of(usage: &libc::rusage) -> Usage {
    let micros = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    Usage {
        max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
    }
}

/// What [`next_ended`] sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextEnded {
    /// This child has ended and waits to be reaped.
    Child(i32),
    /// There are children, but none has ended.
    None,
    /// There is no child at all. For a subreaper that means: no descendant, whatever it did to hide.
    NoChildren,
}

/// Some child that has ended; it stays so until [`reap`] takes it.
pub fn next_ended() -> NextEnded {
    // SAFETY: all-zero is a valid siginfo to be overwritten.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        match libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) {
            0 if info.si_pid() == 0 => NextEnded::None,
            0 => NextEnded::Child(info.si_pid()),
            _ => NextEnded::NoChildren,
        }
    }
}

/// Whether the calling process was started with this signal ignored, as `nohup` does with SIGHUP.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is a valid place to write to; a null new action only asks.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Whether the child `pid` is stopped right now.
pub fn is_stopped(pid: i32) -> bool {
    let Ok(id) = libc::id_t::try_from(pid) else { return false };
    // SAFETY: all-zero is a valid siginfo to be overwritten. WNOWAIT leaves the state to be seen again.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, id, &mut info, libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT) == 0
            && info.si_pid() == pid
    }
}

/// Sends `signal` to the process group that the unreaped child `leader` leads.
///
/// The number cannot belong to a stranger: an unreaped child, even a dead one, keeps it.
pub fn signal_group(leader: i32, signal: i32) {
    // SAFETY: a plain system call.
    unsafe { libc::kill(-leader, signal) };
}

/// The name that `ps` and `top` show, at most 15 bytes.
pub fn set_name(name: &CStr) {
    let _ = rustix::thread::set_name(name);
}

/// Orphaned descendants come to the calling process from now on.
pub fn become_subreaper() {
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// SIGKILL for one pinned process.
pub fn kill(process: &OwnedFd) {
    let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
}

/// The caller's parent.
pub fn parent_pid() -> i32 {
    rustix::process::getppid().map_or(0, Pid::as_raw_pid)
}

/// Closes every descriptor above 2 except `keep`, and points 0, 1 and 2 at `/dev/null`, so that whoever reads
/// prun's output sees its end when prun ends, and not when its helpers do.
///
/// # Safety
/// The caller will never use or drop an owner of a descriptor that is not in `keep`.
pub unsafe fn keep_only(keep: &mut Vec<RawFd>) {
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        for target in 0..3 {
            // SAFETY: both descriptors are open; 0..3 are owned by nobody.
            unsafe { libc::dup2(null.as_raw_fd(), target) };
        }
    }
    keep.retain(|&fd| fd > 2);
    keep.sort_unstable();
    keep.dedup();
    let mut first = 3;
    for &fd in keep.iter() {
        close_between(first, fd - 1);
        first = fd + 1;
    }
    close_between(first, RawFd::MAX);
}

fn close_between(first: RawFd, last: RawFd) {
    if first <= last {
        // SAFETY: see `keep_only`, the only caller.
        unsafe { libc::syscall(libc::SYS_close_range, first as u32, last as u32, 0) };
    }
}

/// A copy, marked close-on-exec, of a descriptor that the user opened before this process began.
///
/// # Errors
/// The system's, if it is not open.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: asks for a copy; if `fd` is not open the call fails and touches nothing.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made it, nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
