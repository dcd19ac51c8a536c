//! How a device AllReduce goes: path and shape of the launches, from what all ranks agree on. Pure.
//!
//! Which path a message takes at which size is measured: `configs/protocol-choice.toml` says it, with the card, the date and
//! the command. The shapes are here.

use super::arena::{Arena, COPY_SLOTS};

/// How the data travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// Lines with flags of half their size, one hop.
    Ll,
    /// Plain stores into the peer's memory, where the data itself tells that it has come; two ranks.
    Push,
    /// The copy engine into the peer's slots, reduced behind it; two ranks.
    Copy,
    /// Pieces around a ring.
    Ring,
    /// Halves pushed, reduced, and pushed on straight into the peer's result, where both have registered it; two ranks.
    ZeroCopy,
    /// Through the host's memory, reduced by the host.
    Staged,
    /// NCCL does it; only where it is asked for.
    Nccl,
}

impl Path {
    /// From its name, as [`crate::env::PROTO`] has it.
    pub fn parse(name: &str) -> Option<Path> {
        Some(match name {
            "ll" => Path::Ll,
            "push" => Path::Push,
            "copy" => Path::Copy,
            "ring" => Path::Ring,
            "zero-copy" => Path::ZeroCopy,
            "staged" => Path::Staged,
            "nccl" => Path::Nccl,
            _ => return None,
        })
    }
}

/// Path and shape. Every field is the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How the data travels.
    pub path: Path,
    /// Blocks of each launch.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Copy engine: no copy is longer.
    pub copy_bytes: u64,
}

/// What a plan depends on beside the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) ranks: u32,
    /// Of the device that has fewest: the ranks' grids must be alike.
    pub(crate) multiprocessors: u32,
    /// The most ranks that have the same device, whose kernels must all find room there.
    pub(crate) sharing: u32,
    pub(crate) arena: Arena,
    /// Whether the arenas are in the host's memory.
    pub(crate) in_host: bool,
    /// Health of the worst link between the ranks' GPUs, from 0 to 100.
    pub(crate) link_health: u32,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

// PAIR, MORE, IN_HOST, BROADCAST_PAIR and BROADCAST_MORE: the table, made by `build.rs`.
include!(concat!(env!("OUT_DIR"), "/protocol_choice.rs"));

/// The path that messages of `bytes` bytes take: that of the first row which goes so far. The last one goes on for ever.
fn pick(rows: &[(u64, Path)], bytes: u64) -> Path {
    rows.iter().find(|(up_to, _)| bytes <= *up_to).map_or(Path::Ring, |(_, path)| *path)
}

/// The plan for a message of `bytes` bytes; `forced` where that path can take it.
pub(crate) fn plan(machine: &Machine, bytes: u64, forced: Option<Path>) -> Plan {
    let pair = machine.ranks == 2;
    let fits = |path: Path| match path {
        Path::Ll => bytes <= machine.arena.ll_message(),
        Path::Push | Path::ZeroCopy => pair && bytes <= machine.arena.push_bytes,
        Path::Copy => pair && machine.arena.copy_slot_bytes > 0,
        Path::Ring | Path::Staged | Path::Nccl => true,
    };
    let rows = match (machine.in_host, pair) {
        (true, _) => IN_HOST,
        (false, true) => PAIR,
        (false, false) => MORE,
    };
    let wanted = forced.unwrap_or_else(|| pick(rows, bytes));
    let path = [wanted, Path::Push, Path::Copy].into_iter().find(|path| fits(*path)).unwrap_or(Path::Ring);
    gentle(shape(machine, bytes, path), machine.link_health)
}

/// From here on a link is taken as sound.
const SOUND: u32 = 60;

/// By how much chunks are cut on a link of this health: halved for every 20 points begun below 60, so that less is sent
/// again, or waited for, when the link stumbles.
fn cut(health: u32) -> u64 {
    1 << SOUND.saturating_sub(health).div_ceil(20)
}

/// The same plan with smaller copies where the link is ill. What kernels push has no chunks: each word tells itself that it
/// has come.
fn gentle(plan: Plan, health: u32) -> Plan {
    let copy_bytes = (plan.copy_bytes / cut(health)).max(MIB.min(plan.copy_bytes));
    Plan { copy_bytes, ..plan }
}

/// For results that no path may round in its own way, nor cut the mean of integers at each hop: lines from everyone,
/// reduced in the order of the ranks with one rounding; what is longer than there are lines goes in several calls.
pub(crate) fn plan_in_order(machine: &Machine, bytes: u64) -> Plan {
    shape(machine, bytes.min(machine.arena.ll_message()), Path::Ll)
}

