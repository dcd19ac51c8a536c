//! What lies where in the segment. The README beside this file draws it.
//!
//! Freshly made memory is all zero, and zero is the right first value of every word here except the
//! identity, so that making a segment touches one page, whatever the number of ranks.

use super::atomic::{AtomicU32, AtomicU64};

/// First eight bytes of a segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"libcomm\x01");
/// Raised with every change of this file that an older libcomm would misread.
pub const LAYOUT_VERSION: u32 = 6;
/// The longest job id, in bytes.
pub const JOB_ID_BYTES: usize = 128;
/// Most ranks that one segment serves.
pub const MAX_RANKS: u32 = 4096;
/// Parts of the segment begin at multiples of this.
pub const PAGE: usize = 4096;
/// Words that different processes write lie this far apart: two cache lines, since they are fetched in pairs.
#[cfg(not(loom))]
pub const LINE: usize = 128;

/// How many of a rank's last calls are kept.
pub const RECORDS: usize = if cfg!(loom) { 1 } else { 64 };
/// Bytes of a rank's mailbox, in words of eight.
pub const MAILBOX_WORDS: usize = if cfg!(loom) { 1 } else { 64 };
/// Bytes of a rank's error text, in words of eight.
pub const TEXT_WORDS: usize = if cfg!(loom) { 1 } else { 64 };
/// Bytes of the reason in a rank's verdict on an exchange, in words of eight.
pub const VERDICT_WORDS: usize = if cfg!(loom) { 1 } else { 31 };
/// Payload that travels inside a rank's post, in words of eight bytes.
pub const INLINE_WORDS: usize = if cfg!(loom) { 1 } else { 13 };
/// CPUs of a rank's affinity mask, 64 a word.
pub const CPU_WORDS: usize = if cfg!(loom) { 1 } else { 16 };

/// Who this segment is for; written once by its maker before anyone else can see it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Identity {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`LAYOUT_VERSION`].
    pub layout_version: u32,
    /// Ranks of the job.
    pub world_size: u32,
    /// Ranks of the job on this node: how many blocks and slots follow.
    pub local_size: u32,
    /// Bytes of data that one slot holds.
    pub chunk_bytes: u32,
    /// Bytes of the whole segment.
    pub total_bytes: u64,
    /// Used bytes of `job_id`.
    pub job_id_bytes: u32,
    /// Unused, zero.
    pub reserved: u32,
    /// The job's id.
    pub job_id: [u8; JOB_ID_BYTES],
}

/// One value on lines of its own.
#[repr(C, align(128))]
pub struct Line<T>(pub T);

/// What all share; the words are explained in the README.
#[repr(C)]
pub struct Shared {
    /// Why the job is being ended, 0 while it is not. Alone on its line, since GPU kernels watch it too.
    pub abort: Line<AtomicU32>,
    /// Grows with each thing that a waiter may have to learn: an exit, a failure, a join, a leave, an abort.
    pub news: Line<AtomicU32>,
    /// How often a program joined, all ranks and generations together.
    pub joins: Line<AtomicU32>,
    /// How many waiters sleep or are about to.
    pub sleepers: Line<AtomicU32>,
}

/// Where a rank stands. Written by the rank alone.
#[repr(C, align(128))]
pub struct Status {
    /// 2g - 1 while the rank is in generation g, 2g once it left it; 0 before the first.
    pub session: AtomicU32,
    /// The generation in which a call of this rank failed, 0 for none; `text` says why.
    pub failed: AtomicU32,
    /// The joined process.
    pub pid: AtomicU32,
    /// Bytes of `text` that are used.
    pub text_bytes: AtomicU32,
    /// When that process started, in clock ticks since boot: tells it from a later owner of its number.
    pub pid_started: AtomicU64,
    /// The pid namespace in which `pid` counts.
    pub pid_namespace: AtomicU64,
    /// The generation whose communicator this rank dropped without leaving in order, 0 for none.
    pub dropped: AtomicU32,
    /// The cache, NUMA node and package that its CPUs are in, each plus 1, 0 for unknown or several.
    pub domains: [AtomicU32; 3],
    /// How many CPUs its control group or its settings leave it, 0 for no limit.
    pub cpu_limit: AtomicU32,
    /// The generation in which `failed` is only what another rank's failure did to a call of this one.
    pub second_hand: AtomicU32,
}

/// One step as its rank announces it: a stamp, what was called, and payload that needs no slot.
#[repr(C, align(128))]
pub struct Post {
    /// Generation in the upper 16 bits, below it how many steps the rank has posted in that generation.
    pub stamp: AtomicU64,
    /// Operation, type, op and root of the call whose first step this is.
    pub kind: AtomicU64,
    /// Elements of that call.
    pub count: AtomicU64,
    /// Data that travels with the stamp.
    pub inline: [AtomicU64; INLINE_WORDS],
}

