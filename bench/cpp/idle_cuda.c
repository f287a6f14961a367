/*
 * idle_cuda.c: CUDA's runtime on a machine without a card, of a device whose kernels do nothing.
 * PyTorch's own CUDA code runs on it as on a card, so that callgrind can count what it costs the
 * host. Preloaded, it stands under the runtime's name before the real libraries.
 *
 * Memory of the device is zeroed memory of the host; copies and fills are made, so that what is
 * read back is definite; a launch or a product of matrices only answers success. All work is done
 * when the call returns. A function that is not here ends the process and says its name
 * (idle_stubs.py). Layouts and numbers are those that the documents of CUDA 13 give.
 */
#define _GNU_SOURCE /* For anonymous maps. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "idle.h"

/* The linker makes one array of the counts of all functions, and names its ends. */
extern struct count __start_idle_counts[], __stop_idle_counts[];

EXPORT size_t idle_functions(void);
size_t idle_functions(void) {
    return (size_t)(__stop_idle_counts - __start_idle_counts);
}

EXPORT const char *idle_name(size_t function);
const char *idle_name(size_t function) {
    return __start_idle_counts[function].name;
}

EXPORT uint64_t idle_calls(size_t function);
uint64_t idle_calls(size_t function) {
    return __start_idle_counts[function].calls;
}

/* --- memory --------------------------------------------------------------------------------------
 *
 * Each kind of memory is a range of addresses that is handed out once and never again: a pointer
 * tells its kind, and addresses do not depend on what was freed. */

enum { ALIGNMENT = 512 };
#define RANGE_BYTES ((size_t)16 << 30)
#define TOTAL_BYTES ((size_t)141 << 30)

struct range {
    char *begin;
    size_t used;
};

static struct range device_memory, pinned_memory;

