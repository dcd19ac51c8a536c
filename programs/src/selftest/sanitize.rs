//! Every kernel once or a few times, in one process: what `compute-sanitizer` runs (`tests/gpu/sanitize.sh`). The ranks are
//! threads: two on two GPUs where there are two, since the copy engine waits for kernels of its GPU under that tool; three on
//! one.

use std::time::Duration;

use comm::cuda::{Context, Driver};
use comm::node::JobSegment;
use comm::{Comm, Op, Path, Settings, Verify};

use super::rank::Rank;
use super::{broadcast, part};

/// Two ranks by every path, three by those that they have.
pub(super) fn run(verify: Verify) -> anyhow::Result<bool> {
    let mut ok = true;
    for n in [2u32, 3] {
        let segment = JobSegment::create("sanitize", n, n)?;
        ok &= std::thread::scope(|scope| {
            let segment = &segment;
            let threads: Vec<_> = (0..n).map(|number| scope.spawn(move || one(segment, verify, number, n))).collect();
            threads.into_iter().all(|thread| match thread.join() {
                Ok(Ok(ok)) => ok,
                Ok(Err(error)) => {
                    println!("FAIL {n} ranks: {error:#}");
                    false
                }
                Err(_) => false,
            })
        });
    }
    Ok(ok)
}

fn one(segment: &JobSegment, verify: Verify, number: u32, n: u32) -> anyhow::Result<bool> {
    let mut settings = Settings::of("sanitize", number, n);
    settings.timeout = Some(Duration::from_secs(20));
    settings.verify = verify;
    let comm = Comm::attach(segment.as_fd(), settings)?;
    let device = if n == 2 { number % Context::devices(Driver::get()?)? } else { 0 };
    let rank = Rank { meets: true, ..Rank::new(&comm, device)? };
    let pair = [Path::Ll, Path::Push, Path::Ring, Path::ZeroCopy, Path::Copy];
    let paths = if n == 2 { &pair[..] } else { &[Path::Ll, Path::Ring] };
    let mut ok = true;
    for path in paths {
        ok &= part(&comm, &format!("{n} ranks, {path:?}"), || {
            if *path == Path::ZeroCopy {
                return rank.registered(&[1, 1000, 70_001]);
            }
            for count in [1, 3, 1000, 70_001] {
                rank.call::<f32>(count, Op::Sum, Some(*path), false, 0)?;
                rank.call::<f32>(count, Op::Max, Some(*path), true, 1)?;
                rank.call::<i8>(count, Op::Avg, Some(*path), false, 1)?;
            }
            Ok(())
        });
    }
    for (name, path) in broadcast::PATHS {
        ok &= part(&comm, &format!("{n} ranks, broadcast, {name}"), || rank.broadcasts(path, &[1, 3, 1000, 70_001]));
    }
    comm.barrier()?;
    drop(rank);
    comm.finalize()?;
    Ok(ok)
}
