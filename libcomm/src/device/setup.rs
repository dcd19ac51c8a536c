//! How the ranks' GPUs find each other: memory, handles, mappings, and the proof that what one writes the other
//! gets (`proof.rs`). If any rank cannot, all take the way through the host, and know which one could not and why.
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use kernels::args::{self, Args};

use super::arena::Arena;
use super::host_arena;
use super::pace::Pace;
use super::plan::Machine;
use super::told::Told;
use super::turns::Turns;
use super::{Common, Device, Kernels, Peer, Took, register_segment};
use crate::cuda::{
    Context, CudaError, DeviceBuffer, Driver, Event, Handle, HostBuffer, PeerBuffer, Registered, Stream, StreamRef,
};
use crate::error::CommError;
use crate::fault::{Fault, Kind};
use crate::shm::heap::Heap;
use crate::shm::mailbox::Exchanged;
use crate::shm::segment::Mapping;
use crate::types::DataType;
use crate::verify::Verify;

/// What a kernel keeps of the calls before it, at the front of the arena.
const CONTROL_BYTES: usize = 4096;

/// What a rank tells the others about its device. Plain numbers in the machine's order: all are on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// Why this rank has no arena to offer, as a [`Lack`] and a driver's status above 8 bits; 0: it has one.
    pub(super) lack: u64,
    pub(super) pid: u64,
    pub(super) pid_namespace: u64,
    pub(super) memory_bytes: u64,
    pub(super) address: u64,
    pub(super) device: u64,
    pub(super) uuid: [u8; 16],
    pub(super) handle: [u8; 64],
}

impl Offer {
    pub(super) const BYTES: usize = 6 * 8 + 16 + 64;

    pub(super) fn to_bytes(self) -> [u8; Offer::BYTES] {
        let mut bytes = [0; Offer::BYTES];
        let device = [self.address, self.device];
        let words = [self.lack, self.pid, self.pid_namespace, self.memory_bytes].into_iter().chain(device);
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[48..64].copy_from_slice(&self.uuid);
        bytes[64..].copy_from_slice(&self.handle);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Offer {
        let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|k| bytes[8 * i + k]));
        Offer {
            lack: word(0),
            pid: word(1),
            pid_namespace: word(2),
            memory_bytes: word(3),
            address: word(4),
            device: word(5),
            uuid: std::array::from_fn(|k| bytes[48 + k]),
            handle: std::array::from_fn(|k| bytes[64 + k]),
        }
    }

    /// Whether kernels of the two take turns on one GPU, since they are of two processes: one that waits for the other
    /// keeps it from running.
    pub(super) fn takes_turns_with(&self, peer: &Offer) -> bool {
        self.uuid == peer.uuid && !self.same_process(peer)
    }

    /// Why it has no arena to offer, if it has none.
    fn lacks(&self) -> Option<String> {
        let lack = Lack::ALL.into_iter().find(|lack| *lack as u64 == self.lack & 0xff)?;
        let why = lack.why();
        match self.lack >> 8 {
            0 => Some(why.to_owned()),
            status => Some(format!("{why} (CUDA status {status})")),
        }
    }

    fn same_process(&self, peer: &Offer) -> bool {
        self.pid == peer.pid && self.pid_namespace == peer.pid_namespace
    }

    /// How this rank reaches the peer's arena, by what both offer; or why it does not even try.
    pub(super) fn reach(&self, peer: &Offer) -> Result<Reach, String> {
        for offer in [peer, self] {
            if let Some(why) = offer.lacks() {
                return Err(why);
            }
        }
        match (self.same_process(peer), self.takes_turns_with(peer)) {
            (true, _) => Ok(Reach::Here),
            (false, true) => Err("both are on the same GPU, where kernels that wait for each other never meet".into()),
            (false, false) => Ok(Reach::Map),
        }
    }
}

/// Why a rank has nothing that its peers could map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    Unwanted = 1,
    TooManyRanks = 2,
    NoSegment = 3,
    NoHandle = 4,
}

impl Lack {
    const ALL: [Lack; 4] = [Lack::Unwanted, Lack::TooManyRanks, Lack::NoSegment, Lack::NoHandle];

