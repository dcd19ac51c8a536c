//! Channel: one rank's messages to another, in their order, through a ring of cells.
//!
//! A message is cut into pieces of one cell. The sender waits until the cell's last piece is taken, fills it, and stores
//! the number of cells filled so far in the cell's stamp (Release); the receiver waits for that (Acquire), copies the piece
//! out, and stores the number of cells taken so far in `taken` (Release), for which the sender waits (Acquire). So each
//! cell is written by one side at a time, and a message that fits the free cells is sent without waiting for the receiver;
//! a longer one moves as the receiver takes it. Its first cell says what it is, and the receiver compares that with what
//! it wants before it takes a byte.
//!
//! Data from `comm_alloc` of a cell and more stays where it is: the first cell says where, the receiver copies it from
//! there, and the sender waits until it has.
//!
//! Stamps carry the generation, so what an earlier program left in the cells is never taken for news.
#![expect(unsafe_code, reason = "copies between user memory and cells")]

use std::marker::PhantomData;

use crate::fault::Fault;
use crate::shm::atomic::{AtomicU64, Relaxed};
use crate::shm::layout::{CELL_BYTES, CELLS, CellHead, Line, PIECE_BYTES};
use crate::shm::step::Stamp;
use crate::simd::copy_to_shared;
use crate::verify::checksum;

use super::simple::bytes_at;

/// The memory of one direction of a pair: who has taken how much, and the cells.
#[derive(Clone, Copy)]
pub(crate) struct Channel<'a> {
    base: *mut u8,
    mapping: PhantomData<&'a CellHead>,
}

impl<'a> Channel<'a> {
    /// # Safety
    /// `base` is a channel's memory, at a page, mapped for `'a`.
    pub(crate) unsafe fn at(base: *mut u8) -> Channel<'a> {
        Channel { base, mapping: PhantomData }
    }

    /// How many cells the receiver is done with, as a stamp.
    fn taken(&self) -> &'a AtomicU64 {
        // SAFETY: the first line of the channel, an atomic, for which all bits are valid.
        &unsafe { &*self.base.cast::<Line<AtomicU64>>() }.0
    }

    fn cell(&self, number: u64) -> *mut u8 {
        self.base.wrapping_add(size_of::<Line<AtomicU64>>() + (number % CELLS) as usize * CELL_BYTES)
    }

    fn head(&self, number: u64) -> &'a CellHead {
        // SAFETY: inside the channel, aligned, and atomics.
        unsafe { &*self.cell(number).cast::<CellHead>() }
    }

    fn data(&self, number: u64) -> *mut u8 {
        self.cell(number).wrapping_add(size_of::<CellHead>())
    }
}

/// What a message is, as both sides must say it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    /// The sender's signature in words: what, how many, on which communicator with which tag.
    pub(crate) kind: u64,
    pub(crate) count: u64,
    pub(crate) context: u64,
}

/// How an end of a channel tells that it has come on.
pub(crate) trait Announce {
    fn announce(&self, word: &AtomicU64, cells: u64);
    fn stamp(&self, cells: u64) -> Stamp;
}

/// Which cell must have been taken before cell `number` may be filled, as a count; none for the first ones.
pub(crate) fn must_be_taken(number: u64) -> Option<u64> {
    (number + 1).checked_sub(CELLS).filter(|cells| *cells > 0)
}

/// A message on its way out.
pub(crate) struct Sending<'a> {
    pub(crate) channel: Channel<'a>,
    pub(crate) label: Label,
    pub(crate) data: *const u8,
    pub(crate) bytes: usize,
    /// Where the data lies in the sender's window, if it need not be copied.
    pub(crate) in_window: Option<u64>,
    pub(crate) verify: bool,
    /// Test hook: a bit to flip in one of the cells.
    pub(crate) fault: Option<Fault>,
    /// Cells filled so far, this and earlier messages.
    pub(crate) cells: u64,
    /// Bytes in cells.
    at: usize,
    begun: bool,
}

const COPIED: u64 = u64::MAX;

