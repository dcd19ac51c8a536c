//! AllReduce between GPUs: what a rank sets up once, and how it puts a call into a stream.
//!
//! Data is pushed from wherever it lies into the peers' arenas (`arena.rs`), memory that libcomm owns and exports, so
//! that no buffer of the caller's must be exportable or known to the peers. For two ranks this moves no more bytes
//! over the link than any other way. The kernels and the argument why no call needs a barrier are in
//! `kernels/device`; which path a message takes is decided in `plan.rs`; how ranks find each other in `setup.rs`.
#![expect(unsafe_code, reason = "launches kernels on addresses")]

pub(crate) mod arena;
pub(crate) mod broadcast;
pub(crate) mod full;
mod host_arena;
pub(crate) mod nccl;
mod pace;
pub(crate) mod plan;
mod proof;
mod registry;
mod seen;
mod setup;
#[cfg(test)]
mod table; // what `build.rs` does with the table of paths
mod told;
pub(crate) mod troubled;
mod turns;
mod watched;
mod windows;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kernels::args::{self, Args, CopyArgs, Record};

use crate::cuda::{
    Address, Context, CudaError, DeviceBuffer, Driver, Event, Function, HostBuffer, Module, PeerBuffer, PointerKind,
    Registered, Stream, StreamRef,
};
use crate::error::CommError;
use crate::shm::View;
use crate::shm::atomic::Acquire;
use crate::shm::segment::Mapping;
use crate::signature::Signature;
use crate::types::{DataType, Op, Operation};
use nccl::{Nccl, NcclComm, UniqueId};
use pace::Pace;
use plan::{Machine, Path, Plan, chunks};
use turns::{Turn, Turns};
use watched::Watched;

pub(crate) use setup::{Around, set_up};

/// Bytes that a staged call moves at a time.
pub(crate) const STAGED_CHUNK: usize = 8 << 20;

/// A rank's side of the GPU path.
pub(crate) struct Device {
    context: Context,
    machine: Machine,
    /// What every launch is given, with this rank's addresses.
    template: Args,
    /// The peers' arenas, mapped and proven.
    peers: Vec<Option<Peer>>,
    /// Everyone's arenas in the host's memory, where those cannot be.
    host_arenas: Vec<Registered>,
    /// Why data goes through the host's memory, on all ranks.
    detour: Option<String>,
    /// What took how long at set-up.
    took: Took,
    /// Whether kernels may not wait for each other there either, so that the host reduces.
    staged: bool,
    nccl: Option<Watched<NcclComm>>,
    common: Option<Common>,
    broadcast: Option<broadcast::Kernels>,
    kernels: [Option<Kernels>; DataType::ALL.len()],
    zero: [Option<ZeroKernels>; DataType::ALL.len()],
    windows: windows::Windows,
    /// Whether the kernels are those that sum what arrives, and whether the sums are compared.
    checked: bool,
    compares: bool,
    /// A chunk that the copy engine is to lose, and in which of its calls.
    lost: Option<args::Fault>,
    /// The last call's number on the device, replayed ones not counted.
    epoch: u64,
    /// The number of the first one.
    first_call: u64,
    /// Where ranks of this process share the GPU.
    pace: Option<Pace>,
    record: HostBuffer,
    staging: Option<HostBuffer>,
    /// For the copy engine, for flags behind its copies, and for waits before them.
    streams: [Stream; 3],
    fork: Event,
    joined: Event,
    flagged: Event,
    copied: Vec<Event>,
    free: Vec<Event>,
    serial: Event,
    turns: Turns,
    /// Whether this call becomes part of a graph.
    capturing: bool,
    /// Must go before the mapping of the segment does.
    _segment: Option<Registered>,
    arena: DeviceBuffer,
}

/// Parts of the set-up, which wait for the slowest rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Took {
    /// Until the kernels were loaded: compiled by the driver, or out of its cache.
    pub(crate) kernels: Duration,
    /// Until all had mapped each other's memory.
    pub(crate) mapping: Duration,
    /// Until all had proven it.
    pub(crate) proof: Duration,
}

