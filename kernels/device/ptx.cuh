// What only PTX can say: accesses that other GPUs see, the clock, kernels that begin early, 16-bit floats. Whoever runs the
// kernels on something else has a header of its own in place of this one (`tests/emulator`), and defines PTX_CUH.
#ifndef PTX_CUH
#define PTX_CUH
#include "words.cuh"

__device__ __forceinline__ u32 load_relaxed(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u64 load_acquire(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_release(u64* p, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void store_words(void* p, u64 x, u64 y) {
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(x), "l"(y) : "memory");
}
__device__ __forceinline__ Words2 load_words(const void* p) {
    Words2 v;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u64 load_word(const u64* p) {
    u64 v;
    asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Kernels of a stream may begin, on GPUs that know how, while the one before them still ends. Nothing is read or written
// before this returns: all that came before in the stream is done then.
__device__ __forceinline__ void await_stream() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the stream's next kernel come that far.
__device__ __forceinline__ void allow_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A line of LL: data, and the flag beside each half of it.
__device__ __forceinline__ void ll_store(void* line, u64 data, u32 flag) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};" ::"l"(line), "r"(u32(data)), "r"(u32(data >> 32)),
                 "r"(flag)
                 : "memory");
}
__device__ __forceinline__ Words4 ll_load(const void* line) {
    Words4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(line) : "memory");
    return v;
}

__device__ __forceinline__ float from_half(u16 half) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(half));
    return wide;
}
__device__ __forceinline__ u16 to_half(float wide) {
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(wide));
    return half;
}
#endif
