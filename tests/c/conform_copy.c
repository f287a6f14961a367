/*
 * conform_copy.c: what every driver must do with copies and fills.
 */
#include "conform.h"

#include <string.h>

enum { MAX_BYTES = 1 << 20 };
static unsigned char input[MAX_BYTES], output[MAX_BYTES];

static const size_t sizes[] = {1, 2, 3, 63, 64, 65, 255, 256, 257, 4096, 65537, MAX_BYTES};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static void round_trip(bench *b) {
    for (fl_device device = 0; device < b->devices; device++) {
        fl_native_stream stream = bench_stream(b, device);
        char *block = bench_alloc(b, device, MAX_BYTES);
        unsigned char *pinned = bench_host(b, MAX_BYTES);
        for (int i = 0; i < SIZES; i++) {
            bench_pattern(input, sizes[i], (uint32_t)i);
            memset(output, 0, sizes[i]);
            bench_write(b, device, block, input, sizes[i], stream);
            bench_read(b, device, output, block, sizes[i], stream);
            bench_bytes(b, output, input, sizes[i], "through pageable memory");
            bench_pattern(pinned, sizes[i], (uint32_t)i + 100);
            memcpy(input, pinned, sizes[i]);
            bench_copy(b, device, block, pinned, sizes[i], FL_COPY_HOST_TO_DEVICE, stream);
            bench_sync(b, device, stream);
            memset(pinned, 0, sizes[i]);
            bench_read(b, device, pinned, block, sizes[i], stream);
            bench_bytes(b, pinned, input, sizes[i], "through page-locked memory");
        }
    }
}

/* Addresses inside of blocks, with any remainder. */
static void offsets(bench *b) {
    enum { BYTES = 1024 };
    static const size_t starts[] = {1, 2, 7, 31, 32, 63, 64, 100};
    fl_native_stream stream = bench_stream(b, 0);
    char *from = bench_alloc(b, 0, BYTES), *to = bench_alloc(b, 0, BYTES);
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        for (size_t j = 0; j < sizeof(starts) / sizeof(starts[0]); j++) {
            size_t bytes = 601;
            bench_pattern(input, BYTES, (uint32_t)(i * 8 + j));
            bench_write(b, 0, from, input, BYTES, stream);
            bench_ok(b, b->driver->fill(b->ctx, 0, to, 0x11, BYTES, stream), "fill");
            bench_copy(b, 0, to + starts[j], from + starts[i], bytes, FL_COPY_DEVICE_TO_DEVICE,
                       stream);
            bench_read(b, 0, output, to, BYTES, stream);
            unsigned char wanted[BYTES];
            memset(wanted, 0x11, BYTES);
            memcpy(wanted + starts[j], input + starts[i], bytes);
            bench_bytes(b, output, wanted, BYTES, "an unaligned copy on the device");
            bench_write(b, 0, to + starts[j], input + 3, bytes, stream);
            bench_read(b, 0, output + 5, to + starts[j], bytes, stream);
            bench_bytes(b, output + 5, input + 3, bytes, "an unaligned copy with the host");
        }
    }
}

static void device_to_device(bench *b) {
    for (fl_device device = 0; device < b->devices; device++) {
        fl_native_stream stream = bench_stream(b, device);
        char *from = bench_alloc(b, device, MAX_BYTES), *to = bench_alloc(b, device, MAX_BYTES);
        for (int i = 0; i < SIZES; i++) {
            bench_pattern(input, sizes[i], (uint32_t)i + 9);
            bench_write(b, device, from, input, sizes[i], stream);
            bench_copy(b, device, to, from, sizes[i], FL_COPY_DEVICE_TO_DEVICE, stream);
            bench_read(b, device, output, to, sizes[i], stream);
            bench_bytes(b, output, input, sizes[i], "from one block to another");
        }
    }
}

