//! Messages between two ranks: send, receive, and both at once.
#![expect(unsafe_code, reason = "the untyped calls take pointers")]

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Comm;
use super::check::{Buffers, Call};
use super::core::Core;
use crate::element::Element;
use crate::error::CommError;
use crate::fault::{Fault, Kind, Stage};
use crate::protocol::channel::{Announce, Channel, Label, Receiving, Refused, Sending, is_drained};
use crate::protocol::simple::explain;
use crate::shm::View;
use crate::shm::atomic::AtomicU64;
use crate::shm::layout::{CELLS, CHANNEL_BYTES, PIECE_BYTES};
use crate::shm::step::Stamp;
use crate::shm::wait::{Stop, Waiter};
use crate::signature::Signature;
use crate::types::{DataType, Operation};
use crate::verify::Verify;

/// This rank's ends of the channels to and from each member, each with a lock of its own, so that a thread that waits
/// for one message stops no other.
pub(super) struct Channels {
    sending: Box<[Mutex<End>]>,
    receiving: Box<[Mutex<End>]>,
}

/// One end of a channel.
struct End {
    waiter: Waiter,
    /// Cells filled, or taken.
    cells: u64,
    messages: u64,
}

/// Data that is to be sent, or the place for data to come.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) peer: u32,
    pub(super) data: *mut c_void,
    pub(super) count: usize,
    pub(super) data_type: DataType,
    pub(super) tag: u32,
}

impl Comm {
    /// Sends `data` to rank `to`, whose `recv` must have the same type, length and tag. Messages between two ranks arrive in
    /// the order in which they were sent. Returns once `data` may be used again: a message of up to 255 KiB does not wait
    /// for its receiver while there is room for it, a longer one does.
    pub fn send<T: Element>(&self, data: &[T], to: u32, tag: u32) -> Result<(), CommError> {
        // SAFETY: a slice of that many elements, which is not written.
        unsafe { self.send_raw(data.as_ptr().cast(), data.len(), T::TYPE, to, tag) }
    }

    /// Receives into `data` what rank `from` sends next.
    pub fn recv<T: Element>(&self, data: &mut [T], from: u32, tag: u32) -> Result<(), CommError> {
        // SAFETY: a slice of that many elements.
        unsafe { self.recv_raw(data.as_mut_ptr().cast(), data.len(), T::TYPE, from, tag) }
    }

    /// Sends `send` to rank `to` and receives into `recv` from rank `from`, neither of which waits for the other: ranks
    /// may pass data round a ring with it.
    pub fn send_recv<T: Element>(
        &self,
        send: &[T],
        to: u32,
        recv: &mut [T],
        from: u32,
        tag: u32,
    ) -> Result<(), CommError> {
        let (out, into) = (send.as_ptr().cast(), recv.as_mut_ptr().cast());
        // SAFETY: slices of that many elements, apart since one is borrowed mutably.
        unsafe { self.send_recv_raw(out, send.len(), to, into, recv.len(), from, T::TYPE, tag) }
    }

    /// [`send`](Comm::send) from a plain address.
    ///
    /// # Safety
    /// `data` is readable for `count` elements, and nobody writes it meanwhile.
    pub unsafe fn send_raw(
        &self,
        data: *const c_void,
        count: usize,
        data_type: DataType,
        to: u32,
        tag: u32,
    ) -> Result<(), CommError> {
        let out = Message { peer: to, data: data.cast_mut(), count, data_type, tag };
        // SAFETY: the caller's.
        unsafe { self.exchange_messages(Operation::Send, Some(out), None) }
    }

    /// [`recv`](Comm::recv) to a plain address.
    ///
    /// # Safety
    /// `data` is writable for `count` elements, and nobody else touches it meanwhile.
    pub unsafe fn recv_raw(
        &self,
        data: *mut c_void,
        count: usize,
        data_type: DataType,
        from: u32,
        tag: u32,
    ) -> Result<(), CommError> {
        let into = Message { peer: from, data, count, data_type, tag };
        // SAFETY: the caller's.
        unsafe { self.exchange_messages(Operation::Recv, None, Some(into)) }
    }

