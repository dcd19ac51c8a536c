//! What the GPU path promises, tried on this machine. Under prun, two ranks on two GPUs:
//!
//! - `gpu_selftest` all types, operations, paths, odd lengths and alignments, in place and not; graphs between eager
//!   calls; streams that take turns
//! - `gpu_selftest mismatch` the ranks call different things
//! - `gpu_selftest killed` rank 1 is killed in the middle of calls
//! - `gpu_selftest late` rank 1 comes two seconds late
//!
//! Alone: `gpu_selftest virtual` runs 2 to 8 ranks in this process on one GPU. Each case prints a line; the exit
//! status is 1 if any failed.
#![allow(unsafe_code, reason = "buffers of the device")]

use anyhow::{Context as _, ensure};
use comm::cuda::{Context, DeviceBuffer, Driver, Stream};
use comm::node::JobSegment;
use comm::{Comm, CommError, Element, Op, Path, Settings, reference};
use half::{bf16, f16};
use std::time::{Duration, Instant};

/// Values of a type that no operation makes ambiguous, and that overflow where the type can.
trait Sample: Element + PartialEq {
    fn sample(seed: u64) -> Self;
    fn same(self, other: Self) -> bool;
}

macro_rules! samples {
    ($($type:ty: $make:expr, $same:expr;)*) => {$(
        impl Sample for $type {
            fn sample(seed: u64) -> Self { $make(seed) }
            fn same(self, other: Self) -> bool { $same(self, other) }
        }
    )*};
}

fn signed(seed: u64) -> f64 {
    (seed % 2001) as f64 / 16.0 - 62.5
}

samples! {
    f64: signed, |a: f64, b: f64| a.to_bits() == b.to_bits();
    f32: |seed| signed(seed) as f32, |a: f32, b: f32| a.to_bits() == b.to_bits();
    f16: |seed| f16::from_f64(signed(seed)), |a: f16, b: f16| a.to_bits() == b.to_bits();
    bf16: |seed| bf16::from_f64(signed(seed)), |a: bf16, b: bf16| a.to_bits() == b.to_bits();
    i8: |seed: u64| (seed % 251) as i8, |a, b| a == b;
    u8: |seed: u64| (seed % 251) as u8, |a, b| a == b;
    i32: |seed: u64| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as i32, |a, b| a == b;
    u32: |seed: u64| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32, |a, b| a == b;
    i64: |seed: u64| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64, |a, b| a == b;
    u64: |seed: u64| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), |a, b| a == b;
}

fn data<T: Sample>(rank: u32, count: usize, salt: u64) -> Vec<T> {
    (0..count as u64)
        .map(|i| T::sample((i + 1).wrapping_mul(2_654_435_761).wrapping_add(u64::from(rank) * 977 + salt)))
        .collect()
}

struct Rank<'a> {
    comm: &'a Comm,
    context: Context,
    stream: Stream,
    buffer: DeviceBuffer,
}

const MOST: usize = 40 << 20;

