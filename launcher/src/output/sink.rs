//! One place that output goes to: prun's stdout or stderr, or a file.
//!
//! Raw descriptors and `writev`: std's own handles would split at newlines, copy once more and hide what
//! is pending. What belongs to which line is decided by the [`mixer`](super::mixer); a sink only knows bytes.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, IoSlice, writev};

/// What can take bytes; memory in tests.
pub(super) trait Target {
    /// Writes both pieces completely, `second` after `first`.
    fn write_both(&mut self, first: &[u8], second: &[u8]) -> Result<(), Errno>;
}

/// An open descriptor, blocking or not.
#[derive(Debug)]
pub(super) struct Descriptor(pub OwnedFd);

impl Target for Descriptor {
    fn write_both(&mut self, mut first: &[u8], mut second: &[u8]) -> Result<(), Errno> {
        while !(first.is_empty() && second.is_empty()) {
            match writev(&self.0, &[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => {
                    let of_first = written.min(first.len());
                    first = &first[of_first..];
                    second = &second[written - of_first..];
                }
                Err(Errno::INTR) => {}
                // Somebody who shares the description made it non-blocking (a shell's other program, say).
                Err(Errno::AGAIN) => wait_until_writable(&self.0),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

fn wait_until_writable(fd: &impl AsFd) {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    // Whatever goes wrong here shows in the next write.
    let _ = poll(&mut fds, None);
}

/// Bytes gathered up to this are written at the end of a round, in one call.
const GATHER: usize = 64 << 10;

/// A target, the bytes that wait for it, and whose line is unfinished on it.
#[derive(Debug)]
pub(super) struct Sink<W> {
    target: W,
    gathered: Vec<u8>,
    /// The source whose unfinished line this sink shows: nobody else may write until it ends.
    pub owner: Option<usize>,
    /// The last byte was not a newline.
    pub mid_line: bool,
    /// How many sources write here.
    pub writers: usize,
    /// When the owner last added to its line; kept by the relay.
    pub owner_active: Option<Instant>,
    /// Since when somebody waits for the owner; kept by the relay.
    pub wanted_since: Option<Instant>,
    /// The first error; from then on everything is dropped.
    pub failure: Option<Errno>,
}

impl<W: Target> Sink<W> {
    pub fn new(target: W) -> Sink<W> {
        Sink {
            target,
            gathered: Vec::new(),
            owner: None,
            mid_line: false,
            writers: 0,
            owner_active: None,
            wanted_since: None,
            failure: None,
        }
    }

    /// Adds bytes, in order. Long ones go straight from the caller's buffer to the target.
    pub fn put(&mut self, bytes: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        if self.gathered.len() + bytes.len() <= GATHER && bytes.len() < GATHER / 2 {
            self.gathered.extend_from_slice(bytes);
            return;
        }
        let outcome = self.target.write_both(&self.gathered, bytes);
        self.gathered.clear();
        self.failure = outcome.err();
    }

    /// Adds each line of `lines` behind `label`; the first one without where it goes on an unfinished line.
    /// Everything passes through the one gathering buffer, so that short lines cost no call each.
    pub fn put_labelled(&mut self, label: &[u8], lines: &[u8], first_continues: bool) {
        if self.failure.is_some() {
            return;
        }
        let mut continues = first_continues;
        let mut rest = lines;
        while !rest.is_empty() {
            let length = memchr::memchr(b'\n', rest).map_or(rest.len(), |newline| newline + 1);
            let (line, after) = rest.split_at(length);
            if self.gathered.len() + label.len() + line.len() > GATHER {
                self.flush();
            }
            if !continues {
                self.gathered.extend_from_slice(label);
            }
            if line.len() < GATHER / 2 {
                self.gathered.extend_from_slice(line);
            } else {
                self.put(line);
            }
            continues = false;
            rest = after;
        }
    }

    /// Writes what was gathered.
    pub fn flush(&mut self) {
        if !self.gathered.is_empty() {
            if self.failure.is_none() {
                self.failure = self.target.write_both(&self.gathered, &[]).err();
            }
            self.gathered.clear();
        }
    }

    /// The target, for tests and for what only a descriptor can do.
    #[cfg(test)]
    pub fn target(&self) -> &W {
        &self.target
    }
}