    /// [`send_recv`](Comm::send_recv) at plain addresses.
    ///
    /// # Safety
    /// As for [`send_raw`](Comm::send_raw) and [`recv_raw`](Comm::recv_raw).
    #[expect(clippy::too_many_arguments, reason = "the C interface's")]
    pub unsafe fn send_recv_raw(
        &self,
        send: *const c_void,
        send_count: usize,
        to: u32,
        recv: *mut c_void,
        recv_count: usize,
        from: u32,
        data_type: DataType,
        tag: u32,
    ) -> Result<(), CommError> {
        let out = Message { peer: to, data: send.cast_mut(), count: send_count, data_type, tag };
        let into = Message { peer: from, data: recv, count: recv_count, data_type, tag };
        let (start, end) = (send as usize, send as usize + send_count.saturating_mul(data_type.bytes()));
        let (into_start, into_end) = (recv as usize, recv as usize + recv_count.saturating_mul(data_type.bytes()));
        if start < into_end && into_start < end {
            return Err(CommError::invalid(Operation::SendRecv, "send and recv overlap; they must be apart"));
        }
        // SAFETY: the caller's.
        unsafe { self.exchange_messages(Operation::SendRecv, Some(out), Some(into)) }
    }

    /// # Safety
    /// As for the calls above.
    unsafe fn exchange_messages(
        &self,
        operation: Operation,
        out: Option<Message>,
        into: Option<Message>,
    ) -> Result<(), CommError> {
        for message in [out, into].into_iter().flatten() {
            message.check(operation, self.size())?;
        }
        if let (Some(out), None) = (out, into)
            && out.peer == self.rank()
            && out.bytes().div_ceil(PIECE_BYTES) >= CELLS as usize
        {
            let why = "a message of that size to oneself waits for its own receiver; use sendrecv";
            return Err(CommError::invalid(operation, why));
        }
        if self.core.job.guard.is_fork() {
            return Err(CommError::Forked);
        }
        // SAFETY: the caller's, checked to be aligned and no null.
        unsafe { self.core.exchange_messages(operation, out, into) }
    }
}

impl Message {
    fn check(&self, operation: Operation, size: u32) -> Result<(), CommError> {
        let Message { peer, data, count, data_type, tag } = *self;
        if peer >= size {
            return Err(CommError::invalid(operation, format!("{peer} is none of the {size} ranks")));
        }
        if tag > i32::MAX as u32 {
            return Err(CommError::invalid(operation, format!("tag {tag} is more than {}", i32::MAX)));
        }
        Buffers { operation, send: data, recv: data, data_type }.check(count, 1, 1, 0).map(drop)
    }

    fn bytes(&self) -> usize {
        self.count * self.data_type.bytes()
    }
}

impl Core {
    fn channels(&self) -> &Channels {
        self.channels.get_or_init(|| {
            let ends = || {
                let end = |_| Mutex::new(End { waiter: self.waiter(), cells: 0, messages: 0 });
                (0..self.group.size()).map(end).collect()
            };
            Channels { sending: ends(), receiving: ends() }
        })
    }

