//! The time of AllReduce between GPUs, beside NCCL's in the same run.
//!
//! `prun -n 2 gpu_perf` prints a table; `prun -n 2 gpu_perf tune` tries shapes. Each variant's result is checked at
//! each size before it is timed. A time is the median over batches of what the slowest rank took for one call; the
//! variants take turns batch by batch. "graph": calls captured in a graph and replayed, so that the host's launches
//! do not count; "eager": launched one by one.
#![allow(unsafe_code, reason = "buffers of the device")]

mod nccl;

use anyhow::ensure;
use comm::cuda::{Address, Context, DeviceBuffer, Driver, Event, Graph, Stream, StreamRef};
use comm::{Comm, DataType, Op, Path, Plan};
use std::time::Instant;

type Call<'a> = Box<dyn Fn(Address, Address, usize, StreamRef) + 'a>;

struct Variant<'a> {
    name: String,
    call: Call<'a>,
    send: Address,
    recv: Address,
}

struct Bench<'a> {
    comm: &'a Comm,
    context: Context,
    stream: Stream,
    start: Event,
    end: Event,
}

const MIB: usize = 1 << 20;

fn value(i: usize, rank: u32) -> f32 {
    ((i * 7 + rank as usize * 13) % 101) as f32
}

fn main() -> anyhow::Result<()> {
    let comm = Comm::init()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |i: usize| arguments.get(i).map(String::as_str);
    let driver = Driver::get()?;
    let context = Context::primary(driver, comm.local_rank() % Context::devices(driver)?)?;
    let _bound = context.bind()?;
    let bench = Bench {
        comm: &comm,
        context,
        stream: Stream::new(context)?,
        start: Event::timed(context)?,
        end: Event::timed(context)?,
    };
    match word(0).unwrap_or("table") {
        "table" => table(&bench, word(1).map_or(Ok(1 << 30), str::parse)?)?,
        "tune" => tune(&bench, word(1).unwrap_or("all"))?,
        "jitter" => jitter(&bench)?,
        other => anyhow::bail!("{other} is none of table, tune, jitter"),
    }
    comm.finalize()?;
    Ok(())
}

fn ours<'a>(comm: &'a Comm, forced: Option<Path>, change: impl Fn(&mut Plan) + 'a) -> Call<'a> {
    Box::new(move |send, recv, count, stream: StreamRef| {
        // SAFETY: buffers of the benchmark that live until the stream is through.
        let done = unsafe {
            let (send, recv) = (send as *const _, recv as *mut _);
            comm.all_reduce_tuned(send, recv, count, DataType::F32, Op::Sum, stream.raw(), forced, &change)
        };
        done.unwrap_or_else(|error| panic!("{error}"));
    })
}

