/*
 * conform.c: runs the cases of the conformance suite and compares with what a driver declares.
 * Must not know any vendor.
 */
#define _GNU_SOURCE /* nanosleep */
#include "conform.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- ends of a case --------------------------------------------------------------------------- */

_Noreturn static void end_case(bench *b, fl_conformance_result result, const char *format,
                               va_list arguments) {
    b->result = result;
    (void)vsnprintf(b->text, sizeof(b->text), format, arguments);
    longjmp(b->end, 1);
}

void bench_fail(bench *b, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    end_case(b, FL_CONFORMANCE_FAILED, format, arguments);
}

void bench_skip(bench *b, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    end_case(b, FL_CONFORMANCE_SKIPPED, format, arguments);
}

void bench_ok(bench *b, fl_status status, const char *what) {
    if (status) {
        bench_fail(b, "%s: %s: %s", what, fl_status_name(status), fl_last_message());
    }
}

void bench_status(bench *b, fl_status status, fl_status wanted, const char *what) {
    if (status != wanted) {
        bench_fail(b, "%s: %s instead of %s%s%s", what, fl_status_name(status),
                   fl_status_name(wanted), status ? ": " : "", status ? fl_last_message() : "");
    }
}

void bench_true(bench *b, bool condition, const char *what) {
    if (!condition) {
        bench_fail(b, "%s", what);
    }
}

void bench_bytes(bench *b, const void *actual, const void *wanted, size_t bytes, const char *what) {
    const unsigned char *a = actual, *w = wanted;
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] != w[i]) {
            bench_fail(b, "%s: byte %zu of %zu is 0x%02x instead of 0x%02x", what, i, bytes, a[i],
                       w[i]);
        }
    }
}

/* --- what a case makes ------------------------------------------------------------------------ */

static void keep_block(bench *b, void *ptr, fl_device device) {
    if (b->block_count == BENCH_BLOCKS) {
        bench_fail(b, "the case makes more blocks than the bench has room for");
    }
    b->blocks[b->block_count].ptr = ptr;
    b->blocks[b->block_count++].device = device;
}

void *bench_alloc(bench *b, fl_device device, size_t bytes) {
    void *ptr = NULL;
    bench_ok(b, b->driver->mem_alloc(b->ctx, device, bytes, &ptr), "mem_alloc");
    bench_true(b, ptr != NULL, "mem_alloc answers NULL");
    keep_block(b, ptr, device);
    return ptr;
}

void *bench_host(bench *b, size_t bytes) {
    void *ptr = NULL;
    bench_ok(b, b->driver->host_alloc(b->ctx, bytes, &ptr), "host_alloc");
    bench_true(b, ptr != NULL, "host_alloc answers NULL");
    keep_block(b, ptr, FL_DEVICE_CURRENT);
    return ptr;
}

fl_native_stream bench_stream(bench *b, fl_device device) {
    fl_native_stream stream = NULL;
    bench_ok(b, b->driver->stream_create(b->ctx, device, 0, &stream), "stream_create");
    if (b->stream_count == BENCH_STREAMS) {
        bench_fail(b, "the case makes more streams than the bench has room for");
    }
    b->streams[b->stream_count].stream = stream;
    b->streams[b->stream_count++].device = device;
    return stream;
}

fl_native_event bench_event(bench *b, fl_device device, uint32_t flags) {
    fl_native_event event = NULL;
    bench_ok(b, b->driver->event_create(b->ctx, device, flags, &event), "event_create");
    if (b->event_count == BENCH_EVENTS) {
        bench_fail(b, "the case makes more events than the bench has room for");
    }
    b->events[b->event_count].event = event;
    b->events[b->event_count++].device = device;
    return event;
}

void bench_forget_block(bench *b, const void *ptr) {
    for (size_t i = 0; i < b->block_count; i++) {
        if (b->blocks[i].ptr == ptr) {
            b->blocks[i] = b->blocks[--b->block_count];
            return;
        }
    }
}

void bench_forget_stream(bench *b, fl_native_stream stream) {
    for (size_t i = 0; i < b->stream_count; i++) {
        if (b->streams[i].stream == stream) {
            b->streams[i] = b->streams[--b->stream_count];
            return;
        }
    }
}

void bench_forget_event(bench *b, fl_native_event event) {
    for (size_t i = 0; i < b->event_count; i++) {
        if (b->events[i].event == event) {
            b->events[i] = b->events[--b->event_count];
            return;
        }
    }
}

/* --- gates ------------------------------------------------------------------------------------ */

static void pause_us(long us) {
    struct timespec time = {.tv_sec = 0, .tv_nsec = us * 1000};
    (void)nanosleep(&time, NULL);
}

