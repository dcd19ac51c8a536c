//! The communicator: one rank's access to all others, from join to leave.
#![expect(unsafe_code, reason = "the untyped calls take pointers")]

use rustix::fd::BorrowedFd;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bootstrap;
use crate::choose::choose;
use crate::clock::now_ns;
use crate::collectives::{all_gather, all_reduce, broadcast, reduce_scatter};
use crate::element::{Element, with_type};
use crate::error::CommError;
use crate::fork_guard::ForkGuard;
use crate::protocol::simple::{Steps, explain, publish_failure};
use crate::settings::Settings;
use crate::shm::abort::AbortReason;
use crate::shm::mailbox::{self, Exchanged};
use crate::shm::recorder::CallState;
use crate::shm::segment::{self, Mapping};
use crate::shm::wait::Waiter;
use crate::signature::Signature;
use crate::types::{DataType, Op, Operation};
use crate::verify::Verify;

/// One rank's communicator with all ranks of its job.
///
/// All ranks make the same calls in the same order, each with the same count, type, op and root; a difference is
/// an error on all of them. A call returns once this rank's part is done and its result is complete. Calls from
/// several threads take turns; a wait for peers ends when they come, when one of them dies, fails or leaves, when
/// the job is ended, or at the deadline of [`TIMEOUT_MS`](crate::env::TIMEOUT_MS) where that is set.
///
/// After an error that is not about arguments every later call returns [`CommError::Unusable`]. An error about
/// arguments is this rank's alone: nothing was sent, and the others wait for the call that was meant.
///
/// Dropping it leaves without waiting for anyone; [`finalize`](Comm::finalize) leaves together.
pub struct Comm {
    settings: Settings,
    mapping: Mapping,
    generation: u32,
    guard: ForkGuard,
    calls: Mutex<Calls>,
}

struct Calls {
    waiter: Waiter,
    /// Steps posted in this generation.
    posted: u64,
    /// Calls made in this generation.
    number: u64,
    /// Why no more calls can be made.
    broken: Option<String>,
}

impl Comm {
    /// Joins the job that prun started this program for, and returns once all its ranks have joined.
    ///
    /// A program that prun did not start is alone: rank 0 of 1.
    pub fn init() -> Result<Comm, CommError> {
        let (settings, launched) = Settings::from_env()?;
        let mapping = match launched {
            true => bootstrap::find_segment(&settings)?,
            false => segment::private(&settings.job_id)?,
        };
        Comm::join(mapping, settings)
    }

    /// Joins a segment that is at hand, as tests do whose ranks are threads.
    #[doc(hidden)]
    pub fn attach(fd: BorrowedFd<'_>, settings: Settings) -> Result<Comm, CommError> {
        let mapping = segment::open(fd, &settings.job_id)?;
        Comm::join(mapping, settings)
    }

