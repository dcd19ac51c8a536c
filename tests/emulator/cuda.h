// CUDA C++ as a C++ compiler for CPUs takes it, for the files in `kernels/device`: included before each of them, in place of
// their `ptx.cuh`. Memory of all GPUs is this machine's, so that its CPUs' order of accesses stands for that between GPUs:
// what only a weaker order would show is not found here.
#pragma once
#include <emmintrin.h>
#include <time.h>

#include <cstring>

#include "threads.h"

#define PTX_CUH
#define EMULATED
#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define threadIdx (emulated_thread->thread)
#define blockIdx (emulated_thread->block)
#define blockDim (emulated_thread->block_size)
#define gridDim (emulated_thread->grid)

#include "words.cuh"

// Before each look at what others may write: now and then they get a turn to do so.
inline void look() {
    if (++emulated_thread->looks % 8 == 0) emulated_pause();
}

inline u32 load_relaxed(const u32* p) {
    look();
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}
inline u64 load_acquire(const u64* p) {
    look();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
inline u64 load_word(const u64* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
inline void store_release(u64* p, u64 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

// 16 bytes at once, as x86 CPUs with AVX do it where they are aligned.
inline void store_16(void* p, const void* v) {
    *(volatile __m128i*)p = _mm_loadu_si128((const __m128i*)v);
}
inline void load_16(void* v, const void* p) { _mm_storeu_si128((__m128i*)v, *(const volatile __m128i*)p); }
inline void store_words(void* p, u64 x, u64 y) {
    const Words2 v{x, y};
    store_16(p, &v);
}
inline Words2 load_words(const void* p) {
    look();
    Words2 v;
    load_16(&v, p);
    return v;
}
inline void ll_store(void* line, u64 data, u32 flag) {
    const Words4 v{u32(data), flag, u32(data >> 32), flag};
    store_16(line, &v);
}
inline Words4 ll_load(const void* line) {
    look();
    Words4 v;
    load_16(&v, line);
    return v;
}
inline u64 nanoseconds() {
    emulated_pause();
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return u64(now.tv_sec) * 1000000000 + now.tv_nsec;
}
inline void await_stream() {}
inline void allow_next() {}

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __syncthreads() { emulated_block(1); }
inline bool __syncthreads_and(int value) { return emulated_block(value) != 0; }
inline void __syncwarp() { emulated_warp(0); }

// All 32 lanes take part in each of these, as the kernels have it.
inline u32 __ballot_sync(u32, bool value) {
    const u64* all = emulated_warp(value);
    u32 bits = 0;
    for (int lane = 0; lane < 32; lane++) bits |= u32(all[lane] != 0) << lane;
    return bits;
}
inline bool __any_sync(u32 mask, bool value) { return __ballot_sync(mask, value) != 0; }
inline bool __all_sync(u32 mask, bool value) { return __ballot_sync(mask, value) == ~0u; }
inline u32 lane_of_warp() { return threadIdx.x & 31; }
template <class T> inline T __shfl_sync(u32, T value, u32 from) {
    static_assert(T(1) / 2 == 0, "a number that loses nothing as u64");
    return T(emulated_warp(u64(value))[from & 31]);
}
template <class T> inline T __shfl_down_sync(u32, T value, u32 by) {
    const u64* all = emulated_warp(u64(value));
    return lane_of_warp() + by < 32 ? T(all[lane_of_warp() + by]) : value;
}
// Threads run one at a time, so each is the only one that is active.
inline u32 __activemask() { return 1u << lane_of_warp(); }
inline int __ffs(u32 bits) { return __builtin_ffs(int(bits)); }

template <class T> inline T atomicAdd(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
inline u32 atomicAdd(u32* p, int v) { return __atomic_fetch_add(p, u32(v), __ATOMIC_SEQ_CST); }
inline u64 atomicExch(u64* p, u64 v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
inline u32 atomicCAS(u32* p, u32 expected, u32 v) {
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
template <class To, class From> inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline u32 __float_as_uint(float x) { return same_bits<u32>(x); }
inline float __uint_as_float(u32 bits) { return same_bits<float>(bits); }
inline float from_half(u16 half) { return float(same_bits<_Float16>(half)); }
inline u16 to_half(float wide) { return wide != wide ? u16(0x7fff) : same_bits<u16>(_Float16(wide)); }
