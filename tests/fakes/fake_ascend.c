/*
 * fake_ascend.c: libascendcl, with its habits: it must be initialised once, a thread has no device
 * until it sets one, sizes of 0 and NULL are errors, blocks are aligned to 64 bytes, a free waits
 * for nothing, handles belong to their device's context, copies on one device want 64 bytes of
 * alignment, asynchronous host to host copies are refused, events opt in to timing, the two queries
 * answer with opposite numbers, and the words for a failure are kept until they are fetched.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

static atomic_int initialised;
static _Thread_local int last_error;
static _Thread_local char message[256], fetched[256];

static int code_of(fake_result result) {
    static const int codes[] = {
        [FAKE_OK] = 0,
        [FAKE_NOT_READY] = 507006,
        [FAKE_INVALID_VALUE] = 107000,
        [FAKE_OUT_OF_MEMORY] = 207001,
        [FAKE_INVALID_DEVICE] = 107001,
        [FAKE_NO_DEVICE] = 207004,
        [FAKE_INVALID_HANDLE] = 107017,
        [FAKE_OTHER_CONTEXT] = 107003,
        [FAKE_NOT_TIMED] = 107006,
        [FAKE_PEER_ALREADY_ENABLED] = 0,
        [FAKE_PEER_NOT_ENABLED] = 107000,
        [FAKE_NOT_SUPPORTED] = 207000,
        [FAKE_NOT_PERMITTED] = 507014, /* Real ones hang. */
        [FAKE_BUSY] = 507899,
        [FAKE_ABSENT_DEVICE] = 107002,
        [FAKE_UNKNOWN] = 500000,
    };
    return codes[result];
}

static int answer_code(const char *function, int code) {
    if (code) {
        last_error = code;
        (void)snprintf(message, sizeof(message), "EZ9999: [fake] %s failed with %d", function,
                       code);
    }
    return code;
}

#define ANSWER(result) answer_code(__func__, code_of(result))

static int begin(const char *function, bool needs_init, bool needs_device) {
    bool in_host_function;
    int code = fake_begin(function, &in_host_function);
    if (in_host_function) {
        code = code_of(FAKE_NOT_PERMITTED);
    } else if (code == FAKE_DEFAULT_CODE) {
        code = 500000;
    } else if (code == 0 && needs_init && !atomic_load(&initialised)) {
        code = 100001;
    } else if (code == 0 && needs_device && fake_current_raw() == FAKE_NONE) {
        code = 107002;
    }
#ifdef FAKE_BROKEN_VERSION
    code = code ? code : 100039;
#endif
    return answer_code(function, code);
}

#define BEGIN_AS(needs_init, needs_device)                \
    int code = begin(__func__, needs_init, needs_device); \
    if (code) {                                           \
        return code;                                      \
    }
#define BEGIN() BEGIN_AS(true, true)

FAKE_EXPORT int aclrtGetLastError(int level) {
    (void)level;
    int code = last_error;
    last_error = 0;
    return code;
}

FAKE_EXPORT int aclrtPeekAtLastError(int level) {
    (void)level;
    return last_error;
}

FAKE_EXPORT const char *aclGetRecentErrMsg(void) {
    (void)snprintf(fetched, sizeof(fetched), "%s", message);
    message[0] = '\0';
    return fetched;
}

/* --- devices ---------------------------------------------------------------------------------- */

FAKE_EXPORT int aclInit(const char *path) {
    (void)path;
    BEGIN_AS(false, false);
    return answer_code(__func__, atomic_exchange(&initialised, 1) ? 100002 : 0);
}

FAKE_EXPORT int aclrtGetDeviceCount(uint32_t *count) {
    *count = 0;
    BEGIN_AS(true, false);
#ifdef FAKE_BROKEN_NO_DEVICE
    return ANSWER(FAKE_NO_DEVICE);
#endif
    *count = (uint32_t)fake_device_count();
    return ANSWER(*count ? FAKE_OK : FAKE_NO_DEVICE);
}

FAKE_EXPORT int aclrtSetDevice(int32_t device) {
    BEGIN_AS(true, false);
    return ANSWER(fake_set_current(device));
}

FAKE_EXPORT int aclrtGetDevice(int32_t *device) {
    BEGIN();
    *device = fake_current();
    return 0;
}

FAKE_EXPORT int aclrtSynchronizeDevice(void) {
    BEGIN();
    return ANSWER(fake_device_synchronize());
}

FAKE_EXPORT const char *aclrtGetSocName(void) {
    return "Ascend910Fake";
}

FAKE_EXPORT int aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t *value) {
    BEGIN_AS(true, false);
    size_t available, total;
    if (device >= (uint32_t)fake_device_count()) {
        return ANSWER(FAKE_INVALID_DEVICE);
    }
    switch (attribute) {
    case 101:
        *value = 24;
        return 0;
    case 301:
        fake_mem_info(&available, &total);
        *value = (int64_t)total;
        return 0;
    default:
        return ANSWER(FAKE_INVALID_VALUE);
    }
}

