//! Measures AllReduce and broadcast between GPUs: libcomm and NCCL in one process, batch by batch in turns.
//!
//! A time is what the slowest rank's GPU took for a batch, by events in its stream. With graphs, calls are captured and
//! replayed, so that the host's launches do not count.
#![expect(unsafe_code, reason = "buffers of the device, and libraries that take their addresses")]

use std::time::Instant;

use anyhow::{bail, ensure};
use comm::cuda::{Address, Context, DeviceBuffer, Driver, Event, Graph, Stream};
use comm::{Comm, DataType};

use super::collective::{Call, Collective};
use super::data::Expected;
use super::host::{slowest, sum};
use super::nccl::{Kind, Nccl};
use super::wire::{Buffers, Calls, DeviceJob, Entry, Job, Place, SetUp};

/// Calls that are timed one by one, in groups of as many events.
const SINGLES: usize = 10_000;
const EVENTS: usize = 1000;
/// What there is between GPUs.
pub const DEVICE: [Collective; 2] = [Collective::AllReduce, Collective::Broadcast];
/// More than the second-level cache of any card.
const FLUSH_BYTES: usize = 256 << 20;
/// Calls of a batch with cold caches.
const COLD_CALLS: usize = 20;

/// A rank with its GPU, its buffers and its rivals.
pub struct Bench<'a> {
    comm: &'a Comm,
    job: &'a Job,
    how: &'a DeviceJob,
    context: Context,
    stream: Stream,
    start: Event,
    end: Event,
    buffers: DeviceBuffer,
    flush: Option<DeviceBuffer>,
    nccl: Option<(Nccl, Kind)>,
    variants: Vec<Variant>,
}

/// One library with one kind of buffers.
struct Variant {
    name: String,
    library: Library,
    /// Where its buffers are: what is sent, and behind it as much for what is received.
    base: Address,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Libcomm,
    Nccl,
}

/// A variant in one place.
struct Turn<'b> {
    variant: &'b Variant,
    place: Place,
    send: Address,
    recv: Address,
    graph: Option<Graph>,
    batches: Vec<f64>,
}

impl<'a> Bench<'a> {
    /// Takes the rank's GPU and sets the libraries up; with how long that took, and notes.
    pub fn new(
        comm: &'a Comm,
        job: &'a Job,
        how: &'a DeviceJob,
    ) -> anyhow::Result<(Bench<'a>, Vec<SetUp>, Vec<String>)> {
        ensure!(DEVICE.contains(&job.collective), "between GPUs there are allreduce and broadcast");
        ensure!(DataType::ON_DEVICE.contains(&job.data_type) && job.op.is_on_device(), "GPUs do not reduce that");
        let driver = Driver::get()?;
        let context = Context::primary(driver, comm.local_rank() % Context::devices(driver)?)?;
        let _bound = context.bind()?;
        let most = (job.most_bytes as usize).next_multiple_of(4096);
        let buffers = DeviceBuffer::new(context, 2 * most)?;
        let flush = if job.cold { Some(DeviceBuffer::new(context, FLUSH_BYTES)?) } else { None };
        let mut bench = Bench {
            comm,
            job,
            how,
            context,
            stream: Stream::new(context)?,
            start: Event::timed(context)?,
            end: Event::timed(context)?,
            buffers,
            flush,
            nccl: None,
            variants: Vec::new(),
        };
        let base = bench.buffers.address();
        let (mut set_up, mut notes) = (Vec::new(), vec![circumstances(comm, context)?]);
        if how.own {
            let own = Variant { name: "libcomm".into(), library: Library::Libcomm, base };
            let began = Instant::now();
            bench.call(&own, base, base + most as u64, 1)?;
            bench.stream.get().synchronize(driver)?;
            let ms = slowest(comm, began.elapsed().as_secs_f64() * 1e3)?;
            set_up.push(SetUp { what: "libcomm on the GPUs, first call".into(), ms });
            for (part, ms) in comm.device_set_up() {
                set_up.push(SetUp { what: format!("of that, {part}"), ms: slowest(comm, ms)? });
            }
            notes.extend(comm.detour().map(|why| format!("through the host: {why}")));
            if job.buffers.contains(&Buffers::Malloc) {
                bench.variants.push(own);
            }
            if job.buffers.contains(&Buffers::Comm) {
                let began = Instant::now();
                let base = comm.alloc_device_raw(2 * most)? as Address;
                let ms = slowest(comm, began.elapsed().as_secs_f64() * 1e3)?;
                set_up.push(SetUp { what: format!("{} bytes allocated and registered", 2 * most), ms });
                bench.variants.push(Variant { name: "libcomm, registered".into(), library: Library::Libcomm, base });
            }
        }
        if how.nccl.is_some() || how.nccl_registered.is_some() {
            let kind = Kind::of(job.data_type, job.op)?;
            let began = Instant::now();
            let nccl = Nccl::init(comm)?;
            let ms = slowest(comm, began.elapsed().as_secs_f64() * 1e3)?;
            set_up.push(SetUp { what: format!("NCCL {}", nccl.version_text()), ms });
            if let Some(name) = &how.nccl {
                bench.variants.push(Variant { name: name.clone(), library: Library::Nccl, base });
            }
            if let Some(name) = &how.nccl_registered {
                match nccl.window(2 * most) {
                    Ok(base) => bench.variants.push(Variant { name: name.clone(), library: Library::Nccl, base }),
                    Err(error) => notes.push(format!("no registered windows: {error}")),
                }
            }
            bench.nccl = Some((nccl, kind));
        }
        Ok((bench, set_up, notes))
    }

