// What goes with the copy engine, for two ranks: the engine copies a chunk of `send` into a slot of the peer, and
// this kernel, behind that copy in the stream, tells the peer, waits for the peer's chunk and reduces it.
//
// One-shot: every byte crosses the link once, nothing waits for a second phase, and the engine never pauses while
// there is a free slot. A slot is free again once the peer has said so (`credit`).
#pragma once
#include "vec.cuh"

__device__ __forceinline__ u64* arrived(u8* arena, u32 source, u32 slot) { return (u64*)(arena + ARRIVED_AT) + source * SLOTS + slot; }
__device__ __forceinline__ u64* credit(u8* arena, u32 source) { return (u64*)(arena + CREDIT_AT) + 16 * source; }
__device__ __forceinline__ u64 chunk_stamp(u64 epoch, u32 chunk) { return epoch << 20 | (chunk + 1); }

template <class T> __device__ __forceinline__ void copy_step(const Args& a) {
    constexpr int DEPTH = 4;
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    const u32 peer = a.rank ^ 1, slot = a.chunk % SLOTS;
    if (a.chunk == 0) announce(a, epoch);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        __threadfence_system(); // the copy before this kernel
        store_release(arrived(a.arena[peer], a.rank, slot), chunk_stamp(epoch, a.chunk));
    }
    if (block_wait(a, arrived(a.arena[a.rank], peer, slot), chunk_stamp(epoch, a.chunk), peer, epoch, a.chunk)) {
        const u8* data = a.arena[a.rank] + a.slot;
        const u64 bytes = a.count * sizeof(T);
        const bool aligned = all_aligned(a, 16);
        const u64 stride = u64(gridDim.x) * blockDim.x;
        u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
        for (; 16 * (i + (DEPTH - 1) * stride) < bytes; i += DEPTH * stride) {
            Pack<T, 16> own[DEPTH], theirs[DEPTH];
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                own[k] = load_pack<T, 16>(a.send, 16 * (i + k * stride), bytes, aligned);
                load_unit(data + 16 * (i + k * stride), theirs[k].words);
            }
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                Pack<T, 16> out = a.rank == 0 ? combine(a.op, 2, own[k], theirs[k]) : combine(a.op, 2, theirs[k], own[k]);
                store_pack<T, 16>(a.recv, 16 * (i + k * stride), bytes, aligned, out);
            }
        }
        for (; 16 * i < bytes; i += stride) {
            Pack<T, 16> own = load_pack<T, 16>(a.send, 16 * i, bytes, aligned), theirs;
            load_unit(data + 16 * i, theirs.words);
            Pack<T, 16> out = a.rank == 0 ? combine(a.op, 2, own, theirs) : combine(a.op, 2, theirs, own);
            store_pack<T, 16>(a.recv, 16 * i, bytes, aligned, out);
        }
    }
    if (a.last) {
        finish(a, epoch);
    } else if (last_block(a) && threadIdx.x == 0) {
        __threadfence_system();
        store_release(credit(a.arena[peer], a.rank), chunk_stamp(epoch, a.chunk));
    }
}

// Before a copy to a place that chunk `a.chunk` of this call was in: returns once the peer has read that.
__device__ __forceinline__ void await_credit(const Args& a) {
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    const u32 peer = a.rank ^ 1;
    block_wait(a, credit(a.arena[a.rank], peer), chunk_stamp(epoch, a.chunk), peer, epoch, a.chunk);
}
