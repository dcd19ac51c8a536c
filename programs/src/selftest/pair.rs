//! The cases of a pair of GPUs.
#![expect(unsafe_code, reason = "buffers of the device")]

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use comm::cuda::{Event, Stream, StreamRef};
use comm::{CommError, DataType, Op, Path, Plan};

use super::rank::{MOST, Rank, data};

impl Rank<'_> {
    /// Data that looks like none: words that stand in the peer's memory for what has not come, and those beside them.
    pub(super) fn words_of_no_data(&self, paths: &[Path]) -> anyhow::Result<()> {
        let absent = 0xffb9_e6a6_ffb9_e6a6; // ABSENT in kernels/device/args.cuh
        for &path in paths {
            for count in [1usize, 2, 63, 64, 65, 70_001, 600_000] {
                for every in [1, 5, 64, 1000] {
                    let word = |rank: u64, i: u64| match (i + rank).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 {
                        x if x % every == 0 => absent + ((x / every) & 1),
                        x => x,
                    };
                    let sends: Vec<Vec<u64>> =
                        (0..2).map(|rank| (0..count as u64).map(|i| word(rank, i)).collect()).collect();
                    for (op, in_place) in [(Op::Max, false), (Op::Sum, true)] {
                        self.call_on(&sends, op, Some(path), in_place, 0, &|_| ())
                            .with_context(|| format!("{count} words, 1 in {every}, {path:?}, in place {in_place}"))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// More copies than there is room for at a time.
    pub(super) fn many_copies(&self) -> anyhow::Result<()> {
        for (count, in_place) in [(3_000_001, false), (3_000_001, true), (5_000_000, true), (5_000_000, false)] {
            let sends: Vec<Vec<f32>> = (0..2).map(|rank| data(rank, count, 7)).collect();
            let short = |plan: &mut Plan| plan.copy_bytes = 1 << 20;
            self.call_on(&sends, Op::Sum, Some(Path::Copy), in_place, 0, &short)
                .with_context(|| format!("{count} elements, in place {in_place}"))?;
        }
        Ok(())
    }

    /// Graphs of three paths, replayed between eager calls, each result checked.
    pub(super) fn graphs(&self) -> anyhow::Result<()> {
        let (driver, stream, base) = (self.context.driver(), self.stream.get(), self.buffer.address());
        let counts = [256usize, 200_000, 5_000_000];
        let paths = [Path::Ll, Path::Push, Path::Copy];
        let launch = |i: usize| {
            // SAFETY: inside the buffer.
            unsafe {
                let (send, recv) = (base as *const _, (base + MOST as u64) as *mut _);
                let (t, op) = (DataType::F32, Op::Sum);
                self.comm.all_reduce_tuned(send, recv, counts[i], t, op, stream.raw(), Some(paths[i]), &|_| ())
            }
        };
        launch(0)?;
        let graphs = (0..3)
            .map(|i| {
                stream.begin_capture(driver)?;
                for k in [i, (i + 1) % 3, i] {
                    launch(k)?;
                }
                Ok(stream.end_capture(self.context)?)
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        for round in 0..40u64 {
            let sends: Vec<Vec<f32>> = (0..self.comm.size()).map(|rank| data(rank, counts[2], round)).collect();
            self.buffer.write(0, &sends[self.comm.rank() as usize])?;
            self.buffer.fill(MOST, 4 * counts[2], 0xff)?;
            let i = round as usize % 3;
            graphs[i].launch(stream)?;
            launch((round / 3) as usize % 3)?;
            graphs[i].launch(stream)?;
            stream.synchronize(driver)?;
            self.comm.async_error()?;
            let mut result = vec![0f32; counts[i].max(counts[(i + 1) % 3])];
            self.buffer.read(MOST, &mut result)?;
            // Exact in any order: none of them has more than a few bits.
            let wrong = (0..result.len()).find(|k| result[*k] != sends.iter().map(|send| send[*k]).sum::<f32>());
            ensure!(wrong.is_none(), "round {round}: element {wrong:?}");
        }
        Ok(())
    }

    /// Calls alternate between two streams without events; each works on what the one before made.
    pub(super) fn streams(&self) -> anyhow::Result<()> {
        let other = Stream::new(self.context)?;
        let (driver, base) = (self.context.driver(), self.buffer.address());
        let ones = vec![1f32; 100_000];
        self.buffer.write(0, &ones)?;
        for round in 0..20 {
            let stream = if round % 2 == 0 { other.get() } else { self.stream.get() };
            // SAFETY: inside the buffer.
            unsafe {
                self.comm.all_reduce_stream_raw(
                    base as *const _,
                    base as *mut _,
                    ones.len(),
                    DataType::F32,
                    Op::Sum,
                    stream.raw(),
                )?
            };
        }
        self.stream.get().synchronize(driver)?;
        other.get().synchronize(driver)?;
        let mut result = vec![0f32; ones.len()];
        self.buffer.read(0, &mut result)?;
        // Whole powers of two are exact, others are rounded in later rounds.
        let (size, right) = (self.comm.size(), (self.comm.size() as f32).powi(20));
        let most = if size.is_power_of_two() { 0.0 } else { 1e-5 };
        ensure!(result.iter().all(|x| (*x / right - 1.0).abs() <= most), "{} instead of {right}", result[0]);
        // The other stream goes away before the next call; it is not that of the last one.
        Ok(self.comm.barrier()?)
    }

    /// A graph that was captured from two streams at once, in which nothing but the library orders the calls.
    pub(super) fn graph_of_two_streams(&self) -> anyhow::Result<()> {
        let other = Stream::new(self.context)?;
        let (driver, base) = (self.context.driver(), self.buffer.address());
        let count = 300_000;
        let place = |half: u64| base + half * MOST as u64;
        let call = |half: u64, stream: StreamRef| {
            let (send, recv) = (place(half) as *const _, place(half) as *mut _);
            // SAFETY: inside the buffer.
            unsafe { self.comm.all_reduce_stream_raw(send, recv, count, DataType::F32, Op::Avg, stream.raw()) }
        };
        let (forked, joined) = (Event::new(self.context)?, Event::new(self.context)?);
        let stream = self.stream.get();
        let graph = self.capture(|| {
            forked.record(stream)?;
            other.get().wait(&forked)?;
            for _ in 0..3 {
                call(0, stream)?;
                call(1, other.get())?;
            }
            joined.record(other.get())?;
            Ok(stream.wait(&joined)?)
        })?;
        let own = 1.0 + self.comm.rank() as f32;
        let mean = (1..=self.comm.size()).sum::<u32>() as f32 / self.comm.size() as f32;
        for round in 0..50 {
            self.buffer.write(0, &vec![own; count])?;
            self.buffer.write(MOST, &vec![2.0 * own; count])?;
            graph.launch(stream)?;
            stream.synchronize(driver)?;
            self.comm.async_error()?;
            for (half, right) in [(0, mean), (1, 2.0 * mean)] {
                let mut result = vec![0f32; count];
                self.buffer.read(half * MOST, &mut result)?;
                let wrong = result.iter().position(|x| (*x - right).abs() > 1e-3);
                ensure!(wrong.is_none(), "round {round}, half {half}: element {wrong:?}");
            }
        }
        Ok(())
    }

    /// The ranks alternate between two streams, each beginning with another one, without events and without waiting.
    pub(super) fn opposite_streams(&self) -> anyhow::Result<()> {
        let streams = [Stream::new(self.context)?, Stream::new(self.context)?];
        let (driver, base) = (self.context.driver(), self.buffer.address());
        self.buffer.write(0, &vec![1.0 + self.comm.rank() as f32; 5000])?;
        for round in 0..2000 {
            let stream = streams[(round + self.comm.rank() as usize) % 2].get();
            // SAFETY: inside the buffer.
            unsafe {
                let (send, recv) = (base as *const _, base as *mut _);
                self.comm.all_reduce_stream_raw(send, recv, 5000, DataType::F32, Op::Avg, stream.raw())?
            };
        }
        for stream in &streams {
            stream.get().synchronize(driver)?;
        }
        self.comm.async_error()?;
        let mut result = vec![0f32; 5000];
        self.buffer.read(0, &mut result)?;
        let mean = (1..=self.comm.size()).sum::<u32>() as f32 / self.comm.size() as f32;
        ensure!(result.iter().all(|x| (*x - mean).abs() < 1e-3), "{} instead of {mean}", result[0]);
        // The streams go away before the next call.
        self.call::<f32>(1, Op::Sum, None, false, 0)?;
        Ok(self.comm.barrier()?)
    }
}

/// The ranks call different things, or replay them; both are told, and the context stays usable.
pub(super) fn mismatch(rank: &Rank<'_>, replayed: bool) -> anyhow::Result<()> {
    let (comm, base) = (rank.comm, rank.buffer.address());
    let call = |count: usize, op: Op| {
        // SAFETY: inside the buffer.
        unsafe {
            comm.all_reduce_stream_raw(
                base as *const _,
                base as *mut _,
                count,
                DataType::F32,
                op,
                rank.stream.get().raw(),
            )
        }
    };
    call(100, Op::Sum)?;
    rank.stream.get().synchronize(rank.context.driver())?;
    let op = if comm.rank() == 0 { Op::Sum } else { Op::Max };
    let graph = replayed.then(|| rank.capture(|| Ok(call(100, op)?))).transpose()?;
    comm.barrier()?;
    let began = Instant::now();
    match &graph {
        Some(graph) => graph.launch(rank.stream.get())?,
        None => call(100, op)?,
    }
    rank.stream.get().synchronize(rank.context.driver())?;
    let error = comm.async_error().err().context("no error")?;
    ensure!(matches!(error, CommError::Mismatch { .. } | CommError::PeerFailed { .. }), "{error}");
    ensure!(began.elapsed() < Duration::from_secs(1), "took {:?}", began.elapsed());
    println!("rank {} after {:?}: {error}", comm.rank(), began.elapsed());
    ensure!(call(100, Op::Sum).is_err(), "a later call went through");
    rank.is_usable()
}

/// Rank 1 is killed in the middle of calls, or of replays; the other's call fails in under a second and says who is gone.
pub(super) fn killed(rank: &Rank<'_>, replayed: bool) -> anyhow::Result<()> {
    let (comm, base, driver) = (rank.comm, rank.buffer.address(), rank.context.driver());
    super::outlive();
    let counts = [1000, 300_000, 3_000_000, 9_000_000];
    let call = |round: usize| {
        // SAFETY: inside the buffer.
        unsafe {
            let (send, recv, stream) = (base as *const _, (base + MOST as u64) as *mut _, rank.stream.get().raw());
            comm.all_reduce_stream_raw(send, recv, counts[round % 4], DataType::F32, Op::Sum, stream)
        }
    };
    // Results go straight into the peer's memory only where it is registered.
    if std::env::var(comm::env::PROTO).is_ok_and(|path| path == "zero-copy") {
        comm.register_raw(base as *mut _, rank.buffer.bytes())?;
    }
    call(0)?;
    super::goes_as_it_should(comm)?;
    let graphs = match replayed {
        true => (0..4).map(|i| rank.capture(|| Ok(call(i)?))).collect::<anyhow::Result<Vec<_>>>()?,
        false => Vec::new(),
    };
    for round in 0..1000 {
        if comm.rank() == 1 && round == 500 {
            super::die();
        }
        let began = Instant::now();
        let called = match graphs.get(round % 4) {
            Some(graph) => graph.launch(rank.stream.get()).map_err(CommError::Cuda),
            None => call(round),
        };
        rank.stream.get().synchronize(driver)?;
        if let Err(error) = called.and_then(|()| comm.async_error()) {
            let took = began.elapsed();
            println!("rank 0 after {took:?}, round {round}: {error}");
            ensure!(
                matches!(error, CommError::RankExited { rank: 1, .. }),
                "it does not say that rank 1 is gone: {error}"
            );
            ensure!(took < Duration::from_secs(1), "took {took:?}");
            return rank.is_usable();
        }
    }
    anyhow::bail!("no error in 1000 rounds")
}

/// Rank 1 cannot map its peer's memory (`PRUN_FAULT`): all go through the host, know which pair could not and why, and are right.
pub(super) fn refused(rank: &Rank<'_>) -> anyhow::Result<()> {
    late(rank)?;
    let why = rank.comm.detour().context("nobody says that data goes through the host")?;
    ensure!(why == "rank 1 cannot map rank 0's memory: refused on purpose", "{why}");
    Ok(())
}

/// Rank 1 comes two seconds late.
pub(super) fn late(rank: &Rank<'_>) -> anyhow::Result<()> {
    rank.call::<f32>(1000, Op::Sum, None, false, 0)?;
    if rank.comm.rank() == 1 {
        std::thread::sleep(Duration::from_secs(2));
    }
    rank.call::<f32>(1000, Op::Sum, None, false, 0)?;
    rank.call::<f32>(3_000_000, Op::Sum, None, false, 0)
}
