// Elements in units of 8 and 16 bytes, at any alignment that the element allows.
#pragma once
#include "check.cuh"
#include "reduce.cuh"

// `Bytes` bytes of elements.
template <class T, int Bytes> union alignas(Bytes) Pack {
    T v[Bytes / sizeof(T)];
    u64 words[Bytes / 8];
    static constexpr int N = Bytes / sizeof(T);
    __device__ Pack() {}
};

__device__ __forceinline__ void load_unit(const void* p, u64 (&w)[1]) { w[0] = *(const u64*)p; }
__device__ __forceinline__ void load_unit(const void* p, u64 (&w)[2]) {
    Words2 v = *(const Words2*)p;
    w[0] = v.x, w[1] = v.y;
}
__device__ __forceinline__ void store_unit(void* p, const u64 (&w)[1]) { *(u64*)p = w[0]; }
__device__ __forceinline__ void store_unit(void* p, const u64 (&w)[2]) { *(Words2*)p = Words2{w[0], w[1]}; }

// The same where the buffer is not aligned to it or ends within: element by element. Not inlined, since rare.
template <class T, int Bytes> __device__ __noinline__ Words2 load_ragged(const u8* buffer, u64 at, u64 bytes) {
    u64 w[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < Bytes / 8; k++) {
#pragma unroll 1
        for (u32 i = 0; i < 8; i += sizeof(T)) {
            u64 place = at + 8 * k + i;
            if (place >= bytes) break;
            Pack<T, 8> one;
            one.words[0] = 0;
            one.v[0] = *(const T*)(buffer + place);
            w[k] |= one.words[0] << 8 * i;
        }
    }
    return Words2{w[0], w[1]};
}
template <class T, int Bytes> __device__ __noinline__ void store_ragged(u8* buffer, u64 at, u64 bytes, Words2 data) {
    u64 w[2] = {data.x, data.y};
#pragma unroll
    for (int k = 0; k < Bytes / 8; k++) {
#pragma unroll 1
        for (u32 i = 0; i < 8; i += sizeof(T)) {
            u64 place = at + 8 * k + i;
            if (place >= bytes) break;
            Pack<T, 8> one;
            one.words[0] = w[k] >> 8 * i;
            *(T*)(buffer + place) = one.v[0];
        }
    }
}

// `Bytes` bytes at byte `at` of a buffer of `bytes`; what lies behind its end reads as zero. `Whole`: nothing lies
// behind its end, and it is aligned.
template <class T, int Bytes, bool Whole = false>
__device__ __forceinline__ Pack<T, Bytes> load_pack(const u8* buffer, u64 at, u64 bytes, bool aligned) {
    Pack<T, Bytes> pack;
    if (Whole || (aligned && at + Bytes <= bytes)) {
        load_unit(buffer + at, pack.words);
    } else {
        Words2 w = load_ragged<T, Bytes>(buffer, at, bytes);
        pack.words[0] = w.x;
        if (Bytes == 16) pack.words[Bytes / 8 - 1] = w.y;
    }
    return pack;
}

template <class T, int Bytes, bool Whole = false>
__device__ __forceinline__ void store_pack(u8* buffer, u64 at, u64 bytes, bool aligned, const Pack<T, Bytes>& pack) {
    if (Whole || (aligned && at + Bytes <= bytes)) store_unit(buffer + at, pack.words);
    else store_ragged<T, Bytes>(buffer, at, bytes, Words2{pack.words[0], pack.words[Bytes / 8 - 1]});
}

template <class T> __device__ __noinline__ u64 combine_word(u32 op, u32 n, u64 a, u64 b) {
    Pack<T, 8> x, y;
    x.words[0] = a, y.words[0] = b;
#pragma unroll
    for (int i = 0; i < x.N; i++) {
        Fold<T> fold;
        fold.first(op, n, x.v[i]);
        fold.next(op, n, y.v[i]);
        x.v[i] = fold.last(op, n);
    }
    return x.words[0];
}

// Two packs, the lower rank's first. A mean is divided by n.
template <class T, int Bytes>
__device__ __forceinline__ Pack<T, Bytes> combine(u32 op, u32 n, const Pack<T, Bytes>& a, const Pack<T, Bytes>& b) {
    Pack<T, Bytes> out;
    if (op == SUM) { // the one that matters most
#pragma unroll
        for (int i = 0; i < out.N; i++) out.v[i] = narrow<T>(add(widen(a.v[i]), widen(b.v[i])));
    } else {
#pragma unroll
        for (int i = 0; i < Bytes / 8; i++) out.words[i] = combine_word<T>(op, n, a.words[i], b.words[i]);
    }
    return out;
}

__device__ __forceinline__ bool all_aligned(const Args& a, u32 to) {
    return (((u64)a.send | (u64)a.recv) & (to - 1)) == 0;
}