static void host_to_host(bench *b) {
    enum { BYTES = 10000 };
    fl_native_stream stream = bench_stream(b, 0);
    unsigned char *pinned = bench_host(b, BYTES);
    char *block = bench_alloc(b, 0, BYTES);
    bench_pattern(input, BYTES, 77);
    bench_copy(b, 0, pinned, input, BYTES, FL_COPY_HOST_TO_HOST, stream);
    /* In stream order: the next copy reads what this one wrote. */
    bench_copy(b, 0, block, pinned, BYTES, FL_COPY_HOST_TO_DEVICE, stream);
    bench_read(b, 0, output, block, BYTES, stream);
    bench_bytes(b, output, input, BYTES, "from the host to the host and on");
}

/* A pageable source may be written again as soon as the call has returned. */
static void pageable_source(bench *b) {
    fl_native_stream stream = bench_stream(b, 0);
    char *block = bench_alloc(b, 0, MAX_BYTES);
    static unsigned char kept[MAX_BYTES];
    for (uint32_t round = 0; round < 8; round++) {
        size_t bytes = sizes[(SIZES - 1 - round) % SIZES];
        bench_pattern(input, bytes, round);
        memcpy(kept, input, bytes);
        bench_copy(b, 0, block, input, bytes, FL_COPY_HOST_TO_DEVICE, stream);
        memset(input, 0xee, bytes);
        bench_read(b, 0, output, block, bytes, stream);
        bench_bytes(b, output, kept, bytes, "a source that was overwritten afterwards");
    }
}

static void fill(bench *b) {
    enum { BYTES = 4096 };
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};
    static unsigned char wanted[BYTES];
    for (fl_device device = 0; device < b->devices; device++) {
        fl_native_stream stream = bench_stream(b, device);
        char *block = bench_alloc(b, device, BYTES);
        for (size_t v = 0; v < sizeof(values); v++) {
            for (size_t begin = 0; begin < 70; begin += 23) {
                size_t bytes = BYTES - 100 - begin * 7;
                memset(wanted, 0x55, BYTES);
                bench_write(b, device, block, wanted, BYTES, stream);
                bench_ok(b,
                         b->driver->fill(b->ctx, device, block + begin, values[v], bytes, stream),
                         "fill");
                memset(wanted + begin, values[v], bytes);
                bench_read(b, device, output, block, BYTES, stream);
                bench_bytes(b, output, wanted, BYTES, "a filled range and its neighbours");
            }
        }
    }
}

/* Each step needs the one before; no wait in between. */
static void order(bench *b) {
    enum { BYTES = 2048, STEPS = 500 };
    fl_native_stream stream = bench_stream(b, 0);
    char *one = bench_alloc(b, 0, BYTES), *two = bench_alloc(b, 0, BYTES);
    bench_pattern(input, BYTES, 5);
    bench_write(b, 0, one, input, BYTES, stream);
    for (int i = 0; i < STEPS; i++) {
        char *from = i % 2 ? two : one, *to = i % 2 ? one : two;
        bench_ok(b, b->driver->fill(b->ctx, 0, to, (uint8_t)i, BYTES, stream), "fill");
        bench_copy(b, 0, to, from, BYTES, FL_COPY_DEVICE_TO_DEVICE, stream);
        bench_ok(b, b->driver->fill(b->ctx, 0, from, (uint8_t)(i + 1), BYTES, stream), "fill");
    }
    bench_read(b, 0, output, STEPS % 2 ? two : one, BYTES, stream);
    bench_bytes(b, output, input, BYTES, "after many dependent steps");
}

static void large(bench *b) {
    enum { PIECES = 48 };
    size_t bytes = (size_t)PIECES * MAX_BYTES + 3;
    fl_native_stream stream = bench_stream(b, 0);
    char *from = bench_alloc(b, 0, bytes), *to = bench_alloc(b, 0, bytes);
    for (uint32_t i = 0; i < PIECES; i++) {
        bench_pattern(input, MAX_BYTES, i);
        bench_write(b, 0, from + (size_t)i * MAX_BYTES, input, MAX_BYTES, stream);
    }
    bench_ok(b, b->driver->fill(b->ctx, 0, from + bytes - 3, 0x77, 3, stream), "fill");
    bench_copy(b, 0, to, from, bytes, FL_COPY_DEVICE_TO_DEVICE, stream);
    for (uint32_t i = 0; i < PIECES; i += 13) {
        bench_pattern(input, MAX_BYTES, i);
        bench_read(b, 0, output, to + (size_t)i * MAX_BYTES, MAX_BYTES, stream);
        bench_bytes(b, output, input, MAX_BYTES, "a piece of a large copy");
    }
    bench_read(b, 0, output, to + bytes - 3, 3, stream);
    bench_bytes(b, output, "\x77\x77\x77", 3, "the end of a large copy");
}