    /// The memory of the channel from one member to another.
    fn channel(&self, from: u32, to: u32) -> Result<Channel<'_>, CommError> {
        let base = match self.group.member(from) {
            None => self.job.heap()?.channel(from, to),
            Some(member) => {
                let slots = self.job.mapping.geometry().part_bytes();
                member.body.wrapping_add(slots + to as usize * CHANNEL_BYTES)
            }
        };
        // SAFETY: both lie in the windows, which the job keeps mapped.
        Ok(unsafe { Channel::at(base) })
    }

    /// What a message from one member to another is called by its sender, or by its receiver.
    fn signature(&self, operation: Operation, message: &Message, number: u64) -> Signature {
        let Message { peer, count, data_type, tag, .. } = *message;
        let call = Call { data_type: Some(data_type), root: Some(peer), count, ..Call::plain(operation) };
        Signature { tag: Some(tag), ..call.numbered(number, self.id) }
    }

    /// The label of a message to member `to`.
    fn label(&self, message: &Message, to: u32) -> Label {
        let sent = self.signature(Operation::Send, &Message { peer: to, ..*message }, 0);
        Label { kind: sent.kind_word(), count: sent.count, context: sent.communicator_word() }
    }

    /// Moves a message out, one in, or both at once.
    ///
    /// # Safety
    /// `out` is readable and `into` writable for their counts, aligned to their types, and nobody else touches them.
    unsafe fn exchange_messages(
        &self,
        operation: Operation,
        out: Option<Message>,
        into: Option<Message>,
    ) -> Result<(), CommError> {
        let (me, channels) = (self.group.me(), self.channels());
        let out = match &out {
            Some(message) => {
                Some((message, lock(&channels.sending[message.peer as usize]), self.channel(me, message.peer)?))
            }
            None => None,
        };
        let into = match &into {
            Some(message) => {
                Some((message, lock(&channels.receiving[message.peer as usize]), self.channel(message.peer, me)?))
            }
            None => None,
        };
        let heap = self.job.heap()?;
        let verify = self.job.settings.verify != Verify::Off;
        let mut sending = out.as_ref().map(|(message, end, channel)| {
            let (data, bytes) = (message.data.cast_const().cast(), message.bytes());
            let mut sending = Sending::new(*channel, self.label(message, message.peer), data, bytes, end.cells);
            // A message to oneself is taken by the one that would wait for that.
            let may_stay = bytes >= PIECE_BYTES && message.peer != me;
            sending.in_window = heap.offset_of(data, bytes).filter(|_| may_stay).map(|offset| offset as u64);
            sending.verify = verify;
            let is_ours = |fault: &Fault| fault.rank == me && fault.call == end.messages + 1;
            let flips = |fault: &Fault| (fault.kind, fault.stage) == (Kind::Flip, Stage::Message);
            sending.fault = self.job.settings.fault.filter(|fault| flips(fault) && is_ours(fault));
            sending
        });
        let mut receiving = into.as_ref().map(|(message, end, channel)| {
            let mut receiving =
                Receiving::new(*channel, self.label(message, me), message.data.cast(), message.bytes(), end.cells);
            (receiving.window, receiving.window_bytes) = heap.window(self.group.in_segment(message.peer));
            receiving.verify = verify;
            receiving
        });
        let (message, end) = match (&out, &into) {
            (Some((message, end, _)), _) | (None, Some((message, end, _))) => (*message, &**end),
            (None, None) => return Ok(()),
        };
        let signature = self.signature(operation, message, end.messages + 1);
        let peers = Peers {
            core: self,
            to: out.as_ref().map(|(message, ..)| message.peer),
            from: into.as_ref().map(|(message, ..)| message.peer),
        };
        let result = self.job.perform(&end.waiter, signature, || {
            // SAFETY: the caller's buffers; the locks make this the only sender and the only receiver.
            unsafe { peers.drive(&end.waiter, sending.as_mut(), receiving.as_mut()) }.map_err(|trouble| {
                let number = into.as_ref().map_or(0, |(_, end, _)| end.messages + 1);
                peers.explain(trouble, signature, into.as_ref().map(|(message, ..)| *message), number)
            })
        });
        if let (Some((_, mut end, _)), Some(sending)) = (out, sending) {
            (end.cells, end.messages) = (sending.cells, end.messages + 1);
        }
        if let (Some((_, mut end, _)), Some(receiving)) = (into, receiving) {
            (end.cells, end.messages) = (receiving.cells, end.messages + 1);
        }
        result
    }

    /// After the barrier of `finalize`: an error if a message of ours was never received.
    pub(super) fn unreceived(&self) -> Result<(), CommError> {
        let Some(channels) = self.channels.get() else { return Ok(()) };
        let me = self.group.me();
        for (to, end) in (0..self.group.size()).zip(&channels.sending) {
            let end = lock(end);
            let cells = Cells { view: self.job.view(), me: self.job.me(), generation: self.job.generation };
            if !is_drained(self.channel(me, to)?, end.cells, &cells) {
                let why = format!("a message to rank {to} was never received, of {} that were sent", end.messages);
                return Err(CommError::invalid(Operation::Finalize, why));
            }
        }
        Ok(())
    }
}

/// The ranks at the other ends.
struct Peers<'a> {
    core: &'a Core,
    to: Option<u32>,
    from: Option<u32>,
}