    /// Measures one size.
    pub fn measure(&self, count: usize) -> anyhow::Result<Vec<Entry>> {
        let _bound = self.context.bind()?;
        let job = self.job;
        let Job { collective, data_type, op, root, .. } = *job;
        let call = Call { collective, data_type, op, root, count };
        let expected = Expected::of(&call, self.comm.rank() as usize, self.comm.size() as usize);
        let half = self.buffers.bytes() as u64 / 2;
        let mut turns = Vec::new();
        for variant in &self.variants {
            for &place in &job.places {
                let recv = if place == Place::In { variant.base } else { variant.base + half };
                turns.push(Turn { variant, place, send: variant.base, recv, graph: None, batches: Vec::new() });
            }
        }
        let mut wrong = Vec::new();
        for turn in &turns {
            wrong.push(if job.check { Some(sum(self.comm, self.check(turn, &call, &expected)?)?) } else { None });
        }
        let (calls, replays) = self.shape(count * data_type.bytes());
        if self.how.graph {
            for turn in &mut turns {
                turn.graph = Some(self.capture(turn, count, calls)?);
            }
        }
        // The first batch warms up.
        for batch in 0..=job.batches {
            for turn in &mut turns {
                let us = match job.cold {
                    true => self.cold(turn, count)?,
                    false => self.batch(calls * replays, || self.run(turn, count, calls, replays))?,
                };
                if batch > 0 {
                    turn.batches.push(us);
                }
            }
        }
        let mut entries = Vec::new();
        for (turn, wrong) in turns.into_iter().zip(wrong) {
            let calls = if job.percentiles { Calls::of(&self.singles(&turn, count)?) } else { None };
            let Turn { variant, place, batches, .. } = turn;
            entries.push(Entry { variant: variant.name.clone(), place, batches, calls, wrong });
        }
        Ok(entries)
    }

    /// Calls of a batch (in a graph: of the graph), and how often that is done.
    fn shape(&self, bytes: usize) -> (usize, usize) {
        match (self.job.iterations, bytes) {
            (Some(calls), _) => (calls as usize, 1),
            (None, ..=0x10_0000) => (20, 20),
            (None, ..=0x100_0000) => (10, 5),
            (None, ..=0x400_0000) => (5, 3),
            (None, _) => (2, 2),
        }
    }

    /// Puts one call into the stream.
    fn call(&self, variant: &Variant, send: Address, recv: Address, count: usize) -> anyhow::Result<()> {
        let Job { collective, data_type, op, root, .. } = *self.job;
        let stream = self.stream.get().raw();
        // SAFETY: buffers of that length and more, which live until the process ends or the stream was waited for.
        unsafe {
            match (variant.library, &self.nccl) {
                (Library::Libcomm, _) if collective == Collective::Broadcast => {
                    self.comm.broadcast_stream_raw(recv as *mut _, count, data_type, root, stream)?;
                }
                (Library::Nccl, Some((nccl, kind))) if collective == Collective::Broadcast => {
                    nccl.broadcast(recv, count, *kind, root, stream)?;
                }
                (Library::Libcomm, _) => {
                    self.comm.all_reduce_stream_raw(send as *const _, recv as *mut _, count, data_type, op, stream)?;
                }
                (Library::Nccl, Some((nccl, kind))) => nccl.all_reduce(send, recv, count, *kind, stream)?,
                (Library::Nccl, None) => bail!("NCCL is not there"),
            }
        }
        Ok(())
    }

