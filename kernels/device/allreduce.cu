// The kernels of one element type. The generator compiles this file once a type, with ELEMENT and NAME defined.
#include "copy.cuh"
#include "ll.cuh"
#include "ll128.cuh"
#include "push.cuh"
#include "ring.cuh"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define KERNEL(kind) extern "C" __global__ void __launch_bounds__(512, 1) JOIN(kind, NAME)(const __grid_constant__ Args a)

KERNEL(ll_) { ll_all_reduce<ELEMENT>(a); }
KERNEL(ll128_) { wide_all_reduce<ELEMENT>(a); }
KERNEL(push_) { push_all_reduce<ELEMENT>(a); }
extern "C" __global__ void __launch_bounds__(512, 1) JOIN(copy_, NAME)(const __grid_constant__ CopyArgs a) { copy_all_reduce<ELEMENT>(a); }
KERNEL(ring_) { ring_all_reduce<ELEMENT>(a); }