    fn why(self) -> &'static str {
        match self {
            Lack::Unwanted => "PRUN_P2P=off asks for that",
            Lack::TooManyRanks => "kernels serve 8 ranks at most",
            Lack::NoSegment => {
                "a GPU cannot be shown the job's shared memory, without which no kernel learns that a rank died"
            }
            Lack::NoHandle => "the driver exports no memory of its GPU",
        }
    }

    /// For an offer.
    fn word(self, cause: Option<&CudaError>) -> u64 {
        let status = cause.and_then(CudaError::status).unwrap_or(0);
        self as u64 | u64::from(status.unsigned_abs()) << 8
    }
}

/// How to get at a peer's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// By its address: it is in this process.
    Here,
    /// By mapping its handle.
    Map,
}

/// What the ranks need of the communicator to set up.
pub(crate) struct Around<'a> {
    pub(crate) mapping: &'a Mapping,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) generation: u32,
    pub(crate) limit: Option<Duration>,
    /// Whether peers' memory may be mapped at all.
    pub(crate) peer_to_peer: bool,
    pub(crate) verify: Verify,
    pub(crate) fault: Option<Fault>,
    /// The ranks' windows in the segment.
    pub(crate) heap: &'a dyn Fn() -> Result<&'a Heap, CommError>,
    /// Health of the worst link, as this rank was told.
    pub(crate) link_health: u32,
    /// The order of the ranks around a ring, as this rank was told.
    pub(crate) ring: Option<&'a [u32]>,
    /// The number of the proof, which is the first call; odd. Tests begin where numbers wrap around.
    pub(crate) first_call: u64,
}

/// An exchange over the mailbox, as the communicator does it.
pub(crate) type Exchange<'a, T> =
    dyn FnMut(&[u8], &mut dyn FnMut(u32, &[u8]) -> Result<T, String>) -> Result<Exchanged<T>, CommError> + 'a;

