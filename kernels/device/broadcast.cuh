// Broadcast: the root's buffer into everyone's. `send` and `recv` are the buffer, `count` its bytes; what is moved has no
// type here.
//
// Three ways, each with the machinery of its AllReduce: lines to everyone (`ll.cuh`); between two ranks, data that tells
// itself that it has come (`push.cuh`); and slots that each rank passes on to the next (`ring.cuh`), so that each byte
// crosses each link once.
//
// The root gets no data from anyone, and nothing would keep it from running ahead and writing where others still read
// (`sync.cuh` argues from data of every rank). So each block tells the same block of all ranks that it has begun, and none
// ends before it has heard that from all: whoever ends call e knows that every rank has ended call e-1, and that every
// block has wiped what it wipes. That takes no time where the ranks come together, since it runs beside the data; but the
// root waits for a late rank to begin, though not to end.
//
// Faults strike as in an AllReduce (images made with CHECKED); nothing is summed on the way, since each result is compared
// with the root's data itself (`compare_with_root` in `check_kernels.cuh`).
#pragma once
#include "check_kernels.cuh"
#include "ll.cuh"
#include "push.cuh"
#include "ring.cuh"

// In which broadcast each block of a source has begun. Behind the windows of `zero.cuh`.
constexpr u32 BEGUN_AT = 110592;
static_assert(BEGUN_AT >= SUMS_AT + (2 + MAX_RANKS) * CHECKS * 8 && BEGUN_AT + 8 * MAX_BLOCKS * MAX_RANKS <= ACKNOWLEDGED_AT, "words of their own");

__device__ __forceinline__ u64* begun(u8* arena, u32 source) { return (u64*)(arena + BEGUN_AT) + source * MAX_BLOCKS + blockIdx.x; }

// One thread for each peer. `enter` has fenced what this block has wiped.
__device__ __forceinline__ void tell_begun(const Args& a, u64 epoch) {
    if (threadIdx.x < a.size && threadIdx.x != a.rank) store_release(begun(a.arena[threadIdx.x], a.rank), epoch);
}

// Returns once this block of every rank has begun; block 0 sees to it that all have made the same call.
__device__ __forceinline__ void await_begun(const Args& a, u64 epoch) {
    const u32 peer = threadIdx.x;
    if (peer >= a.size || peer == a.rank) return;
    Watch watch;
    for (;;) {
        const bool came = load_acquire(begun(a.arena[a.rank], peer)) >= epoch && (blockIdx.x != 0 || agrees(a, peer, epoch));
        if (came || watch.stop(a, peer, epoch)) return;
    }
}

__device__ __forceinline__ bool in_words(const Args& a) { return (((u64)a.send | a.count) & 3) == 0; }

template <class T> __device__ __forceinline__ void broadcast_lines(const Args& a, u64 epoch) {
    const u64 bytes = a.count, units = (bytes + 7) / 8;
    const bool aligned = ((u64)a.send & 7) == 0;
    const u64 begin = u64(blockIdx.x) * blockDim.x + threadIdx.x, stride = u64(gridDim.x) * blockDim.x;
    const u32 flag = ll_flag(a, epoch);
    const u64 lines = a.ll_at + (epoch & 1) * a.size * a.ll_bytes + a.root * a.ll_bytes;
    Arrivals arrivals{a, epoch};
    if (a.rank == a.root) {
        for (u64 i = begin; i < units; i += stride) {
            const u64 data = load_pack<T, 8>(a.send, 8 * i, bytes, aligned).words[0];
            if (arrivals.lost(8 * i, 8)) continue;
            for (u32 k = 1; k < a.size; k++) {
                const u32 peer = a.rank + k < a.size ? a.rank + k : a.rank + k - a.size;
                ll_store(a.arena[peer] + lines + 16 * i, data, flag);
            }
        }
        return;
    }
    for (u64 i = begin; i < units; i += stride) {
        Pack<T, 8> came;
        if (!ll_await(a, a.arena[a.rank] + lines + 16 * i, flag, a.root, epoch, came.words[0])) return;
        arrivals.take(a.root, 8 * i, bytes, came.words);
        store_pack<T, 8>(a.recv, 8 * i, bytes, aligned, came);
    }
}

