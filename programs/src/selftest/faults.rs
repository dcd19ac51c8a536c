//! Data damaged on purpose: with verification, every trial finds it and says where; a rank that is late harms nothing.
//! The ranks are threads of this process, so that each trial has a communicator of its own, all on one GPU.
#![expect(unsafe_code, reason = "buffers of the device")]

use std::time::Duration;

use anyhow::{bail, ensure};
use comm::fault::{Fault, Kind, Stage};
use comm::node::JobSegment;
use comm::{Comm, CommError, DataType, Op, Path, Settings, Verify};

use super::rank::{MOST, Rank, data};

/// Elements, in 64 chunks that are checked each for itself.
const COUNT: usize = 65_000;
const CHUNK: u64 = 4096;

/// One communicator, three calls, the second of which is struck.
#[derive(Clone, Copy, Debug)]
struct Trial {
    ranks: u32,
    path: Path,
    verify: Verify,
    fault: Option<Fault>,
    timeout: Duration,
    /// Whether the struck call is a broadcast from rank 0.
    broadcast: bool,
}

/// All trials; how many found what they should. Each that did not is said.
pub(super) fn run() -> anyhow::Result<(usize, usize)> {
    // The first time, the driver compiles; later waits are short.
    for ranks in [2, 3] {
        let timeout = Duration::from_secs(60);
        let first = Trial { ranks, path: Path::Ll, verify: Verify::Every, fault: None, timeout, broadcast: false };
        expect(&first)?;
    }
    let mut random = 1u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut trials, mut failed) = (0, 0);
    let mut run = |trial: Trial| {
        trials += 1;
        if let Err(error) = expect(&trial) {
            failed += 1;
            println!("FAIL trial {trials}, {trial:?}: {error:#}");
        }
    };
    for (ranks, path) in [
        (2, Path::Ll),
        (2, Path::Push),
        (2, Path::Copy),
        (2, Path::Ring),
        (3, Path::Ll),
        (3, Path::Ring),
        (5, Path::Ring),
    ] {
        for number in 0..10 {
            let (kind, stage) = match number {
                0..5 => (Kind::Flip, Stage::Chunk),
                5..7 => (Kind::Flip, Stage::Result),
                7..9 => (Kind::Drop, Stage::Chunk),
                _ => (Kind::Delay(30), Stage::Chunk),
            };
            let chunk = next(4 * COUNT as u64 / CHUNK);
            let bit = next(8 * CHUNK) / 128 * 128 + next(64);
            // Lines that are lost are awaited to the end.
            let timeout = Duration::from_millis(if kind == Kind::Drop { 1500 } else { 3000 });
            let fault = Some(Fault { kind, rank: next(u64::from(ranks)) as u32, call: 2, chunk, bit, stage });
            run(Trial { ranks, path, verify: Verify::Every, fault, timeout, broadcast: false });
        }
    }
    // What arrives from the root is changed, or what it sends is lost.
    for (ranks, path) in [(2, Path::Ll), (2, Path::Push), (2, Path::Ring), (3, Path::Ll), (3, Path::Ring)] {
        for (kind, rank, stage) in
            [(Kind::Flip, ranks - 1, Stage::Chunk), (Kind::Flip, 1, Stage::Result), (Kind::Drop, 0, Stage::Chunk)]
        {
            let (chunk, bit) = (next(60), 64 * next(8 * CHUNK / 64));
            let fault = Some(Fault { kind, rank, call: 2, chunk, bit, stage });
            let timeout = Duration::from_millis(1500);
            run(Trial { ranks, path, verify: Verify::Every, fault, timeout, broadcast: true });
        }
    }
    // Against the host: also what all ranks have alike.
    for ranks in [2, 3] {
        for path in [Path::Ll, Path::Ring] {
            let timeout = Duration::from_secs(5);
            run(Trial { ranks, path, verify: Verify::Full, fault: None, timeout, broadcast: ranks == 2 });
        }
    }
    // A pair that refuses, and a path that changes or loses what kernels store, or changes what the copy engine brings, at its
    // proof: all take the same way through the host.
    for (kind, stage) in [
        (Kind::Refuse, Stage::Chunk),
        (Kind::Flip, Stage::Chunk),
        (Kind::Drop, Stage::Chunk),
        (Kind::Flip, Stage::Result),
    ] {
        let fault = Some(Fault { kind, rank: 1, call: 0, chunk: 0, bit: 0, stage });
        let timeout = Duration::from_secs(5);
        run(Trial { ranks: 2, path: Path::Ll, verify: Verify::Off, fault, timeout, broadcast: true });
    }
    Ok((trials, failed))
}

