//! What lies where in the memory that each rank exports: the peers write into it, and only its owner reads it.
//!
//! First the words (`kernels/device/args.cuh`), then LL lines, LL128 lines and the ring's slots, each for both
//! parities of the epoch, then the copy engine's slots, once: it cannot ask for the parity. Pure arithmetic, the
//! same on all ranks.

use kernels::args::LL_AT;

const MIB: u64 = 1 << 20;
/// Data of a warp's four LL128 lines, and the lines.
const WIDE_DATA: u64 = 480;
const WIDE_LINES: u64 = 512;
/// All LL lines of one parity.
const LL_BYTES: u64 = 4 * MIB;

/// Offsets and sizes in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arena {
    pub(crate) ll_at: u64,
    /// For one source and one parity.
    pub(crate) ll_bytes: u64,
    pub(crate) wide_at: u64,
    /// For one parity.
    pub(crate) wide_bytes: u64,
    pub(crate) bulk_at: u64,
    /// For one parity.
    pub(crate) bulk_bytes: u64,
    /// Where pushed pieces land, for one parity, and their flags.
    pub(crate) push_at: u64,
    pub(crate) push_bytes: u64,
    pub(crate) flags_at: u64,
    /// For one parity; as many again say what has been sent.
    pub(crate) flags: u64,
    /// Slots of the copy engine.
    pub(crate) copy_at: u64,
    pub(crate) copy_slot_bytes: u64,
    pub(crate) bytes: u64,
}

/// Slots of the copy engine.
pub(crate) const COPY_SLOTS: u64 = 4;
/// The shortest piece that is pushed with a flag of its own.
pub(crate) const LEAST_PIECE: u64 = 2048;

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
            wide_at: end,
            wide_bytes: 0,
            bulk_at,
            bulk_bytes: HOST_BULK_BYTES,
            push_at: end,
            push_bytes: 0,
            flags_at: end,
            flags: 0,
            copy_at: end,
            copy_slot_bytes: 0,
            bytes: end,
        }
    }

    /// For `ranks` ranks, the smallest of whose devices has `memory_bytes`. At most about a hundredth of it.
    pub(crate) fn new(ranks: u32, memory_bytes: u64) -> Arena {
        let ll_bytes = LL_BYTES / u64::from(ranks) / 256 * 256;
        let wide_message = if ranks == 2 { (memory_bytes / 2048).clamp(MIB, 32 * MIB) } else { 0 };
        let wide_bytes = wide_message.div_ceil(WIDE_DATA) * WIDE_LINES;
        let bulk_bytes = 16 * MIB;
        let copy_slot_bytes = if ranks == 2 { (memory_bytes / 1024 / MIB * MIB).clamp(4 * MIB, 128 * MIB) } else { 0 };
        let wide_at = LL_AT + 2 * u64::from(ranks) * ll_bytes;
        let bulk_at = (wide_at + 2 * wide_bytes).next_multiple_of(MIB);
        let push_bytes = if ranks == 2 { (memory_bytes / 1024 / MIB * MIB).clamp(8 * MIB, 64 * MIB) } else { 0 };
        let flags = push_bytes / LEAST_PIECE;
        let flags_at = bulk_at + 2 * bulk_bytes;
        let push_at = (flags_at + 4 * 8 * flags).next_multiple_of(MIB);
        let copy_at = push_at + 2 * push_bytes;
        let bytes = copy_at + COPY_SLOTS * copy_slot_bytes;
        Arena {
            ll_at: LL_AT,
            ll_bytes,
            wide_at,
            wide_bytes,
            bulk_at,
            bulk_bytes,
            push_at,
            push_bytes,
            flags_at,
            flags,
            copy_at,
            copy_slot_bytes,
            bytes,
        }
    }

    /// The longest message that LL can take.
    pub(crate) fn ll_message(&self) -> u64 {
        self.ll_bytes / 2
    }

    /// The longest message that LL128 can take.
    pub(crate) fn wide_message(&self) -> u64 {
        self.wide_bytes / WIDE_LINES * WIDE_DATA
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
                assert!(arena.wide_at >= arena.ll_at + 2 * u64::from(ranks) * arena.ll_bytes);
                assert!(arena.bulk_at >= arena.wide_at + 2 * arena.wide_bytes);
                assert_eq!(arena.flags_at, arena.bulk_at + 2 * arena.bulk_bytes);
                assert!(arena.push_at >= arena.flags_at + 32 * arena.flags);
                assert_eq!(arena.copy_at, arena.push_at + 2 * arena.push_bytes);
                assert_eq!(arena.bytes, arena.copy_at + COPY_SLOTS * arena.copy_slot_bytes);
                for offset in [arena.ll_at, arena.ll_bytes, arena.wide_at, arena.wide_bytes, arena.bulk_at] {
                    assert_eq!(offset % 128, 0);
                }
                assert!(arena.ll_message() >= 256 << 10, "{ranks}");
                assert!(arena.bytes <= memory_bytes / 10, "{memory_bytes}: {arena:?}");
            }
        }
    }
}
