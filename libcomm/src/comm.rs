//! The communicator: one rank's access to all others, from join to leave.
#![expect(unsafe_code, reason = "the untyped calls take pointers")]

use rustix::fd::BorrowedFd;
use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::cuda::{self, StreamRef};

use crate::bootstrap;
use crate::choose::Algorithm;
use crate::clock::now_ns;
use crate::collectives::{all_gather, all_gather_v, all_reduce, all_to_all, broadcast, reduce_scatter, rooted, scan};
use crate::device::plan::{Path, Plan};
use crate::device::{self, Device, DeviceCall, STAGED_CHUNK};
use crate::element::{Element, with_type};
use crate::error::CommError;
use crate::fork_guard::ForkGuard;
use crate::protocol::simple::{Progress, Steps, explain, publish_failure};
use crate::settings::Settings;
use crate::shm::abort::AbortReason;
use crate::shm::heap::Heap;
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
/// [`finalize`](Comm::finalize) leaves in order, together with all. A rank that merely drops its communicator counts as
/// joined until its process ends: who still waits for it then learns how that was, and waits no longer than two
/// seconds if the process lives on. Who no longer needs it is not disturbed, provided that it ends with status 0.
pub struct Comm {
    settings: Settings,
    mapping: Mapping,
    generation: u32,
    guard: ForkGuard,
    /// The windows for `alloc`, mapped by its first use.
    heap: OnceLock<Heap>,
    calls: Mutex<Calls>,
    /// Whether `finalize` has left in order.
    left: AtomicBool,
    /// Set up by the first call on device memory. Locked before `calls`.
    device: Mutex<Option<Device>>,
}

struct Calls {
    waiter: Waiter,
    progress: Progress,
    /// Calls made in this generation.
    number: u64,
    /// Why no more calls can be made.
    broken: Option<Broken>,
}

