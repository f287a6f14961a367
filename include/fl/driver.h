/*
 * driver.h: seam B, what a vendor supplies.
 *
 * A driver is a table of C functions over a vendor's runtime: memory, copies, streams, events. It
 * keeps no policy: no cache, no current stream, no pointer map. This header and the two it includes
 * are all that the author of a driver reads.
 *
 * Rules for every slot:
 *  - `ctx` is the driver's own pointer, passed back unread.
 *  - A slot that takes a device makes it current for the vendor if the vendor needs that, on the
 *    calling thread. Callers pass valid indexes: 0 <= device < device_count.
 *  - Slots may be called from any thread at once.
 *  - A failure is reported with fl_fail_vendor(status, vendor code, "what we did: function:
 * vendor's words"), and leaves no sticky error behind in the vendor's runtime. The core adds words
 *    to a failure without any. Texts are UTF-8; other bytes are shown as '?'.
 *  - FL_NOT_READY is the answer of stream_query, event_query and event_elapsed_ms only.
 *  - Sizes are bytes. A size of 0 never reaches a slot, nor does a NULL pointer to free.
 *  - "asynchronous" means ordered after earlier work of the same stream; the call may return before
 *    the work has run, and may also wait for it where the vendor cannot do better.
 */
#ifndef FL_DRIVER_H
#define FL_DRIVER_H

#include "fl/status.h"
#include "fl/types.h"

FL_EXTERN_C_BEGIN

/* Raised whenever the table changes. The core takes tables of this version and refuses newer ones,
 * so a driver is compiled against the headers of the core that it is for. */
#define FL_DRIVER_VERSION 1u

#define FL_DEVICE_NAME_MAX 256

typedef struct fl_device_properties {
    char name[FL_DEVICE_NAME_MAX]; /* As the vendor spells it; never empty. */
    uint64_t total_memory;         /* Bytes; 0 if the vendor does not say. */
    int32_t major, minor;          /* Compute capability; 0, 0 if there is no such notion. */
    int32_t processor_count;       /* Multiprocessors, AI cores or CPU threads; 0 if unknown. */
    int32_t warp_size;             /* Threads that run in step; 0 if there is no such notion. */
    bool integrated;               /* Device memory is host memory. */
    char uuid[64];                 /* Text, "" if unknown. */
} fl_device_properties;

typedef enum fl_copy_kind {
    FL_COPY_HOST_TO_HOST = 0, /* Numbers agree with every known vendor's 0..3. */
    FL_COPY_HOST_TO_DEVICE = 1,
    FL_COPY_DEVICE_TO_HOST = 2,
    FL_COPY_DEVICE_TO_DEVICE = 3, /* Both on the device that the call names. */
} fl_copy_kind;

/* Ours; a driver translates. */
typedef enum fl_event_flag {
    FL_EVENT_TIMING = 1 << 0,        /* Elapsed time will be asked for. */
    FL_EVENT_BLOCKING_SYNC = 1 << 1, /* A waiting host thread should sleep, not spin. */
    FL_EVENT_INTERPROCESS = 1 << 2,
} fl_event_flag;

typedef enum fl_driver_capability {
    FL_CAP_HOST_READS_DEVICE = 1 << 0, /* A host pointer may read and write device memory. */
    FL_CAP_SYNCHRONOUS = 1 << 1,       /* Every call has finished when it returns. */
    FL_CAP_HOST_FUNCTIONS = 1 << 2,    /* stream_host_call may touch device memory: sim, host. */
    FL_CAP_DEFAULT_STREAM = 1 << 3,    /* NULL is each device's default stream; none is made. */
} fl_driver_capability;

/* Something that a vendor's runtime cannot do. The conformance suite expects the named case to fail
 * and reports an unexpected pass as a failure, so that the list stays true. */
typedef struct fl_driver_limit {
    const char *case_name; /* As the suite prints it: "stream.priority"; NULL ends a list. */
    const char *reason;
} fl_driver_limit;

