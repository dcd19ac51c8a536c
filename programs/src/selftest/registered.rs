//! Registered memory: results straight into the peer's, a mix of both kinds, and what is refused. Of two GPUs that map
//! each other's memory.
#![expect(unsafe_code, reason = "buffers of the device")]

use std::ffi::c_void;

use anyhow::{Context as _, bail, ensure};
use comm::cuda::DeviceBuffer;
use comm::{CommError, DataType, Op, Path};

use super::rank::{MOST, Rank, data};

const ZERO_COPY: Option<Path> = Some(Path::ZeroCopy);

impl Rank<'_> {
    /// Everything, one after the other; at the end nothing is registered.
    pub(super) fn registered(&self, counts: &[usize]) -> anyhow::Result<()> {
        let (comm, base) = (self.comm, self.buffer.address());
        let whole = base as *mut c_void;
        self.all_types(ZERO_COPY, counts).context("nothing is registered")?;
        comm.register_raw(whole, self.buffer.bytes())?;
        self.all_types(ZERO_COPY, counts).context("all is registered")?;
        self.words_of_no_data(&[Path::ZeroCopy]).context("words that look like no data")?;
        let again = comm.register_raw(whole, self.buffer.bytes());
        refused(again, "registered already")?;
        comm.deregister_raw(whole)?;
        refused(comm.deregister_raw(whole), "registered nothing")?;
        // Rank 0 registers where its results go, the others something else: all do without.
        let part = if comm.rank() == 0 { base + MOST as u64 } else { base } as *mut c_void;
        comm.register_raw(part, MOST)?;
        self.all_types(ZERO_COPY, counts).context("one result is registered")?;
        comm.deregister_raw(part)?;
        // Windows that begin at different places of their allocations.
        let part = (base + MOST as u64 - 64 * u64::from(comm.rank())) as *mut c_void;
        comm.register_raw(part, MOST + 64 * comm.rank() as usize)?;
        self.all_types(ZERO_COPY, counts).context("at different places")?;
        comm.deregister_raw(part)?;
        self.beyond().context("a result that ends behind its window")?;
        self.given().context("memory of comm_alloc_device")
    }

    /// Calls in a row and in a graph, large ones too.
    pub(super) fn registered_graphs(&self) -> anyhow::Result<()> {
        let (comm, base) = (self.comm, self.buffer.address());
        comm.register_raw(base as *mut c_void, self.buffer.bytes())?;
        let counts = [300usize, 200_000, 3_000_001];
        let sends: Vec<Vec<f32>> = (0..comm.size()).map(|rank| data(rank, counts[2], 3)).collect();
        self.buffer.write(0, &sends[comm.rank() as usize])?;
        let put = |count: usize, path: Option<Path>| {
            let stream = self.stream.get().raw();
            // SAFETY: inside the buffer.
            unsafe {
                let (send, recv) = (base as *const _, (base + MOST as u64) as *mut _);
                comm.all_reduce_tuned(send, recv, count, DataType::F32, Op::Sum, stream, path, &|_| ())
            }
        };
        put(1, ZERO_COPY)?;
        for count in counts {
            let graph = self.capture(|| {
                put(count, ZERO_COPY)?;
                put(count, None)?;
                Ok(put(count, ZERO_COPY)?)
            })?;
            for _ in 0..20 {
                self.buffer.fill(MOST, 4 * count, 0xff)?;
                graph.launch(self.stream.get())?;
                put(count, ZERO_COPY)?;
                graph.launch(self.stream.get())?;
                self.stream.get().synchronize(self.context.driver())?;
                comm.async_error()?;
                let mut result = vec![0f32; count];
                self.buffer.read(MOST, &mut result)?;
                let right = |i: usize| sends.iter().map(|send| send[i]).sum::<f32>();
                let wrong = (0..count).find(|i| result[*i] != right(*i));
                ensure!(wrong.is_none(), "{count} elements: {wrong:?} is wrong");
            }
        }
        Ok(comm.deregister_raw(base as *mut c_void)?)
    }

    fn beyond(&self) -> anyhow::Result<()> {
        let recv = (self.buffer.address() + MOST as u64) as *mut c_void;
        self.comm.register_raw(recv, 400)?;
        self.call::<f32>(100, Op::Sum, ZERO_COPY, false, 0)?;
        refused(self.put(recv, 101), "ends behind")?;
        self.comm.deregister_raw(recv)?;
        self.call::<f32>(101, Op::Sum, ZERO_COPY, false, 0)
    }

    /// From libcomm; and memory that was freed while it was registered, and allocated again.
    fn given(&self) -> anyhow::Result<()> {
        let (comm, bytes) = (self.comm, 4 << 20);
        let memory = comm.alloc_device_raw(bytes)?;
        self.put(memory, 1 << 20)?;
        comm.free_device_raw(memory)?;
        refused(comm.free_device_raw(memory), "not from comm_alloc_device")?;
        let buffer = DeviceBuffer::new(self.context, bytes)?;
        let address = buffer.address();
        comm.register_raw(address as *mut c_void, bytes)?;
        self.put(address as *mut c_void, 1000)?;
        drop(buffer);
        let other = DeviceBuffer::new(self.context, bytes)?;
        // Drivers give the same address again, or not; only where all did is there anything to see.
        let mut same = [u8::from(other.address() == address)];
        comm.all_reduce_in_place(&mut same, Op::Min)?;
        if same == [1] {
            refused(self.put(address as *mut c_void, 1000), "was freed")?;
        }
        comm.deregister_raw(address as *mut c_void)?;
        comm.register_raw(other.address() as *mut c_void, bytes)?;
        self.put(other.address() as *mut c_void, 1000)?;
        comm.deregister_raw(other.address() as *mut c_void)?;
        Ok(())
    }

    /// One zero-copy call into `recv`, from the buffer.
    fn put(&self, recv: *mut c_void, count: usize) -> Result<(), CommError> {
        let (send, stream) = (self.buffer.address() as *const _, self.stream.get());
        // SAFETY: both are that long, unless the call is to be refused.
        unsafe {
            self.comm.all_reduce_tuned(send, recv, count, DataType::F32, Op::Sum, stream.raw(), ZERO_COPY, &|_| ())?
        };
        stream.synchronize(self.context.driver())?;
        self.comm.async_error()
    }
}

