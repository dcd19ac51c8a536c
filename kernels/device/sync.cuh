// How GPUs tell each other things: words with one writer and one reader, epochs, and waits that end.
//
// Epoch e is the number of the call, kept in device memory and advanced by the call's last kernel, so that a captured
// graph can be replayed. Each block has a word for it of its own, so that no block waits for another one. Whoever ends call e has had data of every rank for it, and
// a rank sends data of e only after its call e-1 has ended. So what is written for call e goes to places of
// parity e & 1, last used in call e-2, which everyone has left: no call needs a barrier at its end.
#pragma once
#include "args.cuh"

__device__ __forceinline__ Control* control(const Args& a) { return (Control*)a.own; }

// LL flags hold the low 24 bits of the epoch; lines older than half of that are wiped, so that an old line is never
// taken for a new one. Of two calls in a row each wipes, before it sends, the lines of the call before it: its peers
// write those again only after they have had all data of this one.
constexpr u64 WIPE_PERIOD = 1 << 23;

__device__ __noinline__ void wipe(u8* parity, u64 bytes) {
    Words4* lines = (Words4*)parity;
    u64 begin = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (u64 i = begin; i < bytes / 16; i += u64(gridDim.x) * blockDim.x) lines[i] = Words4{0, 0, 0, 0};
    __threadfence_system();
    __syncthreads();
}

// The call that this kernel is part of; 0 if an earlier one gave up, after which nothing is sent any more.
__device__ __forceinline__ u64 enter(const Args& a) {
    u64 epoch = *(volatile u64*)&control(a)->epoch[blockIdx.x] + 1;
    if (*(volatile u32*)&control(a)->failed != NONE) return 0;
    if (epoch % WIPE_PERIOD < 2)
        wipe(a.arena[a.rank] + a.ll_at + (~epoch & 1) * a.size * a.ll_bytes, a.size * a.ll_bytes);
#if CHECKED
    const Fault& fault = control(a)->fault;
    if (fault.kind == DELAY && fault.epoch == epoch)
        for (const u64 until = nanoseconds() + fault.delay_ns; nanoseconds() < until;) {}
#endif
    return epoch;
}

// Ends call `epoch` for this block and for those that it has not. Every block calls it last.
__device__ __forceinline__ void leave(const Args& a, u64 epoch) {
    __syncthreads(); // all of the block have read the word
    for (u32 i = blockIdx.x + threadIdx.x * gridDim.x; i < MAX_BLOCKS; i += blockDim.x * gridDim.x)
        *(volatile u64*)&control(a)->epoch[i] = epoch;
}

__device__ __forceinline__ Called* called(u8* arena, u32 source, u64 epoch) {
    return (Called*)(arena + CALLED_AT) + 2 * source + (epoch & 1);
}

// Says what this rank has called, for peers that wait in another call. One thread per peer does it.
__device__ __forceinline__ void announce(const Args& a, u64 epoch) {
    if (blockIdx.x == 0 && threadIdx.x < a.size && threadIdx.x != a.rank)
        store_words(called(a.arena[threadIdx.x], a.rank, epoch), epoch, a.signature | (a.send == a.recv ? IN_PLACE : 0));
}

// Whether the peer is known to have made this very call.
__device__ __forceinline__ bool agrees(const Args& a, u32 peer, u64 epoch) {
    const Words2 call = load_words(called(a.arena[a.rank], peer, epoch));
    return call.x == epoch && (call.y & ~IN_PLACE) == a.signature;
}

// Looks at the segment are reads over PCIe: each warp makes one in so many checks.
#ifdef EMULATED // all threads of all launches take a turn in each spin
constexpr u32 SPINS_PER_CHECK = 8;
constexpr u32 CHECKS_PER_LOOK = 2;
#else
constexpr u32 SPINS_PER_CHECK = 1024;
constexpr u32 CHECKS_PER_LOOK = 8;
#endif

