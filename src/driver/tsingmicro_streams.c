/*
 * tsingmicro_streams.c: streams and events of the driver over the TX runtime. Must not know other
 * vendors.
 */
#include "driver/tsingmicro_table.h"

#include <stddef.h>

/* --- streams ---------------------------------------------------------------------------------- */

static fl_status slot_stream_create(void *ctx, fl_device device, int32_t priority,
                                    fl_native_stream *out_stream) {
    (void)ctx;
    (void)priority; /* All streams are alike. */
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    void *stream = NULL;
    int code = fl__tx.create_stream(&stream);
    fl_status status =
        fl__tx_finish(previous, code, "txStreamCreate", "creating a stream on device %d: ", device);
    if (status == FL_OK) {
        *out_stream = stream;
    }
    return status;
}

static fl_status slot_stream_destroy(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    return fl__tx_finish(previous, fl__tx.destroy_stream(stream), "txStreamDestroy",
                         "destroying a stream of device %d: ", device);
}

static fl_status slot_stream_query(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    return fl__tx_finish(previous, fl__tx.stream_query(stream), "txStreamQuery",
                         "asking a stream of device %d: ", device);
}

static fl_status slot_stream_synchronize(void *ctx, fl_device device, fl_native_stream stream) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    return fl__tx_finish(previous, fl__tx.synchronize_stream(stream), "txStreamSynchronize",
                         "waiting for a stream of device %d: ", device);
}

static fl_status slot_stream_wait_event(void *ctx, fl_device device, fl_native_stream stream,
                                        fl_native_event event) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    return fl__tx_finish(previous, fl__tx.stream_wait_event(stream, event), "txStreamWaitEvent",
                         "making a stream of device %d wait: ", device);
}

static fl_status slot_stream_host_call(void *ctx, fl_device device, fl_native_stream stream,
                                       void (*function)(void *argument), void *argument) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    return fl__tx_finish(previous, fl__tx.launch_host_func(stream, function, argument),
                         "txLaunchHostFunc", "queueing a host function on device %d: ", device);
}

/* --- events ----------------------------------------------------------------------------------- */

static fl_status slot_event_create(void *ctx, fl_device device, uint32_t flags,
                                   fl_native_event *out_event) {
    (void)ctx;
    (void)flags; /* Every event keeps its time. */
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    void *event = NULL;
    int code = fl__tx.create_event(&event);
    fl_status status =
        fl__tx_finish(previous, code, "txEventCreate", "creating an event on device %d: ", device);
    if (status == FL_OK) {
        *out_event = event;
    }
    return status;
}

static fl_status slot_event_destroy(void *ctx, fl_device device, fl_native_event event) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    return fl__tx_finish(previous, fl__tx.destroy_event(event), "txEventDestroy",
                         "destroying an event of device %d: ", device);
}

static fl_status slot_event_record(void *ctx, fl_device device, fl_native_event event,
                                   fl_native_stream stream) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    return fl__tx_finish(previous, fl__tx.record_event(event, stream), "txEventRecord",
                         "recording an event on device %d: ", device);
}

static fl_status slot_event_query(void *ctx, fl_device device, fl_native_event event) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    return fl__tx_finish(previous, fl__tx.query_event(event), "txEventQuery",
                         "asking an event of device %d: ", device);
}

static fl_status slot_event_synchronize(void *ctx, fl_device device, fl_native_event event) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    return fl__tx_finish(previous, fl__tx.synchronize_event(event), "txEventSynchronize",
                         "waiting for an event of device %d: ", device);
}

static fl_status slot_event_elapsed_ms(void *ctx, fl_device device, fl_native_event start,
                                       fl_native_event end, double *out_ms) {
    (void)ctx;
    int64_t previous;
    FL_TRY(fl__tx_enter(device, &previous));
    float ms = 0;
    int code = fl__tx.elapsed(&ms, start, end);
    fl_status status = fl__tx_finish(previous, code, "txEventElapsedTime",
                                     "reading a time on device %d: ", device);
    if (status == FL_OK) {
        *out_ms = (double)ms;
    }
    return status;
}

void fl__tx_stream_slots(fl_driver *table) {
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
    table->event_elapsed_ms = fl__tx.elapsed ? slot_event_elapsed_ms : NULL;
    table->stream_host_call = fl__tx.launch_host_func ? slot_stream_host_call : NULL;
}
