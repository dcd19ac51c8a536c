//! Measures calls on host memory.

use std::time::Instant;

use comm::{Comm, CommError, Op};

use super::collective::Call;
use super::data::Expected;
use super::memory::Ready;
use super::wire::{Buffers, Calls, Entry, Job};

/// Single calls are timed for so long at most, and so many.
const SINGLE_S: f64 = 0.5;
const SINGLES: u64 = 10_000;
/// Where the last-level cache is shared by many virtual machines, a part of it is enough.
const MOST_SWEPT: usize = 128 << 20;
/// Calls of a batch with cold caches, where emptying them takes longer than the call.
const COLD_CALLS: u64 = 5;

/// Measures one size: an entry for each kind of buffers and place.
pub fn measure(comm: &Comm, job: &Job, count: usize, sweep: &mut Sweep) -> Result<Vec<Entry>, CommError> {
    let call = Call { collective: job.collective, data_type: job.data_type, op: job.op, root: job.root, count };
    let expected = Expected::of(&call, comm.rank() as usize, comm.size() as usize);
    let mut entries = Vec::new();
    for &buffers in &job.buffers {
        for &place in &job.places {
            let mut ready = Ready::new(comm, call, &expected, buffers, place, 0)?;
            let (batches, singles) = timed(comm, job, &mut ready, sweep)?;
            let wrong = match job.check {
                true => Some(sum(comm, ready.check()?)?),
                false => None,
            };
            let calls = if job.percentiles { Calls::of(&singles) } else { None };
            entries.push(Entry { variant: name(buffers).into(), place, batches, calls, wrong });
        }
    }
    Ok(entries)
}

/// What entries of these buffers are called.
pub fn name(buffers: Buffers) -> &'static str {
    match buffers {
        Buffers::Malloc => "libcomm",
        Buffers::Comm => "libcomm, comm_alloc",
    }
}

/// Microseconds a call in each batch, and of single calls if the job asks for them.
fn timed(comm: &Comm, job: &Job, ready: &mut Ready<'_>, sweep: &mut Sweep) -> Result<(Vec<f64>, Vec<f64>), CommError> {
    for _ in 0..job.warmup {
        ready.make()?;
    }
    let begin = Instant::now();
    for _ in 0..3 {
        ready.make()?;
    }
    let one = slowest(comm, begin.elapsed().as_secs_f64() / 3.0)?;
    let calls = match job.iterations {
        Some(calls) => u64::from(calls),
        None if job.cold => COLD_CALLS,
        None => (job.batch_ms / 1e3 / one).clamp(3.0, 20_000.0) as u64,
    };
    let mut batches = Vec::new();
    for _ in 0..job.batches {
        let us = match job.cold {
            true => sweep.cold_calls(comm, ready, calls)?.into_iter().sum::<f64>() / calls as f64,
            false => {
                comm.barrier()?;
                let begin = Instant::now();
                for _ in 0..calls {
                    ready.make()?;
                }
                begin.elapsed().as_secs_f64() * 1e6 / calls as f64
            }
        };
        batches.push(slowest(comm, us)?);
    }
    if !job.percentiles {
        return Ok((batches, Vec::new()));
    }
    let mut singles = match job.cold {
        true => sweep.cold_calls(comm, ready, calls * u64::from(job.batches))?,
        false => {
            let calls = ((SINGLE_S / one) as u64).clamp(30, SINGLES);
            comm.barrier()?;
            let mut times = Vec::with_capacity(calls as usize);
            let mut last = Instant::now();
            for _ in 0..calls {
                ready.make()?;
                let now = Instant::now();
                times.push((now - last).as_secs_f64() * 1e6);
                last = now;
            }
            times
        }
    };
    comm.all_reduce_in_place(&mut singles, Op::Max)?;
    Ok((batches, singles))
}

/// The same on all ranks: that of the slowest.
pub(super) fn slowest(comm: &Comm, value: f64) -> Result<f64, CommError> {
    let mut value = [value];
    comm.all_reduce_in_place(&mut value, Op::Max)?;
    Ok(value[0])
}

pub(super) fn sum(comm: &Comm, value: u64) -> Result<u64, CommError> {
    let mut value = [value];
    comm.all_reduce_in_place(&mut value, Op::Sum)?;
    Ok(value[0])
}

/// Memory that is read and written to empty the caches.
pub struct Sweep(Vec<u64>);

impl Sweep {
    /// Twice what the last-level cache holds, up to 128 MiB, shared among the ranks, if that is wanted.
    pub fn new(job: &Job, ranks: usize) -> Sweep {
        let bytes = if job.cold { (2 * cache_bytes()).min(MOST_SWEPT) / ranks } else { 0 };
        Sweep(vec![1; bytes / 8])
    }

    /// Microseconds of single calls, the caches emptied before each.
    fn cold_calls(&mut self, comm: &Comm, ready: &mut Ready<'_>, calls: u64) -> Result<Vec<f64>, CommError> {
        let mut times = Vec::new();
        for _ in 0..calls {
            for word in &mut self.0 {
                *word = word.wrapping_mul(3);
            }
            std::hint::black_box(&mut self.0);
            comm.barrier()?;
            let begin = Instant::now();
            ready.make()?;
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    }
}

/// The largest cache of the first CPU, or 64 MiB where the kernel does not say.
fn cache_bytes() -> usize {
    let size = |index: u32| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib << 10)
    };
    (0..5).filter_map(size).max().unwrap_or(64 << 20)
}
