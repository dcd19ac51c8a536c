// The copy engine's path, for two ranks: the engine copies chunks of `send` into slots of the peer, and behind each the
// number of the call, so that whoever sees that number has the chunk. One kernel takes what the peer's engine
// brings, and meanwhile pushes the first part of the message itself, while the engine gets going.
//
// One-shot: every byte crosses the link once. Before the copies of a call `copies_begin` waits, in their stream, until
// the peer has read the last chunk of the last such call; before a copy into a slot that the same call has used,
// `copies_wait` until the peer has read what was there.
#pragma once
#include "push.cuh"

__device__ __forceinline__ u64* arrived(u8* arena, u32 source, u32 chunk) { return (u64*)(arena + ARRIVED_AT) + source * SLOTS + chunk; }
__device__ __forceinline__ u64* was_read(u8* arena, u32 source, u32 chunk) { return (u64*)(arena + CREDIT_AT) + source * SLOTS + chunk; }

template <class T> __device__ __forceinline__ void chunks_receive(const CopyArgs& c, u64 epoch, u32 index, u32 each) {
    const Args& a = c.a;
    const u64 bytes = a.count * sizeof(T);
    const bool aligned = all_aligned(a, 16);
    const u32 peer = a.rank ^ 1, lane = threadIdx.x & 31;
    const u64 warps = u64(gridDim.x) * each;
    u64 begin = c.pushed;
    for (u32 chunk = 0; chunk < c.chunks; chunk++) {
        if (!warp_wait(a, arrived(a.arena[a.rank], peer, chunk), epoch, epoch, chunk)) return;
        u64 at = (u64(blockIdx.x) * each + index) * WARP_BYTES + 16 * lane;
        reduce_in<T>(a, a.arena[a.rank] + c.slot[chunk] + at, begin + at, c.end[chunk], warps * WARP_BYTES, bytes, aligned);
        begin = c.end[chunk];
        __syncwarp();
        if (lane == 0) {
            __threadfence();
            if (atomicAdd(&control(a)->readers[chunk], 1) == warps - 1) {
                control(a)->readers[chunk] = 0;
                if (chunk == c.chunks - 1) *(volatile u64*)&control(a)->owed = epoch << 8 | chunk;
                __threadfence_system();
                store_release(was_read(a.arena[peer], a.rank, chunk), epoch);
            }
        }
    }
}

template <class T> __device__ __forceinline__ void copy_all_reduce(const CopyArgs& c) {
    const Args& a = c.a;
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    announce(a, epoch);
    const u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, pushing = a.push_warps + c.push_receivers;
    if (warp < a.push_warps) push_send<T>(a, epoch, c.pushed, warp, a.push_warps);
    else if (warp < pushing) push_receive<T>(a, epoch, c.pushed, warp - a.push_warps, c.push_receivers);
    else chunks_receive<T>(c, epoch, warp - pushing, warps - pushing);
    // The copies' stream reads the number of the call from block 0's word.
    if (blockIdx.x == 0) block_wait(a, &control(a)->copies, epoch, a.rank ^ 1, epoch, 0);
    leave(a, epoch);
}

// One warp in the copies' stream, before the first of a call.
__device__ __forceinline__ void copies_begin(const Args& a) {
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    const u64 owed = *(volatile u64*)&control(a)->owed;
    const u32 peer = a.rank ^ 1;
    if (block_wait(a, was_read(a.arena[a.rank], peer, u32(owed & 255)), owed >> 8, peer, epoch, 0) && threadIdx.x == 0) {
        *(volatile u64*)&control(a)->copies = epoch;
        __threadfence_system();
    }
}

// One warp before a copy to where chunk `a.chunk` of this call was.
__device__ __forceinline__ void copies_wait(const Args& a) {
    // The kernel that ends the call may be over before the last copies are, so its words are not looked at.
    const u64 epoch = *(volatile u64*)&control(a)->copies;
    const u32 peer = a.rank ^ 1;
    block_wait(a, was_read(a.arena[a.rank], peer, a.chunk), epoch, peer, epoch, a.chunk);
}
