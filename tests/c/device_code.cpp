// device_code.cpp: the device functions compiled for the host, and a launcher of them.
#include "cuda_on_host.h"

#include <ucontext.h>

#include <cstdlib>

#include "kernels/table.cu"

#include "device_code.h"

host_dim3 threadIdx, blockIdx;

namespace {

const uint32_t kThreads = FL__BLOCK_THREADS;
const size_t kStack = 64 << 10;

struct fiber {
    ucontext_t context;
    bool is_done;
};

fiber fibers[kThreads];
ucontext_t scheduler;
uint32_t current;
char *stacks;
void (*body)(void *argument);
void *body_argument;

void run_fiber() {
    body(body_argument);
    fibers[current].is_done = true;
    swapcontext(&fibers[current].context, &scheduler);
}

void run_block() {
    for (uint32_t i = 0; i < kThreads; i++) {
        getcontext(&fibers[i].context);
        fibers[i].is_done = false;
        fibers[i].context.uc_stack.ss_sp = stacks + i * kStack;
        fibers[i].context.uc_stack.ss_size = kStack;
        fibers[i].context.uc_link = &scheduler;
        makecontext(&fibers[i].context, run_fiber, 0);
    }
    bool more = true;
    while (more) {
        more = false;
        for (current = 0; current < kThreads; current++) {
            if (!fibers[current].is_done) {
                threadIdx = {current, 0, 0};
                swapcontext(&scheduler, &fibers[current].context);
                more = more || !fibers[current].is_done;
            }
        }
    }
}

template <typename T, void (*kernel)(const T)>
void call(void *argument) {
    kernel(*static_cast<const T *>(argument));
}

struct entry {
    const char *name;
    void (*run)(void *argument);
    size_t argument_bytes;
    bool synchronises; // Needs fibers; the others run thread by thread.
};

#define ENTRY(type, function, synchronises) \
    {#function, call<type, function>, sizeof(type), synchronises},

const entry entries[] = {
#define ELEMENT(bytes, type)                              \
    ENTRY(fl__copy_args, fl_copy_strided_u##bytes, false) \
    ENTRY(fl__tile_args, fl_copy_tile_u##bytes, true)     \
    ENTRY(fl__fill_args, fl_fill_strided_u##bytes, false)
    FL__ELEMENT_LIST(ELEMENT)
#undef ELEMENT
#define CAST(src, dst) ENTRY(fl__copy_args, fl_cast_##src##_##dst, false)
        FL__CAST_LIST(CAST)
#undef CAST
            ENTRY(fl__copy_args, fl_cast_any, false) ENTRY(fl__fill_args, fl_fill_u16, false)};

} // namespace

void host_syncthreads() {
    swapcontext(&fibers[current].context, &scheduler);
}

extern "C" const void *device_code_find(const char *name) {
    for (const entry &each : entries) {
        if (strcmp(each.name, name) == 0) {
            return &each;
        }
    }
    return nullptr;
}

extern "C" size_t device_code_argument_bytes(const void *function) {
    return static_cast<const entry *>(function)->argument_bytes;
}

extern "C" void device_code_launch(const void *function, uint32_t blocks, void *argument) {
    const entry *which = static_cast<const entry *>(function);
    if (!stacks) {
        stacks = static_cast<char *>(malloc(kThreads * kStack));
    }
    body = which->run;
    body_argument = argument;
    for (uint32_t block = 0; block < blocks; block++) {
        blockIdx = {block, 0, 0};
        if (which->synchronises) {
            run_block();
            continue;
        }
        for (uint32_t thread = 0; thread < kThreads; thread++) {
            threadIdx = {thread, 0, 0};
            body(argument);
        }
    }
}