/// How a peer's arena is reached.
pub(crate) enum Peer {
    /// Mapped from another process.
    Mapped(PeerBuffer),
    /// In this process.
    Local(Address),
}

impl Peer {
    fn address(&self) -> Address {
        match self {
            Peer::Mapped(buffer) => buffer.address(),
            Peer::Local(address) => *address,
        }
    }
}

#[derive(Clone, Copy)]
struct Common {
    copy_flag: Function,
    copy_wait: Function,
    check_send: Function,
    check_result: Function,
    prove: Function,
}

impl Common {
    fn load(context: Context) -> Result<Common, CudaError> {
        let module = load(context, "common")?;
        let function = |name: &str| module.function(name);
        Ok(Common {
            copy_flag: function("copy_flag")?,
            copy_wait: function("copy_wait")?,
            check_send: function("check_send")?,
            check_result: function("check_result")?,
            prove: function("prove")?,
        })
    }
}

#[derive(Clone, Copy)]
struct Kernels {
    /// On two ranks and buffers that are aligned and end with a whole word or pack; `_any` on all others.
    ll: Function,
    ll_any: Function,
    push: Function,
    push_any: Function,
    copy: Function,
    copy_any: Function,
    ring: Function,
}

impl Kernels {
    /// Loaded once in each context, however many communicators there are: the first time, the driver compiles.
    fn load(context: Context, data_type: DataType, checked: bool) -> Result<Kernels, CudaError> {
        static LOADED: Mutex<Vec<(Context, DataType, bool, Kernels)>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |c: Context, t: DataType, k: bool| c == context && t == data_type && k == checked;
        if let Some((.., kernels)) = loaded.iter().find(|(c, t, k, _)| same(*c, *t, *k)) {
            return Ok(*kernels);
        }
        let name = data_type.to_string();
        let early = !checked && starts_early(context)?;
        let (direct, chunked) = match checked {
            true => (format!("{name}.checked"), format!("{name}.checked")),
            false => (format!("direct_{name}{}", if early { "_sm90" } else { "" }), name.clone()),
        };
        let (direct, chunked) = (load(context, &direct)?, load(context, &chunked)?);
        let function = |module: &Module, kind: &str| module.function(&format!("{kind}_{name}"));
        let kernels = Kernels {
            ll: function(&direct, "ll")?.starting_early(early),
            ll_any: function(&direct, "ll_any")?.starting_early(early),
            push: function(&direct, "push")?.starting_early(early),
            push_any: function(&direct, "push_any")?.starting_early(early),
            copy: function(&chunked, "copy")?,
            copy_any: function(&chunked, "copy_any")?,
            ring: function(&chunked, "ring")?,
        };
        loaded.push((context, data_type, checked, kernels));
        Ok(kernels)
    }

    /// The same, beginning only when what is before them in the stream is over.
    fn starting_late(self) -> Kernels {
        let late = |function: Function| function.starting_early(false);
        let Kernels { ll, ll_any, push, push_any, .. } = self;
        Kernels { ll: late(ll), ll_any: late(ll_any), push: late(push), push_any: late(push_any), ..self }
    }
}

/// Loaded where memory is registered for them, else by the first zero-copy call of a type: few programs make one.
#[derive(Clone, Copy)]
struct ZeroKernels {
    /// On buffers that are aligned and end with a whole pack; `any` on all others.
    whole: Function,
    any: Function,
}

impl ZeroKernels {
    fn load(context: Context, data_type: DataType) -> Result<ZeroKernels, CudaError> {
        let module = load(context, &format!("zero_{data_type}"))?;
        let function = |kind: &str| module.function(&format!("{kind}_{data_type}"));
        Ok(ZeroKernels { whole: function("zero")?, any: function("zero_any")? })
    }
}

/// One call, as the caller made it.
#[derive(Clone, Copy)]
pub(crate) struct DeviceCall {
    pub(crate) send: Address,
    pub(crate) recv: Address,
    pub(crate) count: u64,
    pub(crate) data_type: DataType,
    pub(crate) op: Op,
    pub(crate) stream: StreamRef,
    /// Where the result lies in registered memory, as the peer is told; 0: it does not.
    pub(crate) place: u64,
}