static void wait_at_gate(void *argument) {
    enum { STEP_US = 200, STEPS = 25000 };
    gate *g = argument;
    atomic_store(&g->was_reached, true);
    for (int i = 0; i < STEPS; i++) {
        if (atomic_load(&g->is_open)) {
            return;
        }
        pause_us(STEP_US);
    }
    atomic_store(&g->timed_out, true);
}

gate *bench_block_stream(bench *b, fl_device device, fl_native_stream stream) {
    if (!b->driver->stream_host_call) {
        bench_skip(b, "the driver has no stream_host_call to keep a stream busy with");
    }
    if (b->driver->capabilities & FL_CAP_SYNCHRONOUS) {
        bench_skip(b, "every call of this driver has finished when it returns");
    }
    gate *g = &b->gates[b->gate_count++];
    bench_ok(b, b->driver->stream_host_call(b->ctx, device, stream, wait_at_gate, g),
             "stream_host_call");
    return g;
}

void bench_open(bench *b, gate *g) {
    bool late = atomic_load(&g->timed_out);
    atomic_store(&g->is_open, true);
    bench_true(b, !late, "a call waited for a stream that it must not wait for");
}

void bench_stays_busy(bench *b, fl_device device, fl_native_stream stream, const char *what) {
    enum { STEP_US = 500, STEPS = 20 };
    for (int i = 0; i < STEPS; i++) {
        bench_status(b, b->driver->stream_query(b->ctx, device, stream), FL_NOT_READY, what);
        pause_us(STEP_US);
    }
}

/* --- shortcuts -------------------------------------------------------------------------------- */

void bench_copy(bench *b, fl_device device, void *dst, const void *src, size_t bytes,
                fl_copy_kind kind, fl_native_stream stream) {
    bench_ok(b, b->driver->copy(b->ctx, device, dst, src, bytes, kind, stream), "copy");
}

void bench_sync(bench *b, fl_device device, fl_native_stream stream) {
    bench_ok(b, b->driver->stream_synchronize(b->ctx, device, stream), "stream_synchronize");
}

void bench_write(bench *b, fl_device device, void *dst, const void *src, size_t bytes,
                 fl_native_stream stream) {
    bench_copy(b, device, dst, src, bytes, FL_COPY_HOST_TO_DEVICE, stream);
    bench_sync(b, device, stream);
}

void bench_read(bench *b, fl_device device, void *dst, const void *src, size_t bytes,
                fl_native_stream stream) {
    bench_copy(b, device, dst, src, bytes, FL_COPY_DEVICE_TO_HOST, stream);
    bench_sync(b, device, stream);
}

void bench_pattern(void *out, size_t bytes, uint32_t seed) {
    unsigned char *at = out;
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < bytes; i++) {
        state = state * 1664525u + 1013904223u;
        at[i] = (unsigned char)(state >> 24);
    }
}

typedef struct worker {
    bench *b;
    int index;
    fl_status (*body)(bench *b, int index);
    fl_status status;
    char message[256];
} worker;

static void *run_worker(void *argument) {
    worker *w = argument;
    w->status = w->body(w->b, w->index);
    if (w->status) { /* Messages belong to threads. */
        (void)snprintf(w->message, sizeof(w->message), "%s", fl_last_message());
    }
    return NULL;
}

fl_status bench_threads(bench *b, int count, fl_status (*body)(bench *b, int index)) {
    enum { MAX_THREADS = 16 };
    pthread_t threads[MAX_THREADS];
    worker workers[MAX_THREADS];
    int started = 0;
    for (; started < count && started < MAX_THREADS; started++) {
        workers[started] = (worker){.b = b, .index = started, .body = body, .status = FL_OK};
        if (pthread_create(&threads[started], NULL, run_worker, &workers[started]) != 0) {
            break;
        }
    }
    fl_status status = started == count ? FL_OK : fl_fail(FL_INTERNAL, "no more threads");
    for (int i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
        if (workers[i].status && !status) {
            status = fl_fail(workers[i].status, "thread %d: %s", i, workers[i].message);
        }
    }
    return status;
}

/* --- running ---------------------------------------------------------------------------------- */

