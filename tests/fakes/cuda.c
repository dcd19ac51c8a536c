// A CUDA driver of a few lines, for machines without one: devices are pieces of host memory, all work is done at once,
// and the kernels of libcomm's probe are known by name. FAKE_CUDA names what is wrong with it: `lie` (what one device
// writes to another arrives changed), `hang` (it never does), `no-peer` (it is not allowed).
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { DEVICES = 2, MOST = 4096 };
struct args { u64 to, from, result, count, seed, limit_ns, first; };

static struct { u64 begin, bytes; int device; } memory[MOST];
static int allocations;
static int stack[64], depth; // devices of the contexts that are current; 0 is none, device d is d + 1

static int wrong(const char *what) {
    const char *said = getenv("FAKE_CUDA");
    return said && strcmp(said, what) == 0;
}
static int owner(u64 address) {
    for (int i = 0; i < allocations; i++)
        if (address >= memory[i].begin && address < memory[i].begin + memory[i].bytes) return memory[i].device;
    return -1;
}
// Whether a write to `address` from the current device goes to another one, and what becomes of it.
static int goes_wrong(u64 address) {
    int to = owner(address), from = depth ? stack[depth - 1] - 1 : -1;
    if (to < 0 || from < 0 || to == from) return 0;
    while (wrong("hang")) sleep(60);
    return wrong("lie");
}
static u64 pattern(u64 seed, u64 i) {
    u64 x = (i + 1) * 0x9e3779b97f4a7c15ull ^ seed;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

int cuInit(unsigned flags) { return 0; }
int cuGetErrorName(int status, const char **name) { *name = "CUDA_ERROR_FAKE"; return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = DEVICES; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < DEVICES ? 0 : 101; }
int cuDeviceGetPCIBusId(char *name, int length, int device) {
    const char *known[DEVICES] = {"0000:1B:00.0", "0000:3B:00.0"};
    strncpy(name, known[device], length);
    return 0;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer) { *can = device != peer && !wrong("no-peer"); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uintptr_t)(device + 1); return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)(uintptr_t)(depth ? stack[depth - 1] : 0); return 0; }
int cuCtxPushCurrent_v2(void *context) { stack[depth++] = (int)(uintptr_t)context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = (void *)(uintptr_t)stack[--depth]; return 0; }
int cuCtxGetDevice(int *device) { *device = stack[depth - 1] - 1; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuCtxEnablePeerAccess(void *context, unsigned flags) { return 0; }

int cuMemAlloc_v2(u64 *address, size_t bytes) {
    void *place = 0;
    if (allocations == MOST || posix_memalign(&place, 4096, bytes)) return 2;
    memory[allocations].begin = *address = (u64)(uintptr_t)place;
    memory[allocations].bytes = bytes;
    memory[allocations++].device = stack[depth - 1] - 1;
    return 0;
}
int cuMemFree_v2(u64 address) { return 0; }
int cuMemsetD8_v2(u64 address, unsigned char value, size_t bytes) { memset((void *)(uintptr_t)address, value, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, u64 from, size_t bytes) { memcpy(to, (void *)(uintptr_t)from, bytes); return 0; }
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t bytes) { memcpy((void *)(uintptr_t)to, from, bytes); return 0; }
int cuMemcpyAsync(u64 to, u64 from, size_t bytes, void *stream) {
    int lies = goes_wrong(to);
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    if (lies) *(unsigned char *)(uintptr_t)(to + bytes / 2) ^= 4;
    return 0;
}
int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) { return posix_memalign(address, 4096, bytes) ? 2 : 0; }
int cuMemFreeHost(void *address) { free(address); return 0; }
int cuMemHostGetDevicePointer_v2(u64 *address, void *host, unsigned flags) { *address = (u64)(uintptr_t)host; return 0; }

int cuModuleLoadDataEx(void **module, const void *image, unsigned options, int *names, void **values) { *module = "module"; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = strdup(name); return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) { *value = 32; return 0; }
int cuFuncLoad(void *function) { return 0; }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    struct args a = *(struct args *)arguments[0];
    if (strcmp(function, "probe_write") == 0) {
        int lies = goes_wrong(a.to);
        for (u64 i = 0; i < a.count; i++) ((u64 *)(uintptr_t)a.to)[i] = pattern(a.seed, i) ^ (lies && i == 7);
    } else if (strcmp(function, "probe_check") == 0) {
        for (u64 i = 0; i < a.count; i++) *(u64 *)(uintptr_t)a.result += ((u64 *)(uintptr_t)a.from)[i] != pattern(a.seed, i);
    } else if (strcmp(function, "probe_ping") == 0) {
        *(u64 *)(uintptr_t)a.result = 2000 * (a.count - 1);
    } else {
        return 98;
    }
    return 0;
}

int cuStreamCreate(void **stream, unsigned flags) { *stream = "stream"; return 0; }
int cuStreamDestroy_v2(void *stream) { return 0; }
int cuStreamSynchronize(void *stream) { return 0; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return 0; }
int cuEventCreate(void **event, unsigned flags) { *event = "event"; return 0; }
int cuEventRecord(void *event, void *stream) { return 0; }
int cuEventSynchronize(void *event) { return 0; }
int cuEventElapsedTime(float *milliseconds, void *start, void *end) { *milliseconds = 1; return 0; }
int cuEventDestroy_v2(void *event) { return 0; }
