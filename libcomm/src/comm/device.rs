//! AllReduce and broadcast on memory that a GPU reaches: in the order of a stream, or through the host.
#![expect(unsafe_code, reason = "device calls take addresses")]

use std::ffi::{CStr, CString, c_void};
use std::io::Write;
use std::sync::{PoisonError, TryLockError};

use super::Comm;
use super::check::{Buffers, Call};
use crate::cuda::{self, StreamRef};
use crate::device::broadcast::BroadcastCall;
use crate::device::nccl::{Nccl, UniqueId};
use crate::device::plan::{Path, Plan};
use crate::device::{self, Device, DeviceCall, STAGED_CHUNK};
use crate::error::CommError;
use crate::protocol::simple::{explain, publish_failure};
use crate::settings::Settings;
use crate::shm::mailbox::Exchanged;
use crate::types::{DataType, Op, Operation};
use crate::verify::Verify;

impl Comm {
    /// [`all_reduce_raw`](Comm::all_reduce_raw) on memory that a GPU reaches, in the order of `stream`, a
    /// `cudaStream_t` or `CUstream` (null: the default stream). Returns before it is done, and can be captured in a
    /// graph, except where processes share a GPU: then it waits for the stream. The first call sets up the GPUs and
    /// cannot be captured.
    ///
    /// What goes wrong in a call that has returned is reported by [`async_error`](Comm::async_error) and by every
    /// later call, also on host memory and on communicators that were split off; its output is undefined then. A replayed
    /// graph is seen by the GPU alone: it must not run at the same time as another call or replay on this communicator.
    /// Calls in several streams take turns, in the order in which they were made; a stream lives until the next call in
    /// another one, or until the communicator is left.
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
        let plan = |device: &Device, bytes: u64| device.plan(bytes, self.core.job.settings.path);
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
        self.may_use_device(operation)?;
        // SAFETY: the caller's, until a call in another stream, or the end of the communicator.
        let stream = unsafe { StreamRef::new(stream) };
        let mut slot = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.ready_device(operation, &mut slot, send as u64, recv as u64, stream)?;
        let place = device.place_of(recv as u64, bytes as u64).map_err(|why| CommError::invalid(operation, why))?;
        let (send, recv) = (send as u64, recv as u64);
        let call = DeviceCall { send, recv, count: count as u64, data_type, op, stream, place };
        if count == 0 || (self.size() == 1 && send == recv) {
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
        let mut plan = plan(device, bytes as u64);
        // Each hop of the ring rounds, and would cut an integer mean, which needs the whole sum.
        let in_order = self.core.job.settings.invariant || (op == Op::Avg && data_type.is_integer());
        if plan.path == Path::Ring && in_order && self.size() > 2 {
            plan = device.plan_in_order(bytes as u64);
        }
        match plan.path {
            Path::Staged => self.together(operation, || self.all_reduce_staged(device, &call, bytes)),
            Path::Nccl => self.call_on_device(record, device, stream, |device| device.all_reduce_by_nccl(&call)),
            _ => {
                let sent = self.copy_for_host(device, &call)?;
                self.call_on_device(record, device, stream, |device| Ok(device.all_reduce(&call, &plan)?))?;
                sent.map_or(Ok(()), |sent| self.compare_with_host(device, &call, &plan, sent))
            }
        }
    }

