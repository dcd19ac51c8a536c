// What a launch is given; `src/args.rs` has the same in Rust, and both sides assert size and offsets.
#pragma once
#include "types.cuh"

constexpr u32 MAX_RANKS = 8;

// Why a kernel gave up. The numbers are those of `args.rs`.
enum Trouble : u32 { NONE = 0, ABORTED = 1, LEFT = 2, FAILED = 3, MISMATCH = 4, TIMEOUT = 5, CORRUPT = 6 };

// Written by the first thread that gives up, into host memory; `kind` last.
struct Record {
    u32 kind;
    u32 peer;
    u64 epoch;
    u32 block;
    u32 chunk;
    u64 theirs; // what the peer called (MISMATCH), or what arrived (CORRUPT)
    u64 ours;   // what was called here, or what was sent
};

struct Args {
    u8* arena[MAX_RANKS]; // each rank's arena as this rank maps it
    const u8* send;
    u8* recv;
    u64 count;         // elements of this launch
    const u8* segment; // front of the job's segment, or null
    Record* record;
    u64 limit_ns;  // longest wait, 0 for none
    u64 signature; // type, op and count of the call
    u64 ll_at, ll_bytes;     // LL lines: offset in an arena, bytes for one source and parity
    u64 wide_at, wide_bytes; // LL128 lines, the same
    u64 bulk_at, bulk_bytes; // slots of the copy engine and of the ring: offset, bytes of one parity
    u32 rank, size;
    u32 op;
    u32 generation;  // of the communicator in the segment
    u32 blocks_at;   // of the ranks' blocks in the segment
    u32 push_warps;  // warps of a block that only send; 0: each sends, then receives
    u32 chunk;       // which chunk of the call this launch moves, or waits for
    u32 last;        // whether this launch ends the call
    u64 slot;        // copy engine: where the chunk lies in the slots; ring: bytes of a slot
    u64 tag;         // type and op in one byte
};
static_assert(sizeof(Args) == 216 && sizeof(Record) == 40, "args.rs has these sizes");

// The first page of an arena: what its own GPU keeps there.
struct Control {
    u64 epoch;  // calls that are over
    u32 done;   // blocks that have finished the launch
    u32 failed; // Trouble of the call that gave up, for ever
};

// The second page: what the peers write, by source rank and parity of the call.
struct alignas(16) Called { u64 epoch, signature; };
// From the third page: which chunk has arrived in a slot, and up to which one the peer has read.
constexpr u32 CALLED_AT = 4096;
constexpr u32 ARRIVED_AT = 8192;
constexpr u32 CREDIT_AT = 16384;
constexpr u32 SLOTS = 64; // most slots of a source
// Ring channels: counts of pieces delivered and of pieces consumed, one line a block.
constexpr u32 HEAD_AT = 32768;
constexpr u32 TAIL_AT = 49152;
constexpr u32 LL_AT = 65536;
