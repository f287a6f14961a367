/*
 * stream.c: streams as small values, the pools, the calling thread's current stream.
 *
 * Relies on device.c to initialise. Looking up a vendor's handle takes no lock; making streams
 * takes the device's. Streams live until the process ends, but those that are released. Does not
 * know what runs on a stream.
 *
 * A value is packed from the low bits up:
 *   bits 0..3    kind; the default stream is kind 0 and the value 0
 *   bits 4..31   pool: 5 bits place, then the rank of the priority; own and wrapped: place in the
 *                device's table of entries
 *   bits 32..62  own: generation of the place, so that a released stream's value is recognised
 */
#include "fl/stream.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/thread.h"
#include "driver/call.h"
#include "runtime/device.h"

typedef enum stream_kind {
    KIND_DEFAULT = 0,
    KIND_POOL = 1,
    KIND_OWN = 2,
    KIND_WRAPPED = 3,
} stream_kind;

enum {
    KIND_BITS = 4,
    POOL_BITS = 5,
    POOL_SIZE = 1 << POOL_BITS, /* As torch.cuda's, so that programs meet the same sharing. */
    RANK_MAX = 8,               /* Levels of priority that get a pool of their own. */
    CHUNK_SIZE = 64,            /* Entries that are allocated at a time. */
    CHUNK_MAX = 1024,
    ENTRY_MAX = CHUNK_SIZE * CHUNK_MAX,
};

/* A stream of the pool or the default stream; made on first use. */
typedef struct made_stream {
    fl_native_stream native;
    bool is_made; /* Atomic; publishes `native`, which may be NULL. */
} made_stream;

/* An own or wrapped stream. Fields are stored under the lock, atomically, because values are looked
 * up without it. */
typedef struct entry {
    fl_native_stream native;
    int32_t priority;
    uint32_t
        generation;   /* Of the value that is valid now; counts up when an own one is released. */
    stream_kind kind; /* KIND_DEFAULT: free. */
} entry;

typedef struct device_streams {
    fl__mutex lock; /* Guards all stores. */
    int32_t least, greatest;
    int32_t rank_count; /* 1..RANK_MAX */
    made_stream standard;
    made_stream pool[RANK_MAX][POOL_SIZE];
    uint32_t next[RANK_MAX]; /* Atomic; the place handed out next. */
    entry *chunks[CHUNK_MAX];
    uint32_t entry_count; /* Atomic; entries ever used. */
} device_streams;

/* Made on first use of a device's streams, kept as long as the process. */
static device_streams *all_streams[FL_DEVICE_MAX];
static fl__mutex all_streams_lock = FL__MUTEX_INIT;

static FL_THREAD_LOCAL fl_stream current_streams[FL_DEVICE_MAX];

/* --- packing --------------------------------------------------------------------------------- */

static_assert(FL_STREAM_DEFAULT == 0, "the default stream has kind 0 and nothing else");

static fl_stream pack_pool(int32_t rank, uint32_t place) {
    return (fl_stream)KIND_POOL | ((fl_stream)place << KIND_BITS) |
           ((fl_stream)rank << (KIND_BITS + POOL_BITS));
}

static fl_stream pack_entry(stream_kind kind, uint32_t place, uint32_t generation) {
    return (fl_stream)kind | ((fl_stream)place << KIND_BITS) | ((fl_stream)generation << 32);
}

static stream_kind kind_of(fl_stream stream) {
    return (stream_kind)(stream & ((1 << KIND_BITS) - 1));
}

/* Rest of the low half: for a pool stream place and rank, else the entry's place. */
static uint32_t place_of(fl_stream stream) {
    return (uint32_t)((stream >> KIND_BITS) & ((1 << (32 - KIND_BITS)) - 1));
}

static uint32_t generation_of(fl_stream stream) {
    return (uint32_t)((uint64_t)stream >> 32);
}

static fl_status fail_unknown(fl_device device, fl_stream stream) {
    return fl_fail(FL_INVALID_ARGUMENT,
                   "0x%" PRIx64 " is no stream of device %d, or one that was released",
                   (uint64_t)stream, device);
}

/* --- a device's streams ---------------------------------------------------------------------- */

