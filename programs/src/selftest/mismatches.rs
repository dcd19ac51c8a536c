//! Ranks that call different things, on every path: both are told, also where the data of the one would fit the call of the
//! other. The ranks are threads of this process, so that each trial has a communicator of its own, all on one GPU.
#![expect(unsafe_code, reason = "buffers of the device")]

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use comm::node::JobSegment;
use comm::{Comm, CommError, DataType, Op, Path, Settings};

use super::rank::{MOST, Rank};

/// What a rank calls.
#[derive(Clone, Copy, Debug)]
struct Call {
    data_type: DataType,
    count: usize,
    op: Op,
}

/// Rank 0 makes the one call, all others the other one.
#[derive(Clone, Copy, Debug)]
struct Trial {
    ranks: u32,
    path: Path,
    peer_to_peer: bool,
    calls: [Call; 2],
}

/// How soon all must know. The wait itself is longer.
const SOON: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(10);

/// All trials; how many were told apart. Each that was not is said.
pub(super) fn run() -> anyhow::Result<(usize, usize)> {
    let call = |data_type, count, op| Call { data_type, count, op };
    let long = call(DataType::F32, 300_000, Op::Sum);
    let pairs = [
        // An odd count in the last line of eight bytes, and in the last pack of a piece.
        [call(DataType::F32, 99, Op::Sum), call(DataType::F32, 100, Op::Sum)],
        [long, Call { op: Op::Max, ..long }],
        [long, Call { data_type: DataType::I32, ..long }],
        [long, Call { count: long.count - 1, ..long }],
        // Who waits for a rank that waits for the one which is done learns of it, too.
        [call(DataType::F32, 1, Op::Sum), long],
    ];
    let (mut trials, mut failed) = (0, 0);
    for (ranks, path, peer_to_peer) in [
        (2, Path::Ll, true),
        (2, Path::Push, true),
        (2, Path::Copy, true),
        (2, Path::Ring, true),
        (2, Path::Ring, false),
        (3, Path::Ll, true),
        (3, Path::Ring, true),
        (5, Path::Ring, true),
    ] {
        for calls in pairs {
            let trial = Trial { ranks, path, peer_to_peer, calls };
            trials += 1;
            if let Err(error) = expect(&trial) {
                failed += 1;
                println!("FAIL {trial:?}: {error:#}");
            }
        }
    }
    Ok((trials, failed))
}

fn expect(trial: &Trial) -> anyhow::Result<()> {
    let segment = JobSegment::create("mismatches", trial.ranks, trial.ranks)?;
    let ends: Vec<anyhow::Result<CommError>> = std::thread::scope(|scope| {
        let segment = &segment;
        let threads: Vec<_> = (0..trial.ranks).map(|rank| scope.spawn(move || one(segment, trial, rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    });
    let ends = ends.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let all = ends.iter().all(|end| matches!(end, CommError::Mismatch { .. } | CommError::PeerFailed { .. }));
    let some = ends.iter().any(|end| matches!(end, CommError::Mismatch { .. }));
    ensure!(all && some, "{ends:?}");
    Ok(())
}

/// One rank of a trial: what it was told.
fn one(segment: &JobSegment, trial: &Trial, number: u32) -> anyhow::Result<CommError> {
    let mut settings = Settings::of("mismatches", number, trial.ranks);
    settings.timeout = Some(LIMIT);
    settings.peer_to_peer = trial.peer_to_peer;
    let comm = Comm::attach(segment.as_fd(), settings)?;
    let rank = Rank::new(&comm, 0)?;
    rank.call::<f32>(1000, Op::Sum, Some(trial.path), false, 0)?;
    comm.barrier()?;
    let (stream, base) = (rank.stream.get(), rank.buffer.address());
    let Call { data_type, count, op } = trial.calls[usize::from(number != 0)];
    let began = Instant::now();
    // SAFETY: inside the buffer.
    let called = unsafe {
        let (send, recv) = (base as *const _, (base + MOST as u64) as *mut _);
        comm.all_reduce_tuned(send, recv, count, data_type, op, stream.raw(), Some(trial.path), &|_| ())
    };
    stream.synchronize(rank.context.driver())?;
    // Who comes so late that the others have failed by then learns of it at once.
    let Err(error) = called.and_then(|()| comm.async_error()) else { bail!("rank {number} was told nothing") };
    ensure!(began.elapsed() < SOON, "rank {number} was told after {:?}: {error}", began.elapsed());
    Ok(error)
}
