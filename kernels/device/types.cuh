// Words, and the element types as the kernels see them. No header of a toolkit is needed.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;

struct alignas(16) Words4 { u32 x, y, z, w; };
struct alignas(16) Words2 { u64 x, y; };

struct f16 { u16 bits; };
struct bf16 { u16 bits; };

// What sums, products and extremes of T are kept in.
template <class T> struct Accumulator { typedef T type; };
template <> struct Accumulator<f16> { typedef float type; };
template <> struct Accumulator<bf16> { typedef float type; };

template <class T> __device__ __forceinline__ typename Accumulator<T>::type widen(T x) { return x; }
__device__ __forceinline__ float widen(f16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

template <class T> __device__ __forceinline__ T narrow(typename Accumulator<T>::type x) { return x; }
template <> __device__ __forceinline__ f16 narrow<f16>(float x) {
    f16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(x));
    return half;
}
// To nearest, ties to even; a NaN keeps its upper bits and stays one.
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) {
    u32 bits = __float_as_uint(x);
    bf16 half;
    half.bits = x != x ? u16(bits >> 16 | 0x40) : u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    return half;
}
