/*
 * sim_state.h: what the files of the simulated device share.
 *
 * One lock guards everything but the bytes of blocks; those are touched by stream threads, in
 * stream order, with the lock released. One condition variable tells of any progress: a simulated
 * device may be slow, but must be plainly right.
 *
 * Glossary: a block is what mem_alloc gave; an arena is a device's whole address range; a window is
 * a time in which the host's threads can reach an arena; a task is one piece of a stream's work; a
 * mark is one record of an event.
 */
#ifndef FL_DRIVER_SIM_STATE_H
#define FL_DRIVER_SIM_STATE_H

#include "base/list.h"
#include "base/thread.h"
#include "driver/sim.h"

/* Accepted and without effect: the host's scheduler decides. 0 is the least. */
enum { SIM_PRIORITY_GREATEST = -2 };

/* Address ranges in ascending order, without overlap. */
typedef struct sim_ranges {
    struct sim_range {
        char *begin;
        size_t bytes;
    } * rows;
    size_t count, capacity;
} sim_ranges;

/* The arena is mapped twice: `base` is what users get and cannot be touched outside of a window,
 * `alias` is the same memory, always open, for the copies and fills of the driver itself. */
typedef struct sim_device {
    char *base, *alias; /* NULL until the device is used. */
    size_t bytes;       /* Size of the arena and limit of what can be allocated. */
    size_t used;
    sim_ranges blocks;
    int32_t windows;  /* Open ones; the arena is closed at 0. */
    fl__list streams; /* Every sim_stream whose thread has not ended. */
} sim_device;

typedef struct sim_mark {
    int32_t references; /* Of the event, of a task that sets it, of tasks that wait for it. */
    bool is_done;
    uint64_t when_ns;
} sim_mark;

typedef enum sim_task_kind {
    SIM_TASK_COPY,
    SIM_TASK_FILL,
    SIM_TASK_HOST_CALL,
    SIM_TASK_RECORD,
    SIM_TASK_WAIT,
} sim_task_kind;

/* Addresses are aliases where they are a device's. */
typedef struct sim_task {
    fl__list link; /* In its stream's queue. */
    sim_task_kind kind;
    char *dst;
    const char *src;
    size_t dst_pitch, src_pitch, width, rows;
    uint8_t value;
    void *staged; /* A copy of a pageable source, owned. */
    void (*function)(void *argument);
    void *argument;
    sim_mark *mark; /* A reference. */
} sim_task;

typedef struct sim_stream {
    fl__list link; /* In its device's list. */
    fl_device device;
    int32_t references; /* Of the handle, of the thread, of those who wait for it. */
    bool is_closing;    /* The handle is gone; the thread ends when the queue is empty. */
    uint64_t submitted, completed;
    uint64_t random; /* State of the delay's generator. */
    fl__list queue;
    sim_task *running;   /* Taken from the queue, not yet completed. */
    pthread_cond_t wake; /* Work has come, or the end. */
} sim_stream;

typedef struct sim_event {
    uint32_t flags;
    sim_mark *mark; /* A reference to the last record, NULL if there was none. */
} sim_event;

typedef struct sim_engine {
    fl__mutex lock;
    pthread_cond_t progress; /* A task completed. */
    bool is_started;
    bool is_forked;  /* Set in children: the stream threads are not theirs. */
    bool is_exiting; /* The process runs its exit handlers: queued work is dropped. */
    int32_t working; /* Threads that run a task right now, with the lock released. */
    int32_t device_count;
    int64_t delay_us;
    sim_device devices[FL_DEVICE_MAX];
    sim_ranges pinned;
} sim_engine;

extern sim_engine fl__sim;

/* --- sim_memory.c ------------------------------------------------------------------------------
 */

