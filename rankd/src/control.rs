//! rankd's end of the stream to prun: messages out without ever blocking the loop, messages in as they come.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::frame::{FrameError, FrameReader, encode};
use crate::keeper::wait;
use crate::proto::{FromNode, ToNode};

/// How long the last messages may take to be read before rankd goes without them.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How long news that changes nothing for prun (a rank started, a rank ended well) may wait for company.
///
/// Each message wakes prun, which takes a core from the ranks. What was tried (whole command, `/bin/true`,
/// 2 cores, median): each message at once 9.83 ms for 16 ranks and 32.9 for 64; gathered 9.78 and 31.4.
const NO_HURRY: Duration = Duration::from_millis(5);

/// The stream, with what could not be written yet.
#[derive(Debug)]
pub(crate) struct Control {
    stream: OwnedFd,
    reader: FrameReader,
    unsent: Vec<u8>,
    /// When the unsent messages must go out at the latest; `None` if there is none.
    due: Option<Instant>,
    closed: bool,
    waits_for_room: bool,
}

impl Control {
    /// Takes a non-blocking stream socket.
    pub(crate) fn new(stream: OwnedFd) -> Control {
        Control {
            stream,
            reader: FrameReader::default(),
            unsent: Vec::new(),
            due: None,
            closed: false,
            waits_for_room: false,
        }
    }

    /// Queues a message that prun must act on; the next [`Control::flush`] sends it.
    pub(crate) fn send(&mut self, message: &FromNode) {
        self.queue(message, Duration::ZERO);
    }

    /// Queues a message that can wait [`NO_HURRY`].
    pub(crate) fn send_in_company(&mut self, message: &FromNode) {
        self.queue(message, NO_HURRY);
    }

    fn queue(&mut self, message: &FromNode, patience: Duration) {
        if !self.closed && encode(message, &mut self.unsent).is_err() {
            self.closed = true;
        }
        let due = Instant::now() + patience;
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// When [`Control::flush`] will next have something to do on its own account.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.due.filter(|_| !self.waits_for_room)
    }

    /// Sends what is due, as far as it fits.
    pub(crate) fn flush(&mut self) {
        if self.due.is_some_and(|due| Instant::now() >= due) {
            self.write();
        }
    }

    fn write(&mut self) {
        while !self.closed && !self.unsent.is_empty() {
            match send(&self.stream, &self.unsent, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The reader is gone; the end of the stream tells the loop so.
                Err(_) => self.unsent.clear(),
            }
        }
        self.due = None;
    }

    /// Sends the rest, waiting for prun a bounded time.
    pub(crate) fn flush_blocking(&mut self) {
        let deadline = Instant::now() + LAST_WORDS;
        loop {
            self.write();
            if self.closed || self.unsent.is_empty() || Instant::now() >= deadline {
                return;
            }
            wait(&mut [PollFd::new(&self.stream, PollFlags::OUT)], Some(deadline));
        }
    }

    /// `Some` once after the answer to "wake me when there is room to write" has changed.
    pub(crate) fn write_interest_changed(&mut self) -> Option<bool> {
        let wanted = !self.closed && self.due.is_some_and(|due| Instant::now() >= due);
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
        while let Some(message) = self.reader.next_message()? {
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