/* Releases what the case left; a failure to do so is the case's. */
static void clear(bench *b) {
    const fl_driver *d = b->driver;
    fl_status status = FL_OK;
    const char *slot = "";
    for (size_t i = 0; i < b->gate_count; i++) {
        atomic_store(&b->gates[i].is_open, true);
    }
    for (size_t i = 0; i < b->stream_count && !status; i++) {
        slot = "stream_synchronize";
        status = d->stream_synchronize(b->ctx, b->streams[i].device, b->streams[i].stream);
    }
    for (size_t i = 0; i < b->event_count && !status; i++) {
        slot = "event_destroy";
        status = d->event_destroy(b->ctx, b->events[i].device, b->events[i].event);
    }
    for (size_t i = 0; i < b->stream_count && !status; i++) {
        slot = "stream_destroy";
        status = d->stream_destroy(b->ctx, b->streams[i].device, b->streams[i].stream);
    }
    for (size_t i = 0; i < b->block_count && !status; i++) {
        bool on_host = b->blocks[i].device == FL_DEVICE_CURRENT;
        slot = on_host ? "host_free" : "mem_free";
        status = on_host ? d->host_free(b->ctx, b->blocks[i].ptr)
                         : d->mem_free(b->ctx, b->blocks[i].device, b->blocks[i].ptr);
    }
    if (status && (b->result == FL_CONFORMANCE_PASSED || b->result == FL_CONFORMANCE_SKIPPED)) {
        b->result = FL_CONFORMANCE_FAILED;
        (void)snprintf(b->text, sizeof(b->text), "%s behind the case: %s: %s", slot,
                       fl_status_name(status), fl_last_message());
    }
}

static const char *limit_of(const fl_driver *driver, const char *name) {
    for (const fl_driver_limit *l = driver->limits; l && l->case_name; l++) {
        if (strcmp(l->case_name, name) == 0) {
            return l->reason;
        }
    }
    return NULL;
}

static fl_conformance_result run_case(const fl_driver *driver, int32_t devices,
                                      const conform_case *c, char *out_text, size_t size) {
    /* Large, and its gates outlive a case that a driver lets hang. */
    bench *b = calloc(1, sizeof(*b));
    if (!b) {
        (void)snprintf(out_text, size, "no host memory for the case");
        return FL_CONFORMANCE_FAILED;
    }
    b->driver = driver;
    b->ctx = driver->ctx;
    b->devices = devices;
    b->result = FL_CONFORMANCE_PASSED;
    if (setjmp(b->end) == 0) {
        c->run(b);
    }
    clear(b);
    fl_conformance_result result = b->result;
    (void)snprintf(out_text, size, "%s", b->text);
    free(b);
    const char *reason = limit_of(driver, c->name);
    if (!reason) {
        return result;
    }
    if (result == FL_CONFORMANCE_PASSED) {
        (void)snprintf(out_text, size, "passed, although the driver says: %s", reason);
        return FL_CONFORMANCE_UNEXPECTED;
    }
    (void)snprintf(out_text, size, "%s", reason);
    return FL_CONFORMANCE_CANNOT;
}

static const conform_case *const groups[] = {
    conform_device_cases, conform_memory_cases, conform_copy_cases,
    conform_stream_cases, conform_event_cases,
};
enum { GROUPS = sizeof(groups) / sizeof(groups[0]) };

const char *fl_conformance_case(size_t index) {
    for (size_t g = 0; g < GROUPS; g++) {
        for (const conform_case *c = groups[g]; c->name; c++) {
            if (index-- == 0) {
                return c->name;
            }
        }
    }
    return NULL;
}

const char *fl_conformance_word(fl_conformance_result result) {
    static const char *const words[] = {"passed", "failed", "skipped", "cannot", "unexpected pass"};
    return (unsigned)result < sizeof(words) / sizeof(words[0]) ? words[result] : "no result";
}

/* A limit that names no case would hide a spelling mistake. */
static int check_limits(const fl_driver *driver, fl_conformance_report report, void *user) {
    int wrong = 0;
    for (const fl_driver_limit *l = driver->limits; l && l->case_name; l++) {
        const char *name = NULL;
        size_t i = 0;
        while ((name = fl_conformance_case(i)) != NULL && strcmp(name, l->case_name) != 0) {
            i++;
        }
        if (!name) {
            report(user, l->case_name, FL_CONFORMANCE_FAILED,
                   "the driver declares a limit for a case that does not exist");
            wrong++;
        }
    }
    return wrong;
}

int fl_conformance_run(const fl_driver *driver, const char *prefix, fl_conformance_report report,
                       void *user) {
    int32_t devices = 0;
    fl_status status = fl_driver_check(driver);
    status = status ? status : driver->init(driver->ctx);
    status = status ? status : driver->device_count(driver->ctx, &devices);
    if (!status && devices == 0) {
        status = fl_fail(FL_UNAVAILABLE, "the driver has no device");
    }
    if (status) {
        report(user, "driver", FL_CONFORMANCE_FAILED, fl_last_message());
        return -1;
    }
    int failures = check_limits(driver, report, user);
    for (size_t g = 0; g < GROUPS; g++) {
        for (const conform_case *c = groups[g]; c->name; c++) {
            if (prefix && strncmp(c->name, prefix, strlen(prefix)) != 0) {
                continue;
            }
            char text[512];
            fl_conformance_result result = run_case(driver, devices, c, text, sizeof(text));
            failures += result == FL_CONFORMANCE_FAILED || result == FL_CONFORMANCE_UNEXPECTED;
            report(user, c->name, result, text);
        }
    }
    return failures;
}
