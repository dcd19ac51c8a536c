// The kernels of one element type that send a whole message straight to the peers. The generator compiles this file
// once a type, with ELEMENT and NAME defined, and once more for GPUs whose kernels may begin before the last one ended.
#include "ll.cuh"
#include "push.cuh"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define KERNEL(kind) extern "C" __global__ void __launch_bounds__(512, 1) JOIN(kind, NAME)(const __grid_constant__ Args a)

KERNEL(ll_) { ll_all_reduce<ELEMENT, true>(a); }
KERNEL(ll_any_) { ll_all_reduce<ELEMENT, false>(a); }
KERNEL(push_) { push_all_reduce<ELEMENT, true>(a); }
KERNEL(push_any_) { push_all_reduce<ELEMENT, false>(a); }
