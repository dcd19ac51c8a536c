//! What lies where in the memory that each rank exports: the peers write into it, and only its owner reads it.
//!
//! First the words (`kernels/device/args.cuh`), then LL lines, the ring's slots, and where pushed data lands with the
//! bits of its escaped words, each for both parities of the epoch, then the copy engine's slots, once: it cannot ask
//! for the parity. Pure arithmetic, the same on all ranks.

use kernels::args::{LL_AT, PUSHED_PER_ESCAPE};

const MIB: u64 = 1 << 20;
/// All LL lines of one parity.
const LL_BYTES: u64 = 4 * MIB;

/// Offsets and sizes in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arena {
    pub(crate) ll_at: u64,
    /// For one source and one parity.
    pub(crate) ll_bytes: u64,
    pub(crate) bulk_at: u64,
    /// For one parity.
    pub(crate) bulk_bytes: u64,
    /// The bits of escaped words.
    pub(crate) escapes_at: u64,
    /// For one parity.
    pub(crate) escapes_bytes: u64,
    /// Where pushed data lands. All words read `ABSENT` at first; whatever is before is zero.
    pub(crate) push_at: u64,
    /// For one parity.
    pub(crate) push_bytes: u64,
    /// Slots of the copy engine, where all words read `ABSENT` at first, too.
    pub(crate) copy_at: u64,
    pub(crate) copy_slot_bytes: u64,
    pub(crate) bytes: u64,
}

/// Slots of the copy engine.
pub(crate) const COPY_SLOTS: u64 = 2;

/// In the host's memory: all LL lines of one parity, and the ring's slots.
const HOST_LL_BYTES: u64 = MIB;
const HOST_BULK_BYTES: u64 = 4 * MIB;

impl Arena {
    /// For `ranks` ranks, in the host's memory.
    pub(crate) fn in_host(ranks: u32) -> Arena {
        let ll_bytes = HOST_LL_BYTES / u64::from(ranks) / 256 * 256;
        let bulk_at = (LL_AT + 2 * u64::from(ranks) * ll_bytes).next_multiple_of(MIB);
        let end = bulk_at + 2 * HOST_BULK_BYTES;
        Arena {
            ll_at: LL_AT,
            ll_bytes,
            bulk_at,
            bulk_bytes: HOST_BULK_BYTES,
            escapes_at: end,
            escapes_bytes: 0,
            push_at: end,
            push_bytes: 0,
            copy_at: end,
            copy_slot_bytes: 0,
            bytes: end,
        }
    }

    /// For `ranks` ranks, the smallest of whose devices has `memory_bytes`. At most about a hundredth of it.
    pub(crate) fn new(ranks: u32, memory_bytes: u64) -> Arena {
        let ll_bytes = LL_BYTES / u64::from(ranks) / 256 * 256;
        let bulk_bytes = 16 * MIB;
        let copy_slot_bytes = if ranks == 2 { (memory_bytes / 512 / MIB * MIB).clamp(8 * MIB, 256 * MIB) } else { 0 };
        let bulk_at = (LL_AT + 2 * u64::from(ranks) * ll_bytes).next_multiple_of(MIB);
        let push_bytes = if ranks == 2 { (memory_bytes / 1024 / MIB * MIB).clamp(8 * MIB, 64 * MIB) } else { 0 };
        let escapes_bytes = push_bytes / PUSHED_PER_ESCAPE;
        let escapes_at = bulk_at + 2 * bulk_bytes;
        let push_at = (escapes_at + 2 * escapes_bytes).next_multiple_of(MIB);
        let copy_at = push_at + 2 * push_bytes;
        let bytes = copy_at + COPY_SLOTS * copy_slot_bytes;
        Arena {
            ll_at: LL_AT,
            ll_bytes,
            bulk_at,
            bulk_bytes,
            escapes_at,
            escapes_bytes,
            push_at,
            push_bytes,
            copy_at,
            copy_slot_bytes,
            bytes,
        }
    }

    /// The longest message that LL can take.
    pub(crate) fn ll_message(&self) -> u64 {
        self.ll_bytes / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_in_the_host_is_small_and_has_room_for_the_proof() {
        for ranks in 2..=8 {
            let arena = Arena::in_host(ranks);
            assert!(arena.bulk_at >= arena.ll_at + 2 * u64::from(ranks) * arena.ll_bytes);
            assert_eq!(arena.bytes, arena.bulk_at + 2 * arena.bulk_bytes);
            assert!(arena.bytes <= 12 << 20 && arena.ll_message() >= 64 << 10, "{arena:?}");
        }
    }

    #[test]
    fn parts_follow_each_other_without_overlap_for_any_number_of_ranks_and_any_device() {
        for ranks in 2..=8 {
            for memory_bytes in [2 << 30, 8 << 30, 24 << 30, 141 << 30] {
                let arena = Arena::new(ranks, memory_bytes);
                assert_eq!(arena.ll_at, LL_AT);
                assert!(arena.bulk_at >= arena.ll_at + 2 * u64::from(ranks) * arena.ll_bytes);
                assert_eq!(arena.escapes_at, arena.bulk_at + 2 * arena.bulk_bytes);
                assert!(arena.push_at >= arena.escapes_at + 2 * arena.escapes_bytes);
                assert_eq!(arena.escapes_bytes, arena.push_bytes / 512 * 32); // of each unit of 512 bytes
                assert_eq!(arena.copy_at, arena.push_at + 2 * arena.push_bytes);
                assert_eq!(arena.bytes, arena.copy_at + COPY_SLOTS * arena.copy_slot_bytes);
                for offset in [arena.ll_at, arena.ll_bytes, arena.bulk_at, arena.escapes_at, arena.push_at] {
                    assert_eq!(offset % 128, 0);
                }
                assert!(arena.ll_message() >= 256 << 10, "{ranks}");
                assert!(arena.bytes <= memory_bytes / 10, "{memory_bytes}: {arena:?}");
            }
        }
    }
}