/// Sets up this rank's side. All ranks call it together; errors are about this rank's driver alone.
pub(crate) fn set_up(
    around: &Around<'_>,
    device: u32,
    stream: StreamRef,
    exchange_told: &mut Exchange<'_, Told>,
    exchange_peers: &mut Exchange<'_, Peer>,
    exchange_host: &mut Exchange<'_, Registered>,
    exchange_proof: &mut Exchange<'_, ()>,
) -> Result<Device, CommError> {
    let driver = Driver::get()?;
    super::seen::check(driver)?;
    let context = context_for(driver, device)?;
    let _bound = context.bind()?;
    if stream.is_capturing(driver)? {
        return Err(CommError::invalid(
            crate::types::Operation::AllReduce,
            "the first call on device memory sets up the GPUs and cannot be captured; make one before",
        ));
    }
    let own_memory = context.memory_bytes()? as u64;
    let own = Told::new(own_memory, context.multiprocessors()?, around.link_health, around.ring);
    let told = match exchange_told(&own.to_bytes(), &mut |_, bytes| Ok(Told::from_bytes(bytes)))? {
        Exchanged::All(others) => own.agreed(&others),
        Exchanged::Fallback(_) => own,
    };
    let mut layout = Arena::new(around.size.max(2), told.memory_bytes);

    let bytes = if around.size > 1 && around.peer_to_peer { layout.bytes } else { args::LL_AT };
    // Once it is on offer a peer may write to it, so a rank that fails from there on leaves it to the process's end.
    let arena = ManuallyDrop::new(DeviceBuffer::new(context, bytes as usize)?);
    arena.fill(0, bytes.min(layout.push_at) as usize, 0)?;
    if bytes > layout.push_at {
        arena.fill_words(layout.push_at as usize, (bytes - layout.push_at) as usize, args::ABSENT)?;
    }
    let own_fault = around.fault.filter(|fault| fault.rank == around.rank);
    if let Some(fault) = own_fault {
        arena.write(args::FAULT_AT as usize, &[args::Fault::from(fault)])?;
    }
    let record = HostBuffer::new(context, 4096)?;
    let segment = register_segment(context, around.mapping);
    let handle = Handle::of(&arena);

    let lack = match (&segment, &handle) {
        _ if !around.peer_to_peer => Lack::Unwanted.word(None),
        _ if around.size > kernels::args::MAX_RANKS as u32 => Lack::TooManyRanks.word(None),
        (Err(error), _) => Lack::NoSegment.word(Some(error)),
        (_, Err(error)) => Lack::NoHandle.word(Some(error)),
        (Ok(_), Ok(_)) => 0,
    };
    let offer = Offer {
        lack,
        pid: u64::from(std::process::id()),
        pid_namespace: crate::process::pid_namespace(),
        memory_bytes: own_memory,
        address: arena.address(),
        device: u64::from(context.device()),
        uuid: context.uuid()?,
        handle: handle.map_or([0; 64], |handle| handle.0),
    };
    let loading = Instant::now();
    // Loading may wait for all work of the context, so it is done before any kernel of ours can wait for a peer.
    let common = if around.size > 1 { Some(Common::load(context)?) } else { None };
    let compares = around.verify != Verify::Off;
    let checked = compares || around.fault.is_some();
    let broadcast = if around.size > 1 { Some(super::broadcast::Kernels::load(context, checked)?) } else { None };
    let f32_kernels = if around.size > 1 { Some(Kernels::load(context, DataType::F32, checked)?) } else { None };
    let mut took = Took { kernels: loading.elapsed(), ..Took::default() };
    let mut typed: Vec<Kernels> = Vec::new();
    let mut shares = false;
    let mut uuids = vec![offer.uuid];
    let mut open = |_: u32, bytes: &[u8]| {
        let theirs = Offer::from_bytes(bytes);
        uuids.push(theirs.uuid);
        shares |= offer.same_process(&theirs) && offer.uuid == theirs.uuid;
        if own_fault.is_some_and(|fault| fault.kind == Kind::Refuse) {
            return Err("refused on purpose".into());
        }
        // Loading may wait for all work of the context, and later a kernel of a rank in this process may be waiting for
        // us.
        if offer.same_process(&theirs) && typed.is_empty() {
            let loaded = DataType::ON_DEVICE.map(|data_type| Kernels::load(context, data_type, checked));
            typed = loaded.into_iter().collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        }
        match offer.reach(&theirs)? {
            Reach::Here => {
                if theirs.device != offer.device {
                    let peer = Context::primary(driver, theirs.device as u32).map_err(|error| error.to_string())?;
                    context.enable_peer(&peer).map_err(|error| error.to_string())?;
                }
                Ok(Peer::Local(theirs.address))
            }
            Reach::Map => {
                let opened = PeerBuffer::open(context, Handle(theirs.handle));
                opened.map(Peer::Mapped).map_err(|error| match theirs.pid_namespace == offer.pid_namespace {
                    true => error.to_string(),
                    false => format!("{error} (the two are in different pid namespaces: --pid=host may help)"),
                })
            }
        }
    };
    let mapping = Instant::now();
    let (peers, mut detour) = match exchange_peers(&offer.to_bytes(), &mut open)? {
        Exchanged::All(peers) => (peers, None),
        Exchanged::Fallback(refusal) => (
            Vec::new(),
            Some(format!("rank {} cannot map rank {}'s memory: {}", refusal.rank, refusal.peer, refusal.why)),
        ),
    };

    // Where they cannot map each other, their kernels may still meet in the host's memory.
    let mut host_arenas = Vec::new();
    let mut staged = false;
    if detour.is_some() && around.size > 1 {
        let in_host = Arena::in_host(around.size);
        match host_arena::make(around, context, &offer, in_host.bytes as usize, segment.is_ok(), exchange_host)? {
            Ok(arenas) => (host_arenas, layout) = (arenas, in_host),
            Err(why) => (detour, staged) = (detour.map(|detour| nor_in_host(detour, &why)), true),
        }
    }

    took.mapping = mapping.elapsed();
    let [position, next, previous] = told.around(around.rank, around.size);
    let template = Args {
        own: arena.address(),
        segment: segment.as_ref().map_or(0, |segment| segment.device()),
        record: record.device(),
        limit_ns: around.limit.map_or(0, |limit| limit.as_nanos() as u64),
        rank: around.rank,
        size: around.size,
        generation: around.generation,
        blocks_at: around.mapping.geometry().blocks_at() as u32,
        position,
        next,
        previous,
        ..Args::default()
    };
    let machine = Machine {
        ranks: around.size,
        multiprocessors: told.multiprocessors,
        // Whoever refused has not seen everyone's.
        sharing: if detour.is_none() { most_alike(&uuids) } else { around.size },
        arena: layout,
        in_host: !host_arenas.is_empty(),
        link_health: told.link_health,
    };
    let streams = [Stream::new(context)?, Stream::new(context)?, Stream::new(context)?];
    let mut device = Device {
        context,
        machine,
        template,
        peers,
        host_arenas,
        detour,
        took,
        staged,
        nccl: None,
        common,
        broadcast,
        kernels: [None; DataType::ALL.len()],
        zero: [None; DataType::ALL.len()],
        windows: super::windows::Windows::new(context, offer.pid_namespace),
        checked,
        compares,
        lost: own_fault.map(args::Fault::from).filter(|fault| fault.kind == args::FAULT_DROP),
        epoch: around.first_call, // the proof's
        first_call: around.first_call,
        pace: None,
        record,
        staging: None,
        streams,
        fork: Event::new(context)?,
        joined: Event::new(context)?,
        flagged: Event::new(context)?,
        copied: Vec::new(),
        free: Vec::new(),
        serial: Event::new(context)?,
        turns: Turns::default(),
        capturing: false,
        _segment: segment.ok(),
        arena: ManuallyDrop::into_inner(arena),
    };
    device.kernels[DataType::F32 as usize - 1] = f32_kernels;
    for (place, kernels) in device.kernels.iter_mut().zip(typed) {
        *place = Some(kernels);
    }
    if shares {
        crate::cuda::launch_one_at_a_time();
        device.pace = Some(Pace::new(context)?);
    }
    device.begin()?;
    device.lay_out()?;
    if around.size == 1 || device.staged {
        return Ok(device);
    }
    let proving = Instant::now();
    let refused = device.prove_together(own_fault, exchange_proof)?;
    device.took.proof = proving.elapsed();
    if let Some(why) = refused {
        // The way that lies is left, and the one through the host's memory is tried, unless it was that.
        device.peers.clear();
        device.detour = Some(why);
        let in_host = Arena::in_host(around.size);
        device.staged = match device.machine.in_host {
            true => true,
            false => match host_arena::make(around, context, &offer, in_host.bytes as usize, true, exchange_host)? {
                Ok(arenas) => {
                    device.start_anew(arenas, in_host, own_fault)?;
                    let why = device.prove_together(own_fault, exchange_proof)?;
                    if let (Some(detour), Some(why)) = (&mut device.detour, &why) {
                        *detour = nor_in_host(std::mem::take(detour), why);
                    }
                    why.is_some()
                }
                Err(why) => {
                    device.detour = device.detour.map(|detour| nor_in_host(detour, &why));
                    true
                }
            },
        };
        if device.staged {
            // What the kernels of the proof have found is no trouble of the calls that come, which need none.
            device.host_arenas.clear();
            device.forget_trouble()?;
        }
    }
    Ok(device)
}