__attribute__((constructor)) static void reserve(void) {
    struct range *ranges[] = {&device_memory, &pinned_memory};
    for (size_t i = 0; i < 2; i++) {
        void *begin = mmap(NULL, RANGE_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (begin == MAP_FAILED) {
            abort();
        }
        ranges[i]->begin = begin;
    }
}

static int take(struct range *range, size_t bytes, void **out) {
    size_t wanted = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (wanted > RANGE_BYTES - range->used) {
        return OUT_OF_MEMORY;
    }
    *out = range->begin + range->used;
    range->used += wanted;
    return SUCCESS;
}

static int lies_in(const struct range *range, const void *pointer) {
    return (uintptr_t)pointer - (uintptr_t)range->begin < RANGE_BYTES;
}

SERVE(int, cudaMalloc, (void **out, size_t bytes)) {
    COUNT(cudaMalloc);
    return take(&device_memory, bytes, out);
}

SERVE(int, cudaHostAlloc, (void **out, size_t bytes, unsigned flags)) {
    (void)flags;
    COUNT(cudaHostAlloc);
    return take(&pinned_memory, bytes, out);
}

SUCCEED(cudaFree)
SUCCEED(cudaFreeHost)

SERVE(int, cudaMemGetInfo, (size_t * out_free, size_t *out_total)) {
    COUNT(cudaMemGetInfo);
    *out_free = TOTAL_BYTES - device_memory.used;
    *out_total = TOTAL_BYTES;
    return SUCCESS;
}

struct pointer_attributes {
    int kind, device;
    void *device_pointer, *host_pointer;
    long reserved[8];
};

SERVE(int, cudaPointerGetAttributes, (struct pointer_attributes * out, void *pointer)) {
    enum { UNKNOWN = 0, PINNED = 1, ON_DEVICE = 2 };
    COUNT(cudaPointerGetAttributes);
    memset(out, 0, sizeof *out);
    out->kind = lies_in(&device_memory, pointer)   ? ON_DEVICE
                : lies_in(&pinned_memory, pointer) ? PINNED
                                                   : UNKNOWN;
    out->device = out->kind == UNKNOWN ? -2 : 0;
    out->device_pointer = out->kind == UNKNOWN ? NULL : pointer;
    out->host_pointer = out->kind == ON_DEVICE ? NULL : pointer;
    return SUCCESS;
}

SERVE(int, cudaMemcpyAsync, (void *to, const void *from, size_t bytes, int kind, void *stream)) {
    (void)kind, (void)stream;
    COUNT(cudaMemcpyAsync);
    memmove(to, from, bytes);
    return SUCCESS;
}

SERVE(int, cudaMemcpy, (void *to, const void *from, size_t bytes, int kind)) {
    (void)kind;
    COUNT(cudaMemcpy);
    memmove(to, from, bytes);
    return SUCCESS;
}

SERVE(int, cudaMemcpy2DAsync,
      (char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height,
       int kind, void *stream)) {
    (void)kind, (void)stream;
    COUNT(cudaMemcpy2DAsync);
    for (size_t row = 0; row < height; row++) {
        memmove(to + row * to_pitch, from + row * from_pitch, width);
    }
    return SUCCESS;
}

SERVE(int, cudaMemsetAsync, (void *to, int value, size_t bytes, void *stream)) {
    (void)stream;
    COUNT(cudaMemsetAsync);
    memset(to, value, bytes);
    return SUCCESS;
}

/* --- the device ----------------------------------------------------------------------------------
 *
 * Those of an H200's properties that PyTorch chooses by. */

enum {
    MAJOR = 9,
    MINOR = 0,
    VERSION = 13000,
    PROCESSORS = 132,
    WARP = 32,
    BLOCK_THREADS = 1024,
    PROCESSOR_THREADS = 2048,
    PROCESSOR_BLOCKS = 32,
    REGISTERS = 65536,
    CACHE = 60 << 20,
    SHARED = 48 << 10,
    SHARED_OPTIN = 227 << 10,
    SHARED_PROCESSOR = 228 << 10,
};

/* Where a property stands in the struct, whose other bytes are zero. */
enum property {
    NAME = 0,
    UUID = 256,
    TOTAL_MEMORY = 288,
    SHARED_PER_BLOCK = 296,
    REGISTERS_PER_BLOCK = 304,
    WARP_SIZE = 308,
    PITCH = 312,
    THREADS_PER_BLOCK = 320,
    BLOCK_SIZE = 324,
    GRID_SIZE = 336,
    CONSTANT_MEMORY = 352,
    CAPABILITY_MAJOR = 360,
    CAPABILITY_MINOR = 364,
    TEXTURE_ALIGNMENT = 368,
    PROCESSOR_COUNT = 384,
    MAPS_HOST_MEMORY = 392,
    CONCURRENT_KERNELS = 560,
    CORRECTS_ERRORS = 564,
    COPY_ENGINES = 584,
    UNIFIED_ADDRESSES = 588,
    BUS_WIDTH = 592,
    CACHE_BYTES = 596,
    THREADS_PER_PROCESSOR = 604,
    SHARED_PER_PROCESSOR = 624,
    REGISTERS_PER_PROCESSOR = 632,
    MANAGED_MEMORY = 636,
    COOPERATIVE_LAUNCH = 668,
    SHARED_PER_BLOCK_OPTIN = 672,
    BLOCKS_PER_PROCESSOR = 688,
    PROPERTIES_BYTES = 1008,
};

static void put_int(char *properties, enum property where, int value) {
    memcpy(properties + where, &value, sizeof value);
}

static void put_size(char *properties, enum property where, size_t value) {
    memcpy(properties + where, &value, sizeof value);
}

SERVE(int, cudaGetDeviceProperties, (char *out, int device)) {
    COUNT(cudaGetDeviceProperties);
    (void)device;
    memset(out, 0, PROPERTIES_BYTES);
    strcpy(out + NAME, "idle device");
    out[UUID] = 1;
    put_size(out, TOTAL_MEMORY, TOTAL_BYTES);
    put_size(out, SHARED_PER_BLOCK, SHARED);
    put_int(out, REGISTERS_PER_BLOCK, REGISTERS);
    put_int(out, WARP_SIZE, WARP);
    put_size(out, PITCH, INT32_MAX);
    put_int(out, THREADS_PER_BLOCK, BLOCK_THREADS);
    const int block[] = {1024, 1024, 64}, grid[] = {INT32_MAX, 65535, 65535};
    memcpy(out + BLOCK_SIZE, block, sizeof block);
    memcpy(out + GRID_SIZE, grid, sizeof grid);
    put_size(out, CONSTANT_MEMORY, 65536);
    put_int(out, CAPABILITY_MAJOR, MAJOR);
    put_int(out, CAPABILITY_MINOR, MINOR);
    put_size(out, TEXTURE_ALIGNMENT, 512);
    put_int(out, PROCESSOR_COUNT, PROCESSORS);
    put_int(out, MAPS_HOST_MEMORY, 1);
    put_int(out, CONCURRENT_KERNELS, 1);
    put_int(out, CORRECTS_ERRORS, 1);
    put_int(out, COPY_ENGINES, 3);
    put_int(out, UNIFIED_ADDRESSES, 1);
    put_int(out, BUS_WIDTH, 6144);
    put_int(out, CACHE_BYTES, CACHE);
    put_int(out, THREADS_PER_PROCESSOR, PROCESSOR_THREADS);
    put_size(out, SHARED_PER_PROCESSOR, SHARED_PROCESSOR);
    put_int(out, REGISTERS_PER_PROCESSOR, REGISTERS);
    put_int(out, MANAGED_MEMORY, 1);
    put_int(out, COOPERATIVE_LAUNCH, 1);
    put_size(out, SHARED_PER_BLOCK_OPTIN, SHARED_OPTIN);
    put_int(out, BLOCKS_PER_PROCESSOR, PROCESSOR_BLOCKS);
    return SUCCESS;
}

/* An attribute that nobody asked for yet ends the process rather than being guessed. */
SERVE(int, cudaDeviceGetAttribute, (int *out, int attribute, int device)) {
    static const struct {
        int attribute, value;
    } known[] = {
        {1, BLOCK_THREADS},
        {5, INT32_MAX},
        {6, 65535},
        {7, 65535},
        {8, SHARED},
        {10, WARP},
        {16, PROCESSORS},
        {18, 0},
        {38, CACHE},
        {39, PROCESSOR_THREADS},
        {75, MAJOR},
        {76, MINOR},
        {82, REGISTERS},
        {81, SHARED_PROCESSOR},
        {95, 1},
        {97, SHARED_OPTIN},
        {106, PROCESSOR_BLOCKS},
    };
    (void)device;
    COUNT(cudaDeviceGetAttribute);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].attribute == attribute) {
            *out = known[i].value;
            return SUCCESS;
        }
    }
    fprintf(stderr, "the idle device has no attribute %d\n", attribute);
    abort();
}

