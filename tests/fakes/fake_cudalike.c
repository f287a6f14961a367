/*
 * fake_cudalike.c: a runtime of CUDA's shape, under the names and with the habits of one vendor.
 *
 * FAKE_VENDOR is that vendor's header in this folder. As with the real ones: every answer that is
 * not 0, "not ready" included, stays in the thread's last-error slot until it is fetched; nothing
 * may be called from a host function; handles are checked. Streams, events and code objects are in
 * fake_cudalike_streams.c.
 */
#include "fake_cudalike.h"

#include <stdio.h>
#include <string.h>

/* --- errors ----------------------------------------------------------------------------------- */

static _Thread_local int last_error;

static int code_of(fake_result result) {
    static const int codes[] = {
        [FAKE_OK] = 0,
        [FAKE_NOT_READY] = 600,
        [FAKE_INVALID_VALUE] = 1,
        [FAKE_OUT_OF_MEMORY] = FAKE_OUT_OF_MEMORY_CODE,
        [FAKE_INVALID_DEVICE] = 101,
        [FAKE_NO_DEVICE] = 100,
        [FAKE_INVALID_HANDLE] = 400,
        [FAKE_OTHER_CONTEXT] = 400,
        [FAKE_NOT_TIMED] = 400,
        [FAKE_PEER_ALREADY_ENABLED] = 704,
        [FAKE_PEER_NOT_ENABLED] = 705,
        [FAKE_NOT_SUPPORTED] = 801,
        [FAKE_NOT_PERMITTED] = 800,
        [FAKE_BUSY] = 999,
        [FAKE_ABSENT_DEVICE] = 201,
        [FAKE_UNKNOWN] = 999,
    };
    return codes[result];
}

static int answer_code(int code) {
    if (code) {
        last_error = code;
    }
    return code;
}

int cudalike_answer(fake_result result) {
    return answer_code(code_of(result));
}

/* 0 or the code with which the function must return. */
int cudalike_begin(const char *function) {
    bool in_host_function;
    int code = fake_begin(function, &in_host_function);
    if (in_host_function) {
        return cudalike_answer(FAKE_NOT_PERMITTED);
    }
    if (code == FAKE_DEFAULT_CODE) {
        code = 999;
    }
#ifdef FAKE_BROKEN_NO_DEVICE
    code = code ? code : 100;
#endif
#ifdef FAKE_BROKEN_VERSION
    code = code ? code : 35;
#endif
    return answer_code(code);
}

FAKE_EXPORT int FN(GetLastError)(void) {
    bool in_host_function;
    (void)fake_begin(__func__, &in_host_function);
    int code = last_error;
    last_error = 0;
    return code;
}

FAKE_EXPORT int FN(PeekAtLastError)(void) {
    return last_error;
}

FAKE_EXPORT const char *FN(GetErrorString)(int code) {
    switch (code) {
    case 0:
        return "no error";
    case 1:
        return "invalid argument";
    case FAKE_OUT_OF_MEMORY_CODE:
        return "out of memory";
    case 35:
        return "driver version is insufficient for the runtime version";
    case 100:
        return "no capable device is detected";
    case 101:
        return "invalid device ordinal";
    case 400:
        return "invalid resource handle";
    case 600:
        return "device not ready";
    default:
        return "unknown error";
    }
}

FAKE_EXPORT const char *FN(GetErrorName)(int code) {
    return code == 1 ? FAKE_TITLE " invalid value" : FAKE_TITLE " error";
}

/* --- devices ---------------------------------------------------------------------------------- */

#ifdef FAKE_WITH_INIT
FAKE_EXPORT int FN(Init)(unsigned flags) {
    BEGIN();
    return cudalike_answer(flags ? FAKE_INVALID_VALUE : FAKE_OK);
}
#endif

FAKE_EXPORT int FN(GetDeviceCount)(int *count) {
    *count = 0;
    BEGIN();
    *count = fake_device_count();
    return cudalike_answer(*count ? FAKE_OK : FAKE_NO_DEVICE);
}

FAKE_EXPORT int FN(SetDevice)(int device) {
    BEGIN();
    return cudalike_answer(fake_set_current(device));
}

FAKE_EXPORT int FN(GetDevice)(int *device) {
    BEGIN();
    *device = fake_current();
    return 0;
}

