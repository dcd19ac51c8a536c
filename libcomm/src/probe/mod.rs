//! Proves and measures the ways between the GPUs of a machine, from one process that sees them all.
//!
//! A way is proven when a pattern that one GPU wrote is read back, word for word, by the GPU that owns the memory, in
//! both directions and with both at once, by stores of kernels and by the copy engine. What a driver reports is not
//! enough: where an IOMMU stands in between, data is lost or the machine hangs. So this belongs into a process of its
//! own, which somebody watches and ends.
//!
//! Who asks whom, how long that may take and what becomes of the figures is the launcher's.
#![expect(unsafe_code, reason = "launches kernels and copies on addresses")]

mod way;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kernels::probe::{BLOCKS, ProbeArgs, THREADS};

use crate::cuda::memory::copy_async;
use crate::cuda::{Context, CudaError, DeviceBuffer, Driver, Function, HostBuffer, Module, Stream};

pub use way::{By, Figures};

/// Bytes that keep a link busy for a while, each way.
const LOAD_BYTES: usize = 32 << 20;
/// The first line holds the flag that a peer writes, the second the result of a kernel.
const FLAG_AT: u64 = 0;
const RESULT_AT: u64 = 256;

/// How thoroughly a pair is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Bytes of each transfer.
    pub bytes: usize,
    /// Of so many runs the median counts.
    pub runs: usize,
    /// Whether the way through the host is looked at as well.
    pub host: bool,
}

impl Effort {
    /// Enough to prove a pair before a job starts.
    pub const PROOF: Effort = Effort { bytes: 32 << 20, runs: 1, host: false };
    /// Enough for figures that people compare.
    pub const FIGURES: Effort = Effort { bytes: 256 << 20, runs: 5, host: true };
}

/// What was found out about a pair.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pair {
    /// Whether the driver says that each can write to the other.
    pub reported: bool,
    /// Each way of moving data that was looked at.
    pub ways: Vec<Figures>,
}

impl Pair {
    /// Whether all that was written arrived; `None` where the driver allows nothing to be written.
    pub fn proven(&self) -> Option<bool> {
        self.reported.then(|| self.ways.iter().filter(|way| way.by != By::Host).all(|way| way.wrong == 0))
    }
}

/// The GPUs that this process sees, ready to be measured.
pub struct Probe {
    driver: &'static Driver,
    effort: Effort,
    gpus: Vec<Gpu>,
}

/// A GPU and what its measurements need.
struct Gpu {
    context: Context,
    write: Function,
    check: Function,
    ping: Function,
    /// For what goes out, and for what comes in.
    streams: [Stream; 2],
    words: DeviceBuffer,
    source: DeviceBuffer,
    target: DeviceBuffer,
}

impl Gpu {
    fn open(driver: &'static Driver, ordinal: u32, bytes: usize) -> Result<Gpu, CudaError> {
        let context = Context::primary(driver, ordinal)?;
        let image = kernels::image("probe").ok_or(CudaError::NoFunction("the kernels of the probe"))?;
        let module = Module::load(context, image.ptx)?;
        let words = DeviceBuffer::new(context, 4096)?;
        words.fill(0, 4096, 0)?;
        Ok(Gpu {
            context,
            write: module.function("probe_write")?,
            check: module.function("probe_check")?,
            ping: module.function("probe_ping")?,
            streams: [Stream::new(context)?, Stream::new(context)?],
            words,
            source: DeviceBuffer::new(context, bytes)?,
            target: DeviceBuffer::new(context, bytes)?,
        })
    }

    fn flag(&self) -> u64 {
        self.words.address() + FLAG_AT
    }

    fn result_at(&self) -> u64 {
        self.words.address() + RESULT_AT
    }

    fn result(&self) -> Result<u64, CudaError> {
        let mut word = [0u64];
        self.words.read(RESULT_AT as usize, &mut word)?;
        Ok(word[0])
    }

    /// Writes the pattern of `seed` into memory that this GPU can reach, and waits for it.
    fn fill(&self, to: u64, bytes: usize, seed: u64) -> Result<(), CudaError> {
        let _bound = self.context.bind()?;
        let args = ProbeArgs { to, count: bytes as u64 / 8, seed, ..ProbeArgs::default() };
        let stream = self.streams[0].get();
        // SAFETY: `to` is a buffer of that length, and the arguments are the kernel's.
        unsafe { self.write.launch(BLOCKS, THREADS, stream, &args) }?;
        stream.synchronize(self.context.driver())
    }

