// Zero copy, for two ranks that have registered (`comm_register`) where their results go: two-shot, the reduced half
// straight into the peer's result.
//
// Units as in `push.cuh`. Rank r: send the peer's half of the message into its arena; read in a line beside its
// announcement where its result lies; reduce the own half as the peer's data comes, into the own result and into the
// peer's; tell the peer that all is there, and wait for the same. If either of the two lines says that the result is not
// registered, both see that, and go on as `push.cuh` would have: the other half is sent, too, and each reduces all.
//
// The peer stores a unit into the result here only when it has got that unit of `send` from here, so in place it never
// overwrites what is still to be sent, and never before this call has begun. Its stores are seen by whatever follows this
// kernel in the stream: they come before its `store_release` of the counter (a fence of its whole block between), which
// this kernel acquires.
//
// Every byte crosses the link once here and in `push.cuh`; a second hop and the wait at its end are what this adds, and a
// copy out of the arena is what it saves. What was tried, 2 x H200 (NVLink 18 links), driver 580.159.04, 2026-11-30, f32
// sum in a graph, out of place, us for 64 K / 1 M / 4 M / 16 M / 64 M: this 5.98 / 8.14 / 16.7 / 51.6 / 192.0; `push` in the
// same session 2.35 / 5.12 / 14.4 / 50.0 / 190.2 (`tests/gpu/bench.sh dist zero-copy registered`). It is taken only where it
// is asked for.
#pragma once
#include "push.cuh"

// Each line on the page of announcements, behind them: where the source's result lies in what it has registered, and the
// same mixed with the epoch. Both words are of one call when they fit each other.
constexpr u32 WHERE_AT = CALLED_AT + 2048;
// What only this GPU uses: where each window of each rank lies, as this rank maps it; 0 for none.
constexpr u32 WINDOWS_AT = 106496;
constexpr u32 WINDOWS = 64;
static_assert(WINDOWS_AT >= SUMS_AT + (2 + MAX_RANKS) * CHECKS * 8 + 8 * MAX_BLOCKS && WINDOWS_AT + 8 * WINDOWS * MAX_RANKS <= 110592, "words of their own");

__device__ __forceinline__ Words2* where(u8* arena, u32 source, u64 epoch) { return (Words2*)(arena + WHERE_AT) + 2 * source + (epoch & 1); }
// Blocks of a ring have the same counters (`ring.cuh`), which only ever grow.
__device__ __forceinline__ u64* delivered(u8* arena) { return (u64*)(arena + HEAD_AT) + 16 * blockIdx.x; }

// Where the peer's result lies, the same in all threads; null if it is not registered, or the wait was given up. `a.slot`:
// this rank's place, its window's number + 1 in the upper 16 bits and the offset below, or 0.
__device__ __forceinline__ u8* peer_result(const Args& a, u64 epoch) {
    const u32 peer = a.rank ^ 1;
    const Words2* there = where(a.arena[a.rank], peer, epoch);
    bool came = true;
    if (threadIdx.x == 0) {
        Watch watch;
        for (;;) {
            const Words2 line = load_words(there);
            if (line.y == mix(line.x, epoch)) break;
            if (watch.stop(a, peer, epoch)) {
                came = false;
                break;
            }
        }
    }
    if (!__syncthreads_and(came)) return nullptr;
    // What thread 0 has seen, all see behind the barrier; it is written again in the next call but one.
    const u64 place = load_words(there).x;
    if (a.slot == 0 || place == 0) return nullptr;
    const u64* windows = (const u64*)(a.own + WINDOWS_AT) + peer * WINDOWS;
    const u64 window = windows[(place >> 48) - 1];
    if (window == 0) { // a graph that was captured before it was deregistered
        if (threadIdx.x == 0) report(a, a.signature, STALE, peer, epoch, 0, place, a.slot);
        return nullptr;
    }
    return (u8*)window + (place & ((1ull << 48) - 1));
}

template <class T, int Depth, bool Whole> __device__ __forceinline__ void zero_copy_units(const Args& a) {
    typedef Units<T, Depth, Whole> Half;
    const u32 warps = blockDim.x / 32, peer = a.rank ^ 1;
    const u64 stride = u64(gridDim.x) * warps, step = Depth * stride, first = u64(blockIdx.x) * warps + threadIdx.x / 32;
    // Rank 0 reduces the units before `middle`, rank 1 the others.
    const u64 bytes = a.count * sizeof(T), middle = ((bytes + UNIT_BYTES - 1) / UNIT_BYTES + 1) / 2;
    const u64 lower = middle * UNIT_BYTES < bytes ? middle * UNIT_BYTES : bytes;
    const Half mine(a, stride, a.rank == 0 ? lower : bytes), others(a, stride, a.rank == 0 ? bytes : lower);
    const u64 mine_at = (a.rank == 0 ? 0 : middle) + first, others_at = (a.rank == 0 ? middle : 0) + first;
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) store_words(where(a.arena[peer], a.rank, epoch), a.slot, mix(a.slot, epoch));
    announce(a, epoch);
    u8* there = a.arena[peer] + a.push_at + (epoch & 1) * a.push_bytes;
    u8* here = a.arena[a.rank] + a.push_at + (epoch & 1) * a.push_bytes;
    Arrivals arrivals{a, epoch};
    Pack<T, 16> own[Depth], theirs[Depth];
    auto send = [&](const Half& half, u64 at) {
        for (u64 unit = at; unit < half.units; unit += step) {
            half.load(unit, own);
            half.send(there, arrivals, epoch, unit, own);
        }
    };
    send(others, others_at);
    u8* result = peer_result(a, epoch);
    bool agree = first == 0;
    if (result == nullptr) {
        send(mine, mine_at);
        auto reduce = [&](const Half& half, u64 at) {
            for (u64 unit = at; unit < half.units; unit += step) {
                half.load(unit, own);
                if (!half.await(here, epoch, unit, agree, theirs)) return;
                half.keep(here, arrivals, unit, own, theirs);
                agree = false;
            }
        };
        reduce(mine, mine_at);
        reduce(others, others_at);
        return leave(a, epoch);
    }
    const bool aligned_there = ((u64)result & 15) == 0; // the peer's, which this rank's says nothing of
    bool came = true;
    for (u64 unit = mine_at; unit < mine.units; unit += step) {
        mine.load(unit, own);
        came = mine.await(here, epoch, unit, agree, theirs);
        if (!came) break;
        agree = false;
#pragma unroll
        for (int k = 0; k < Depth; k++) {
            const u64 at = mine.place(unit, k);
            if (at >= mine.bytes) continue;
            const Pack<T, 16> out = a.rank == 0 ? combine(a.op, 2, own[k], theirs[k]) : combine(a.op, 2, theirs[k], own[k]);
            store_pack<T, 16>(result, at, mine.bytes, aligned_there, out);
            store_pack<T, 16, Whole>(a.recv, at, mine.bytes, mine.aligned, out);
            *(Words2*)(here + at) = Words2{ABSENT, ABSENT};
        }
    }
    // A block that has given up has not brought all.
    if (!__syncthreads_and(came)) return leave(a, epoch);
    if (threadIdx.x == 0) {
        __threadfence_system();
        store_release(delivered(a.arena[peer]), epoch << 20 | 1);
    }
    block_wait(a, delivered(a.arena[a.rank]), epoch << 20 | 1, peer, epoch, 0);
    leave(a, epoch);
}
