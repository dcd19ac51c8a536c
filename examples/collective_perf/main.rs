//! How long an AllReduce takes, size by size, with every element checked.
//!
//! `prun -n 2 collective_perf -b 4 -e 64M`
//!
//! Prints a line a size: bytes, microseconds (median of the batches), algbw and busbw in 10^9 bytes a second, and the
//! number of wrong elements. `tests/peers/collectives.py` runs it beside the same program for MPI.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use comm::{Comm, Op};

/// Times AllReduce of f32 sums and checks every result.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Smallest message, in bytes (K, M and G are powers of 1024)
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = bytes, default_value = "4")]
    begin: usize,

    /// Largest message
    #[arg(short, long, value_name = "BYTES", value_parser = bytes, default_value = "64M")]
    end: usize,

    /// What each size is times the one before
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,

    /// Only these sizes, separated by commas
    #[arg(long, value_name = "BYTES,...", value_parser = bytes, value_delimiter = ',')]
    sizes: Vec<usize>,

    /// Batches, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    batches: u32,

    /// Milliseconds that a batch should take
    #[arg(long, value_name = "MS", default_value_t = 20.0)]
    batch_ms: f64,

    /// Where buffers come from
    #[arg(long, value_enum, default_value = "malloc")]
    buffers: Buffers,

    /// Reduce into the send buffer
    #[arg(long)]
    in_place: bool,

    /// First measure how fast this machine moves memory: the limit for large messages
    #[arg(long)]
    stream: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Buffers {
    /// As any program gets them
    Malloc,
    /// From comm_alloc
    Alloc,
}

fn bytes(text: &str) -> Result<usize> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        other => bail!("no unit {other:?}; there are K, M and G"),
    };
    let number: usize = digits.parse().with_context(|| format!("{text:?} is no number of bytes"))?;
    Ok(number << unit)
}

/// What `rank` sends at `index`: whole numbers whose sums f32 holds exactly.
fn element(rank: u32, index: usize) -> f32 {
    ((index + 7 * rank as usize) % 101) as f32
}

fn main() -> Result<()> {
    let options = Options::parse();
    let comm = Comm::init().context("cannot join the job")?;
    if options.stream {
        let rate = stream_gb_s(&comm)?;
        if comm.rank() == 0 {
            println!("# stream {rate:.2} GB/s, read and written, all ranks together");
        }
    }
    if comm.rank() == 0 {
        println!("# {:>12} {:>12} {:>9} {:>9} {:>7}", "bytes", "us", "algbw", "busbw", "#wrong");
    }
    let sizes = match options.sizes.is_empty() {
        false => options.sizes.clone(),
        true => std::iter::successors(Some(options.begin), |size| Some(size * options.factor as usize))
            .take_while(|size| *size <= options.end)
            .collect(),
    };
    for size in sizes {
        let count = (size / size_of::<f32>()).max(1);
        let (us, wrong) = measure(&comm, count, &options)?;
        if comm.rank() == 0 {
            let algbw = (4 * count) as f64 / us / 1e3;
            let busbw = algbw * 2.0 * f64::from(comm.size() - 1) / f64::from(comm.size());
            println!("  {:>12} {us:>12.3} {algbw:>9.3} {busbw:>9.3} {wrong:>7}", 4 * count);
        }
        if wrong != 0 {
            bail!("{wrong} wrong elements of {count}");
        }
    }
    comm.finalize()?;
    Ok(())
}

/// The median of the batches, in microseconds a call, and how many elements were wrong on any rank.
fn measure(comm: &Comm, count: usize, options: &Options) -> Result<(f64, u64)> {
    match options.buffers {
        Buffers::Malloc => {
            let (mut send, mut recv) = (vec![0.0; count], vec![0.0; if options.in_place { 0 } else { count }]);
            measure_in(comm, &mut send, &mut recv, options)
        }
        Buffers::Alloc => {
            let mut send = comm.alloc::<f32>(count)?;
            let mut recv = comm.alloc::<f32>(if options.in_place { 0 } else { count })?;
            measure_in(comm, &mut send, &mut recv, options)
        }
    }
}

fn measure_in(comm: &Comm, send: &mut [f32], recv: &mut [f32], options: &Options) -> Result<(f64, u64)> {
    let (rank, size) = (comm.rank(), comm.size());
    let fill = |send: &mut [f32]| send.iter_mut().enumerate().for_each(|(i, x)| *x = element(rank, i));
    fill(send);
    // In place, a maximum: it may be repeated.
    let op = if options.in_place { Op::Max } else { Op::Sum };
    let call = |send: &mut [f32], recv: &mut [f32]| match options.in_place {
        true => comm.all_reduce_in_place(send, op),
        false => comm.all_reduce(send, recv, op),
    };
    for _ in 0..3 {
        call(send, recv)?;
    }
    let begin = Instant::now();
    for _ in 0..3 {
        call(send, recv)?;
    }
    let one = begin.elapsed().as_secs_f64() / 3.0;
    let mut calls = [((options.batch_ms / 1e3 / one) as u64).clamp(3, 20_000)];
    comm.broadcast(&mut calls, 0)?;
    let mut times = Vec::new();
    for _ in 0..options.batches {
        comm.barrier()?;
        let begin = Instant::now();
        for _ in 0..calls[0] {
            call(send, recv)?;
        }
        times.push(begin.elapsed().as_secs_f64() * 1e6 / calls[0] as f64);
    }
    times.sort_by(f64::total_cmp);
    let found = if options.in_place { send } else { recv };
    let wanted = |i: usize| {
        let all = (0..size).map(|rank| element(rank, i));
        if options.in_place { all.fold(0.0, f32::max) } else { all.sum() }
    };
    let mut wrong = [found.iter().enumerate().filter(|(i, x)| **x != wanted(*i)).count() as u64];
    comm.all_reduce_in_place(&mut wrong, Op::Sum)?;
    Ok((times[times.len() / 2], wrong[0]))
}

/// All ranks add two arrays into a third that no cache holds: bytes read and written a second.
fn stream_gb_s(comm: &Comm) -> Result<f64> {
    let count = (64 << 20) / 4 / comm.size() as usize * 2;
    let (a, b) = (vec![1.0f32; count], vec![2.0f32; count]);
    let mut c = vec![0.0f32; count];
    let mut best = f64::MAX;
    for _ in 0..5 {
        comm.barrier()?;
        let begin = Instant::now();
        for ((c, a), b) in c.iter_mut().zip(&a).zip(&b) {
            *c = a + b;
        }
        std::hint::black_box(&mut c);
        comm.barrier()?;
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Ok(3.0 * 4.0 * count as f64 * f64::from(comm.size()) / best / 1e9)
}
