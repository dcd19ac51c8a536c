// libcuda.so.1 for machines without a GPU: the functions that libcomm, its programs and prun's proof call, over the
// emulation in `memory.h`, `streams.h` and `threads.h`. Kernels are those of `kernels/device`, compiled for this CPU: one
// library for each image, in the folder that this library is in, beside the PTX by which an image is known.
//
//   EMULATED_GPUS             how many there are; 2
//   EMULATED_MULTIPROCESSORS  of each; 2
//
// CUDA_VISIBLE_DEVICES counts, as numbers or as the beginnings of identities. What is refused is what the driver refuses
// and libcomm could get wrong, and some of what it leaves undefined: waiting for streams that are captured, streams that leave a
// capture unjoined, events of another capture, streams that were destroyed, contexts that are not there.
#include <dirent.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "memory.h"
#include "streams.h"
#include "threads.h"

#define API extern "C" __attribute__((visibility("default"))) int

namespace {

constexpr int OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
              NOT_FOUND = 500, INVALID_HANDLE = 400, PEER_ENABLED = 704, PEER_NOT_ENABLED = 705, ALREADY_REGISTERED = 712,
              NOT_REGISTERED = 713, UNKNOWN = 999;

int number_from(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

std::string identity(int physical) {
    char text[64];
    snprintf(text, sizeof text, "GPU-0000000%d-0000-0000-0000-000000000000", physical);
    return text;
}

// Numbers of the GPUs that this process sees.
std::vector<int> find_devices() {
    const int there = number_from("EMULATED_GPUS", 2);
    std::vector<int> seen;
    const char* visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible) {
        for (int device = 0; device < there; device++) seen.push_back(device);
        return seen;
    }
    std::istringstream words(visible);
    for (std::string word; std::getline(words, word, ',');) {
        int found = -1;
        for (int device = 0; device < there; device++)
            if (word == std::to_string(device) || (word.rfind("GPU-", 0) == 0 && identity(device).rfind(word, 0) == 0)) found = device;
        if (found < 0) break; // as the driver: what comes behind an unknown one is not seen
        seen.push_back(found);
    }
    return seen;
}

const std::vector<int>& devices() {
    static auto& seen = *new std::vector<int>(find_devices());
    return seen;
}

bool is_device(int device) { return device >= 0 && size_t(device) < devices().size(); }

// A context is its device's number and one.
void* context_of(int device) { return reinterpret_cast<void*>(intptr_t(device) + 1); }
int device_of(void* context) { return int(reinterpret_cast<intptr_t>(context)) - 1; }
thread_local std::vector<void*> contexts;
void* current() { return contexts.empty() ? nullptr : contexts.back(); }

std::mutex& lock = *new std::mutex;

// The one given, or the default stream of the current device; null if it was destroyed, or never made.
Stream* stream_at(void* stream) {
    static auto& defaults = *new std::map<int, Stream*>;
    if (stream) return is_stream(static_cast<Stream*>(stream)) ? static_cast<Stream*>(stream) : nullptr;
    std::lock_guard guard(lock);
    Stream*& made = defaults[device_of(current())];
    if (!made) made = make_stream(device_of(current()));
    return made;
}

// Does that with a stream that is there.
template <class Use> int with(void* stream, Use use) {
    Stream* found = stream_at(stream);
    if (!found) return INVALID_HANDLE;
    return use(found);
}

int at_once(Work work) {
    if (!current()) return INVALID_CONTEXT;
    Stream* stream = stream_at(nullptr);
    put(stream, std::move(work));
    return wait_for(stream);
}

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

struct Module {
    void* library;
    std::string ptx;
};
struct Function {
    const void* code;
    Kernel call;
    size_t bytes; // of its parameter
};

template <size_t Bytes> struct Arguments {
    alignas(8) char bytes[Bytes];
};
template <size_t Bytes> void call(const void* code, const void* arguments) {
    // The same way to pass as that of any plain structure of this size: a copy on the stack.
    reinterpret_cast<void (*)(Arguments<Bytes>)>(const_cast<void*>(code))(*static_cast<const Arguments<Bytes>*>(arguments));
}
Kernel caller(size_t bytes) {
    switch (bytes) {
    case 56: return call<56>;
    case 240: return call<240>;
    case 632: return call<632>;
    default: return nullptr;
    }
}
// Bytes of a kernel's one parameter, as its PTX has them; 0: there is no such kernel.
size_t parameter_bytes(const std::string& ptx, const std::string& name) {
    const size_t entry = ptx.find(".entry " + name + "(");
    if (entry == std::string::npos) return 0;
    const size_t open = ptx.find("_param_0[", entry);
    return open == std::string::npos ? 0 : strtoul(ptx.c_str() + open + strlen("_param_0["), nullptr, 10);
}

std::string own_folder() {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&own_folder), &info);
    const std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/'));
}

