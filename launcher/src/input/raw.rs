//! The user's terminal in raw mode, and back again.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::termios::{OptionalActions, OutputModes, Termios, tcgetattr, tcsetattr};

use super::in_foreground;

/// Keeps the terminal raw; dropping it gives the terminal back as it was.
#[derive(Debug)]
pub(super) struct RawTerminal {
    terminal: OwnedFd,
    found: Termios,
    raw: Termios,
}

impl RawTerminal {
    /// `raw_output`: nothing but the pty's output comes here, and it is not to be translated once more.
    pub fn new(terminal: OwnedFd, raw_output: bool) -> Result<RawTerminal, Errno> {
        let found = tcgetattr(&terminal)?;
        let mut raw = found.clone();
        raw.make_raw();
        if !raw_output {
            raw.output_modes |= found.output_modes & (OutputModes::OPOST | OutputModes::ONLCR);
        }
        tcsetattr(&terminal, OptionalActions::Drain, &raw)?;
        Ok(RawTerminal { terminal, found, raw })
    }

    /// As it was found.
    pub fn suspend(&self) {
        // Nothing can be done about a terminal that is gone.
        let _ = tcsetattr(&self.terminal, OptionalActions::Drain, &self.found);
    }

    /// Raw again; not while the shell has the terminal.
    pub fn resume(&self) {
        if in_foreground(&self.terminal) {
            let _ = tcsetattr(&self.terminal, OptionalActions::Drain, &self.raw);
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        self.suspend();
    }
}
