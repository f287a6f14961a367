/*
 * conform_event.c: what every driver must do with events.
 */
#include "conform.h"

#include <string.h>

static fl_status record(bench *b, fl_device device, fl_native_event event,
                        fl_native_stream stream) {
    return b->driver->event_record(b->ctx, device, event, stream);
}

static void never_recorded(bench *b) {
    for (fl_device device = 0; device < b->devices; device++) {
        fl_native_event event = bench_event(b, device, 0);
        fl_native_stream stream = bench_stream(b, device);
        bench_status(b, b->driver->event_query(b->ctx, device, event), FL_OK, "event_query");
        bench_ok(b, b->driver->event_synchronize(b->ctx, device, event), "event_synchronize");
        bench_ok(b, b->driver->stream_wait_event(b->ctx, device, stream, event),
                 "stream_wait_event");
        bench_sync(b, device, stream);
    }
}

static void flags(bench *b) {
    static const uint32_t all[] = {0, FL_EVENT_TIMING, FL_EVENT_BLOCKING_SYNC,
                                   FL_EVENT_TIMING | FL_EVENT_BLOCKING_SYNC};
    fl_native_stream stream = bench_stream(b, 0), other = bench_stream(b, 0);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        fl_native_event event = bench_event(b, 0, all[i]);
        bench_ok(b, record(b, 0, event, stream), "event_record");
        bench_ok(b, b->driver->stream_wait_event(b->ctx, 0, other, event), "stream_wait_event");
        bench_ok(b, b->driver->event_synchronize(b->ctx, 0, event), "event_synchronize");
        bench_status(b, b->driver->event_query(b->ctx, 0, event), FL_OK, "event_query");
        bench_sync(b, 0, other);
    }
}

/* Between processes: made, or said to be impossible; never refused in other words. */
static void interprocess(bench *b) {
    fl_native_event event = NULL;
    fl_status status = b->driver->event_create(b->ctx, 0, FL_EVENT_INTERPROCESS, &event);
    if (status == FL_NOT_SUPPORTED) {
        bench_skip(b, "the driver has no events between processes");
    }
    bench_ok(b, status, "event_create");
    bench_ok(b, b->driver->event_destroy(b->ctx, 0, event), "event_destroy");
}

static void query(bench *b) {
    fl_native_stream stream = bench_stream(b, 0);
    fl_native_event event = bench_event(b, 0, 0);
    gate *g = bench_block_stream(b, 0, stream);
    bench_ok(b, record(b, 0, event, stream), "event_record");
    (void)fl_fail(FL_INTERNAL, "as it was");
    bench_status(b, b->driver->event_query(b->ctx, 0, event), FL_NOT_READY, "event_query, busy");
    bench_true(b, strcmp(fl_last_message(), "as it was") == 0,
               "an answer of not ready left a message");
    bench_open(b, g);
    bench_ok(b, b->driver->event_synchronize(b->ctx, 0, event), "event_synchronize");
    bench_status(b, b->driver->event_query(b->ctx, 0, event), FL_OK, "event_query, done");
}

/* The event is done when the work before it is, whatever comes behind it. */
static void in_the_middle(bench *b) {
    fl_native_stream stream = bench_stream(b, 0);
    fl_native_event event = bench_event(b, 0, 0);
    bench_ok(b, record(b, 0, event, stream), "event_record");
    gate *g = bench_block_stream(b, 0, stream);
    bench_ok(b, b->driver->event_synchronize(b->ctx, 0, event), "event_synchronize");
    bench_status(b, b->driver->event_query(b->ctx, 0, event), FL_OK, "event_query");
    bench_status(b, b->driver->stream_query(b->ctx, 0, stream), FL_NOT_READY, "stream_query");
    bench_open(b, g);
    bench_sync(b, 0, stream);
}

static void record_again(bench *b) {
    fl_native_stream idle = bench_stream(b, 0), busy = bench_stream(b, 0);
    fl_native_event event = bench_event(b, 0, 0);
    bench_ok(b, record(b, 0, event, idle), "event_record");
    bench_sync(b, 0, idle);
    gate *g = bench_block_stream(b, 0, busy);
    bench_ok(b, record(b, 0, event, busy), "event_record, again");
    bench_status(b, b->driver->event_query(b->ctx, 0, event), FL_NOT_READY,
                 "event_query after a second record");
    bench_open(b, g);
    bench_ok(b, b->driver->event_synchronize(b->ctx, 0, event), "event_synchronize");
    bench_sync(b, 0, busy);
}

