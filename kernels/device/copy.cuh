// The copy engine's path, for two ranks: the engine copies `send` into the peer's arena, in as few copies as its room
// there allows, and one kernel follows the data as it comes.
//
// As in `push.cuh`, a word that has not come reads ABSENT, and the kernel writes that back behind it. The engine
// copies data as it is, so a word may read ABSENT for ever: once `copies_flag`, a small kernel behind the copy, has
// told the peer that all has been delivered, what reads ABSENT is data.
//
// One-shot: every byte crosses the link once. The kernel ends when the peer has read everything, so that the next
// call's copies may begin at once, and when its own copies have been flagged, since the small kernels take the
// number of the call from its word. `copies_wait` waits before room is used again in the same call.
//
// In place a part may be overwritten only once it has been copied. The peer knows: each of its warps acknowledges
// what it has taken to the same warp here. It does so only if the call was announced as one in place.
//
// What was tried, 2 x H200 (NVLink 18 links), driver 580.159.04, f32 sum in a graph, 64 MiB / 256 MiB / 1 GiB in us.
// 2026-11-29: a kernel for each chunk behind its copy, 244 / 766 / 2918; one kernel, with the flag as an 8-byte copy
// behind each chunk in the engine's own stream, 219 / 765 / 2911; chunks of half of what is left with flags from a
// second stream, 219 / 741 / 2821. 2026-11-30: the same with chunks of 0.6 of what is left and the first and last
// megabytes pushed by the kernel, 213 / 734 / 2806; two engines, 234 / 827 / 3017; following the data, with a kernel
// before the copy that waits for the room, 190 / 705 / 2762, where megabytes pushed by the kernel while the engine
// starts gain nothing; without that kernel, this, 189 / 705 / 2766, in place 196 / 732 / 2883. The engine alone takes 175 / 689 / 2741, and 4 us more for each further copy.
#pragma once
#include "vec.cuh"

constexpr u32 UNIT = 512;             // one access of a warp
constexpr u32 LOOKS_PER_FLAG = 8;

__device__ __forceinline__ u64* arrived(u8* arena, u32 source, u32 chunk) { return (u64*)(arena + ARRIVED_AT) + source * SLOTS + chunk; }
__device__ __forceinline__ u64* was_read(u8* arena, u32 source, u32 chunk) { return (u64*)(arena + CREDIT_AT) + source * SLOTS + chunk; }
__device__ __forceinline__ u64* acknowledged(u8* arena, u32 warp) { return (u64*)(arena + ACKNOWLEDGED_AT) + warp; }

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

// Waits for the announcement of the peer's call; what it says, or 0.
__device__ __forceinline__ u64 await_call(const Args& a, u64 epoch) {
    const u32 peer = a.rank ^ 1;
    Watch watch;
    for (;;) {
        Words2 call = load_words(called(a.arena[a.rank], peer, epoch));
        if (__all_sync(~0u, call.x == epoch && (call.y & ~IN_PLACE) == a.signature)) return call.y;
        if (__any_sync(~0u, watch.stop(a, peer, epoch))) return 0;
    }
}