impl DeviceCall {
    pub(crate) fn bytes(&self) -> usize {
        self.count as usize * self.data_type.bytes()
    }

    /// Whether its buffers consist of whole packs of `bytes` bytes, aligned to them.
    fn is_whole(&self, bytes: u64) -> bool {
        (self.send | self.recv | (self.count * self.data_type.bytes() as u64)).is_multiple_of(bytes)
    }
}

/// Whether a call on these addresses is one of the device's: `None` if both are the host's alone.
pub(crate) fn device_of(operation: Operation, send: Address, recv: Address) -> Result<Option<u32>, CommError> {
    let Some(driver) = Driver::with_gpu()? else { return Ok(None) };
    let kind = |address| PointerKind::of(driver, address).map_err(CommError::Cuda);
    match (kind(send)?, if send == recv { kind(send)? } else { kind(recv)? }) {
        (PointerKind::Device(a), PointerKind::Device(b)) if a != b => {
            Err(CommError::invalid(operation, format!("send is on device {a} and recv on device {b}")))
        }
        (PointerKind::Device(device), other) | (other, PointerKind::Device(device)) => match other {
            PointerKind::Host => Err(CommError::invalid(
                operation,
                "one buffer is a device's and the other plain host memory, which no kernel can reach",
            )),
            _ => Ok(Some(device)),
        },
        (PointerKind::Managed, PointerKind::Managed | PointerKind::Pinned) => Ok(Some(u32::MAX)),
        (PointerKind::Pinned, PointerKind::Managed) => Ok(Some(u32::MAX)),
        _ => Ok(None),
    }
}

impl Device {
    /// Why data goes through the host's memory, if it does.
    pub(crate) fn detour(&self) -> Option<&str> {
        self.detour.as_deref()
    }

    pub(crate) fn took(&self) -> Took {
        self.took
    }

    /// Whether the host reduces, so that calls wait for their stream.
    pub(crate) fn is_staged(&self) -> bool {
        self.staged
    }

    pub(crate) fn context(&self) -> Context {
        self.context
    }

    /// The plan for a message, which tests and the benchmark may change.
    pub(crate) fn plan(&self, bytes: u64, forced: Option<Path>) -> Plan {
        // Zero copy does not sum what arrives.
        let forced = forced.filter(|path| *path != Path::ZeroCopy || !self.checked);
        match self.staged {
            true => Plan { path: Path::Staged, ..plan::plan(&self.machine, bytes, None) },
            false => plan::plan(&self.machine, bytes, forced),
        }
    }

    /// The plan where the result must be as if reduced in the order of the ranks.
    pub(crate) fn plan_in_order(&self, bytes: u64) -> Plan {
        match self.staged {
            true => self.plan(bytes, None),
            false => plan::plan_in_order(&self.machine, bytes),
        }
    }

    /// Joins NCCL's ranks, with all, until `look` says why the job ends.
    pub(crate) fn join_nccl(
        &mut self,
        nccl: Nccl,
        id: UniqueId,
        rank: u32,
        look: impl Fn() -> Option<CommError> + Send + 'static,
    ) -> Result<(), String> {
        let _bound = self.context.bind().map_err(|error| error.to_string())?;
        let joined = nccl.join(id, rank, self.machine.ranks)?;
        self.nccl = Some(Watched::new(joined, look).map_err(|error| format!("no thread to watch it: {error}"))?);
        Ok(())
    }

    /// Has NCCL put one AllReduce into its stream.
    pub(crate) fn all_reduce_by_nccl(&mut self, call: &DeviceCall) -> Result<(), CommError> {
        let _bound = self.context.bind()?;
        self.by_nccl(|nccl| nccl.all_reduce(call))
    }

    fn by_nccl(&self, call: impl FnOnce(&NcclComm) -> Result<(), String>) -> Result<(), CommError> {
        let failed = |why| CommError::Nccl { why };
        let nccl = self.nccl.as_ref().ok_or_else(|| failed("it is not loaded".into()))?;
        nccl.with(|nccl| call(nccl).map_err(failed))
    }