/// That kernels do not meet in the host's memory either, unless it is for the same reason.
fn nor_in_host(detour: String, why: &str) -> String {
    let reason = |text: &str| text.split_once(": ").map(|(_, reason)| reason.to_owned());
    match reason(&detour) == reason(why) {
        true => detour,
        false => format!("{detour}; the host reduces, since {why}"),
    }
}

/// How many of the ranks have the same device, where that is most.
fn most_alike(uuids: &[[u8; 16]]) -> u32 {
    let alike = |uuid: &[u8; 16]| uuids.iter().filter(|other| *other == uuid).count() as u32;
    uuids.iter().map(alike).max().unwrap_or(1)
}

/// The context that is current, if it is of that device, as the caller's is; otherwise the device's primary one.
fn context_for(driver: &'static Driver, device: u32) -> Result<Context, CudaError> {
    match Context::current(driver)? {
        Some(current) if device == u32::MAX || current.device() == device => Ok(current),
        None if device == u32::MAX => Context::primary(driver, 0),
        _ => Context::primary(driver, device),
    }
}

impl Device {
    /// Tells the kernels where all arenas lie, and what lies where in them.
    fn lay_out(&mut self) -> Result<(), CudaError> {
        let layout = &self.machine.arena;
        let mut template = Args {
            ll_at: layout.ll_at,
            ll_bytes: layout.ll_bytes,
            bulk_at: layout.bulk_at,
            bulk_bytes: layout.bulk_bytes,
            push_at: layout.push_at,
            push_bytes: layout.push_bytes,
            escapes_at: layout.escapes_at,
            escapes_bytes: layout.escapes_bytes,
            ..self.template
        };
        for (rank, address) in template.arena.iter_mut().take(self.machine.ranks as usize).enumerate() {
            *address = self.peers.get(rank).and_then(Option::as_ref).map_or(self.arena.address(), Peer::address);
        }
        for (place, address) in template.arena.iter_mut().zip(host_arena::addresses(&self.host_arenas)) {
            *place = address;
        }
        self.template = template;
        self.arena.write(args::KEPT_AT as usize, &[template])
    }

