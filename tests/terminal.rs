//! [`Terminal`]: the user's side of a pseudo-terminal that prun runs on.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::{Collected, occurrences};

/// A terminal at which the test sits.
#[derive(Debug)]
pub struct Terminal(File);

impl Terminal {
    /// A new one, 80 × 24, and the end that programs get.
    pub fn open() -> (Terminal, OwnedFd) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a pseudo-terminal");
        grantpt(&master).expect("our own");
        unlockpt(&master).expect("our own");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let slave =
            rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).expect("our own");
        let terminal = Terminal(File::from(master));
        terminal.resize(24, 80);
        (terminal, slave)
    }

    /// Types this.
    pub fn keys(&self, keys: &str) {
        (&self.0).write_all(keys.as_bytes()).expect("a terminal takes keys");
    }

    /// Presses Ctrl-C.
    pub fn interrupt(&self) {
        self.keys("\x03");
    }

    /// Presses Ctrl-Z.
    pub fn suspend(&self) {
        self.keys("\x1a");
    }

    /// The window gets this size.
    pub fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.0, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).expect("our own");
    }

    /// What is shown, for a test that started something by itself.
    pub fn screen(&self) -> Screen {
        Screen(Collected::from(self.reader()))
    }

    /// What is shown, as a stream.
    pub(crate) fn reader(&self) -> File {
        self.0.try_clone().expect("a descriptor")
    }
}

/// What a terminal has shown so far.
#[derive(Debug)]
pub struct Screen(Collected);

impl Screen {
    /// Waits until `text` was shown `count` times.
    pub fn expect(&self, text: &str, count: usize) {
        self.0.wait_until(&format!("{count} × {text:?}"), |bytes| occurrences(bytes, text.as_bytes()) >= count);
    }

    /// How often `text` was shown.
    pub fn count(&self, text: &str) -> usize {
        occurrences(&self.0.so_far(), text.as_bytes())
    }
}
