//! The thread that carries output: waits for any rank to write, reads, and passes on through the
//! [`mixer`](super::mixer).
//!
//! There is one such thread per terminal target (stdout, stderr; one if they are the same), so that a blocked
//! stdout never holds stderr. Its writes may block, and that is the back-pressure: it then reads nothing, the
//! pipes fill, and the ranks wait. Memory is bounded by what the mixer may hold.
//!
//! What was tried is in [`Pace`] and [`grow`].

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

use super::channels::Stream;
use super::mixer::Mixer;
use super::sink::{Descriptor, Sink};
use super::tail::Tails;
use super::{OutputError, SinkFailure};

/// A rank's unfinished line keeps others waiting at most so long after its last byte.
const IDLE_OWNER: Duration = Duration::from_millis(200);
/// On a terminal, and for prun's own messages, at most so long altogether.
const PATIENCE: Duration = Duration::from_secs(1);
/// An unfinished line is shown on a terminal after this, so that prompts are seen.
const PROMPT: Duration = Duration::from_millis(100);
const READ: usize = 256 << 10;
/// A read of at least this much means a full pipe of the default size.
const FULL: usize = 64 << 10;
/// For so long the ends of streams are gathered.
const ENDS_GATHER: Duration = Duration::from_micros(500);
/// Messages of prun's own that wait for a stuck stderr; more are dropped.
const NOTES: usize = 1 << 20;

/// The read end of one rank's stream.
#[derive(Debug)]
pub(super) struct Reader {
    pub fd: OwnedFd,
    pub rank: u32,
    pub stream: Stream,
}

/// What a thread is told from outside.
#[derive(Debug)]
pub(super) struct Control {
    wake: OwnedFd,
    orders: Mutex<Orders>,
}

#[derive(Debug, Default)]
struct Orders {
    notes: VecDeque<u8>,
    /// All ranks are gone; from here on nobody who keeps a pipe open is waited for.
    drain_until: Option<Instant>,
}

impl Control {
    pub fn new() -> Result<Control, OutputError> {
        Ok(Control { wake: event()?, orders: Mutex::default() })
    }

    /// Queues whole lines; never blocks.
    pub fn note(&self, lines: &[u8]) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if orders.notes.len() + lines.len() <= NOTES {
            orders.notes.extend(lines);
        }
        drop(orders);
        signal(&self.wake);
    }

    /// Asks the thread to end once everything is passed on.
    pub fn drain(&self, until: Instant) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).drain_until.get_or_insert(until);
        signal(&self.wake);
    }
}

/// What all threads of a job tell the outside.
#[derive(Debug)]
pub(super) struct Shared {
    pub tails: Tails,
    pub failed: OwnedFd,
    pub failure: Mutex<Option<SinkFailure>>,
    pub done: OwnedFd,
    pub running: AtomicUsize,
}

impl Shared {
    pub fn new(world_size: u32) -> Result<Shared, OutputError> {
        Ok(Shared {
            tails: Tails::new(world_size),
            failed: event()?,
            failure: Mutex::default(),
            done: event()?,
            running: AtomicUsize::new(0),
        })
    }
}

/// A close-on-exec event descriptor that never blocks.
pub(crate) fn event() -> Result<OwnedFd, OutputError> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(OutputError::channel)
}