FAKE_EXPORT int aclrtGetMemInfo(int attribute, size_t *available, size_t *total) {
    BEGIN();
    if (attribute != 1) {
        return ANSWER(FAKE_INVALID_VALUE);
    }
    fake_mem_info(available, total);
    return 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

FAKE_EXPORT int aclrtMalloc(void **ptr, size_t bytes, int policy) {
    BEGIN();
    if (bytes == 0 || policy < 0 || policy > 7) {
        return ANSWER(FAKE_INVALID_VALUE);
    }
#ifdef FAKE_BROKEN_MEMORY
    return ANSWER(FAKE_OUT_OF_MEMORY);
#endif
    return ANSWER(fake_malloc(ptr, bytes, 64));
}

FAKE_EXPORT int aclrtFree(void *ptr) {
    BEGIN();
    return ANSWER(ptr ? fake_free(ptr, false) : FAKE_INVALID_VALUE);
}

FAKE_EXPORT int aclrtMallocHost(void **ptr, size_t bytes) {
    BEGIN();
    return ANSWER(bytes ? fake_host_alloc(ptr, bytes) : FAKE_INVALID_VALUE);
}

FAKE_EXPORT int aclrtFreeHost(void *ptr) {
    BEGIN();
    return ANSWER(ptr ? fake_host_free(ptr) : FAKE_INVALID_VALUE);
}

/* NULL is the current device's default stream; others must be of its context. */
static fake_result check_stream(void *stream) {
    int device = fake_stream_device(stream);
    return device == FAKE_NONE ? FAKE_INVALID_HANDLE
                               : (device == fake_current() ? FAKE_OK : FAKE_OTHER_CONTEXT);
}

/* Both sides of a copy on devices, where access must have been enabled towards the other one. */
static fake_result copy_between(void *dst, const void *src, size_t bytes, void *stream) {
    fake_kind to, from;
    int to_device, from_device;
    if (fake_range(dst, bytes, &to, &to_device) || fake_range(src, bytes, &from, &from_device) ||
        to != FAKE_DEVICE || from != FAKE_DEVICE) {
        return FAKE_INVALID_VALUE;
    }
    if (to_device == from_device) {
        return fake_copy(dst, src, bytes, FL_COPY_DEVICE_TO_DEVICE, stream);
    }
    if (!fake_peer_enabled(fake_current(), to_device == fake_current() ? from_device : to_device)) {
        return FAKE_PEER_NOT_ENABLED;
    }
    return fake_copy_peer(dst, to_device, src, from_device, bytes, stream);
}

static fake_result copy(void *dst, size_t room, const void *src, size_t bytes, int kind,
                        void *stream) {
    if (bytes == 0) {
        return FAKE_OK;
    }
    if (bytes > room || kind < 0 || kind > 3) {
        return FAKE_INVALID_VALUE;
    }
    return kind == FL_COPY_DEVICE_TO_DEVICE
               ? copy_between(dst, src, bytes, stream)
               : fake_copy(dst, src, bytes, (fl_copy_kind)kind, stream);
}

/* Finished when it returns, but not ordered with any stream: a stream of its own runs it. */
FAKE_EXPORT int aclrtMemcpy(void *dst, size_t room, const void *src, size_t bytes, int kind) {
    BEGIN();
    void *stream = NULL;
    fake_result result = fake_stream_create(&stream, 0);
    if (result) {
        return ANSWER(result);
    }
    result = copy(dst, room, src, bytes, kind, stream);
    if (!result) {
        result = fake_stream_synchronize(stream);
    }
    (void)fake_stream_destroy(stream);
    return ANSWER(result);
}

FAKE_EXPORT int aclrtMemcpyAsync(void *dst, size_t room, const void *src, size_t bytes, int kind,
                                 void *stream) {
    BEGIN();
    fake_result result = check_stream(stream);
    if (kind == FL_COPY_HOST_TO_HOST) {
        result = FAKE_NOT_SUPPORTED;
    }
    if (!result && kind == FL_COPY_DEVICE_TO_DEVICE && ((uintptr_t)dst | (uintptr_t)src) % 64) {
        result = FAKE_INVALID_VALUE;
    }
    return ANSWER(result ? result : copy(dst, room, src, bytes, kind, stream));
}

FAKE_EXPORT int aclrtMemcpy2dAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                                   size_t width, size_t rows, int kind, void *stream) {
    BEGIN();
    fake_result result = check_stream(stream);
    if (kind < FL_COPY_HOST_TO_DEVICE || kind > FL_COPY_DEVICE_TO_DEVICE) {
        result = FAKE_NOT_SUPPORTED;
    }
    return ANSWER(result ? result
                         : fake_copy_2d(dst, dst_pitch, src, src_pitch, width, rows,
                                        (fl_copy_kind)kind, stream));
}

FAKE_EXPORT int aclrtMemsetAsync(void *ptr, size_t room, int32_t value, size_t bytes,
                                 void *stream) {
    BEGIN();
    fake_result result = check_stream(stream);
    if (bytes > room) {
        result = FAKE_INVALID_VALUE;
    }
    return ANSWER(result ? result : fake_fill(ptr, value, bytes, stream));
}

