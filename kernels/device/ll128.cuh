// LL128: 120 bytes of data and a flag of 8 in a line of 128, stored by eight neighbouring threads at once.
//
// Relies on NVLink (or one GPU's memory) delivering such a line as a whole; over PCIe it may not be used. The data
// of a warp's four lines are 480 bytes of the message in a row: 28 threads carry 16 of them each, and the four
// threads that carry a flag 8 each, so that all accesses are whole and aligned.
//
// One-shot, two ranks: lines to the peer, own lines reduced as they come. Moves 16/15 bytes for each byte.
#pragma once
#include "vec.cuh"

constexpr u32 WARP_DATA = 480, WARP_LINES = 512;

__device__ __forceinline__ u32 lane() { return threadIdx.x & 31; }
__device__ __forceinline__ bool carries_flag() { return (lane() & 7) == 7; }
// Where this thread's data lies in the warp's 480 bytes.
__device__ __forceinline__ u32 lane_data_at() { return carries_flag() ? 448 + 8 * (lane() >> 3) : 16 * (lane() - (lane() >> 3)); }

// Epoch and signature, so that lines of another call count as not come.
__device__ __forceinline__ u64 wide_flag(const Args& a, u64 epoch) {
    u64 mixed = a.signature * 0x9e3779b97f4a7c15ull;
    return epoch << 20 | mixed >> 44;
}

// This thread's part of unit `unit`, of 480 bytes.
template <class T> __device__ __forceinline__ Pack<T, 16> wide_load(const u8* send, u64 unit, u64 bytes, bool aligned) {
    u64 at = unit * WARP_DATA + lane_data_at();
    if (!carries_flag()) return load_pack<T, 16>(send, at, bytes, aligned);
    Pack<T, 16> pack;
    pack.words[0] = load_pack<T, 8>(send, at, bytes, aligned).words[0];
    return pack;
}

template <class T> __device__ __forceinline__ void wide_store(u8* recv, u64 unit, u64 bytes, bool aligned, const Pack<T, 16>& pack) {
    u64 at = unit * WARP_DATA + lane_data_at();
    if (!carries_flag()) {
        store_pack<T, 16>(recv, at, bytes, aligned, pack);
    } else {
        Pack<T, 8> half;
        half.words[0] = pack.words[0];
        store_pack<T, 8>(recv, at, bytes, aligned, half);
    }
}

// A thread that carries a flag has 8 bytes of data.
__device__ __forceinline__ void wide_take(Arrivals& arrivals, u32 peer, u64 at, u64 bytes, u64 (&words)[2]) {
    if (!carries_flag()) return arrivals.take(peer, at, bytes, words);
    u64 half[1] = {words[0]};
    arrivals.take(peer, at, bytes, half);
    words[0] = half[0];
}

template <class T> __device__ void wide_all_reduce(const Args& a) {
    constexpr int DEPTH = CHECKED ? 2 : 4;
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    const u64 bytes = a.count * sizeof(T), units = (bytes + WARP_DATA - 1) / WARP_DATA;
    const bool aligned = all_aligned(a, 16);
    const u64 flag = wide_flag(a, epoch);
    const u32 peer = a.rank ^ 1, warps = blockDim.x / 32, warp = threadIdx.x / 32;
    const bool sends = a.push_warps == 0 || warp < a.push_warps, receives = a.push_warps == 0 || !sends;
    u8* there = a.arena[peer] + a.wide_at + (epoch & 1) * a.wide_bytes + 16 * lane();
    const u8* here = a.arena[a.rank] + a.wide_at + (epoch & 1) * a.wide_bytes + 16 * lane();
    Arrivals arrivals{a, epoch};

    if (sends) {
        const u64 each = a.push_warps == 0 ? warps : a.push_warps, stride = each * gridDim.x;
        // Neighbouring units by neighbouring warps of one block.
        u64 unit = blockIdx.x * each + warp;
        for (; unit + (DEPTH - 1) * stride < units; unit += DEPTH * stride) {
            Pack<T, 16> data[DEPTH];
#pragma unroll
            for (int k = 0; k < DEPTH; k++) data[k] = wide_load<T>(a.send, unit + k * stride, bytes, aligned);
#pragma unroll
            for (int k = 0; k < DEPTH; k++)
                if (!arrivals.lost((unit + k * stride) * WARP_DATA + lane_data_at(), 8)) store_words(there + (unit + k * stride) * WARP_LINES, data[k].words[0], carries_flag() ? flag : data[k].words[1]);
        }
        for (; unit < units; unit += stride) {
            Pack<T, 16> data = wide_load<T>(a.send, unit, bytes, aligned);
            if (!arrivals.lost(unit * WARP_DATA + lane_data_at(), 8)) store_words(there + unit * WARP_LINES, data.words[0], carries_flag() ? flag : data.words[1]);
        }
    }
    announce(a, epoch);
    if (receives) {
        const u64 each = warps - a.push_warps, stride = each * gridDim.x;
        u64 unit = blockIdx.x * each + warp - a.push_warps;
        bool came = true;
        for (; unit < units && came; unit += DEPTH * stride) {
            Pack<T, 16> own[DEPTH], theirs[DEPTH];
#pragma unroll
            for (int k = 0; k < DEPTH; k++)
                if (unit + k * stride < units) own[k] = wide_load<T>(a.send, unit + k * stride, bytes, aligned);
            Watch watch;
            // A warp that has sent nothing waits long, and looks at flags only: whole lines would take the cache's
            // bandwidth from those that come.
            if (a.push_warps != 0) {
                const u64 last = unit + (DEPTH - 1) * stride < units ? unit + (DEPTH - 1) * stride : unit;
                for (;;) {
                    bool missing = carries_flag() && *(volatile u64*)(here + last * WARP_LINES + 8) != flag;
                    if (!__any_sync(~0u, missing)) break;
                    if (__any_sync(~0u, watch.stop(a, peer, epoch))) {
                        came = false;
                        break;
                    }
                }
                if (!came) break;
            }
            for (;;) {
                bool missing = false;
#pragma unroll
                for (int k = 0; k < DEPTH; k++)
                    if (unit + k * stride < units) {
                        Words2 v = load_words(here + (unit + k * stride) * WARP_LINES);
                        theirs[k].words[0] = v.x, theirs[k].words[1] = v.y;
                        missing |= carries_flag() && v.y != flag;
                    }
                if (!__any_sync(~0u, missing)) break;
                bool stop = watch.stop(a, peer, epoch);
                if (__any_sync(~0u, stop)) {
                    came = false;
                    break;
                }
            }
            if (!came) break;
#pragma unroll
            for (int k = 0; k < DEPTH; k++)
                if (unit + k * stride < units) {
                    wide_take(arrivals, peer, (unit + k * stride) * WARP_DATA + lane_data_at(), bytes, theirs[k].words);
                    Pack<T, 16> out = a.rank == 0 ? combine(a.op, 2, own[k], theirs[k]) : combine(a.op, 2, theirs[k], own[k]);
                    wide_store<T>(a.recv, unit + k * stride, bytes, aligned, out);
                }
        }
    }
    leave(a, epoch);
}
