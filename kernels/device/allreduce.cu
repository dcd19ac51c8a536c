// The kernels of one element type that move a message in chunks. The generator compiles this file once a type, with
// ELEMENT and NAME defined.
#include "copy.cuh"
#include "ring.cuh"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define KERNEL(kind) extern "C" __global__ void __launch_bounds__(512, 1) JOIN(kind, NAME)(const __grid_constant__ Args a)

#define COPY_KERNEL(kind) extern "C" __global__ void __launch_bounds__(512, 1) JOIN(kind, NAME)(const __grid_constant__ CopyArgs a)

COPY_KERNEL(copy_) { copy_all_reduce<ELEMENT, true>(a); }
COPY_KERNEL(copy_any_) { copy_all_reduce<ELEMENT, false>(a); }
KERNEL(ring_) { ring_all_reduce<ELEMENT>(a); }
