// How the threads of a kernel run on a CPU: each is a fiber, all of a launch take turns in one thread of the process, which
// is the stream's. A fiber gives its turn away where it looks for what others write, and waits for its warp or its block
// where CUDA says so. Kernels of several streams, and of several processes, run at the same time, as on GPUs.
#pragma once
#include <cstddef>

struct Place {
    unsigned x, y, z;
};

// What a running thread knows of itself.
struct GpuThread {
    Place thread, block, block_size, grid;
    unsigned looks; // at what others may write
};

extern "C" {
// The one that runs now; null outside of kernels.
extern __thread GpuThread* emulated_thread __attribute__((tls_model("initial-exec")));
// Lets the others run.
void emulated_pause(void);
// Returns, in each lane of the warp, what every lane gave, once all have come.
const unsigned long long* emulated_warp(unsigned long long value);
// Returns once all threads of the block have come: whether all of them gave something other than zero.
int emulated_block(int value);
}

// A kernel's code, which copies its arguments for each thread.
using Kernel = void (*)(const void* code, const void* arguments);

// Runs a launch to its end.
void run_kernel(Kernel call, const void* code, const void* arguments, unsigned blocks, unsigned threads);