/// The plan for a broadcast of `bytes` bytes: lines to everyone, data that tells itself that it has come where two ranks map
/// each other, or slots that each rank passes on. Longer messages than a path takes at once go in several launches.
pub(crate) fn plan_broadcast(machine: &Machine, bytes: u64, forced: Option<Path>) -> Plan {
    let pushes = machine.ranks == 2 && machine.arena.push_bytes > 0;
    let path = match forced {
        Some(Path::Nccl) => Path::Nccl,
        Some(Path::Ll) => Path::Ll,
        Some(Path::Push | Path::Copy) if pushes => Path::Push,
        Some(Path::Ring) => Path::Ring,
        _ => pick(if pushes { BROADCAST_PAIR } else { BROADCAST_MORE }, bytes),
    };
    let bytes = match path {
        Path::Ll => bytes.min(machine.arena.ll_message()),
        Path::Push => bytes.min(machine.arena.push_bytes),
        _ => bytes,
    };
    shape(machine, bytes, path)
}

fn shape(machine: &Machine, bytes: u64, path: Path) -> Plan {
    // Ranks of one process may share a device, and blocks that wait for each other must all be resident.
    let most = (machine.multiprocessors / machine.sharing.max(1)).max(1);
    let base = Plan { path, blocks: 1, threads: 512, copy_bytes: machine.arena.copy_slot_bytes };
    let blocks = |work: u64| (work as u32).clamp(1, most);
    match path {
        Path::Ll => {
            let units = bytes.div_ceil(8);
            let threads = (units.next_multiple_of(32) as u32).clamp(64, 256);
            Plan { threads, blocks: blocks(units.div_ceil(u64::from(threads))), ..base }
        }
        Path::Push | Path::ZeroCopy => {
            let units = bytes.div_ceil(512); // one for each warp, while there are warps
            let threads = if units <= 8 * u64::from(most) { 256 } else { 512 };
            let blocks = blocks(units.div_ceil(u64::from(threads) / 32));
            // Each block that tells the peer that all is there has a line of its own for it.
            let blocks = if path == Path::ZeroCopy { blocks.min(kernels::args::RING_BLOCKS) } else { blocks };
            Plan { threads, blocks, ..base }
        }
        // Half of them are fast enough, and room must be left for the small kernels around the copies.
        Path::Copy => Plan { blocks: (most / 2).max(1), ..base },
        Path::Ring => {
            // Over PCIe few blocks do, until the message is so long that small slots keep both directions busy.
            let (most, each, threads) = match machine.in_host {
                false => (most / 2, 64 * KIB, 512),
                true if bytes > 32 * MIB => (most.min(64), 16 * KIB, 512),
                true => (most.min(16), 16 * KIB, 256),
            };
            Plan { blocks: blocks(bytes.div_ceil(each)).min(most).max(1), threads, ..base }
        }
        Path::Staged | Path::Nccl => base,
    }
}

/// One copy of the copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Where it begins in the message.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// Where it lies in the arena.
    pub(crate) slot: u64,
    /// The chunk of the same call whose place it takes.
    pub(crate) after: Option<u32>,
}

/// The longest message of one call of the copy engine; a longer one is several calls.
pub(crate) fn longest_copy(copy_bytes: u64) -> u64 {
    (16 * copy_bytes).min(4 << 30)
}