/* --- two dimensions --------------------------------------------------------------------------- */

static void copy_2d(bench *b, fl_copy_kind kind, size_t width, size_t rows, size_t dst_pitch,
                    size_t src_pitch, fl_native_stream stream) {
    size_t dst_bytes = (rows - 1) * dst_pitch + width, src_bytes = (rows - 1) * src_pitch + width;
    bool from_device = kind == FL_COPY_DEVICE_TO_HOST || kind == FL_COPY_DEVICE_TO_DEVICE;
    bool to_device = kind == FL_COPY_HOST_TO_DEVICE || kind == FL_COPY_DEVICE_TO_DEVICE;
    char *src_block = bench_alloc(b, 0, src_bytes), *dst_block = bench_alloc(b, 0, dst_bytes);
    static unsigned char wanted[MAX_BYTES];
    bench_pattern(input, src_bytes, (uint32_t)(width + rows));
    memset(output, 0x22, dst_bytes);
    memset(wanted, 0x22, dst_bytes);
    for (size_t row = 0; row < rows; row++) {
        memcpy(wanted + row * dst_pitch, input + row * src_pitch, width);
    }
    bench_write(b, 0, src_block, input, src_bytes, stream);
    bench_write(b, 0, dst_block, output, dst_bytes, stream);
    bench_ok(b,
             b->driver->copy_2d(b->ctx, 0, to_device ? (void *)dst_block : (void *)output,
                                dst_pitch, from_device ? (void *)src_block : (void *)input,
                                src_pitch, width, rows, kind, stream),
             "copy_2d");
    if (to_device) {
        bench_read(b, 0, output, dst_block, dst_bytes, stream);
    } else {
        bench_sync(b, 0, stream);
    }
    bench_bytes(b, output, wanted, dst_bytes, "a pitched copy and what lies between its runs");
}

static void two_dimensional(bench *b) {
    if (!b->driver->copy_2d) {
        bench_skip(b, "the driver has no copy_2d");
    }
    fl_native_stream stream = bench_stream(b, 0);
    for (int kind = FL_COPY_HOST_TO_DEVICE; kind <= FL_COPY_DEVICE_TO_DEVICE; kind++) {
        copy_2d(b, (fl_copy_kind)kind, 100, 37, 256, 384, stream);
        copy_2d(b, (fl_copy_kind)kind, 1, 64, 128, 64, stream);
        copy_2d(b, (fl_copy_kind)kind, 512, 1, 512, 1024, stream);
        copy_2d(b, (fl_copy_kind)kind, 64, 16, 64, 64, stream);
    }
}

/* --- peers ------------------------------------------------------------------------------------ */

static void need_peers(bench *b) {
    if (!b->driver->copy_peer) {
        bench_skip(b, "the driver has no copy_peer");
    }
    if (b->devices < 2) {
        bench_skip(b, "there is one device");
    }
}

static void peer(bench *b) {
    need_peers(b);
    fl_device last = b->devices - 1;
    fl_native_stream s0 = bench_stream(b, 0), s1 = bench_stream(b, last);
    char *p0 = bench_alloc(b, 0, MAX_BYTES), *p1 = bench_alloc(b, last, MAX_BYTES);
    for (int i = 0; i < SIZES; i++) {
        size_t bytes = sizes[i];
        bench_pattern(input, bytes, (uint32_t)i + 31);
        bench_write(b, 0, p0, input, bytes, s0);
        bench_ok(b, b->driver->copy_peer(b->ctx, p1, last, p0, 0, bytes, s0), "copy_peer");
        bench_sync(b, 0, s0);
        bench_read(b, last, output, p1, bytes, s1);
        bench_bytes(b, output, input, bytes, "from the first device to the last");
        bench_pattern(input, bytes, (uint32_t)i + 32);
        bench_write(b, last, p1, input, bytes, s1);
        bench_ok(b, b->driver->copy_peer(b->ctx, p0, 0, p1, last, bytes, s1), "copy_peer");
        bench_sync(b, last, s1);
        bench_read(b, 0, output, p0, bytes, s0);
        bench_bytes(b, output, input, bytes, "and back");
    }
}

