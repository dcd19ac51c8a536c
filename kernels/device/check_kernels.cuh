// The kernels before and after a checked call. The argument is in `check.cuh`.
#pragma once
#include "check.cuh"
#include "vec.cuh"

// What only this GPU uses, behind the sums: where a block of these kernels adds up.
constexpr u32 TOTALS_AT = SUMS_AT + (2 + MAX_RANKS) * CHECKS * 8;

__device__ __forceinline__ u32 checks(const Args& a, u64 bytes) { return u32((bytes + (1ull << a.check) - 1) >> a.check); }

// The sum of a chunk of a buffer of bytes, to all threads of the block.
//
// It is gathered in a word of global memory for each block, and no kernel here has shared memory: one that divides the
// first-level cache otherwise than the kernel before it may have to wait until the GPU is idle, and so for kernels of other
// ranks on this GPU that wait for it (ranks as threads of one process, as tests have them).
__device__ __forceinline__ u64 chunk_sum(const Args& a, const u8* buffer, u64 bytes, u32 chunk) {
    u64* total = (u64*)(a.own + TOTALS_AT) + blockIdx.x;
    __syncthreads(); // all have read the last one
    if (threadIdx.x == 0) {
        atomicExch(total, 0);
        __threadfence();
    }
    __syncthreads();
    const u64 begin = u64(chunk) << a.check, end = begin + (1ull << a.check) < bytes ? begin + (1ull << a.check) : bytes;
    const bool aligned = ((u64)buffer & 15) == 0;
    u64 sum = 0;
    for (u64 at = begin + 16 * threadIdx.x; at < end; at += 16 * blockDim.x) {
        Pack<u8, 16> pack = load_pack<u8, 16>(buffer, at, bytes, aligned);
        sum += mix(pack.words[0], at / 8);
        if (at + 8 < bytes) sum += mix(pack.words[1], at / 8 + 1);
    }
    for (u32 lanes = 16; lanes != 0; lanes /= 2) sum += __shfl_down_sync(~0u, sum, lanes);
    if ((threadIdx.x & 31) == 0) {
        atomicAdd(total, sum);
        __threadfence();
    }
    __syncthreads();
    return *(volatile u64*)total;
}

// `count` is in bytes here.
__device__ __forceinline__ void sum_what_is_sent(const Args& a) {
    if (*(volatile u32*)&control(a)->failed != NONE) return;
    for (u32 chunk = blockIdx.x; chunk < checks(a, a.count); chunk += gridDim.x) {
        u64 sum = chunk_sum(a, a.send, a.count, chunk);
        if (threadIdx.x == 0) *sent_sum(a, chunk) = sum;
    }
}

// Awaits what a peer says of a chunk; false if it gave up.
__device__ __forceinline__ bool await_sum(const Args& a, u32 at, u64 epoch, u32 peer, u32 chunk, u64& sum) {
    Watch watch;
    for (;;) {
        Words2 told = load_words(told_sum(a, a.rank, at, epoch, peer, chunk));
        sum = told.x;
        if (told.y == mix(told.x, epoch)) return true;
        if (watch.stop(a, peer, epoch, chunk)) return false;
    }
}

// Where the result is to be damaged.
__device__ __forceinline__ void strike_result(const Args& a, u64 epoch, u32 chunk) {
    const Fault& fault = control(a)->fault;
    if (fault.kind == FLIP_RESULT && fault.epoch == epoch && fault.at < a.count && fault.at >> a.check == chunk && threadIdx.x == 0)
        a.recv[fault.at] ^= u8(1u << (fault.bit & 7));
    __threadfence();
}

// After the call. `a.chunk`: whether it went around a ring, so that only the previous rank's data came here.
__device__ __forceinline__ void compare_sums(const Args& a) {
    if (*(volatile u32*)&control(a)->failed != NONE) return;
    const u64 epoch = *(volatile u64*)&control(a)->epoch[0];
    const u32 chunks = checks(a, a.count), peer = threadIdx.x;
    const bool talks = peer < a.size && peer != a.rank;
    for (u32 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        strike_result(a, epoch, chunk);
        const u64 sum = chunk_sum(a, a.recv, a.count, chunk);
        if (threadIdx.x == 0) *result_sum(a, chunk) = sum;
        if (talks) {
            const u64 sent = *sent_sum(a, chunk);
            store_words(told_sum(a, peer, SENT_AT, epoch, a.rank, chunk), sent, mix(sent, epoch));
            store_words(told_sum(a, peer, RESULT_AT, epoch, a.rank, chunk), sum, mix(sum, epoch));
        }
    }
    __syncthreads();
    const u32 previous = a.previous;
    for (u32 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        if (talks) {
            u64 theirs;
            if (!await_sum(a, SENT_AT, epoch, peer, chunk, theirs)) return;
            const u64 came = *came_sum(a, peer, chunk);
            if ((a.chunk == 0 || peer == previous) && came != theirs) return report(a, a.signature, CORRUPT, peer, epoch, chunk, came, theirs);
            if (!await_sum(a, RESULT_AT, epoch, peer, chunk, theirs)) return;
            const u64 ours = *result_sum(a, chunk);
            if (ours != theirs) return report(a, a.signature, DIFFER, peer, epoch, chunk, theirs, ours);
            *came_sum(a, peer, chunk) = 0;
        }
        if (threadIdx.x == a.rank) *sent_sum(a, chunk) = 0;
    }
}

// After a broadcast: everyone sums what it has, the root tells its sums, and the others compare.
__device__ __forceinline__ void compare_with_root(const Args& a) {
    if (*(volatile u32*)&control(a)->failed != NONE) return;
    const u64 epoch = *(volatile u64*)&control(a)->epoch[0];
    const u32 chunks = checks(a, a.count), peer = threadIdx.x;
    for (u32 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        strike_result(a, epoch, chunk);
        const u64 sum = chunk_sum(a, a.recv, a.count, chunk);
        if (threadIdx.x == 0) *result_sum(a, chunk) = sum;
        if (a.rank == a.root && peer < a.size && peer != a.rank)
            store_words(told_sum(a, peer, RESULT_AT, epoch, a.rank, chunk), sum, mix(sum, epoch));
    }
    if (a.rank == a.root || threadIdx.x != 0) return;
    for (u32 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        u64 theirs;
        if (!await_sum(a, RESULT_AT, epoch, a.root, chunk, theirs)) return;
        const u64 ours = *result_sum(a, chunk);
        if (ours != theirs) return report(a, a.signature, CORRUPT, a.root, epoch, chunk, ours, theirs);
    }
}