/// The hot lines: how far a rank is, and in what call. Written by the rank alone.
#[repr(C)]
pub struct Control {
    /// By parity of the stamp's count, so that a post stays readable until the second one after it.
    pub posts: [Post; 2],
}

/// A member of a communicator that was split off: its control lines, in a page of its window.
#[repr(C, align(4096))]
pub struct Place {
    /// As in [`Control`], of the communicator's steps.
    pub control: Control,
    /// 1 once the member has dropped the communicator without leaving it in order.
    pub gone: Line<AtomicU32>,
    /// How many others have left the communicator and look here no more: adding itself is the last that each does here.
    pub passed: Line<AtomicU32>,
}

/// Cells of a channel, from one rank to another.
pub const CELLS: u64 = if cfg!(loom) { 2 } else { 8 };
/// From one cell to the next.
pub const CELL_BYTES: usize = 32 * 1024;
/// Data that one cell holds.
pub const PIECE_BYTES: usize = CELL_BYTES - size_of::<CellHead>();
/// One channel: a line of the receiver's, then the cells.
pub const CHANNEL_BYTES: usize = (size_of::<Line<AtomicU64>>() + CELLS as usize * CELL_BYTES).next_multiple_of(PAGE);

/// What is in a cell. Written by the sender alone.
#[repr(C, align(64))]
pub struct CellHead {
    /// Generation and how many cells the sender has filled, once this one is.
    pub stamp: AtomicU64,
    /// Type and receiver of the message that begins here.
    pub kind: AtomicU64,
    /// Its elements.
    pub count: AtomicU64,
    /// Its communicator and tag.
    pub context: AtomicU64,
    /// Where in the sender's window it lies, all ones if it is in the cells.
    pub in_window: AtomicU64,
    /// The checksum of the cell's data, where that is wanted.
    pub sum: AtomicU64,
}

/// How a sleeping rank is woken. `waiting_for` is written by the rank, `count` by whoever wakes it.
#[repr(C, align(128))]
pub struct Bell {
    /// The word slept on.
    pub count: AtomicU32,
    /// Local rank + 1 of the peer waited for, 0 for none, all ones for more than one.
    pub waiting_for: AtomicU32,
}

/// Answer of a rank on what it was to open. Written by the rank alone.
#[repr(C, align(128))]
pub struct Verdict {
    /// 0: all opened. Otherwise local rank + 1 of the peer whose thing would not open.
    pub failed_peer: AtomicU32,
    /// Bytes of `text` that are used.
    pub text_bytes: AtomicU32,
    /// Why not.
    pub text: [AtomicU64; VERDICT_WORDS],
}

/// The calls on its GPU that a rank has made. Written by the rank alone, looked at by who waits for it for long.
#[repr(C, align(128))]
pub struct OnDevice {
    /// Generation in the upper 16 bits, below it how many calls; captured ones are not counted.
    pub calls: AtomicU64,
    /// Number of the last of them.
    pub number: AtomicU64,
    /// Operation, type, op and root of it.
    pub kind: AtomicU64,
    /// Its elements.
    pub count: AtomicU64,
    /// The generation in which one was captured, 0 for none.
    pub captured: AtomicU32,
}

/// One of a rank's last calls. Written by the rank alone, read by rankd at any time.
#[repr(C)]
pub struct Record {
    /// Which of the rank's calls in this generation it is, 0 while the rest is being written.
    pub sequence: AtomicU64,
    /// Operation, type, op, state and root, packed.
    pub kind: AtomicU64,
    /// Elements.
    pub count: AtomicU64,
    /// Start, in nanoseconds of CLOCK_MONOTONIC.
    pub started: AtomicU64,
    /// End, the same; 0 while it runs.
    pub ended: AtomicU64,
    /// Generation of the call.
    pub generation: AtomicU64,
    /// Number of the call in its communicator, or of the message between its two ranks.
    pub number: AtomicU64,
    /// The communicator, and in the upper half the tag + 1 where there is one.
    pub communicator: AtomicU64,
}

/// All that belongs to one rank, except its slots.
#[repr(C, align(4096))]
pub struct RankBlock {
    /// Where it stands.
    pub status: Status,
    /// How far it is.
    pub control: Control,
    /// How to wake it.
    pub bell: Bell,
    /// The CPUs that it may use.
    pub cpus: Line<[AtomicU64; CPU_WORDS]>,
    /// Why its call failed.
    pub text: Line<[AtomicU64; TEXT_WORDS]>,
    /// What it publishes in an exchange.
    pub mailbox: Line<[AtomicU64; MAILBOX_WORDS]>,
    /// How the exchange went for it.
    pub verdict: Verdict,
    /// Its last calls.
    pub records: Line<[Record; RECORDS]>,
    /// Calls started plus calls ended. Away from `status`, at which peers look while they wait.
    pub activity: Line<AtomicU64>,
    /// Its calls on its GPU.
    pub on_device: OnDevice,
}