SERVE(int, cudaGetDeviceCount, (int *out)) {
    COUNT(cudaGetDeviceCount);
    *out = 1;
    return SUCCESS;
}

SERVE(int, cudaGetDevice, (int *out)) {
    COUNT(cudaGetDevice);
    *out = 0;
    return SUCCESS;
}

SERVE(int, cudaSetDevice, (int device)) {
    COUNT(cudaSetDevice);
    return device == 0 ? SUCCESS : INVALID_VALUE;
}

SERVE(int, cudaDriverGetVersion, (int *out)) {
    COUNT(cudaDriverGetVersion);
    *out = VERSION;
    return SUCCESS;
}

SERVE(int, cudaRuntimeGetVersion, (int *out)) {
    COUNT(cudaRuntimeGetVersion);
    *out = VERSION;
    return SUCCESS;
}

SERVE(int, cudaDeviceGetStreamPriorityRange, (int *out_least, int *out_greatest)) {
    COUNT(cudaDeviceGetStreamPriorityRange);
    *out_least = 0;
    *out_greatest = -5;
    return SUCCESS;
}

SUCCEED(cudaDeviceSynchronize)
SUCCEED(cudaGetLastError)
SUCCEED(cudaPeekAtLastError)

SERVE(const char *, cudaGetErrorString, (int error)) {
    COUNT(cudaGetErrorString);
    return error == SUCCESS ? "no error" : "an error of the idle device";
}

SERVE(const char *, cudaGetErrorName, (int error)) {
    COUNT(cudaGetErrorName);
    return error == SUCCESS ? "cudaSuccess" : "cudaErrorOfTheIdleDevice";
}

/* --- streams and events --------------------------------------------------------------------------
 *
 * Nothing is ever pending, so both are numbers that are not NULL. */

int idle_make(void **out) {
    static uintptr_t last;
    *out = (void *)++last; // NOLINT: it is a name, not an address.
    return SUCCESS;
}

SERVE(int, cudaStreamCreateWithPriority, (void **out, unsigned flags, int priority)) {
    (void)flags, (void)priority;
    COUNT(cudaStreamCreateWithPriority);
    return idle_make(out);
}

SERVE(int, cudaStreamCreateWithFlags, (void **out, unsigned flags)) {
    (void)flags;
    COUNT(cudaStreamCreateWithFlags);
    return idle_make(out);
}

SERVE(int, cudaEventCreateWithFlags, (void **out, unsigned flags)) {
    (void)flags;
    COUNT(cudaEventCreateWithFlags);
    return idle_make(out);
}

