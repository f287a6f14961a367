/*
 * stream.h: streams of a device, the calling thread's current one, events.
 *
 * A stream is a 64-bit value that means something together with its device: 0 is the default
 * stream, others come from a fixed pool by priority (round robin), from fl_stream_create, or wrap a
 * vendor's stream that somebody else owns. Values stay valid as long as the process; pool streams
 * are shared, so two callers may get the same one, as with torch.cuda.
 */
#ifndef FL_STREAM_H
#define FL_STREAM_H

#include "fl/device.h"

FL_EXTERN_C_BEGIN

/* The calling thread's current stream of `device`; the default stream unless it was set. */
FL_API fl_stream fl_stream_current(fl_device device);
FL_API fl_status fl_stream_set_current(fl_device device, fl_stream stream);

/* A stream of the pool. `priority` 0 is normal, negative more urgent; clamped to the range. */
FL_API fl_status fl_stream_from_pool(fl_device device, int32_t priority, fl_stream *out_stream);

/* A stream of its own, never shared; it lives until fl_stream_release. */
FL_API fl_status fl_stream_create(fl_device device, int32_t priority, fl_stream *out_stream);
FL_API fl_status fl_stream_release(fl_device device, fl_stream stream);

/* A value for a vendor's stream that the caller owns and keeps alive. Wrapping the same handle
 * again gives the same value. */
FL_API fl_status fl_stream_wrap(fl_device device, fl_native_stream native, fl_stream *out_stream);

/* The vendor's handle. The default stream's may be a created one. */
FL_API fl_status fl_stream_native(fl_device device, fl_stream stream, fl_native_stream *out_native);

FL_API fl_status fl_stream_priority(fl_device device, fl_stream stream, int32_t *out_priority);
FL_API fl_status fl_stream_priority_range(fl_device device, int32_t *out_least,
                                          int32_t *out_greatest);

FL_API fl_status fl_stream_query(fl_device device, fl_stream stream); /* FL_OK or FL_NOT_READY. */
FL_API fl_status fl_stream_synchronize(fl_device device, fl_stream stream);

/* Run a function of the host in stream order, on a thread of the driver; it must not call the
 * library. Where the platform has FL_CAP_HOST_FUNCTIONS it may touch memory of the stream's device.
 * FL_NOT_SUPPORTED where the driver has no such thing. */
FL_API fl_status fl_stream_host_call(fl_device device, fl_stream stream,
                                     void (*function)(void *argument), void *argument);

/* An event; created on its device, reusable, used by one thread at a time. */
typedef struct fl_event fl_event;

FL_API fl_status fl_event_create(fl_device device, uint32_t flags, fl_event **out_event);
FL_API void fl_event_destroy(fl_event *event); /* NULL is allowed; never fails. */
/* `device` of the stream must be the event's. */
FL_API fl_status fl_event_record(fl_event *event, fl_device device, fl_stream stream);
/* The stream, of any device, waits; an event that was never recorded waits for nothing. */
FL_API fl_status fl_event_block(fl_event *event, fl_device device, fl_stream stream);
FL_API fl_status fl_event_query(fl_event *event); /* FL_OK or FL_NOT_READY. */
FL_API fl_status fl_event_synchronize(fl_event *event);
FL_API fl_status fl_event_elapsed_ms(fl_event *start, fl_event *end, double *out_ms);
FL_API fl_device fl_event_device(const fl_event *event);

FL_EXTERN_C_END
#endif
