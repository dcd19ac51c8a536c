// The copy engine's path, for two ranks: the engine copies chunks of `send` into slots of the peer; one kernel takes
// what the peer's engine brings, chunk by chunk, and may push the first part of the message itself meanwhile.
//
// One-shot: every byte crosses the link once. Small kernels in other streams keep the engine going and are out of its
// way: `copies_begin` waits until the peer has read the last chunk of the last such call, `copies_flag` tells the peer
// of a chunk that the engine has delivered, `copies_wait` waits before a slot is used again in the same call.
//
// What was tried, 2 x H200 (NVLink 18 links), driver 580.159.04, 2026-11-29, `prun -n 2 gpu_perf tune copy`, f32 sum in
// a graph, 64 MiB / 256 MiB / 1 GiB in us: a kernel for each chunk behind its copy, 244 / 766 / 2918; one kernel, with
// the flag as an 8-byte copy behind each chunk in the engine's own stream, 219 / 765 / 2911 (9 us a chunk are lost);
// a sixth of the message pushed by the kernel meanwhile, 239 / 783 / 2927. The link alone would take 172 / 688 / 2753.
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
    Arrivals arrivals{a, epoch};
    for (u32 chunk = 0; chunk < c.chunks; chunk++) {
        if (!warp_wait(a, arrived(a.arena[a.rank], peer, chunk), epoch, epoch, chunk)) return;
        // In place a chunk may be overwritten only once it has been copied: the engine says so in our own words.
        if (a.send == a.recv && !warp_wait(a, arrived(a.arena[a.rank], a.rank, chunk), epoch, epoch, chunk)) return;
        u64 at = (u64(blockIdx.x) * each + index) * WARP_BYTES + 16 * lane;
        reduce_in<T>(a, arrivals, a.arena[a.rank] + c.slot[chunk] + at, begin + at, c.end[chunk], warps * WARP_BYTES, bytes, aligned);
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

// One warp behind a copy, in another stream than the engine's.
__device__ __forceinline__ void copies_flag(const Args& a) {
    if (threadIdx.x != 0) return;
    const u64 epoch = *(volatile u64*)&control(a)->copies;
    __threadfence_system(); // the copy before this kernel
    store_release(arrived(a.arena[a.rank ^ 1], a.rank, a.chunk), epoch);
    if (a.send == a.recv) store_release(arrived(a.arena[a.rank], a.rank, a.chunk), epoch);
}

// One warp before a copy to where chunk `a.chunk` of this call was.
__device__ __forceinline__ void copies_wait(const Args& a) {
    // The kernel that ends the call may be over before the last copies are, so its words are not looked at.
    const u64 epoch = *(volatile u64*)&control(a)->copies;
    const u32 peer = a.rank ^ 1;
    block_wait(a, was_read(a.arena[a.rank], peer, a.chunk), epoch, peer, epoch, a.chunk);
}
