/*
 * fake_tsingmicro.c: libhpgr, the TX runtime. Handles have no flags, host to host copies are
 * refused, blocks are aligned to 128 bytes, and errors are numbers of a family whose order nobody
 * outside knows, with words for them. FL_FAKE_TX_WORDS=0 takes the words away.
 */
#include <stdlib.h>

#include "engine.h"

enum {
    TX_INVALID_VALUE = 0x46000001,
    TX_OUT_OF_MEMORY = 0x46000002,
    TX_INVALID_HANDLE = 0x46000003,
    TX_NOT_READY = 0x46000004,
    TX_DEVICE_FAILED = 0x46000005,
    TX_NO_DEVICE = 0x43000003,
    TX_NOT_SUPPORTED = 0x46000006,
};

static int code_of(fake_result result) {
    static const int codes[] = {
        [FAKE_OK] = 0,
        [FAKE_NOT_READY] = TX_NOT_READY,
        [FAKE_INVALID_VALUE] = TX_INVALID_VALUE,
        [FAKE_OUT_OF_MEMORY] = TX_OUT_OF_MEMORY,
        [FAKE_INVALID_DEVICE] = TX_INVALID_VALUE,
        [FAKE_NO_DEVICE] = TX_NO_DEVICE,
        [FAKE_INVALID_HANDLE] = TX_INVALID_HANDLE,
        [FAKE_OTHER_CONTEXT] = TX_INVALID_HANDLE,
        [FAKE_NOT_TIMED] = TX_INVALID_VALUE,
        [FAKE_PEER_ALREADY_ENABLED] = TX_NOT_SUPPORTED,
        [FAKE_PEER_NOT_ENABLED] = TX_NOT_SUPPORTED,
        [FAKE_NOT_SUPPORTED] = TX_NOT_SUPPORTED,
        [FAKE_NOT_PERMITTED] = TX_DEVICE_FAILED,
        [FAKE_BUSY] = TX_DEVICE_FAILED,
        [FAKE_ABSENT_DEVICE] = TX_DEVICE_FAILED,
        [FAKE_UNKNOWN] = TX_DEVICE_FAILED,
    };
    return codes[result];
}

FAKE_EXPORT const char *txGetErrorString(int code) {
    const char *words = getenv("FL_FAKE_TX_WORDS");
    if (words && *words == '0') {
        return NULL;
    }
    switch (code) {
    case 0:
        return "TX_SUCCESS";
    case TX_INVALID_VALUE:
        return "TX_ERROR_INVALID_VALUE";
    case TX_OUT_OF_MEMORY:
        return "TX_ERROR_OUT_OF_MEMORY";
    case TX_INVALID_HANDLE:
        return "TX_ERROR_INVALID_HANDLE";
    case TX_NOT_READY:
        return "TX_ERROR_NOT_READY";
    case TX_NO_DEVICE:
        return "device manager: no device was initialised";
    case TX_NOT_SUPPORTED:
        return "TX_ERROR_NOT_SUPPORTED";
    default:
        return "TX_ERROR_DEVICE_FAILED";
    }
}

static int begin(const char *function) {
    bool in_host_function;
    int code = fake_begin(function, &in_host_function);
    if (in_host_function || code == FAKE_DEFAULT_CODE) {
        code = TX_DEVICE_FAILED;
    }
#ifdef FAKE_BROKEN_VERSION
    code = code ? code : 0x44000002; /* What an old driver of the kernel leads to. */
#endif
    return code;
}

#define BEGIN()                 \
    int code = begin(__func__); \
    if (code) {                 \
        return code;            \
    }

/* --- devices ---------------------------------------------------------------------------------- */

FAKE_EXPORT int txGetDeviceCount(uint32_t *count) {
    *count = 0;
    BEGIN();
#ifdef FAKE_BROKEN_NO_DEVICE
    return 0;
#endif
    *count = (uint32_t)fake_device_count();
    return 0;
}

FAKE_EXPORT int txSetDevice(uint32_t device) {
    BEGIN();
    return code_of(fake_set_current((int)device));
}