SERVE(int, cudaStreamIsCapturing, (void *stream, int *out)) {
    (void)stream;
    COUNT(cudaStreamIsCapturing);
    *out = 0;
    return SUCCESS;
}

/* The arguments after the state are left alone, as for a stream that captures nothing. */
SERVE(int, cudaStreamGetCaptureInfo, (void *stream, int *out)) {
    (void)stream;
    COUNT(cudaStreamGetCaptureInfo);
    *out = 0;
    return SUCCESS;
}

SERVE(int, cudaEventElapsedTime, (float *out, void *start, void *end)) {
    (void)start, (void)end;
    COUNT(cudaEventElapsedTime);
    *out = 0;
    return SUCCESS;
}

SUCCEED(cudaStreamDestroy)
SUCCEED(cudaStreamQuery)
SUCCEED(cudaStreamSynchronize)
SUCCEED(cudaStreamWaitEvent)
SUCCEED(cudaEventDestroy)
SUCCEED(cudaEventQuery)
SUCCEED(cudaEventRecord)
SUCCEED(cudaEventRecordWithFlags)
SUCCEED(cudaEventSynchronize)
SUCCEED(cudaThreadExchangeStreamCaptureMode)

/* --- kernels -------------------------------------------------------------------------------------
 *
 * Code that a compiler made for launching registers kernels when it is loaded; between the two
 * halves of a launch the runtime keeps its configuration for the thread. */

struct dimensions {
    unsigned x, y, z;
};

static _Thread_local struct {
    struct dimensions grid, block;
    size_t shared;
    void *stream;
} configuration;

SERVE(int, __cudaPushCallConfiguration,
      (struct dimensions grid, struct dimensions block, size_t shared, void *stream)) {
    COUNT(__cudaPushCallConfiguration);
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared = shared;
    configuration.stream = stream;
    return SUCCESS;
}

SERVE(int, __cudaPopCallConfiguration,
      (struct dimensions * out_grid, struct dimensions *out_block, size_t *out_shared,
       void **out_stream)) {
    COUNT(__cudaPopCallConfiguration);
    *out_grid = configuration.grid;
    *out_block = configuration.block;
    *out_shared = configuration.shared;
    *out_stream = configuration.stream;
    return SUCCESS;
}

SERVE(int, __cudaGetKernel, (const void **out, const void *function)) {
    COUNT(__cudaGetKernel);
    *out = function;
    return SUCCESS;
}

SERVE(void *, __cudaRegisterFatBinary, (void *image)) {
    COUNT(__cudaRegisterFatBinary);
    return image;
}

SUCCEED(__cudaRegisterFatBinaryEnd)
SUCCEED(__cudaRegisterFunction)
SUCCEED(__cudaRegisterVar)
SUCCEED(__cudaUnregisterFatBinary)
SUCCEED(__cudaLaunchKernel)
SUCCEED(cudaLaunchKernel)
SUCCEED(cudaLaunchKernelExC)
SUCCEED(cudaLaunchCooperativeKernel)
SUCCEED(cudaFuncSetAttribute)

SERVE(char, __cudaInitModule, (void *module)) {
    (void)module;
    COUNT(__cudaInitModule);
    return 1;
}

struct function_attributes {
    size_t shared, constant, local;
    int threads_per_block, registers, ptx, binary, cache_mode, dynamic_shared;
    char others[96];
};

SERVE(int, cudaFuncGetAttributes, (struct function_attributes * out, const void *function)) {
    (void)function;
    COUNT(cudaFuncGetAttributes);
    memset(out, 0, sizeof *out);
    out->threads_per_block = BLOCK_THREADS;
    out->registers = 32;
    out->ptx = out->binary = 10 * MAJOR + MINOR;
    out->dynamic_shared = SHARED;
    return SUCCESS;
}

static int blocks_of(int threads) {
    return threads > 0 && threads < PROCESSOR_THREADS ? PROCESSOR_THREADS / threads : 1;
}

SERVE(int, cudaOccupancyMaxActiveBlocksPerMultiprocessor,
      (int *out, const void *function, int threads, size_t shared)) {
    (void)function, (void)shared;
    COUNT(cudaOccupancyMaxActiveBlocksPerMultiprocessor);
    *out = blocks_of(threads);
    return SUCCESS;
}

SERVE(int, cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
      (int *out, const void *function, int threads, size_t shared, unsigned flags)) {
    (void)function, (void)shared, (void)flags;
    COUNT(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
    *out = blocks_of(threads);
    return SUCCESS;
}