    /// Through the host: waits for the stream, reduces there chunk by chunk, and waits until the result is back.
    fn all_reduce_staged(&self, device: &mut Device, call: &DeviceCall, bytes: usize) -> Result<(), CommError> {
        let driver = device.context().driver();
        refuse_capture(Operation::AllReduce, device, call.stream)?;
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

    /// Puts the root's buffer, on memory that a GPU reaches, into everyone's, in the order of `stream` (null: the default
    /// stream). Returns before it is done and can be captured, as
    /// [`all_reduce_stream_raw`](Comm::all_reduce_stream_raw), which also says how errors are reported.
    ///
    /// # Safety
    /// `buffer` is valid for `count` elements until the stream is through, and nobody else touches it meanwhile; `stream`
    /// is one of the current context.
    pub unsafe fn broadcast_stream_raw(
        &self,
        buffer: *mut c_void,
        count: usize,
        data_type: DataType,
        root: u32,
        stream: *mut c_void,
    ) -> Result<(), CommError> {
        // SAFETY: the caller's.
        unsafe { self.broadcast_tuned(buffer, count, data_type, root, stream, self.core.job.settings.path) }
    }

    /// The same by a path of the caller's own, the same on all ranks. For tests.
    ///
    /// # Safety
    /// As there.
    #[doc(hidden)]
    pub unsafe fn broadcast_tuned(
        &self,
        buffer: *mut c_void,
        count: usize,
        data_type: DataType,
        root: u32,
        stream: *mut c_void,
        forced: Option<Path>,
    ) -> Result<(), CommError> {
        let operation = Operation::Broadcast;
        let bytes = Buffers { operation, send: buffer, recv: buffer, data_type }.check(count, 1, 1, 0)?;
        self.is_rank(operation, root)?;
        self.may_use_device(operation)?;
        // SAFETY: the caller's, until a call in another stream, or the end of the communicator.
        let stream = unsafe { StreamRef::new(stream) };
        let mut slot = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.ready_device(operation, &mut slot, buffer as u64, buffer as u64, stream)?;
        if count == 0 || self.size() == 1 {
            return Ok(());
        }
        let record = Call { data_type: Some(data_type), root: Some(root), count, ..Call::plain(operation) };
        let plan = device.plan_broadcast(bytes as u64, forced);
        let (buffer, bytes, count) = (buffer as u64, bytes as u64, count as u64);
        let call = BroadcastCall { buffer, bytes, count, data_type, root, stream };
        match plan.path {
            Path::Staged => self.together(operation, || self.broadcast_staged(device, &call)),
            Path::Nccl => self.call_on_device(record, device, stream, |device| device.broadcast_by_nccl(&call)),
            _ => self.call_on_device(record, device, stream, |device| Ok(device.broadcast(&call, &plan)?)),
        }
    }

    /// Through the host: waits for the stream, and until the data is there.
    fn broadcast_staged(&self, device: &mut Device, call: &BroadcastCall) -> Result<(), CommError> {
        let driver = device.context().driver();
        refuse_capture(Operation::Broadcast, device, call.stream)?;
        let (staging, context, bytes) = (device.staging()?, device.context(), call.bytes as usize);
        for at in (0..bytes).step_by(STAGED_CHUNK) {
            let (length, place) = (STAGED_CHUNK.min(bytes - at), call.buffer + at as u64);
            // SAFETY: the caller's buffer and our staging, each valid for that chunk; the stream is waited for before
            // anyone else touches the staging.
            unsafe {
                if self.rank() == call.root {
                    cuda::memory::copy_async(context, staging as u64, place, length, call.stream)?;
                    call.stream.synchronize(driver)?;
                }
                self.broadcast_host(staging.cast(), length / call.data_type.bytes(), call.data_type, call.root)?;
                if self.rank() != call.root {
                    cuda::memory::copy_async(context, place, staging as u64, length, call.stream)?;
                    call.stream.synchronize(driver)?;
                }
            }
        }
        Ok(())
    }

    /// A call that is put into a stream. The others learn of it first, lest one of them waits for this rank on the host while
    /// this one waits in its stream.
    fn call_on_device(
        &self,
        call: Call,
        device: &mut Device,
        stream: StreamRef,
        body: impl FnOnce(&mut Device) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        let turn = device.next_turn(stream).map_err(|why| CommError::invalid(call.operation, why))?;
        self.call(call, |steps| {
            let job = &self.core.job;
            match turn.capture {
                None => job.view().count_on_device(job.me(), job.generation, &steps.signature()),
                Some(_) => job.view().note_captured(job.me(), job.generation),
            }
            device.take_turn(&turn)?;
            body(device)
        })
    }

    /// What ranks do together outside of a call's own steps. An error that is this rank's alone (no memory, a driver that
    /// refuses) becomes the communicator's, so that the others, who wait in one of its exchanges, do not wait for ever;
    /// only an invalid argument is found before anybody waits.
    pub(super) fn together<T>(
        &self,
        operation: Operation,
        body: impl FnOnce() -> Result<T, CommError>,
    ) -> Result<T, CommError> {
        match body() {
            Err(error @ CommError::InvalidArgument { .. }) => Err(error),
            Err(error) => self.call(Call::plain(operation), |_| Err(error)),
            done => done,
        }
    }

    /// Whether this communicator has a GPU side at all.
    pub(super) fn may_use_device(&self, operation: Operation) -> Result<(), CommError> {
        if self.core.job.guard.is_fork() {
            return Err(CommError::Forked);
        }
        if !self.core.is_jobs_own() {
            let why = "GPU memory is for calls over all ranks of the job, not on a communicator that was split off";
            return Err(CommError::invalid(operation, why));
        }
        Ok(())
    }

    /// The GPU side, set up if it is not yet, and an error if an earlier call on it has failed since it returned.
    pub(super) fn ready_device<'a>(
        &self,
        operation: Operation,
        slot: &'a mut Option<Device>,
        send: u64,
        recv: u64,
        stream: StreamRef,
    ) -> Result<&'a mut Device, CommError> {
        let device = self.together(operation, || self.set_up_device(operation, slot, send, recv, stream))?;
        match device.trouble(self.core.job.view(), self.rank()) {
            Some(error) => self.call(Call::plain(operation), |_| Err(error)),
            None => Ok(device),
        }
    }

    /// Sets up the GPU side at the first call on device memory, which all ranks make together.
    fn set_up_device<'a>(
        &self,
        operation: Operation,
        slot: &'a mut Option<Device>,
        send: u64,
        recv: u64,
        stream: StreamRef,
    ) -> Result<&'a mut Device, CommError> {
        if slot.is_none() {
            cuda::Driver::get()?; // what is wrong with it, rather than that it knows no GPU's memory
            let Some(ordinal) = device::device_of(operation, send, recv)? else {
                let why = "no GPU reaches these buffers: they are plain host memory";
                return Err(CommError::invalid(operation, why));
            };
            let settings = &self.core.job.settings;
            if settings.path == Some(Path::Nccl) && (settings.invariant || settings.verify != Verify::Off) {
                return Err(CommError::invalid(operation, NOT_BY_NCCL));
            }
            let around = device::Around {
                mapping: &self.core.job.mapping,
                rank: self.rank(),
                size: self.size(),
                generation: self.core.job.generation,
                limit: self.core.job.settings.timeout,
                peer_to_peer: self.core.job.settings.peer_to_peer,
                verify: self.core.job.settings.verify,
                fault: self.core.job.settings.fault,
                heap: &|| self.core.job.heap(),
                link_health: self.core.job.settings.link_health,
                ring: self.core.job.settings.ring.as_deref(),
                first_call: self.core.job.settings.first_device_call,
            };
            let device = device::set_up(
                &around,
                ordinal,
                stream,
                &mut |blob, open| self.exchange(blob, open),
                &mut |blob, open| self.exchange(blob, open),
                &mut |blob, open| self.exchange(blob, open),
                &mut |blob, open| self.exchange(blob, open),
            )?;
            let device = slot.insert(device);
            if let Some(why) = device.detour() {
                let by_nccl = settings.path == Some(Path::Nccl) && !device.is_staged();
                if let Some(line) = detour_line(settings, why).filter(|_| !by_nccl) {
                    let _ = std::io::stderr().write_all(line.as_bytes()); // a program may have closed it
                }
                self.core.job.detour.get_or_init(|| CString::new(why).unwrap_or_default());
            }
            if self.core.job.settings.path == Some(Path::Nccl) && !device.is_staged() {
                self.join_nccl(device)?;
            }
            if !device.is_staged() {
                // SAFETY: the record is the device's, and whoever lets go of that has all forget the record before.
                unsafe { self.core.job.on_device.watch(device.troubled()) };
            }
        }
        slot.as_mut().ok_or_else(|| CommError::Internal("the GPU side is not there".into()))
    }

    /// Whether any call on device memory has failed since it returned, replayed ones included. Waits for nothing. While
    /// another thread is inside a call, which will return an error of its own, it also tells whether the job was aborted.
    pub fn async_error(&self) -> Result<(), CommError> {
        let job = &*self.core.job;
        if job.guard.is_fork() {
            return Err(CommError::Forked);
        }
        if let Some(error) = job.on_device.trouble(job.view(), job.me()) {
            publish_failure(job.view(), job.me(), job.generation, &error);
            return Err(error);
        }
        let is_busy = matches!(self.device.try_lock(), Err(TryLockError::WouldBlock));
        match job.view().abort_reason().filter(|_| is_busy) {
            Some(reason) => Err(CommError::Aborted { reason, call: None }),
            None => Ok(()),
        }
    }

    /// Why data between the ranks' GPUs goes through the host's memory, and which of them cannot reach which; `None` if it
    /// does not, or before the first call on GPU memory. Rank 0 also prints it once, unless `PRUN_P2P=off` asks for it.
    pub fn detour(&self) -> Option<&str> {
        self.detour_c().and_then(|why| why.to_str().ok())
    }

    /// The same for C.
    pub(crate) fn detour_c(&self) -> Option<&CStr> {
        self.core.job.detour.get().map(CString::as_c_str)
    }

    /// Milliseconds of parts of the GPUs' set-up, once there was one. For the benchmark.
    #[doc(hidden)]
    pub fn device_set_up(&self) -> Vec<(&'static str, f64)> {
        let slot = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(took) = slot.as_ref().map(Device::took) else { return Vec::new() };
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        vec![("kernels", ms(took.kernels)), ("mapping", ms(took.mapping)), ("proof", ms(took.proof))]
    }

    /// Whether calls on device memory wait for their stream and cannot be captured: the host reduces.
    #[doc(hidden)]
    pub fn is_staged(&self) -> bool {
        let slot = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        slot.as_ref().is_some_and(Device::is_staged)
    }

    /// All ranks load NCCL and join its ranks, or none does.
    fn join_nccl(&self, device: &mut Device) -> Result<(), CommError> {
        let nccl = Nccl::load();
        let id = match (&nccl, self.rank()) {
            (Ok(nccl), 0) => nccl.unique_id(),
            (Ok(_), _) => Ok(UniqueId([0; UniqueId::BYTES])),
            (Err(why), _) => Err(why.clone()),
        };
        let mut blob = [0; 1 + UniqueId::BYTES];
        if let Ok(id) = &id {
            blob[0] = 1;
            blob[1..].copy_from_slice(&id.0);
        }
        let first = |rank: u32, bytes: &[u8]| match bytes[0] {
            0 => Err("it cannot load it".to_owned()),
            _ => Ok((rank == 0).then(|| UniqueId(std::array::from_fn(|k| bytes[1 + k])))),
        };
        let failed = |why: String| CommError::Nccl { why };
        let exchanged = self.exchange(&blob, first)?;
        let (nccl, own) = (nccl.map_err(failed)?, id.map_err(failed)?);
        let id = match exchanged {
            Exchanged::All(others) => others.into_iter().flatten().flatten().next().unwrap_or(own),
            Exchanged::Fallback(refusal) => return Err(failed(format!("rank {}: {}", refusal.peer, refusal.why))),
        };
        let (job, waiter) = (self.core.job.clone(), self.core.waiter());
        let look = move || waiter.trouble(job.view(), job.me()).map(|stop| explain(job.view(), stop, None));
        device.join_nccl(nccl, id, self.rank(), look).map_err(failed)
    }
}

