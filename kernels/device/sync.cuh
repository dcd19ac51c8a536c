// How GPUs tell each other things: words with one writer and one reader, epochs, and waits that end.
//
// Epoch e is the number of the call, kept in device memory and advanced by the call's last kernel, so that a captured
// graph can be replayed. Each block has a word for it of its own, so that no block waits for another one. Whoever ends call e has had data of every rank for it, and
// a rank sends data of e only after its call e-1 has ended. So what is written for call e goes to places of
// parity e & 1, last used in call e-2, which everyone has left: no call needs a barrier at its end.
#pragma once
#include "args.cuh"

__device__ __forceinline__ u32 load_relaxed(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u64 load_acquire(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_release(u64* p, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void store_words(void* p, u64 x, u64 y) {
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(x), "l"(y) : "memory");
}
__device__ __forceinline__ Words2 load_words(const void* p) {
    Words2 v;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ Control* control(const Args& a) { return (Control*)a.own; }

// LL flags hold the low 24 bits of the epoch; lines older than half of that are wiped, so that an old line is never
// taken for a new one. Of two calls in a row each wipes, before it sends, the lines of the call before it: its peers
// write those again only after they have had all data of this one.
constexpr u64 WIPE_PERIOD = 1 << 23;

__device__ __noinline__ void wipe(const Args& a, u64 epoch) {
    Words4* lines = (Words4*)(a.arena[a.rank] + a.ll_at + (~epoch & 1) * a.size * a.ll_bytes);
    u64 begin = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    for (u64 i = begin; i < a.size * a.ll_bytes / 16; i += u64(gridDim.x) * blockDim.x) lines[i] = Words4{0, 0, 0, 0};
    __threadfence_system();
    __syncthreads();
}

// The call that this kernel is part of; 0 if an earlier one gave up, after which nothing is sent any more.
__device__ __forceinline__ u64 enter(const Args& a) {
    u64 epoch = *(volatile u64*)&control(a)->epoch[blockIdx.x] + 1;
    if (*(volatile u32*)&control(a)->failed != NONE) return 0;
    if (epoch % WIPE_PERIOD < 2) wipe(a, epoch);
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
        store_words(called(a.arena[threadIdx.x], a.rank, epoch), epoch, a.signature);
}

constexpr u32 SPINS_PER_CHECK = 1024;
// Looks at the segment are reads over PCIe: each warp makes one in so many checks.
constexpr u32 CHECKS_PER_LOOK = 8;

// A wait for one peer.
struct Watch {
    u32 spins = 0;
    bool warned = false; // trouble was seen once; it counts when what is waited for has not come by the next look
    u64 began = 0;

    // True once waiting makes no sense. Call after each look that found nothing.
    __device__ __forceinline__ bool stop(const Args& a, u32 peer, u64 epoch, u32 chunk = 0) {
        return ++spins % SPINS_PER_CHECK == 0 && check(a, peer, epoch, chunk);
    }

    __device__ __noinline__ bool check(const Args& a, u32 peer, u64 epoch, u32 chunk) {
        if (load_relaxed(&control(a)->failed) != NONE) return true;
        if (began == 0) began = nanoseconds();
        bool leader = (threadIdx.x & 31) == u32(__ffs(__activemask()) - 1);
        if (!leader || spins / SPINS_PER_CHECK % CHECKS_PER_LOOK != 0) return false;
        u64 theirs = 0;
        u32 kind = trouble(a, peer, epoch, theirs);
        if (kind == NONE) return false;
        if (!warned) {
            warned = true;
            return false;
        }
        report(a, kind, peer, epoch, chunk, theirs, a.signature);
        return true;
    }

    __device__ u32 trouble(const Args& a, u32 peer, u64 epoch, u64& theirs) {
        Words2 call = load_words(called(a.arena[a.rank], peer, epoch));
        theirs = call.y;
        if (call.x == epoch && call.y != a.signature) return MISMATCH;
        if (a.segment) {
            const u32* status = (const u32*)(a.segment + a.blocks_at + u64(peer) * 8192);
            if (load_relaxed(status + 1) == a.generation) return FAILED;
            if (load_relaxed((const u32*)(a.segment + 512)) != 0) return ABORTED;
            if (load_relaxed(status) >= 2 * a.generation) return LEFT;
        }
        if (a.limit_ns != 0 && nanoseconds() - began > a.limit_ns) return TIMEOUT;
        return NONE;
    }

    // The first report of a communicator is the one that is kept.
    static __device__ void report(const Args& a, u32 kind, u32 peer, u64 epoch, u32 chunk, u64 theirs, u64 ours) {
        if (atomicCAS(&control(a)->failed, NONE, kind) != NONE) return;
        volatile Record* record = a.record;
        record->peer = peer;
        record->epoch = epoch;
        record->block = blockIdx.x;
        record->chunk = chunk;
        record->theirs = theirs;
        record->ours = ours;
        record->signature = a.signature;
        __threadfence_system();
        record->kind = kind;
        __threadfence_system();
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