    /// Puts one AllReduce into its stream. Returns before it is done.
    pub(crate) fn all_reduce(&mut self, call: &DeviceCall, plan: &Plan) -> Result<(), CudaError> {
        let _bound = self.context.bind()?;
        let element = call.data_type.bytes() as u64;
        let mut args = Args {
            send: call.send,
            recv: call.recv,
            count: call.count,
            op: call.op as u32,
            signature: call.data_type as u64 | (call.op as u64) << 8 | call.count << 16,
            tag: (call.data_type as u64 - 1) * 5 + call.op as u64 + 1, // not 0, which is what lines that were wiped have
            ..self.template
        };
        let kernels = self.kernels(call.data_type)?;
        let kernels = if self.may_start_early() { kernels } else { kernels.starting_late() };
        let (blocks, threads, stream) = (plan.blocks, plan.threads, call.stream);
        let function = match plan.path {
            Path::Ll => {
                let longest = self.machine.arena.ll_message() / element;
                let kernel = if args.size == 2 && call.is_whole(8) { kernels.ll } else { kernels.ll_any };
                for at in (0..call.count).step_by(longest as usize) {
                    let (send, recv) = (call.send + at * element, call.recv + at * element);
                    let call = DeviceCall { send, recv, count: longest.min(call.count - at), ..*call };
                    let args = self.before(&call, plan, Args { send, recv, count: call.count, ..args })?;
                    // SAFETY: as below.
                    unsafe { kernel.launch(blocks, threads, stream, &args)? };
                    self.after(&call, plan, &args)?;
                }
                return Ok(());
            }
            Path::Push if call.is_whole(16) => kernels.push,
            Path::Push => kernels.push_any,
            Path::ZeroCopy => {
                args.slot = call.place;
                let zero = self.zero_kernels(call.data_type)?;
                if call.is_whole(16) { zero.whole } else { zero.any }
            }
            Path::Ring => {
                args.slot = ring_slot(&args, blocks);
                kernels.ring
            }
            Path::Copy => {
                let longest = plan::longest_copy(plan.copy_bytes) / element;
                for at in (0..call.count).step_by(longest as usize) {
                    let count = longest.min(call.count - at);
                    let (send, recv) = (call.send + at * element, call.recv + at * element);
                    let call = DeviceCall { send, recv, count, ..*call };
                    let args = self.before(&call, plan, Args { send, recv, count, ..args })?;
                    self.copy(&call, plan, args, kernels)?;
                    self.after(&call, plan, &args)?;
                }
                return Ok(());
            }
            Path::Staged | Path::Nccl => unreachable!("the communicator does it"),
        };
        let args = self.before(call, plan, args)?;
        // SAFETY: the arguments hold the caller's buffers, valid until the stream is through by the caller's promise,
        // and arenas that live as long as this value, which waits for the context before it goes.
        unsafe { function.launch(blocks, threads, stream, &args)? };
        self.after(call, plan, &args)
    }

    /// Sums what is sent, where that is compared; on a ring, where it is not what travels, the call itself does.
    fn before(&mut self, call: &DeviceCall, plan: &Plan, args: Args) -> Result<Args, CudaError> {
        self.epoch += 1;
        self.keep_pace(call.stream)?;
        if !self.compares {
            return Ok(args);
        }
        let bytes = call.count * call.data_type.bytes() as u64;
        let args = Args { check: check_shift(bytes), ..args };
        if plan.path != Path::Ring {
            let common = self.common.ok_or(CudaError::NoFunction("check_send"))?;
            let sums = Args { count: bytes, ..args };
            // SAFETY: as in `all_reduce`.
            unsafe { common.check_send.launch(self.check_blocks(), 512, call.stream, &sums)? };
        }
        Ok(args)
    }

    /// Compares sums, behind the call.
    fn after(&self, call: &DeviceCall, plan: &Plan, args: &Args) -> Result<(), CudaError> {
        if !self.compares {
            return Ok(());
        }
        let common = self.common.ok_or(CudaError::NoFunction("check_result"))?;
        let bytes = call.count * call.data_type.bytes() as u64;
        // A peer that waits in the call itself gives up first, and says for whom.
        let limit_ns = 2 * args.limit_ns;
        let sums = Args { count: bytes, chunk: u32::from(plan.path == Path::Ring), limit_ns, ..*args };
        // SAFETY: as in `all_reduce`.
        unsafe { common.check_result.launch(self.check_blocks(), 512, call.stream, &sums) }
    }

