/*
 * conform_memory.c: what every driver must do with memory.
 */
#include "conform.h"

#include <string.h>

static const size_t sizes[] = {1, 3, 255, 256, 257, 4095, 4096, 65537, 1 << 20};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void alignment(bench *b) {
    for (fl_device device = 0; device < b->devices; device++) {
        for (int i = 0; i < SIZES; i++) {
            void *ptr = bench_alloc(b, device, sizes[i]);
            if ((uintptr_t)ptr % 256 != 0) {
                bench_fail(b, "a block of %zu bytes is at %p, which is no multiple of 256",
                           sizes[i], ptr);
            }
        }
    }
}

static void distinct(bench *b) {
    enum { BLOCKS = 64, BYTES = 1000 };
    char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = bench_alloc(b, 0, BYTES);
        for (int j = 0; j < i; j++) {
            bench_true(b, blocks[i] + BYTES <= blocks[j] || blocks[j] + BYTES <= blocks[i],
                       "two live blocks overlap");
        }
    }
    fl_native_stream stream = bench_stream(b, 0);
    unsigned char in[BYTES], out[BYTES];
    for (uint32_t i = 0; i < BLOCKS; i++) {
        bench_pattern(in, BYTES, i);
        bench_write(b, 0, blocks[i], in, BYTES, stream);
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        bench_pattern(in, BYTES, i);
        bench_read(b, 0, out, blocks[i], BYTES, stream);
        bench_bytes(b, out, in, BYTES, "a block among others");
    }
}

static void whole_block(bench *b) {
    static unsigned char in[1 << 20], out[1 << 20];
    for (fl_device device = 0; device < b->devices; device++) {
        fl_native_stream stream = bench_stream(b, device);
        for (int i = 0; i < SIZES; i++) {
            void *ptr = bench_alloc(b, device, sizes[i]);
            bench_pattern(in, sizes[i], (uint32_t)i);
            memset(out, 0, sizes[i]);
            bench_write(b, device, ptr, in, sizes[i], stream);
            bench_read(b, device, out, ptr, sizes[i], stream);
            bench_bytes(b, out, in, sizes[i], "a whole block");
        }
    }
}

static void reuse(bench *b) {
    for (int round = 0; round < 200; round++) {
        void *ptr = NULL;
        size_t bytes = sizes[round % SIZES];
        bench_ok(b, b->driver->mem_alloc(b->ctx, 0, bytes, &ptr), "mem_alloc");
        bench_ok(b, b->driver->mem_free(b->ctx, 0, ptr), "mem_free");
    }
}

static void too_large(bench *b) {
    void *ptr = &ptr;
    fl_status status = b->driver->mem_alloc(b->ctx, 0, (size_t)1 << 50, &ptr);
    bench_status(b, status, FL_OUT_OF_MEMORY, "mem_alloc of 2^50 bytes");
    bench_true(b, ptr == &ptr, "a failed mem_alloc wrote its result");
    bench_true(b, fl_last_message()[0] != '\0', "a failed mem_alloc left no message");
    /* Nothing sticks: the next calls work, on this stream too. */
    fl_native_stream stream = bench_stream(b, 0);
    void *small = bench_alloc(b, 0, 64);
    unsigned char in[64], out[64];
    bench_pattern(in, sizeof(in), 3);
    bench_write(b, 0, small, in, sizeof(in), stream);
    bench_read(b, 0, out, small, sizeof(out), stream);
    bench_bytes(b, out, in, sizeof(in), "after a failed mem_alloc");
    bench_status(b, b->driver->stream_query(b->ctx, 0, stream), FL_OK, "stream_query afterwards");
}

static void host_memory(bench *b) {
    for (int i = 0; i < SIZES; i++) {
        unsigned char *ptr = bench_host(b, sizes[i]);
        memset(ptr, 0x3c, sizes[i]);
        bench_true(b, ptr[0] == 0x3c && ptr[sizes[i] - 1] == 0x3c,
                   "page-locked memory does not keep what the host writes");
    }
}

/* Page-locked memory is for the copies of every device. */
static void host_for_all_devices(bench *b) {
    enum { BYTES = 5000 };
    unsigned char *in = bench_host(b, BYTES), *out = bench_host(b, BYTES);
    for (fl_device device = 0; device < b->devices; device++) {
        fl_native_stream stream = bench_stream(b, device);
        void *ptr = bench_alloc(b, device, BYTES);
        bench_pattern(in, BYTES, (uint32_t)device + 50);
        memset(out, 0, BYTES);
        bench_copy(b, device, ptr, in, BYTES, FL_COPY_HOST_TO_DEVICE, stream);
        bench_copy(b, device, out, ptr, BYTES, FL_COPY_DEVICE_TO_HOST, stream);
        bench_sync(b, device, stream);
        bench_bytes(b, out, in, BYTES, "through page-locked memory");
    }
}

static fl_status free_blocks(bench *b, int index) {
    (void)index;
    for (size_t i = 0; i < b->block_count; i++) {
        fl_device device = b->blocks[i].device;
        FL_TRY(device == FL_DEVICE_CURRENT ? b->driver->host_free(b->ctx, b->blocks[i].ptr)
                                           : b->driver->mem_free(b->ctx, device, b->blocks[i].ptr));
    }
    return FL_OK;
}

static void free_elsewhere(bench *b) {
    for (fl_device device = 0; device < b->devices; device++) {
        (void)bench_alloc(b, device, 4096);
        (void)bench_host(b, 4096);
    }
    fl_status status = bench_threads(b, 1, free_blocks);
    b->block_count = 0;
    bench_ok(b, status, "freeing on another thread");
}

static fl_status churn(bench *b, int index) {
    enum { LIVE = 8, ROUNDS = 64 };
    const fl_driver *d = b->driver;
    fl_device device = index % b->devices;
    void *live[LIVE] = {NULL};
    void *host = NULL;
    for (int round = 0; round < ROUNDS; round++) {
        void **slot = &live[round % LIVE];
        if (*slot) {
            FL_TRY(d->mem_free(b->ctx, device, *slot));
            *slot = NULL;
        }
        FL_TRY(d->mem_alloc(b->ctx, device, sizes[(round + index) % SIZES], slot));
        FL_TRY(d->host_alloc(b->ctx, 300, &host));
        memset(host, round, 300);
        FL_TRY(d->host_free(b->ctx, host));
    }
    for (int i = 0; i < LIVE; i++) {
        FL_TRY(d->mem_free(b->ctx, device, live[i]));
    }
    return FL_OK;
}

static void threads(bench *b) {
    bench_ok(b, bench_threads(b, 8, churn), "allocating from eight threads");
}

const conform_case conform_memory_cases[] = {
    {"memory.alignment", alignment},
    {"memory.distinct", distinct},
    {"memory.whole_block", whole_block},
    {"memory.reuse", reuse},
    {"memory.too_large", too_large},
    {"memory.host", host_memory},
    {"memory.host_for_all_devices", host_for_all_devices},
    {"memory.free_elsewhere", free_elsewhere},
    {"memory.threads", threads},
    {NULL, NULL},
};