static fl_status make_device_streams(const fl_driver *drv, fl_device device,
                                     device_streams **out_streams) {
    device_streams *streams = calloc(1, sizeof(*streams));
    if (!streams) {
        return fl_fail(FL_OUT_OF_MEMORY, "no host memory for the streams of device %d", device);
    }
    fl_status status =
        fl__drv_stream_priority_range(drv, device, &streams->least, &streams->greatest);
    if (status) {
        free(streams);
        return status;
    }
    if (streams->greatest > streams->least) {
        streams->greatest = streams->least;
    }
    int64_t levels = (int64_t)streams->least - streams->greatest + 1;
    streams->rank_count = (int32_t)(levels < RANK_MAX ? levels : RANK_MAX);
    (void)pthread_mutex_init(&streams->lock, NULL);
    if (fl__drv_has(drv, FL_CAP_SYNCHRONOUS) || fl__drv_has(drv, FL_CAP_DEFAULT_STREAM)) {
        streams->standard = (made_stream){.native = NULL, .is_made = true};
    }
    *out_streams = streams;
    return FL_OK;
}

/* The common first lines: the device's streams, made if need be. */
static fl_status enter(fl_device *device, const fl_driver **out_driver,
                       device_streams **out_streams) {
    FL_TRY(fl__device_enter(device, out_driver));
    device_streams *streams = __atomic_load_n(&all_streams[*device], __ATOMIC_ACQUIRE);
    fl_status status = FL_OK;
    if (__builtin_expect(!streams, 0)) {
        fl__lock(&all_streams_lock);
        streams = all_streams[*device];
        if (!streams) {
            status = make_device_streams(*out_driver, *device, &streams);
            if (!status) {
                __atomic_store_n(&all_streams[*device], streams, __ATOMIC_RELEASE);
            }
        }
        fl__unlock(&all_streams_lock);
    }
    if (!status) {
        *out_streams = streams;
    }
    return status;
}

static int32_t rank_of(const device_streams *streams, int32_t priority) {
    int64_t rank = (int64_t)streams->least - priority;
    if (rank < 0) {
        return 0;
    }
    return rank < streams->rank_count ? (int32_t)rank : streams->rank_count - 1;
}

static fl_status make_stream(const fl_driver *drv, fl_device device, device_streams *streams,
                             int32_t priority, made_stream *made) {
    if (__atomic_load_n(&made->is_made, __ATOMIC_ACQUIRE)) {
        return FL_OK;
    }
    fl_status status = FL_OK;
    fl__lock(&streams->lock);
    if (!made->is_made) {
        status = fl__drv_stream_create(drv, device, priority, &made->native);
        if (!status) {
            __atomic_store_n(&made->is_made, true, __ATOMIC_RELEASE);
            fl_trace(FL_TRACE_STREAM, "%s:%d: made stream %p of priority %d", drv->name, device,
                     made->native, priority);
        }
    }
    fl__unlock(&streams->lock);
    return status;
}

/* The entry of an own or wrapped stream's value; NULL if the value is none of ours. */
static entry *find_entry(device_streams *streams, fl_stream stream) {
    uint32_t place = place_of(stream);
    if (place >= __atomic_load_n(&streams->entry_count, __ATOMIC_ACQUIRE)) {
        return NULL;
    }
    entry *found = &streams->chunks[place / CHUNK_SIZE][place % CHUNK_SIZE];
    bool same = __atomic_load_n(&found->kind, __ATOMIC_ACQUIRE) == kind_of(stream) &&
                __atomic_load_n(&found->generation, __ATOMIC_ACQUIRE) == generation_of(stream);
    return same ? found : NULL;
}

/* Under the lock: a free entry, an old place before a new one. */
static fl_status take_entry(device_streams *streams, uint32_t *out_place) {
    uint32_t count = streams->entry_count;
    for (uint32_t place = 0; place < count; place++) {
        if (streams->chunks[place / CHUNK_SIZE][place % CHUNK_SIZE].kind == KIND_DEFAULT) {
            *out_place = place;
            return FL_OK;
        }
    }
    if (count == ENTRY_MAX) {
        return fl_fail(FL_OUT_OF_RANGE, "there are %d streams of one device already", ENTRY_MAX);
    }
    if (count % CHUNK_SIZE == 0 && !streams->chunks[count / CHUNK_SIZE]) {
        entry *chunk = calloc(CHUNK_SIZE, sizeof(*chunk));
        if (!chunk) {
            return fl_fail(FL_OUT_OF_MEMORY, "no host memory for another stream");
        }
        streams->chunks[count / CHUNK_SIZE] = chunk;
    }
    __atomic_store_n(&streams->entry_count, count + 1, __ATOMIC_RELEASE);
    *out_place = count;
    return FL_OK;
}