    /// Goes on with arenas in the host's memory, as if there had been no call yet: no kernel runs, and none of the peers'
    /// has to do with those.
    fn start_anew(&mut self, arenas: Vec<Registered>, layout: Arena, fault: Option<Fault>) -> Result<(), CudaError> {
        self.forget_trouble()?;
        if let Some(fault) = fault.filter(|fault| fault.call != 0) {
            self.arena.write(args::FAULT_AT as usize, &[args::Fault::from(fault)])?;
        }
        (self.host_arenas, self.machine.arena, self.machine.in_host) = (arenas, layout, true);
        self.begin()?;
        self.lay_out()
    }

    /// As if no kernel had run.
    fn forget_trouble(&mut self) -> Result<(), CudaError> {
        self.record.clear();
        self.arena.fill(0, CONTROL_BYTES, 0)
    }

    /// Has each block of the first call, which is the proof, find its number.
    fn begin(&self) -> Result<(), CudaError> {
        self.arena.write(args::EPOCHS_AT as usize, &[self.first_call - 1; args::MAX_BLOCKS])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(pid: u64, gpu: u8) -> Offer {
        Offer {
            lack: 0,
            pid,
            pid_namespace: 7,
            memory_bytes: 1 << 37,
            address: 0x7000_0000_0000,
            device: u64::from(gpu),
            uuid: [gpu; 16],
            handle: [pid as u8; 64],
        }
    }

    #[test]
    fn the_device_that_most_ranks_have_counts() {
        assert_eq!(most_alike(&[[1; 16]]), 1);
        assert_eq!(most_alike(&[[1; 16], [2; 16], [1; 16], [3; 16]]), 2);
    }

    #[test]
    fn an_offer_survives_the_mailbox() {
        let offer = offer(300, 2);
        assert_eq!(Offer::from_bytes(&offer.to_bytes()), offer);
        #[cfg(not(loom))]
        const {
            assert!(Offer::BYTES <= crate::shm::mailbox::MAILBOX_BYTES)
        };
    }

    #[test]
    fn processes_map_each_other_threads_do_not_and_processes_on_one_gpu_never_wait_for_each_other() {
        assert_eq!(offer(1, 0).reach(&offer(2, 1)), Ok(Reach::Map));
        assert_eq!(offer(1, 0).reach(&offer(1, 1)), Ok(Reach::Here));
        assert_eq!(offer(1, 0).reach(&offer(1, 0)), Ok(Reach::Here));
        assert!(offer(1, 0).reach(&offer(2, 0)).is_err());
        let elsewhere = Offer { pid_namespace: 8, ..offer(1, 1) };
        assert_eq!(offer(1, 0).reach(&elsewhere), Ok(Reach::Map));
    }

    #[test]
    fn who_has_nothing_to_offer_says_why_whoever_asks() {
        let status =
            CudaError::Status { call: "cuIpcGetMemHandle", status: 801, name: "CUDA_ERROR_NOT_SUPPORTED".into() };
        let why = |lack: u64| {
            let nothing = Offer { lack, ..offer(2, 1) };
            let (there, back) = (offer(1, 0).reach(&nothing).unwrap_err(), nothing.reach(&offer(1, 0)).unwrap_err());
            assert_eq!(there, back);
            there
        };
        assert_eq!(
            why(Lack::NoHandle.word(Some(&status))),
            "the driver exports no memory of its GPU (CUDA status 801)"
        );
        assert_eq!(why(Lack::Unwanted.word(None)), "PRUN_P2P=off asks for that");
        for lack in Lack::ALL {
            assert!(why(lack.word(None)).starts_with(lack.why()));
        }
    }

    #[test]
    fn the_second_reason_is_told_where_it_is_another_one() {
        let detour = || "rank 0 cannot map rank 1's memory: both are on the same GPU".to_owned();
        assert_eq!(nor_in_host(detour(), "rank 0 cannot reach rank 1's memory: both are on the same GPU"), detour());
        let other = nor_in_host(detour(), "rank 1 cannot reach rank 0's memory: its window is full");
        assert_eq!(
            other,
            format!("{}; the host reduces, since rank 1 cannot reach rank 0's memory: its window is full", detour())
        );
    }
}
