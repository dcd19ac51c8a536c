// Verification: whether data arrived as it was sent, and whether all ranks have the same result.
//
// A message is cut into at most CHECKS chunks of `1 << a.check` bytes. A chunk's sum is the sum, over its 8-byte words,
// of a mix of the word with its place (`libcomm/src/verify.rs` has the same and the reasons): it has no order, so that
// any thread may add its part. `check_send` sums what is sent, before the call; while it runs, whoever takes data out
// of an arena adds it up by source (`Arrivals`, only in images made with CHECKED); `check_result` tells the peers all
// sums, awaits theirs, and compares: what each source sent with what came from it, and the results.
//
// In a ring partial results travel, so that the kernel itself adds up what it sends, and only neighbours compare.
//
// A peer's sum has a place for each parity and source, and two words, the second of which is the first mixed with the
// epoch: both words of one call are there when they fit each other. It is written again two calls later, when its
// reader has ended the call between (`sync.cuh`), and so this one.
#pragma once
#include "sync.cuh"

#ifndef CHECKED
#define CHECKED 0
#endif

__device__ __forceinline__ u64 mix(u64 word, u64 place) {
    word += (place + 1) * 0x9e3779b97f4a7c15ull;
    word = (word ^ word >> 32) * 0xd6e8feb86659fd93ull;
    return word ^ word >> 32;
}

__device__ __forceinline__ u64* sent_sum(const Args& a, u32 chunk) { return (u64*)(a.own + SUMS_AT) + chunk; }
__device__ __forceinline__ u64* result_sum(const Args& a, u32 chunk) { return sent_sum(a, chunk) + CHECKS; }
__device__ __forceinline__ u64* came_sum(const Args& a, u32 source, u32 chunk) { return sent_sum(a, chunk) + (2 + source) * CHECKS; }
__device__ __forceinline__ Words2* told_sum(const Args& a, u32 owner, u32 at, u64 epoch, u32 source, u32 chunk) {
    return (Words2*)(a.arena[owner] + at) + ((epoch & 1) * MAX_RANKS + source) * CHECKS + chunk;
}

// What one thread takes out of the arena of this rank in call `epoch`, summed by source and chunk.
struct Arrivals {
    const Args& a;
    const u64 epoch;
#if CHECKED
    u64 sum = 0;
    u32 key = ~0u;

    template <int N> __device__ __noinline__ void add(u32 place, u64 at, u64 bytes, const u64 (&words)[N], u64 salt) {
        const u32 now = place * CHECKS + u32(at >> a.check);
        if (now != key) flush(), key = now;
#pragma unroll
        for (int k = 0; k < N; k++)
            if (at + 8 * k < bytes) {
                // Behind the end there is what an earlier call has left.
                const u64 left = bytes - at - 8 * k, word = left >= 8 ? words[k] : words[k] & ((1ull << 8 * left) - 1);
                sum += mix(word, at / 8 + k + salt);
            }
    }
    __device__ __noinline__ void flush() {
        if (key != ~0u) atomicAdd((u64*)(a.own + SUMS_AT) + key, sum);
        sum = 0, key = ~0u;
    }
    // Data of `source` that lies at byte `at` of a message of `bytes`. A fault strikes here, before it is used.
    template <int N> __device__ __forceinline__ void take(u32 source, u64 at, u64 bytes, u64 (&words)[N], u64 salt = 0) {
        const Fault& fault = control(a)->fault;
        if (fault.kind == FLIP && fault.epoch == epoch && at / (8 * N) == fault.at / (8 * N)) {
#pragma unroll
            for (int k = 0; k < N; k++)
                if (fault.at / 8 % N == k) words[k] ^= 1ull << (fault.bit & 63);
        }
        if (a.check != 0) add(2 + source, at, bytes, words, salt);
    }
    // The same of what a ring sends.
    template <int N> __device__ __forceinline__ void give(u64 at, u64 bytes, const u64 (&words)[N], u64 salt) {
        if (a.check != 0) add(0, at, bytes, words, salt);
    }
    // Whether the data at byte `at`, in units of `unit` bytes, is to be lost on its way.
    __device__ __forceinline__ bool lost(u64 at, u32 unit) const {
        const Fault& fault = control(a)->fault;
        return fault.kind == DROP && fault.epoch == epoch && at / unit == fault.at / unit;
    }
    __device__ ~Arrivals() { flush(); }
#else
    template <int N> __device__ __forceinline__ void take(u32, u64, u64, u64 (&)[N], u64 = 0) {}
    template <int N> __device__ __forceinline__ void give(u64, u64, const u64 (&)[N], u64) {}
    __device__ __forceinline__ bool lost(u64, u32) const { return false; }
#endif
};