/// Memory that has no handle is refused on all ranks alike, and works as before.
pub(super) fn cannot_be_shared(rank: &Rank<'_>, memory: u64) -> anyhow::Result<()> {
    refused(rank.comm.register_raw(memory as *mut c_void, 4096), "works without")?;
    rank.put(memory as *mut c_void, 1000)?;
    Ok(())
}

/// A graph that was captured with registered memory is replayed after that was deregistered: an error on both ranks.
pub(super) fn stale(rank: &Rank<'_>) -> anyhow::Result<()> {
    let (comm, base) = (rank.comm, rank.buffer.address());
    let (whole, bytes) = (base as *mut c_void, rank.buffer.bytes());
    rank.call::<f32>(1000, Op::Sum, ZERO_COPY, false, 0)?;
    comm.register_raw(whole, bytes)?;
    let graph = rank.capture(|| {
        let stream = rank.stream.get().raw();
        // SAFETY: inside the buffer.
        let called = unsafe {
            let (send, recv) = (base as *const _, (base + MOST as u64) as *mut _);
            comm.all_reduce_tuned(send, recv, 200_000, DataType::F32, Op::Sum, stream, ZERO_COPY, &|_| ())
        };
        Ok(called?)
    })?;
    let replay = || {
        graph.launch(rank.stream.get())?;
        Ok(rank.stream.get().synchronize(rank.context.driver())?)
    };
    replay()?;
    comm.async_error()?;
    comm.deregister_raw(whole)?;
    // Another window does not take its place.
    comm.register_raw(whole, bytes)?;
    comm.barrier()?;
    let replayed: anyhow::Result<()> = replay();
    replayed?;
    match comm.async_error() {
        Err(CommError::Stale { .. } | CommError::PeerFailed { .. }) => Ok(()),
        other => bail!("a replay after deregistering: {other:?}"),
    }
}

fn refused(result: Result<(), CommError>, with: &str) -> anyhow::Result<()> {
    match result {
        Err(CommError::InvalidArgument { why, .. }) if why.contains(with) => Ok(()),
        Ok(()) => bail!("it went through, and should say «{with}»"),
        Err(error) => bail!("it should say «{with}», and says: {error}"),
    }
}
