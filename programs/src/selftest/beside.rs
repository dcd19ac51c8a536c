//! What else a program may do at the same time: another communicator, and another library's collectives.
#![expect(unsafe_code, reason = "buffers of the device")]

use anyhow::{bail, ensure};
use comm::cuda::Stream;
use comm::{CommError, DataType, Op};

use super::rank::Rank;
use super::{NotHere, pair};
use crate::bench::nccl::{Kind, Nccl};

const COUNT: usize = 5000;

impl Rank<'_> {
    /// A second communicator of the same ranks: refused on GPU memory with a sentence, and at work on the host while calls of
    /// the first run in a stream.
    pub(super) fn second_communicator(&self) -> anyhow::Result<()> {
        let (comm, base, stream) = (self.comm, self.buffer.address(), self.stream.get());
        let second = comm.dup()?;
        // SAFETY: inside the buffer.
        let refused = unsafe {
            second.all_reduce_stream_raw(base as *const _, base as *mut _, COUNT, DataType::F32, Op::Sum, stream.raw())
        };
        match refused {
            Err(CommError::InvalidArgument { why, .. }) if why.contains("split off") => {}
            other => bail!("GPU memory on a second communicator: {other:?}"),
        }
        self.buffer.write(0, &vec![1f32; COUNT])?;
        for round in 0..500u64 {
            // SAFETY: inside the buffer.
            unsafe {
                let (send, recv) = (base as *const _, base as *mut _);
                comm.all_reduce_stream_raw(send, recv, COUNT, DataType::F32, Op::Avg, stream.raw())?;
            }
            let mut values = [round + u64::from(comm.rank()); 100];
            second.all_reduce_in_place(&mut values, Op::Max)?;
            ensure!(values == [round + u64::from(comm.size() - 1); 100], "round {round}: {}", values[0]);
        }
        stream.synchronize(self.context.driver())?;
        comm.async_error()?;
        second.finalize()?;
        self.holds(0, 1.0)
    }

    /// NCCL's AllReduce in another stream, call by call beside ours.
    pub(super) fn beside_nccl(&self) -> anyhow::Result<()> {
        let _bound = self.context.bind()?;
        nccl_is_there()?;
        let nccl = Nccl::init(self.comm)?;
        let other = Stream::new(self.context)?;
        let (driver, base) = (self.context.driver(), self.buffer.address());
        let behind = 4 * COUNT as u64;
        let kind = Kind::of(DataType::F32, Op::Avg)?;
        self.buffer.write(0, &vec![1f32; 2 * COUNT])?;
        for _ in 0..500 {
            // SAFETY: inside the buffer, each library in its part.
            unsafe {
                let (send, recv) = (base as *const _, base as *mut _);
                let stream = self.stream.get().raw();
                self.comm.all_reduce_stream_raw(send, recv, COUNT, DataType::F32, Op::Avg, stream)?;
                nccl.all_reduce(base + behind, base + behind, COUNT, kind, other.get().raw())?;
            }
        }
        self.stream.get().synchronize(driver)?;
        other.get().synchronize(driver)?;
        self.comm.async_error()?;
        self.holds(0, 1.0)?;
        self.holds(behind as usize, 1.0)
    }

    fn holds(&self, at: usize, value: f32) -> anyhow::Result<()> {
        let mut found = vec![0f32; COUNT];
        self.buffer.read(at, &mut found)?;
        ensure!(found.iter().all(|x| *x == value), "{} instead of {value}", found[0]);
        Ok(())
    }
}

/// A rank dies while NCCL does the calls (`PRUN_PROTO=nccl`): as where libcomm does.
pub(super) fn killed_nccl(rank: &Rank<'_>) -> anyhow::Result<()> {
    nccl_is_there()?;
    pair::killed(rank, false)
}

fn nccl_is_there() -> anyhow::Result<()> {
    match Nccl::find() {
        Ok(_) => Ok(()),
        Err(why) => bail!(NotHere(format!("{why:#}"))),
    }
}