/// Runs a trial and looks whether its ranks say what they should.
fn expect(trial: &Trial) -> anyhow::Result<()> {
    let segment = JobSegment::create("faults", trial.ranks, trial.ranks)?;
    let ends: Vec<anyhow::Result<Option<CommError>>> = std::thread::scope(|scope| {
        let segment = &segment;
        let threads: Vec<_> = (0..trial.ranks).map(|rank| scope.spawn(move || one(segment, trial, rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    });
    let ends = ends.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let Some(fault) = trial.fault.filter(|fault| matches!(fault.kind, Kind::Flip | Kind::Drop) && fault.call != 0)
    else {
        ensure!(ends.iter().all(Option::is_none), "{ends:?}");
        return Ok(());
    };
    ensure!(ends.iter().all(Option::is_some), "a rank has found nothing: {ends:?}");
    let place = fault.chunk + fault.bit / 8 / CHUNK;
    let found = ends.iter().flatten().any(|end| match (end, fault.kind, fault.stage) {
        // A broadcast is compared with what the root has.
        (CommError::ChunkCorrupt { chunk, .. }, Kind::Flip, Stage::Result) if trial.broadcast => *chunk == place,
        (CommError::ResultsDiffer { chunk, .. }, Kind::Flip, Stage::Result) => *chunk == place,
        // Where more than two compare, the wrong result may be seen before what made it so.
        (CommError::ResultsDiffer { chunk, .. }, ..) if trial.ranks > 2 => *chunk == place,
        (CommError::ChunkCorrupt { to, chunk, .. }, Kind::Flip, _) => *to == fault.rank && *chunk == place,
        // A chunk of the copy engine is all of the message.
        (CommError::ChunkCorrupt { from, chunk, .. }, Kind::Drop, _) => {
            *from == fault.rank && (*chunk == place || trial.path == Path::Copy)
        }
        // Lines that carry their flag are awaited; where a chain of ranks waits, any of them may be named first.
        (CommError::DeviceTimeout { rank, .. }, Kind::Drop, _) => *rank == fault.rank || trial.ranks > 2,
        _ => false,
    });
    ensure!(found, "{ends:?}");
    Ok(())
}

/// One rank of a trial: how it ended, once its calls were right as long as they succeeded.
fn one(segment: &JobSegment, trial: &Trial, number: u32) -> anyhow::Result<Option<CommError>> {
    let mut settings = Settings::of("faults", number, trial.ranks);
    settings.timeout = Some(trial.timeout);
    settings.verify = trial.verify;
    settings.fault = trial.fault;
    let comm = Comm::attach(segment.as_fd(), settings)?;
    let rank = Rank::new(&comm, 0)?;
    for call in 1..=3u64 {
        let sends: Vec<Vec<f32>> = (0..trial.ranks).map(|rank| data(rank, COUNT, 31 * call)).collect();
        match checked_call(&rank, trial, call == 2, &sends) {
            Ok(true) => {}
            Ok(false) => bail!("rank {number}: call {call} is wrong and nobody says so"),
            Err(Some(error)) => return Ok(Some(error)),
            Err(None) => bail!("rank {number}: CUDA failed"),
        }
    }
    let refused = trial.fault.is_some_and(|fault| fault.call == 0);
    ensure!(comm.detour().is_some() == refused, "rank {number}: {:?}", comm.detour());
    drop(rank);
    comm.finalize()?;
    Ok(None)
}

/// Whether the result is right, or why there is none.
fn checked_call(rank: &Rank<'_>, trial: &Trial, struck: bool, sends: &[Vec<f32>]) -> Result<bool, Option<CommError>> {
    let broadcast = trial.broadcast && struck;
    let driver_error = |_| None;
    let (comm, stream, base) = (rank.comm, rank.stream.get(), rank.buffer.address());
    rank.buffer.write(0, &sends[comm.rank() as usize]).map_err(driver_error)?;
    // SAFETY: inside the buffer.
    let called = unsafe {
        let (send, recv) = (base as *const _, (base + MOST as u64) as *mut _);
        match broadcast {
            true => comm.broadcast_tuned(base as *mut _, COUNT, DataType::F32, 0, stream.raw(), Some(trial.path)),
            false => comm.all_reduce_tuned(
                send,
                recv,
                COUNT,
                DataType::F32,
                Op::Sum,
                stream.raw(),
                Some(trial.path),
                &|_| (),
            ),
        }
    };
    called.map_err(Some)?;
    stream.synchronize(rank.context.driver()).map_err(driver_error)?;
    comm.async_error().map_err(Some)?;
    let mut result = vec![0f32; COUNT];
    rank.buffer.read(if broadcast { 0 } else { MOST }, &mut result).map_err(driver_error)?;
    // Whole sixteenths: sums in any order are exact.
    let sum = |i: usize| sends.iter().map(|send| send[i]).sum::<f32>();
    let right = |i: usize| if broadcast { sends[0][i] } else { sum(i) };
    let is_right = (0..COUNT).all(|i| result[i] == right(i));
    // The root of a broadcast is through when its data never arrives: whoever misses it is to say so first.
    if broadcast && comm.rank() == 0 && trial.fault.is_some_and(|fault| fault.kind == Kind::Drop) {
        std::thread::sleep(Duration::from_millis(300));
    }
    // Who has found something does not come; who has not must not leave before.
    comm.barrier().map_err(Some)?;
    Ok(is_right)
}