typedef struct fl_driver {
    /* --- version 1 ------------------------------------------------------------------------- */
    uint32_t struct_size; /* sizeof(fl_driver) where the driver was compiled. */
    uint32_t version;     /* FL_DRIVER_VERSION where the driver was compiled. */
    /* Small letters, digits, '-' and '_', as in TORCH_FL_PLATFORM; no other platform's. Static. */
    const char *name;
    void *ctx;
    uint32_t capabilities; /* Bits of fl_driver_capability. */

    /* Required: devices. */
    /* Before all else: by the probe and at first use, so a second call does nothing. Makes no
     * context if the vendor allows that. */
    fl_status (*init)(void *ctx);
    /* 0 with FL_OK when the runtime is there but no device is. */
    fl_status (*device_count)(void *ctx, int32_t *out_count);
    fl_status (*device_properties)(void *ctx, fl_device device, fl_device_properties *out);
    /* Wait for all work of the device. */
    fl_status (*device_synchronize)(void *ctx, fl_device device);

    /* Required: memory. Device blocks are aligned to 256 bytes or more. */
    fl_status (*mem_alloc)(void *ctx, fl_device device, size_t bytes, void **out_ptr);
    /* May wait for the device; callers have made sure that nothing uses the block. */
    fl_status (*mem_free)(void *ctx, fl_device device, void *ptr);
    /* Page-locked host memory, usable by copies of every device. */
    fl_status (*host_alloc)(void *ctx, size_t bytes, void **out_ptr);
    fl_status (*host_free)(void *ctx, void *ptr);
    /* Asynchronous copy of plain bytes; ranges do not overlap. With pageable host memory the driver
     * may return late, but never before it has read a pageable source. */
    fl_status (*copy)(void *ctx, fl_device device, void *dst, const void *src, size_t bytes,
                      fl_copy_kind kind, fl_native_stream stream);
    /* Asynchronous fill of device memory with one byte. */
    fl_status (*fill)(void *ctx, fl_device device, void *dst, uint8_t value, size_t bytes,
                      fl_native_stream stream);

    /* Required: streams. A stream never synchronises implicitly with another one. */
    /* Lower `priority` is more urgent; the driver clamps to its range. */
    fl_status (*stream_create)(void *ctx, fl_device device, int32_t priority,
                               fl_native_stream *out_stream);
    fl_status (*stream_destroy)(void *ctx, fl_device device, fl_native_stream stream);
    /* FL_OK when everything has run, else FL_NOT_READY (no message is recorded), else an error. */
    fl_status (*stream_query)(void *ctx, fl_device device, fl_native_stream stream);
    fl_status (*stream_synchronize)(void *ctx, fl_device device, fl_native_stream stream);

    /* Required: events. An event that was never recorded counts as done. */
    fl_status (*event_create)(void *ctx, fl_device device, uint32_t flags,
                              fl_native_event *out_event);
    fl_status (*event_destroy)(void *ctx, fl_device device, fl_native_event event);
    fl_status (*event_record)(void *ctx, fl_device device, fl_native_event event,
                              fl_native_stream stream);
    fl_status (*event_query)(void *ctx, fl_device device, fl_native_event event);
    fl_status (*event_synchronize)(void *ctx, fl_device device, fl_native_event event);
    /* Later work of `stream` (which may belong to another device) waits for the event's last
     * record; `device` is the stream's. */
    fl_status (*stream_wait_event)(void *ctx, fl_device device, fl_native_stream stream,
                                   fl_native_event event);

    /* (optional) Free and total bytes; NULL: memory information is not supported. */
    fl_status (*mem_info)(void *ctx, fl_device device, uint64_t *out_free, uint64_t *out_total);
    /* (optional) Priorities, urgent is lower; NULL: least = greatest = 0. */
    fl_status (*stream_priority_range)(void *ctx, fl_device device, int32_t *out_least,
                                       int32_t *out_greatest);
    /* (optional) Milliseconds between two recorded timing events; NULL: not supported. */
    fl_status (*event_elapsed_ms)(void *ctx, fl_device device, fl_native_event start,
                                  fl_native_event end, double *out_ms);
    /* (optional) Whether copy_peer works without the host; NULL: never. */
    fl_status (*peer_can_access)(void *ctx, fl_device device, fl_device peer, bool *out_can);
    /* (optional) Asynchronous copy between devices on a stream of the source's device; NULL: the
     * copy runner goes through the host. */
    fl_status (*copy_peer)(void *ctx, void *dst, fl_device dst_device, const void *src,
                           fl_device src_device, size_t bytes, fl_native_stream stream);
    /* (optional) Asynchronous copy of `rows` runs of `width` bytes; pitches are bytes between run
     * starts. NULL: the copy runner copies run by run or uses a kernel. */
    fl_status (*copy_2d)(void *ctx, fl_device device, void *dst, size_t dst_pitch, const void *src,
                         size_t src_pitch, size_t width, size_t rows, fl_copy_kind kind,
                         fl_native_stream stream);
    /* (optional) Run a host function in stream order, on a thread of the driver. It must not call
     * the driver. NULL: not supported. */
    fl_status (*stream_host_call)(void *ctx, fl_device device, fl_native_stream stream,
                                  void (*function)(void *argument), void *argument);
    /* (optional) Whether the stream records a graph at present; NULL: never. */
    fl_status (*stream_is_capturing)(void *ctx, fl_device device, fl_native_stream stream,
                                     bool *out_capturing);
    /* (optional) Load a code object (cubin, fatbin) and find a function in it; NULL: kernels of
     * ours cannot run there. Modules live until the process ends. */
    fl_status (*module_load)(void *ctx, fl_device device, const void *image, size_t bytes,
                             void **out_module);
    fl_status (*module_function)(void *ctx, fl_device device, void *module, const char *name,
                                 void **out_function);
    /* (optional) Start a function on a grid of blocks; `arguments` holds a pointer to each one. */
    fl_status (*launch)(void *ctx, fl_device device, void *function, const uint32_t grid[3],
                        const uint32_t block[3], uint32_t shared_bytes, fl_native_stream stream,
                        void **arguments);
    /* (optional) What this driver cannot do, ended by a NULL case_name; NULL: nothing to declare.
     * Static. */
    const fl_driver_limit *limits;
    /* --- end of version 1 ------------------------------------------------------------------- */
} fl_driver;

