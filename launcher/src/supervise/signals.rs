//! Signals that prun gets, as values read from a descriptor.
//!
//! All are blocked before anything else happens, in every thread: none interrupts a write, none kills prun.
//! What is done with each is decided in [`super::state`]; `prun signals` prints it.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Faults of prun's own code: these must not be blocked.
const FAULTS: [Signal; 6] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS];

/// The descriptor from which signals are read.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Blocks all signals for this thread and those it starts, and opens the descriptor.
    ///
    /// A SIGHUP that was ignored when prun was started (`nohup`) stays ignored.
    pub fn block() -> nix::Result<Signals> {
        let mut set = SigSet::all();
        for fault in FAULTS {
            set.remove(fault);
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&set), None)?;
        let mut read = set;
        if rankd::fork::is_ignored(Signal::SIGHUP as i32) {
            read.remove(Signal::SIGHUP);
        }
        // Ends of children are seen through their pidfds.
        read.remove(Signal::SIGCHLD);
        Ok(Signals { fd: SignalFd::with_flags(&read, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)? })
    }

    /// The numbers of the signals that have come, in the kernel's order.
    pub fn read(&self) -> Vec<i32> {
        std::iter::from_fn(|| self.fd.read_signal().ok().flatten())
            .filter_map(|info| i32::try_from(info.ssi_signo).ok())
            .collect()
    }

    /// Readable when a signal has come.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// "SIGTERM", or "signal 40" for one without a name.
pub fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |signal| signal.as_str().to_owned())
}
