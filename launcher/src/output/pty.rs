//! Pseudo-terminals for ranks that want one.
//!
//! The slave does no output processing (`OPOST` off): the bytes that prun passes on, into a file as well as to
//! its own terminal, are those the rank wrote, and that terminal turns `\n` into `\r\n` itself. It does not echo
//! either, since the user's terminal does. The one exception is an *interactive* rank that has the user's
//! terminal, switched to raw mode, for itself: then the slave is the terminal, with all its settings.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{
    LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetattr,
    tcsetwinsize,
};

/// Both ends of one pseudo-terminal.
#[derive(Debug)]
pub(super) struct Pty {
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

/// What a new pseudo-terminal takes over from prun's own.
#[derive(Debug, Clone)]
pub(super) struct Look {
    /// The size, where prun has a terminal.
    pub size: Option<Winsize>,
    /// All settings of the user's terminal, for an interactive rank.
    pub interactive: Option<Termios>,
}

impl Pty {
    /// Opens one. Neither end becomes prun's controlling terminal.
    pub fn open(look: &Look) -> Result<Pty, Errno> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        // By the master, not by name: right also where another /dev/pts is mounted here.
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        let settings = match &look.interactive {
            Some(users) => users.clone(),
            None => {
                let mut quiet = tcgetattr(&slave)?;
                quiet.output_modes.remove(OutputModes::OPOST);
                quiet.local_modes.remove(LocalModes::ECHO);
                quiet
            }
        };
        tcsetattr(&slave, OptionalActions::Now, &settings)?;
        if let Some(size) = look.size {
            tcsetwinsize(&master, size)?;
        }
        Ok(Pty { master, slave })
    }
}

/// The settings of an interactive rank's slave: the user's; without output processing where prun's terminal
/// keeps doing that, because other ranks write there too.
pub(super) fn interactive(users: Termios, raw_output: bool) -> Termios {
    let mut settings = users;
    if !raw_output {
        settings.output_modes.remove(OutputModes::OPOST);
    }
    settings
}

/// The size of the first terminal among these.
pub(super) fn size_of(candidates: &[&OwnedFd]) -> Option<Winsize> {
    candidates.iter().find_map(|fd| tcgetwinsize(fd.as_fd()).ok())
}

/// The bytes that a reader of the slave sees as end of file, now and at its next few reads (a shell and the
/// program it starts each read until end of file). Empty while the slave's user has switched that off.
pub(crate) fn end_of_file(master: &OwnedFd) -> Vec<u8> {
    match tcgetattr(master) {
        Ok(settings) if settings.local_modes.contains(LocalModes::ICANON) => {
            vec![settings.special_codes[SpecialCodeIndex::VEOF]; 8]
        }
        _ => Vec::new(),
    }
}