impl Bench<'_> {
    /// Slowest rank's microseconds for one of `calls`.
    fn batch(&self, calls: usize, run: impl Fn()) -> anyhow::Result<f64> {
        let stream = self.stream.get();
        stream.synchronize(self.context.driver())?;
        self.comm.barrier()?;
        self.start.record(stream)?;
        run();
        self.end.record(stream)?;
        stream.synchronize(self.context.driver())?;
        self.comm.async_error()?;
        let mut time = [f64::from(self.end.milliseconds_since(&self.start)?) * 1e3 / calls as f64];
        self.comm.all_reduce_in_place(&mut time, Op::Max)?;
        Ok(time[0])
    }

    fn capture(&self, variant: &Variant<'_>, count: usize, calls: usize) -> anyhow::Result<Graph> {
        let stream = self.stream.get();
        stream.begin_capture(self.context.driver())?;
        for _ in 0..calls {
            (variant.call)(variant.send, variant.recv, count, stream);
        }
        Ok(stream.end_capture(self.context)?)
    }

    /// Runs it once on fresh data and compares the whole result.
    fn check(&self, variant: &Variant<'_>, count: usize) -> anyhow::Result<()> {
        let rank = self.comm.rank();
        let data: Vec<f32> = (0..count).map(|i| value(i, rank)).collect();
        let poison = vec![f32::NAN; count];
        let driver = self.context.driver();
        let bytes = 4 * count;
        let mut result = vec![0f32; count];
        // SAFETY: the variant's buffers are longer than that.
        unsafe {
            driver.copy_to_device(variant.recv, poison.as_ptr().cast(), bytes)?;
            driver.copy_to_device(variant.send, data.as_ptr().cast(), bytes)?;
            self.context.synchronize()?;
            self.comm.barrier()?;
            (variant.call)(variant.send, variant.recv, count, self.stream.get());
            self.stream.get().synchronize(driver)?;
            driver.copy_to_host(result.as_mut_ptr().cast(), variant.recv, bytes)?;
        }
        let size = self.comm.size();
        let right = |i: usize| (0..size).map(|rank| value(i, rank)).sum::<f32>();
        let wrong = (0..count).filter(|i| result[*i] != right(*i)).count();
        let first = (0..count).find(|i| result[*i] != right(*i)).map(|i| (i, result[i], right(i)));
        ensure!(wrong == 0, "{}, {count} elements: {wrong} wrong, first {first:?}", variant.name);
        self.comm.async_error()?;
        self.comm.barrier()?;
        Ok(())
    }

    /// Graph and eager medians of all variants, in turns.
    fn measure(&self, variants: &[Variant<'_>], count: usize, eager: bool) -> anyhow::Result<Vec<(f64, f64)>> {
        let bytes = 4 * count;
        let (calls, replays, batches) = match bytes {
            bytes if bytes <= MIB => (20, 20, 9),
            bytes if bytes <= 16 * MIB => (10, 5, 9),
            bytes if bytes <= 64 * MIB => (5, 3, 7),
            _ => (2, 2, 5),
        };
        let graphs: Vec<Graph> = variants.iter().map(|v| self.capture(v, count, calls)).collect::<Result<_, _>>()?;
        let stream = self.stream.get();
        let mut times = vec![(Vec::new(), Vec::new()); variants.len()];
        for batch in 0..=batches {
            for (i, variant) in variants.iter().enumerate() {
                let graph = self.batch(calls * replays, || {
                    (0..replays).for_each(|_| graphs[i].launch(stream).expect("launch"));
                })?;
                let run =
                    || (0..calls * replays).for_each(|_| (variant.call)(variant.send, variant.recv, count, stream));
                let eager = if eager { self.batch(calls * replays, run)? } else { 0.0 };
                if batch > 0 {
                    times[i].0.push(graph);
                    times[i].1.push(eager);
                }
            }
        }
        Ok(times.into_iter().map(|(graph, eager)| (median(graph), median(eager))).collect())
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn sizes(most: usize) -> impl Iterator<Item = usize> {
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB]
        .into_iter()
        .filter(move |bytes| *bytes <= most)
}

fn table(bench: &Bench<'_>, most: usize) -> anyhow::Result<()> {
    let comm = bench.comm;
    let buffers = DeviceBuffer::new(bench.context, 2 * most)?;
    let (send, recv) = (buffers.address(), buffers.address() + most as u64);
    let first = Instant::now();
    ours(comm, None, |_| ())(send, recv, 256, bench.stream.get());
    bench.context.synchronize()?;
    let set_up = first.elapsed().as_secs_f64() * 1e3;
    let began = Instant::now();
    let nccl = nccl::Nccl::init(comm)?;
    let nccl_set_up = began.elapsed().as_secs_f64() * 1e3;
    if comm.rank() == 0 {
        let name = bench.context.name()?;
        println!("{} x {name}, {}", comm.size(), driver_version());
        println!("set-up: libcomm {set_up:.1} ms, NCCL {nccl_set_up:.1} ms");
        if let Some(why) = comm.detour() {
            println!("through the host: {why}");
        }
    }
    let mut variants = vec![Variant { name: "libcomm".into(), call: ours(comm, None, |_| ()), send, recv }];
    if let Some(nccl) = &nccl {
        let call = nccl.all_reduce()?;
        let call = move |send, recv, count, stream: StreamRef| call(send, recv, count, stream.raw());
        variants.push(Variant { name: format!("NCCL {}", nccl.version), call: Box::new(call.clone()), send, recv });
        match nccl.window(2 * most) {
            Ok(window) => variants.push(Variant {
                name: "registered".into(),
                call: Box::new(call),
                send: window,
                recv: window + most as u64,
            }),
            Err(error) => println!("no registered windows: {error}"),
        }
    }
    if comm.rank() == 0 {
        print!("{:>11} {:>9}", "bytes", "GB/s");
        variants.iter().for_each(|v| print!(" {:>12}", v.name));
        println!(" {:>14}   (us in a graph; eager; NCCL's time / ours)", "ratio");
    }
    for bytes in sizes(most) {
        for variant in &variants {
            bench.check(variant, bytes / 4)?;
        }
        let times = bench.measure(&variants, bytes / 4, true)?;
        if comm.rank() == 0 {
            for (kind, pick) in [("graph", 0), ("eager", 1)] {
                let time = |t: &(f64, f64)| if pick == 0 { t.0 } else { t.1 };
                let own = time(&times[0]);
                print!("{bytes:>11} {:>9.1}", bytes as f64 / own / 1e3);
                times.iter().for_each(|t| print!(" {:>12.2}", time(t)));
                times[1..].iter().for_each(|t| print!(" {:>6.2}x", time(t) / own));
                println!("   {kind}");
            }
        }
    }
    Ok(())
}

fn tune(bench: &Bench<'_>, which: &str) -> anyhow::Result<()> {
    let comm = bench.comm;
    let most = 1024 * MIB;
    let buffers = DeviceBuffer::new(bench.context, 2 * most)?;
    let (send, recv) = (buffers.address(), buffers.address() + most as u64);
    ours(comm, None, |_| ())(send, recv, 256, bench.stream.get());
    let try_all = |bytes: usize, tried: Vec<(String, Call<'_>)>| -> anyhow::Result<()> {
        let in_place = |name: &String| if name.ends_with("in place") { recv } else { send };
        let variants: Vec<Variant<'_>> =
            tried.into_iter().map(|(name, call)| Variant { send: in_place(&name), name, call, recv }).collect();
        // Large ones take the host long; the first stands for all.
        for variant in variants.iter().take(if bytes > 16 * MIB { 1 } else { usize::MAX }) {
            bench.check(variant, bytes / 4)?;
        }
        let times = bench.measure(&variants, bytes / 4, false)?;
        let mut order: Vec<usize> = (0..times.len()).collect();
        order.sort_by(|a, b| times[*a].0.total_cmp(&times[*b].0));
        if comm.rank() == 0 {
            print!("{bytes:>11}");
            order.iter().take(8).for_each(|i| print!("  {} {:.2}", variants[*i].name, times[*i].0));
            println!();
        }
        Ok(())
    };
    if matches!(which, "all" | "ll") {
        for bytes in [1 << 10, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20] {
            let mut tried: Vec<(String, Call<'_>)> = Vec::new();
            for threads in [64u32, 128, 256, 512] {
                for blocks in [1u32, 2, 4, 8, 16, 32, 64, 132] {
                    let units = bytes as u32 / 8;
                    if blocks * threads <= units.next_multiple_of(threads) && blocks * threads * 16 >= units {
                        let change = move |plan: &mut Plan| (plan.blocks, plan.threads) = (blocks, threads);
                        tried.push((format!("ll:{blocks}x{threads}"), ours(comm, Some(Path::Ll), change)));
                    }
                }
            }
            try_all(bytes, tried)?;
        }
    }
    if matches!(which, "all" | "push") {
        for bytes in [64 << 10, 128 << 10, 256 << 10, 512 << 10, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 64 * MIB] {
            let mut tried: Vec<(String, Call<'_>)> = Vec::new();
            for threads in [128u32, 256, 512] {
                for blocks in [16u32, 32, 64, 128, 132] {
                    let at_once = (blocks * threads * 16) as usize;
                    if at_once <= 2 * bytes && at_once * 40 >= bytes {
                        let change = move |plan: &mut Plan| (plan.blocks, plan.threads) = (blocks, threads);
                        tried.push((format!("{blocks}x{threads}"), ours(comm, Some(Path::Push), change)));
                    }
                }
            }
            try_all(bytes, tried)?;
        }
    }
    if matches!(which, "all" | "ring") {
        for bytes in [256 << 10, MIB, 4 * MIB, 16 * MIB, 64 * MIB] {
            let mut tried: Vec<(String, Call<'_>)> = Vec::new();
            for threads in [256u32, 512] {
                for blocks in [8u32, 16, 24, 32, 48, 64] {
                    let change = move |plan: &mut Plan| (plan.blocks, plan.threads) = (blocks, threads);
                    tried.push((format!("{blocks}x{threads}"), ours(comm, Some(Path::Ring), change)));
                }
            }
            try_all(bytes, tried)?;
        }
    }
    if matches!(which, "all" | "copy") {
        for bytes in [16 * MIB, 32 * MIB, 64 * MIB, 128 * MIB, 256 * MIB, 1024 * MIB] {
            let mut tried: Vec<(String, Call<'_>)> = Vec::new();
            for blocks in [32u32, 48, 66, 96, 128] {
                let change = move |plan: &mut Plan| plan.blocks = blocks;
                tried.push((format!("{blocks} blocks"), ours(comm, Some(Path::Copy), change)));
            }
            tried.push(("in place".into(), ours(comm, Some(Path::Copy), |_| ())));
            if bytes <= 64 * MIB {
                tried.push(("pushed".into(), ours(comm, Some(Path::Push), |_| ())));
                tried.push(("pushed in place".into(), ours(comm, Some(Path::Push), |_| ())));
            }
            try_all(bytes, tried)?;
        }
    }
    Ok(())
}

/// 10 000 calls of 64 KiB, each timed by itself.
fn jitter(bench: &Bench<'_>) -> anyhow::Result<()> {
    let comm = bench.comm;
    let count = (64 << 10) / 4;
    let buffers = DeviceBuffer::new(bench.context, 8 * count)?;
    let (send, recv) = (buffers.address(), buffers.address() + 4 * count as u64);
    let mut variants = vec![Variant { name: "libcomm".into(), call: ours(comm, None, |_| ()), send, recv }];
    (variants[0].call)(send, recv, count, bench.stream.get());
    let nccl = nccl::Nccl::init(comm)?;
    if let Some(nccl) = &nccl {
        let call = nccl.all_reduce()?;
        let call: Call<'_> =
            Box::new(move |send, recv, count, stream: StreamRef| call(send, recv, count, stream.raw()));
        variants.push(Variant { name: "NCCL".into(), call, send, recv });
    }
    let events = (0..1001).map(|_| Event::timed(bench.context)).collect::<Result<Vec<_>, _>>()?;
    let stream = bench.stream.get();
    for variant in &variants {
        let mut times = Vec::new();
        for _ in 0..10 {
            stream.synchronize(bench.context.driver())?;
            comm.barrier()?;
            events[0].record(stream)?;
            for event in &events[1..] {
                (variant.call)(send, recv, count, stream);
                event.record(stream)?;
            }
            stream.synchronize(bench.context.driver())?;
            for pair in events.windows(2) {
                times.push(f64::from(pair[1].milliseconds_since(&pair[0])?) * 1e3);
            }
        }
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        if comm.rank() == 0 {
            let name = &variant.name;
            println!(
                "64 KiB, 10 000 calls, {name}: p50 {:.2} p90 {:.2} p99 {:.2} p99.9 {:.2} us; p99 - p50 {:.2}",
                at(0.5),
                at(0.9),
                at(0.99),
                at(0.999),
                at(0.99) - at(0.5)
            );
        }
    }
    Ok(())
}

fn driver_version() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let version = text
        .split_whitespace()
        .find(|word| word.split('.').count() == 3 && word.starts_with(|c: char| c.is_ascii_digit()));
    version.map_or("driver unknown".to_owned(), |version| format!("driver {version}"))
}
