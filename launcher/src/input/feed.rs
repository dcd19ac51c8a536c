//! The thread that copies prun's standard input into pipes and ptys.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ioctl_fionbio, read, write};
use rustix::termios::isatty;

use super::in_foreground;
use super::raw::RawTerminal;
use crate::output::{OutputError, end_of_file, event, signal};

/// One place that input is copied to.
#[derive(Debug)]
pub(super) struct Destination {
    pub fd: OwnedFd,
    pub pty: bool,
}

/// A copy that is not running yet.
#[derive(Debug)]
pub(crate) struct Feed {
    from: OwnedFd,
    terminal: bool,
    to: Vec<Destination>,
    raw: bool,
    raw_output: bool,
}

/// A running copy. It ends at end of file, when nobody takes input any more, or when it is stopped.
#[derive(Debug)]
pub(crate) struct RunningFeed {
    stop: Arc<OwnedFd>,
    raw: Option<RawTerminal>,
}

impl Feed {
    pub(super) fn new(from: OwnedFd, to: Vec<Destination>, raw: bool, raw_output: bool) -> Feed {
        let terminal = isatty(&from);
        Feed { from, terminal, to, raw, raw_output }
    }

    /// Starts the thread, after all its signals were blocked.
    pub fn start(mut self) -> Result<RunningFeed, OutputError> {
        for destination in &self.to {
            ioctl_fionbio(&destination.fd, true).map_err(OutputError::channel)?;
        }
        let raw = if self.raw {
            let terminal = self.from.try_clone().map_err(|cause| OutputError::Channel { cause })?;
            // Without raw mode the rank gets whole lines, which is better than nothing.
            RawTerminal::new(terminal, self.raw_output).ok()
        } else {
            None
        };
        if self.terminal {
            // An open description of our own can be non-blocking without making the shell's so.
            let path = format!("/proc/self/fd/{}", self.from.as_raw_fd());
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            if let Ok(own) = rustix::fs::open(path, flags, Mode::empty()) {
                self.from = own;
            }
        }
        let stop = Arc::new(event()?);
        let seen = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("input".into())
            .spawn(move || self.copy(&seen))
            .map_err(|cause| OutputError::Thread { cause })?;
        Ok(RunningFeed { stop, raw })
    }

    fn copy(mut self, stop: &OwnedFd) {
        let mut buffer = vec![0; 64 << 10];
        while self.wait_for_input(stop) {
            match read(&self.from, &mut buffer) {
                Ok(0) => return self.end(stop),
                Ok(count) => {
                    if !self.deliver(&buffer[..count], stop) {
                        return;
                    }
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                // The terminal became somebody else's between our look and our read.
                Err(Errno::IO) if self.terminal && !in_foreground(&self.from) => {}
                Err(_) => return self.end(stop),
            }
        }
    }

    /// False: stopped, or nobody takes input any more.
    fn wait_for_input(&mut self, stop: &OwnedFd) -> bool {
        loop {
            let ours = !self.terminal || in_foreground(&self.from);
            let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
            fds.push(PollFd::new(&self.from, if ours { PollFlags::IN } else { PollFlags::empty() }));
            // Nothing to wait for in these but the reader's end.
            fds.extend(self.to.iter().map(|destination| PollFd::new(&destination.fd, PollFlags::empty())));
            let a_while = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            let outcome = poll(&mut fds, if ours { None } else { Some(&a_while) });
            if !matches!(outcome, Ok(_) | Err(Errno::INTR)) || !fds[0].revents().is_empty() {
                return false;
            }
            let input = fds[1].revents();
            let gone: Vec<bool> = fds[2..].iter().map(|fd| fd.revents().contains(PollFlags::ERR)).collect();
            drop(fds);
            let mut gone = gone.into_iter();
            self.to.retain(|_| !gone.next().unwrap_or(false));
            if self.to.is_empty() {
                return false;
            }
            if ours && input.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
                // Once more: the shell may have taken the terminal back while we waited.
                if !self.terminal || in_foreground(&self.from) || input.contains(PollFlags::HUP) {
                    return true;
                }
            } else if input.intersects(PollFlags::HUP | PollFlags::ERR) {
                return true;
            }
        }
    }

    /// Copies to everyone who still reads. False: stopped, or nobody does.
    fn deliver(&mut self, data: &[u8], stop: &OwnedFd) -> bool {
        let mut sent = vec![0; self.to.len()];
        loop {
            let mut index = 0;
            while index < self.to.len() {
                match write_all_possible(&self.to[index].fd, &data[sent[index]..]) {
                    Ok(written) => {
                        sent[index] += written;
                        index += 1;
                    }
                    // It does not read any more, which is its own business.
                    Err(_) => {
                        self.to.swap_remove(index);
                        sent.swap_remove(index);
                    }
                }
            }
            if self.to.is_empty() {
                return false;
            }
            let behind: Vec<_> =
                self.to.iter().zip(&sent).filter(|(_, sent)| **sent < data.len()).map(|(to, _)| to).collect();
            if behind.is_empty() {
                return true;
            }
            let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
            fds.extend(behind.iter().map(|destination| PollFd::new(&destination.fd, PollFlags::OUT)));
            let outcome = poll(&mut fds, None);
            if !matches!(outcome, Ok(_) | Err(Errno::INTR)) || !fds[0].revents().is_empty() {
                return false;
            }
        }
    }

    /// End of file: pipes say so by being closed, ptys by a character.
    fn end(mut self, stop: &OwnedFd) {
        self.to.retain(|destination| destination.pty);
        let characters: Vec<u8> = self.to.first().map(|first| end_of_file(&first.fd)).unwrap_or_default();
        if !characters.is_empty() {
            self.deliver(&characters, stop);
        }
    }
}

impl RunningFeed {
    /// Ends the copy and gives the terminal back. The thread is not waited for: it holds nothing that matters.
    pub fn stop(&self) {
        signal(&self.stop);
        self.suspend_terminal();
    }

    /// See [`RawTerminal::suspend`].
    pub fn suspend_terminal(&self) {
        if let Some(raw) = &self.raw {
            raw.suspend();
        }
    }

    /// See [`RawTerminal::resume`].
    pub fn resume_terminal(&self) {
        if let Some(raw) = &self.raw {
            raw.resume();
        }
    }
}

impl Drop for RunningFeed {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Writes until the descriptor takes no more.
fn write_all_possible(fd: &OwnedFd, data: &[u8]) -> Result<usize, Errno> {
    let mut written = 0;
    while written < data.len() {
        match write(fd, &data[written..]) {
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(written)
}
