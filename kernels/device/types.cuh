// The element types as the kernels see them.
#pragma once
#include "ptx.cuh"

struct f16 { u16 bits; };
struct bf16 { u16 bits; };

// What sums, products and extremes of T are kept in.
template <class T> struct Accumulator { typedef T type; };
template <> struct Accumulator<f16> { typedef float type; };
template <> struct Accumulator<bf16> { typedef float type; };

template <class T> __device__ __forceinline__ typename Accumulator<T>::type widen(T x) { return x; }
__device__ __forceinline__ float widen(f16 x) {
    return from_half(x.bits);
}
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

template <class T> __device__ __forceinline__ T narrow(typename Accumulator<T>::type x) { return x; }
template <> __device__ __forceinline__ f16 narrow<f16>(float x) {
    return f16{to_half(x)};
}
// To nearest, ties to even; a NaN keeps its upper bits and stays one.
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) {
    u32 bits = __float_as_uint(x);
    bf16 half;
    half.bits = x != x ? u16(bits >> 16 | 0x40) : u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    return half;
}
