//! What a launch is given: `device/args.cuh` in Rust. Both sides assert the sizes; a test compares the fields.

/// Most ranks that the kernels serve.
pub const MAX_RANKS: usize = 8;
/// Most blocks of a launch.
pub const MAX_BLOCKS: usize = 256;
/// Where the number of the last call lies, once for each block.
pub const EPOCHS_AT: u64 = 2048;
/// Most chunks of a call of the copy engine.
pub const MAX_CHUNKS: usize = 24;
/// Words of one source in an arena.
pub const SLOTS: u32 = 64;
/// Where the proof counts what is wrong.
pub const PROOF_AT: u64 = 1024;
/// Where the arguments that all calls have in common lie in an arena.
pub const KEPT_AT: u64 = 1280;
/// Where the words lie that say which chunk has arrived.
pub const ARRIVED_AT: u64 = 8192;
/// Where an arena's words end and its lines begin.
pub const LL_AT: u64 = 163_840;
/// Where this GPU finds the peers' windows: one address for each of [`WINDOWS`] of each rank.
pub const WINDOWS_AT: u64 = 106_496;
/// Windows of a rank at a time.
pub const WINDOWS: usize = 64;
/// Most chunks of a message that are checked each for itself.
pub const CHECKS: u64 = 64;
/// Half of a word of pushed data that has not come (`push.cuh`).
pub const ABSENT: u32 = 0xffb9_e6a6;
/// Bytes of pushed data for each byte of the bits of its escaped words.
pub const PUSHED_PER_ESCAPE: u64 = 16;
/// Slots of each channel of the ring.
pub const RING_SLOTS: u64 = 4;
/// Most blocks of the ring, each with its own line of counters.
pub const RING_BLOCKS: u32 = 128;

/// An address on the device.
pub type Address = u64;

/// The arguments of every kernel. Addresses are as this rank maps them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Args {
    /// Each rank's arena.
    pub arena: [Address; 8],
    /// What only this GPU uses.
    pub own: Address,
    /// The data of this launch.
    pub send: Address,
    /// Its result.
    pub recv: Address,
    /// Elements of this launch.
    pub count: u64,
    /// Front of the job's segment, 0 for none.
    pub segment: Address,
    /// A [`Record`].
    pub record: Address,
    /// Longest wait, 0 for none.
    pub limit_ns: u64,
    /// Type, op and count of the call.
    pub signature: u64,
    /// LL lines: offset in an arena.
    pub ll_at: u64,
    /// LL lines: bytes for one source and parity.
    pub ll_bytes: u64,
    /// Slots of the ring: offset.
    pub bulk_at: u64,
    /// Slots of the ring: bytes of one parity.
    pub bulk_bytes: u64,
    /// Where pushed data lands: offset.
    pub push_at: u64,
    /// Where pushed data lands: bytes of one parity.
    pub push_bytes: u64,
    /// The bits of its escaped words: offset.
    pub escapes_at: u64,
    /// The bits of its escaped words: bytes of one parity.
    pub escapes_bytes: u64,
    /// This rank.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// The reduction, as the C interface numbers it.
    pub op: u32,
    /// Of the communicator in the segment.
    pub generation: u32,
    /// Where the ranks' blocks begin in the segment.
    pub blocks_at: u32,
    /// Which chunk of the call this launch waits for.
    pub chunk: u32,
    /// A checked chunk has 1 << check bytes; 0: nothing is checked.
    pub check: u32,
    /// Ring: this rank's position.
    pub position: u8,
    /// Ring: the rank after this one.
    pub next: u8,
    /// Ring: the rank before.
    pub previous: u8,
    /// Of a broadcast.
    pub root: u8,
    /// Ring: bytes of a slot. Zero copy: number of the own result's window + 1 in the upper 16 bits, offset below; or 0.
    pub slot: u64,
    /// Type and op in one byte, never 0.
    pub tag: u64,
}

/// The copy engine's call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopyArgs {
    /// The call.
    pub a: Args,
    /// How many chunks the engine moves.
    pub chunks: u64,
    /// Where in the message each ends.
    pub end: [u64; 24],
    /// Where in the arena each lies.
    pub slot: [Address; 24],
}

/// Why a kernel gave up.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// A `TROUBLE_*`, 0 while nothing happened. Written last.
    pub kind: u32,
    /// Whom it waited for.
    pub peer: u32,
    /// In which call on the device.
    pub epoch: u64,
    /// Which block.
    pub block: u32,
    /// Which chunk.
    pub chunk: u32,
    /// What the peer called, what arrived, or the peer's result.
    pub theirs: u64,
    /// What was called here, what was sent, or this rank's result.
    pub ours: u64,
    /// What was called here.
    pub signature: u64,
}

