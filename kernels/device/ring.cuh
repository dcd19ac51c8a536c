// Ring over Simple: reduce-scatter, then all-gather, each rank sending to the next one only.
//
// Each block is a channel of its own, with a part of the message and slots in the next rank's arena. A piece is
// written into a slot with 16-byte stores, then announced by a counter (`head`); whoever has read it says so to its
// sender (`tail`). The ranks are in the order that the host gives, so that the data takes the links that it chose. Who is
// at position r, for each round of n pieces: send piece r; n-2 times receive, reduce with the own data,
// send on; receive, reduce, keep and send on; n-2 times receive, keep, send on; receive, keep. Moves 2 (n-1)/n
// bytes for each byte. Partial results are rounded at each hop; means are divided in the last reduction.
#pragma once
#include "vec.cuh"

constexpr u32 RING_SLOTS = 4;

struct Channel {
    const Args& a;
    const u64 epoch;
    u32 sent = 0, received = 0;
    bool failed = false;
    Arrivals arrivals{a, epoch};

    __device__ u8* slot(u8* arena, u32 number) const {
        return arena + a.bulk_at + (epoch & 1) * a.bulk_bytes + (u64(blockIdx.x) * RING_SLOTS + number % RING_SLOTS) * a.slot;
    }
    __device__ u64* counter(u32 rank, u32 at) const { return (u64*)(a.arena[rank] + at) + 16 * blockIdx.x; }
    __device__ u32 next() const { return a.next; }
    __device__ u32 previous() const { return a.previous; }

    __device__ void await_slot() {
        if (sent >= RING_SLOTS && !failed)
            failed = !block_wait(a, counter(a.rank, TAIL_AT), epoch << 20 | (sent - RING_SLOTS + 1), next(), epoch, sent);
    }
    __device__ void await_piece() {
        if (!failed) failed = !block_wait(a, counter(a.rank, HEAD_AT), epoch << 20 | (received + 1), previous(), epoch, received);
    }
    __device__ void announce_sent() {
        __syncthreads();
        sent++;
        if (threadIdx.x == 0) {
            __threadfence_system();
            store_release(counter(next(), HEAD_AT), epoch << 20 | sent);
        }
    }
    __device__ void announce_received() {
        __syncthreads();
        received++;
        if (threadIdx.x == 0) store_release(counter(previous(), TAIL_AT), epoch << 20 | received);
    }

    // One step: [receive] [reduce] [keep] [send], of the piece at element `at`.
    template <class T> __device__ void step(u64 at, u64 count, bool receive, bool reduce, bool keep, bool send, bool last) {
        constexpr int DEPTH = CHECKED ? 1 : sizeof(T) == 1 ? 2 : 4; // accesses of a thread at once
        if (receive) await_piece();
        if (send) await_slot();
        if (!failed) {
            const u8* own = a.send + at * sizeof(T);
            u8* kept = a.recv + at * sizeof(T);
            const u8* from = slot(a.arena[a.rank], received);
            u8* to = slot(a.arena[next()], sent);
            const u64 bytes = count * sizeof(T);
            const bool aligned = (((u64)own | (u64)kept) & 15) == 0;
            // Complete and partial results pass by at the same place: the sums tell them apart.
            const u64 came_as = receive && !reduce ? u64(1) << 60 : 0, goes_as = last ? u64(1) << 60 : came_as;
            const u64 place = at * sizeof(T), all = place + bytes, stride = 16 * blockDim.x;
            for (u64 first = 16 * threadIdx.x; first < bytes; first += DEPTH * stride) {
                Pack<T, 16> x[DEPTH], mine[DEPTH];
#pragma unroll
                for (int k = 0; k < DEPTH; k++) {
                    const u64 i = first + k * stride;
                    if (i >= bytes) break;
                    if (receive) {
                        Words2 v = load_words(from + i);
                        x[k].words[0] = v.x, x[k].words[1] = v.y;
                    }
                    if (!receive || reduce) mine[k] = load_pack<T, 16>(own, i, bytes, aligned);
                }
#pragma unroll
                for (int k = 0; k < DEPTH; k++) {
                    const u64 i = first + k * stride;
                    if (i >= bytes) break;
                    if (receive) arrivals.take(previous(), place + i, all, x[k].words, came_as);
                    // The mean is divided once, by the rank that reduces last.
                    if (!receive) x[k] = mine[k];
                    else if (reduce) x[k] = combine(a.op == AVG && !last ? u32(SUM) : a.op, a.size, x[k], mine[k]);
                    if (keep) store_pack<T, 16>(kept, i, bytes, aligned, x[k]);
                    if (send) {
                        arrivals.give(place + i, all, x[k].words, goes_as);
                        if (!arrivals.lost(place + i, 16)) store_unit(to + i, x[k].words);
                    }
                }
            }
        }
        // Who has given up has neither read nor written, and its neighbours find that out by waiting.
        if (failed) return;
        if (receive) announce_received();
        if (send) announce_sent();
    }
};

template <class T> __device__ void ring_all_reduce(const Args& a) {
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    announce(a, epoch);
    Channel channel{a, epoch};
    const u32 n = a.size;
    const u64 piece = a.slot / sizeof(T);
    // A round is n pieces of each block. The last one is cut evenly, in whole packs.
    for (u64 base = 0; base < a.count; base += piece * n * gridDim.x) {
        const u64 rest = a.count - base, pack = 16 / sizeof(T);
        u64 size = (rest + n * gridDim.x - 1) / (n * gridDim.x);
        size = (size + pack - 1) / pack * pack;
        if (size > piece) size = piece;
        auto move = [&](u32 back, bool receive, bool reduce, bool keep, bool send, bool last) {
            u32 share = (a.position + 2 * n - back) % n;
            u64 at = base + (u64(blockIdx.x) * n + share) * size;
            u64 count = at >= a.count ? 0 : a.count - at < size ? a.count - at : size;
            channel.template step<T>(count == 0 ? 0 : at, count, receive, reduce, keep, send, last);
        };
        move(0, false, false, false, true, false);
        for (u32 k = 1; k + 1 < n; k++) move(k, true, true, false, true, false);
        move(n - 1, true, true, true, true, true);
        for (u32 k = n; k + 2 < 2 * n; k++) move(k, true, false, true, true, false);
        move(2 * n - 2, true, false, true, false, false);
        if (channel.failed) break;
    }
    await_agreement(a, epoch);
    leave(a, epoch);
}
