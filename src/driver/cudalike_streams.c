/*
 * cudalike_streams.c: streams, events and code objects of a driver over a runtime of CUDA's shape.
 *
 * As in cudalike_memory.c each slot makes the device current and puts the thread's own back. Must
 * not know any vendor.
 */
#include "driver/cudalike_table.h"

#include <stdlib.h>

/* --- streams ---------------------------------------------------------------------------------- */

static int32_t clamp(int32_t value, int32_t low, int32_t high) {
    return value < low ? low : value > high ? high : value;
}

static bool has_priorities(const fl__cudalike *c) {
    return c->call.priority_range && c->call.stream_create_priority;
}

static fl_status slot_stream_create(void *ctx, fl_device device, int32_t priority,
                                    fl_native_stream *out_stream) {
    const fl__cudalike *c = ctx;
    enum { NON_BLOCKING = 1 }; /* Not ordered with the vendor's default stream. */
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int least = 0, greatest = 0;
    void *stream = NULL;
    int code = has_priorities(c) ? c->call.priority_range(&least, &greatest) : 0;
    fl__cudalike_symbol asked = FL__SYM_priority_range;
    if (!code && least != greatest) {
        asked = FL__SYM_stream_create_priority;
        code =
            c->call.stream_create_priority(&stream, NON_BLOCKING, clamp(priority, greatest, least));
    } else if (!code) {
        asked = FL__SYM_stream_create;
        code = c->call.stream_create(&stream, NON_BLOCKING);
    }
    fl_status status =
        fl__cudalike_finish(c, previous, code, asked, "creating a stream on device %d: ", device);
    if (status == FL_OK) {
        *out_stream = stream;
    }
    return status;
}

static fl_status slot_stream_destroy(void *ctx, fl_device device, fl_native_stream stream) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = c->call.stream_destroy(stream);
    return fl__cudalike_finish(c, previous, code, FL__SYM_stream_destroy,
                               "destroying a stream of device %d: ", device);
}

static fl_status slot_stream_query(void *ctx, fl_device device, fl_native_stream stream) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = c->call.stream_query(stream);
    return fl__cudalike_finish(c, previous, code, FL__SYM_stream_query,
                               "asking a stream of device %d: ", device);
}

static fl_status slot_stream_synchronize(void *ctx, fl_device device, fl_native_stream stream) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = c->call.stream_synchronize(stream);
    return fl__cudalike_finish(c, previous, code, FL__SYM_stream_synchronize,
                               "waiting for a stream of device %d: ", device);
}

static fl_status slot_stream_wait_event(void *ctx, fl_device device, fl_native_stream stream,
                                        fl_native_event event) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = c->call.stream_wait_event(stream, event, 0);
    return fl__cudalike_finish(c, previous, code, FL__SYM_stream_wait_event,
                               "making a stream of device %d wait: ", device);
}

static fl_status slot_stream_priority_range(void *ctx, fl_device device, int32_t *out_least,
                                            int32_t *out_greatest) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int least = 0, greatest = 0;
    int code = c->call.priority_range(&least, &greatest);
    fl_status status = fl__cudalike_finish(c, previous, code, FL__SYM_priority_range,
                                           "asking for the priorities of device %d: ", device);
    if (status == FL_OK) {
        *out_least = least;
        *out_greatest = greatest;
    }
    return status;
}

/* The older form of a host call hands over more arguments; the struct carries ours through and is
 * freed where it arrives. */
typedef struct host_call {
    void (*function)(void *argument);
    void *argument;
} host_call;

static void run_host_call(void *stream, int code, void *argument) {
    (void)stream;
    (void)code; /* The order is kept after a failure too; who waits for the stream hears of it. */
    host_call call = *(host_call *)argument;
    free(argument);
    call.function(call.argument);
}

static int add_callback(const fl__cudalike *c, fl_native_stream stream,
                        void (*function)(void *argument), void *argument) {
    host_call *call = malloc(sizeof(*call));
    if (!call) {
        return 2; /* Out of memory, in the vendor's own words. */
    }
    *call = (host_call){.function = function, .argument = argument};
    int code = c->call.add_callback(stream, run_host_call, call, 0);
    if (code) {
        free(call);
    }
    return code;
}

static fl_status slot_stream_host_call(void *ctx, fl_device device, fl_native_stream stream,
                                       void (*function)(void *argument), void *argument) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    bool direct = c->call.launch_host_func != NULL;
    int code = direct ? c->call.launch_host_func(stream, function, argument)
                      : add_callback(c, stream, function, argument);
    return fl__cudalike_finish(c, previous, code,
                               direct ? FL__SYM_launch_host_func : FL__SYM_add_callback,
                               "queueing a host function on device %d: ", device);
}

static fl_status slot_stream_is_capturing(void *ctx, fl_device device, fl_native_stream stream,
                                          bool *out_capturing) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int state = 0; /* none, active, invalidated */
    int code = c->call.is_capturing(stream, &state);
    fl_status status =
        fl__cudalike_finish(c, previous, code, FL__SYM_is_capturing,
                            "asking whether a stream of device %d captures: ", device);
    if (status == FL_OK) {
        *out_capturing = state != 0;
    }
    return status;
}

/* --- events ----------------------------------------------------------------------------------- */

