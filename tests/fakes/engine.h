/*
 * engine.h: what every fake vendor runtime is made of.
 *
 * A fake is a shared object with one vendor's symbol names. Behind them stands the driver `sim`,
 * linked in privately; the engine adds what vendors' runtimes have and drivers have not: a current
 * device for each thread, handles that are checked, memory that knows its owner, page-locked or
 * not, and calls that fail when they are told to. Vendors' numbers are in the fakes, not here.
 *
 * Environment, read once: FL_FAKE_FAIL="function:n[:code],..." makes the n-th call of a function
 * fail; FL_FAKE_DEVICES=n shows n devices (0: none).
 */
#ifndef FL_TESTS_FAKES_ENGINE_H
#define FL_TESTS_FAKES_ENGINE_H

#include "fl/driver.h"

#define FAKE_EXPORT __attribute__((visibility("default")))

typedef enum fake_result {
    FAKE_OK,
    FAKE_NOT_READY,
    FAKE_INVALID_VALUE,
    FAKE_OUT_OF_MEMORY,
    FAKE_INVALID_DEVICE,
    FAKE_NO_DEVICE,
    FAKE_INVALID_HANDLE,
    FAKE_OTHER_CONTEXT, /* A stream, an event or memory of another device. */
    FAKE_NOT_TIMED,     /* Elapsed time of an event that keeps none, or was not recorded. */
    FAKE_PEER_ALREADY_ENABLED,
    FAKE_PEER_NOT_ENABLED,
    FAKE_NOT_SUPPORTED,
    FAKE_NOT_PERMITTED, /* A call from inside a host function. */
    FAKE_BUSY,          /* Work is pending where there must be none. */
    FAKE_ABSENT_DEVICE, /* The thread has no device. */
    FAKE_UNKNOWN,
} fake_result;

/* --- calls ------------------------------------------------------------------------------------ */

enum { FAKE_PASS = 0, FAKE_DEFAULT_CODE = INT32_MIN };

/* At the start of every function: counts the call. FAKE_PASS, or the code that it was told to fail
 * with (FAKE_DEFAULT_CODE where none was given). Writes whether it is called from a host function.
 */
int fake_begin(const char *function, bool *out_in_host_function);

/* Exported by every fake, for tests: as FL_FAKE_FAIL. `nth` 1 is the next call, 0 forgets it. */
FAKE_EXPORT void fl_fake_fail(const char *function, int nth, int code);
/* How often the function was called; NULL: all functions. */
FAKE_EXPORT int fl_fake_calls(const char *function);
/* Every function that was called so far. */
FAKE_EXPORT void fl_fake_each(void (*visit)(void *user, const char *function, int calls),
                              void *user);

/* --- devices ---------------------------------------------------------------------------------- */

enum { FAKE_NONE = -1 };

/* The driver behind the fake. */
const fl_driver *fake_sim(void);
int fake_device_count(void);
/* The calling thread's, FAKE_NONE until it set one. */
int fake_current_raw(void);
/* The same with 0 in place of none. */
int fake_current(void);
fake_result fake_set_current(int device);
/* Whether a thread has used the device, which for most vendors makes a context. */
bool fake_device_is_active(int device);
void fake_activate(void);
fake_result fake_device_synchronize(void);

/* --- memory ----------------------------------------------------------------------------------- */

typedef enum fake_kind { FAKE_HOST, FAKE_DEVICE, FAKE_PAGEABLE } fake_kind;

/* `offset` moves the start of the block away from the page, as some vendors' allocators do. */
fake_result fake_malloc(void **out_ptr, size_t bytes, size_t offset);
/* Work that uses the block is waited for, or is FAKE_BUSY. */
fake_result fake_free(void *ptr, bool waits);
fake_result fake_host_alloc(void **out_ptr, size_t bytes);
fake_result fake_host_free(void *ptr);
/* What lies at the pointer, and whose it is; a range that leaves its block is FAKE_INVALID_VALUE.
 */
fake_result fake_range(const void *ptr, size_t bytes, fake_kind *out_kind, int *out_device);
void fake_mem_info(size_t *out_free, size_t *out_total);

/* --- streams and events ----------------------------------------------------------------------- */

typedef struct fake_stream fake_stream;
typedef struct fake_event fake_event;

fake_result fake_stream_create(void **out_stream, int priority);
fake_result fake_stream_destroy(void *stream);
fake_result fake_stream_query(void *stream);
fake_result fake_stream_synchronize(void *stream);
/* The device of a stream, NULL being the current device's default stream; FAKE_NONE: no stream. */
int fake_stream_device(void *stream);
fake_result fake_stream_wait(void *stream, void *event);
fake_result fake_stream_host_call(void *stream, void (*function)(void *), void *argument);
/* 0 none, 1 active. */
fake_result fake_stream_capture(void *stream, int state);
fake_result fake_stream_capturing(void *stream, int *out_state);

fake_result fake_event_create(void **out_event, bool timed, bool can_be_waited_for);
fake_result fake_event_destroy(void *event);
fake_result fake_event_record(void *event, void *stream);
fake_result fake_event_query(void *event);
fake_result fake_event_synchronize(void *event);
fake_result fake_event_elapsed(float *out_ms, void *start, void *end);
int fake_event_device(void *event);

/* --- copies ----------------------------------------------------------------------------------- */

/* In stream order. `kind` is checked against what lies at the pointers. Work with pageable memory
 * has finished when the call returns. */
fake_result fake_copy(void *dst, const void *src, size_t bytes, fl_copy_kind kind, void *stream);
fake_result fake_copy_2d(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                         size_t width, size_t rows, fl_copy_kind kind, void *stream);
fake_result fake_copy_peer(void *dst, int dst_device, const void *src, int src_device, size_t bytes,
                           void *stream);
fake_result fake_fill(void *dst, int value, size_t bytes, void *stream);

/* From the current device. */
fake_result fake_enable_peer(int peer);
bool fake_peer_enabled(int device, int peer);

/* --- code ------------------------------------------------------------------------------------- */

/* The image of a code object: these bytes. It holds one function, "add_u32", with the arguments
 * (uint32_t *data, uint32_t count, uint32_t addend). */
#define FAKE_IMAGE "flagos fake code object 1"

fake_result fake_module_load(void **out_module, const void *image);
fake_result fake_module_function(void **out_function, void *module, const char *name);
fake_result fake_launch(void *function, uint64_t threads, void *stream, void **arguments);

#endif