    /// As many as there is work for; all ranks' may be on one GPU, and wait for each other.
    fn check_blocks(&self) -> u32 {
        (self.machine.multiprocessors / self.machine.sharing).clamp(1, args::CHECKS as u32)
    }

    /// The copy engine's call: copies in a stream of their own, and one kernel in the caller's.
    fn copy(&mut self, call: &DeviceCall, plan: &Plan, args: Args, kernels: Kernels) -> Result<(), CudaError> {
        let common = self.common.ok_or(CudaError::NoFunction("copy_flag"))?;
        let chunks = chunks(call.count * call.data_type.bytes() as u64, &self.machine.arena, plan.copy_bytes);
        let mut copy = CopyArgs { a: args, chunks: chunks.len() as u64, end: [0; 24], slot: [0; 24] };
        for (number, chunk) in chunks.iter().enumerate() {
            (copy.end[number], copy.slot[number]) = (chunk.at + chunk.bytes, chunk.slot);
        }
        let kernel = if call.is_whole(16) { kernels.copy } else { kernels.copy_any };
        let [engine, flags, waits] = &self.streams;
        while self.copied.len() < chunks.len() {
            self.copied.push(Event::new(self.context)?);
            self.free.push(Event::new(self.context)?);
        }
        self.fork.record(call.stream)?;
        engine.get().wait(&self.fork)?;
        let driver = self.context.driver();
        let peer = args.arena[(args.rank ^ 1) as usize];
        let mut launched = false;
        for (number, chunk) in chunks.iter().enumerate() {
            if let Some(read) = chunk.after {
                // What waits for the peer's kernel comes after ours, lest it stand in its way in a queue.
                if !launched {
                    // SAFETY: (all launches and copies) as in `all_reduce`; a slot of the peer's is free when its
                    // turn comes.
                    unsafe { kernel.launch(plan.blocks, plan.threads, call.stream, &copy)? };
                    launched = true;
                    waits.get().wait(&self.copied[0])?;
                }
                // SAFETY: as above.
                unsafe { common.copy_wait.launch(1, 32, waits.get(), &Args { chunk: read, ..args })? };
                self.free[number].record(waits.get())?;
                engine.get().wait(&self.free[number])?;
            }
            let (to, from, bytes) = (peer + chunk.slot, args.send + chunk.at, chunk.bytes as usize);
            let here = chunk.at..chunk.at + chunk.bytes;
            if !self.lost.is_some_and(|fault| fault.epoch == self.epoch && here.contains(&fault.at)) {
                // SAFETY: as above.
                unsafe { driver.copy_device_async(to, from, bytes, engine.get().raw())? };
            }
            // Between two copies a kernel would keep the engine waiting.
            let mut behind = engine;
            if number + 1 < chunks.len() {
                self.copied[number].record(engine.get())?;
                flags.get().wait(&self.copied[number])?;
                behind = flags;
            }
            // SAFETY: as above.
            unsafe { common.copy_flag.launch(1, 32, behind.get(), &Args { chunk: number as u32, ..args })? };
        }
        if !launched {
            // SAFETY: as above.
            unsafe { kernel.launch(plan.blocks, plan.threads, call.stream, &copy)? };
        }
        if chunks.len() > 1 {
            self.flagged.record(flags.get())?;
            call.stream.wait(&self.flagged)?;
        }
        self.joined.record(engine.get())?;
        call.stream.wait(&self.joined)
    }

    /// The turn of a call in `stream`; why it cannot be put behind the last one. Nothing has changed yet.
    pub(crate) fn next_turn(&self, stream: StreamRef) -> Result<Turn, String> {
        let _bound = self.context.bind().map_err(|error| error.to_string())?;
        self.turns.next(stream, |stream| match stream == StreamRef::DEFAULT {
            true => Ok(None), // cannot be captured, and must not be asked for while another one is
            false => stream.capture(self.context.driver()),
        })
    }

