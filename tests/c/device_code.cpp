// device_code.cpp: the device functions compiled for the host, and a launcher of them.
#include "cuda_on_host.h"

#include "kernels/table.cu"

#include "device_code.h"

host_dim3 threadIdx, blockIdx;

namespace {

// Thrown at the barrier where a pass over a block's threads ends.
struct barrier_reached {};

uint32_t barriers_seen, barriers_passed;

// One pass: every thread from its start to the barrier behind `barriers_passed` others, or to its
// end. False once no thread met that barrier.
bool run_pass(void (*body)(void *argument), void *argument) {
    bool reached = false;
    for (uint32_t thread = 0; thread < FL__BLOCK_THREADS; thread++) {
        threadIdx = {thread, 0, 0};
        barriers_seen = 0;
        try {
            body(argument);
        } catch (const barrier_reached &) {
            reached = true;
        }
    }
    return reached;
}

template <typename T, void (*kernel)(const T)>
void call(void *argument) {
    kernel(*static_cast<const T *>(argument));
}

struct entry {
    const char *name;
    void (*run)(void *argument);
    size_t argument_bytes;
};

#define ENTRY(type, function) {#function, call<type, function>, sizeof(type)},

const entry entries[] = {
#define ELEMENT(bytes, type)                       \
    ENTRY(fl__copy_args, fl_copy_strided_u##bytes) \
    ENTRY(fl__tile_args, fl_copy_tile_u##bytes)    \
    ENTRY(fl__fill_args, fl_fill_strided_u##bytes)
    FL__ELEMENT_LIST(ELEMENT)
#undef ELEMENT
#define CAST(src, dst) ENTRY(fl__copy_args, fl_cast_##src##_##dst)
        FL__CAST_LIST(CAST)
#undef CAST
            ENTRY(fl__copy_args, fl_cast_any) ENTRY(fl__fill_args, fl_fill_u16)};

} // namespace

void host_syncthreads() {
    if (barriers_seen == barriers_passed) {
        throw barrier_reached();
    }
    barriers_seen++;
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
    for (uint32_t block = 0; block < blocks; block++) {
        blockIdx = {block, 0, 0};
        barriers_passed = 0;
        while (run_pass(which->run, argument)) {
            barriers_passed++;
        }
    }
}
