//! The ranks' standard input.
//!
//! A file or pipe is handed to the one rank that reads as the descriptor itself: bytes are exact, and what the rank
//! leaves unread stays for the shell's next command (`while read …; do prun …; done`). The others read
//! `/dev/null`. A terminal cannot be handed over, since a rank in a process group of its own would be stopped
//! when it reads; so a thread copies it, while prun is in the foreground. The thread also copies for
//! `--stdin all` and into ptys.
//!
//! A rank that closes its input is skipped from then on. With `--stdin all` a rank that keeps it open and does
//! not read makes the others wait once its pipe is full, as `tee` would: dropping input would be worse.

mod feed;
mod raw;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::{isatty, tcgetpgrp};

use crate::job::StdinTo;
use crate::output::{OutputError, end_of_file, pipe};
use feed::Destination;
pub(crate) use feed::{Feed, RunningFeed};

/// What input depends on.
#[derive(Debug)]
pub(crate) struct InputPlan<'a> {
    /// prun's own standard input.
    pub own: &'a OwnedFd,
    pub to: StdinTo,
    /// For each rank its pty's slave, if it has one.
    pub slaves: &'a [Option<Arc<OwnedFd>>],
    /// The masters of those.
    pub masters: &'a [(u32, OwnedFd)],
    /// Switch prun's terminal to raw mode: the rank's pty handles keys.
    pub raw: bool,
    /// … and output comes out of that pty ready for the terminal.
    pub raw_output: bool,
}

/// The ranks' standard inputs, and what feeds them if that takes a thread.
#[derive(Debug)]
pub(crate) struct Opened {
    pub per_rank: Vec<Arc<OwnedFd>>,
    pub feed: Option<Feed>,
}

/// Opens one standard input per rank.
pub(crate) fn open(plan: InputPlan<'_>) -> Result<Opened, OutputError> {
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map(Arc::new)
        .map_err(OutputError::channel)?;
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(|cause| OutputError::Channel { cause });
    let mut per_rank = Vec::with_capacity(plan.slaves.len());
    let mut to = Vec::new();
    for (rank, slave) in plan.slaves.iter().enumerate() {
        let reads = match plan.to {
            StdinTo::Rank(reader) => reader as usize == rank,
            StdinTo::All => true,
            StdinTo::None => false,
        };
        let stdin = match slave {
            Some(slave) => {
                let master = plan.masters.iter().find(|(owner, _)| *owner as usize == rank).map(|(_, master)| master);
                if let Some(master) = master {
                    if reads {
                        to.push(Destination { fd: copy(master)?, pty: true });
                    } else {
                        // The terminal's way to say what /dev/null says. If it fails, the rank sees no input at all.
                        let _ = rustix::io::write(master, &end_of_file(master));
                    }
                }
                Arc::clone(slave)
            }
            None if !reads => Arc::clone(&null),
            None if plan.to != StdinTo::All && !isatty(plan.own) => Arc::new(copy(plan.own)?),
            None => {
                let (read_end, write_end) = pipe()?;
                to.push(Destination { fd: write_end, pty: false });
                Arc::new(read_end)
            }
        };
        per_rank.push(stdin);
    }
    let feed = if to.is_empty() { None } else { Some(Feed::new(copy(plan.own)?, to, plan.raw, plan.raw_output)) };
    Ok(Opened { per_rank, feed })
}

/// Whether a read from this terminal is ours to make now. A terminal that is not our controlling one knows no
/// background.
pub(crate) fn in_foreground(terminal: impl AsFd) -> bool {
    match tcgetpgrp(terminal) {
        Ok(group) => group == getpgrp(),
        Err(errno) => errno == Errno::NOTTY,
    }
}