/* The one symbol of a driver that comes as a shared object of its own: returns its table, or NULL
 * after fl_fail. `version` is the core's; a table of a later one is refused. */
#define FL_DRIVER_QUERY_SYMBOL "fl_driver_query"
typedef const fl_driver *(*fl_driver_query_function)(uint32_t version);

/* --- platforms -------------------------------------------------------------------------------- */

typedef enum fl_twin {
    FL_TWIN_NONE = 0, /* Operators come from our kernels, libraries and the CPU. */
    FL_TWIN_CPU,      /* The host's own PyTorch kernels work on this memory. */
    FL_TWIN_CUDA,     /* PyTorch's CUDA key answers for this memory. */
} fl_twin;

/* A driver and a twin under one name: what TORCH_FL_PLATFORM chooses among. */
typedef struct fl_platform {
    const char *name; /* Static. */
    fl_twin twin;
    int32_t probe_order; /* Lower is tried first; negative: only when asked for by name. */
    /* Says without making a context whether the platform can work here; on any status but FL_OK the
     * last message is the reason shown to people. */
    fl_status (*probe)(const struct fl_platform *platform);
    /* The driver; called once, after a successful probe or because the name was asked for. */
    fl_status (*open)(const struct fl_platform *platform, const fl_driver **out_driver);
    const void *data; /* For probe and open: a row of a table, for instance. */
} fl_platform;

/* Add a platform to the list (the adapter adds those that PyTorch itself drives). The struct must
 * live as long as the process. FL_WRONG_STATE once a platform was chosen or the name is taken. */
FL_API fl_status fl_platform_register(const fl_platform *platform);

/* Makes the driver of a platform that PyTorch drives. `runtime` is the driver of the same vendor
 * runtime without PyTorch, whose slots without policy may be reused; NULL where it is not there. */
typedef fl_status (*fl_twin_open_function)(const fl_platform *platform, const fl_driver *runtime,
                                           const fl_driver **out_driver);

/* The adapter says that this PyTorch answers to the twin's key, which makes the twin's platforms
 * available. FL_WRONG_STATE once a platform was chosen. */
FL_API fl_status fl_twin_register(fl_twin twin, fl_twin_open_function open);

/* Choose, once a process: `name`, or when it is NULL the option TORCH_FL_PLATFORM, or else the
 * first platform in probe order whose probe succeeds. Choosing the same one again is FL_OK;
 * choosing another is FL_WRONG_STATE. An unknown name's message lists the known ones. The driver is
 * opened and its table checked (size, version, required slots), but not initialised: see device.h.
 */
FL_API fl_status fl_platform_choose(const char *name, const fl_platform **out_platform);

/* The chosen platform, NULL before the choice. */
FL_API const fl_platform *fl_platform_chosen(void);

/* The chosen driver, NULL before the choice. For files that are drivers' neighbours (conformance
 * suite, kernel tables); policy goes through src/driver/call.h. */
FL_API const fl_driver *fl_platform_driver(void);

/* What is known of each platform, for `python -m torch_fl info`: one call of `visit` a platform in
 * probe order; `reason` says why it cannot be used, NULL where it can. */
FL_API void fl_platform_each(void (*visit)(void *user, const fl_platform *platform,
                                           const char *reason),
                             void *user);

/* Check a table as the registry does; the message says what is missing. */
FL_API fl_status fl_driver_check(const fl_driver *driver);

FL_EXTERN_C_END
#endif
