//! prun's exit codes, all of them.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | every rank ended with 0 |
//! | 1–123 | the first rank that failed ended with this code |
//! | 124 | the time limit (`--timeout`) ended the job |
//! | 125 | prun itself could not do it: bad options, a bad job file, no resources |
//! | 126 | the program was found but cannot be run |
//! | 127 | the program was not found |
//! | 128 + n | signal n ended the first rank that failed, or signal n was sent to prun and so ended the job |
//! | 141 | standard output was closed (`prun … \| head -1`): 128 + SIGPIPE |
//!
//! A rank may of course itself end with 124 or more; the last line on stderr tells the two apart.

use nix::sys::signal::Signal;

/// Every rank ended with 0, or there was only text to print.
pub const SUCCESS: u8 = 0;
/// The time limit ended the job, as `timeout` of coreutils says it.
pub const TIME_LIMIT: u8 = 124;
/// prun itself could not do what was asked. Wrong options end with this too, and not with the 2 that
/// many programs use, so that it is never mistaken for a rank's own code.
pub const REFUSED: u8 = 125;
/// The program was found but cannot be run: not executable, a directory, the wrong architecture.
pub const CANNOT_RUN: u8 = 126;
/// There is no such program, or its interpreter is missing.
pub const NOT_FOUND: u8 = 127;
/// Nobody reads standard output any more.
pub const CLOSED_STDOUT: u8 = by_signal(Signal::SIGPIPE);

/// The code of a job that `signal` ended, as shells count: 128 + its number.
pub const fn by_signal(signal: Signal) -> u8 {
    128 + signal as u8
}

/// The exit codes as `--help` and the man page show them.
pub const TEXT: &str = "  0        every rank ended with 0
  1-123    the code of the first rank that failed
  124      the time limit (--timeout) ended the job
  125      prun's own error: bad options, a bad job file, no resources
  126 127  the program cannot be run; the program was not found
  128+n    signal n ended the first failed rank, or reached prun and ended the job
  141      standard output was closed: 128 + SIGPIPE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_counts_from_128() {
        assert_eq!((by_signal(Signal::SIGINT), by_signal(Signal::SIGTERM), CLOSED_STDOUT), (130, 143, 141));
    }
}
