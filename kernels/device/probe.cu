// The way between two GPUs, proven and measured before anyone relies on it: kernels of one process that has both. They
// wait for nothing but each other's flag, and for that a limited time. `src/probe.rs` has the arguments in Rust.
#include "ptx.cuh"

struct ProbeArgs {
    u8* to;
    const u8* from;
    u64* result;
    u64 count;
    u64 seed;
    u64 limit_ns;
    u64 first;
};
static_assert(sizeof(ProbeArgs) == 56, "probe.rs has this size");

__device__ __forceinline__ u64 pattern(u64 seed, u64 i) {
    u64 x = (i + 1) * 0x9e3779b97f4a7c15ull ^ seed;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

// Stores of 16 bytes, as the AllReduce kernels make them.
extern "C" __global__ void __launch_bounds__(512) probe_write(const __grid_constant__ ProbeArgs a) {
    const u64 stride = u64(gridDim.x) * blockDim.x;
    Words2* to = (Words2*)a.to;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < a.count / 2; i += stride)
        to[i] = Words2{pattern(a.seed, 2 * i), pattern(a.seed, 2 * i + 1)};
    __threadfence_system();
}

// Runs on the GPU that owns the memory, after the writer is done.
extern "C" __global__ void __launch_bounds__(512) probe_check(const __grid_constant__ ProbeArgs a) {
    const u64 stride = u64(gridDim.x) * blockDim.x;
    const u64* from = (const u64*)a.from;
    u64 wrong = 0;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < a.count; i += stride) {
        wrong += load_word(from + i) != pattern(a.seed, i);
    }
    if (wrong != 0) atomicAdd(a.result, wrong);
}

// One thread on each of the two GPUs: each writes the number of the round into the peer's flag and waits for it in its
// own. Gives the time of all rounds, or all ones if the peer was silent for too long.
extern "C" __global__ void __launch_bounds__(32) probe_ping(const __grid_constant__ ProbeArgs a) {
    if (threadIdx.x != 0) return;
    volatile u64* there = (volatile u64*)a.to;
    const volatile u64* here = (const volatile u64*)a.from;
    const u64 born = nanoseconds();
    u64 began = born;
    for (u64 round = 1; round <= a.count; round++) {
        if (round == 2) began = nanoseconds(); // the first one waits for the peer's launch
        if (a.first) *there = a.seed + round;
        for (u32 spins = 1; *here != a.seed + round; spins++)
            if (spins % 256 == 0 && nanoseconds() - born > a.limit_ns) {
                *a.result = ~0ull;
                return;
            }
        if (!a.first) *there = a.seed + round;
    }
    *a.result = nanoseconds() - began;
}
