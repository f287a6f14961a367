/*
 * ascend_streams.c: streams and events of the driver over AscendCL.
 *
 * The two queries answer through a pointer, and with opposite numbers. Must not know other vendors.
 */
#include "driver/ascend_table.h"

#include <stddef.h>

/* --- streams ---------------------------------------------------------------------------------- */

enum { GREATEST = 0, LEAST = 7 }; /* Of the header; small numbers are urgent. */

static fl_status slot_stream_create(void *ctx, fl_device device, int32_t priority,
                                    fl_native_stream *out_stream) {
    (void)ctx;
    enum { FAST_LAUNCH = 1, FAST_SYNC = 2 };
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    void *stream = NULL;
    const char *function = "aclrtCreateStream";
    int code;
    if (fl__acl.create_stream_config) {
        function = "aclrtCreateStreamWithConfig";
        int32_t own = priority < GREATEST ? GREATEST : priority > LEAST ? LEAST : priority;
        code = fl__acl.create_stream_config(&stream, (uint32_t)own, FAST_LAUNCH | FAST_SYNC);
    } else {
        code = fl__acl.create_stream(&stream);
    }
    fl_status status =
        fl__acl_finish(previous, code, function, "creating a stream on device %d: ", device);
    if (status == FL_OK) {
        *out_stream = stream;
    }
    return status;
}

/* The runtime wants a stream to be idle when it goes. */
static fl_status slot_stream_destroy(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    const char *function = "aclrtSynchronizeStream";
    int code = fl__acl.synchronize_stream(stream);
    if (code == 0) {
        function = "aclrtDestroyStream";
        code = fl__acl.destroy_stream(stream);
    }
    return fl__acl_finish(previous, code, function, "destroying a stream of device %d: ", device);
}

static fl_status slot_stream_query(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    enum { COMPLETE = 0 };
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    int answer = COMPLETE;
    int code = fl__acl.stream_query(stream, &answer);
    fl_status status = fl__acl_finish(previous, code, "aclrtStreamQuery",
                                      "asking a stream of device %d: ", device);
    return status ? status : answer == COMPLETE ? FL_OK : FL_NOT_READY;
}

static fl_status slot_stream_synchronize(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    return fl__acl_finish(previous, fl__acl.synchronize_stream(stream), "aclrtSynchronizeStream",
                          "waiting for a stream of device %d: ", device);
}

static fl_status slot_stream_wait_event(void *ctx, fl_device device, fl_native_stream stream,
                                        fl_native_event event) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    return fl__acl_finish(previous, fl__acl.stream_wait_event(stream, event),
                          "aclrtStreamWaitEvent", "making a stream of device %d wait: ", device);
}

static fl_status slot_stream_priority_range(void *ctx, fl_device device, int32_t *out_least,
                                            int32_t *out_greatest) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    int32_t least = LEAST, greatest = GREATEST;
    int code = fl__acl.priority_range(&least, &greatest);
    fl_status status = fl__acl_finish(previous, code, "aclrtDeviceGetStreamPriorityRange",
                                      "asking for the priorities of device %d: ", device);
    if (status == FL_OK) {
        *out_least = least;
        *out_greatest = greatest;
    }
    return status;
}

static fl_status slot_stream_host_call(void *ctx, fl_device device, fl_native_stream stream,
                                       void (*function)(void *argument), void *argument) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    return fl__acl_finish(previous, fl__acl.launch_host_func(stream, function, argument),
                          "aclrtLaunchHostFunc", "queueing a host function on device %d: ", device);
}

static fl_status slot_stream_is_capturing(void *ctx, fl_device device, fl_native_stream stream,
                                          bool *out_capturing) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    int state = 0; /* none, active, invalidated */
    void *graph = NULL;
    int code = fl__acl.capture_info(stream, &state, &graph);
    fl_status status = fl__acl_finish(previous, code, "aclmdlRICaptureGetInfo",
                                      "asking whether a stream of device %d captures: ", device);
    if (status == FL_OK) {
        *out_capturing = state != 0;
    }
    return status;
}

/* --- events ----------------------------------------------------------------------------------- */

static fl_status slot_event_create(void *ctx, fl_device device, uint32_t flags,
                                   fl_native_event *out_event) {
    (void)ctx;
    /* Without SYNC no stream could wait for it; timing is opted into; IPC stands alone. */
    enum { SYNC = 1, TIME_LINE = 8, IPC = 0x40 };
    uint32_t native = SYNC | (flags & FL_EVENT_TIMING ? TIME_LINE : 0u);
    if (flags & FL_EVENT_INTERPROCESS) {
        native = IPC;
    }
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    void *event = NULL;
    int code = fl__acl.create_event(&event, native);
    fl_status status = fl__acl_finish(previous, code, "aclrtCreateEventExWithFlag",
                                      "creating an event on device %d: ", device);
    if (status == FL_OK) {
        *out_event = event;
    }
    return status;
}

static fl_status slot_event_destroy(void *ctx, fl_device device, fl_native_event event) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    return fl__acl_finish(previous, fl__acl.destroy_event(event), "aclrtDestroyEvent",
                          "destroying an event of device %d: ", device);
}

static fl_status slot_event_record(void *ctx, fl_device device, fl_native_event event,
                                   fl_native_stream stream) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    return fl__acl_finish(previous, fl__acl.record_event(event, stream), "aclrtRecordEvent",
                          "recording an event on device %d: ", device);
}

static fl_status slot_event_query(void *ctx, fl_device device, fl_native_event event) {
    (void)ctx;
    enum { COMPLETE = 1 };
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    int answer = COMPLETE;
    int code = fl__acl.query_event(event, &answer);
    fl_status status = fl__acl_finish(previous, code, "aclrtQueryEventStatus",
                                      "asking an event of device %d: ", device);
    return status ? status : answer == COMPLETE ? FL_OK : FL_NOT_READY;
}

static fl_status slot_event_synchronize(void *ctx, fl_device device, fl_native_event event) {
    (void)ctx;
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    return fl__acl_finish(previous, fl__acl.synchronize_event(event), "aclrtSynchronizeEvent",
                          "waiting for an event of device %d: ", device);
}

/* The runtime answers a time only when both events have happened. */
static fl_status slot_event_elapsed_ms(void *ctx, fl_device device, fl_native_event start,
                                       fl_native_event end, double *out_ms) {
    FL_TRY(slot_event_query(ctx, device, start));
    FL_TRY(slot_event_query(ctx, device, end));
    int32_t previous;
    FL_TRY(fl__acl_enter(device, &previous));
    float ms = 0;
    fl_status status =
        fl__acl_finish(previous, fl__acl.elapsed(&ms, start, end), "aclrtEventElapsedTime",
                       "reading a time on device %d: ", device);
    if (status == FL_OK) {
        *out_ms = (double)ms;
    }
    return status;
}

void fl__acl_stream_slots(fl_driver *table) {
    bool has_priority = fl__acl.create_stream_config && fl__acl.priority_range;
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
    table->stream_priority_range = has_priority ? slot_stream_priority_range : NULL;
    table->event_elapsed_ms = fl__acl.elapsed ? slot_event_elapsed_ms : NULL;
    table->stream_host_call = fl__acl.launch_host_func ? slot_stream_host_call : NULL;
    table->stream_is_capturing = fl__acl.capture_info ? slot_stream_is_capturing : NULL;
}
