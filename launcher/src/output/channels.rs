//! The channels between ranks and prun, made before rankd is forked: a pipe per rank and stream, or a pty.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::OutputError;

/// One of a rank's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Descriptor 1; with a pty or merged streams also what goes to descriptor 2.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        })
    }
}

/// One rank's ends, to become its descriptors 0, 1 and 2. All are close-on-exec; some ranks share `/dev/null`.
#[derive(Debug, Clone)]
pub struct ChildStdio {
    /// To read: `/dev/null`, prun's own standard input, a pipe or the pty.
    pub stdin: Arc<OwnedFd>,
    /// To write: a pipe or the pty.
    pub stdout: Arc<OwnedFd>,
    /// To write; the same as `stdout` where streams are merged.
    pub stderr: Arc<OwnedFd>,
    /// All three are one pseudo-terminal's slave, which should become the rank's controlling terminal.
    pub pty: bool,
}

/// A close-on-exec pipe: (read end, write end), both blocking.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), OutputError> {
    pipe_with(PipeFlags::CLOEXEC).map_err(OutputError::channel)
}

impl OutputError {
    pub(crate) fn channel(errno: Errno) -> OutputError {
        OutputError::Channel { cause: errno.into() }
    }
}

/// Makes room for `needed` descriptors. Returns the limit as it was if that took raising it, so that ranks can be
/// given the limit their user chose.
pub(super) fn allow_descriptors(needed: u64) -> Result<Option<Rlimit>, OutputError> {
    let before = getrlimit(Resource::Nofile);
    if before.current.is_none_or(|soft| soft >= needed) {
        return Ok(None);
    }
    if let Some(hard) = before.maximum
        && hard < needed
    {
        return Err(OutputError::TooManyDescriptors { needed, hard });
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: before.maximum })
        .map_err(OutputError::channel)?;
    Ok(Some(before))
}