    /// Begins that call's turn.
    pub(crate) fn take_turn(&mut self, turn: &Turn) -> Result<(), CudaError> {
        if let Some(last) = turn.behind {
            let _bound = self.context.bind()?;
            self.serial.record(last)?;
            turn.stream.wait(&self.serial)?;
        }
        self.turns.take(turn);
        self.capturing = turn.capture.is_some();
        Ok(())
    }

    /// Before the launches of one part of a call.
    fn keep_pace(&mut self, stream: StreamRef) -> Result<(), CudaError> {
        match &mut self.pace {
            Some(pace) if !self.capturing => pace.keep(stream), // what is captured does not run yet
            _ => Ok(()),
        }
    }

    fn kernels(&mut self, data_type: DataType) -> Result<Kernels, CudaError> {
        let place = data_type as usize - 1;
        if let Some(kernels) = self.kernels[place] {
            return Ok(kernels);
        }
        let kernels = Kernels::load(self.context, data_type, self.checked)?;
        self.kernels[place] = Some(kernels);
        Ok(kernels)
    }

    /// Whether kernels may begin while those before them still end: not where ranks of this process share the GPU, which would
    /// be full of two calls of one, while another's has no room.
    fn may_start_early(&self) -> bool {
        self.machine.sharing == 1
    }

    /// Loads the kernels of all types for zero copy, where it is what calls on registered memory go by.
    pub(crate) fn load_zero_kernels(&mut self) -> Result<(), CudaError> {
        match self.checked {
            true => Ok(()), // no call goes by it
            false => DataType::ON_DEVICE.into_iter().try_for_each(|data_type| self.zero_kernels(data_type).map(drop)),
        }
    }

    fn zero_kernels(&mut self, data_type: DataType) -> Result<ZeroKernels, CudaError> {
        let place = data_type as usize - 1;
        if let Some(kernels) = self.zero[place] {
            return Ok(kernels);
        }
        let kernels = ZeroKernels::load(self.context, data_type)?;
        self.zero[place] = Some(kernels);
        Ok(kernels)
    }

    /// Room on the host through which staged calls go.
    pub(crate) fn staging(&mut self) -> Result<*mut u8, CudaError> {
        if self.staging.is_none() {
            self.staging = Some(HostBuffer::new(self.context, STAGED_CHUNK)?);
        }
        Ok(self.staging.as_ref().map_or(std::ptr::null_mut(), |buffer| buffer.host().cast()))
    }

    /// Waits for all work, then lets go of what belongs to the peers. They may free it once all have done so.
    pub(crate) fn close_peers(&mut self) -> Result<(), CudaError> {
        let waited = self.context.synchronize();
        self.windows.close();
        self.peers.clear();
        self.host_arenas.clear();
        waited
    }

    /// For a communicator that is not left together: closes what is the peers', and leaves its own arena, which they
    /// may still write to, to the end of the process.
    pub(crate) fn abandon(mut self) {
        let _ = self.close_peers();
        if self.machine.ranks > 1 {
            let Device { arena, windows, .. } = self;
            windows.leak();
            arena.leak();
        }
    }
}

/// Bytes of a slot of the ring, where so many blocks share the room.
fn ring_slot(args: &Args, blocks: u32) -> u64 {
    (args.bulk_bytes / (u64::from(blocks) * args::RING_SLOTS) / 4096 * 4096).min(1 << 18)
}

/// A message is checked in chunks of `1 << shift` bytes: at least a page, and no more than there is room for.
fn check_shift(bytes: u64) -> u32 {
    (12..64).find(|shift| bytes.div_ceil(1 << shift) <= args::CHECKS).unwrap_or(63)
}

/// Whether kernels may begin while the one before them in the stream still ends, which takes a GPU that knows how to
/// wait for it, and a driver that can capture it.
fn starts_early(context: Context) -> Result<bool, CudaError> {
    Ok(context.capability()? >= (9, 0) && context.driver().version()? >= 12_030)
}