/* Under the lock. */
static fl_stream fill_entry(device_streams *streams, uint32_t place, stream_kind kind,
                            fl_native_stream native, int32_t priority) {
    entry *filled = &streams->chunks[place / CHUNK_SIZE][place % CHUNK_SIZE];
    __atomic_store_n(&filled->native, native, __ATOMIC_RELAXED);
    __atomic_store_n(&filled->priority, priority, __ATOMIC_RELAXED);
    __atomic_store_n(&filled->kind, kind, __ATOMIC_RELEASE);
    return pack_entry(kind, place, filled->generation);
}

/* --- making streams -------------------------------------------------------------------------- */

fl_status fl_stream_from_pool(fl_device device, int32_t priority, fl_stream *out_stream) {
    const fl_driver *drv = NULL;
    device_streams *streams = NULL;
    FL_TRY(enter(&device, &drv, &streams));
    int32_t rank = rank_of(streams, priority);
    uint32_t place =
        __atomic_fetch_add(&streams->next[rank], 1, __ATOMIC_RELAXED) & (POOL_SIZE - 1);
    FL_TRY(make_stream(drv, device, streams, streams->least - rank, &streams->pool[rank][place]));
    *out_stream = pack_pool(rank, place);
    return FL_OK;
}

fl_status fl_stream_create(fl_device device, int32_t priority, fl_stream *out_stream) {
    const fl_driver *drv = NULL;
    device_streams *streams = NULL;
    FL_TRY(enter(&device, &drv, &streams));
    int32_t used_priority = streams->least - rank_of(streams, priority);
    uint32_t place = 0;
    fl_native_stream native = NULL;
    fl__lock(&streams->lock);
    fl_status status = take_entry(streams, &place);
    if (!status) {
        status = fl__drv_stream_create(drv, device, used_priority, &native);
    }
    if (!status) {
        *out_stream = fill_entry(streams, place, KIND_OWN, native, used_priority);
        fl_trace(FL_TRACE_STREAM, "%s:%d: made stream %p of its own", drv->name, device, native);
    }
    fl__unlock(&streams->lock);
    return status;
}

fl_status fl_stream_release(fl_device device, fl_stream stream) {
    const fl_driver *drv = NULL;
    device_streams *streams = NULL;
    FL_TRY(enter(&device, &drv, &streams));
    if (kind_of(stream) != KIND_OWN) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "0x%" PRIx64 " of device %d was not made by fl_stream_create",
                       (uint64_t)stream, device);
    }
    fl__lock(&streams->lock);
    entry *own = find_entry(streams, stream);
    fl_status status =
        own ? fl__drv_stream_destroy(drv, device, own->native) : fail_unknown(device, stream);
    if (!status) {
        __atomic_store_n(&own->kind, KIND_DEFAULT, __ATOMIC_RELEASE);
        /* 31 bits, so that values stay positive. */
        __atomic_store_n(&own->generation, (own->generation + 1) & INT32_MAX, __ATOMIC_RELEASE);
    }
    fl__unlock(&streams->lock);
    return status;
}

fl_status fl_stream_wrap(fl_device device, fl_native_stream native, fl_stream *out_stream) {
    const fl_driver *drv = NULL;
    device_streams *streams = NULL;
    FL_TRY(enter(&device, &drv, &streams));
    fl_status status = FL_OK;
    fl__lock(&streams->lock);
    if (streams->standard.is_made && streams->standard.native == native) {
        *out_stream = FL_STREAM_DEFAULT;
        goto done;
    }
    for (uint32_t place = 0; place < streams->entry_count; place++) {
        const entry *one = &streams->chunks[place / CHUNK_SIZE][place % CHUNK_SIZE];
        if (one->kind != KIND_DEFAULT && one->native == native) {
            *out_stream = pack_entry(one->kind, place, one->generation);
            goto done;
        }
    }
    for (int32_t rank = 0; rank < streams->rank_count; rank++) {
        for (uint32_t place = 0; place < POOL_SIZE; place++) {
            const made_stream *one = &streams->pool[rank][place];
            if (one->is_made && one->native == native) {
                *out_stream = pack_pool(rank, place);
                goto done;
            }
        }
    }
    uint32_t place = 0;
    status = take_entry(streams, &place);
    if (!status) {
        *out_stream = fill_entry(streams, place, KIND_WRAPPED, native, 0);
    }
done:
    fl__unlock(&streams->lock);
    return status;
}

/* --- looking streams up ---------------------------------------------------------------------- */