    /// How many words of its target are not those of `seed`.
    fn wrong(&self, bytes: usize, seed: u64) -> Result<u64, CudaError> {
        self.words.fill(RESULT_AT as usize, 8, 0)?;
        let _bound = self.context.bind()?;
        let args = ProbeArgs {
            from: self.target.address(),
            result: self.result_at(),
            count: bytes as u64 / 8,
            seed,
            ..ProbeArgs::default()
        };
        let stream = self.streams[1].get();
        // SAFETY: the target has that length, and the arguments are the kernel's.
        unsafe { self.check.launch(BLOCKS, THREADS, stream, &args) }?;
        stream.synchronize(self.context.driver())?;
        self.result()
    }
}

impl Probe {
    /// Opens every GPU that this process sees.
    ///
    /// # Errors
    /// There is no driver, or a GPU does not give a context or memory.
    pub fn open(effort: Effort) -> Result<Probe, CudaError> {
        let driver = Driver::get()?;
        let count = Context::devices(driver)?;
        let gpus = (0..count).map(|ordinal| Gpu::open(driver, ordinal, effort.bytes)).collect::<Result<_, _>>()?;
        Ok(Probe { driver, effort, gpus })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.gpus.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Where a GPU sits on the PCI bus.
    ///
    /// # Errors
    /// The driver's.
    pub fn address(&self, gpu: usize) -> Result<String, CudaError> {
        self.gpus[gpu].context.pci_address()
    }

    /// Looks at the ways between two GPUs.
    ///
    /// # Errors
    /// The driver's; the contexts may be of no use after it.
    pub fn pair(&self, a: usize, b: usize) -> Result<Pair, CudaError> {
        let (one, other) = (&self.gpus[a], &self.gpus[b]);
        let reported = one.context.can_reach(&other.context)? && other.context.can_reach(&one.context)?;
        let mut pair = Pair { reported, ways: Vec::new() };
        if reported {
            one.context.enable_peer(&other.context)?;
            other.context.enable_peer(&one.context)?;
            for by in [By::Stores, By::Copy] {
                pair.ways.push(self.measure(by, one, other)?);
            }
        }
        if self.effort.host {
            pair.ways.push(self.measure(By::Host, one, other)?);
        }
        Ok(pair)
    }

    /// Keeps the PCIe links of these GPUs busy in both directions, and their processors too, until `stop` says so.
    ///
    /// # Errors
    /// The driver's.
    pub fn load(&self, gpus: &[usize], mut stop: impl FnMut() -> bool) -> Result<(), CudaError> {
        let bytes = LOAD_BYTES.min(self.effort.bytes);
        let pinned: Vec<[HostBuffer; 2]> = gpus
            .iter()
            .map(|&gpu| {
                let context = self.gpus[gpu].context;
                Ok([HostBuffer::new(context, bytes)?, HostBuffer::new(context, bytes)?])
            })
            .collect::<Result<_, CudaError>>()?;
        while !stop() {
            for (&gpu, [from, to]) in gpus.iter().zip(&pinned) {
                let its = &self.gpus[gpu];
                let _bound = its.context.bind()?;
                let args =
                    ProbeArgs { to: its.source.address(), count: bytes as u64 / 8, seed: 1, ..ProbeArgs::default() };
                // SAFETY: (both copies and the launch) the buffers are that long, and waited for below.
                unsafe {
                    copy_async(its.context, its.target.address(), from.device(), bytes, its.streams[1].get())?;
                    its.write.launch(BLOCKS, THREADS, its.streams[0].get(), &args)?;
                    copy_async(its.context, to.device(), its.source.address(), bytes, its.streams[0].get())?;
                }
            }
            for &gpu in gpus {
                let its = &self.gpus[gpu];
                let _bound = its.context.bind()?;
                for stream in &its.streams {
                    stream.get().synchronize(self.driver)?;
                }
            }
        }
        Ok(())
    }
}

/// A number that no earlier pattern of this process has, and far from it.
fn fresh_seed() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed) << 32
}

/// The middle one.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Since `start`, never zero, so that a rate can be made of it.
fn since(start: Instant) -> Duration {
    start.elapsed().max(Duration::from_nanos(1))
}