__device__ __forceinline__ void broadcast_by_lines(const Args& a) {
    await_stream();
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    announce(a, epoch);
    tell_begun(a, epoch);
    allow_next();
    if (in_words(a)) broadcast_lines<u32>(a, epoch);
    else broadcast_lines<u8>(a, epoch);
    await_begun(a, epoch);
    leave(a, epoch);
}

template <class T, int Depth, bool Whole> __device__ __forceinline__ void broadcast_units(const Args& a) {
    const u32 warps = blockDim.x / 32;
    const Units<T, Depth, Whole> message(a, u64(gridDim.x) * warps, a.count);
    const u64 step = Depth * message.stride;
    u64 unit = u64(blockIdx.x) * warps + threadIdx.x / 32;
    Pack<T, 16> data[Depth];
    const bool root = a.rank == a.root;
    if (root) message.load(unit, data); // on its way while the number of the call is read
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    announce(a, epoch);
    tell_begun(a, epoch);
    allow_next();
    Arrivals arrivals{a, epoch};
    const u64 parity_at = a.push_at + (epoch & 1) * a.push_bytes;
    if (root) {
        for (; unit < message.units; unit += step) {
            Pack<T, 16> next[Depth];
            if (unit + step < message.units) message.load(unit + step, next);
            message.send(a.arena[a.rank ^ 1] + parity_at, arrivals, epoch, unit, data);
#pragma unroll
            for (int k = 0; k < Depth; k++) data[k] = next[k];
        }
    } else {
        u8* here = a.arena[a.rank] + parity_at;
        for (; unit < message.units; unit += step) {
            if (!message.await(here, epoch, unit, false, data)) break;
#pragma unroll
            for (int k = 0; k < Depth; k++) {
                const u64 at = message.place(unit, k);
                if (at >= message.bytes) continue;
                arrivals.take(a.root, at, message.bytes, data[k].words);
                store_pack<T, 16, Whole>(a.recv, at, message.bytes, message.aligned, data[k]);
                *(Words2*)(here + at) = Words2{ABSENT, ABSENT};
            }
        }
    }
    await_begun(a, epoch);
    leave(a, epoch);
}

// `Whole`: the buffer is aligned and ends with a whole pack.
template <bool Whole> __device__ __forceinline__ void broadcast_by_push(const Args& a) {
    await_stream();
    if (Whole) broadcast_units<u32, 4, true>(a);
    else if (in_words(a)) broadcast_units<u32, 1, false>(a);
    else broadcast_units<u8, 1, false>(a);
}

template <class T> __device__ __forceinline__ void broadcast_pieces(const Args& a, Channel& channel) {
    const u64 count = a.count / sizeof(T), piece = a.slot / sizeof(T), pack = 16 / sizeof(T);
    const bool first = a.rank == a.root, last = channel.next() == a.root;
    // A round is a piece of each block. The last one is cut evenly, in whole packs.
    for (u64 base = 0; base < count && !channel.failed; base += piece * gridDim.x) {
        u64 size = (count - base + gridDim.x - 1) / gridDim.x;
        size = (size + pack - 1) / pack * pack;
        if (size > piece) size = piece;
        const u64 at = base + blockIdx.x * size;
        const u64 here = at >= count ? 0 : count - at < size ? count - at : size;
        channel.template step<T>(here == 0 ? 0 : at, here, !first, false, !first, !last, true);
    }
}

__device__ __forceinline__ void broadcast_by_ring(const Args& a) {
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    announce(a, epoch);
    tell_begun(a, epoch);
    Channel channel{a, epoch};
    if (in_words(a)) broadcast_pieces<u32>(a, channel);
    else broadcast_pieces<u8>(a, channel);
    await_begun(a, epoch);
    leave(a, epoch);
}
