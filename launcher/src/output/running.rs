//! What the rest of prun holds of the output threads, from their start to their end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Rlimit;
use rustix::termios::tcsetwinsize;

use super::relay::{Carrier, Control, Shared, ThreadEnd, carry};
use super::{OutputError, OwnStdio, SinkFailure, Stream, pty};
use crate::input::{Feed, RunningFeed};

/// Channels and files that are open; nothing runs yet.
#[derive(Debug)]
pub struct Relay {
    pub(super) carriers: Vec<Carrier>,
    pub(super) input: Option<Feed>,
    pub(super) pty_masters: Vec<OwnedFd>,
    pub(super) own: OwnStdio,

    pub(super) world_size: u32,
    pub(super) limit_before: Option<Rlimit>,
}

impl Relay {
    /// The limit on open files before it was raised for the channels, if it was: ranks should get this one.
    pub fn descriptor_limit_before(&self) -> Option<Rlimit> {
        self.limit_before
    }

    /// Starts the threads. Only after rankd was forked and prun's copies of the ranks' ends were dropped, or no
    /// end of file would ever come; with all signals blocked that a thread should not take.
    pub fn start(self) -> Result<RunningRelay, OutputError> {
        let shared = Arc::new(Shared::new(self.world_size)?);
        shared.running.store(self.carriers.len(), Ordering::Release);
        let mut controls = Vec::new();
        let mut note_control = None;
        let mut threads = Vec::new();
        for carrier in self.carriers {
            let control = Arc::clone(&carrier.control);
            if carrier.note_sink.is_some() {
                note_control = Some(Arc::clone(&control));
            }
            controls.push(control);
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("output".into()).spawn(move || carry(carrier, shared));
            threads.push(thread.map_err(|cause| OutputError::Thread { cause })?);
        }
        let feed = self.input.map(Feed::start).transpose()?;
        Ok(RunningRelay { shared, controls, note_control, threads, feed, pty_masters: self.pty_masters, own: self.own })
    }
}

/// The threads that carry output and input.
#[derive(Debug)]
pub struct RunningRelay {
    shared: Arc<Shared>,
    controls: Vec<Arc<Control>>,
    note_control: Option<Arc<Control>>,
    threads: Vec<JoinHandle<ThreadEnd>>,
    feed: Option<RunningFeed>,
    pty_masters: Vec<OwnedFd>,
    own: OwnStdio,
}

impl RunningRelay {
    /// Puts prun's own message on stderr, as whole lines between those of the ranks. Never blocks: a stuck stderr
    /// gets it later, and beyond 1 MiB of waiting messages not at all.
    pub fn note(&self, text: &str) {
        if let Some(control) = &self.note_control {
            control.note(&whole_lines(text));
        }
    }

    /// Readable once a sink has failed; see [`failure`](Self::failure).
    pub fn failure_fd(&self) -> BorrowedFd<'_> {
        self.shared.failed.as_fd()
    }

    /// The first sink that failed. Output for it is dropped from then on; that for others goes on.
    pub fn failure(&self) -> Option<SinkFailure> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The last lines a rank wrote, as far as they were read: 10 lines or 2 KiB at most, of stderr if it wrote there.
    pub fn tail(&self, rank: u32) -> Vec<u8> {
        self.shared.tails.last_lines(rank)
    }

    /// Passes the size of prun's terminal on to the ranks' ptys, whose programs then get SIGWINCH.
    pub fn resize(&self) {
        if let Some(size) = pty::size_of(&[&self.own.stdout, &self.own.stderr, &self.own.stdin]) {
            for master in &self.pty_masters {
                // A pty whose rank has gone does not care.
                let _ = tcsetwinsize(master, size);
            }
        }
    }

    /// Gives the terminal back as it was found, before prun stops itself (SIGTSTP).
    pub fn suspend_terminal(&self) {
        if let Some(feed) = &self.feed {
            feed.suspend_terminal();
        }
    }

    /// Takes the terminal again after SIGCONT.
    pub fn resume_terminal(&self) {
        if let Some(feed) = &self.feed {
            feed.resume_terminal();
        }
    }

    /// All ranks are gone: the threads read on to the end of each pipe, or for at most `limit` where somebody
    /// else keeps one open. Input ends. [`done_fd`](Self::done_fd) tells when they have passed on everything, which a slow
    /// reader of our stdout may delay without limit.
    pub fn drain(&self, limit: Duration) {
        if let Some(feed) = &self.feed {
            feed.stop();
        }
        let until = Instant::now() + limit;
        for control in &self.controls {
            control.drain(until);
        }
    }

    /// Readable once all threads have ended after [`drain`](Self::drain).
    pub fn done_fd(&self) -> BorrowedFd<'_> {
        self.shared.done.as_fd()
    }

    /// [`drain`](Self::drain), then waits for the threads. A caller that must stay able to take signals meanwhile
    /// drains, polls [`done_fd`](Self::done_fd), and finishes or [abandons](Self::abandon) then.
    pub fn finish(mut self, limit: Duration) -> Finished {
        self.drain(limit);
        let mut end = ThreadEnd::default();
        for thread in self.threads.drain(..) {
            // A panic was printed already; what the other threads carried is still worth having.
            if let Ok(one) = thread.join() {
                end.held_open.extend(one.held_open);
                end.mid_line |= one.mid_line;
            }
        }
        end.held_open.sort_unstable();
        self.into_finished(end)
    }

    /// Ends without waiting for a stuck reader; output that is not written yet is lost.
    pub fn abandon(self) -> Finished {
        self.drain(Duration::ZERO);
        self.into_finished(ThreadEnd { held_open: Vec::new(), mid_line: true })
    }

    fn into_finished(self, end: ThreadEnd) -> Finished {
        Finished {
            held_open: end.held_open,
            failure: self.failure(),
            shared: self.shared,
            stderr: self.own.stderr,
            mid_line: std::cell::Cell::new(end.mid_line),
        }
    }
}

/// What is left of the output once all of it was passed on.
#[derive(Debug)]
pub struct Finished {
    /// Streams that somebody still kept open when the wait was over.
    pub held_open: Vec<(u32, Stream)>,
    /// The first sink that failed.
    pub failure: Option<SinkFailure>,
    shared: Arc<Shared>,
    stderr: OwnedFd,
    mid_line: std::cell::Cell<bool>,
}

impl Finished {
    /// The last lines a rank wrote, now complete; see [`RunningRelay::tail`].
    pub fn tail(&self, rank: u32) -> Vec<u8> {
        self.shared.tails.last_lines(rank)
    }

    /// Writes prun's own last words to stderr, on a line of their own. Waits at most a second for a stuck one.
    pub fn note(&self, text: &str) {
        let mut lines = whole_lines(text);
        if self.mid_line.replace(false) {
            lines.insert(0, b'\n');
        }
        let mut rest = lines.as_slice();
        while !rest.is_empty() {
            let mut fds = [PollFd::new(&self.stderr, PollFlags::OUT)];
            let second = Timespec { tv_sec: 1, tv_nsec: 0 };
            if poll(&mut fds, Some(&second)) == Ok(0) {
                return;
            }
            match rustix::io::write(&self.stderr, &rest[..rest.len().min(4096)]) {
                Ok(written) => rest = &rest[written..],
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(_) => return,
            }
        }
    }
}

fn whole_lines(text: &str) -> Vec<u8> {
    let mut lines = text.as_bytes().to_vec();
    if !lines.ends_with(b"\n") {
        lines.push(b'\n');
    }
    lines
}
