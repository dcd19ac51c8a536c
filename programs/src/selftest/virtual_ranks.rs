//! Two to eight ranks in this process, on one GPU.

use std::time::Duration;

use anyhow::bail;
use comm::node::JobSegment;
use comm::{Comm, Op, Path, Settings};

use super::rank::Rank;
use super::{PATHS, all_types, arithmetic, broadcasts, part};

/// All numbers of ranks, one after the other.
pub(super) fn run() -> anyhow::Result<bool> {
    let mut ok = true;
    for n in 2..=8u32 {
        let segment = JobSegment::create("virtual", n, n)?;
        ok &= std::thread::scope(|scope| {
            let segment = &segment;
            let threads: Vec<_> = (0..n).map(|number| scope.spawn(move || one(segment, number, n))).collect();
            threads.into_iter().all(|thread| match thread.join() {
                Ok(Ok(ok)) => ok,
                Ok(Err(error)) => {
                    println!("FAIL {n} virtual ranks: {error:#}");
                    false
                }
                Err(_) => false,
            })
        });
    }
    Ok(ok)
}

fn one(segment: &JobSegment, number: u32, n: u32) -> anyhow::Result<bool> {
    let mut settings = Settings::of("virtual", number, n);
    settings.timeout = Some(Duration::from_secs(60)); // the first time, the driver compiles all types
    // Not by their numbers, as it is where links differ: rank 0, then the odd ones, then the others.
    settings.ring = Some((0..1).chain((1..n).step_by(2)).chain((2..n).step_by(2)).collect());
    let comm = Comm::attach(segment.as_fd(), settings)?;
    let rank = Rank::new(&comm, 0)?;
    comm.barrier()?;
    let title = format!("{n} virtual ranks, set-up and one call");
    if !part(&comm, &title, || rank.call::<f32>(1, Op::Sum, Some(Path::Ll), false, 0)) {
        return Ok(false);
    }
    let few = [("auto", None), ("ll", Some(Path::Ll)), ("ring", Some(Path::Ring))];
    let mut ok = all_types(&rank, if n == 2 { PATHS } else { &few }, &[1, 3, 1000, 70_001]);
    ok &= broadcasts(&rank);
    if n == 4 {
        ok &= part(&comm, "bf16 is rounded once", || arithmetic::rounding(&rank));
    }
    if let Some(why) = comm.staged_because() {
        bail!("through the host: {why}");
    }
    comm.barrier()?;
    drop(rank);
    comm.finalize()?;
    Ok(ok)
}
