/*
 * conform_stream.c: what every driver must do with streams.
 */
#include "conform.h"

#include <string.h>

static void query_idle(bench *b) {
    for (fl_device device = 0; device < b->devices; device++) {
        fl_native_stream stream = bench_stream(b, device);
        bench_status(b, b->driver->stream_query(b->ctx, device, stream), FL_OK,
                     "stream_query, idle");
        bench_sync(b, device, stream);
        bench_sync(b, device, stream);
    }
}

static void query_busy(bench *b) {
    fl_native_stream stream = bench_stream(b, 0);
    (void)fl_fail(FL_INTERNAL, "as it was");
    gate *g = bench_block_stream(b, 0, stream);
    bench_status(b, b->driver->stream_query(b->ctx, 0, stream), FL_NOT_READY, "stream_query, busy");
    bench_true(b, strcmp(fl_last_message(), "as it was") == 0,
               "an answer of not ready left a message");
    bench_open(b, g);
    bench_sync(b, 0, stream);
    bench_status(b, b->driver->stream_query(b->ctx, 0, stream), FL_OK, "stream_query, done");
}

/* Work of one stream neither waits for another one nor makes it wait. */
static void independent(bench *b) {
    enum { BYTES = 4096 };
    fl_native_stream busy = bench_stream(b, 0), other = bench_stream(b, 0);
    char *block = bench_alloc(b, 0, BYTES);
    unsigned char *pinned = bench_host(b, BYTES), wanted[BYTES];
    gate *g = bench_block_stream(b, 0, busy);
    bench_ok(b, b->driver->fill(b->ctx, 0, block, 0x42, BYTES, other), "fill");
    bench_read(b, 0, pinned, block, BYTES, other);
    memset(wanted, 0x42, BYTES);
    bench_bytes(b, pinned, wanted, BYTES, "beside a busy stream");
    bench_true(b, !atomic_load(&g->timed_out), "another stream was waited for");
    bench_status(b, b->driver->stream_query(b->ctx, 0, busy), FL_NOT_READY, "the busy stream");
    bench_open(b, g);
    bench_sync(b, 0, busy);
}

static void independent_devices(bench *b) {
    if (b->devices < 2) {
        bench_skip(b, "there is one device");
    }
    fl_device last = b->devices - 1;
    fl_native_stream busy = bench_stream(b, 0), other = bench_stream(b, last);
    char *block = bench_alloc(b, last, 256);
    gate *g = bench_block_stream(b, 0, busy);
    bench_ok(b, b->driver->fill(b->ctx, last, block, 1, 256, other), "fill");
    bench_sync(b, last, other);
    bench_ok(b, b->driver->device_synchronize(b->ctx, last), "device_synchronize");
    bench_status(b, b->driver->stream_query(b->ctx, 0, busy), FL_NOT_READY,
                 "the other device's stream");
    bench_open(b, g);
    bench_sync(b, 0, busy);
}

/* Queued behind a closed gate, nothing may have run. */
static void in_order(bench *b) {
    enum { BYTES = 1024 };
    fl_native_stream stream = bench_stream(b, 0), other = bench_stream(b, 0);
    char *block = bench_alloc(b, 0, BYTES);
    unsigned char *out = bench_host(b, BYTES), *in = bench_host(b, BYTES), wanted[BYTES];
    memset(in, 0x02, BYTES);
    bench_ok(b, b->driver->fill(b->ctx, 0, block, 0x01, BYTES, stream), "fill");
    bench_sync(b, 0, stream);
    gate *g = bench_block_stream(b, 0, stream);
    bench_copy(b, 0, block, in, BYTES, FL_COPY_HOST_TO_DEVICE, stream);
    bench_read(b, 0, out, block, BYTES, other);
    memset(wanted, 0x01, BYTES);
    bench_bytes(b, out, wanted, BYTES, "before the gate opens");
    bench_open(b, g);
    bench_sync(b, 0, stream);
    bench_read(b, 0, out, block, BYTES, other);
    memset(wanted, 0x02, BYTES);
    bench_bytes(b, out, wanted, BYTES, "after the gate has opened");
}

static fl_status wait_for_stream(bench *b, int index) {
    if (index == 0) { /* One opens the gate, the others wait. */
        while (!atomic_load(&b->gates[0].was_reached) && !atomic_load(&b->gates[0].timed_out)) {
        }
        atomic_store(&b->gates[0].is_open, true);
        return FL_OK;
    }
    FL_TRY(b->driver->stream_synchronize(b->ctx, 0, b->streams[0].stream));
    return b->driver->stream_query(b->ctx, 0, b->streams[0].stream);
}

static void synchronize_from_threads(bench *b) {
    fl_native_stream stream = bench_stream(b, 0);
    (void)bench_block_stream(b, 0, stream);
    bench_ok(b, bench_threads(b, 4, wait_for_stream), "waiting on several threads");
}

static void many(bench *b) {
    enum { STREAMS = 64, BYTES = 512 };
    fl_native_stream streams[STREAMS];
    char *blocks[STREAMS];
    unsigned char *out = bench_host(b, STREAMS * BYTES), wanted[BYTES];
    for (int i = 0; i < STREAMS; i++) {
        fl_device device = i % b->devices;
        streams[i] = bench_stream(b, device);
        for (int j = 0; j < i; j++) {
            bench_true(b, streams[i] != streams[j], "two live streams are the same");
        }
        blocks[i] = bench_alloc(b, device, BYTES);
    }
    for (int i = 0; i < STREAMS; i++) {
        fl_device device = i % b->devices;
        bench_ok(b, b->driver->fill(b->ctx, device, blocks[i], (uint8_t)i, BYTES, streams[i]),
                 "fill");
        bench_copy(b, device, out + i * BYTES, blocks[i], BYTES, FL_COPY_DEVICE_TO_HOST,
                   streams[i]);
    }
    for (int i = 0; i < STREAMS; i++) {
        bench_sync(b, i % b->devices, streams[i]);
        memset(wanted, i, BYTES);
        bench_bytes(b, out + i * BYTES, wanted, BYTES, "one of many streams");
    }
}

