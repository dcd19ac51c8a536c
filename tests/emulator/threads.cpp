// The scheduler of `threads.h`.
#include "threads.h"

#include <sched.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

// Without a page between them that would show an overflow: a process may have some ten thousand, and only so many mappings.
constexpr size_t STACK_BYTES = 64 << 10;
constexpr unsigned WARP = 32;
using Word = unsigned long long;

enum class State { Runs, WaitsForWarp, WaitsForBlock, Ended };

struct Block {
    unsigned alive, came = 0;
    bool all = true, answer = true;
};

struct Warp {
    unsigned alive, came = 0;
    Word given[WARP] = {}, answer[WARP] = {};
};

struct Fiber : GpuThread {
    void* stack_pointer;
    State state = State::Runs;
    Block* of_block;
    Warp* of_warp;
};

// Stacks are kept from launch to launch of a thread.
struct Stacks {
    std::vector<char*> all;
    char* top(size_t number) {
        while (all.size() <= number) {
            void* stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (stack == MAP_FAILED) {
                perror("emulator: no memory for a thread's stack");
                abort();
            }
            all.push_back(static_cast<char*>(stack));
        }
        return all[number] + STACK_BYTES;
    }
    ~Stacks() {
        for (char* stack : all) munmap(stack, STACK_BYTES);
    }
};

struct Launch {
    Kernel call;
    const void *code, *arguments;
};

thread_local Stacks stacks;
thread_local void* scheduler_stack;
thread_local const Launch* launch;

// Saves what a call must keep, and goes on on another stack.
extern "C" void emulated_switch(void** save, void* next);
asm(R"(
.text
.type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulated_switch, . - emulated_switch
)");

Fiber* self() { return static_cast<Fiber*>(emulated_thread); }

void release(Block& block, Fiber* first) {
    block.answer = block.all;
    block.all = true;
    block.came = 0;
    const unsigned size = first->block_size.x;
    for (Fiber* fiber = first; fiber != first + size; fiber++)
        if (fiber->state == State::WaitsForBlock) fiber->state = State::Runs;
}

void release(Warp& warp, Fiber* first) {
    for (unsigned lane = 0; lane < WARP; lane++) warp.answer[lane] = warp.given[lane];
    warp.came = 0;
    for (Fiber* fiber = first; fiber != first + WARP; fiber++)
        if (fiber->state == State::WaitsForWarp) fiber->state = State::Runs;
}

Fiber* first_of_block(Fiber* fiber) { return fiber - fiber->thread.x; }
Fiber* first_of_warp(Fiber* fiber) { return fiber - fiber->thread.x % WARP; }

void to_scheduler() { emulated_switch(&self()->stack_pointer, scheduler_stack); }

// The first function of every fiber, which never returns.
void begin() {
    launch->call(launch->code, launch->arguments);
    Fiber* fiber = self();
    fiber->state = State::Ended;
    Warp& warp = *fiber->of_warp;
    Block& block = *fiber->of_block;
    // Threads that have ended are not waited for.
    warp.given[fiber->thread.x % WARP] = 0;
    if (--warp.alive != 0 && warp.came == warp.alive) release(warp, first_of_warp(fiber));
    if (--block.alive != 0 && block.came == block.alive) release(block, first_of_block(fiber));
    to_scheduler();
    abort();
}

void* new_stack(size_t number) {
    // As `emulated_switch` leaves one: six registers, and where to go on; then the call's own place, aligned as after a call.
    auto top = reinterpret_cast<void**>(stacks.top(number));
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&begin);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    return top;
}

} // namespace

__thread GpuThread* emulated_thread;

void emulated_pause(void) { to_scheduler(); }

const Word* emulated_warp(Word value) {
    Fiber* fiber = self();
    Warp& warp = *fiber->of_warp;
    warp.given[fiber->thread.x % WARP] = value;
    fiber->state = State::WaitsForWarp;
    if (++warp.came == warp.alive) release(warp, first_of_warp(fiber));
    while (fiber->state == State::WaitsForWarp) to_scheduler();
    return warp.answer; // nobody changes it before this lane comes again
}

int emulated_block(int value) {
    Fiber* fiber = self();
    Block& block = *fiber->of_block;
    block.all &= value != 0;
    fiber->state = State::WaitsForBlock;
    if (++block.came == block.alive) release(block, first_of_block(fiber));
    while (fiber->state == State::WaitsForBlock) to_scheduler();
    return block.answer;
}

void run_kernel(Kernel call, const void* code, const void* arguments, unsigned blocks, unsigned threads) {
    const Launch this_launch{call, code, arguments};
    launch = &this_launch;
    const unsigned warps = (threads + WARP - 1) / WARP;
    std::vector<Block> all_blocks(blocks, Block{threads});
    std::vector<Warp> all_warps(size_t(blocks) * warps);
    std::vector<Fiber> fibers(size_t(blocks) * threads);
    for (unsigned block = 0; block < blocks; block++)
        for (unsigned thread = 0; thread < threads; thread++) {
            const size_t number = size_t(block) * threads + thread;
            Fiber& fiber = fibers[number];
            fiber.thread = {thread, 0, 0};
            fiber.block = {block, 0, 0};
            fiber.block_size = {threads, 1, 1};
            fiber.grid = {blocks, 1, 1};
            fiber.looks = thread; // they do not all give their turns away at once
            fiber.of_block = &all_blocks[block];
            fiber.of_warp = &all_warps[size_t(block) * warps + thread / WARP];
            fiber.of_warp->alive = threads - thread / WARP * WARP < WARP ? threads % WARP : WARP;
            fiber.stack_pointer = new_stack(number);
        }
    for (size_t left = fibers.size(); left != 0;) {
        bool ran = false;
        for (Fiber& fiber : fibers) {
            if (fiber.state != State::Runs) continue;
            ran = true;
            emulated_thread = &fiber;
            emulated_switch(&scheduler_stack, fiber.stack_pointer);
            if (fiber.state == State::Ended) left--;
        }
        if (!ran && left != 0) {
            fprintf(stderr, "emulator: the threads of a kernel wait for each other in different places\n");
            abort();
        }
        sched_yield(); // whom they wait for may need this CPU
    }
    emulated_thread = nullptr;
}
