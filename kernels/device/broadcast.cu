// The kernels of the broadcast. The generator compiles this file once, once more for GPUs whose kernels may begin before the
// last one ended, and once with CHECKED defined, where data can be damaged on purpose.
#include "broadcast.cuh"

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ Args a)

KERNEL(broadcast_ll) { broadcast_by_lines(a); }
KERNEL(broadcast_push) { broadcast_by_push<true>(a); }
KERNEL(broadcast_push_any) { broadcast_by_push<false>(a); }
KERNEL(broadcast_ring) { broadcast_by_ring(a); }
KERNEL(broadcast_check) { compare_with_root(a); }