/* Work behind the wait sees what was done before the record. */
static void wait(bench *b, fl_device first, fl_device second) {
    enum { BYTES = 2048 };
    fl_native_stream one = bench_stream(b, first), two = bench_stream(b, second);
    fl_native_event event = bench_event(b, first, 0);
    unsigned char *shared = bench_host(b, BYTES), *out = bench_host(b, BYTES), wanted[BYTES];
    char *from = bench_alloc(b, first, BYTES), *to = bench_alloc(b, second, BYTES);
    memset(shared, 0, BYTES);
    bench_ok(b, b->driver->fill(b->ctx, first, from, 0x66, BYTES, one), "fill");
    bench_sync(b, first, one);
    gate *g = bench_block_stream(b, first, one);
    bench_copy(b, first, shared, from, BYTES, FL_COPY_DEVICE_TO_HOST, one);
    bench_ok(b, record(b, first, event, one), "event_record");
    bench_ok(b, b->driver->stream_wait_event(b->ctx, second, two, event), "stream_wait_event");
    bench_copy(b, second, to, shared, BYTES, FL_COPY_HOST_TO_DEVICE, two);
    bench_copy(b, second, out, to, BYTES, FL_COPY_DEVICE_TO_HOST, two);
    bench_stays_busy(b, second, two, "the waiting stream");
    bench_open(b, g);
    bench_sync(b, second, two);
    memset(wanted, 0x66, BYTES);
    bench_bytes(b, out, wanted, BYTES, "what the waiting stream copied");
    bench_sync(b, first, one);
}

static void wait_on_device(bench *b) {
    wait(b, 0, 0);
}

static void wait_across_devices(bench *b) {
    if (b->devices < 2) {
        bench_skip(b, "there is one device");
    }
    wait(b, 0, b->devices - 1);
    wait(b, b->devices - 1, 0);
}

/* A wait holds for the record before it; a later record is none of its. */
static void wait_for_last_record(bench *b) {
    fl_native_stream one = bench_stream(b, 0), two = bench_stream(b, 0), three = bench_stream(b, 0);
    fl_native_event event = bench_event(b, 0, 0);
    gate *first = bench_block_stream(b, 0, one);
    gate *second = bench_block_stream(b, 0, two);
    bench_ok(b, record(b, 0, event, one), "event_record");
    bench_ok(b, b->driver->stream_wait_event(b->ctx, 0, three, event), "stream_wait_event");
    bench_ok(b, record(b, 0, event, two), "event_record, again");
    bench_stays_busy(b, 0, three, "the stream that waits for the first record");
    bench_open(b, first);
    bench_sync(b, 0, three);
    bench_status(b, b->driver->event_query(b->ctx, 0, event), FL_NOT_READY,
                 "the second record, still behind its gate");
    bench_open(b, second);
    bench_sync(b, 0, two);
    bench_sync(b, 0, one);
}

static void destroy_pending(bench *b) {
    fl_native_stream stream = bench_stream(b, 0);
    fl_native_event event = bench_event(b, 0, 0);
    gate *g = bench_block_stream(b, 0, stream);
    bench_ok(b, record(b, 0, event, stream), "event_record");
    bench_ok(b, b->driver->event_destroy(b->ctx, 0, event), "event_destroy, pending");
    bench_forget_event(b, event);
    bench_open(b, g);
    bench_sync(b, 0, stream);
}

static void sleep_a_little(void *argument) {
    atomic_bool *g = argument;
    enum { STEPS = 1000000 };
    /* Some milliseconds of plain work: a host function must not call the driver, and needs no
     * clock. */
    for (volatile int i = 0; i < STEPS * 20 && !atomic_load(g); i++) {
    }
}

