/*
 * conform_device.c: what every driver must do with devices.
 */
#include "conform.h"

#include <string.h>

static void count_is_stable(bench *b) {
    for (int i = 0; i < 3; i++) {
        int32_t count = -1;
        bench_ok(b, b->driver->device_count(b->ctx, &count), "device_count");
        if (count != b->devices || count < 1 || count > FL_DEVICE_MAX) {
            bench_fail(b, "device_count answers %d, then %d", b->devices, count);
        }
    }
}

static void init_twice(bench *b) {
    bench_ok(b, b->driver->init(b->ctx), "init, a second time");
    count_is_stable(b);
}

/* A message is shown as UTF-8, whatever was put into it. */
static bool is_text(const char *name) {
    (void)fl_fail(FL_INTERNAL, "%s", name);
    return strcmp(fl_last_message(), name) == 0;
}

static void properties(bench *b) {
    for (fl_device device = 0; device < b->devices; device++) {
        fl_device_properties first, second;
        memset(&first, 0, sizeof(first)); /* The core hands out zeroed structs too. */
        memset(&second, 0, sizeof(second));
        bench_ok(b, b->driver->device_properties(b->ctx, device, &first), "device_properties");
        bench_ok(b, b->driver->device_properties(b->ctx, device, &second), "device_properties");
        bench_true(b, memchr(first.name, '\0', sizeof(first.name)) != NULL, "the name has no end");
        bench_true(b, memchr(first.uuid, '\0', sizeof(first.uuid)) != NULL, "the uuid has no end");
        bench_true(b, first.name[0] != '\0', "the name is empty");
        bench_true(b, is_text(first.name), "the name is not UTF-8");
        bench_true(b, strcmp(first.name, second.name) == 0, "the name changes between calls");
        bench_true(b, strcmp(first.uuid, second.uuid) == 0, "the uuid changes between calls");
        bench_true(b,
                   first.total_memory == second.total_memory && first.major == second.major &&
                       first.minor == second.minor &&
                       first.processor_count == second.processor_count &&
                       first.warp_size == second.warp_size,
                   "the numbers change between calls");
        bench_true(b,
                   first.major >= 0 && first.minor >= 0 && first.processor_count >= 0 &&
                       first.warp_size >= 0,
                   "a number is negative");
    }
}

static void memory_info(bench *b) {
    if (!b->driver->mem_info) {
        bench_skip(b, "the driver has no mem_info");
    }
    for (fl_device device = 0; device < b->devices; device++) {
        uint64_t available = 0, total = 0;
        bench_ok(b, b->driver->mem_info(b->ctx, device, &available, &total), "mem_info");
        bench_true(b, total > 0 && available <= total, "free memory is not within the total");
    }
}

static void synchronize(bench *b) {
    for (fl_device device = 0; device < b->devices; device++) {
        bench_ok(b, b->driver->device_synchronize(b->ctx, device), "device_synchronize, idle");
        fl_native_stream stream = bench_stream(b, device);
        char *block = bench_alloc(b, device, 4096);
        unsigned char out[4096], wanted[4096];
        bench_pattern(wanted, sizeof(wanted), 7);
        unsigned char *host = bench_host(b, sizeof(out));
        memcpy(host, wanted, sizeof(wanted));
        bench_copy(b, device, block, host, sizeof(wanted), FL_COPY_HOST_TO_DEVICE, stream);
        bench_copy(b, device, host, block, sizeof(wanted), FL_COPY_DEVICE_TO_HOST, stream);
        bench_ok(b, b->driver->device_synchronize(b->ctx, device), "device_synchronize");
        memcpy(out, host, sizeof(out));
        bench_bytes(b, out, wanted, sizeof(out), "after device_synchronize");
    }
}

static void synchronize_waits(bench *b) {
    fl_native_stream one = bench_stream(b, 0), two = bench_stream(b, 0);
    gate *g = bench_block_stream(b, 0, one);
    gate *h = bench_block_stream(b, 0, two);
    bench_open(b, g);
    bench_open(b, h);
    bench_ok(b, b->driver->device_synchronize(b->ctx, 0), "device_synchronize");
    bench_status(b, b->driver->stream_query(b->ctx, 0, one), FL_OK, "the first stream afterwards");
    bench_status(b, b->driver->stream_query(b->ctx, 0, two), FL_OK, "the second one afterwards");
}

static fl_status use_every_device(bench *b, int index) {
    const fl_driver *d = b->driver;
    for (int round = 0; round < 8; round++) {
        fl_device device = (index + round) % b->devices;
        unsigned char in[512], out[512];
        bench_pattern(in, sizeof(in), (uint32_t)(index * 100 + round));
        memset(out, 0, sizeof(out));
        void *ptr = NULL;
        fl_native_stream stream = NULL;
        FL_TRY(d->mem_alloc(b->ctx, device, sizeof(in), &ptr));
        FL_TRY(d->stream_create(b->ctx, device, 0, &stream));
        FL_TRY(d->copy(b->ctx, device, ptr, in, sizeof(in), FL_COPY_HOST_TO_DEVICE, stream));
        FL_TRY(d->copy(b->ctx, device, out, ptr, sizeof(in), FL_COPY_DEVICE_TO_HOST, stream));
        FL_TRY(d->stream_synchronize(b->ctx, device, stream));
        FL_TRY(d->stream_destroy(b->ctx, device, stream));
        FL_TRY(d->mem_free(b->ctx, device, ptr));
        if (memcmp(in, out, sizeof(in)) != 0) {
            return fl_fail(FL_INTERNAL, "other bytes came back from device %d", device);
        }
    }
    return FL_OK;
}

/* No device is made current for these threads by anybody but the driver. */
static void fresh_threads(bench *b) {
    bench_ok(b, bench_threads(b, 4, use_every_device), "threads that never set a device");
}

/* Every call names its device; the one before must not matter. */
static void alternating(bench *b) {
    if (b->devices < 2) {
        bench_skip(b, "there is one device");
    }
    enum { BYTES = 1024 };
    fl_device last = b->devices - 1;
    fl_native_stream s0 = bench_stream(b, 0), s1 = bench_stream(b, last);
    char *p0 = bench_alloc(b, 0, BYTES), *p1 = bench_alloc(b, last, BYTES);
    unsigned char in0[BYTES], in1[BYTES], out[BYTES];
    for (uint32_t round = 0; round < 16; round++) {
        bench_pattern(in0, BYTES, round);
        bench_pattern(in1, BYTES, round + 1000);
        bench_copy(b, 0, p0, in0, BYTES, FL_COPY_HOST_TO_DEVICE, s0);
        bench_copy(b, last, p1, in1, BYTES, FL_COPY_HOST_TO_DEVICE, s1);
        bench_read(b, 0, out, p0, BYTES, s0);
        bench_bytes(b, out, in0, BYTES, "from device 0");
        bench_read(b, last, out, p1, BYTES, s1);
        bench_bytes(b, out, in1, BYTES, "from the last device");
    }
}

const conform_case conform_device_cases[] = {
    {"device.count", count_is_stable},
    {"device.init_twice", init_twice},
    {"device.properties", properties},
    {"device.memory_info", memory_info},
    {"device.synchronize", synchronize},
    {"device.synchronize_all_streams", synchronize_waits},
    {"device.fresh_threads", fresh_threads},
    {"device.alternating", alternating},
    {NULL, NULL},
};
