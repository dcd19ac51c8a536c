//! Which bytes go out now and which wait: whole lines are never mixed, and nothing else is changed.
//!
//! Pure: it is fed bytes and keeps lines, and knows nothing of descriptors to read, threads or clocks; those
//! are the [`relay`](super::relay)'s. A line's beginning is held here until its newline comes. A line too
//! long to hold is passed on in pieces and **owns** its sinks meanwhile: other sources are
//! [blocked](Mixer::is_blocked), are not read, and so wait in their own pipes.
//!
//! A source that shares its sinks with nobody is never held, so one rank's output passes through byte by byte.

use rustix::io::Errno;

use super::label::Labeller;
use super::sink::{Sink, Target};

/// The longest beginning of a line that one source may have held back.
const HOLD_ONE: usize = 256 << 10;
/// All that the sources of one mixer may have held back together. Two mixers with vectors grown by doubling
/// are then below 16 MiB, however many ranks write however long lines.
const HOLD_ALL: usize = 4 << 20;
/// An emptied hold buffer larger than this is given back.
const KEEP: usize = 16 << 10;

#[derive(Debug)]
struct Source {
    sinks: Vec<usize>,
    labeller: Option<Labeller>,
    label: Vec<u8>,
    held: Vec<u8>,
}

/// All sources and sinks of one thread.
#[derive(Debug)]
pub(super) struct Mixer<W> {
    sources: Vec<Source>,
    sinks: Vec<Sink<W>>,
    labelled: Vec<bool>,
    held_bytes: usize,
    hold_one: usize,
    hold_all: usize,
}

impl<W: Target> Mixer<W> {
    pub fn new() -> Mixer<W> {
        Mixer::with_limits(HOLD_ONE, HOLD_ALL)
    }

    fn with_limits(hold_one: usize, hold_all: usize) -> Mixer<W> {
        Mixer { sources: Vec::new(), sinks: Vec::new(), labelled: Vec::new(), held_bytes: 0, hold_one, hold_all }
    }

    /// Adds a sink; `labelled`: lines get their source's label there.
    pub fn add_sink(&mut self, target: W, labelled: bool) -> usize {
        self.sinks.push(Sink::new(target));
        self.labelled.push(labelled);
        self.sinks.len() - 1
    }

    /// Adds a source that writes to `sinks`; none: its output is dropped.
    pub fn add_source(&mut self, sinks: Vec<usize>, labeller: Option<Labeller>) -> usize {
        for &sink in &sinks {
            self.sinks[sink].writers += 1;
        }
        let mut label = Vec::new();
        if let Some(labeller) = &labeller {
            labeller.render(&mut label);
        }
        self.sources.push(Source { sinks, labeller, label, held: Vec::new() });
        self.sources.len() - 1
    }

    /// Whether a sink of this source shows another source's unfinished line.
    pub fn is_blocked(&self, source: usize) -> bool {
        self.sources[source].sinks.iter().any(|&sink| self.sinks[sink].owner.is_some_and(|owner| owner != source))
    }

    /// Takes what was read from a source that is not blocked. True if that finished a line.
    pub fn feed(&mut self, source: usize, data: &[u8]) -> bool {
        debug_assert!(!self.is_blocked(source));
        let newline = memchr::memrchr(b'\n', data);
        let complete = if self.is_alone(source) { data.len() } else { newline.map_or(0, |newline| newline + 1) };
        let (now, later) = data.split_at(complete);
        if !now.is_empty() {
            self.emit_held(source);
            self.emit(source, now);
        }
        if !later.is_empty() {
            let held = self.sources[source].held.len();
            let fits = held + later.len() <= self.hold_one && self.held_bytes + later.len() <= self.hold_all;
            if fits && !self.owns_its_sinks(source) {
                self.sources[source].held.extend_from_slice(later);
                self.held_bytes += later.len();
            } else {
                self.emit_held(source);
                self.emit(source, later);
            }
        }
        newline.is_some()
    }

    /// The source has ended: its last line goes out as it is. Something that follows on the sink starts a new one.
    pub fn end(&mut self, source: usize) {
        debug_assert!(!self.is_blocked(source));
        self.emit_held(source);
        for &sink in &self.sources[source].sinks {
            if self.sinks[sink].owner == Some(source) {
                self.sinks[sink].owner = None;
            }
        }
    }

    /// Whether the beginning of a line is held back.
    pub fn holds(&self, source: usize) -> bool {
        !self.sources[source].held.is_empty()
    }

    /// Shows the held beginning of a line (a prompt); the source owns its sinks until the line ends.
    pub fn show_held(&mut self, source: usize) {
        debug_assert!(!self.is_blocked(source));
        self.emit_held(source);
    }

    /// Ends the unfinished line on a sink, so that others can go on. Its owner starts afresh, with a label.
    pub fn break_line(&mut self, sink: usize) {
        let sink = &mut self.sinks[sink];
        sink.owner = None;
        start_line(sink);
    }

    /// Writes whole lines of prun's own between those of the ranks; the sink has no owner now.
    pub fn note(&mut self, sink: usize, lines: &[u8]) {
        let sink = &mut self.sinks[sink];
        start_line(sink);
        sink.put(lines);
        sink.mid_line = lines.last().is_some_and(|&last| last != b'\n');
    }

    /// Writes out everything gathered.
    pub fn flush(&mut self) {
        for sink in &mut self.sinks {
            sink.flush();
        }
    }

    /// The sinks, for the relay's clocks.
    pub fn sinks(&mut self) -> &mut [Sink<W>] {
        &mut self.sinks
    }

    /// The sinks that a source writes to.
    pub fn sinks_of(&self, source: usize) -> &[usize] {
        &self.sources[source].sinks
    }

    /// The first sink that failed, and how.
    pub fn failure(&self) -> Option<(usize, Errno)> {
        self.sinks.iter().enumerate().find_map(|(index, sink)| Some((index, sink.failure?)))
    }

    fn is_alone(&self, source: usize) -> bool {
        self.sources[source].sinks.iter().all(|&sink| self.sinks[sink].writers == 1)
    }

    fn owns_its_sinks(&self, source: usize) -> bool {
        self.sources[source].sinks.iter().all(|&sink| self.sinks[sink].owner == Some(source))
    }

    fn emit_held(&mut self, source: usize) {
        let mut held = std::mem::take(&mut self.sources[source].held);
        if held.is_empty() {
            return;
        }
        self.held_bytes -= held.len();
        self.emit(source, &held);
        if held.capacity() <= KEEP {
            held.clear();
            self.sources[source].held = held;
        }
    }

    fn emit(&mut self, source_index: usize, bytes: &[u8]) {
        let source = &mut self.sources[source_index];
        if let Some(labeller) = &source.labeller
            && labeller.tells_time()
        {
            labeller.render(&mut source.label);
        }
        for &index in &source.sinks {
            let sink = &mut self.sinks[index];
            let continues = sink.owner == Some(source_index);
            if !continues {
                start_line(sink);
            }
            if self.labelled[index] && !source.label.is_empty() {
                sink.put_labelled(&source.label, bytes, continues);
            } else {
                sink.put(bytes);
            }
            sink.mid_line = bytes.last().is_some_and(|&last| last != b'\n');
            // A dead sink must block nobody.
            sink.owner = (sink.mid_line && sink.failure.is_none()).then_some(source_index);
        }
    }
}

fn start_line<W: Target>(sink: &mut Sink<W>) {
    if sink.mid_line {
        sink.put(b"\n");
        sink.mid_line = false;
    }
}

#[cfg(test)]
mod tests;