/// Why a communicator cannot be used any more.
enum Broken {
    /// A call panicked, or is running.
    Unreturned(Signature),
    /// A call failed.
    Failed(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Unreturned(signature) => write!(f, "{signature} did not return"),
            Broken::Failed(error) => f.write_str(error),
        }
    }
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
        let calls = Calls { waiter, progress: Progress::after(bootstrap::FIRST_STEPS), number: 0, broken: None };
        Ok(Comm {
            settings,
            mapping,
            generation,
            guard: ForkGuard::new(),
            heap: OnceLock::new(),
            calls: Mutex::new(calls),
            left: AtomicBool::new(false),
            device: Mutex::new(None),
        })
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
            steps.post()?;
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

    /// Reduces `send` over all ranks into the root's `recv`; the others' may be empty.
    pub fn reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: Op, root: u32) -> Result<(), CommError> {
        let operation = Operation::Reduce;
        self.at_root(operation, root, send.len(), recv.len())?;
        // SAFETY: slices of that many elements.
        unsafe { self.reduce_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), send.len(), T::TYPE, op, root) }
    }

    /// Puts everyone's `send` into the root's `recv`, in the order of the ranks; the others' may be empty.
    pub fn gather<T: Element>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<(), CommError> {
        self.at_root(Operation::Gather, root, send.len() * self.size() as usize, recv.len())?;
        // SAFETY: slices of that many elements.
        unsafe { self.gather_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), send.len(), T::TYPE, root) }
    }

    /// Puts part r of the root's `send` into rank r's `recv`; the others' `send` may be empty.
    pub fn scatter<T: Element>(&self, send: &[T], recv: &mut [T], root: u32) -> Result<(), CommError> {
        self.at_root(Operation::Scatter, root, recv.len() * self.size() as usize, send.len())?;
        // SAFETY: slices of that many elements.
        unsafe { self.scatter_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), recv.len(), T::TYPE, root) }
    }

    /// Puts part i of rank r's `send` into part r of rank i's `recv`; both have one part a rank.
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), CommError> {
        same_length(Operation::AllToAll, send.len(), recv.len())?;
        let count = self.own_part(Operation::AllToAll, send.len())?.len();
        // SAFETY: slices of that many elements a rank.
        unsafe { self.all_to_all_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), count, T::TYPE) }
    }

    /// Reduces `send` over ranks 0 to r into rank r's `recv`; an average is over those.
    pub fn scan<T: Element>(&self, send: &[T], recv: &mut [T], op: Op) -> Result<(), CommError> {
        same_length(Operation::Scan, send.len(), recv.len())?;
        // SAFETY: slices of that many elements.
        unsafe { self.scan_raw(send.as_ptr().cast(), recv.as_mut_ptr().cast(), send.len(), T::TYPE, op) }
    }

    /// Puts everyone's `send` into everyone's `recv`, in the order of the ranks: `counts[r]` elements from rank r,
    /// which all ranks know.
    pub fn all_gather_v<T: Element>(&self, send: &[T], recv: &mut [T], counts: &[usize]) -> Result<(), CommError> {
        let operation = Operation::AllGatherV;
        same_length(operation, counts.len(), self.size() as usize)?;
        same_length(operation, send.len(), counts[self.rank() as usize])?;
        let total = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
        same_length(operation, total.unwrap_or(usize::MAX), recv.len())?;
        let lengths: Vec<usize> = counts.iter().map(|count| count * size_of::<T>()).collect();
        let call = Call { data_type: Some(T::TYPE), count: recv.len(), ..Call::plain(operation) };
        // SAFETY: slices of those lengths.
        self.call(call, |steps| unsafe {
            all_gather_v::run(steps, send.as_ptr().cast(), recv.as_mut_ptr().cast(), &lengths)
        })
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
        if cuda::sys::is_loaded() && count != 0 && device::device_of(send as u64, recv as u64)?.is_some() {
            // SAFETY: the caller's, in the default stream.
            return unsafe { self.all_reduce_stream_raw(send, recv, count, data_type, op, std::ptr::null_mut()) };
        }
        // SAFETY: the caller's.
        unsafe { self.all_reduce_host(send, recv, count, data_type, op) }
    }

    /// # Safety
    /// As for [`all_reduce_raw`](Comm::all_reduce_raw), on host memory.
    unsafe fn all_reduce_host(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
    ) -> Result<(), CommError> {
        let operation = Operation::AllReduce;
        applies(operation, data_type, op)?;
        Buffers { operation, send, recv, data_type }.check(count, 1, 1, 0)?;
        let call = Call { data_type: Some(data_type), op: Some(op), count, ..Call::plain(operation) };
        let no_ring = self.settings.invariant && self.size() >= 3;
        let algorithm = self.settings.algorithm.map(|forced| match forced {
            Algorithm::Ring if no_ring => Algorithm::TwoShot,
            forced => forced,
        });
        self.call(call, |steps| {
            // SAFETY: the caller's buffers, checked to be aligned and the same or apart.
            with_type!(data_type, T => unsafe {
                all_reduce::run::<T>(steps, algorithm, send.cast(), recv.cast(), count, op)
            })
        })
    }

    /// [`all_reduce_raw`](Comm::all_reduce_raw) on memory that a GPU reaches, in the order of `stream`, a
    /// `cudaStream_t` or `CUstream` (null: the default stream). Returns before it is done, and can be captured in a
    /// graph, except where ranks share a GPU or cannot map each other's memory: then it waits for the stream. The
    /// first call sets up the GPUs and cannot be captured.
    ///
    /// What goes wrong in a call that has returned is reported by [`async_error`](Comm::async_error) and by every
    /// later call; its output is undefined then. Calls in several streams take turns, in the order in which they
    /// were made; a stream lives until the next call in another one, or until the communicator is left.
    ///
    /// # Safety
    /// `send` is readable and `recv` writable for `count` elements until the stream is through, and nobody else
    /// touches them meanwhile; `stream` is one of the current context.
    pub unsafe fn all_reduce_stream_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
        stream: *mut c_void,
    ) -> Result<(), CommError> {
        let plan = |device: &Device, bytes: u64| device.plan(bytes, self.settings.path);
        // SAFETY: the caller's.
        unsafe { self.all_reduce_planned(send, recv, count, data_type, op, stream, plan) }
    }

    /// The same with a plan of the caller's own, the same on all ranks. For tuning.
    ///
    /// # Safety
    /// As there.
    #[doc(hidden)]
    #[expect(clippy::too_many_arguments, reason = "the C interface's, and a plan")]
    pub unsafe fn all_reduce_tuned(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
        stream: *mut c_void,
        forced: Option<Path>,
        change: &dyn Fn(&mut Plan),
    ) -> Result<(), CommError> {
        let plan = |device: &Device, bytes: u64| {
            let mut plan = device.plan(bytes, forced);
            change(&mut plan);
            plan
        };
        // SAFETY: the caller's.
        unsafe { self.all_reduce_planned(send, recv, count, data_type, op, stream, plan) }
    }

    /// # Safety
    /// As for `all_reduce_stream_raw`.
    #[expect(clippy::too_many_arguments, reason = "the C interface's, and a plan")]
    unsafe fn all_reduce_planned(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
        stream: *mut c_void,
        plan: impl FnOnce(&Device, u64) -> Plan,
    ) -> Result<(), CommError> {
        let operation = Operation::AllReduce;
        let bytes = Buffers { operation, send, recv, data_type }.check(count, 1, 1, 0)?;
        if !op.is_on_device() || !DataType::ON_DEVICE.contains(&data_type) {
            return Err(CommError::invalid(operation, format!("{op} of {data_type} is done on the host only")));
        }
        if self.guard.is_fork() {
            return Err(CommError::Forked);
        }
        let stream = StreamRef::new(stream);
        let mut slot = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.set_up_device(&mut slot, send as u64, recv as u64, stream)?;
        if let Some(error) = device.trouble(self.mapping.view(), self.rank()) {
            return self.call(Call::plain(operation), |_| Err(error));
        }
        let call = DeviceCall { send: send as u64, recv: recv as u64, count: count as u64, data_type, op, stream };
        if count == 0 || (self.size() == 1 && send.cast_mut() == recv) {
            return Ok(());
        }
        let record = Call { data_type: Some(data_type), op: Some(op), count, ..Call::plain(operation) };
        if self.size() == 1 {
            let context = device.context();
            return self.call(record, |_| {
                // SAFETY: the caller's buffers, checked to be apart.
                Ok(unsafe { cuda::memory::copy_async(context, call.recv, call.send, bytes, stream) }?)
            });
        }
        let plan = plan(device, bytes as u64);
        // Each hop of the ring would cut an integer mean: it needs the whole sum.
        let cut_by_ring = plan.path == Path::Ring && op == Op::Avg && data_type.is_integer() && self.size() > 2;
        match plan.path {
            _ if cut_by_ring => self.all_reduce_staged(device, &call, bytes),
            Path::Staged => self.all_reduce_staged(device, &call, bytes),
            _ => self.call(record, |_| Ok(device.all_reduce(&call, &plan)?)),
        }
    }

    /// Through the host: waits for the stream, reduces there chunk by chunk, and waits until the result is back.
    fn all_reduce_staged(&self, device: &mut Device, call: &DeviceCall, bytes: usize) -> Result<(), CommError> {
        let driver = device.context().driver();
        if call.stream.is_capturing(driver)? {
            let why = device.staged_because().unwrap_or("it is asked for, or there are more than two ranks").to_owned();
            return Err(CommError::invalid(
                Operation::AllReduce,
                format!("data goes through the host, which cannot be captured: {why}"),
            ));
        }
        let (staging, context, element) = (device.staging()?, device.context(), call.data_type.bytes());
        for at in (0..bytes).step_by(STAGED_CHUNK) {
            let (length, place) = (STAGED_CHUNK.min(bytes - at), staging as u64);
            // SAFETY: the caller's buffers and our staging, each valid for that chunk; the stream is waited for
            // before anyone else touches the staging.
            unsafe {
                cuda::memory::copy_async(context, place, call.send + at as u64, length, call.stream)?;
                call.stream.synchronize(driver)?;
                self.all_reduce_host(staging.cast(), staging.cast(), length / element, call.data_type, call.op)?;
                cuda::memory::copy_async(context, call.recv + at as u64, place, length, call.stream)?;
                call.stream.synchronize(driver)?;
            }
        }
        Ok(())
    }

    /// Sets up the GPU side at the first call on device memory, which all ranks make together.
    fn set_up_device<'a>(
        &self,
        slot: &'a mut Option<Device>,
        send: u64,
        recv: u64,
        stream: StreamRef,
    ) -> Result<&'a mut Device, CommError> {
        if slot.is_none() {
            let Some(ordinal) = device::device_of(send, recv)? else {
                let why = "no GPU reaches these buffers: they are plain host memory";
                return Err(CommError::invalid(Operation::AllReduce, why));
            };
            let around = device::Around {
                mapping: &self.mapping,
                rank: self.rank(),
                size: self.size(),
                generation: self.generation,
                limit: self.settings.timeout,
                peer_to_peer: self.settings.peer_to_peer,
            };
            let device = device::set_up(
                &around,
                ordinal,
                stream,
                &mut |blob, open| self.exchange(blob, open),
                &mut |blob, open| self.exchange(blob, open),
                &mut |blob, open| self.exchange(blob, open),
            )?;
            *slot = Some(device);
        }
        slot.as_mut().ok_or_else(|| CommError::Internal("the GPU side is not there".into()))
    }

    /// Whether any call on device memory has failed since it returned, replayed ones included. Waits for nothing.
    pub fn async_error(&self) -> Result<(), CommError> {
        let slot = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.as_ref().and_then(|device| device.trouble(self.mapping.view(), self.rank())) {
            Some(error) => {
                publish_failure(self.mapping.view(), self.local_rank(), self.generation, &error);
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Why data between GPUs goes through the host, if it does.
    #[doc(hidden)]
    pub fn staged_because(&self) -> Option<String> {
        let slot = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        slot.as_ref().and_then(|device| device.staged_because().map(str::to_owned))
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
        applies(operation, data_type, op)?;
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
        self.is_rank(operation, root)?;
        let call = Call { data_type: Some(data_type), root: Some(root), count, ..Call::plain(operation) };
        // SAFETY: the caller's buffer.
        self.call(call, |steps| unsafe { broadcast::run(steps, buffer.cast(), buffer.cast(), bytes, root) })
    }

    /// [`reduce`](Comm::reduce) at plain addresses.
    ///
    /// # Safety
    /// `send` is readable, and at the root `recv` writable, for `count` elements, and nobody else touches them
    /// meanwhile.
    pub unsafe fn reduce_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
        root: u32,
    ) -> Result<(), CommError> {
        let operation = Operation::Reduce;
        applies(operation, data_type, op)?;
        let target = if root == self.rank() { recv } else { send.cast_mut() };
        Buffers { operation, send, recv: target, data_type }.check(count, 1, 1, 0)?;
        self.is_rank(operation, root)?;
        let call = Call { data_type: Some(data_type), op: Some(op), root: Some(root), count, ..Call::plain(operation) };
        self.call(call, |steps| {
            // SAFETY: the caller's buffers, checked to be aligned and the same or apart.
            with_type!(data_type, T => unsafe {
                rooted::reduce_to::<T>(steps, send.cast(), recv.cast(), count, op, root)
            })
        })
    }

    /// [`gather`](Comm::gather) at plain addresses: `count` elements from each rank. In place where the root's `send`
    /// is its part of `recv`.
    ///
    /// # Safety
    /// `send` is readable for `count` elements and the root's `recv` writable for `count` times
    /// [`size`](Comm::size), and nobody else touches them meanwhile.
    pub unsafe fn gather_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        root: u32,
    ) -> Result<(), CommError> {
        let operation = Operation::Gather;
        let bytes = match root == self.rank() {
            true => {
                Buffers { operation, send, recv, data_type }.check(count, 1, self.size() as usize, root as usize)?
            }
            false => Buffers { operation, send, recv: send.cast_mut(), data_type }.check(count, 1, 1, 0)?,
        };
        self.is_rank(operation, root)?;
        let call = Call { data_type: Some(data_type), root: Some(root), count, ..Call::plain(operation) };
        // SAFETY: the caller's buffers, checked to be in place or apart.
        self.call(call, |steps| unsafe { rooted::gather(steps, send.cast(), recv.cast(), bytes, root) })
    }

    /// [`scatter`](Comm::scatter) at plain addresses: `count` elements to each rank. In place where the root's `recv`
    /// is its part of `send`.
    ///
    /// # Safety
    /// The root's `send` is readable for `count` times [`size`](Comm::size) elements, and `recv` writable for `count`,
    /// and nobody else touches them meanwhile.
    pub unsafe fn scatter_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        root: u32,
    ) -> Result<(), CommError> {
        let operation = Operation::Scatter;
        let bytes = match root == self.rank() {
            true => {
                Buffers { operation, send, recv, data_type }.check(count, self.size() as usize, 1, root as usize)?
            }
            false => Buffers { operation, send: recv, recv, data_type }.check(count, 1, 1, 0)?,
        };
        self.is_rank(operation, root)?;
        let call = Call { data_type: Some(data_type), root: Some(root), count, ..Call::plain(operation) };
        // SAFETY: the caller's buffers, checked to be in place or apart.
        self.call(call, |steps| unsafe { rooted::scatter(steps, send.cast(), recv.cast(), bytes, root) })
    }

    /// [`all_to_all`](Comm::all_to_all) at plain addresses: `count` elements from each rank to each.
    ///
    /// # Safety
    /// `send` is readable and `recv` writable for `count` times [`size`](Comm::size) elements, and nobody else touches
    /// them meanwhile.
    pub unsafe fn all_to_all_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
    ) -> Result<(), CommError> {
        let operation = Operation::AllToAll;
        let ranks = self.size() as usize;
        let bytes = Buffers { operation, send, recv, data_type }.check(count, ranks, ranks, 0)?;
        if count != 0 && send == recv.cast_const() {
            return Err(CommError::invalid(operation, "send and recv are the same; they must be apart"));
        }
        let call = Call { data_type: Some(data_type), count, ..Call::plain(operation) };
        // SAFETY: the caller's buffers, checked to be apart.
        self.call(call, |steps| unsafe { all_to_all::run(steps, send.cast(), recv.cast(), bytes) })
    }

    /// [`scan`](Comm::scan) at plain addresses; in place where both are the same.
    ///
    /// # Safety
    /// `send` is readable and `recv` writable for `count` elements, and nobody else touches them meanwhile.
    pub unsafe fn scan_raw(
        &self,
        send: *const c_void,
        recv: *mut c_void,
        count: usize,
        data_type: DataType,
        op: Op,
    ) -> Result<(), CommError> {
        let operation = Operation::Scan;
        applies(operation, data_type, op)?;
        Buffers { operation, send, recv, data_type }.check(count, 1, 1, 0)?;
        let call = Call { data_type: Some(data_type), op: Some(op), count, ..Call::plain(operation) };
        self.call(call, |steps| {
            // SAFETY: the caller's buffers, checked to be aligned and the same or apart.
            with_type!(data_type, T => unsafe { scan::run::<T>(steps, send.cast(), recv.cast(), count, op) })
        })
    }

    /// Zeroed memory for `count` elements that all ranks can reach: an AllReduce from and to such buffers, on every
    /// rank, moves its data without a copy in between. This rank's alone: the others need not call it, and may have
    /// other sizes. It takes memory as it is first written.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Buffer<'_, T>, CommError> {
        let refuse = || CommError::NoMemory { bytes: count.saturating_mul(size_of::<T>()) };
        let bytes =
            count.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(refuse)?;
        let address = NonNull::new(self.alloc_raw(bytes)?).ok_or_else(refuse)?;
        Ok(Buffer { comm: self, address: address.cast(), count })
    }

    /// [`alloc`](Comm::alloc) of `bytes` bytes at a plain address, which begins at a page.
    pub fn alloc_raw(&self, bytes: usize) -> Result<*mut c_void, CommError> {
        if self.guard.is_fork() {
            return Err(CommError::Forked);
        }
        let heap = match self.heap.get() {
            Some(heap) => heap,
            None => {
                let _one = self.lock();
                if self.heap.get().is_none() {
                    let _ = self.heap.set(Heap::open(&self.mapping, self.local_rank())?);
                }
                self.heap.get().ok_or_else(|| CommError::Internal("no heap".into()))?
            }
        };
        heap.allocate(bytes).map(|address| address.cast()).ok_or(CommError::NoMemory { bytes })
    }

    /// Gives memory of [`alloc_raw`](Comm::alloc_raw) back; null is fine.
    ///
    /// # Safety
    /// `address` is null, or from `alloc_raw` of this communicator and used by nobody any more.
    pub unsafe fn free_raw(&self, address: *mut c_void) {
        if let Some(heap) = self.heap.get().filter(|_| !self.guard.is_fork()) {
            // SAFETY: the caller's.
            unsafe { heap.release(address.cast()) };
        }
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
                steps.post()?;
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
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Before the barrier all let go of the others' memory, after it each frees its own.
        let closed = device.as_mut().map_or(Ok(()), |device| {
            let closed = device.close_peers();
            match device.trouble(self.mapping.view(), self.rank()) {
                Some(error) => Err(error),
                None => closed.map_err(CommError::Cuda),
            }
        });
        let left = self.call(Call::plain(Operation::Finalize), |steps| {
            closed?;
            steps.reclaim()?;
            steps.post()?;
            steps.await_all()
        });
        self.left.store(left.is_ok(), Ordering::Relaxed);
        match (left.is_ok(), device) {
            (false, Some(device)) => device.abandon(),
            (_, device) => drop(device),
        }
        left
    }

    fn is_rank(&self, operation: Operation, root: u32) -> Result<(), CommError> {
        match root < self.size() {
            true => Ok(()),
            false => Err(CommError::invalid(operation, format!("root {root} is none of the {} ranks", self.size()))),
        }
    }

    /// Whether the buffer that only the root has has the right length there.
    fn at_root(&self, operation: Operation, root: u32, wanted: usize, found: usize) -> Result<(), CommError> {
        self.is_rank(operation, root)?;
        if root == self.rank() { same_length(operation, wanted, found) } else { Ok(()) }
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
            return Err(CommError::Unusable { because: because.to_string() });
        }
        calls.number += 1;
        let signature = call.numbered(calls.number);
        let (view, me) = (self.mapping.view(), self.local_rank());
        view.record_start(me, self.generation, &signature, now_ns());
        calls.waiter.begin_call();
        // Overwritten below; stays if the call panics, since then nobody knows how far it came.
        calls.broken = Some(Broken::Unreturned(signature));
        // What ended the communicator for another rank since the last call ends it for us, too.
        let result = match calls.waiter.trouble(view, me) {
            Some(stop) => Err(explain(view, stop, Some(signature))),
            None => {
                let verify = self.settings.verify == Verify::Every;
                let steps = Steps::new(&self.mapping, &calls.waiter, self.generation, &mut calls.progress, signature);
                body(&mut steps.with_heap(self.heap.get()).checking(verify, self.settings.fault))
            }
        };
        let state = if result.is_ok() { CallState::Done } else { CallState::Failed };
        view.record_end(me, &signature, state, now_ns());
        calls.broken = result.as_ref().err().map(|error| Broken::Failed(error.to_string()));
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
        let device = self.device.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.guard.is_fork() {
            std::mem::forget(device); // its driver is of no use in a fork
        } else {
            if let Some(device) = device {
                device.abandon();
            }
            let give_up = match *self.left.get_mut() {
                true => bootstrap::leave,
                false => bootstrap::note_dropped,
            };
            give_up(self.mapping.view(), self.local_rank(), self.generation);
        }
    }
}

/// Elements in memory that all ranks can reach, from [`Comm::alloc`]. Used as a slice.
pub struct Buffer<'a, T: Element> {
    comm: &'a Comm,
    address: NonNull<T>,
    count: usize,
}

// SAFETY: like a Vec of elements, which may be sent and shared; peers touch the memory only inside a call that has it.
unsafe impl<T: Element> Send for Buffer<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Buffer<'_, T> {}

impl<T: Element> Deref for Buffer<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: ours for that many elements until we are dropped; zeros, or what was written, are elements.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.count) }
    }
}

impl<T: Element> DerefMut for Buffer<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.count) }
    }
}

impl<T: Element> fmt::Debug for Buffer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} x {})", T::TYPE, self.count)
    }
}

impl<T: Element> Drop for Buffer<'_, T> {
    fn drop(&mut self) {
        // SAFETY: from `alloc`, and given back once.
        unsafe { self.comm.free_raw(self.address.as_ptr().cast()) };
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

fn applies(operation: Operation, data_type: DataType, op: Op) -> Result<(), CommError> {
    match op.applies_to(data_type) {
        true => Ok(()),
        false => Err(CommError::invalid(operation, format!("{op} is for integers, not for {data_type}"))),
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
