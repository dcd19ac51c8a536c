// The reductions: the same arithmetic as `libcomm/src/element.rs`, bit for bit.
#pragma once
#include "types.cuh"

enum Op : u32 { SUM = 1, PROD = 2, MIN = 3, MAX = 4, AVG = 5 };

template <class T> struct IsFloat { static constexpr bool value = false; };
template <> struct IsFloat<float> { static constexpr bool value = true; };
template <> struct IsFloat<double> { static constexpr bool value = true; };
template <> struct IsFloat<f16> { static constexpr bool value = true; };
template <> struct IsFloat<bf16> { static constexpr bool value = true; };

// A NaN on either side stays.
template <class A> __device__ __forceinline__ A least(A a, A b) { return a < b || a != a ? a : b; }
template <class A> __device__ __forceinline__ A greatest(A a, A b) { return a > b || a != a ? a : b; }

// Integer sums wrap, and are made without a sign so that this is defined.
template <class A> __device__ __forceinline__ A add(A a, A b) { return A(u64(a) + u64(b)); }
template <> __device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
template <> __device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
template <class A> __device__ __forceinline__ A mul(A a, A b) { return A(u64(a) * u64(b)); }
template <> __device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
template <> __device__ __forceinline__ double mul(double a, double b) { return __dmul_rn(a, b); }

// The mean of integers over n ranks, whose sum may not fit: sums of quotients and of rests, which do. Not inlined:
// a 64-bit division is long, and means of integers are rare.
struct Mean64 {
    i64 quotient, rest;
    __device__ __noinline__ void take(i64 x, u32 n) {
        i64 q = x / i64(n);
        quotient += q, rest += x - q * i64(n);
    }
    __device__ __noinline__ void take(u64 x, u32 n) {
        u64 q = x / n;
        quotient += i64(q), rest += i64(x - q * n);
    }
    // Cut towards zero.
    __device__ __noinline__ i64 cut(u32 n, i64) const {
        i64 q = quotient + rest / i64(n), r = rest % i64(n);
        return q > 0 && r < 0 ? q - 1 : q < 0 && r > 0 ? q + 1 : q;
    }
    __device__ __noinline__ u64 cut(u32 n, u64) const { return u64(quotient) + u64(rest) / n; }
};
template <class T> struct Wide { typedef i64 type; };
template <> struct Wide<u64> { typedef u64 type; };

// One element's way over all ranks, in their order.
template <class T> struct Fold {
    typedef typename Accumulator<T>::type A;
    A acc;
    Mean64 mean;

    __device__ __forceinline__ void first(u32 op, u32 n, T x) {
        if (!IsFloat<T>::value && op == AVG) {
            mean = Mean64{0, 0};
            next(op, n, x);
        } else {
            acc = widen(x);
        }
    }
    __device__ __forceinline__ void next(u32 op, u32 n, T x) {
        if constexpr (!IsFloat<T>::value) {
            if (op == AVG) {
                mean.take(typename Wide<T>::type(x), n);
                return;
            }
        }
        A b = widen(x);
        switch (op) {
        case PROD: acc = mul(acc, b); break;
        case MIN: acc = least(acc, b); break;
        case MAX: acc = greatest(acc, b); break;
        default: acc = add(acc, b);
        }
    }
    __device__ __forceinline__ T last(u32 op, u32 n) {
        if constexpr (IsFloat<T>::value) {
            if (op == AVG) return narrow<T>(acc / A(n));
            return narrow<T>(acc);
        } else {
            if (op == AVG) return T(mean.cut(n, typename Wide<T>::type()));
            return acc;
        }
    }
};