/// The abort word is set.
pub const TROUBLE_ABORTED: u32 = 1;
/// The peer has left.
pub const TROUBLE_LEFT: u32 = 2;
/// The peer's call failed.
pub const TROUBLE_FAILED: u32 = 3;
/// The peer called something else.
pub const TROUBLE_MISMATCH: u32 = 4;
/// The time was over.
pub const TROUBLE_TIMEOUT: u32 = 5;
/// Data changed on its way.
pub const TROUBLE_CORRUPT: u32 = 6;
/// The ranks' results differ.
pub const TROUBLE_DIFFER: u32 = 7;
/// The peer's result lies in memory that is no longer registered.
pub const TROUBLE_STALE: u32 = 8;

/// One piece of data damaged on purpose, in the checked images.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// A `FAULT_*`, 0 for none.
    pub kind: u32,
    /// Flip: which bit of the 8 bytes.
    pub bit: u32,
    /// In which call on the device.
    pub epoch: u64,
    /// Which byte of the message.
    pub at: u64,
    /// How long to be late.
    pub delay_ns: u64,
}

/// A bit of what arrives.
pub const FAULT_FLIP: u32 = 1;
/// A bit of the result.
pub const FAULT_FLIP_RESULT: u32 = 2;
/// Data that is never stored at the peer.
pub const FAULT_DROP: u32 = 3;
/// A rank that is late.
pub const FAULT_DELAY: u32 = 4;
/// Where the fault lies in what only this GPU uses.
pub const FAULT_AT: u64 = 120;

const _: () = assert!(
    size_of::<CopyArgs>() == 240 + 8 + 16 * MAX_CHUNKS
        && MAX_RANKS == 8
        && size_of::<Args>() == 240
        && size_of::<Record>() == 48
        && size_of::<Fault>() == 32
);

#[cfg(test)]
mod tests {
    /// The fields of a struct in their order, without types.
    fn fields(source: &str, begin: &str, field: fn(&str) -> Vec<String>) -> Vec<String> {
        let body = source.split_once(begin).unwrap().1.split_once("\n}").unwrap().0;
        body.lines()
            .map(|line| line.split("//").next().unwrap().trim())
            .filter(|l| !l.is_empty())
            .flat_map(field)
            .collect()
    }

    /// What `device/sync.cuh` does with lines, for flags of so many bits of the call's number beside `tag`: whether in any call
    /// a line that was written in an earlier one, or wiped, would be taken for this call's.
    fn takes_an_old_line(bits: u32, tag: u64, first: u64) -> bool {
        const LINES: usize = 8;
        let period = 1 << (bits - 1);
        let flag = |call: u64| (call & ((1 << bits) - 1)) | tag << bits;
        let mut lines = [[0u64; LINES]; 2];
        let mut random = 1u64;
        for call in first..first + (4 << bits) {
            if call % period < 2 {
                lines[(!call & 1) as usize] = [0; LINES];
            }
            let mine = &mut lines[(call & 1) as usize];
            if mine.contains(&flag(call)) {
                return true;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            mine[..(random >> 33) as usize % LINES].fill(flag(call));
        }
        false
    }

    #[test]
    fn no_line_of_an_earlier_call_is_taken_for_a_new_one() {
        for bits in 4..=10 {
            for first in [1, (1 << bits) - 5, (1 << (bits - 1)) - 3] {
                assert!(!takes_an_old_line(bits, 1, first), "{bits} bits from {first}");
            }
        }
        // Without a tag, lines that were wiped look like those of a call whose number has only zeros there.
        assert!(takes_an_old_line(6, 0, 1));
        let (sync, ll) = (include_str!("../device/sync.cuh"), include_str!("../device/ll.cuh"));
        assert!(sync.contains("WIPE_PERIOD = 1 << 23;") && ll.contains("u32(epoch & 0xffffff) | u32(a.tag) << 24"));
    }

    #[test]
    fn both_languages_have_the_same_fields_in_the_same_order() {
        let (cuda, rust) = (include_str!("../device/args.cuh"), include_str!("args.rs"));
        for name in ["Args", "CopyArgs", "Record", "Fault"] {
            let in_cuda = fields(cuda, &format!("struct {name} {{"), |line| {
                let names =
                    line.trim_end_matches(';').rsplit_once(", ").map_or(vec![line], |_| line.split(", ").collect());
                names
                    .iter()
                    .map(|n| n.rsplit([' ', '*']).next().unwrap().split(['[', ';']).next().unwrap().to_owned())
                    .collect()
            });
            let in_rust = fields(rust, &format!("pub struct {name} {{"), |line| {
                line.strip_prefix("pub ").map(|l| l.split(':').next().unwrap().to_owned()).into_iter().collect()
            });
            assert_eq!(in_cuda, in_rust);
        }
    }
}
