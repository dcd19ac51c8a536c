// The zero-copy kernels of one element type. The generator compiles this file once a type, with ELEMENT and NAME defined.
#include "zero.cuh"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define KERNEL(kind) extern "C" __global__ void __launch_bounds__(512, 1) JOIN(kind, NAME)(const __grid_constant__ Args a)

KERNEL(zero_) { zero_copy_units<ELEMENT, 2, true>(a); }
KERNEL(zero_any_) { zero_copy_units<ELEMENT, 1, false>(a); }