FAKE_EXPORT int txGetDevice(uint32_t *device) {
    BEGIN();
    *device = (uint32_t)fake_current();
    return 0;
}

FAKE_EXPORT int txDeviceSynchronize(void) {
    BEGIN();
    return code_of(fake_device_synchronize());
}

FAKE_EXPORT int txMemGetInfo(uint64_t *available, uint64_t *total) {
    BEGIN();
    size_t a, t;
    fake_mem_info(&a, &t);
    *available = a;
    *total = t;
    return 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

FAKE_EXPORT int txMalloc(void **ptr, uint64_t bytes) {
    BEGIN();
#ifdef FAKE_BROKEN_MEMORY
    return TX_OUT_OF_MEMORY;
#endif
    return code_of(bytes ? fake_malloc(ptr, bytes, 128) : FAKE_INVALID_VALUE);
}

FAKE_EXPORT int txFree(void *ptr) {
    BEGIN();
    return code_of(fake_free(ptr, true));
}

FAKE_EXPORT int txMallocHost(void **ptr, uint64_t bytes) {
    BEGIN();
    return code_of(fake_host_alloc(ptr, bytes));
}

FAKE_EXPORT int txFreeHost(void *ptr) {
    BEGIN();
    return code_of(fake_host_free(ptr));
}

FAKE_EXPORT int txMemcpyAsync(void *dst, const void *src, uint64_t bytes, int kind, void *stream) {
    BEGIN();
    bool wrong = kind < FL_COPY_HOST_TO_DEVICE || kind > FL_COPY_DEVICE_TO_DEVICE;
    return code_of(wrong ? FAKE_INVALID_VALUE
                         : fake_copy(dst, src, bytes, (fl_copy_kind)kind, stream));
}

FAKE_EXPORT int txMemset(void *ptr, int value, uint64_t bytes) {
    BEGIN();
    return code_of(fake_fill(ptr, value, bytes, NULL));
}

#ifndef FAKE_OLD_RUNTIME
FAKE_EXPORT int txMemsetAsync(void *ptr, int value, uint64_t bytes, void *stream) {
    BEGIN();
    return code_of(fake_fill(ptr, value, bytes, stream));
}
#endif

/* --- streams ---------------------------------------------------------------------------------- */

FAKE_EXPORT int txStreamCreate(void **stream) {
    BEGIN();
    return code_of(fake_stream_create(stream, 0));
}

FAKE_EXPORT int txStreamDestroy(void *stream) {
    BEGIN();
    return code_of(fake_stream_destroy(stream));
}

FAKE_EXPORT int txStreamQuery(void *stream) {
    BEGIN();
    return code_of(fake_stream_query(stream));
}

FAKE_EXPORT int txStreamSynchronize(void *stream) {
    BEGIN();
    return code_of(fake_stream_synchronize(stream));
}

FAKE_EXPORT int txStreamWaitEvent(void *stream, void *event) {
    BEGIN();
    return code_of(fake_stream_wait(stream, event));
}

FAKE_EXPORT int txLaunchHostFunc(void *stream, void (*function)(void *), void *argument) {
    BEGIN();
    return code_of(fake_stream_host_call(stream, function, argument));
}

/* --- events ----------------------------------------------------------------------------------- */

#ifndef FAKE_BROKEN_SYMBOL
FAKE_EXPORT int txEventCreate(void **event) {
    BEGIN();
    return code_of(fake_event_create(event, true, true));
}
#endif

FAKE_EXPORT int txEventDestroy(void *event) {
    BEGIN();
    return code_of(fake_event_destroy(event));
}

FAKE_EXPORT int txEventRecord(void *event, void *stream) {
    BEGIN();
    return code_of(fake_event_record(event, stream));
}

FAKE_EXPORT int txEventQuery(void *event) {
    BEGIN();
    return code_of(fake_event_query(event));
}

FAKE_EXPORT int txEventSynchronize(void *event) {
    BEGIN();
    return code_of(fake_event_synchronize(event));
}

FAKE_EXPORT int txEventElapsedTime(float *ms, void *start, void *end) {
    BEGIN();
    return code_of(fake_event_elapsed(ms, start, end));
}
