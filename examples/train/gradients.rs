//! Where the gradients are summed: in memory of the rank's GPU if prun gave it one, else in the host's.
#![expect(unsafe_code, reason = "an AllReduce at an address of the device")]

use anyhow::{Context as _, Result, ensure};
use comm::cuda::{Context, DeviceBuffer, Driver};
use comm::{Comm, DataType, Op};

/// The way that all ranks take, since prun gives each of them a GPU or none.
pub enum Gradients {
    /// libcomm's host path.
    OnHost,
    /// Through a buffer of the device.
    OnGpu {
        /// Which of those that this rank sees.
        gpu: u32,
        /// As long as a step's sums.
        buffer: DeviceBuffer,
    },
}

impl Gradients {
    /// For steps that sum `elements` numbers.
    pub fn new(elements: usize) -> Result<Gradients> {
        let Ok(gpu) = std::env::var(comm::env::GPU) else { return Ok(Gradients::OnHost) };
        let gpu = gpu.parse().with_context(|| format!("{}={gpu} is no number of a GPU", comm::env::GPU))?;
        let on_gpu = || -> Result<DeviceBuffer, comm::cuda::CudaError> {
            DeviceBuffer::new(Context::primary(Driver::get()?, gpu)?, elements * size_of::<f32>())
        };
        let buffer = on_gpu()
            .with_context(|| format!("cannot use GPU {gpu}\n  try: `prun --map-by none` to train without GPUs"))?;
        Ok(Gradients::OnGpu { gpu, buffer })
    }

    /// Sums `part` over all ranks, in place, and returns once it is done.
    pub fn sum(&self, comm: &Comm, part: &mut [f32]) -> Result<()> {
        let Gradients::OnGpu { buffer, .. } = self else { return Ok(comm.all_reduce_in_place(part, Op::Sum)?) };
        ensure!(size_of_val(part) <= buffer.bytes(), "a step of {} numbers has no room on the GPU", part.len());
        buffer.write(0, part)?;
        let address = buffer.address() as *mut std::ffi::c_void;
        // SAFETY: the buffer is that long and ours alone. The call is in the default stream, for which `read` waits.
        unsafe { comm.all_reduce_raw(address, address, part.len(), DataType::F32, Op::Sum) }?;
        buffer.read(0, part)?;
        Ok(comm.async_error()?)
    }
}
