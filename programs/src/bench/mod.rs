//! What `prun bench` runs in each rank: measures one size after the other, as rank 0 is asked to.
//!
//! [`wire`] is what rank 0 hears and says; [`collective`] the calls; [`data`] what is sent and what must come of it;
//! [`memory`] buffers of the host, and [`host`] the times of calls on them; [`device`] those of calls between GPUs, with NCCL
//! ([`nccl`]) in turns.

pub mod collective;
pub mod data;
pub mod device;
pub mod host;
pub mod memory;
pub mod nccl;
pub mod wire;

use std::io::{BufRead, Write};
use std::time::Instant;

use anyhow::Context;
use comm::{Comm, Op};

use host::Sweep;
use wire::{Answer, Ask, Entry, Hello, Job, SetUp};

/// prun, started as a rank of `prun bench`, has this first argument; the second is a [`Job`]. No program has this name.
pub const WORD: &str = "@bench-rank";

/// No size is asked for any more.
const END: u64 = u64::MAX;

/// Runs a rank: prun's exit code.
pub fn run(job: &str) -> u8 {
    match serve(job) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: cannot measure\n  cause: {error:#}");
            1
        }
    }
}

fn serve(job: &str) -> anyhow::Result<()> {
    let job: Job = serde_json::from_str(job).context("the job")?;
    let began = Instant::now();
    let comm = Comm::init().context("cannot join the job")?;
    let mut set_up = [began.elapsed().as_secs_f64() * 1e3];
    comm.all_reduce_in_place(&mut set_up, Op::Max)?;
    let set_up = vec![SetUp { what: "libcomm".into(), ms: set_up[0] }];
    match &job.device {
        None => {
            let mut sweep = Sweep::new(&job, comm.size() as usize);
            say(&comm, &Hello { set_up, notes: Vec::new() })?;
            answer(&comm, |count| Ok(host::measure(&comm, &job, count, &mut sweep)?))?;
        }
        Some(how) => {
            let (bench, more, notes) = device::Bench::new(&comm, &job, how)?;
            say(&comm, &Hello { set_up: set_up.into_iter().chain(more).collect(), notes })?;
            answer(&comm, |count| bench.measure(count))?;
        }
    }
    comm.finalize()?;
    Ok(())
}

/// Answers until nothing more is asked.
fn answer(comm: &Comm, mut measure: impl FnMut(usize) -> anyhow::Result<Vec<Entry>>) -> anyhow::Result<()> {
    while let Some(count) = next(comm)? {
        let entries = measure(count as usize)?;
        say(comm, &Answer { count, entries })?;
    }
    Ok(())
}

/// What rank 0 is asked for next, told to all.
fn next(comm: &Comm) -> anyhow::Result<Option<u64>> {
    let mut count = [END];
    if comm.rank() == 0 {
        let mut line = String::new();
        // The end of the input ends the job, and so does a line that was cut.
        if std::io::stdin().lock().read_line(&mut line)? != 0 && line.ends_with('\n') {
            count[0] = serde_json::from_str::<Ask>(&line).context("the next size")?.count;
        }
    }
    comm.broadcast(&mut count, 0)?;
    Ok(Some(count[0]).filter(|count| *count != END))
}

fn say(comm: &Comm, what: &impl serde::Serialize) -> anyhow::Result<()> {
    if comm.rank() == 0 {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(what)?)?;
        out.flush()?;
    }
    Ok(())
}