/// Makes an event descriptor readable.
pub(crate) fn signal(event: &OwnedFd) {
    // It cannot fail in a way that matters: a full counter is readable already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// How one thread ended.
#[derive(Debug, Default)]
pub(super) struct ThreadEnd {
    pub held_open: Vec<(u32, Stream)>,
    /// The sink for prun's messages shows an unfinished line.
    pub mid_line: bool,
}

/// One output thread before it runs: readers and the mixer's sources have the same index.
#[derive(Debug)]
pub(super) struct Carrier {
    pub readers: Vec<Reader>,
    pub mixer: Mixer<Descriptor>,
    /// Names of the mixer's sinks and whether each is a terminal.
    pub sinks: Vec<SinkInfo>,
    /// Where prun's own messages go; only one thread has it.
    pub note_sink: Option<usize>,
    /// The notes' terminal does not turn `\n` into `\r\n`.
    pub raw_notes: bool,
    pub control: Arc<Control>,
}

/// What a failure report says about a sink.
#[derive(Debug, Clone)]
pub(super) struct SinkInfo {
    pub what: SinkKind,
    pub terminal: bool,
}

/// Which sink it is.
#[derive(Debug, Clone)]
pub(super) enum SinkKind {
    Own(Stream),
    File(std::path::PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// In the epoll set.
    Watched,
    /// Its sink belongs to another source just now.
    Paused,
    /// At end of file, or cut.
    Ended,
}

#[derive(Debug)]
struct State {
    watch: Watch,
    grown: bool,
    /// When the held beginning of a line arrived; kept for terminals only.
    held_since: Option<Instant>,
    /// After the last wait: how many bytes were in the pipe, which are still passed on.
    remaining: Option<u64>,
}

const CONTROL: u64 = u64::MAX;

/// The running thread.
struct Running {
    carrier: Carrier,
    shared: Arc<Shared>,
    epoll: OwnedFd,
    states: Vec<State>,
    open: usize,
    buffer: Vec<u8>,
    notes: Vec<u8>,
    notes_since: Option<Instant>,
    drain_until: Option<Instant>,
    cut: bool,
    failure_told: bool,
    has_terminal: bool,
    grown_bytes: usize,
    end: ThreadEnd,
}

/// Runs until told to drain and everything is passed on.
pub(super) fn carry(carrier: Carrier, shared: Arc<Shared>) -> ThreadEnd {
    let end = Running::new(carrier, Arc::clone(&shared)).map(Running::run).unwrap_or_else(|errno| {
        tell_failure(&shared, SinkFailure::Relay { errno });
        ThreadEnd::default()
    });
    if shared.running.fetch_sub(1, Ordering::AcqRel) == 1 {
        signal(&shared.done);
    }
    end
}

fn tell_failure(shared: &Shared, failure: SinkFailure) {
    shared.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
    signal(&shared.failed);
}

impl Running {
    fn new(carrier: Carrier, shared: Arc<Shared>) -> Result<Running, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &carrier.control.wake, epoll::EventData::new_u64(CONTROL), epoll::EventFlags::IN)?;
        for (index, reader) in carrier.readers.iter().enumerate() {
            rustix::io::ioctl_fionbio(&reader.fd, true)?;
            epoll::add(&epoll, &reader.fd, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)?;
        }
        let states = carrier
            .readers
            .iter()
            .map(|_| State { watch: Watch::Watched, grown: false, held_since: None, remaining: None })
            .collect::<Vec<_>>();
        Ok(Running {
            open: states.len(),
            has_terminal: carrier.sinks.iter().any(|sink| sink.terminal),
            carrier,
            shared,
            epoll,
            states,
            buffer: vec![0; READ],
            notes: Vec::new(),
            notes_since: None,
            drain_until: None,
            cut: false,
            failure_told: false,
            grown_bytes: 0,
            end: ThreadEnd::default(),
        })
    }

    fn run(mut self) -> ThreadEnd {
        let mut events = Vec::with_capacity(64);
        let mut pace = Pace::default();
        loop {
            self.write_notes();
            self.carrier.mixer.flush();
            self.look_after_sinks();
            if self.open == 0 && self.drain_until.is_some() && self.notes.is_empty() {
                break;
            }
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tell_failure(&self.shared, SinkFailure::Relay { errno });
                    break;
                }
            }
            let (mut read, open) = (0, self.open);
            for event in &events {
                match event.data.u64() {
                    CONTROL => self.take_orders(),
                    index => read += self.read(index as usize),
                }
            }
            self.on_time();
            if self.open < open && self.open > 0 && read == 0 {
                self.let_others_end();
            }
            pace.after_round(read);
        }
        // What was said between the last look and now.
        self.take_orders();
        self.write_notes();
        self.carrier.mixer.flush();
        if let Some(sink) = self.carrier.note_sink {
            self.end.mid_line = self.carrier.mixer.sinks()[sink].mid_line;
        }
        self.end
    }

    /// Ranks that end one after another would wake us twice each, on a CPU that others of them need to start: ends are
    /// gathered for a moment, which an order cuts short. 64 × `/bin/true`: 29.2 ms before, see `tests/peers/launch.py`.
    fn let_others_end(&self) {
        let moment = Timespec { tv_sec: 0, tv_nsec: ENDS_GATHER.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(&self.carrier.control.wake, PollFlags::IN)], Some(&moment));
    }

    fn take_orders(&mut self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.carrier.control.wake, &mut counter);
        let mut orders = self.carrier.control.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if !orders.notes.is_empty() {
            self.notes.extend(orders.notes.drain(..));
            self.notes_since.get_or_insert_with(Instant::now);
        }
        self.drain_until = orders.drain_until;
    }

    /// Reads once from a source that has something to read, or is at its end. Returns how much.
    fn read(&mut self, index: usize) -> usize {
        if self.states[index].watch != Watch::Watched {
            return 0;
        }
        if self.carrier.mixer.is_blocked(index) {
            self.pause(index);
            return 0;
        }
        let reader = &self.carrier.readers[index];
        let want = self.states[index].remaining.map_or(READ, |remaining| (remaining as usize).min(READ));
        match rustix::io::read(&reader.fd, &mut self.buffer[..want]) {
            Ok(0) if want > 0 => self.finish_source(index),
            Ok(count) => {
                let data = &self.buffer[..count];
                self.shared.tails.add(reader.rank, reader.stream, data);
                let line_ended = self.carrier.mixer.feed(index, data);
                if count >= FULL {
                    self.grow(index);
                }
                self.after_feed(index, line_ended);
                if let Some(remaining) = &mut self.states[index].remaining {
                    *remaining -= count as u64;
                    if *remaining == 0 {
                        self.cut_source(index);
                    }
                }
                return count;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                if self.states[index].remaining.is_some() {
                    self.cut_source(index);
                }
            }
            // A pty whose last user has gone says EIO.
            Err(_) => self.finish_source(index),
        }
        0
    }

    /// Clocks that only matter while a line is unfinished.
    fn after_feed(&mut self, index: usize, line_ended: bool) {
        let mixer = &mut self.carrier.mixer;
        if self.has_terminal {
            let state = &mut self.states[index];
            match mixer.holds(index) {
                true if line_ended => state.held_since = Some(Instant::now()),
                true => _ = state.held_since.get_or_insert_with(Instant::now),
                false => state.held_since = None,
            }
        }
        for position in 0..mixer.sinks_of(index).len() {
            let sink = mixer.sinks_of(index)[position];
            let sink = &mut mixer.sinks()[sink];
            if sink.owner == Some(index) {
                // "Now" is set in look_after_sinks, after the flush, which may take long.
                sink.owner_active = None;
            }
        }
    }

    fn pause(&mut self, index: usize) {
        let _ = epoll::delete(&self.epoll, &self.carrier.readers[index].fd);
        self.states[index].watch = Watch::Paused;
        for position in 0..self.carrier.mixer.sinks_of(index).len() {
            let sink = self.carrier.mixer.sinks_of(index)[position];
            self.carrier.mixer.sinks()[sink].wanted_since.get_or_insert_with(Instant::now);
        }
    }

    /// After each flush: sets clocks, lets waiting sources go on, reports failures.
    fn look_after_sinks(&mut self) {
        let mut freed = false;
        for sink in self.carrier.mixer.sinks() {
            if sink.owner.is_none() {
                freed |= sink.wanted_since.take().is_some();
                sink.owner_active = None;
            } else if sink.owner_active.is_none() {
                sink.owner_active = Some(Instant::now());
            }
        }
        if freed {
            for index in 0..self.states.len() {
                if self.states[index].watch == Watch::Paused && !self.carrier.mixer.is_blocked(index) {
                    self.states[index].watch = Watch::Watched;
                    let (fd, data) = (&self.carrier.readers[index].fd, epoll::EventData::new_u64(index as u64));
                    if epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).is_err() {
                        self.finish_source(index);
                    } else if self.states[index].remaining == Some(0) {
                        self.cut_source(index);
                    }
                }
            }
        }
        if !self.failure_told
            && let Some((sink, errno)) = self.carrier.mixer.failure()
        {
            self.failure_told = true;
            let failure = match (&self.carrier.sinks[sink].what, errno) {
                (SinkKind::Own(stream), Errno::PIPE) => SinkFailure::Closed { stream: *stream },
                (SinkKind::Own(stream), _) => SinkFailure::Write { stream: *stream, errno },
                (SinkKind::File(path), _) => SinkFailure::File { path: path.clone(), errno },
            };
            tell_failure(&self.shared, failure);
        }
    }

    /// What has to happen because of the time alone.
    fn on_time(&mut self) {
        let waits = self.carrier.mixer.sinks().iter().any(|sink| sink.owner.is_some());
        if !waits && !self.has_terminal && self.drain_until.is_none() {
            return;
        }
        let now = Instant::now();
        for sink in 0..self.carrier.sinks.len() {
            if self.break_at(sink).is_some_and(|at| at <= now) {
                self.carrier.mixer.break_line(sink);
            }
        }
        if self.has_terminal {
            for index in 0..self.states.len() {
                let due = self.states[index].held_since.is_some_and(|since| since + PROMPT <= now);
                if due && !self.carrier.mixer.is_blocked(index) {
                    self.states[index].held_since = None;
                    if self.carrier.mixer.sinks_of(index).iter().any(|&sink| self.carrier.sinks[sink].terminal) {
                        self.carrier.mixer.show_held(index);
                        self.after_feed(index, false);
                    }
                }
            }
        }
        if !self.cut && self.drain_until.is_some_and(|until| until <= now) {
            self.cut = true;
            self.cut_all();
        }
    }

    /// When the unfinished line on this sink has to give way to those who wait. An owner heard in this round has
    /// no `owner_active`, so that one which wrote while we were stuck in a write does not count as idle.
    fn break_at(&mut self, sink: usize) -> Option<Instant> {
        let wanted = self.wanted_since(sink)?;
        let noted = self.carrier.note_sink == Some(sink) && self.notes_since.is_some();
        let patience = (self.carrier.sinks[sink].terminal || noted).then(|| wanted + PATIENCE);
        let idle = self.carrier.mixer.sinks()[sink].owner_active.map(|active| active + IDLE_OWNER);
        idle.into_iter().chain(patience).min()
    }

    fn wanted_since(&mut self, sink: usize) -> Option<Instant> {
        let info: &Sink<Descriptor> = &self.carrier.mixer.sinks()[sink];
        info.owner?;
        let by_source = info.wanted_since;
        let by_note = self.notes_since.filter(|_| self.carrier.note_sink == Some(sink));
        by_source.into_iter().chain(by_note).min()
    }

    fn timeout(&mut self) -> Option<Timespec> {
        let mut next = self.drain_until.filter(|_| !self.cut);
        let mut consider = |at: Option<Instant>| next = next.into_iter().chain(at).min();
        for sink in 0..self.carrier.sinks.len() {
            consider(self.break_at(sink));
        }
        if self.has_terminal {
            for (index, state) in self.states.iter().enumerate() {
                // A blocked one is looked at again when its sink is free.
                if let Some(since) = state.held_since
                    && !self.carrier.mixer.is_blocked(index)
                {
                    consider(Some(since + PROMPT));
                }
            }
        }
        let left = next?.saturating_duration_since(Instant::now());
        // Rounded up: epoll counts milliseconds, and waking early would spin.
        Timespec::try_from(left + Duration::from_micros(999)).ok()
    }

    fn write_notes(&mut self) {
        let Some(sink) = self.carrier.note_sink else {
            self.notes.clear();
            return;
        };
        if self.notes.is_empty() || self.carrier.mixer.sinks()[sink].owner.is_some() {
            return;
        }
        let lines = std::mem::take(&mut self.notes);
        self.notes_since = None;
        self.carrier.mixer.note(sink, &terminal_lines(&lines, self.carrier.raw_notes));
    }

    fn finish_source(&mut self, index: usize) {
        if self.states[index].watch == Watch::Watched {
            let _ = epoll::delete(&self.epoll, &self.carrier.readers[index].fd);
        }
        self.states[index].watch = Watch::Ended;
        self.states[index].held_since = None;
        self.open -= 1;
        self.carrier.mixer.end(index);
    }

    /// The wait for those who keep a pipe open is over: passed on is what is in the pipes now, and no more.
    fn cut_all(&mut self) {
        for index in 0..self.states.len() {
            if self.states[index].watch == Watch::Ended {
                continue;
            }
            let waiting = rustix::io::ioctl_fionread(&self.carrier.readers[index].fd).unwrap_or(0);
            self.states[index].remaining = Some(waiting);
            if waiting == 0 && !self.carrier.mixer.is_blocked(index) {
                self.cut_source(index);
            }
        }
    }

    /// Ends a source after its last byte, whether or not somebody could still write.
    fn cut_source(&mut self, index: usize) {
        let fd = &self.carrier.readers[index].fd;
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = poll(&mut fds, Some(&no_wait));
        let at_end = fds[0].revents().contains(PollFlags::HUP) && !fds[0].revents().contains(PollFlags::IN);
        if !at_end {
            let reader = &self.carrier.readers[index];
            self.end.held_open.push((reader.rank, reader.stream));
        }
        self.finish_source(index);
    }

    /// Makes a busy pipe larger.
    fn grow(&mut self, index: usize) {
        if !self.states[index].grown && self.grown_bytes + GROWN <= GROWN_ALL {
            self.states[index].grown = true;
            if grow(&self.carrier.readers[index].fd) {
                self.grown_bytes += GROWN;
            }
        }
    }
}

