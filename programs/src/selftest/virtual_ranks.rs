//! Two to eight ranks in this process, on one GPU.
#![expect(unsafe_code, reason = "buffers of the device")]

use std::time::Duration;

use anyhow::{bail, ensure};
use comm::node::JobSegment;
use comm::{Comm, DataType, Op, Path, Settings};

use super::rank::{MOST, Rank};
use super::{PATHS, PATHS_OF_MORE, all_types, arithmetic, broadcasts, part};

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
    // Numbers of calls go through where lines are wiped, and where their flags wrap around.
    settings.first_device_call = if n.is_multiple_of(2) { (1 << 23) - 21 } else { (1 << 24) - 21 };
    let comm = Comm::attach(segment.as_fd(), settings)?;
    let rank = Rank::new(&comm, 0)?;
    comm.barrier()?;
    let title = format!("{n} virtual ranks, set-up and one call");
    if !part(&comm, &title, || rank.call::<f32>(1, Op::Sum, Some(Path::Ll), false, 0)) {
        return Ok(false);
    }
    let mut ok = all_types(&rank, if n == 2 { PATHS } else { PATHS_OF_MORE }, &[1, 3, 1000, 70_001]);
    ok &= broadcasts(&rank);
    for (title, count, calls) in [("2000 short calls without waiting", 256, 2000), ("60 long ones", 1 << 20, 60)] {
        ok &= part(&comm, &format!("{n} virtual ranks, {title}"), || ahead(&rank, count, calls));
    }
    if n == 4 {
        ok &= part(&comm, "bf16 is rounded once", || arithmetic::rounding(&rank));
    }
    if let Some(why) = comm.detour() {
        bail!("through the host: {why}");
    }
    comm.barrier()?;
    drop(rank);
    comm.finalize()?;
    Ok(ok)
}

/// Sums of other data in each call, put behind each other without waiting for any; the last of each place is looked at.
fn ahead(rank: &Rank<'_>, count: usize, calls: usize) -> anyhow::Result<()> {
    let (stream, base, size) = (rank.stream.get(), rank.buffer.address(), rank.comm.size());
    // Whole and small, so that sums in any order are exact. Each call sends from the next element on.
    let value = |rank: u32, place: usize| ((7 * place + 13 * rank as usize) % 61) as f32;
    let sent: Vec<f32> = (0..count + calls).map(|place| value(rank.comm.rank(), place)).collect();
    let places = (MOST / (4 * count)).min(calls);
    rank.buffer.write(0, &sent)?;
    for call in 0..calls {
        // SAFETY: inside the buffer.
        unsafe {
            let send = base + 4 * call as u64;
            let recv = base + (MOST + call % places * 4 * count) as u64;
            rank.comm.all_reduce_stream_raw(
                send as *const _,
                recv as *mut _,
                count,
                DataType::F32,
                Op::Sum,
                stream.raw(),
            )?;
        }
    }
    stream.synchronize(rank.context.driver())?;
    rank.comm.async_error()?;
    for call in calls - places..calls {
        let mut result = vec![0f32; count];
        rank.buffer.read(MOST + call % places * 4 * count, &mut result)?;
        let right = |place: usize| (0..size).map(|rank| value(rank, call + place)).sum::<f32>();
        let wrong = result.iter().enumerate().position(|(place, found)| *found != right(place));
        ensure!(wrong.is_none(), "call {call}: element {wrong:?} is wrong");
    }
    Ok(())
}