/// Loads an image, also while a stream of this thread is being captured.
fn load(context: Context, name: &str) -> Result<Module, CudaError> {
    const RELAXED: i32 = 2;
    let image = kernels::image(name).ok_or(CudaError::NoFunction("an image of that name"))?;
    let mut mode = RELAXED;
    // SAFETY: exchanges this thread's mode with the one in `mode`, and back below.
    let exchanged = unsafe { context.driver().capture_mode(&mut mode) };
    let module = Module::load(context, image.ptx);
    if exchanged.is_ok() {
        // SAFETY: as above.
        let _ = unsafe { context.driver().capture_mode(&mut mode) };
    }
    module
}

/// What a record says, in the words of the host's calls.
fn explain(record: &Record, view: View<'_>, rank: u32) -> CommError {
    let signature = |word: u64| Signature {
        number: record.epoch,
        operation: if word >> 8 & broadcast::IS_BROADCAST == 0 { Operation::AllReduce } else { Operation::Broadcast },
        data_type: DataType::from_number(word as u8),
        op: Op::from_number((word >> 8) as u8),
        root: (word >> 8 & broadcast::IS_BROADCAST != 0).then_some((word >> 8) as u32 & 0x7f),
        count: word >> 16,
        communicator: 0,
        tag: None,
    };
    let (peer, made) = (record.peer, signature(record.signature));
    let call = Some(made);
    match record.kind {
        args::TROUBLE_MISMATCH => {
            let mut pair = [(rank, signature(record.ours)), (peer, signature(record.theirs))];
            pair.sort_by_key(|(rank, _)| *rank);
            CommError::Mismatch { rank_a: pair[0].0, a: pair[0].1, rank_b: pair[1].0, b: pair[1].1 }
        }
        args::TROUBLE_ABORTED => match (view.exit_of(peer), view.abort_reason()) {
            (Some(exit), _) => {
                CommError::RankExited { rank: peer, exit, joined: true, call, block: Some(record.block) }
            }
            (None, Some(reason)) => CommError::Aborted { reason, call },
            (None, None) => CommError::Internal("a kernel saw an abort word that is no more".into()),
        },
        args::TROUBLE_FAILED => {
            // The peer may only have passed on what began elsewhere, though not here: then it says how that came back.
            let generation = view.ranks[rank as usize].status.session.load(Acquire).div_ceil(2);
            let first = view.failed_rank(generation).filter(|first| *first != rank);
            let rank = first.unwrap_or(peer);
            crate::protocol::simple::explain(view, crate::shm::wait::Stop::Failed { rank }, call)
        }
        args::TROUBLE_LEFT => CommError::RankLeft { rank: peer, call },
        args::TROUBLE_TIMEOUT => {
            CommError::DeviceTimeout { rank: peer, epoch: record.epoch, block: record.block, chunk: record.chunk, call }
        }
        args::TROUBLE_CORRUPT => {
            let (chunk, sent, arrived) = (u64::from(record.chunk), record.ours, record.theirs);
            CommError::ChunkCorrupt { call: made, from: peer, to: rank, chunk, sent, arrived }
        }
        args::TROUBLE_STALE => CommError::Stale { rank: peer, call: made },
        args::TROUBLE_DIFFER => CommError::ResultsDiffer {
            call: made,
            rank_a: rank,
            sum_a: record.ours,
            rank_b: peer,
            sum_b: record.theirs,
            chunk: u64::from(record.chunk),
        },
        kind => CommError::Internal(format!("a kernel reports trouble of kind {kind}")),
    }
}

/// The front of the segment as the device sees it, and where it begins on the host.
fn register_segment(context: Context, mapping: &Mapping) -> Result<Registered, CudaError> {
    let (base, bytes) = mapping.front();
    // SAFETY: whole pages of the mapping, which outlives the device side (see Comm's drop).
    unsafe { Registered::new(context, base, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_checked_in_as_many_chunks_as_there_is_room_for() {
        assert_eq!(check_shift(1), 12);
        assert_eq!(check_shift(64 * 4096), 12);
        assert_eq!(check_shift(64 * 4096 + 1), 13);
        assert_eq!(check_shift(1 << 30), 24);
        for bytes in [1u64, 4095, 4097, 1 << 20, (1 << 33) + 5] {
            assert!(bytes.div_ceil(1 << check_shift(bytes)) <= args::CHECKS, "{bytes}");
        }
    }
}