static fl_status slot_event_create(void *ctx, fl_device device, uint32_t flags,
                                   fl_native_event *out_event) {
    const fl__cudalike *c = ctx;
    enum { BLOCKING_SYNC = 1, DISABLE_TIMING = 2, INTERPROCESS = 4 };
    unsigned native = 0;
    /* Interprocess events cannot keep the time. */
    if (!(flags & FL_EVENT_TIMING) || (flags & FL_EVENT_INTERPROCESS)) {
        native |= DISABLE_TIMING;
    }
    if (flags & FL_EVENT_BLOCKING_SYNC) {
        native |= BLOCKING_SYNC;
    }
    if (flags & FL_EVENT_INTERPROCESS) {
        native |= INTERPROCESS;
    }
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    void *event = NULL;
    int code = c->call.event_create(&event, native);
    fl_status status = fl__cudalike_finish(c, previous, code, FL__SYM_event_create,
                                           "creating an event on device %d: ", device);
    if (status == FL_OK) {
        *out_event = event;
    }
    return status;
}

static fl_status slot_event_destroy(void *ctx, fl_device device, fl_native_event event) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = c->call.event_destroy(event);
    return fl__cudalike_finish(c, previous, code, FL__SYM_event_destroy,
                               "destroying an event of device %d: ", device);
}

static fl_status slot_event_record(void *ctx, fl_device device, fl_native_event event,
                                   fl_native_stream stream) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = c->call.event_record(event, stream);
    return fl__cudalike_finish(c, previous, code, FL__SYM_event_record,
                               "recording an event on device %d: ", device);
}

static fl_status slot_event_query(void *ctx, fl_device device, fl_native_event event) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = c->call.event_query(event);
    return fl__cudalike_finish(c, previous, code, FL__SYM_event_query,
                               "asking an event of device %d: ", device);
}

static fl_status slot_event_synchronize(void *ctx, fl_device device, fl_native_event event) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = c->call.event_synchronize(event);
    return fl__cudalike_finish(c, previous, code, FL__SYM_event_synchronize,
                               "waiting for an event of device %d: ", device);
}

static fl_status slot_event_elapsed_ms(void *ctx, fl_device device, fl_native_event start,
                                       fl_native_event end, double *out_ms) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    float ms = 0;
    int code = c->call.event_elapsed(&ms, start, end);
    fl_status status = fl__cudalike_finish(c, previous, code, FL__SYM_event_elapsed,
                                           "reading a time on device %d: ", device);
    if (status == FL_OK) {
        *out_ms = (double)ms;
    }
    return status;
}

/* --- code objects ----------------------------------------------------------------------------- */

static fl_status slot_module_load(void *ctx, fl_device device, const void *image, size_t bytes,
                                  void **out_module) {
    const fl__cudalike *c = ctx;
    (void)bytes; /* The image says itself how long it is. */
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    /* Older runtimes make the context at the first call that needs it, and the module functions are
     * none of the runtime's. */
    int code = c->call.free(NULL);
    fl__cudalike_symbol asked = FL__SYM_free;
    void *module = NULL;
    if (!code) {
        asked = FL__SYM_module_load;
        code = c->call.module_load(&module, image);
    }
    fl_status status = fl__cudalike_finish(c, previous, code, asked,
                                           "loading a code object on device %d: ", device);
    if (status == FL_OK) {
        *out_module = module;
    }
    return status;
}

static fl_status slot_module_function(void *ctx, fl_device device, void *module, const char *name,
                                      void **out_function) {
    const fl__cudalike *c = ctx;
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    void *function = NULL;
    int code = c->call.module_function(&function, module, name);
    fl_status status = fl__cudalike_finish(c, previous, code, FL__SYM_module_function,
                                           "looking for the function %s: ", name);
    if (status == FL_OK) {
        *out_function = function;
    }
    return status;
}

static fl_status slot_launch(void *ctx, fl_device device, void *function, const uint32_t grid[3],
                             const uint32_t block[3], uint32_t shared_bytes,
                             fl_native_stream stream, void **arguments) {
    const fl__cudalike *c = ctx;
    enum { SHARED_WITHOUT_ASKING = 48 * 1024, MAX_DYNAMIC_SHARED_SIZE = 8 };
    int previous;
    FL_TRY(fl__cudalike_enter(c, device, &previous));
    int code = 0;
    fl__cudalike_symbol asked = FL__SYM_function_attribute;
    if (shared_bytes > SHARED_WITHOUT_ASKING && c->call.function_attribute) {
        code = c->call.function_attribute(function, MAX_DYNAMIC_SHARED_SIZE, (int)shared_bytes);
    }
    if (!code) {
        asked = FL__SYM_launch;
        code = c->call.launch(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                              shared_bytes, stream, arguments, NULL);
    }
    return fl__cudalike_finish(c, previous, code, asked,
                               "launching (%u, %u, %u) blocks of (%u, %u, %u) on device %d: ",
                               grid[0], grid[1], grid[2], block[0], block[1], block[2], device);
}

void fl__cudalike_stream_slots(fl_driver *table) {
    table->stream_create = slot_stream_create;
    table->stream_destroy = slot_stream_destroy;
    table->stream_query = slot_stream_query;
    table->stream_synchronize = slot_stream_synchronize;
    table->event_create = slot_event_create;
    table->event_destroy = slot_event_destroy;
    table->event_record = slot_event_record;
    table->event_query = slot_event_query;
    table->event_synchronize = slot_event_synchronize;
    table->stream_wait_event = slot_stream_wait_event;
    table->stream_priority_range = slot_stream_priority_range;
    table->event_elapsed_ms = slot_event_elapsed_ms;
    table->stream_host_call = slot_stream_host_call;
    table->stream_is_capturing = slot_stream_is_capturing;
    table->module_load = slot_module_load;
    table->module_function = slot_module_function;
    table->launch = slot_launch;
}