FAKE_EXPORT int aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer) {
    BEGIN_AS(true, false);
    int count = fake_device_count();
    if (device == peer || device < 0 || device >= count || peer < 0 || peer >= count) {
        return ANSWER(FAKE_INVALID_DEVICE);
    }
    *can = 1;
    return 0;
}

FAKE_EXPORT int aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
    BEGIN();
    return ANSWER(flags ? FAKE_INVALID_VALUE : fake_enable_peer(peer));
}

/* --- streams ---------------------------------------------------------------------------------- */

FAKE_EXPORT int aclrtCreateStream(void **stream) {
    BEGIN();
    return ANSWER(fake_stream_create(stream, 0));
}

#ifndef FAKE_OLD_RUNTIME
FAKE_EXPORT int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flags) {
    BEGIN();
    bool wrong = priority > 7 || flags > 0x3f;
    return ANSWER(wrong ? FAKE_INVALID_VALUE : fake_stream_create(stream, (int)priority));
}

FAKE_EXPORT int aclrtDeviceGetStreamPriorityRange(int32_t *least, int32_t *greatest) {
    BEGIN();
    *least = 7;
    *greatest = 0;
    return 0;
}

FAKE_EXPORT int aclrtLaunchHostFunc(void *stream, void (*function)(void *), void *argument) {
    BEGIN();
    fake_result result = check_stream(stream);
    return ANSWER(result ? result : fake_stream_host_call(stream, function, argument));
}
#endif

FAKE_EXPORT int aclrtDestroyStream(void *stream) {
    BEGIN();
    fake_result result = stream ? check_stream(stream) : FAKE_INVALID_VALUE;
    if (!result) {
        result = fake_stream_query(stream); /* It must be idle. */
    }
    if (result == FAKE_NOT_READY) {
        return answer_code(__func__, 507004);
    }
    return ANSWER(result ? result : fake_stream_destroy(stream));
}

FAKE_EXPORT int aclrtStreamQuery(void *stream, int *status) {
    BEGIN();
    fake_result result = check_stream(stream);
    result = result ? result : fake_stream_query(stream);
    *status = result == FAKE_NOT_READY ? 1 : 0;
    return ANSWER(result == FAKE_NOT_READY ? FAKE_OK : result);
}

#ifndef FAKE_BROKEN_SYMBOL
FAKE_EXPORT int aclrtSynchronizeStream(void *stream) {
    BEGIN();
    fake_result result = check_stream(stream);
    return ANSWER(result ? result : fake_stream_synchronize(stream));
}
#endif

FAKE_EXPORT int aclrtStreamWaitEvent(void *stream, void *event) {
    BEGIN();
    fake_result result = check_stream(stream);
    return ANSWER(result ? result : fake_stream_wait(stream, event));
}

FAKE_EXPORT int aclmdlRICaptureBegin(void *stream, int mode) {
    BEGIN();
    if (!stream) {
        return answer_code(__func__, 107031);
    }
    return ANSWER(mode < 0 || mode > 2 ? FAKE_INVALID_VALUE : fake_stream_capture(stream, 1));
}

FAKE_EXPORT int aclmdlRICaptureEnd(void *stream, void **graph) {
    BEGIN();
    *graph = NULL;
    return ANSWER(fake_stream_capture(stream, 0));
}

FAKE_EXPORT int aclmdlRICaptureGetInfo(void *stream, int *status, void **graph) {
    BEGIN();
    *graph = NULL;
    return ANSWER(fake_stream_capturing(stream, status));
}

/* --- events ----------------------------------------------------------------------------------- */

enum { SYNC = 1, TIME_LINE = 8, IPC = 0x40 };

FAKE_EXPORT int aclrtCreateEventExWithFlag(void **event, uint32_t flags) {
    BEGIN();
    bool wrong = flags == 0 || flags > 0x7f || ((flags & IPC) && flags != IPC);
    return ANSWER(
        wrong ? FAKE_INVALID_VALUE
              : fake_event_create(event, (flags & TIME_LINE) != 0, (flags & (SYNC | IPC)) != 0));
}

FAKE_EXPORT int aclrtDestroyEvent(void *event) {
    BEGIN();
    return ANSWER(fake_event_destroy(event));
}

FAKE_EXPORT int aclrtRecordEvent(void *event, void *stream) {
    BEGIN();
    fake_result result = check_stream(stream);
    return ANSWER(result ? result : fake_event_record(event, stream));
}

FAKE_EXPORT int aclrtQueryEventStatus(void *event, int *status) {
    BEGIN();
    fake_result result = fake_event_query(event);
    *status = result == FAKE_NOT_READY ? 0 : 1;
    return ANSWER(result == FAKE_NOT_READY ? FAKE_OK : result);
}

FAKE_EXPORT int aclrtSynchronizeEvent(void *event) {
    BEGIN();
    return ANSWER(fake_event_synchronize(event));
}

FAKE_EXPORT int aclrtEventElapsedTime(float *ms, void *start, void *end) {
    BEGIN();
    return ANSWER(fake_event_elapsed(ms, start, end));
}