/// Text for a terminal that takes `\n` literally.
pub(super) fn terminal_lines(lines: &[u8], raw: bool) -> Vec<u8> {
    if !raw {
        return lines.to_vec();
    }
    lines
        .iter()
        .flat_map(|&byte| if byte == b'\n' { b"\r\n".as_slice() } else { std::slice::from_ref(&byte) }.to_vec())
        .collect()
}

/// What was tried (`examples/relay_throughput.rs`, 4 ranks x 64 MiB in 64 KiB writes into `cat`, 2 cores shared with
/// other work, MB/s relative to a bare relay of poll, read 64 KiB, write): reads of 64 KiB 0.75 to 0.9 with pipes of
/// 64 or of 256 KiB; reads of 128 KiB 0.6 to 0.7 with 64 KiB pipes, 1.01 with 256 KiB; reads of 256 KiB 1.0 to 1.27 with
/// 256 KiB pipes, 0.85 with 1 MiB ones (the caches). Labels cost a third of the bare relay's speed.
const GROWN: usize = 256 << 10;
/// A user's pipes together may hold 64 MiB by default; beyond it new ones are made tiny.
const GROWN_ALL: usize = 8 << 20;

/// Gives a pipe more room, where the system allows it.
fn grow(fd: impl AsFd) -> bool {
    rustix::pipe::fcntl_setpipe_size(fd, GROWN).is_ok()
}

