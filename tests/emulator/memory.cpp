#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

namespace {

struct Handle {
    uint64_t pid, fd, bytes;
};

// Never destroyed: threads use them until the process ends.
auto& table = *new std::map<uint64_t, Allocation>;
auto& lock = *new std::mutex;
uint64_t next_id = 1;

uint64_t map_shared(int fd, size_t bytes) {
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    return address == MAP_FAILED ? 0 : reinterpret_cast<uint64_t>(address);
}

void enter(uint64_t address, size_t bytes, int device, int fd, Kind kind) {
    std::lock_guard guard(lock);
    table[address] = Allocation{address, bytes, next_id++, device, fd, kind};
}

} // namespace

uint64_t allocate(size_t bytes, int device, bool can_be_shared) {
    int fd = memfd_create("emulated-gpu", MFD_CLOEXEC);
    if (fd < 0) return 0;
    uint64_t address = ftruncate(fd, off_t(bytes)) == 0 ? map_shared(fd, bytes) : 0;
    if (address == 0 || !can_be_shared) {
        close(fd);
        fd = -1;
    }
    if (address != 0) enter(address, bytes, device, fd, Kind::Device);
    return address;
}

void note(uint64_t address, size_t bytes, int device, Kind kind) { enter(address, bytes, device, -1, kind); }

bool release(uint64_t address, Kind kind) {
    std::unique_lock guard(lock);
    auto found = table.find(address);
    if (found == table.end() || found->second.kind != kind) return false;
    Allocation gone = found->second;
    table.erase(found);
    guard.unlock();
    if (gone.kind != Kind::Pinned) munmap(reinterpret_cast<void*>(gone.base), gone.bytes);
    if (gone.fd >= 0) close(gone.fd);
    return true;
}

bool find(uint64_t address, Allocation& found) {
    std::lock_guard guard(lock);
    auto after = table.upper_bound(address);
    if (after == table.begin()) return false;
    found = std::prev(after)->second;
    return address < found.base + found.bytes;
}

bool handle_of(uint64_t address, void* handle) {
    Allocation found;
    if (!find(address, found) || found.fd < 0) return false;
    Handle made{uint64_t(getpid()), uint64_t(found.fd), found.bytes};
    memset(handle, 0, 64);
    memcpy(handle, &made, sizeof made);
    return true;
}

uint64_t open_handle(const void* handle, int device) {
    Handle given;
    memcpy(&given, handle, sizeof given);
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)given.pid, (unsigned long long)given.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return 0;
    uint64_t address = map_shared(fd, given.bytes);
    close(fd);
    if (address != 0) enter(address, given.bytes, device, -1, Kind::Mapped);
    return address;
}
