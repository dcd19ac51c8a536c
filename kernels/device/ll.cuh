// LL: 8 bytes of data and two flags in a line of 16, so that whoever sees both flags has the data, without a fence.
//
// One-shot, rank r: write all of `send` as lines into every peer's arena; read everyone's lines out of the own
// arena as they come and reduce them in the order of the ranks. Moves 2 (n-1) bytes to peers for each byte, in one
// hop of latency. Each half of a line is one 8-byte store, which is all that must be atomic.
//
// What was tried, 2 x H200 (NVLink 18 links), driver 580.159.04, 2026-11-30, two ranks, f32 sum in a graph, us for
// 1 K / 16 K / 64 K: as it was (other rank counts and odd ends in the same kernel, the data read after the number of
// the call and again after the wait) 2.81 / 3.26 / 3.5; starting early 2.92 / 3.29 / 3.55; without the odd ends 2.56 /
// 2.98 / 3.26; for two ranks only 2.34 / 2.73 / 2.96; arguments that are never read through an address, this, 1.86 /
// 2.25 / 2.51, and 2.15 / 2.6 / 2.9 where kernels do not start early. A bare kernel without mismatch, abort or limit:
// 1.62 / 1.85 / 2.13. Two lines for each thread are slower from 16 K on. The size of the arguments (216 or 616 bytes)
// and of the grid costs an empty kernel 0.03 us of 0.60. That the thread which takes the first line looks for the peer's
// announcement as well costs 0.1 at 1 K (1.85 to 1.95) and nothing from 4 K on.
#pragma once
#include "vec.cuh"

// The tag makes lines of another type or op count as not come, so that a mismatched call waits and is found out.
__device__ __forceinline__ u32 ll_flag(const Args& a, u64 epoch) { return u32(epoch & 0xffffff) | u32(a.tag) << 24; }

// Waits for the line of `rank`, and for the announcement of its call where that is asked for; false if it gave up.
__device__ __forceinline__ bool ll_await(const Args& a, const u8* line, u32 flag, u32 rank, u64 epoch, u64& data, bool agree = false) {
    Words4 v = ll_load(line);
    bool agreed = !agree || agrees(a, rank, epoch);
    Watch watch;
    while (v.y != flag || v.w != flag || !agreed) {
        if (watch.stop(a, rank, epoch)) return false;
        v = ll_load(line);
        agreed = !agree || agrees(a, rank, epoch);
    }
    data = u64(v.z) << 32 | v.x;
    return true;
}

// More than two ranks: all are folded in their order, with one rounding.
template <class T>
__device__ __forceinline__ bool ll_fold(const Args& a, const u8* lines, u32 flag, u64 epoch, Arrivals& arrivals, u64 at, u64 bytes, u64& data) {
    u64 words[MAX_RANKS];
#pragma unroll
    for (u32 rank = 0; rank < MAX_RANKS; rank++) {
        words[rank] = data;
        if (rank < a.size && rank != a.rank) {
            u64 came[1];
            if (!ll_await(a, lines + rank * a.ll_bytes, flag, rank, epoch, came[0])) return false;
            arrivals.take(rank, at, bytes, came);
            words[rank] = came[0];
        }
    }
    data = 0;
#pragma unroll 1
    for (u32 shift = 0; shift < 64; shift += 8 * sizeof(T)) {
        Pack<T, 8> x;
        Fold<T> fold;
#pragma unroll
        for (u32 rank = 0; rank < MAX_RANKS; rank++) {
            x.words[0] = words[rank] >> shift;
            if (rank == 0) fold.first(a.op, a.size, x.v[0]);
            else if (rank < a.size) fold.next(a.op, a.size, x.v[0]);
        }
        x.words[0] = 0;
        x.v[0] = fold.last(a.op, a.size);
        data |= x.words[0] << shift;
    }
    return true;
}

// `Pair`: two ranks, and buffers that are aligned and end with a whole word. Everything else costs these nothing.
template <class T, bool Pair> __device__ __forceinline__ void ll_all_reduce(const Args& a) {
    await_stream();
    const u64 bytes = a.count * sizeof(T), units = (bytes + 7) / 8;
    const bool aligned = Pair || all_aligned(a, 8);
    const u64 begin = u64(blockIdx.x) * blockDim.x + threadIdx.x, stride = u64(gridDim.x) * blockDim.x;
    Pack<T, 8> first;
    if (begin < units) first = load_pack<T, 8, Pair>(a.send, 8 * begin, bytes, aligned); // on its way while the number of the call is read
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    const u32 flag = ll_flag(a, epoch), size = Pair ? 2 : a.size;
    const u64 parity_at = a.ll_at + (epoch & 1) * size * a.ll_bytes;
    Arrivals arrivals{a, epoch};

    for (u64 i = begin; i < units; i += stride) {
        u64 data = i == begin ? first.words[0] : load_pack<T, 8, Pair>(a.send, 8 * i, bytes, aligned).words[0];
        if (arrivals.lost(8 * i, 8)) continue;
        if (Pair) {
            ll_store(a.arena[a.rank ^ 1] + parity_at + a.rank * a.ll_bytes + 16 * i, data, flag);
        } else {
            for (u32 k = 1; k < size; k++) {
                u32 peer = a.rank + k < size ? a.rank + k : a.rank + k - size;
                ll_store(a.arena[peer] + parity_at + a.rank * a.ll_bytes + 16 * i, data, flag);
            }
        }
    }
    announce(a, epoch);
    allow_next();
    for (u64 i = begin; i < units; i += stride) {
        Pack<T, 8> own, theirs;
        if (i == begin) own = first;
        else own = load_pack<T, 8, Pair>(a.send, 8 * i, bytes, aligned);
        const u8* lines = a.arena[a.rank] + parity_at + 16 * i;
        if (Pair || size == 2) {
            // The call is compared with the peer's by the thread that takes its first line.
            if (!ll_await(a, lines + (a.rank ^ 1) * a.ll_bytes, flag, a.rank ^ 1, epoch, theirs.words[0], i == 0)) break;
            arrivals.take(a.rank ^ 1, 8 * i, bytes, theirs.words);
            own = a.rank == 0 ? combine(a.op, 2, own, theirs) : combine(a.op, 2, theirs, own);
        } else if (!ll_fold<T>(a, lines, flag, epoch, arrivals, 8 * i, bytes, own.words[0])) {
            break;
        }
        store_pack<T, 8, Pair>(a.recv, 8 * i, bytes, aligned, own);
    }
    if (!Pair && size > 2) await_agreement(a, epoch);
    leave(a, epoch);
}