/// Lets ranks that write many short lines fill their pipes a little before the next round.
///
/// A relay that reads each 80-byte write at once makes every writer wake it, and pays a poll, a read and a write
/// for it. What was tried (as for [`GROWN`], one write per line): no nap 0.65 to 0.8 of the bare relay, 50 µs 0.83 to
/// 0.97, 100 µs 0.87 to 1.13, 200 µs 1.0, 400 µs 0.8 (pipes run full). Output that comes now and then never naps.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
    busy_rounds: u32,
}

impl Pace {
    /// Rounds closer together than this are one burst.
    const CLOSE: Duration = Duration::from_micros(200);
    /// The first rounds of a burst pass without delay.
    const AT_ONCE: u32 = 4;
    /// Rounds that carried this much are worth their calls.
    const LARGE: usize = 32 << 10;
    const NAP: Duration = Duration::from_micros(50);

    fn after_round(&mut self, read: usize) {
        let now = Instant::now();
        let close = self.last.is_some_and(|last| now.duration_since(last) < Pace::CLOSE);
        self.busy_rounds = if close { self.busy_rounds + 1 } else { 0 };
        self.last = Some(now);
        if self.busy_rounds > Pace::AT_ONCE && read < Pace::LARGE {
            std::thread::sleep(Pace::NAP);
            self.last = Some(Instant::now());
        }
    }
}