static void elapsed(bench *b) {
    if (!b->driver->event_elapsed_ms) {
        bench_skip(b, "the driver has no event_elapsed_ms");
    }
    static atomic_bool stop;
    atomic_store(&stop, false);
    fl_native_stream stream = bench_stream(b, 0);
    fl_native_event events[3];
    for (int i = 0; i < 3; i++) {
        events[i] = bench_event(b, 0, FL_EVENT_TIMING);
    }
    char *block = bench_alloc(b, 0, 1 << 20);
    bench_ok(b, record(b, 0, events[0], stream), "event_record");
    bench_ok(b, b->driver->fill(b->ctx, 0, block, 1, 1 << 20, stream), "fill");
    bench_ok(b, record(b, 0, events[1], stream), "event_record");
    if (b->driver->stream_host_call) {
        bench_ok(b, b->driver->stream_host_call(b->ctx, 0, stream, sleep_a_little, &stop),
                 "stream_host_call");
    }
    bench_ok(b, record(b, 0, events[2], stream), "event_record");
    bench_sync(b, 0, stream);
    double first = -1, second = -1, both = -1, back = 1;
    bench_ok(b, b->driver->event_elapsed_ms(b->ctx, 0, events[0], events[1], &first), "elapsed");
    bench_ok(b, b->driver->event_elapsed_ms(b->ctx, 0, events[1], events[2], &second), "elapsed");
    bench_ok(b, b->driver->event_elapsed_ms(b->ctx, 0, events[0], events[2], &both), "elapsed");
    bench_ok(b, b->driver->event_elapsed_ms(b->ctx, 0, events[2], events[0], &back), "elapsed");
    if (first < 0 || second < 0 || both + 1e-3 < first || both + 1e-3 < second || both > 60000) {
        bench_fail(b, "%f ms and %f ms make %f ms", first, second, both);
    }
    if (b->driver->stream_host_call && second < 1) {
        bench_fail(b, "milliseconds of work were measured as %f ms", second);
    }
    if (back > 0) {
        bench_fail(b, "backwards %f ms have passed", back);
    }
}

static void elapsed_pending(bench *b) {
    if (!b->driver->event_elapsed_ms) {
        bench_skip(b, "the driver has no event_elapsed_ms");
    }
    fl_native_stream stream = bench_stream(b, 0);
    fl_native_event start = bench_event(b, 0, FL_EVENT_TIMING);
    fl_native_event end = bench_event(b, 0, FL_EVENT_TIMING);
    double ms = -5;
    bench_ok(b, record(b, 0, start, stream), "event_record");
    gate *g = bench_block_stream(b, 0, stream);
    bench_ok(b, record(b, 0, end, stream), "event_record");
    bench_status(b, b->driver->event_elapsed_ms(b->ctx, 0, start, end, &ms), FL_NOT_READY,
                 "elapsed, before the end");
    bench_true(b, ms < -4, "a failed event_elapsed_ms wrote its result");
    bench_open(b, g);
    bench_sync(b, 0, stream);
    bench_ok(b, b->driver->event_elapsed_ms(b->ctx, 0, start, end, &ms), "elapsed");
}

static void many(bench *b) {
    enum { EVENTS = 1000 };
    fl_native_stream streams[4];
    for (int i = 0; i < 4; i++) {
        streams[i] = bench_stream(b, 0);
    }
    for (int i = 0; i < EVENTS; i++) {
        fl_native_event event = bench_event(b, 0, i % 3 ? 0 : (uint32_t)FL_EVENT_TIMING);
        bench_ok(b, record(b, 0, event, streams[i % 4]), "event_record");
        bench_ok(b, b->driver->stream_wait_event(b->ctx, 0, streams[(i + 1) % 4], event),
                 "stream_wait_event");
    }
    for (int i = 0; i < EVENTS; i++) {
        bench_ok(b, b->driver->event_synchronize(b->ctx, 0, b->events[i].event),
                 "event_synchronize");
        bench_status(b, b->driver->event_query(b->ctx, 0, b->events[i].event), FL_OK,
                     "event_query");
    }
}