fl_status fl__sim_mem_alloc(void *ctx, fl_device device, size_t bytes, void **out_ptr);
fl_status fl__sim_mem_free(void *ctx, fl_device device, void *ptr);
fl_status fl__sim_host_alloc(void *ctx, size_t bytes, void **out_ptr);
fl_status fl__sim_host_free(void *ctx, void *ptr);
fl_status fl__sim_mem_info(void *ctx, fl_device device, uint64_t *out_free, uint64_t *out_total);

/* Under the lock. `ptr` and `bytes` must lie in one block of `device`, or for FL_DEVICE_CURRENT
 * outside of every arena; the address for the stream threads comes out. `what` is for messages. */
fl_status fl__sim_reach(fl_device device, const void *ptr, size_t bytes, const char *what,
                        char **out_address);

/* Under the lock: whether the bytes lie in one pinned block. */
bool fl__sim_reach_pinned(const void *ptr, size_t bytes);

/* Without the lock. A window of the device's arena opens or closes. */
void fl__sim_window_open(fl_device device);
void fl__sim_window_close(fl_device device);

/* --- sim_stream.c ------------------------------------------------------------------------------
 */

/* FL_OK if this thread may use the driver: not in a forked child, not within a task, not while the
 * process ends. Under the lock. */
fl_status fl__sim_may_call(const char *what);

/* Under the lock: whether a queued or running task of any stream touches the bytes. Host functions
 * do not say what they touch. */
bool fl__sim_is_in_use(const char *alias, size_t bytes);

fl_status fl__sim_stream_create(void *ctx, fl_device device, int32_t priority,
                                fl_native_stream *out_stream);
fl_status fl__sim_stream_destroy(void *ctx, fl_device device, fl_native_stream stream);
fl_status fl__sim_stream_query(void *ctx, fl_device device, fl_native_stream stream);
fl_status fl__sim_stream_synchronize(void *ctx, fl_device device, fl_native_stream stream);
fl_status fl__sim_device_synchronize(void *ctx, fl_device device);

/* Under the lock. Queues a copy of *task, whose references and staged bytes it takes over, also on
 * failure. */
fl_status fl__sim_submit(fl_device device, fl_native_stream stream, const sim_task *task);

/* Under the lock. Gives one reference back; NULL is allowed. */
void fl__sim_mark_drop(sim_mark *mark);

/* --- sim_work.c --------------------------------------------------------------------------------
 */

fl_status fl__sim_copy(void *ctx, fl_device device, void *dst, const void *src, size_t bytes,
                       fl_copy_kind kind, fl_native_stream stream);
fl_status fl__sim_copy_2d(void *ctx, fl_device device, void *dst, size_t dst_pitch, const void *src,
                          size_t src_pitch, size_t width, size_t rows, fl_copy_kind kind,
                          fl_native_stream stream);
fl_status fl__sim_copy_peer(void *ctx, void *dst, fl_device dst_device, const void *src,
                            fl_device src_device, size_t bytes, fl_native_stream stream);
fl_status fl__sim_fill(void *ctx, fl_device device, void *dst, uint8_t value, size_t bytes,
                       fl_native_stream stream);
fl_status fl__sim_stream_host_call(void *ctx, fl_device device, fl_native_stream stream,
                                   void (*function)(void *argument), void *argument);
fl_status fl__sim_event_create(void *ctx, fl_device device, uint32_t flags,
                               fl_native_event *out_event);
fl_status fl__sim_event_destroy(void *ctx, fl_device device, fl_native_event event);
fl_status fl__sim_event_record(void *ctx, fl_device device, fl_native_event event,
                               fl_native_stream stream);
fl_status fl__sim_event_query(void *ctx, fl_device device, fl_native_event event);
fl_status fl__sim_event_synchronize(void *ctx, fl_device device, fl_native_event event);
fl_status fl__sim_event_elapsed_ms(void *ctx, fl_device device, fl_native_event start,
                                   fl_native_event end, double *out_ms);
fl_status fl__sim_stream_wait_event(void *ctx, fl_device device, fl_native_stream stream,
                                    fl_native_event event);

#endif