/// Where the shared lines begin.
pub const SHARED_AT: usize = 512;
/// Where the exit words begin: one a rank, all written by rankd, so that 256 exits touch one page.
pub const EXITS_AT: usize = PAGE;

#[cfg(not(loom))]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Identity>() == 40 + JOB_ID_BYTES && size_of::<Identity>() <= SHARED_AT);
    assert!(offset_of!(Identity, job_id) == 40);
    assert!(offset_of!(Shared, abort) == 0 && offset_of!(Shared, news) == LINE);
    assert!(offset_of!(Shared, joins) == 2 * LINE && offset_of!(Shared, sleepers) == 3 * LINE);
    assert!(SHARED_AT + size_of::<Shared>() <= EXITS_AT);
    assert!(size_of::<Control>() == 2 * LINE && size_of::<Status>() == LINE && size_of::<Bell>() == LINE);
    assert!(offset_of!(RankBlock, control) == 128 && offset_of!(RankBlock, bell) == 384);
    assert!(offset_of!(RankBlock, cpus) == 512 && offset_of!(RankBlock, text) == 640);
    assert!(offset_of!(RankBlock, mailbox) == 1152 && offset_of!(RankBlock, verdict) == 1664);
    assert!(size_of::<Verdict>() == 256 && offset_of!(RankBlock, records) == 1920);
    assert!(size_of::<CellHead>() == 64 && size_of::<Place>() == PAGE);
    assert!(offset_of!(RankBlock, activity) == 6016 && offset_of!(RankBlock, on_device) == 6144);
    assert!(size_of::<Record>() == 64 && size_of::<RankBlock>() == 2 * PAGE);
};

/// Which of `ranks` ranks has the memory of rank `rank`'s slot of step `step`: itself, except that two ranks change parts
/// every second step. So each of the two writes where it last read, in lines that are in its cache already; to get them
/// back from who read them costs as much as reading them did.
pub fn part_of(ranks: u32, rank: u32, step: u64) -> u32 {
    match ranks {
        2 => (rank + (step / 2 % 2) as u32) % 2,
        _ => rank,
    }
}

/// Sizes and offsets that follow from the number of ranks and the chunk size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Ranks on this node.
    pub ranks: usize,
    /// Bytes of data in one slot.
    pub chunk_bytes: usize,
    /// Bytes of one rank's window, for channels and `comm_alloc`: a terabyte, less where that many ranks would not fit
    /// the addresses, none where the size of files is limited.
    pub window_bytes: usize,
}

impl Geometry {
    /// Data that one slot holds unless a test asks for less. Two slots a rank stay inside the second-level
    /// cache of today's cores, and the cost of a step is small beside the copy.
    pub const DEFAULT_CHUNK_BYTES: usize = 256 * 1024;

    /// Each rank's share of a chunk must be a whole number of lines of 64 bytes and at least one.
    pub fn new(ranks: u32, chunk_bytes: usize) -> Geometry {
        let ranks = ranks as usize;
        let window_bytes = ((16 << 40) / ranks.max(1).next_power_of_two()).min(1 << 40);
        Geometry { ranks, chunk_bytes: chunk_bytes.max(64 * ranks).next_multiple_of(64), window_bytes }
    }

    /// Bytes before the first rank block: identity, shared lines, exit words.
    pub fn blocks_at(&self) -> usize {
        EXITS_AT + (4 * self.ranks).next_multiple_of(PAGE)
    }

    /// Where the slots begin, which is also all that rankd maps.
    pub fn slots_at(&self) -> usize {
        self.blocks_at() + self.ranks * size_of::<RankBlock>()
    }

    /// From one slot to the next: the chunk, the reduced share of an earlier chunk, and their checksums.
    pub fn slot_bytes(&self) -> usize {
        (2 * self.chunk_bytes + 8 * (self.ranks + 1)).next_multiple_of(PAGE) + 192
    }

    /// Both slots of one rank. The odd 192 bytes a slot keep ranks apart in the cache's sets.
    pub fn part_bytes(&self) -> usize {
        (2 * self.slot_bytes()).next_multiple_of(PAGE)
    }

    /// Where part `part` begins: two slots, one for each parity of the step.
    pub fn part_at(&self, part: usize) -> usize {
        self.slots_at() + part * self.part_bytes()
    }

    /// Bytes at the front of a window for the rank's channel to each other one.
    pub fn channels_bytes(&self) -> usize {
        self.ranks * CHANNEL_BYTES
    }

    /// Where the windows begin, which is also all that a rank maps at first.
    pub fn heap_at(&self) -> usize {
        self.part_at(self.ranks)
    }

    /// Bytes of the whole segment, which is sparse.
    pub fn total_bytes(&self) -> usize {
        self.heap_at() + self.ranks * self.window_bytes
    }
}
