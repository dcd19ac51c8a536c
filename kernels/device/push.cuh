// Push: the data itself tells that it has come. No flag, no fence, every byte crosses the link once.
//
// A word of 8 bytes that has not come yet reads ABSENT in the arena. The sender stores its data over it; the receiver
// looks until no word reads ABSENT, reduces, and writes ABSENT back for the next call but one. Whoever sends to a
// place of this parity again has had all data of the call between, which was sent after this kernel had ended, its
// words of ABSENT included. Nothing but the whole arrival of words of 8 bytes is assumed, so PCIe will do.
//
// A word of data that happens to be ABSENT is sent as ESCAPED, as is one that happens to be ESCAPED. Which of the two
// it was stands in a line of bits for its unit, which only units with such words have (`escape`, `unescape`).
//
// One-shot, two ranks: each warp takes units of 512 bytes, sends `Depth` of them one step ahead, and reduces what the
// peer's same warp has sent. It overwrites in place only what it has sent itself. The call is compared with the peer's
// by one warp, which takes the announcement along with its first data.
//
// What was tried, 2 x H200 (NVLink 18 links), driver 580.159.04, 2026-11-30, f32 sum in a graph, us for 16 K / 64 K /
// 256 K / 1 M / 4 M / 16 M / 64 M: lines of 120 bytes of data and a flag (LL128) - / 3.46 / 4.04 / 6.58 / 17.46 / - / -;
// stores with a flag behind a fence for each 4 or 8 KiB - / - / - / - / - / 57.96 / 199.7; this 2.17 / 2.35 / 2.91 /
// 5.08 / 14.28 / 50.06 / 190.0; the stores alone, received by nobody, - / - / 1.78 / 4.30 / 12.94 / 47.17 / 186.1. Warps
// that only send (4 or 8 of 16), all sent before anything is received, and looking at the last word only while waiting:
// as fast or slower at every size. Zero copy in two steps (half to the peer's arena, the reduced half straight into the
// peer's result) moves as many bytes: - / - / 5.80 / 7.93 / 16.41 / 51.08 / 190.2.
#pragma once
#include "vec.cuh"

constexpr u32 UNIT_BYTES = 512; // one access of a warp
constexpr u64 ESCAPED = ABSENT | 1;
constexpr u32 ESCAPE_BYTES = 32; // of a unit's bits

__device__ __forceinline__ u64* escapes(const Args& a, u32 owner, u64 epoch, u64 unit) {
    return (u64*)(a.arena[owner] + a.escapes_at + (epoch & 1) * a.escapes_bytes + unit * ESCAPE_BYTES);
}

// This lane's part of a unit in which some lane has such a word, as it is to be sent. Lanes 0 to 3 store
// 16 bits each, with the epoch beside them, which tells that they have come.
__device__ __noinline__ Words2 escape(u64* there, u64 epoch, Words2 data) {
    const u32 lane = threadIdx.x & 31;
    const u32 first = __ballot_sync(~0u, data.x == ABSENT), second = __ballot_sync(~0u, data.y == ABSENT);
    if (lane < 4) {
        u64 bits = (lane < 2 ? first : second) >> 16 * (lane & 1) & 0xffff;
        *(volatile u64*)(there + lane) = epoch << 16 | bits;
    }
    if (data.x == ABSENT) data.x = ESCAPED;
    if (data.y == ABSENT) data.y = ESCAPED;
    return data;
}

