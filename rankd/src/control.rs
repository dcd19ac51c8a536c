//! rankd's end of the stream to prun: messages out without ever blocking the loop, messages in as they come.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::frame::{FrameError, FrameReader, encode};
use crate::keeper::wait;
use crate::proto::{FromNode, ToNode};

/// How long the last messages may take to be read before rankd goes without them.
const LAST_WORDS: std::time::Duration = std::time::Duration::from_secs(5);

/// The stream, with what could not be written yet.
#[derive(Debug)]
pub(crate) struct Control {
    stream: OwnedFd,
    reader: FrameReader,
    unsent: Vec<u8>,
    closed: bool,
    waits_for_room: bool,
}

impl Control {
    /// Takes a non-blocking stream socket.
    pub(crate) fn new(stream: OwnedFd) -> Control {
        Control { stream, reader: FrameReader::default(), unsent: Vec::new(), closed: false, waits_for_room: false }
    }

    /// Queues a message; [`Control::flush`] sends it.
    pub(crate) fn send(&mut self, message: &FromNode) {
        if !self.closed && encode(message, &mut self.unsent).is_err() {
            self.closed = true;
        }
    }

    /// Sends what fits.
    pub(crate) fn flush(&mut self) {
        while !self.closed && !self.unsent.is_empty() {
            match send(&self.stream, &self.unsent, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The reader is gone; the end of the stream tells the loop so.
                Err(_) => self.unsent.clear(),
            }
        }
    }

    /// Sends the rest, waiting for prun a bounded time.
    pub(crate) fn flush_blocking(&mut self) {
        let deadline = std::time::Instant::now() + LAST_WORDS;
        loop {
            self.flush();
            if self.closed || self.unsent.is_empty() || std::time::Instant::now() >= deadline {
                return;
            }
            wait(&mut [PollFd::new(&self.stream, PollFlags::OUT)], Some(deadline));
        }
    }

    /// `Some` once after the answer to "wake me when there is room to write" has changed.
    pub(crate) fn write_interest_changed(&mut self) -> Option<bool> {
        let wanted = !self.closed && !self.unsent.is_empty();
        (wanted != self.waits_for_room).then(|| {
            self.waits_for_room = wanted;
            wanted
        })
    }

    /// All whole messages that have arrived; [`Control::is_closed`] afterwards tells of the stream's end.
    pub(crate) fn receive(&mut self) -> Result<Vec<ToNode>, FrameError> {
        let mut buffer = [0u8; 4096];
        loop {
            match rustix::io::read(&self.stream, &mut buffer) {
                Ok(0) => break self.closed = true,
                Ok(count) => self.reader.push(&buffer[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => break self.closed = true,
            }
        }
        let mut messages = Vec::new();
        while let Some(message) = self.reader.next()? {
            messages.push(message);
        }
        Ok(messages)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Nothing is sent from here on.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.unsent.clear();
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
