/*
 * fake_cudalike_streams.c: streams, events and code objects of the fakes of CUDA's shape.
 */
#include "fake_cudalike.h"

#include <stdlib.h>

/* --- streams ---------------------------------------------------------------------------------- */

FAKE_EXPORT int FN(StreamCreateWithFlags)(void **stream, unsigned flags) {
    BEGIN();
    fake_activate();
    return cudalike_answer(flags > 1 ? FAKE_INVALID_VALUE : fake_stream_create(stream, 0));
}

#ifdef FAKE_LEAST_PRIORITY
FAKE_EXPORT int FN(StreamCreateWithPriority)(void **stream, unsigned flags, int priority) {
    BEGIN();
    fake_activate();
    bool wrong = flags > 1 || priority > FAKE_LEAST_PRIORITY || priority < FAKE_GREATEST_PRIORITY;
    return cudalike_answer(wrong ? FAKE_INVALID_VALUE : fake_stream_create(stream, priority));
}

FAKE_EXPORT int FN(DeviceGetStreamPriorityRange)(int *least, int *greatest) {
    BEGIN();
    *least = FAKE_LEAST_PRIORITY;
    *greatest = FAKE_GREATEST_PRIORITY;
    return 0;
}
#endif

FAKE_EXPORT int FN(StreamDestroy)(void *stream) {
    BEGIN();
    return cudalike_answer(fake_stream_destroy(stream));
}

#ifndef FAKE_BROKEN_SYMBOL
FAKE_EXPORT int FN(StreamQuery)(void *stream) {
    BEGIN();
    return cudalike_answer(fake_stream_query(stream));
}
#endif

FAKE_EXPORT int FN(StreamSynchronize)(void *stream) {
    BEGIN();
    return cudalike_answer(fake_stream_synchronize(stream));
}

FAKE_EXPORT int FN(StreamWaitEvent)(void *stream, void *event, unsigned flags) {
    BEGIN();
    fake_result result = flags > 1 ? FAKE_INVALID_VALUE : cudalike_check_stream(stream);
    return cudalike_answer(result ? result : fake_stream_wait(stream, event));
}

#ifndef FAKE_WITHOUT_HOST_FUNC
FAKE_EXPORT int FN(LaunchHostFunc)(void *stream, void (*function)(void *), void *argument) {
    BEGIN();
    return cudalike_answer(fake_stream_host_call(stream, function, argument));
}
#endif

typedef struct callback {
    void (*function)(void *stream, int code, void *argument);
    void *stream, *argument;
} callback;

static void run_callback(void *argument) {
    callback c = *(callback *)argument;
    free(argument);
    c.function(c.stream, 0, c.argument);
}

FAKE_EXPORT int FN(StreamAddCallback)(void *stream, void (*function)(void *, int, void *),
                                      void *argument, unsigned flags) {
    BEGIN();
    callback *c = flags ? NULL : malloc(sizeof(*c));
    if (!c) {
        return cudalike_answer(FAKE_INVALID_VALUE);
    }
    *c = (callback){.function = function, .stream = stream, .argument = argument};
    fake_result result = fake_stream_host_call(stream, run_callback, c);
    if (result) {
        free(c);
    }
    return cudalike_answer(result);
}

#ifdef FAKE_WITH_CAPTURE
FAKE_EXPORT int FN(StreamBeginCapture)(void *stream, int mode) {
    BEGIN();
    return cudalike_answer(mode < 0 || mode > 2 ? FAKE_INVALID_VALUE
                                                : fake_stream_capture(stream, 1));
}

FAKE_EXPORT int FN(StreamEndCapture)(void *stream, void **graph) {
    BEGIN();
    *graph = NULL; /* Nothing was captured. */
    return cudalike_answer(fake_stream_capture(stream, 0));
}

FAKE_EXPORT int FN(StreamIsCapturing)(void *stream, int *state) {
    BEGIN();
    return cudalike_answer(fake_stream_capturing(stream, state));
}
#endif

/* --- events ----------------------------------------------------------------------------------- */

