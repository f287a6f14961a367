/*
 * conform.h: what the cases of the conformance suite share.
 *
 * A case is a function that gets a bench: the driver, and what was made with it, which the bench
 * releases when the case is over. A check that fails ends the case (by longjmp, from the case's own
 * thread only). Must not know any vendor.
 */
#ifndef FL_TESTS_CONFORM_H
#define FL_TESTS_CONFORM_H

#include <setjmp.h>
#include <stdatomic.h>

#include "fl/conformance.h"

enum { BENCH_BLOCKS = 192, BENCH_STREAMS = 96, BENCH_EVENTS = 1100, BENCH_GATES = 8 };

/* A host function that waits until it is let through; keeps a stream busy for as long as a test
 * wants. Opens by itself after some seconds, so that a failure does not hang. */
typedef struct gate {
    atomic_bool is_open;
    atomic_bool was_reached;
    atomic_bool timed_out;
} gate;

typedef struct bench {
    const fl_driver *driver;
    void *ctx;
    int32_t devices;
    struct {
        void *ptr;
        fl_device device; /* -1: host memory. */
    } blocks[BENCH_BLOCKS];
    struct {
        fl_native_stream stream;
        fl_device device;
    } streams[BENCH_STREAMS];
    struct {
        fl_native_event event;
        fl_device device;
    } events[BENCH_EVENTS];
    gate gates[BENCH_GATES];
    size_t block_count, stream_count, event_count, gate_count;
    fl_conformance_result result;
    char text[512];
    jmp_buf end;
} bench;

typedef struct conform_case {
    const char *name;
    void (*run)(bench *b);
} conform_case;

/* Each ends with a NULL name. */
extern const conform_case conform_device_cases[];
extern const conform_case conform_memory_cases[];
extern const conform_case conform_copy_cases[];
extern const conform_case conform_stream_cases[];
extern const conform_case conform_event_cases[];

/* --- ends of a case --------------------------------------------------------------------------- */

_Noreturn void bench_fail(bench *b, const char *format, ...) FL_PRINTF(2, 3);
_Noreturn void bench_skip(bench *b, const char *format, ...) FL_PRINTF(2, 3);

/* `what` names the slot or the expectation; a failure adds the driver's message. */
void bench_ok(bench *b, fl_status status, const char *what);
void bench_status(bench *b, fl_status status, fl_status wanted, const char *what);
void bench_true(bench *b, bool condition, const char *what);
/* Bytes of the host; a failure names the first that differs. */
void bench_bytes(bench *b, const void *actual, const void *wanted, size_t bytes, const char *what);

/* --- what a case makes ------------------------------------------------------------------------ */

void *bench_alloc(bench *b, fl_device device, size_t bytes);
void *bench_host(bench *b, size_t bytes); /* Page-locked. */
fl_native_stream bench_stream(bench *b, fl_device device);
fl_native_event bench_event(bench *b, fl_device device, uint32_t flags);
/* The case released it itself. */
void bench_forget_block(bench *b, const void *ptr);
void bench_forget_stream(bench *b, fl_native_stream stream);
void bench_forget_event(bench *b, fl_native_event event);

/* Keep a stream busy; skips the case where the driver has no host calls or waits for everything. */
gate *bench_block_stream(bench *b, fl_device device, fl_native_stream stream);
void bench_open(bench *b, gate *g);
/* Some milliseconds long; a stream that need not wait has time to show it. */
void bench_stays_busy(bench *b, fl_device device, fl_native_stream stream, const char *what);

/* --- shortcuts -------------------------------------------------------------------------------- */

void bench_copy(bench *b, fl_device device, void *dst, const void *src, size_t bytes,
                fl_copy_kind kind, fl_native_stream stream);
void bench_sync(bench *b, fl_device device, fl_native_stream stream);

/* To and from the device with pageable memory, and wait. */
void bench_write(bench *b, fl_device device, void *dst, const void *src, size_t bytes,
                 fl_native_stream stream);
void bench_read(bench *b, fl_device device, void *dst, const void *src, size_t bytes,
                fl_native_stream stream);

/* A pattern that differs from byte to byte and from seed to seed. */
void bench_pattern(void *out, size_t bytes, uint32_t seed);

/* Run `body` on `count` threads at once; the first failure among what they return is returned. */
fl_status bench_threads(bench *b, int count, fl_status (*body)(bench *b, int index));

#endif