    fn join(mapping: Mapping, settings: Settings) -> Result<Comm, CommError> {
        let (waiter, generation) = bootstrap::join(&mapping, &settings)?;
        let calls = Calls { waiter, posted: bootstrap::FIRST_STEPS, number: 0, broken: None };
        Ok(Comm { settings, mapping, generation, guard: ForkGuard::new(), calls: Mutex::new(calls) })
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> u32 {
        self.settings.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.settings.size
    }

    /// This rank's number among those of its node.
    pub fn local_rank(&self) -> u32 {
        self.settings.local_rank
    }

    /// Returns once all ranks have called it. What any rank did before, all can rely on after.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.call(Call::plain(Operation::Barrier), |steps| {
            steps.reclaim()?;
            steps.post();
            steps.await_all()
        })
    }

    /// Reduces `send` over all ranks into everyone's `recv`. The same bits on every rank and in every run.
    pub fn all_reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), CommError> {
        same_length(Operation::AllReduce, send.len(), recv.len())?;
        // SAFETY: both are slices of that many elements.
        unsafe { self.all_reduce_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), send.len(), T::TYPE, op) }
    }

    /// Reduces `buffer` over all ranks into itself.
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], op: Op) -> Result<(), CommError> {
        let pointer = buffer.as_mut_ptr().cast::<c_void>();
        // SAFETY: a slice of that many elements.
        unsafe { self.all_reduce_raw(pointer, pointer, buffer.len(), T::TYPE, op) }
    }

    /// Reduces `send` over all ranks; rank r gets part r of the result, of `recv.len()` elements.
    /// `send` has [`size`](Comm::size) times as many.
    pub fn reduce_scatter<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), CommError> {
        same_length(Operation::ReduceScatter, send.len(), recv.len() * self.size() as usize)?;
        let (send, count) = (send.as_ptr().cast(), recv.len());
        // SAFETY: slices of that many elements.
        unsafe { self.reduce_scatter_raw(send, recv.as_mut_ptr().cast(), count, T::TYPE, op) }
    }

    /// The same in place: part r of rank r's `buffer` becomes its part of the result, and the rest stays.
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: Op) -> Result<(), CommError> {
        let own = self.own_part(Operation::ReduceScatter, buffer.len())?;
        let send = buffer.as_mut_ptr();
        // SAFETY: a slice with one part a rank, of which `own` is ours.
        unsafe { self.reduce_scatter_raw(send.cast(), send.add(own.start).cast(), own.len(), T::TYPE, op) }
    }

    /// Puts everyone's `send` into everyone's `recv`, in the order of the ranks. `recv` has
    /// [`size`](Comm::size) times as many elements.
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), CommError> {
        same_length(Operation::AllGather, send.len() * self.size() as usize, recv.len())?;
        // SAFETY: slices of that many elements.
        unsafe { self.all_gather_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), send.len(), T::TYPE) }
    }

    /// The same in place: rank r's data is part r of its `buffer`.
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<(), CommError> {
        let own = self.own_part(Operation::AllGather, buffer.len())?;
        let recv = buffer.as_mut_ptr();
        // SAFETY: a slice with one part a rank, of which `own` is ours.
        unsafe { self.all_gather_raw(recv.add(own.start).cast(), recv.cast(), own.len(), T::TYPE) }
    }

    /// Puts the root's `buffer` into everyone's.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: u32) -> Result<(), CommError> {
        // SAFETY: a slice of that many elements.
        unsafe { self.broadcast_raw(buffer.as_mut_ptr().cast(), buffer.len(), T::TYPE, root) }
    }

    /// [`all_reduce`](Comm::all_reduce) on `count` elements at plain addresses; in place where both are the same.
    ///
    /// # Safety
    /// `send` is readable and `recv` writable for `count` elements, and nobody else touches them meanwhile.
    pub unsafe fn all_reduce_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
    ) -> Result<(), CommError> {
        let operation = Operation::AllReduce;
        let bytes = Buffers { operation, send, recv, data_type }.check(count, 1, 1, 0)?;
        let call = Call { data_type: Some(data_type), op: Some(op), count, ..Call::plain(operation) };
        let algorithm = choose(self.settings.algorithm, bytes, data_type, op);
        self.call(call, |steps| {
            // SAFETY: the caller's buffers, checked to be aligned and the same or apart.
            with_type!(data_type, T => unsafe {
                all_reduce::run::<T>(steps, algorithm, send.cast(), recv.cast(), count, op)
            })
        })
    }

    /// [`reduce_scatter`](Comm::reduce_scatter) at plain addresses: `count` elements of result a rank. In place
    /// where `recv` is this rank's part of `send`.
    ///
    /// # Safety
    /// `send` is readable for `count` times [`size`](Comm::size) elements and `recv` writable for `count`, and
    /// nobody else touches them meanwhile.
    pub unsafe fn reduce_scatter_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
    ) -> Result<(), CommError> {
        let operation = Operation::ReduceScatter;
        let ranks = self.size() as usize;
        Buffers { operation, send, recv, data_type }.check(count, ranks, 1, self.rank() as usize)?;
        let call = Call { data_type: Some(data_type), op: Some(op), count, ..Call::plain(operation) };
        self.call(call, |steps| {
            // SAFETY: the caller's buffers, checked to be aligned and in place or apart.
            with_type!(data_type, T => unsafe {
                reduce_scatter::run::<T>(steps, send.cast(), recv.cast(), count, op)
            })
        })
    }

    /// [`all_gather`](Comm::all_gather) at plain addresses: `count` elements from each rank. In place where `send`
    /// is this rank's part of `recv`.
    ///
    /// # Safety
    /// `send` is readable for `count` elements and `recv` writable for `count` times [`size`](Comm::size), and
    /// nobody else touches them meanwhile.
    pub unsafe fn all_gather_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
    ) -> Result<(), CommError> {
        let operation = Operation::AllGather;
        let ranks = self.size() as usize;
        let bytes = Buffers { operation, send, recv, data_type }.check(count, 1, ranks, self.rank() as usize)?;
        let call = Call { data_type: Some(data_type), count, ..Call::plain(operation) };
        // SAFETY: the caller's buffers, checked to be in place or apart.
        self.call(call, |steps| unsafe { all_gather::run(steps, send.cast(), recv.cast(), bytes) })
    }

    /// [`broadcast`](Comm::broadcast) at a plain address.
    ///
    /// # Safety
    /// `buffer` is valid for `count` elements, and nobody else touches it meanwhile.
    pub unsafe fn broadcast_raw(
        &self,
        buffer: *mut c_void,
        count: usize,
        data_type: DataType,
        root: u32,
    ) -> Result<(), CommError> {
        let operation = Operation::Broadcast;
        let bytes = Buffers { operation, send: buffer, recv: buffer, data_type }.check(count, 1, 1, 0)?;
        if root >= self.size() {
            return Err(CommError::invalid(operation, format!("root {root} is none of the {} ranks", self.size())));
        }
        let call = Call { data_type: Some(data_type), root: Some(root), count, ..Call::plain(operation) };
        // SAFETY: the caller's buffer.
        self.call(call, |steps| unsafe { broadcast::run(steps, buffer.cast(), buffer.cast(), bytes, root) })
    }

    /// Swaps blobs of one length between all ranks; `open` makes something of each peer's. If any rank fails to,
    /// all get the same [`Exchanged::Fallback`] and nothing stays open.
    #[doc(hidden)]
    pub fn exchange<T>(
        &self,
        blob: &[u8],
        open: impl FnMut(u32, &[u8]) -> Result<T, String>,
    ) -> Result<Exchanged<T>, CommError> {
        let operation = Operation::Exchange;
        if blob.len() > mailbox::MAILBOX_BYTES {
            let why = format!("{} bytes do not fit the mailbox of {}", blob.len(), mailbox::MAILBOX_BYTES);
            return Err(CommError::invalid(operation, why));
        }
        let (view, me) = (self.mapping.view(), self.local_rank());
        self.call(Call { count: blob.len(), ..Call::plain(operation) }, |steps| {
            // Nobody reads an old blob any more: all have left the exchange before, whose end was a barrier.
            steps.reclaim()?;
            let meet = || {
                steps.post();
                steps.await_all()
            };
            mailbox::exchange(view, me, blob, meet, open)
        })
    }

    /// Ends the job for all ranks: every wait and every later call of theirs fails and says that this rank called
    /// for it. Waits for nobody, so it may be called while another thread is in a call.
    pub fn abort(&self) -> CommError {
        let reason = AbortReason::Called(self.local_rank());
        self.mapping.view().set_abort(reason);
        CommError::Aborted { reason, call: None }
    }

    /// Leaves together with all ranks: returns once all have called it, so that whoever leaves leaves nobody
    /// waiting.
    pub fn finalize(self) -> Result<(), CommError> {
        self.call(Call::plain(Operation::Finalize), |steps| {
            steps.reclaim()?;
            steps.post();
            steps.await_all()
        })
    }

    /// This rank's part of a buffer that has one for each rank.
    fn own_part(&self, operation: Operation, length: usize) -> Result<Range<usize>, CommError> {
        let ranks = self.size() as usize;
        if !length.is_multiple_of(ranks) {
            return Err(CommError::invalid(operation, format!("{length} elements are no {ranks} equal parts")));
        }
        let part = length / ranks;
        let start = part * self.rank() as usize;
        Ok(start..start + part)
    }

    /// One call, from its record to its end. A failure ends the communicator, here and for the peers.
    fn call<T>(&self, call: Call, body: impl FnOnce(&mut Steps<'_>) -> Result<T, CommError>) -> Result<T, CommError> {
        if self.guard.is_fork() {
            return Err(CommError::Forked);
        }
        let mut calls = self.lock();
        let calls = &mut *calls;
        if let Some(because) = &calls.broken {
            return Err(CommError::Unusable { because: because.clone() });
        }
        calls.number += 1;
        let signature = call.numbered(calls.number);
        let (view, me) = (self.mapping.view(), self.local_rank());
        view.record_start(me, self.generation, &signature, now_ns());
        calls.waiter.begin_call();
        // Overwritten below; stays if the call panics, since then nobody knows how far it came.
        calls.broken = Some(format!("{signature} did not return"));
        // What ended the communicator for another rank since the last call ends it for us, too.
        let result = match calls.waiter.trouble(view, me) {
            Some(stop) => Err(explain(view, stop, Some(signature))),
            None => {
                let verify = self.settings.verify == Verify::Every;
                let steps = Steps::new(&self.mapping, &calls.waiter, self.generation, &mut calls.posted, signature);
                body(&mut steps.checking(verify, self.settings.fault))
            }
        };
        let state = if result.is_ok() { CallState::Done } else { CallState::Failed };
        view.record_end(me, &signature, state, now_ns());
        calls.broken = result.as_ref().err().map(|error| error.to_string());
        if let Err(error) = &result {
            publish_failure(view, me, self.generation, error);
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        // A panic in a call is noted in `broken`.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { rank, size, job_id, .. } = &self.settings;
        write!(f, "Comm(rank {rank} of {size}, job {job_id}, generation {})", self.generation)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if !self.guard.is_fork() {
            bootstrap::leave(self.mapping.view(), self.local_rank(), self.generation);
        }
    }
}

/// What is called, before it has a number.
struct Call {
    operation: Operation,
    data_type: Option<DataType>,
    op: Option<Op>,
    root: Option<u32>,
    count: usize,
}

impl Call {
    fn plain(operation: Operation) -> Call {
        Call { operation, data_type: None, op: None, root: None, count: 0 }
    }

    fn numbered(self, number: u64) -> Signature {
        let Call { operation, data_type, op, root, count } = self;
        Signature { number, operation, data_type, op, root, count: count as u64 }
    }
}

fn same_length(operation: Operation, send: usize, recv: usize) -> Result<(), CommError> {
    match send == recv {
        true => Ok(()),
        false => Err(CommError::invalid(operation, format!("the lengths of send and recv do not fit: {send}, {recv}"))),
    }
}

/// Two addresses as a caller gave them.
struct Buffers {
    operation: Operation,
    send: *const c_void,
    recv: *mut c_void,
    data_type: DataType,
}

impl Buffers {
    /// Refuses addresses that cannot be right: null, not aligned to the element, overlapping other than in place.
    /// `send` has `send_parts` times `count` elements, `recv` `recv_parts` times; in place means that the smaller
    /// one is part `own` of the larger. Returns the bytes of `count` elements.
    fn check(&self, count: usize, send_parts: usize, recv_parts: usize, own: usize) -> Result<usize, CommError> {
        let refuse = |why: String| Err(CommError::invalid(self.operation, why));
        let size = self.data_type.bytes();
        let most = count.checked_mul(size).and_then(|bytes| bytes.checked_mul(send_parts.max(recv_parts)));
        if most.is_none_or(|most| most > isize::MAX as usize) {
            return refuse(format!("{count} elements are more than memory has addresses"));
        }
        if count == 0 {
            return Ok(0); // addresses of nothing may be anything
        }
        let (send, recv) = (self.send as usize, self.recv as usize);
        for (name, address) in [("send", send), ("recv", recv)] {
            if address == 0 {
                return refuse(format!("{name} is null, for {count} elements"));
            }
            if address % size != 0 {
                return refuse(format!("{name} ({address:#x}) is not aligned to {}, {size} bytes", self.data_type));
            }
        }
        let bytes = count * size;
        let in_place = match recv_parts > send_parts {
            true => send == recv + own * bytes,
            false => recv == send + own * bytes,
        };
        let apart = send + send_parts * bytes <= recv || recv + recv_parts * bytes <= send;
        match in_place || apart {
            true => Ok(bytes),
            false => refuse("send and recv overlap in part; they must be the same place or apart".into()),
        }
    }
}