// What went wrong at the peer, or between the two.
__device__ __forceinline__ u32 trouble(const Args& kept, u64 signature, u64 limit_ns, u32 peer, u64 epoch, u64 began, u64& theirs) {
    Words2 call = load_words(called(kept.arena[kept.rank], peer, epoch));
    theirs = call.y & ~IN_PLACE;
    if (call.x == epoch && theirs != signature) return MISMATCH;
    if (kept.segment) {
        const u32* status = (const u32*)(kept.segment + kept.blocks_at + u64(peer) * 8192);
        if (load_relaxed(status + 1) == kept.generation) return FAILED;
        if (load_relaxed((const u32*)(kept.segment + 512)) != 0) return ABORTED;
        if (load_relaxed(status) >= 2 * kept.generation) return LEFT;
    }
    if (limit_ns != 0 && nanoseconds() - began > limit_ns) return TIMEOUT;
    return NONE;
}

// The first report of a communicator is the one that is kept.
__device__ __forceinline__ void report(const Args& kept, u64 signature, u32 kind, u32 peer, u64 epoch, u32 chunk, u64 theirs, u64 ours) {
    if (atomicCAS(&control(kept)->failed, NONE, kind) != NONE) return;
    volatile Record* record = kept.record;
    record->peer = peer;
    record->epoch = epoch;
    record->block = blockIdx.x;
    record->chunk = chunk;
    record->theirs = theirs;
    record->ours = ours;
    record->signature = signature;
    __threadfence_system();
    record->kind = kind;
    __threadfence_system();
}

// One check of a wait that takes long: its state afterwards. Functions that are called are given no `Args`: the compiler
// would read a parameter whose address is taken from memory, at each use of it in the whole kernel (0.7 us a call). What
// all calls have in common lies in the own arena, too.
constexpr u64 GAVE_UP = ~0ull;
__device__ __noinline__ u64 check(const u8* own, u64 signature, u64 limit_ns, u32 peer, u64 epoch, u32 chunk, u32 spins, u64 state) {
    const Args& kept = *(const Args*)(own + KEPT_AT);
    if (load_relaxed(&control(kept)->failed) != NONE) return GAVE_UP;
    if (state == 0) state = nanoseconds() & ~1ull;
    bool leader = (threadIdx.x & 31) == u32(__ffs(__activemask()) - 1);
    if (!leader || spins / SPINS_PER_CHECK % CHECKS_PER_LOOK != 0) return state;
    u64 theirs = 0;
    u32 kind = trouble(kept, signature, limit_ns, peer, epoch, state, theirs);
    if (kind == NONE) return state;
    if ((state & 1) == 0) return state | 1;
    report(kept, signature, kind, peer, epoch, chunk, theirs, signature);
    return GAVE_UP;
}

// A wait for one peer.
struct Watch {
    u32 spins = 0;
    // When it began, in even nanoseconds. Odd once trouble was seen: it counts when what is waited for has not come by
    // the next look.
    u64 state = 0;

    // True once waiting makes no sense. Call after each look that found nothing.
    __device__ __forceinline__ bool stop(const Args& a, u32 peer, u64 epoch, u32 chunk = 0) {
        return stop(a.own, a.signature, a.limit_ns, peer, epoch, chunk);
    }
    __device__ __forceinline__ bool stop(const u8* own, u64 signature, u64 limit_ns, u32 peer, u64 epoch, u32 chunk) {
        if (++spins % SPINS_PER_CHECK != 0) return false;
        state = check(own, signature, limit_ns, peer, epoch, chunk, spins, state);
        return state == GAVE_UP;
    }
};

// Thread 0 waits until `word` has reached `value`; all threads of the block return together, false if it gave up.
__device__ __forceinline__ bool block_wait(const Args& a, const u64* word, u64 value, u32 peer, u64 epoch, u32 chunk) {
    bool came = true;
    if (threadIdx.x == 0) {
        Watch watch;
        while (load_acquire(word) < value)
            if (watch.stop(a, peer, epoch, chunk)) {
                came = false;
                break;
            }
    }
    return __syncthreads_and(came);
}

// Returns once every peer is known to have made this very call, or one is known to have made another. Data alone does not tell:
// what goes in pieces may fit a call of another operation or count. One thread of block 0 for each peer; before `leave`.
__device__ __forceinline__ void await_agreement(const Args& a, u64 epoch) {
    const u32 peer = threadIdx.x;
    if (blockIdx.x != 0 || peer >= a.size || peer == a.rank) return;
    Watch watch;
    while (!agrees(a, peer, epoch))
        if (watch.stop(a, peer, epoch)) return;
}
