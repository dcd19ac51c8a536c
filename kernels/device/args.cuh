// What a launch is given; `src/args.rs` has the same in Rust, and both sides assert size and offsets.
#pragma once
#include "types.cuh"

constexpr u32 MAX_RANKS = 8;
constexpr u32 MAX_BLOCKS = 256;

// Why a kernel gave up. The numbers are those of `args.rs`.
enum Trouble : u32 { NONE = 0, ABORTED = 1, LEFT = 2, FAILED = 3, MISMATCH = 4, TIMEOUT = 5, CORRUPT = 6, DIFFER = 7, STALE = 8 };

// Written by the first thread that gives up, into host memory; `kind` last.
struct Record {
    u32 kind;
    u32 peer;
    u64 epoch;
    u32 block;
    u32 chunk;
    u64 theirs; // what the peer called (MISMATCH), what arrived (CORRUPT), the peer's result (DIFFER)
    u64 ours;   // what was called here, what was sent, this rank's result
    u64 signature; // what was called here
};

struct Args {
    u8* arena[MAX_RANKS]; // each rank's arena as this rank maps it
    u8* own;           // what only this GPU uses: Control, and sums
    const u8* send;
    u8* recv;
    u64 count;         // elements of this launch
    const u8* segment; // front of the job's segment, or null
    Record* record;
    u64 limit_ns;  // longest wait, 0 for none
    u64 signature; // type, op and count of the call
    u64 ll_at, ll_bytes;           // LL lines: offset in an arena, bytes for one source and parity
    u64 bulk_at, bulk_bytes;       // slots of the ring: offset, bytes of one parity
    u64 push_at, push_bytes;       // where pushed data lands: the same
    u64 escapes_at, escapes_bytes; // the bits of its escaped words: the same
    u32 rank, size;
    u32 op;
    u32 generation;  // of the communicator in the segment
    u32 blocks_at;   // of the ranks' blocks in the segment
    u32 chunk;       // which chunk of the call this launch waits for
    u32 check;       // a checked chunk has 1 << check bytes; 0: nothing is checked
    u8 position;     // ring: this rank's
    u8 next;         // ring: the rank after this one
    u8 previous;     // ring: the rank before
    u8 root;         // of a broadcast
    u64 slot;        // ring: bytes of a slot; zero copy: where the own result lies (`zero.cuh`)
    u64 tag;         // type and op in one byte
};

// The copy engine's call: what of the message it moves, in chunks.
constexpr u32 MAX_CHUNKS = 24;
struct CopyArgs {
    Args a;
    u64 chunks;
    u64 end[MAX_CHUNKS];  // where in the message a chunk ends
    u64 slot[MAX_CHUNKS]; // where in the arena it lies
};
static_assert(sizeof(CopyArgs) == 240 + 8 + 16 * MAX_CHUNKS, "args.rs has this size");
static_assert(sizeof(Args) == 240 && sizeof(Record) == 48, "args.rs has these sizes");


// One piece of data damaged on purpose, in images made with CHECKED: `libcomm/src/fault.rs`.
enum FaultKind : u32 { NO_FAULT = 0, FLIP = 1, FLIP_RESULT = 2, DROP = 3, DELAY = 4 };
struct Fault {
    u32 kind;
    u32 bit;   // FLIP: of the 8 bytes
    u64 epoch; // of the call
    u64 at;    // byte of the message
    u64 delay_ns;
};

// The first page: what only this GPU uses.
struct Control {
    u32 failed; // Trouble of the call that gave up, for ever
    u32 unused;
    u32 readers[MAX_CHUNKS]; // warps that have read a chunk
    u64 unused_too[2];
    Fault fault;
    u64 unused_either[237];
    u64 epoch[MAX_BLOCKS]; // calls that are over, once for each block, so that no block waits for another
};
static_assert(sizeof(Control) == 4096 && sizeof(Fault) == 32, "one page; args.rs has the place of the fault");

// In it, where the first words leave room: what all calls have in common, written by the host.
constexpr u32 KEPT_AT = 1280;
static_assert(KEPT_AT + sizeof(Args) <= 2048, "before the epochs");

// The second page: what the peers write, by source rank and parity of the call.
struct alignas(16) Called { u64 epoch, signature; };
constexpr u64 IN_PLACE = 1ull << 63; // beside the signature
// A word of pushed data that has not come; `args.rs` has its half. Even: the odd one beside it is of use, too.
constexpr u64 ABSENT = 0xffb9e6a6ffb9e6a6ull;
// From the third page: in which call a chunk has arrived, and in which one the peer has read it.
constexpr u32 CALLED_AT = 4096;
constexpr u32 ARRIVED_AT = 8192;
constexpr u32 CREDIT_AT = 16384;
constexpr u32 SLOTS = 64; // words for each source
// Ring channels: counts of pieces delivered and of pieces consumed, one line a block.
constexpr u32 HEAD_AT = 32768;
constexpr u32 TAIL_AT = 49152;
// What peers say of each checked chunk: the sum of what they sent, and of their result; by parity and source.
constexpr u32 CHECKS = 64;
constexpr u32 SENT_AT = 65536;
constexpr u32 RESULT_AT = 81920;
// Sums that only this GPU uses: of what was sent, of the result, and of what came from each source.
constexpr u32 SUMS_AT = 98304;
// The copy engine's path in place: what each warp of the peer has taken.
constexpr u32 ACKNOWLEDGED_AT = 131072;
constexpr u32 LL_AT = 163840;
static_assert(LL_AT - ACKNOWLEDGED_AT >= 8 * MAX_BLOCKS * 16, "a word for each warp");