// This lane's part as it was before; undefined if the bits did not come, in which case the call has failed.
__device__ __noinline__ Words2
unescape(const u64* here, const u8* own, u64 signature, u64 limit_ns, u32 peer, u64 epoch, u32 unit, Words2 data) {
    const u32 lane = threadIdx.x & 31;
    u64 bits = epoch << 16;
    Watch watch;
    for (;;) {
        if (lane < 4) bits = *(const volatile u64*)(here + lane);
        if (__all_sync(~0u, bits >> 16 == epoch)) break;
        if (__any_sync(~0u, watch.stop(own, signature, limit_ns, peer, epoch, unit))) break; // the next wait ends, too
    }
    const u32 part = u32(bits) & 0xffff;
    const u32 first = __shfl_sync(~0u, part, 0) | __shfl_sync(~0u, part, 1) << 16;
    const u32 second = __shfl_sync(~0u, part, 2) | __shfl_sync(~0u, part, 3) << 16;
    if (first >> lane & 1) data.x = ABSENT;
    if (second >> lane & 1) data.y = ABSENT;
    return data;
}

__device__ __forceinline__ bool is_special(u64 word) { return (word | 1) == ESCAPED; }

// Units `unit`, `unit + stride`, ... of a message. A lane has 16 bytes of each, or none of the last.
template <class T, int Depth, bool Whole> struct Units {
    const Args& a;
    const u64 bytes, units, stride;
    const bool aligned;
    const u32 lane_at;

    __device__ Units(const Args& a, u64 stride) : Units(a, stride, a.count * sizeof(T)) {}
    __device__ Units(const Args& a, u64 stride, u64 bytes)
        : a(a), bytes(bytes), units((bytes + UNIT_BYTES - 1) / UNIT_BYTES), stride(stride),
          aligned(Whole || all_aligned(a, 16)), lane_at(16 * (threadIdx.x & 31)) {}

    __device__ __forceinline__ u64 place(u64 unit, int k) const { return (unit + k * stride) * UNIT_BYTES + lane_at; }

    __device__ __forceinline__ void load(u64 unit, Pack<T, 16> (&data)[Depth]) const {
#pragma unroll
        for (int k = 0; k < Depth; k++)
            if (place(unit, k) < bytes) data[k] = load_pack<T, 16, Whole>(a.send, place(unit, k), bytes, aligned);
    }

    __device__ __forceinline__ void send(u8* there, const Arrivals& arrivals, u64 epoch, u64 unit, const Pack<T, 16> (&data)[Depth]) const {
        bool special = false;
#pragma unroll
        for (int k = 0; k < Depth; k++)
            if (place(unit, k) < bytes) special |= is_special(data[k].words[0]) || is_special(data[k].words[1]);
        if (__any_sync(~0u, special)) return send_special(there, epoch, unit, data);
#pragma unroll
        for (int k = 0; k < Depth; k++)
            if (place(unit, k) < bytes && !arrivals.lost(place(unit, k), 16))
                store_words(there + place(unit, k), data[k].words[0], data[k].words[1]);
    }

    __device__ __forceinline__ void send_special(u8* there, u64 epoch, u64 unit, const Pack<T, 16> (&data)[Depth]) const {
#pragma unroll
        for (int k = 0; k < Depth; k++) {
            const bool has = place(unit, k) < bytes;
            Words2 words{has ? data[k].words[0] : 0, has ? data[k].words[1] : 0};
            if (__any_sync(~0u, is_special(words.x) || is_special(words.y))) words = escape(escapes(a, a.rank ^ 1, epoch, unit + k * stride), epoch, words);
            if (has) store_words(there + place(unit, k), words.x, words.y);
        }
    }

    // Waits for the units, and for the announcement of the peer's call where that is asked for; false if it gave up.
    __device__ __forceinline__ bool await(const u8* here, u64 epoch, u64 unit, bool agree, Pack<T, 16> (&data)[Depth]) const {
        const u32 peer = a.rank ^ 1;
        Watch watch;
        bool escaped;
        for (;;) {
            bool missing = false;
            escaped = false;
            Words2 call{epoch, a.signature};
            if (agree) call = load_words(called(a.arena[a.rank], peer, epoch));
#pragma unroll
            for (int k = 0; k < Depth; k++)
                if (place(unit, k) < bytes) {
                    Words2 v = load_words(here + place(unit, k));
                    data[k].words[0] = v.x, data[k].words[1] = v.y;
                }
#pragma unroll
            for (int k = 0; k < Depth; k++)
                if (place(unit, k) < bytes) {
                    missing |= data[k].words[0] == ABSENT || data[k].words[1] == ABSENT;
                    escaped |= data[k].words[0] == ESCAPED || data[k].words[1] == ESCAPED;
                }
            missing |= call.x != epoch || (call.y & ~IN_PLACE) != a.signature; // another call is found out by the watch
            if (!__any_sync(~0u, missing)) break;
            if (__any_sync(~0u, watch.stop(a, peer, epoch, u32(unit)))) return false;
        }
        if (__any_sync(~0u, escaped)) restore(epoch, unit, data);
        return true;
    }

    __device__ __forceinline__ void restore(u64 epoch, u64 unit, Pack<T, 16> (&data)[Depth]) const {
#pragma unroll
        for (int k = 0; k < Depth; k++) {
            const bool has = place(unit, k) < bytes;
            Words2 words{has ? data[k].words[0] : 0, has ? data[k].words[1] : 0};
            if (!__any_sync(~0u, words.x == ESCAPED || words.y == ESCAPED)) continue;
            words = unescape(escapes(a, a.rank, epoch, unit + k * stride), a.own, a.signature, a.limit_ns, a.rank ^ 1, epoch, u32(unit + k * stride), words);
            data[k].words[0] = words.x, data[k].words[1] = words.y;
        }
    }

    __device__ __forceinline__ void
    keep(u8* here, Arrivals& arrivals, u64 unit, const Pack<T, 16> (&own)[Depth], Pack<T, 16> (&theirs)[Depth]) const {
#pragma unroll
        for (int k = 0; k < Depth; k++)
            if (place(unit, k) < bytes) {
                arrivals.take(a.rank ^ 1, place(unit, k), bytes, theirs[k].words);
                Pack<T, 16> out = a.rank == 0 ? combine(a.op, 2, own[k], theirs[k]) : combine(a.op, 2, theirs[k], own[k]);
                store_pack<T, 16, Whole>(a.recv, place(unit, k), bytes, aligned, out);
                *(Words2*)(here + place(unit, k)) = Words2{ABSENT, ABSENT};
            }
    }
};