FAKE_EXPORT int FN(DeviceSynchronize)(void) {
    BEGIN();
    return cudalike_answer(fake_device_synchronize());
}

FAKE_EXPORT int FN(RuntimeGetVersion)(int *version) {
    BEGIN();
    *version = FAKE_VERSION;
    return 0;
}

#if defined(FAKE_STRUCT_TOTAL) || defined(FAKE_WITH_TOTAL)
static uint64_t total_memory(void) {
    size_t available, total;
    fake_mem_info(&available, &total);
    return total;
}
#endif

#ifdef FAKE_STRUCT_TOTAL
FAKE_EXPORT int FN(GetDeviceProperties)(char *properties, int device) {
    BEGIN();
    if (device < 0 || device >= fake_device_count()) {
        return cudalike_answer(FAKE_INVALID_DEVICE);
    }
    memset(properties, 0, FAKE_STRUCT_BYTES);
    (void)snprintf(properties, 256, "%s %d", FAKE_TITLE, device);
    for (int i = 0; i < 16; i++) {
        properties[256 + i] = (char)(device + i);
    }
    uint64_t total = total_memory();
    memcpy(properties + FAKE_STRUCT_TOTAL, &total, sizeof(total));
    return 0;
}
#endif

#ifdef FAKE_WITH_NAME
FAKE_EXPORT int FN(DeviceGetName)(char *name, int length, int device) {
    BEGIN();
    if (device < 0 || device >= fake_device_count()) {
        return cudalike_answer(FAKE_INVALID_DEVICE);
    }
    (void)snprintf(name, (size_t)length, "%s %d", FAKE_TITLE, device);
    return 0;
}
#endif

#ifdef FAKE_WITH_TOTAL
FAKE_EXPORT int FN(DeviceTotalMem)(size_t *total, int device) {
    BEGIN();
    if (device < 0 || device >= fake_device_count()) {
        return cudalike_answer(FAKE_INVALID_DEVICE);
    }
    *total = total_memory();
    return 0;
}
#endif

#ifdef FAKE_ATTRIBUTES
FAKE_EXPORT int FN(DeviceGetAttribute)(int *value, int attribute, int device) {
    static const int attributes[][2] = FAKE_ATTRIBUTES;
    BEGIN();
    if (device < 0 || device >= fake_device_count()) {
        return cudalike_answer(FAKE_INVALID_DEVICE);
    }
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
        if (attributes[i][0] == attribute) {
            *value = attributes[i][1];
            return 0;
        }
    }
    return cudalike_answer(FAKE_INVALID_VALUE);
}
#endif