static fl_status look_up(const fl_driver *drv, fl_device device, device_streams *streams,
                         fl_stream stream, fl_native_stream *out_native, int32_t *out_priority) {
    if (stream == FL_STREAM_DEFAULT) {
        int32_t normal = streams->least - rank_of(streams, 0);
        FL_TRY(make_stream(drv, device, streams, normal, &streams->standard));
        *out_native = streams->standard.native;
        *out_priority = normal;
        return FL_OK;
    }
    if (kind_of(stream) == KIND_POOL && generation_of(stream) == 0) {
        uint32_t place = place_of(stream);
        uint32_t rank = place >> POOL_BITS;
        if (rank >= (uint32_t)streams->rank_count) {
            return fail_unknown(device, stream);
        }
        int32_t priority = streams->least - (int32_t)rank;
        made_stream *made = &streams->pool[rank][place & (POOL_SIZE - 1)];
        /* A value that came over from another process of the same program is good as well. */
        FL_TRY(make_stream(drv, device, streams, priority, made));
        *out_native = made->native;
        *out_priority = priority;
        return FL_OK;
    }
    if (kind_of(stream) == KIND_OWN || kind_of(stream) == KIND_WRAPPED) {
        const entry *found = find_entry(streams, stream);
        if (found) {
            *out_native = __atomic_load_n(&found->native, __ATOMIC_RELAXED);
            *out_priority = __atomic_load_n(&found->priority, __ATOMIC_RELAXED);
            return FL_OK;
        }
    }
    return fail_unknown(device, stream);
}

/* Device, driver and vendor's handle of a stream, for the functions below. */
static fl_status resolve(fl_device *device, fl_stream stream, const fl_driver **out_driver,
                         fl_native_stream *out_native, int32_t *out_priority) {
    device_streams *streams = NULL;
    FL_TRY(enter(device, out_driver, &streams));
    return look_up(*out_driver, *device, streams, stream, out_native, out_priority);
}

fl_status fl_stream_native(fl_device device, fl_stream stream, fl_native_stream *out_native) {
    const fl_driver *drv = NULL;
    int32_t priority = 0;
    return resolve(&device, stream, &drv, out_native, &priority);
}

fl_status fl_stream_priority(fl_device device, fl_stream stream, int32_t *out_priority) {
    const fl_driver *drv = NULL;
    fl_native_stream native = NULL;
    return resolve(&device, stream, &drv, &native, out_priority);
}

fl_status fl_stream_priority_range(fl_device device, int32_t *out_least, int32_t *out_greatest) {
    const fl_driver *drv = NULL;
    device_streams *streams = NULL;
    FL_TRY(enter(&device, &drv, &streams));
    *out_least = streams->least;
    *out_greatest = streams->least - (streams->rank_count - 1);
    return FL_OK;
}

fl_status fl_stream_query(fl_device device, fl_stream stream) {
    const fl_driver *drv = NULL;
    fl_native_stream native = NULL;
    int32_t priority = 0;
    FL_TRY(resolve(&device, stream, &drv, &native, &priority));
    return fl__drv_stream_query(drv, device, native);
}

fl_status fl_stream_synchronize(fl_device device, fl_stream stream) {
    const fl_driver *drv = NULL;
    fl_native_stream native = NULL;
    int32_t priority = 0;
    FL_TRY(resolve(&device, stream, &drv, &native, &priority));
    return fl__drv_stream_synchronize(drv, device, native);
}

fl_status fl_stream_host_call(fl_device device, fl_stream stream, void (*function)(void *argument),
                              void *argument) {
    const fl_driver *drv = NULL;
    fl_native_stream native = NULL;
    int32_t priority = 0;
    FL_TRY(resolve(&device, stream, &drv, &native, &priority));
    return fl__drv_stream_host_call(drv, device, native, function, argument);
}

/* --- current --------------------------------------------------------------------------------- */

fl_stream fl_stream_current(fl_device device) {
    fl_device index = device == FL_DEVICE_CURRENT ? fl_device_current() : device;
    return index >= 0 && index < FL_DEVICE_MAX ? current_streams[index] : FL_STREAM_DEFAULT;
}

fl_status fl_stream_set_current(fl_device device, fl_stream stream) {
    const fl_driver *drv = NULL;
    if (stream == FL_STREAM_DEFAULT) {
        FL_TRY(fl__device_enter(&device, &drv)); /* Going back makes no stream. */
    } else {
        fl_native_stream native = NULL;
        int32_t priority = 0;
        FL_TRY(resolve(&device, stream, &drv, &native, &priority));
    }
    current_streams[device] = stream;
    return FL_OK;
}