std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

// The library of the image with this text.
std::string library_of(const std::string& ptx) {
    static auto& known = *new std::map<std::string, std::string>;
    std::lock_guard guard(lock);
    if (known.empty()) {
        const std::string folder = own_folder();
        DIR* listing = opendir(folder.c_str());
        if (!listing) return "";
        while (const dirent* entry = readdir(listing)) {
            const std::string name = entry->d_name;
            if (name.size() > 4 && name.substr(name.size() - 4) == ".ptx")
                known[text_of(folder + "/" + name)] = folder + "/" + name.substr(0, name.size() - 4) + ".so";
        }
        closedir(listing);
    }
    auto found = known.find(ptx);
    return found == known.end() ? "" : found->second;
}

template <class T> T& the(void* opaque) { return *static_cast<T*>(opaque); }

} // namespace

API cuInit(unsigned) { return devices().empty() ? NO_DEVICE : SUCCESS; }
API cuDriverGetVersion(int* version) {
    *version = 12080;
    return SUCCESS;
}
API cuGetErrorName(int status, const char** name) {
    static const std::map<int, const char*>& names = *new std::map<int, const char*>{
        {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {100, "CUDA_ERROR_NO_DEVICE"},
        {101, "CUDA_ERROR_INVALID_DEVICE"}, {200, "CUDA_ERROR_INVALID_IMAGE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"},
        {400, "CUDA_ERROR_INVALID_HANDLE"}, {500, "CUDA_ERROR_NOT_FOUND"}, {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
        {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"}, {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
        {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"},
        {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}, {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
        {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"}, {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
        {907, "CUDA_ERROR_CAPTURED_EVENT"}, {999, "CUDA_ERROR_UNKNOWN"}};
    auto found = names.find(status);
    if (found == names.end()) return INVALID_VALUE;
    *name = found->second;
    return SUCCESS;
}

API cuDeviceGetCount(int* count) {
    *count = int(devices().size());
    return SUCCESS;
}
API cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return is_device(ordinal) ? SUCCESS : INVALID_DEVICE;
}
API cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (!is_device(device)) return INVALID_DEVICE;
    switch (attribute) {
    case 16: *value = number_from("EMULATED_MULTIPROCESSORS", 2); break;
    case 75: *value = 9; break;
    case 76: *value = 0; break;
    default: *value = 1;
    }
    return SUCCESS;
}
API cuDeviceGetUuid(unsigned char* uuid, int device) {
    if (!is_device(device)) return INVALID_DEVICE;
    memset(uuid, 0, 16);
    uuid[3] = static_cast<unsigned char>(devices()[device]);
    return SUCCESS;
}
API cuDeviceGetName(char* name, int length, int device) {
    if (!is_device(device)) return INVALID_DEVICE;
    snprintf(name, length, "Emulated GPU");
    return SUCCESS;
}
API cuDeviceTotalMem_v2(size_t* bytes, int device) {
    if (!is_device(device)) return INVALID_DEVICE;
    *bytes = size_t(2) << 30;
    return SUCCESS;
}
API cuDeviceGetPCIBusId(char* name, int length, int device) {
    if (!is_device(device)) return INVALID_DEVICE;
    snprintf(name, length, "0000:%02X:00.0", 0x1b + 0x20 * devices()[device]);
    return SUCCESS;
}
API cuDeviceCanAccessPeer(int* can, int device, int peer) {
    *can = device != peer;
    return SUCCESS;
}

API cuDevicePrimaryCtxRetain(void** context, int device) {
    if (!is_device(device)) return INVALID_DEVICE;
    *context = context_of(device);
    return SUCCESS;
}
API cuCtxGetCurrent(void** context) {
    *context = current();
    return SUCCESS;
}
API cuCtxSetCurrent(void* context) {
    if (!contexts.empty()) contexts.pop_back();
    if (context) contexts.push_back(context);
    return SUCCESS;
}
API cuCtxPushCurrent_v2(void* context) {
    contexts.push_back(context);
    return SUCCESS;
}
API cuCtxPopCurrent_v2(void** context) {
    if (contexts.empty()) return INVALID_CONTEXT;
    *context = current();
    contexts.pop_back();
    return SUCCESS;
}
API cuCtxGetDevice(int* device) {
    if (!current()) return INVALID_CONTEXT;
    *device = device_of(current());
    return SUCCESS;
}
API cuCtxSynchronize() {
    return current() ? wait_for_streams_of(device_of(current())) : INVALID_CONTEXT;
}
// Which peers a context may reach; all can be written to whatever this says.
static bool peers[64][64];
API cuCtxEnablePeerAccess(void* context, unsigned) {
    if (!current()) return INVALID_CONTEXT;
    std::lock_guard guard(lock);
    bool& enabled = peers[device_of(current())][device_of(context)];
    const int status = enabled ? PEER_ENABLED : SUCCESS;
    enabled = true;
    return status;
}
API cuCtxDisablePeerAccess(void* context) {
    if (!current()) return INVALID_CONTEXT;
    std::lock_guard guard(lock);
    bool& enabled = peers[device_of(current())][device_of(context)];
    const int status = enabled ? SUCCESS : PEER_NOT_ENABLED;
    enabled = false;
    return status;
}

static int allocate_at(uint64_t* address, size_t bytes, bool can_be_shared) {
    if (!current()) return INVALID_CONTEXT;
    if (bytes == 0) return INVALID_VALUE;
    *address = allocate(bytes, device_of(current()), can_be_shared);
    return *address ? SUCCESS : OUT_OF_MEMORY;
}
API cuMemAlloc_v2(uint64_t* address, size_t bytes) { return allocate_at(address, bytes, true); }
API cuMemFree_v2(uint64_t address) { return release(address, Kind::Device) ? SUCCESS : INVALID_VALUE; }
API cuMemAllocAsync(uint64_t* address, size_t bytes, void*) { return allocate_at(address, bytes, false); }
API cuMemsetD8_v2(uint64_t address, unsigned char value, size_t bytes) {
    return at_once([=] { memset(pointer(address), value, bytes); });
}
API cuMemsetD32_v2(uint64_t address, unsigned value, size_t count) {
    return at_once([=] {
        for (size_t i = 0; i < count; i++) static_cast<unsigned*>(pointer(address))[i] = value;
    });
}
API cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void* stream) {
    return with(stream, [=](Stream* it) { return put(it, [=] { memset(pointer(address), value, bytes); }); });
}
API cuMemGetAddressRange_v2(uint64_t* base, size_t* bytes, uint64_t address) {
    Allocation found;
    if (!find(address, found) || found.kind == Kind::Pinned) return NOT_FOUND;
    *base = found.base, *bytes = found.bytes;
    return SUCCESS;
}
API cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
    return at_once([=] { memcpy(pointer(to), from, bytes); });
}
API cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
    return at_once([=] { memcpy(to, pointer(from), bytes); });
}
API cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
    return with(stream, [=](Stream* it) { return put(it, [=] { memmove(pointer(to), pointer(from), bytes); }); });
}
API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) { return cuMemcpyAsync(to, from, bytes, stream); }