/* The source is written and overwritten on the stream of the copy, without a wait. */
static void peer_order(bench *b) {
    need_peers(b);
    enum { BYTES = 8192 };
    fl_device last = b->devices - 1;
    fl_native_stream s0 = bench_stream(b, 0), s1 = bench_stream(b, last);
    char *p0 = bench_alloc(b, 0, BYTES), *p1 = bench_alloc(b, last, BYTES);
    for (int round = 0; round < 32; round++) {
        bench_ok(b, b->driver->fill(b->ctx, 0, p0, (uint8_t)round, BYTES, s0), "fill");
        bench_ok(b, b->driver->copy_peer(b->ctx, p1, last, p0, 0, BYTES, s0), "copy_peer");
        bench_ok(b, b->driver->fill(b->ctx, 0, p0, 0xcc, BYTES, s0), "fill");
        bench_sync(b, 0, s0);
        memset(input, round, BYTES);
        bench_read(b, last, output, p1, BYTES, s1);
        bench_bytes(b, output, input, BYTES, "copied in stream order");
    }
}

static void peer_access(bench *b) {
    if (!b->driver->peer_can_access) {
        bench_skip(b, "the driver has no peer_can_access");
    }
    for (fl_device one = 0; one < b->devices; one++) {
        for (fl_device two = 0; two < b->devices; two++) {
            bool can = false;
            if (one != two) {
                bench_ok(b, b->driver->peer_can_access(b->ctx, one, two, &can), "peer_can_access");
            }
        }
    }
}

/* --- threads ---------------------------------------------------------------------------------- */

static fl_status copy_around(bench *b, int index) {
    enum { BYTES = 3000, ROUNDS = 30 };
    const fl_driver *d = b->driver;
    fl_device device = index % b->devices;
    unsigned char in[BYTES], out[BYTES];
    void *one = NULL, *two = NULL;
    fl_native_stream stream = NULL;
    FL_TRY(d->stream_create(b->ctx, device, 0, &stream));
    FL_TRY(d->mem_alloc(b->ctx, device, BYTES, &one));
    FL_TRY(d->mem_alloc(b->ctx, device, BYTES, &two));
    for (int round = 0; round < ROUNDS; round++) {
        bench_pattern(in, BYTES, (uint32_t)(index * 1000 + round));
        FL_TRY(d->copy(b->ctx, device, one, in, BYTES, FL_COPY_HOST_TO_DEVICE, stream));
        FL_TRY(d->copy(b->ctx, device, two, one, BYTES, FL_COPY_DEVICE_TO_DEVICE, stream));
        FL_TRY(d->copy(b->ctx, device, out, two, BYTES, FL_COPY_DEVICE_TO_HOST, stream));
        FL_TRY(d->stream_synchronize(b->ctx, device, stream));
        if (memcmp(in, out, BYTES) != 0) {
            return fl_fail(FL_INTERNAL, "other bytes came back in round %d", round);
        }
    }
    FL_TRY(d->mem_free(b->ctx, device, one));
    FL_TRY(d->mem_free(b->ctx, device, two));
    return d->stream_destroy(b->ctx, device, stream);
}

static void threads(bench *b) {
    bench_ok(b, bench_threads(b, 8, copy_around), "copying on eight threads");
}

const conform_case conform_copy_cases[] = {
    {"copy.round_trip", round_trip},
    {"copy.offsets", offsets},
    {"copy.device_to_device", device_to_device},
    {"copy.host_to_host", host_to_host},
    {"copy.pageable_source", pageable_source},
    {"copy.fill", fill},
    {"copy.order", order},
    {"copy.large", large},
    {"copy.two_dimensional", two_dimensional},
    {"copy.peer", peer},
    {"copy.peer_order", peer_order},
    {"copy.peer_access", peer_access},
    {"copy.threads", threads},
    {NULL, NULL},
};
