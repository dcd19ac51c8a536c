//! Memory of the ranks' GPUs that they have registered together, so that peers may write results straight into it.

use std::ffi::c_void;
use std::sync::PoisonError;

use super::Comm;
use crate::cuda::{Context, DeviceBuffer, Driver, StreamRef};
use crate::device::plan::Path;
use crate::env;
use crate::error::CommError;
use crate::shm::mailbox::Exchanged;
use crate::types::Operation;

impl Comm {
    /// Registers `bytes` bytes of this rank's GPU memory at `address`, together with all ranks, each with its own: peers may
    /// then write results straight into it, in calls that go that way (`PRUN_PROTO=zero-copy`). All else goes as without,
    /// and nothing changes where GPUs cannot map each other's memory.
    ///
    /// The memory must not be freed before [`deregister_raw`](Comm::deregister_raw), which all ranks call in the same order;
    /// a later call whose result begins in it and ends behind it, or in memory that was freed since, is refused. If a rank's
    /// memory is of a kind that cannot be shared (from a pool, or mapped by hand), all ranks get the same error, and calls on
    /// that memory work as before.
    pub fn register_raw(&self, address: *mut c_void, bytes: usize) -> Result<(), CommError> {
        let operation = Operation::Register;
        self.may_use_device(operation)?;
        let address = address as u64;
        let mut slot = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.ready_device(operation, &mut slot, address, address, StreamRef::DEFAULT)?;
        if !device.has_windows() {
            return Ok(());
        }
        let own = device.offer(address, bytes as u64);
        let zero_copy = self.core.job.settings.path == Some(Path::ZeroCopy);
        let open = |peer, bytes: &[u8]| {
            // Loading may wait for all work of the context. Here all ranks are in the exchange: none has a call before it
            // still to make, for which a kernel would wait, and none makes another until all have loaded.
            if zero_copy {
                device.load_zero_kernels().map_err(|error| error.to_string())?;
            }
            device.open_window(&own, peer, bytes)
        };
        match self.exchange(&own.to_bytes(), open)? {
            Exchanged::All(peers) => self.together(operation, || Ok(device.keep_window(&own, bytes as u64, peers)?)),
            Exchanged::Fallback(refusal) => {
                // A peer may have mapped this rank's part, and lets go of it only once it has learned that another could
                // not: the caller may free it afterwards.
                self.barrier()?;
                Err(CommError::invalid(
                    operation,
                    format!(
                        "rank {} with rank {}'s part: {}; a call on this memory works without",
                        refusal.rank, refusal.peer, refusal.why
                    ),
                ))
            }
        }
    }

    /// Ends what [`register_raw`](Comm::register_raw) began at that address, together with all ranks. Waits for all work of
    /// the GPU; once it returns nobody maps the memory, and it may be freed.
    pub fn deregister_raw(&self, address: *mut c_void) -> Result<(), CommError> {
        let operation = Operation::Register;
        self.may_use_device(operation)?;
        let mut slot = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(device) = slot.as_mut() else {
            return Err(CommError::invalid(operation, "nothing is registered"));
        };
        if !device.has_windows() {
            return Ok(());
        }
        let own = device.window_at(address as u64);
        let blob = own.map_or(0, |number| number as u64 + 1).to_ne_bytes();
        let agree = |_: u32, theirs: &[u8]| match own {
            None => Err(format!("this rank has registered nothing at {address:p}")),
            Some(_) if theirs == blob => Ok(()),
            Some(_) => Err("the two deregister different memory".to_owned()),
        };
        if let Exchanged::Fallback(refusal) = self.exchange(&blob, agree)? {
            let why = format!("rank {} with rank {}: {}", refusal.rank, refusal.peer, refusal.why);
            return Err(CommError::invalid(operation, why));
        }
        if let Some(number) = own {
            self.together(operation, || Ok(device.forget_window(number)?))?;
        }
        // Nobody frees what another still maps.
        self.barrier()
    }

    /// Zeroed memory of this rank's GPU (that of the current context, else the one that prun gave it), registered together
    /// with all ranks. Ends with [`free_device_raw`](Comm::free_device_raw), or with the communicator.
    pub fn alloc_device_raw(&self, bytes: usize) -> Result<*mut c_void, CommError> {
        self.may_use_device(Operation::Register)?;
        let bytes = bytes.max(1);
        let buffer = self.together(Operation::Register, || {
            let driver = Driver::get()?;
            let context = match Context::current(driver)? {
                Some(context) => context,
                None => Context::primary(driver, own_gpu(Context::devices(driver)?, self.local_rank())?)?,
            };
            let buffer = DeviceBuffer::new(context, bytes)?;
            buffer.fill(0, bytes, 0)?;
            Ok(buffer)
        })?;
        let address = buffer.address() as *mut c_void;
        if let Err(error) = self.register_raw(address, bytes) {
            // Unless all have found together that it cannot be, a peer may have it mapped still.
            if !matches!(error, CommError::InvalidArgument { .. }) {
                buffer.leak();
            }
            return Err(error);
        }
        let mut slot = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let device = slot.as_mut().ok_or_else(|| CommError::Internal("the GPU side is not there".into()))?;
        device.adopt(buffer);
        Ok(address)
    }

    /// Gives memory of [`alloc_device_raw`](Comm::alloc_device_raw) back, together with all ranks; waits for all work of the
    /// GPU.
    pub fn free_device_raw(&self, address: *mut c_void) -> Result<(), CommError> {
        let operation = Operation::Register;
        let is_ours = |comm: &Comm| {
            let slot = comm.device.lock().unwrap_or_else(PoisonError::into_inner);
            slot.as_ref().is_some_and(|device| device.has_allocated(address as u64))
        };
        self.may_use_device(operation)?;
        if !is_ours(self) {
            return Err(CommError::invalid(operation, format!("{address:p} is not from comm_alloc_device")));
        }
        self.deregister_raw(address)?;
        let mut slot = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = slot.as_mut() {
            device.release(address as u64);
        }
        Ok(())
    }
}

/// The GPU that prun gave this rank, among those that it sees; without prun they are shared out in turn.
fn own_gpu(devices: u32, local_rank: u32) -> Result<u32, CommError> {
    let given = env::number(env::GPU)?.and_then(|gpu| u32::try_from(gpu).ok());
    Ok(given.unwrap_or(local_rank % devices.max(1)))
}
