/*
 * types.h: the words that every other header of libflagos uses.
 *
 * Knows the export macro, device indexes, the dtype list and the opaque handles.
 * Must not know tensors or vendors.
 */
#ifndef FL_TYPES_H
#define FL_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define FL_EXTERN_C_BEGIN extern "C" {
#define FL_EXTERN_C_END }
#else
#define FL_EXTERN_C_BEGIN
#define FL_EXTERN_C_END
#endif

/* Everything is compiled with hidden visibility; FL_API marks what leaves the library. */
#define FL_API __attribute__((visibility("default")))

/* Lets the compiler check the arguments of a function that takes a printf format. */
#define FL_PRINTF(format_index, first_argument) \
    __attribute__((format(printf, format_index, first_argument)))

/* A device of the chosen driver, counted from 0. -1 stands for "the calling thread's current
 * device" wherever a function says so. */
typedef int32_t fl_device;
#define FL_DEVICE_CURRENT ((fl_device)-1)

/* Upper bound of devices in one process: fixed, so that per-thread state needs no allocation. */
#define FL_DEVICE_MAX 64

/* A stream of one device, as a small value (see stream.h); 0 is the device's default stream.
 * It has the width of c10::StreamId. */
typedef int64_t fl_stream;
#define FL_STREAM_DEFAULT ((fl_stream)0)

/* What a driver calls its streams and events. The core stores these and never looks inside. */
typedef void *fl_native_stream;
typedef void *fl_native_event;

/* name, number of bytes, DLPack type code and bits: one list, expanded wherever dtypes are named.
 * The order is that of c10::ScalarType up to the gap that quantized types leave there. */
#define FL_DTYPE_LIST(X)    \
    X(U8, 1, 1, 8)          \
    X(I8, 1, 0, 8)          \
    X(I16, 2, 0, 16)        \
    X(I32, 4, 0, 32)        \
    X(I64, 8, 0, 64)        \
    X(F16, 2, 2, 16)        \
    X(F32, 4, 2, 32)        \
    X(F64, 8, 2, 64)        \
    X(C32, 4, 5, 32)        \
    X(C64, 8, 5, 64)        \
    X(C128, 16, 5, 128)     \
    X(BOOL, 1, 6, 8)        \
    X(BF16, 2, 4, 16)       \
    X(U16, 2, 1, 16)        \
    X(U32, 4, 1, 32)        \
    X(U64, 8, 1, 64)        \
    X(F8E4M3FN, 1, 10, 8)   \
    X(F8E4M3FNUZ, 1, 11, 8) \
    X(F8E5M2, 1, 12, 8)     \
    X(F8E5M2FNUZ, 1, 13, 8)

typedef enum fl_dtype {
#define FL_DTYPE_ENUM(name, bytes, code, bits) FL_DTYPE_##name,
    FL_DTYPE_LIST(FL_DTYPE_ENUM)
#undef FL_DTYPE_ENUM
        FL_DTYPE_COUNT
} fl_dtype;

#endif
