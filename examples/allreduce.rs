//! Sums a vector over all ranks, checks every element of the result, and says how long it took.
//!
//! `prun -n 4 allreduce --count 1000000`

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use comm::{Comm, Op};

/// Sums a vector of f32 over all ranks and checks the result exactly.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Elements of the vector
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    count: usize,

    /// Times to sum it; the first is not timed
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
}

/// What `rank` adds at `index`: small whole numbers, so that f32 holds their sum exactly, in any order.
fn element(rank: u32, index: usize) -> f32 {
    ((index + 7 * rank as usize) % 101) as f32
}

fn main() -> Result<()> {
    let Options { count, iterations } = Options::parse();
    let comm = Comm::init().context("cannot join the job")?;
    let (rank, size) = (comm.rank(), comm.size());
    let send: Vec<f32> = (0..count).map(|index| element(rank, index)).collect();
    let mut receive = vec![f32::NAN; count];
    let mut times = Vec::new();
    for iteration in 0..=iterations {
        receive.fill(f32::NAN);
        comm.barrier()?;
        let start = Instant::now();
        comm.all_reduce(&send, &mut receive, Op::Sum)
            .with_context(|| format!("rank {rank} cannot sum {count} elements"))?;
        if iteration > 0 {
            times.push(start.elapsed());
        }
        check(rank, size, &receive)?;
    }
    times.sort_unstable();
    if rank == 0 {
        println!("{}", summary(count, size, times[times.len() / 2]));
    }
    comm.finalize()?;
    Ok(())
}

fn check(rank: u32, size: u32, receive: &[f32]) -> Result<()> {
    for (index, &got) in receive.iter().enumerate() {
        let expected: f32 = (0..size).map(|rank| element(rank, index)).sum();
        if got != expected {
            bail!("rank {rank} got {got} at element {index} of {}, expected {expected}", receive.len());
        }
    }
    Ok(())
}

fn summary(count: usize, size: u32, median: Duration) -> String {
    let bytes = count * size_of::<f32>();
    let algbw_gb_s = bytes as f64 / median.as_secs_f64() / 1e9;
    let busbw_gb_s = algbw_gb_s * 2.0 * f64::from(size - 1) / f64::from(size);
    format!(
        "{count} elements ({bytes} bytes) over {size} ranks, exact: median {:.1} us on rank 0, \
         algbw {algbw_gb_s:.2} GB/s, busbw {busbw_gb_s:.2} GB/s",
        median.as_secs_f64() * 1e6
    )
}