static void create_and_destroy(bench *b) {
    for (int round = 0; round < 100; round++) {
        fl_native_stream stream = NULL;
        fl_device device = round % b->devices;
        bench_ok(b, b->driver->stream_create(b->ctx, device, 0, &stream), "stream_create");
        bench_ok(b, b->driver->stream_destroy(b->ctx, device, stream), "stream_destroy");
    }
}

static void priority(bench *b) {
    if (!b->driver->stream_priority_range) {
        bench_skip(b, "the driver has no stream_priority_range");
    }
    int32_t least = 0, greatest = 0;
    bench_ok(b, b->driver->stream_priority_range(b->ctx, 0, &least, &greatest),
             "stream_priority_range");
    bench_true(b, greatest <= least, "urgent is not the lower number");
}

/* Whatever the range, a priority outside of it is clamped. */
static void any_priority(bench *b) {
    static const int32_t wishes[] = {0, -1, 1, -100, 100, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]); i++) {
        fl_native_stream stream = NULL;
        char *block = bench_alloc(b, 0, 64);
        bench_ok(b, b->driver->stream_create(b->ctx, 0, wishes[i], &stream), "stream_create");
        fl_status status = b->driver->fill(b->ctx, 0, block, 1, 64, stream);
        fl_status waited = b->driver->stream_synchronize(b->ctx, 0, stream);
        bench_ok(b, b->driver->stream_destroy(b->ctx, 0, stream), "stream_destroy");
        bench_ok(b, status, "fill");
        bench_ok(b, waited, "stream_synchronize");
    }
}

/* --- host functions --------------------------------------------------------------------------- */

typedef struct note {
    atomic_int *next;
    int seen; /* When it ran, -1 before. */
} note;

static void take_note(void *argument) {
    note *n = argument;
    n->seen = atomic_fetch_add(n->next, 1);
}

static void host_calls(bench *b) {
    enum { CALLS = 100 };
    if (!b->driver->stream_host_call) {
        bench_skip(b, "the driver has no stream_host_call");
    }
    static atomic_int next;
    static note notes[CALLS];
    atomic_store(&next, 0);
    fl_native_stream stream = bench_stream(b, 0);
    for (int i = 0; i < CALLS; i++) {
        notes[i] = (note){.next = &next, .seen = -1};
        bench_ok(b, b->driver->stream_host_call(b->ctx, 0, stream, take_note, &notes[i]),
                 "stream_host_call");
    }
    bench_sync(b, 0, stream);
    for (int i = 0; i < CALLS; i++) {
        if (notes[i].seen != i) {
            bench_fail(b, "host function %d ran as number %d", i, notes[i].seen);
        }
    }
}

typedef struct glance {
    const unsigned char *bytes;
    unsigned char seen;
} glance;

static void look(void *argument) {
    glance *g = argument;
    g->seen = g->bytes[0];
}

/* A host function sees what copies before it have brought to the host. */
static void host_call_after_copy(bench *b) {
    if (!b->driver->stream_host_call) {
        bench_skip(b, "the driver has no stream_host_call");
    }
    enum { BYTES = 65536 };
    fl_native_stream stream = bench_stream(b, 0);
    char *block = bench_alloc(b, 0, BYTES);
    unsigned char *out = bench_host(b, BYTES);
    for (int round = 1; round < 20; round++) {
        glance g = {.bytes = out + BYTES - 1, .seen = 0};
        bench_ok(b, b->driver->fill(b->ctx, 0, block, (uint8_t)round, BYTES, stream), "fill");
        bench_copy(b, 0, out, block, BYTES, FL_COPY_DEVICE_TO_HOST, stream);
        bench_ok(b, b->driver->stream_host_call(b->ctx, 0, stream, look, &g), "stream_host_call");
        bench_sync(b, 0, stream);
        if (g.seen != round) {
            bench_fail(b, "the host function saw %d instead of %d", g.seen, round);
        }
    }
}

static void not_capturing(bench *b) {
    if (!b->driver->stream_is_capturing) {
        bench_skip(b, "the driver has no stream_is_capturing");
    }
    bool capturing = true;
    fl_native_stream stream = bench_stream(b, 0);
    bench_ok(b, b->driver->stream_is_capturing(b->ctx, 0, stream, &capturing),
             "stream_is_capturing");
    bench_true(b, !capturing, "a plain stream says that it records a graph");
}

const conform_case conform_stream_cases[] = {
    {"stream.query_idle", query_idle},
    {"stream.query_busy", query_busy},
    {"stream.independent", independent},
    {"stream.independent_devices", independent_devices},
    {"stream.in_order", in_order},
    {"stream.synchronize_from_threads", synchronize_from_threads},
    {"stream.many", many},
    {"stream.create_and_destroy", create_and_destroy},
    {"stream.priority", priority},
    {"stream.any_priority", any_priority},
    {"stream.host_calls", host_calls},
    {"stream.host_call_after_copy", host_call_after_copy},
    {"stream.not_capturing", not_capturing},
    {NULL, NULL},
};