FAKE_EXPORT int FN(EventCreateWithFlags)(void **event, unsigned flags) {
    enum { BLOCKING_SYNC = 1, DISABLE_TIMING = 2, INTERPROCESS = 4 };
    BEGIN();
    fake_activate();
    bool wrong = flags > 7 || ((flags & INTERPROCESS) && !(flags & DISABLE_TIMING));
    return cudalike_answer(wrong ? FAKE_INVALID_VALUE
                                 : fake_event_create(event, !(flags & DISABLE_TIMING), true));
}

static fake_result check_event(void *event) {
#ifdef FAKE_POINTERS_BELONG_TO_CURRENT
    if (fake_event_device(event) != fake_current()) {
        return FAKE_OTHER_CONTEXT;
    }
#endif
    return fake_event_device(event) == FAKE_NONE ? FAKE_INVALID_HANDLE : FAKE_OK;
}

FAKE_EXPORT int FN(EventDestroy)(void *event) {
    BEGIN();
    fake_result result = check_event(event);
    return cudalike_answer(result ? result : fake_event_destroy(event));
}

FAKE_EXPORT int FN(EventRecord)(void *event, void *stream) {
    BEGIN();
    fake_result result = check_event(event);
    return cudalike_answer(result ? result : fake_event_record(event, stream));
}

FAKE_EXPORT int FN(EventQuery)(void *event) {
    BEGIN();
    return cudalike_answer(fake_event_query(event));
}

FAKE_EXPORT int FN(EventSynchronize)(void *event) {
    BEGIN();
    return cudalike_answer(fake_event_synchronize(event));
}

FAKE_EXPORT int FN(EventElapsedTime)(float *ms, void *start, void *end) {
    BEGIN();
    return cudalike_answer(fake_event_elapsed(ms, start, end));
}

/* --- code objects ----------------------------------------------------------------------------- */

#ifdef FAKE_MODULE_PREFIX
#define MODULE_FN(suffix) PASTE(FAKE_MODULE_PREFIX, suffix)
#define LAUNCH_FN MODULE_FN(LaunchKernel)

FAKE_EXPORT int MODULE_FN(FuncSetAttribute)(void *function, int attribute, int value) {
    BEGIN();
    bool wrong = !function || attribute != 8 || value > 200 * 1024;
    return cudalike_answer(wrong ? FAKE_INVALID_VALUE : FAKE_OK);
}
#else
#define MODULE_FN(suffix) FN(suffix)
#define LAUNCH_FN FN(ModuleLaunchKernel)
#endif

#ifndef FAKE_WITHOUT_MODULES
FAKE_EXPORT int MODULE_FN(DevicePrimaryCtxGetState)(int device, unsigned *flags, int *active) {
    BEGIN();
    if (device < 0 || device >= fake_device_count()) {
        return cudalike_answer(FAKE_INVALID_DEVICE);
    }
    *flags = 0;
    *active = fake_device_is_active(device);
    return 0;
}

FAKE_EXPORT int MODULE_FN(ModuleLoadData)(void **module, const void *image) {
    BEGIN();
    if (!fake_device_is_active(fake_current())) {
        return cudalike_answer(FAKE_ABSENT_DEVICE);
    }
    return cudalike_answer(fake_module_load(module, image));
}

FAKE_EXPORT int MODULE_FN(ModuleGetFunction)(void **function, void *module, const char *name) {
    BEGIN();
    return cudalike_answer(fake_module_function(function, module, name));
}

FAKE_EXPORT int LAUNCH_FN(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          void *stream, void **arguments, void **extra) {
    BEGIN();
    uint64_t threads = (uint64_t)grid_x * grid_y * grid_z * block_x * block_y * block_z;
    if (!threads || block_x > 1024 || shared > 200 * 1024 || extra ||
        fake_stream_device(stream) != fake_current()) {
        return cudalike_answer(FAKE_INVALID_VALUE);
    }
    return cudalike_answer(fake_launch(function, threads, stream, arguments));
}
#endif