/* A ring of streams, each of which goes on when the one before has. */
static void ring(bench *b) {
    enum { STREAMS = 8, ROUNDS = 20, BYTES = 512 };
    fl_native_stream streams[STREAMS];
    char *blocks[STREAMS];
    unsigned char *out = bench_host(b, BYTES), wanted[BYTES];
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = bench_stream(b, 0);
        blocks[i] = bench_alloc(b, 0, BYTES);
    }
    bench_pattern(wanted, BYTES, 21);
    bench_write(b, 0, blocks[0], wanted, BYTES, streams[0]);
    for (int step = 0; step < STREAMS * ROUNDS; step++) {
        int from = step % STREAMS, to = (step + 1) % STREAMS;
        fl_native_event event = bench_event(b, 0, 0);
        bench_ok(b, record(b, 0, event, streams[from]), "event_record");
        bench_ok(b, b->driver->stream_wait_event(b->ctx, 0, streams[to], event),
                 "stream_wait_event");
        bench_copy(b, 0, blocks[to], blocks[from], BYTES, FL_COPY_DEVICE_TO_DEVICE, streams[to]);
        bench_ok(b, b->driver->fill(b->ctx, 0, blocks[from], (uint8_t)step, BYTES, streams[to]),
                 "fill");
    }
    bench_read(b, 0, out, blocks[0], BYTES, streams[0]);
    bench_bytes(b, out, wanted, BYTES, "what went around the ring");
}

static fl_status wait_for_event(bench *b, int index) {
    if (index == 0) {
        while (!atomic_load(&b->gates[0].was_reached) && !atomic_load(&b->gates[0].timed_out)) {
        }
        atomic_store(&b->gates[0].is_open, true);
        return FL_OK;
    }
    FL_TRY(b->driver->event_synchronize(b->ctx, 0, b->events[0].event));
    return b->driver->event_query(b->ctx, 0, b->events[0].event);
}

static void synchronize_from_threads(bench *b) {
    fl_native_stream stream = bench_stream(b, 0);
    fl_native_event event = bench_event(b, 0, FL_EVENT_BLOCKING_SYNC);
    (void)bench_block_stream(b, 0, stream);
    bench_ok(b, record(b, 0, event, stream), "event_record");
    bench_ok(b, bench_threads(b, 4, wait_for_event), "waiting on several threads");
    bench_sync(b, 0, stream);
}

static fl_status ping_pong(bench *b, int index) {
    enum { ROUNDS = 50 };
    const fl_driver *d = b->driver;
    fl_device device = index % b->devices;
    fl_native_stream one = NULL, two = NULL;
    fl_native_event event = NULL;
    FL_TRY(d->stream_create(b->ctx, device, 0, &one));
    FL_TRY(d->stream_create(b->ctx, device, 0, &two));
    for (int round = 0; round < ROUNDS; round++) {
        FL_TRY(d->event_create(b->ctx, device, 0, &event));
        FL_TRY(d->event_record(b->ctx, device, event, round % 2 ? one : two));
        FL_TRY(d->stream_wait_event(b->ctx, device, round % 2 ? two : one, event));
        FL_TRY(d->event_synchronize(b->ctx, device, event));
        FL_TRY(d->event_destroy(b->ctx, device, event));
    }
    FL_TRY(d->stream_synchronize(b->ctx, device, one));
    FL_TRY(d->stream_synchronize(b->ctx, device, two));
    FL_TRY(d->stream_destroy(b->ctx, device, one));
    return d->stream_destroy(b->ctx, device, two);
}

static void threads(bench *b) {
    bench_ok(b, bench_threads(b, 8, ping_pong), "events on eight threads");
}

const conform_case conform_event_cases[] = {
    {"event.never_recorded", never_recorded},
    {"event.flags", flags},
    {"event.interprocess", interprocess},
    {"event.query", query},
    {"event.in_the_middle", in_the_middle},
    {"event.record_again", record_again},
    {"event.wait", wait_on_device},
    {"event.wait_across_devices", wait_across_devices},
    {"event.wait_for_last_record", wait_for_last_record},
    {"event.destroy_pending", destroy_pending},
    {"event.elapsed", elapsed},
    {"event.elapsed_pending", elapsed_pending},
    {"event.many", many},
    {"event.ring", ring},
    {"event.synchronize_from_threads", synchronize_from_threads},
    {"event.threads", threads},
    {NULL, NULL},
};
