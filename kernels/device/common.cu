// Kernels that do not depend on the element type: what the copies wait for, and the proof that a path can be trusted.
#include "check_kernels.cuh"
#include "copy.cuh"

extern "C" __global__ void __launch_bounds__(32) copy_flag(const __grid_constant__ Args a) { copies_flag(a); }
extern "C" __global__ void __launch_bounds__(32) copy_wait(const __grid_constant__ Args a) { copies_wait(a); }
extern "C" __global__ void __launch_bounds__(512, 1) check_send(const __grid_constant__ Args a) { sum_what_is_sent(a); }
extern "C" __global__ void __launch_bounds__(512, 1) check_result(const __grid_constant__ Args a) { compare_sums(a); }

__device__ __forceinline__ u64 pattern(u32 from, u32 to, u64 i) {
    u64 x = (i + 1) * 0x9e3779b97f4a7c15ull ^ u64(from) << 32 ^ to;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

// Every rank writes a pattern into its place in every peer's slots, both ways at once; the owner counts what is
// wrong. `count` is bytes for each pair; the wrong words go to `recv`.
extern "C" __global__ void __launch_bounds__(512, 1) prove(const __grid_constant__ Args a) {
    const u64 epoch = enter(a);
    if (epoch == 0) return;
    announce(a, epoch);
    const u64 words = a.count / 16, stride = u64(gridDim.x) * blockDim.x, begin = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    const u64 at = a.bulk_at + (epoch & 1) * a.bulk_bytes;
    const u32 fault = control(a)->fault.epoch == epoch ? control(a)->fault.kind : NO_FAULT;
    for (u32 peer = 0; peer < a.size; peer++)
        if (peer != a.rank)
            for (u64 i = begin; i < words; i += stride) {
                if (fault == DROP && i == 0) continue;
                Words2 v{pattern(a.rank, peer, 2 * i), pattern(a.rank, peer, 2 * i + 1)};
                *((Words2*)(a.arena[peer] + at + a.rank * a.count) + i) = v;
            }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        for (u32 peer = 0; peer < a.size; peer++)
            if (peer != a.rank) store_release(arrived(a.arena[peer], a.rank, blockIdx.x), epoch);
    }
    u64 wrong = 0;
    for (u32 peer = 0; peer < a.size; peer++)
        if (peer != a.rank) {
            // Block b of the peer wrote the same words as block b here reads.
            if (!block_wait(a, arrived(a.arena[a.rank], peer, blockIdx.x), epoch, peer, epoch, 0)) {
                wrong = words;
                break;
            }
            for (u64 i = begin; i < words; i += stride) {
                Words2 v = load_words((Words2*)(a.arena[a.rank] + at + peer * a.count) + i);
                if (fault == FLIP && i == 0) v.x ^= 1;
                wrong += (v.x != pattern(peer, a.rank, 2 * i)) + (v.y != pattern(peer, a.rank, 2 * i + 1));
            }
        }
    if (wrong != 0) atomicAdd((u64*)a.recv, wrong);
    leave(a, epoch);
}