    fn run(&self, turn: &Turn<'_>, count: usize, calls: usize, replays: usize) -> anyhow::Result<()> {
        match &turn.graph {
            Some(graph) => (0..replays).try_for_each(|_| Ok(graph.launch(self.stream.get())?)),
            None => (0..calls * replays).try_for_each(|_| self.call(turn.variant, turn.send, turn.recv, count)),
        }
    }

    fn capture(&self, turn: &Turn<'_>, count: usize, calls: usize) -> anyhow::Result<Graph> {
        let stream = self.stream.get();
        stream.begin_capture(self.context.driver())?;
        for _ in 0..calls {
            self.call(turn.variant, turn.send, turn.recv, count)?;
        }
        Ok(stream.end_capture(self.context)?)
    }

    /// Microseconds of the slowest rank for one of `calls`.
    fn batch(&self, calls: usize, run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
        let (stream, driver) = (self.stream.get(), self.context.driver());
        stream.synchronize(driver)?;
        self.comm.barrier()?;
        self.start.record(stream)?;
        run()?;
        self.end.record(stream)?;
        stream.synchronize(driver)?;
        self.comm.async_error()?;
        let us = f64::from(self.end.milliseconds_since(&self.start)?) * 1e3 / calls as f64;
        Ok(slowest(self.comm, us)?)
    }

    /// The mean of single calls, the caches emptied before each.
    fn cold(&self, turn: &Turn<'_>, count: usize) -> anyhow::Result<f64> {
        let mut total = 0.0;
        for _ in 0..COLD_CALLS {
            if let Some(flush) = &self.flush {
                flush.fill(0, flush.bytes(), 1)?;
            }
            total += self.batch(1, || self.call(turn.variant, turn.send, turn.recv, count))?;
        }
        Ok(total / COLD_CALLS as f64)
    }

    /// Microseconds of single calls, launched one after the other.
    fn singles(&self, turn: &Turn<'_>, count: usize) -> anyhow::Result<Vec<f64>> {
        let (stream, driver) = (self.stream.get(), self.context.driver());
        let rounds = if count * self.job.data_type.bytes() <= 1 << 20 { SINGLES / EVENTS } else { 1 };
        let events = if rounds == 1 { EVENTS / 10 } else { EVENTS };
        let events = (0..=events).map(|_| Event::timed(self.context)).collect::<Result<Vec<_>, _>>()?;
        let mut times = Vec::new();
        for _ in 0..rounds {
            stream.synchronize(driver)?;
            self.comm.barrier()?;
            events[0].record(stream)?;
            for event in &events[1..] {
                self.call(turn.variant, turn.send, turn.recv, count)?;
                event.record(stream)?;
            }
            stream.synchronize(driver)?;
            for pair in events.windows(2) {
                times.push(f64::from(pair[1].milliseconds_since(&pair[0])?) * 1e3);
            }
        }
        self.comm.all_reduce_in_place(&mut times, comm::Op::Max)?;
        Ok(times)
    }

    /// Makes the call once on fresh data and counts this rank's wrong elements.
    fn check(&self, turn: &Turn<'_>, call: &Call, expected: &Expected) -> anyhow::Result<u64> {
        let (rank, ranks) = (self.comm.rank() as usize, self.comm.size() as usize);
        let (stream, driver) = (self.stream.get(), self.context.driver());
        let mut data = vec![0xa5u8; call.count * call.data_type.bytes()];
        // SAFETY: the variant's buffers are that long; nothing else runs on them.
        unsafe { driver.copy_to_device(turn.recv, data.as_ptr().cast(), data.len())? };
        expected.sent.fill(&mut data, expected.phase);
        // SAFETY: as above.
        unsafe { driver.copy_to_device(turn.send, data.as_ptr().cast(), data.len())? };
        self.context.synchronize()?;
        self.comm.barrier()?;
        self.call(turn.variant, turn.send, turn.recv, call.count)?;
        stream.synchronize(driver)?;
        self.comm.async_error()?;
        data.fill(0);
        // SAFETY: as above.
        unsafe { driver.copy_to_host(data.as_mut_ptr().cast(), turn.recv, data.len())? };
        let wrong = expected.wrong(call, rank, ranks, &data);
        self.comm.barrier()?;
        Ok(wrong)
    }
}

fn circumstances(comm: &Comm, context: Context) -> anyhow::Result<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let is_version = |word: &&str| word.split('.').count() == 3 && word.starts_with(|c: char| c.is_ascii_digit());
    let driver = text.split_whitespace().find(is_version).unwrap_or("unknown").to_owned();
    Ok(format!("{} ranks, {}, driver {driver}", comm.size(), context.name()?))
}