/// A call that waits for its stream cannot be part of a graph.
fn refuse_capture(operation: Operation, device: &Device, stream: StreamRef) -> Result<(), CommError> {
    if !stream.is_capturing(device.context().driver())? {
        return Ok(());
    }
    let why = device.detour().unwrap_or("it is asked for");
    Err(CommError::invalid(operation, format!("data goes through the host, which cannot be captured: {why}")))
}

/// What one rank says for all where data takes the long way although nobody has asked for that.
fn detour_line(settings: &Settings, why: &str) -> Option<String> {
    let tells = settings.local_rank == 0 && settings.peer_to_peer;
    tells.then(|| format!("libcomm: data between the ranks' GPUs goes through the host: {why}\n"))
}

/// Neither sums what arrives nor reduces in the order of the ranks.
const NOT_BY_NCCL: &str = "NCCL, which PRUN_PROTO asks for, keeps neither PRUN_VERIFY nor PRUN_REPRODUCIBLE=invariant";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_says_why_data_goes_through_the_host_unless_that_was_asked_for() {
        let settings = |rank| Settings::of("detour", rank, 2);
        let line = |settings: &Settings| detour_line(settings, "rank 1 cannot map rank 0's memory: it is far");
        let said = "libcomm: data between the ranks' GPUs goes through the host: \
                    rank 1 cannot map rank 0's memory: it is far\n";
        assert_eq!(line(&settings(0)).as_deref(), Some(said));
        assert_eq!(line(&settings(1)), None);
        assert_eq!(line(&Settings { peer_to_peer: false, ..settings(0) }), None);
    }
}