impl<'a> Sending<'a> {
    pub(crate) fn new(channel: Channel<'a>, label: Label, data: *const u8, bytes: usize, cells: u64) -> Sending<'a> {
        let (in_window, verify, fault) = (None, false, None);
        Sending { channel, label, data, bytes, in_window, verify, fault, cells, at: 0, begun: false }
    }

    /// Whether the sender may go: all is in cells, or was taken from where it lies.
    pub(crate) fn is_done(&self, by: &impl Announce) -> bool {
        let all_out = self.begun && self.at == self.bytes;
        all_out && (self.in_window.is_none() || by.stamp(self.cells).is_in(self.channel.taken()))
    }

    /// Whether [`push`](Sending::push) can do something now, or there is nothing left to do.
    pub(crate) fn is_ready(&self, by: &impl Announce) -> bool {
        let free = || must_be_taken(self.cells).is_none_or(|cells| by.stamp(cells).is_in(self.channel.taken()));
        if self.begun && self.at == self.bytes { self.is_done(by) } else { free() }
    }

    /// Fills the next cell, for which [`is_ready`](Sending::is_ready) has said that it is free. Nothing if all is out.
    ///
    /// # Safety
    /// The data is readable, and this is the channel's only sender.
    pub(crate) unsafe fn push(&mut self, by: &impl Announce) {
        if self.begun && self.at == self.bytes {
            return;
        }
        let head = self.channel.head(self.cells);
        if !self.begun {
            head.kind.store(self.label.kind, Relaxed);
            head.count.store(self.label.count, Relaxed);
            head.context.store(self.label.context, Relaxed);
            head.in_window.store(self.in_window.unwrap_or(COPIED), Relaxed);
            self.begun = true;
        }
        let piece = if self.in_window.is_some() { self.bytes } else { PIECE_BYTES.min(self.bytes - self.at) };
        let source = self.data.wrapping_add(self.at);
        if self.verify {
            // SAFETY: the caller's data.
            head.sum.store(checksum(unsafe { bytes_at(source, piece) }), Relaxed);
        }
        if self.in_window.is_none() {
            // SAFETY: the caller's data; the cell is free, and ours until it is announced.
            unsafe { copy_to_shared(source, self.channel.data(self.cells), piece) };
            if let Some(fault) = self.fault.filter(|fault| fault.chunk == (self.at / PIECE_BYTES) as u64) {
                // SAFETY: as above.
                fault.strike(unsafe { std::slice::from_raw_parts_mut(self.channel.data(self.cells), piece) });
            }
        }
        self.at += piece;
        self.cells += 1;
        by.announce(&head.stamp, self.cells);
    }
}

/// A message on its way in.
pub(crate) struct Receiving<'a> {
    pub(crate) channel: Channel<'a>,
    pub(crate) label: Label,
    pub(crate) data: *mut u8,
    pub(crate) bytes: usize,
    /// Where the sender's window is mapped here.
    pub(crate) window: *const u8,
    pub(crate) window_bytes: usize,
    pub(crate) verify: bool,
    /// Cells taken so far, this and earlier messages.
    pub(crate) cells: u64,
    at: usize,
    begun: bool,
}

/// Why a message cannot be taken.
pub(crate) enum Refused {
    /// It is another one.
    Label(Label),
    /// It changed on its way.
    Sum { piece: u64, sent: u64, arrived: u64 },
    /// It says that it lies where it cannot.
    Place,
}

impl<'a> Receiving<'a> {
    pub(crate) fn new(channel: Channel<'a>, label: Label, data: *mut u8, bytes: usize, cells: u64) -> Receiving<'a> {
        let (window, window_bytes, verify) = (std::ptr::null(), 0, false);
        Receiving { channel, label, data, bytes, window, window_bytes, verify, cells, at: 0, begun: false }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.begun && self.at == self.bytes
    }

    /// Whether the next cell has come.
    pub(crate) fn is_ready(&self, by: &impl Announce) -> bool {
        self.is_done() || by.stamp(self.cells + 1).is_in(&self.channel.head(self.cells).stamp)
    }

    /// Takes the next cell, for which [`is_ready`](Receiving::is_ready) has said that it has come. Nothing if all is in.
    ///
    /// # Safety
    /// The data is writable, and this is the channel's only receiver.
    pub(crate) unsafe fn pull(&mut self, by: &impl Announce) -> Result<(), Refused> {
        if self.is_done() {
            return Ok(());
        }
        let head = self.channel.head(self.cells);
        let mut source = self.channel.data(self.cells).cast_const();
        let mut piece = PIECE_BYTES.min(self.bytes - self.at);
        if !self.begun {
            let [kind, count, context] = [&head.kind, &head.count, &head.context].map(|word| word.load(Relaxed));
            let label = Label { kind, count, context };
            if label != self.label {
                return Err(Refused::Label(label));
            }
            self.begun = true;
            let place = head.in_window.load(Relaxed);
            if place != COPIED {
                let inside = (place as usize).checked_add(self.bytes).is_some_and(|end| end <= self.window_bytes);
                if !inside {
                    return Err(Refused::Place);
                }
                (source, piece) = (self.window.wrapping_add(place as usize), self.bytes);
            }
        }
        let target = self.data.wrapping_add(self.at);
        // SAFETY: the caller's target; the cell, or the sender's data, is not written until we announce.
        unsafe { std::ptr::copy_nonoverlapping(source, target, piece) };
        if self.verify {
            // SAFETY: just written.
            let (sent, arrived) = (head.sum.load(Relaxed), checksum(unsafe { bytes_at(target, piece) }));
            if sent != arrived {
                return Err(Refused::Sum { piece: (self.at / PIECE_BYTES) as u64, sent, arrived });
            }
        }
        self.at += piece;
        self.cells += 1;
        by.announce(self.channel.taken(), self.cells);
        Ok(())
    }
}

/// Whether the receiver has taken all that was sent.
pub(crate) fn is_drained(channel: Channel<'_>, cells: u64, by: &impl Announce) -> bool {
    cells == 0 || by.stamp(cells).is_in(channel.taken())
}
