// Memory of emulated GPUs: files without a name, mapped, so that other processes can map them, too.
#pragma once
#include <cstdint>
#include <cstddef>

enum class Kind { Device, Pinned, Mapped };

struct Allocation {
    uint64_t base;
    size_t bytes;
    uint64_t id;
    int device;
    int fd; // -1: no other process can map it
    Kind kind;
};

// The address of new memory; 0 if there is none.
uint64_t allocate(size_t bytes, int device, bool can_be_shared);
// Memory that somebody else made: the host's, shown to GPUs, or that of another process.
void note(uint64_t address, size_t bytes, int device, Kind kind);
// Forgets what begins there; false if nothing does.
bool release(uint64_t address, Kind kind);
// What an address lies in.
bool find(uint64_t address, Allocation& found);
// What another process needs to map it: 64 bytes. False: it cannot be.
bool handle_of(uint64_t address, void* handle);
// Maps memory of another process; 0 if it cannot be.
uint64_t open_handle(const void* handle, int device);