FAKE_EXPORT int FN(MemGetInfo)(size_t *available, size_t *total) {
    BEGIN();
    fake_activate();
    fake_mem_info(available, total);
    return 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* A vendor without one address space knows a pointer only on its own device. */
static fake_result check_owner(const void *ptr) {
#ifdef FAKE_POINTERS_BELONG_TO_CURRENT
    fake_kind kind;
    int device;
    (void)fake_range(ptr, 0, &kind, &device);
    return kind == FAKE_DEVICE && device != fake_current() ? FAKE_INVALID_VALUE : FAKE_OK;
#else
    (void)ptr;
    return FAKE_OK;
#endif
}

fake_result cudalike_check_stream(void *stream) {
#ifdef FAKE_POINTERS_BELONG_TO_CURRENT
    if (fake_stream_device(stream) != fake_current()) {
        return FAKE_INVALID_VALUE;
    }
#endif
    return fake_stream_device(stream) == FAKE_NONE ? FAKE_INVALID_HANDLE : FAKE_OK;
}

FAKE_EXPORT int FN(Malloc)(void **ptr, size_t bytes) {
    BEGIN();
    fake_activate();
#ifdef FAKE_BROKEN_MEMORY
    return cudalike_answer(FAKE_OUT_OF_MEMORY);
#endif
    if (bytes == 0) {
        *ptr = NULL;
        return 0;
    }
    return cudalike_answer(fake_malloc(ptr, bytes, 0));
}

FAKE_EXPORT int FN(Free)(void *ptr) {
    BEGIN();
    fake_activate();
    if (!ptr) {
        return 0;
    }
    fake_result result = check_owner(ptr);
    return cudalike_answer(result ? result : fake_free(ptr, true));
}

/* Three arguments also where the vendor's header lets two do. */
FAKE_EXPORT int FN(FAKE_HOST_ALLOC)(void **ptr, size_t bytes, unsigned flags) {
    BEGIN();
    if (flags & ~FAKE_HOST_FLAGS) {
        return cudalike_answer(FAKE_INVALID_VALUE);
    }
    return cudalike_answer(fake_host_alloc(ptr, bytes));
}

FAKE_EXPORT int FN(FAKE_HOST_FREE)(void *ptr) {
    BEGIN();
    if (!ptr) {
        return 0;
    }
    fake_result result = fake_device_synchronize();
    return cudalike_answer(result ? result : fake_host_free(ptr));
}

FAKE_EXPORT int FN(MemcpyAsync)(void *dst, const void *src, size_t bytes, int kind, void *stream) {
    BEGIN();
    fake_result result = cudalike_check_stream(stream);
    result = result ? result : check_owner(dst);
    result = result ? result : check_owner(src);
    if (kind < 0 || kind > 3) {
        result = FAKE_INVALID_VALUE;
    }
    return cudalike_answer(result ? result
                                  : fake_copy(dst, src, bytes, (fl_copy_kind)kind, stream));
}

#ifndef FAKE_WITHOUT_MEMSET_ASYNC
FAKE_EXPORT int FN(MemsetAsync)(void *dst, int value, size_t bytes, void *stream) {
    BEGIN();
    fake_result result = cudalike_check_stream(stream);
    result = result ? result : check_owner(dst);
    return cudalike_answer(result ? result : fake_fill(dst, value, bytes, stream));
}
#endif

/* On the default stream; the host does not wait. */
FAKE_EXPORT int FN(Memset)(void *dst, int value, size_t bytes) {
    BEGIN();
    fake_result result = check_owner(dst);
    return cudalike_answer(result ? result : fake_fill(dst, value, bytes, NULL));
}

#ifdef FAKE_WITH_2D
FAKE_EXPORT int FN(Memcpy2DAsync)(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                                  size_t width, size_t rows, int kind, void *stream) {
    BEGIN();
    fake_result result = kind < 0 || kind > 3 ? FAKE_INVALID_VALUE : FAKE_OK;
    return cudalike_answer(result ? result
                                  : fake_copy_2d(dst, dst_pitch, src, src_pitch, width, rows,
                                                 (fl_copy_kind)kind, stream));
}
#endif

/* --- peers ------------------------------------------------------------------------------------ */

FAKE_EXPORT int FN(DeviceCanAccessPeer)(int *can, int device, int peer) {
    BEGIN();
    int count = fake_device_count();
    if (device < 0 || device >= count || peer < 0 || peer >= count) {
        return cudalike_answer(FAKE_INVALID_DEVICE);
    }
    *can = device == peer ? 0 : FAKE_PEER_ANSWER;
    return 0;
}

FAKE_EXPORT int FN(DeviceEnablePeerAccess)(int peer, unsigned flags) {
    BEGIN();
    return cudalike_answer(flags ? FAKE_INVALID_VALUE : fake_enable_peer(peer));
}

#ifdef FAKE_POINTERS_BELONG_TO_CURRENT
/* The ordered form exists, and hangs on some versions: here it fails loudly. */
FAKE_EXPORT int FN(MemcpyPeerAsync)(void *dst, int dst_device, const void *src, int src_device,
                                    size_t bytes, void *stream) {
    BEGIN();
    (void)dst, (void)dst_device, (void)src, (void)src_device, (void)bytes, (void)stream;
    return cudalike_answer(FAKE_UNKNOWN);
}
#else
FAKE_EXPORT int FN(MemcpyPeerAsync)(void *dst, int dst_device, const void *src, int src_device,
                                    size_t bytes, void *stream) {
    BEGIN();
    return cudalike_answer(fake_copy_peer(dst, dst_device, src, src_device, bytes, stream));
}
#endif

FAKE_EXPORT int FN(MemcpyPeer)(void *dst, int dst_device, const void *src, int src_device,
                               size_t bytes) {
    BEGIN();
#ifdef FAKE_POINTERS_BELONG_TO_CURRENT
    if (src_device != fake_current()) {
        return cudalike_answer(FAKE_INVALID_VALUE);
    }
#endif
    fake_result result = fake_copy_peer(dst, dst_device, src, src_device, bytes, NULL);
    return cudalike_answer(result ? result : fake_stream_synchronize(NULL));
}