template <class T, bool Whole> __device__ __forceinline__ void follow(const CopyArgs& c, u64 epoch) {
    constexpr int DEPTH = sizeof(T) == 1 || CHECKED ? 2 : 4; // sums of bytes take many registers
    const Args& a = c.a;
    const u64 bytes = a.count * sizeof(T);
    const bool aligned = Whole || all_aligned(a, 16);
    const u32 peer = a.rank ^ 1, lane_at = 16 * (threadIdx.x & 31);
    const u32 warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, warps = gridDim.x * (blockDim.x / 32);
    const u64 stride = u64(warps) * UNIT;
    const u64 call = await_call(a, epoch);
    if (call == 0) return;
    const bool peer_in_place = (call & IN_PLACE) != 0, in_place = a.send == a.recv;
    u64 taken = epoch << 24, begin = 0;
    Arrivals arrivals{a, epoch};
    for (u32 chunk = 0; chunk < c.chunks; chunk++) {
        const u64 end = c.end[chunk];
        u8* room = a.arena[a.rank] + c.slot[chunk] - begin;
        for (u64 unit = begin + warp * UNIT; unit < end; unit += DEPTH * stride) {
            Pack<T, 16> own[DEPTH], theirs[DEPTH];
            const u64 at = unit + lane_at;
#pragma unroll
            for (int k = 0; k < DEPTH; k++)
                if (at + k * stride < end) own[k] = load_pack<T, 16, Whole>(a.send, at + k * stride, bytes, aligned);
            Watch watch;
            bool delivered = false;
            for (u32 looks = 1;; looks++) {
                bool missing = false;
#pragma unroll
                for (int k = 0; k < DEPTH; k++)
                    if (at + k * stride < end) {
                        Words2 v = load_words(room + at + k * stride);
                        theirs[k].words[0] = v.x, theirs[k].words[1] = v.y;
                    }
#pragma unroll
                for (int k = 0; k < DEPTH; k++)
                    if (at + k * stride < end) missing |= theirs[k].words[0] == ABSENT || theirs[k].words[1] == ABSENT;
                if (delivered || !__any_sync(~0u, missing)) break;
                if (looks % LOOKS_PER_FLAG == 0)
                    delivered = __all_sync(~0u, load_acquire(arrived(a.arena[a.rank], peer, chunk)) >= epoch);
                if (__any_sync(~0u, watch.stop(a, peer, epoch, chunk))) return;
            }
            taken++;
            if (peer_in_place && lane_at == 0) *(volatile u64*)acknowledged(a.arena[peer], warp) = taken;
            if (in_place && !warp_wait(a, acknowledged(a.arena[a.rank], warp), taken, epoch, chunk)) return;
#pragma unroll
            for (int k = 0; k < DEPTH; k++)
                if (at + k * stride < end) {
                    arrivals.take(peer, at + k * stride, bytes, theirs[k].words);
                    Pack<T, 16> out = a.rank == 0 ? combine(a.op, 2, own[k], theirs[k]) : combine(a.op, 2, theirs[k], own[k]);
                    store_pack<T, 16, Whole>(a.recv, at + k * stride, bytes, aligned, out);
                    *(Words2*)(room + at + k * stride) = Words2{ABSENT, ABSENT};
                }
        }
        begin = end;
        __syncwarp();
        // The last warp of all tells the peer: each has fenced its stores of ABSENT before it counted itself.
        if (lane_at == 0) {
            __threadfence();
            if (atomicAdd(&control(a)->readers[chunk], 1) == warps - 1) {
                control(a)->readers[chunk] = 0;
                __threadfence_system();
                store_release(was_read(a.arena[peer], a.rank, chunk), epoch);
            }
        }
    }
}

// `Whole`: the buffers are aligned and end with a whole pack. What others need costs these nothing.
template <class T, bool Whole> __device__ __forceinline__ void copy_all_reduce(const CopyArgs& c) {
    const Args& a = c.a;
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    announce(a, epoch);
    follow<T, Whole>(c, epoch);
    if (blockIdx.x == 0) {
        const u32 peer = a.rank ^ 1, last = u32(c.chunks) - 1;
        bool came = true;
        for (u32 chunk = 0; came && chunk <= last; chunk++)
            came = block_wait(a, arrived(a.arena[a.rank], a.rank, chunk), epoch, peer, epoch, chunk);
        if (came) block_wait(a, was_read(a.arena[a.rank], peer, last), epoch, peer, epoch, last);
    }
    leave(a, epoch);
}

// The call that the copies belong to: block 0 of its kernel ends after them.
__device__ __forceinline__ u64 call_of_copies(const Args& a) { return *(volatile u64*)&control(a)->epoch[0] + 1; }

// One warp behind a copy.
__device__ __forceinline__ void copies_flag(const Args& a) {
    if (threadIdx.x != 0) return;
    const u64 epoch = call_of_copies(a);
    __threadfence_system(); // the copy before this kernel
    store_release(arrived(a.arena[a.rank ^ 1], a.rank, a.chunk), epoch);
    store_release(arrived(a.arena[a.rank], a.rank, a.chunk), epoch);
}

// One warp before a copy to where chunk `a.chunk` of this call was.
__device__ __forceinline__ void copies_wait(const Args& a) {
    const u64 epoch = call_of_copies(a);
    const u32 peer = a.rank ^ 1;
    block_wait(a, was_read(a.arena[a.rank], peer, a.chunk), epoch, peer, epoch, a.chunk);
}