/// Cuts a message into as few copies as are not longer than `copy_bytes`, of the same length.
pub(crate) fn chunks(bytes: u64, arena: &Arena, copy_bytes: u64) -> Vec<Chunk> {
    let number = bytes.div_ceil(copy_bytes).max(1);
    let length = bytes.div_ceil(number).next_multiple_of(4096);
    let chunk = |number: u64| Chunk {
        at: number * length,
        bytes: length.min(bytes - number * length),
        slot: arena.copy_at + number % COPY_SLOTS * arena.copy_slot_bytes,
        after: number.checked_sub(COPY_SLOTS).map(|earlier| earlier as u32),
    };
    (0..bytes.div_ceil(length)).map(chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn machine(ranks: u32) -> Machine {
        Machine {
            ranks,
            multiprocessors: 132,
            sharing: 1,
            arena: Arena::new(ranks, 141 << 30),
            in_host: false,
            link_health: 100,
        }
    }

    #[test]
    fn size_decides_unless_a_path_is_forced_that_can_take_it() {
        let path = |bytes, forced| plan(&machine(2), bytes, forced).path;
        assert_eq!(path(1024, None), Path::Ll);
        assert_eq!(path(16 * KIB, None), Path::Push);
        assert_eq!(path(16 * MIB, None), Path::Push);
        assert_eq!(path(1 << 30, None), Path::Copy);
        assert_eq!(path(1024, Some(Path::Ring)), Path::Ring);
        assert_eq!(path(1 << 30, Some(Path::Ll)), Path::Copy);
        assert_eq!(plan(&machine(4), 1 << 30, Some(Path::Copy)).path, Path::Ring);
        assert_eq!(path(4 * MIB, Some(Path::ZeroCopy)), Path::ZeroCopy);
        assert_eq!(path(1 << 30, Some(Path::ZeroCopy)), Path::Copy);
        assert_eq!(plan(&machine(4), MIB, Some(Path::ZeroCopy)).path, Path::Ring);
        assert!(plan(&machine(2), 64 * MIB, Some(Path::ZeroCopy)).blocks <= kernels::args::RING_BLOCKS);
        let in_host = Machine { arena: Arena::in_host(2), in_host: true, ..machine(2) };
        let path = |bytes, forced| plan(&in_host, bytes, forced).path;
        assert_eq!(path(1024, None), Path::Ll);
        assert_eq!(path(1 << 30, None), Path::Ring);
        for forced in [Path::Push, Path::Copy, Path::Ring] {
            assert_eq!(path(8 * MIB, Some(forced)), Path::Ring);
        }
    }

    #[test]
    fn a_row_ends_with_its_last_byte_and_the_last_row_never() {
        let rows = [(15, Path::Ll), (64, Path::Push), (u64::MAX, Path::Copy)];
        let picked = [0, 15, 16, 64, 65, u64::MAX].map(|bytes| pick(&rows, bytes));
        assert_eq!(picked, [Path::Ll, Path::Ll, Path::Push, Path::Push, Path::Copy, Path::Copy]);
    }

    #[test]
    fn chunks_are_smaller_on_a_link_that_is_ill() {
        assert_eq!([100, 60, 59, 40, 39, 20, 19, 0].map(cut), [1, 1, 2, 2, 4, 4, 8, 8]);
        let of = |link_health| plan(&Machine { link_health, ..machine(2) }, 1 << 30, None).copy_bytes;
        assert_eq!((of(60), of(50), of(0)), (of(100), of(100) / 2, of(100) / 8));
        let number = |health| chunks(100 * MIB, &machine(2).arena, of(health)).len();
        assert!(number(30) > number(100));
        let small = Plan { copy_bytes: 4096, ..plan(&machine(2), 1 << 30, None) };
        assert_eq!(gentle(small, 0).copy_bytes, 4096);
    }

    #[test]
    fn a_broadcast_takes_the_same_ways() {
        let path = |machine: &Machine, bytes, forced| plan_broadcast(machine, bytes, forced).path;
        let pair = machine(2);
        assert_eq!(path(&pair, 1024, None), Path::Ll);
        assert_eq!(path(&pair, 16 * KIB, None), Path::Push);
        assert_eq!(path(&pair, 1 << 33, None), Path::Push);
        assert_eq!(path(&pair, 1024, Some(Path::Ring)), Path::Ring);
        for other in [machine(3), Machine { arena: Arena::in_host(2), in_host: true, ..machine(2) }] {
            assert_eq!(path(&other, 64 * KIB, None), Path::Ll);
            assert_eq!(path(&other, 1 << 30, None), Path::Ring);
            assert_eq!(path(&other, 1 << 30, Some(Path::Push)), Path::Ring);
        }
    }

    #[test]
    fn in_order_means_lines_whatever_the_size() {
        for ranks in 2..=8 {
            let machine = machine(ranks);
            assert_eq!(plan_in_order(&machine, 1000), plan(&machine, 1000, Some(Path::Ll)));
            let longest = plan(&machine, machine.arena.ll_message(), Some(Path::Ll));
            assert_eq!(plan_in_order(&machine, 1 << 30), longest);
        }
    }

    #[test]
    fn ranks_that_share_a_device_leave_room_for_each_other() {
        for ranks in 2..=8 {
            for path in [Path::Ll, Path::Push, Path::Copy, Path::Ring] {
                for bytes in [1, 100 * KIB, MIB, 32 * MIB, 1 << 30] {
                    let shared = plan(&Machine { sharing: ranks, ..machine(ranks) }, bytes, Some(path));
                    assert!(shared.blocks * ranks <= 132, "{shared:?}");
                    let apart = plan(&machine(ranks), bytes, Some(path));
                    assert!((shared.blocks..=132).contains(&apart.blocks), "{apart:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn chunks_cover_the_message_once_and_never_share_a_place_without_waiting(
            bytes in 1u64..=(1 << 30), copy_bytes in 1u64..(1 << 10),
        ) {
            for memory_bytes in [8u64 << 30, 141 << 30] {
                let arena = Arena::new(2, memory_bytes);
                let copy_bytes = (copy_bytes * MIB).min(arena.copy_slot_bytes);
                let bytes = bytes.min(longest_copy(copy_bytes));
                let chunks = chunks(bytes, &arena, copy_bytes);
                prop_assert!(chunks.len() <= kernels::args::MAX_CHUNKS, "{}", chunks.len());
                let mut next = 0;
                for (number, chunk) in chunks.iter().enumerate() {
                    prop_assert_eq!(chunk.at, next);
                    prop_assert!(chunk.bytes > 0 && chunk.bytes <= arena.copy_slot_bytes && chunk.at % 4096 == 0);
                    prop_assert!(chunk.slot >= arena.copy_at && chunk.slot + chunk.bytes <= arena.bytes);
                    next += chunk.bytes;
                    for (earlier, other) in chunks[..number].iter().enumerate() {
                        let apart = other.slot + other.bytes <= chunk.slot || chunk.slot + chunk.bytes <= other.slot;
                        prop_assert!(apart || chunk.after.is_some_and(|after| after as usize >= earlier));
                    }
                }
                prop_assert_eq!(next, bytes);
            }
        }
    }
}