template <class T, int Depth, bool Whole> __device__ __forceinline__ void push_units(const Args& a) {
    const u32 warps = blockDim.x / 32;
    const Units<T, Depth, Whole> message(a, u64(gridDim.x) * warps);
    u64 unit = u64(blockIdx.x) * warps + threadIdx.x / 32;
    Pack<T, 16> own[Depth];
    message.load(unit, own); // on its way while the number of the call is read
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    announce(a, epoch);
    u8* there = a.arena[a.rank ^ 1] + a.push_at + (epoch & 1) * a.push_bytes;
    u8* here = a.arena[a.rank] + a.push_at + (epoch & 1) * a.push_bytes;
    Arrivals arrivals{a, epoch};
    bool agree = unit == 0;
    message.send(there, arrivals, epoch, unit, own);
    allow_next();
    for (; unit < message.units; unit += Depth * message.stride) {
        Pack<T, 16> next[Depth], theirs[Depth];
        const u64 following = unit + Depth * message.stride;
        if (following < message.units) {
            message.load(following, next);
            message.send(there, arrivals, epoch, following, next);
        }
        if (!message.await(here, epoch, unit, agree, theirs)) break;
        message.keep(here, arrivals, unit, own, theirs);
        agree = false;
#pragma unroll
        for (int k = 0; k < Depth; k++) own[k] = next[k];
    }
    leave(a, epoch);
}

// `Whole`: the buffers are aligned and end with a whole pack. What others need costs these nothing.
template <class T, bool Whole> __device__ __forceinline__ void push_all_reduce(const Args& a) {
    await_stream();
    if (!Whole || a.count * sizeof(T) <= u64(gridDim.x) * blockDim.x * 16 * 4) push_units<T, 1, Whole>(a);
    else push_units<T, 2, Whole>(a);
}
