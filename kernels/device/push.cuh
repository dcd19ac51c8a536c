// Simple: plain 16-byte stores into the peer's arena, and a flag for each piece behind a fence.
//
// One-shot, two ranks: some warps of each block write pieces of `send` to the peer and flag them; the others take the
// peer's pieces as they are flagged and reduce them into `recv`. Moves every byte once. Both sides go through the
// pieces in the same order, so what is awaited is what was sent first.
#pragma once
#include "vec.cuh"

constexpr u32 WARP_BYTES = 512; // one access of a warp

__device__ __forceinline__ u64* piece_flag(const Args& a, u32 owner, u64 epoch, u64 piece) {
    return (u64*)(a.arena[owner] + a.flags_at) + (epoch & 1) * a.flags + piece;
}

// In place a piece may be overwritten only once it has been sent: the sender says so here.
__device__ __forceinline__ u64* sent_flag(const Args& a, u64 epoch, u64 piece) {
    return piece_flag(a, a.rank, epoch, piece) + 2 * a.flags;
}

// Sends the first `bytes` bytes, as warp `index` of `each` in its block.
template <class T>
__device__ __forceinline__ void push_send(const Args& a, u64 epoch, u64 bytes, u32 index, u32 each) {
    constexpr int DEPTH = 4;
    const u64 pieces = (bytes + a.slot - 1) / a.slot;
    const bool aligned = all_aligned(a, 16);
    const u32 peer = a.rank ^ 1, lane = threadIdx.x & 31;
    u8* there = a.arena[peer] + a.push_at + (epoch & 1) * a.push_bytes;
    const Arrivals arrivals{a, epoch};
    for (u64 piece = blockIdx.x * each + index; piece < pieces; piece += gridDim.x * each) {
        u64 at = piece * a.slot + 16 * lane, end = (piece + 1) * a.slot < bytes ? (piece + 1) * a.slot : bytes;
        for (; at < end; at += DEPTH * WARP_BYTES) {
            Pack<T, 16> data[DEPTH];
#pragma unroll
            for (int k = 0; k < DEPTH; k++)
                if (at + k * WARP_BYTES < end) data[k] = load_pack<T, 16>(a.send, at + k * WARP_BYTES, bytes, aligned);
#pragma unroll
            for (int k = 0; k < DEPTH; k++)
                if (at + k * WARP_BYTES < end && !arrivals.lost(at + k * WARP_BYTES, 16)) store_unit(there + at + k * WARP_BYTES, data[k].words);
        }
        __syncwarp();
        if (lane == 0) {
            __threadfence_system();
            *(volatile u64*)piece_flag(a, peer, epoch, piece) = epoch;
            if (a.send == a.recv) *(volatile u64*)sent_flag(a, epoch, piece) = epoch;
        }
    }
}

// Reduces what has come to `from`, of bytes `at` to `end` of the message, `stride` bytes from pack to pack.
template <class T>
__device__ __forceinline__ void reduce_in(const Args& a, Arrivals& arrivals, const u8* from, u64 at, u64 end, u64 stride, u64 bytes, bool aligned) {
    constexpr int DEPTH = sizeof(T) == 1 || CHECKED ? 2 : 4; // sums of bytes take many registers
    for (; at < end; at += DEPTH * stride, from += DEPTH * stride) {
        Pack<T, 16> own[DEPTH], theirs[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            if (at + k * stride < end) {
                Words2 v = load_words(from + k * stride);
                theirs[k].words[0] = v.x, theirs[k].words[1] = v.y;
                arrivals.take(a.rank ^ 1, at + k * stride, bytes, theirs[k].words);
                own[k] = load_pack<T, 16>(a.send, at + k * stride, bytes, aligned);
            }
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            if (at + k * stride < end) {
                Pack<T, 16> out = a.rank == 0 ? combine(a.op, 2, own[k], theirs[k]) : combine(a.op, 2, theirs[k], own[k]);
                store_pack<T, 16>(a.recv, at + k * stride, bytes, aligned, out);
            }
    }
}

// All lanes of a warp wait until `word` has reached `value`.
__device__ __forceinline__ bool warp_wait(const Args& a, const u64* word, u64 value, u64 epoch, u32 chunk) {
    Watch watch;
    bool came = true;
    while (load_acquire(word) < value)
        if (watch.stop(a, a.rank ^ 1, epoch, chunk)) {
            came = false;
            break;
        }
    return __all_sync(~0u, came);
}

// Takes the peer's first `bytes` bytes, as warp `index` of `each` in its block; false if it gave up.
template <class T>
__device__ __forceinline__ bool push_receive(const Args& a, u64 epoch, u64 bytes, u32 index, u32 each) {
    const u64 pieces = (bytes + a.slot - 1) / a.slot;
    const bool aligned = all_aligned(a, 16);
    const u8* here = a.arena[a.rank] + a.push_at + (epoch & 1) * a.push_bytes;
    Arrivals arrivals{a, epoch};
    for (u64 piece = blockIdx.x * each + index; piece < pieces; piece += gridDim.x * each) {
        if (!warp_wait(a, piece_flag(a, a.rank, epoch, piece), epoch, epoch, u32(piece))) return false;
        if (a.send == a.recv && !warp_wait(a, sent_flag(a, epoch, piece), epoch, epoch, u32(piece))) return false;
        u64 at = piece * a.slot + 16 * (threadIdx.x & 31), end = (piece + 1) * a.slot < bytes ? (piece + 1) * a.slot : bytes;
        reduce_in<T>(a, arrivals, here + at, at, end, WARP_BYTES, bytes, aligned);
    }
    return true;
}

template <class T> __device__ __forceinline__ void push_all_reduce(const Args& a) {
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    announce(a, epoch);
    const u64 bytes = a.count * sizeof(T);
    const u32 warps = blockDim.x / 32, warp = threadIdx.x / 32;
    if (warp < a.push_warps) push_send<T>(a, epoch, bytes, warp, a.push_warps);
    else push_receive<T>(a, epoch, bytes, warp - a.push_warps, warps - a.push_warps);
    leave(a, epoch);
}