API cuMemHostAlloc(void** address, size_t bytes, unsigned) {
    if (posix_memalign(address, 4096, bytes) != 0) return OUT_OF_MEMORY;
    note(reinterpret_cast<uint64_t>(*address), bytes, 0, Kind::Pinned);
    return SUCCESS;
}
API cuMemFreeHost(void* address) {
    if (!release(reinterpret_cast<uint64_t>(address), Kind::Pinned)) return INVALID_VALUE;
    free(address);
    return SUCCESS;
}
API cuMemHostGetDevicePointer_v2(uint64_t* address, void* host, unsigned) {
    Allocation found;
    *address = reinterpret_cast<uint64_t>(host);
    return find(*address, found) && found.kind == Kind::Pinned ? SUCCESS : INVALID_VALUE;
}
API cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
    Allocation found;
    if (find(reinterpret_cast<uint64_t>(address), found)) return ALREADY_REGISTERED;
    note(reinterpret_cast<uint64_t>(address), bytes, 0, Kind::Pinned);
    return SUCCESS;
}
API cuMemHostUnregister(void* address) {
    return release(reinterpret_cast<uint64_t>(address), Kind::Pinned) ? SUCCESS : NOT_REGISTERED;
}

static int attribute(void* value, int which, uint64_t address) {
    Allocation found{};
    const bool known = find(address, found);
    switch (which) {
    case 2: *static_cast<unsigned*>(value) = !known ? 0 : found.kind == Kind::Pinned ? 1 : 2; break;
    case 7: *static_cast<uint64_t*>(value) = found.id; break;
    case 8: *static_cast<unsigned*>(value) = 0; break;
    case 9: *static_cast<int*>(value) = known ? found.device : -2; break;
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}
API cuPointerGetAttributes(unsigned count, int* attributes, void** values, uint64_t address) {
    int status = SUCCESS;
    for (unsigned i = 0; i < count; i++) status |= attribute(values[i], attributes[i], address);
    return status;
}
API cuPointerGetAttribute(void* value, int which, uint64_t address) {
    Allocation found;
    return find(address, found) ? attribute(value, which, address) : INVALID_VALUE;
}

struct IpcHandle {
    char bytes[64];
};
API cuIpcGetMemHandle(void* handle, uint64_t address) { return handle_of(address, handle) ? SUCCESS : INVALID_VALUE; }
API cuIpcOpenMemHandle_v2(uint64_t* address, IpcHandle handle, unsigned) {
    if (!current()) return INVALID_CONTEXT;
    *address = open_handle(&handle, device_of(current()));
    return *address ? SUCCESS : INVALID_HANDLE;
}
API cuIpcCloseMemHandle(uint64_t address) { return release(address, Kind::Mapped) ? SUCCESS : INVALID_VALUE; }

// Memory that is mapped by hand: a handle is its size, and it is there when its address is.
API cuMemCreate(uint64_t* handle, size_t bytes, const void*, uint64_t) {
    *handle = bytes;
    return SUCCESS;
}
API cuMemAddressReserve(uint64_t* address, size_t bytes, size_t, uint64_t, uint64_t) { return allocate_at(address, bytes, false); }
API cuMemMap(uint64_t, size_t, size_t, uint64_t, uint64_t) { return SUCCESS; }
API cuMemSetAccess(uint64_t, size_t, const void*, size_t) { return SUCCESS; }

API cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
    if (!current()) return INVALID_CONTEXT;
    const std::string ptx = static_cast<const char*>(image);
    const std::string path = library_of(ptx);
    void* library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "emulator: %s\n", path.empty() ? "no library was made for a module: tests/emulator/build.sh" : dlerror());
        return INVALID_IMAGE;
    }
    *module = new Module{library, ptx};
    return SUCCESS;
}
API cuModuleUnload(void* module) {
    delete static_cast<Module*>(module);
    return SUCCESS;
}
API cuModuleGetFunction(void** function, void* module, const char* name) {
    const size_t bytes = parameter_bytes(the<Module>(module).ptx, name);
    const Kernel call = caller(bytes);
    const void* code = dlsym(the<Module>(module).library, name);
    if (!call || !code) return NOT_FOUND;
    *function = new Function{code, call, bytes};
    return SUCCESS;
}
API cuFuncGetAttribute(int* value, int, void*) {
    *value = 32;
    return SUCCESS;
}
API cuFuncLoad(void*) { return SUCCESS; }