enum Trouble {
    Stop(Stop),
    Refused(Refused),
}

impl Peers<'_> {
    /// Pushes and pulls until both are done; waits while neither can.
    ///
    /// # Safety
    /// As for [`Sending::push`] and [`Receiving::pull`].
    unsafe fn drive(
        &self,
        waiter: &Waiter,
        mut sending: Option<&mut Sending<'_>>,
        mut receiving: Option<&mut Receiving<'_>>,
    ) -> Result<(), Trouble> {
        let job = &self.core.job;
        let cells = Cells { view: job.view(), me: job.me(), generation: job.generation };
        loop {
            let mut moved = false;
            if let Some(sending) = sending.as_deref_mut().filter(|sending| !sending.is_done(&cells)) {
                while !sending.is_done(&cells) && sending.is_ready(&cells) {
                    // SAFETY: the caller's.
                    unsafe { sending.push(&cells) };
                    moved = true;
                }
            }
            if let Some(receiving) = receiving.as_deref_mut() {
                while !receiving.is_done() && receiving.is_ready(&cells) {
                    // SAFETY: the caller's.
                    unsafe { receiving.pull(&cells) }.map_err(Trouble::Refused)?;
                    moved = true;
                }
            }
            let out = sending.as_deref().filter(|sending| !sending.is_done(&cells));
            let into = receiving.as_deref().filter(|receiving| !receiving.is_done());
            let whom = match (out.and(self.to), into.and(self.from)) {
                (None, None) => return Ok(()),
                (Some(to), None) => [to; 2],
                (None, Some(from)) => [from; 2],
                (Some(to), Some(from)) => [from, to],
            };
            if moved {
                cells.view.record_activity(cells.me);
                continue;
            }
            let ready =
                || out.is_some_and(|out| out.is_ready(&cells)) || into.is_some_and(|into| into.is_ready(&cells));
            let left = || whom.into_iter().find(|rank| self.core.group.has_dropped(*rank));
            let in_segment = whom.map(|rank| self.core.group.in_segment(rank));
            waiter.wait_for_either(cells.view, in_segment, || ready() || left().is_some()).map_err(Trouble::Stop)?;
            if let Some(rank) = left().filter(|_| !ready()) {
                return Err(Trouble::Stop(self.core.group.why_left(cells.view, waiter, rank)));
            }
        }
    }

    fn explain(&self, trouble: Trouble, call: Signature, wanted: Option<&Message>, number: u64) -> CommError {
        let refused = match trouble {
            Trouble::Stop(stop) => return explain(self.core.job.view(), stop, Some(call)),
            Trouble::Refused(refused) => refused,
        };
        let (Some(wanted), Some(from)) = (wanted, self.from) else {
            return CommError::Internal("a message was refused that nobody received".into());
        };
        let ours = self.core.signature(Operation::Recv, wanted, number);
        let (from, me) = (self.core.group.in_segment(from), self.core.job.me());
        match refused {
            Refused::Label(Label { kind, count, context }) => match Signature::from_words([number, kind, count]) {
                Some(theirs) => {
                    let a = theirs.with_communicator_word(context);
                    CommError::Mismatch { rank_a: from, a, rank_b: me, b: ours }
                }
                None => CommError::Internal("the label of a message cannot be read".into()),
            },
            Refused::Sum { piece, sent, arrived } => {
                CommError::ChunkCorrupt { call: ours, from, to: me, chunk: piece, sent, arrived }
            }
            Refused::Place => CommError::Internal("a message says that it lies outside of its rank's window".into()),
        }
    }
}

/// Counts of cells as stamps of this generation.
struct Cells<'a> {
    view: View<'a>,
    me: u32,
    generation: u32,
}

impl Announce for Cells<'_> {
    fn announce(&self, word: &AtomicU64, cells: u64) {
        self.view.announce(word, self.me, self.stamp(cells));
    }

    fn stamp(&self, cells: u64) -> Stamp {
        Stamp::new(self.generation, cells)
    }
}

fn lock(end: &Mutex<End>) -> MutexGuard<'_, End> {
    // After a panic in a call no other is made.
    end.lock().unwrap_or_else(PoisonError::into_inner)
}