impl Rank<'_> {
    fn new(comm: &Comm, device: u32) -> anyhow::Result<Rank<'_>> {
        let context = Context::primary(Driver::get()?, device)?;
        let buffer = DeviceBuffer::new(context, 2 * MOST)?;
        Ok(Rank { comm, context, stream: Stream::new(context)?, buffer })
    }

    /// One call; `offset` elements off the allocation's start. The right result is the oracle's, bit for bit.
    fn call<T: Sample>(
        &self,
        count: usize,
        op: Op,
        path: Option<Path>,
        in_place: bool,
        offset: usize,
    ) -> anyhow::Result<()> {
        let size = self.comm.size();
        let sends: Vec<Vec<T>> = (0..size).map(|rank| data(rank, count, op as u64)).collect();
        let bytes = count * size_of::<T>();
        let send_at = offset * size_of::<T>();
        let recv_at = if in_place { send_at } else { MOST + 2 * offset * size_of::<T>() };
        // Poison, also behind the end.
        if !in_place {
            self.buffer.write(recv_at, &vec![0xa5u8; bytes + 64])?;
        }
        self.buffer.write(send_at, &sends[self.comm.rank() as usize])?;
        let before = self.read_bytes(recv_at + bytes)?;
        // SAFETY: inside the buffer, waited for below.
        unsafe {
            let base = self.buffer.address();
            let (send, recv) = ((base + send_at as u64) as *const _, (base + recv_at as u64) as *mut _);
            self.comm.all_reduce_tuned(send, recv, count, T::TYPE, op, self.stream.get().raw(), path, &|_| ())?;
        }
        self.stream.get().synchronize(self.context.driver())?;
        self.comm.async_error()?;
        let mut result = vec![T::sample(0); count];
        self.buffer.read(recv_at, &mut result)?;
        ensure!(self.read_bytes(recv_at + bytes)? == before, "wrote behind the end");
        // Rings of more than two round at each hop.
        let exact =
            size == 2 || path != Some(Path::Ring) || !matches!(T::TYPE, comm::DataType::F16 | comm::DataType::BF16);
        let exact = exact
            && (size == 2 || path != Some(Path::Ring) || !matches!(T::TYPE, comm::DataType::F32 | comm::DataType::F64));
        let right = if exact { reference::all_reduce(&sends, op) } else { result.clone() };
        let wrong = result.iter().zip(&right).position(|(a, b)| !a.same(*b));
        let hash = result.iter().zip(1u64..).fold(0u64, |hash, (x, i)| {
            // SAFETY: plain data.
            let bytes = unsafe { std::slice::from_raw_parts((&raw const *x).cast::<u8>(), size_of::<T>()) };
            bytes.iter().fold(hash ^ i, |h, b| h.wrapping_mul(0x100_0000_01b3) ^ u64::from(*b))
        });
        let mut hashes = [hash, !hash];
        self.comm.all_reduce_in_place(&mut hashes, Op::Min)?;
        ensure!(wrong.is_none(), "element {wrong:?} of {count} is wrong");
        ensure!(hashes == [hash, !hash], "the ranks' results differ");
        Ok(())
    }

    fn read_bytes(&self, at: usize) -> anyhow::Result<[u8; 32]> {
        let mut bytes = [0; 32];
        self.buffer.read(at, &mut bytes)?;
        Ok(bytes)
    }

    fn all_ops<T: Sample>(&self, path: Option<Path>, counts: &[usize]) -> anyhow::Result<()> {
        for op in [Op::Sum, Op::Prod, Op::Min, Op::Max, Op::Avg] {
            let integer_ring = path == Some(Path::Ring) && op == Op::Avg && self.comm.size() > 2;
            if integer_ring
                && !matches!(
                    T::TYPE,
                    comm::DataType::F16 | comm::DataType::BF16 | comm::DataType::F32 | comm::DataType::F64
                )
            {
                continue;
            }
            for (n, count) in counts.iter().enumerate() {
                for in_place in [false, true] {
                    let offset = n % 3;
                    let what = || format!("{} {op} x {count}, in place {in_place}, offset {offset}", T::TYPE);
                    self.call::<T>(*count, op, path, in_place, offset).with_context(what)?;
                }
            }
        }
        Ok(())
    }

    fn all_types(&self, path: Option<Path>, counts: &[usize]) -> anyhow::Result<()> {
        self.all_ops::<f32>(path, counts)?;
        self.all_ops::<f64>(path, counts)?;
        self.all_ops::<f16>(path, counts)?;
        self.all_ops::<bf16>(path, counts)?;
        self.all_ops::<i8>(path, counts)?;
        self.all_ops::<u8>(path, counts)?;
        self.all_ops::<i32>(path, counts)?;
        self.all_ops::<u32>(path, counts)?;
        self.all_ops::<i64>(path, counts)?;
        self.all_ops::<u64>(path, counts)
    }

    /// Graphs of three paths, replayed between eager calls, each result checked.
    fn graphs(&self) -> anyhow::Result<()> {
        let (driver, stream, base) = (self.context.driver(), self.stream.get(), self.buffer.address());
        let counts = [256usize, 200_000, 1_000_000, 5_000_000];
        let paths = [Path::Ll, Path::Ll128, Path::Push, Path::Copy];
        let launch = |i: usize| {
            // SAFETY: inside the buffer.
            unsafe {
                let (send, recv) = (base as *const _, (base + MOST as u64) as *mut _);
                let (t, op) = (comm::DataType::F32, Op::Sum);
                self.comm.all_reduce_tuned(send, recv, counts[i], t, op, stream.raw(), Some(paths[i]), &|_| ())
            }
        };
        launch(0)?;
        let graphs = (0..4)
            .map(|i| {
                stream.begin_capture(driver)?;
                for k in [i, (i + 1) % 4, i] {
                    launch(k)?;
                }
                Ok(stream.end_capture(self.context)?)
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        for round in 0..40u64 {
            let sends: Vec<Vec<f32>> = (0..2).map(|rank| data(rank, counts[3], round)).collect();
            self.buffer.write(0, &sends[self.comm.rank() as usize])?;
            self.buffer.fill(MOST, 4 * counts[3], 0xff)?;
            let i = round as usize % 4;
            graphs[i].launch(stream)?;
            launch((round / 4) as usize % 4)?;
            graphs[i].launch(stream)?;
            stream.synchronize(driver)?;
            self.comm.async_error()?;
            let mut result = vec![0f32; counts[i].max(counts[(i + 1) % 4])];
            self.buffer.read(MOST, &mut result)?;
            let wrong = (0..result.len()).find(|k| result[*k] != sends[0][*k] + sends[1][*k]);
            ensure!(wrong.is_none(), "round {round}: element {wrong:?}");
        }
        Ok(())
    }

    /// Calls alternate between two streams without events; each works on what the one before made.
    fn streams(&self) -> anyhow::Result<()> {
        let other = Stream::new(self.context)?;
        let (driver, base) = (self.context.driver(), self.buffer.address());
        let ones = vec![1f32; 100_000];
        self.buffer.write(0, &ones)?;
        for round in 0..20 {
            let stream = if round % 2 == 0 { self.stream.get() } else { other.get() };
            // SAFETY: inside the buffer.
            unsafe {
                self.comm.all_reduce_stream_raw(
                    base as *const _,
                    base as *mut _,
                    ones.len(),
                    comm::DataType::F32,
                    Op::Sum,
                    stream.raw(),
                )?
            };
        }
        self.stream.get().synchronize(driver)?;
        other.get().synchronize(driver)?;
        let mut result = vec![0f32; ones.len()];
        self.buffer.read(0, &mut result)?;
        ensure!(result.iter().all(|x| *x == 1_048_576.0), "{} instead of 2^20", result[0]);
        // The last stream goes away before the next call.
        Ok(self.comm.barrier()?)
    }
}

/// Prints how a case went, once for all ranks.
fn report(comm: &Comm, case: &str, began: Instant, result: anyhow::Result<()>) -> bool {
    let ok = result.is_ok();
    if let Err(error) = &result {
        println!("FAIL {case}, rank {}: {error:#}", comm.rank());
    } else if comm.rank() == 0 {
        println!("ok   {case} ({} ms)", began.elapsed().as_millis());
    }
    ok
}

const COUNTS: &[usize] = &[1, 2, 3, 7, 33, 1000, 4097, 70_001];
const BIG: &[usize] = &[3_000_001];

fn cases(rank: &Rank<'_>, paths: &[(&str, Option<Path>)], counts: &[usize]) -> bool {
    let mut ok = true;
    for (name, path) in paths {
        let began = Instant::now();
        ok &= report(
            rank.comm,
            &format!("{} ranks, {name}: types, ops, lengths", rank.comm.size()),
            began,
            rank.all_types(*path, counts),
        );
    }
    ok
}

const PATHS: &[(&str, Option<Path>)] = &[
    ("auto", None),
    ("ll", Some(Path::Ll)),
    ("ll128", Some(Path::Ll128)),
    ("push", Some(Path::Push)),
    ("copy", Some(Path::Copy)),
    ("ring", Some(Path::Ring)),
];

fn main() -> anyhow::Result<()> {
    let mode = std::env::args().nth(1).unwrap_or_default();
    if mode == "virtual" {
        return virtual_ranks();
    }
    let comm = Comm::init()?;
    let device = comm.local_rank() % Context::devices(Driver::get()?)?;
    let rank = Rank::new(&comm, device)?;
    let ok = match mode.as_str() {
        "" => {
            let mut ok = cases(&rank, PATHS, COUNTS);
            if let Some(why) = comm.staged_because() {
                println!("rank {}: through the host: {why}", comm.rank());
            } else {
                for (name, path) in PATHS {
                    let began = Instant::now();
                    let result = rank.all_ops::<f32>(*path, BIG).and_then(|()| rank.all_ops::<bf16>(*path, BIG));
                    ok &= report(&comm, &format!("{name}: 3 000 001 elements"), began, result);
                }
                let began = Instant::now();
                ok &= report(&comm, "graphs between eager calls", began, rank.graphs());
                let began = Instant::now();
                ok &= report(&comm, "two streams take turns", began, rank.streams());
            }
            ok
        }
        "mismatch" => report(&comm, "mismatched calls name both", Instant::now(), mismatch(&rank)),
        "killed" => report(&comm, "a killed rank", Instant::now(), killed(&rank)),
        "late" => report(&comm, "a late rank", Instant::now(), late(&rank)),
        other => anyhow::bail!("{other} is no mode"),
    };
    drop(rank);
    if ok && matches!(mode.as_str(), "" | "late") {
        comm.finalize()?;
    }
    std::process::exit(i32::from(!ok));
}

fn mismatch(rank: &Rank<'_>) -> anyhow::Result<()> {
    let (comm, base) = (rank.comm, rank.buffer.address());
    let call = |count: usize, op: Op| {
        // SAFETY: inside the buffer.
        unsafe {
            comm.all_reduce_stream_raw(
                base as *const _,
                base as *mut _,
                count,
                comm::DataType::F32,
                op,
                rank.stream.get().raw(),
            )
        }
    };
    call(100, Op::Sum)?;
    rank.stream.get().synchronize(rank.context.driver())?;
    let began = Instant::now();
    call(100, if comm.rank() == 0 { Op::Sum } else { Op::Max })?;
    rank.stream.get().synchronize(rank.context.driver())?;
    let error = comm.async_error().err().context("no error")?;
    ensure!(matches!(error, CommError::Mismatch { .. } | CommError::PeerFailed { .. }), "{error}");
    ensure!(began.elapsed() < Duration::from_secs(1), "took {:?}", began.elapsed());
    println!("rank {} after {:?}: {error}", comm.rank(), began.elapsed());
    ensure!(call(100, Op::Sum).is_err(), "a later call went through");
    usable(rank)
}

fn killed(rank: &Rank<'_>) -> anyhow::Result<()> {
    let (comm, base, driver) = (rank.comm, rank.buffer.address(), rank.context.driver());
    // SAFETY: prun ends us when rank 1 is gone; we want to see what the library says first.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    for round in 0..1000 {
        if comm.rank() == 1 && round == 500 {
            // SAFETY: no preconditions.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let began = Instant::now();
        let count = [1000, 300_000, 3_000_000, 9_000_000][round % 4];
        // SAFETY: inside the buffer.
        let called = unsafe {
            let recv = (base + MOST as u64) as *mut _;
            comm.all_reduce_stream_raw(
                base as *const _,
                recv,
                count,
                comm::DataType::F32,
                Op::Sum,
                rank.stream.get().raw(),
            )
        };
        rank.stream.get().synchronize(driver)?;
        if let Err(error) = called.and_then(|()| comm.async_error()) {
            let took = began.elapsed();
            println!("rank 0 after {took:?}, round {round}: {error}");
            ensure!(took < Duration::from_secs(1), "took {took:?}");
            return usable(rank);
        }
    }
    anyhow::bail!("no error in 1000 rounds")
}

fn late(rank: &Rank<'_>) -> anyhow::Result<()> {
    rank.call::<f32>(1000, Op::Sum, None, false, 0)?;
    if rank.comm.rank() == 1 {
        std::thread::sleep(Duration::from_secs(2));
    }
    rank.call::<f32>(1000, Op::Sum, None, false, 0)?;
    rank.call::<f32>(3_000_000, Op::Sum, None, false, 0)
}

/// The context still works.
fn usable(rank: &Rank<'_>) -> anyhow::Result<()> {
    rank.buffer.fill(0, 1 << 20, 7)?;
    let mut back = vec![0u8; 1 << 20];
    rank.buffer.read(0, &mut back)?;
    ensure!(back.iter().all(|byte| *byte == 7), "the context is of no use any more");
    Ok(())
}

fn virtual_ranks() -> anyhow::Result<()> {
    let mut ok = true;
    for n in 2..=8u32 {
        let segment = JobSegment::create("virtual", n, n)?;
        let all_ok = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n)
                .map(|number| {
                    let segment = &segment;
                    scope.spawn(move || -> anyhow::Result<bool> {
                        let mut settings = Settings::of("virtual", number, n);
                        settings.timeout = Some(Duration::from_secs(60)); // the first time, the driver compiles all types
                        let comm = Comm::attach(segment.as_fd(), settings)?;
                        let rank = Rank::new(&comm, 0)?;
                        comm.barrier()?;
                        let began = Instant::now();
                        let first = rank.call::<f32>(1, Op::Sum, Some(Path::Ll), false, 0);
                        if !report(&comm, &format!("{n} virtual ranks, set-up and one call"), began, first) {
                            return Ok(false);
                        }
                        let ok =
                            cases(&rank, &[("ll", Some(Path::Ll)), ("ring", Some(Path::Ring))], &[1, 3, 1000, 70_001]);
                        if let Some(why) = comm.staged_because() {
                            anyhow::bail!("staged: {why}");
                        }
                        comm.barrier()?;
                        drop(rank);
                        comm.finalize()?;
                        Ok(ok)
                    })
                })
                .collect();
            threads.into_iter().all(|thread| match thread.join() {
                Ok(Ok(ok)) => ok,
                Ok(Err(error)) => {
                    println!("FAIL {n} virtual ranks: {error:#}");
                    false
                }
                Err(_) => false,
            })
        });
        ok &= all_ok;
    }
    std::process::exit(i32::from(!ok));
}