static int launch_at(void* function, unsigned blocks, unsigned threads, void* stream, void** arguments) {
    const Function kernel = the<Function>(function);
    if (threads % 32 != 0) return INVALID_VALUE; // CUDA takes them; these kernels are never launched so
    std::string copy(static_cast<const char*>(arguments[0]), kernel.bytes);
    return with(stream, [&](Stream* it) {
        return put(it, [=] { run_kernel(kernel.call, kernel.code, copy.data(), blocks, threads); });
    });
}
API cuLaunchKernel(void* function, unsigned x, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned, void* stream, void** arguments, void**) {
    return launch_at(function, x, bx, stream, arguments);
}
struct Configuration {
    unsigned grid[3], block[3], shared;
    void* stream;
    void* attributes;
    unsigned attribute_count;
};
API cuLaunchKernelEx(const Configuration* configuration, void* function, void** arguments, void**) {
    return launch_at(function, configuration->grid[0], configuration->block[0], configuration->stream, arguments);
}

API cuStreamCreate(void** stream, unsigned) {
    if (!current()) return INVALID_CONTEXT;
    *stream = make_stream(device_of(current()));
    return SUCCESS;
}
API cuStreamDestroy_v2(void* stream) {
    return with(stream, [](Stream* it) {
        end_stream(it);
        return SUCCESS;
    });
}
API cuStreamSynchronize(void* stream) {
    return with(stream, [](Stream* it) { return wait_for(it); });
}
API cuStreamWaitEvent(void* stream, void* event, unsigned) {
    return with(stream, [=](Stream* it) { return wait_for(it, static_cast<Event*>(event)); });
}
API cuStreamGetCaptureInfo(void* stream, int* status, uint64_t* id) {
    return with(stream, [=](Stream* it) {
        const uint64_t capture = capture_of(it);
        *status = capture != 0;
        if (capture != 0) *id = capture;
        return SUCCESS;
    });
}
API cuStreamIsCapturing(void* stream, int* status) {
    uint64_t id;
    return cuStreamGetCaptureInfo(stream, status, &id);
}
API cuStreamBeginCapture_v2(void* stream, int) {
    if (!stream) return CAPTURE_UNSUPPORTED;
    return with(stream, [](Stream* it) { return begin_capture(it); });
}
API cuStreamEndCapture(void* stream, void** graph) {
    return with(stream, [=](Stream* it) {
        Graph* made = nullptr;
        const Status status = end_capture(it, made);
        *graph = made;
        return status;
    });
}
API cuThreadExchangeStreamCaptureMode(int* mode) {
    static thread_local int now = 0;
    std::swap(*mode, now);
    return SUCCESS;
}
API cuGraphInstantiateWithFlags(void** executable, void* graph, uint64_t) {
    *executable = copy_of(static_cast<Graph*>(graph));
    return SUCCESS;
}
API cuGraphLaunch(void* executable, void* stream) {
    return with(stream, [=](Stream* it) { return launch(static_cast<Graph*>(executable), it); });
}
API cuGraphDestroy(void* graph) {
    end_graph(static_cast<Graph*>(graph));
    return SUCCESS;
}
API cuGraphExecDestroy(void* executable) {
    end_graph(static_cast<Graph*>(executable));
    return SUCCESS;
}

API cuEventCreate(void** event, unsigned) {
    *event = make_event();
    return SUCCESS;
}
API cuEventRecord(void* event, void* stream) {
    return with(stream, [=](Stream* it) { return record(static_cast<Event*>(event), it); });
}
API cuEventSynchronize(void* event) { return wait_for(static_cast<Event*>(event)); }
API cuEventElapsedTime(float* time, void* start, void* end) {
    *time = milliseconds(static_cast<Event*>(start), static_cast<Event*>(end));
    return SUCCESS;
}
API cuEventDestroy_v2(void* event) {
    end_event(static_cast<Event*>(event));
    return SUCCESS;
}
