/*
 * host.c: every entry of the kernel table in plain C: the reference for device code, and what
 * drivers run whose host functions may touch device memory.
 *
 * A cast goes through a small buffer of one of six wide types, so that 20 readers and 120 writers
 * serve all 400 pairs of dtypes. Stays in stream order through the service `host_call`. Does not
 * know vendors.
 */
#include "fl/kernels.h"

#include "kernels/convert.h"

#include <assert.h>
#include <stdlib.h>

/* --- wide types --------------------------------------------------------------------------------
 */

typedef struct pair32 {
    float re, im;
} pair32;

typedef struct pair64 {
    double re, im;
} pair64;

/* Every dtype is read into the narrowest of these that holds all its values, so that a cast rounds
 * exactly where PyTorch rounds. */
typedef enum wide { WIDE_I, WIDE_U, WIDE_F, WIDE_D, WIDE_CF, WIDE_CD, WIDE_COUNT } wide;

/* name, C type */
#define WIDE_LIST(X) \
    X(I, int64_t)    \
    X(U, uint64_t)   \
    X(F, float)      \
    X(D, double)     \
    X(CF, pair32)    \
    X(CD, pair64)

enum { CHUNK = 256 }; /* Elements converted at a time: the buffer stays in the first cache. */

/* Each wide type as integer bits, as truth, and as floats of both widths. */
static inline uint64_t bits_I(int64_t v) {
    return (uint64_t)v;
}
static inline uint64_t bits_U(uint64_t v) {
    return v;
}
static inline uint64_t bits_F(float v) {
    return fl__to_integer((double)v);
}
static inline uint64_t bits_D(double v) {
    return fl__to_integer(v);
}
static inline uint64_t bits_CF(pair32 v) {
    return bits_F(v.re);
}
static inline uint64_t bits_CD(pair64 v) {
    return bits_D(v.re);
}

static inline bool true_I(int64_t v) {
    return v != 0;
}
static inline bool true_U(uint64_t v) {
    return v != 0;
}
static inline bool true_F(float v) {
    return v != 0.0f;
}
static inline bool true_D(double v) {
    return v != 0.0;
}
static inline bool true_CF(pair32 v) {
    return v.re != 0.0f || v.im != 0.0f;
}
static inline bool true_CD(pair64 v) {
    return v.re != 0.0 || v.im != 0.0;
}

static inline pair32 floats_I(int64_t v) {
    return (pair32){(float)v, 0.0f};
}
static inline pair32 floats_U(uint64_t v) {
    return (pair32){(float)v, 0.0f};
}
static inline pair32 floats_F(float v) {
    return (pair32){v, 0.0f};
}
static inline pair32 floats_D(double v) {
    return (pair32){(float)v, 0.0f};
}
static inline pair32 floats_CF(pair32 v) {
    return v;
}
static inline pair32 floats_CD(pair64 v) {
    return (pair32){(float)v.re, (float)v.im};
}

static inline pair64 doubles_I(int64_t v) {
    return (pair64){(double)v, 0.0};
}
static inline pair64 doubles_U(uint64_t v) {
    return (pair64){(double)v, 0.0};
}
static inline pair64 doubles_F(float v) {
    return (pair64){(double)v, 0.0};
}
static inline pair64 doubles_D(double v) {
    return (pair64){v, 0.0};
}
static inline pair64 doubles_CF(pair32 v) {
    return (pair64){(double)v.re, (double)v.im};
}
static inline pair64 doubles_CD(pair64 v) {
    return v;
}

/* --- readers -----------------------------------------------------------------------------------
 */

typedef struct half_pair {
    uint16_t re, im;
} half_pair;

/* dtype, storage type, wide type, wide value of the stored `s` */
#define READ_LIST(X)                                                          \
    X(U8, uint8_t, U, s)                                                      \
    X(I8, int8_t, I, s)                                                       \
    X(I16, int16_t, I, s)                                                     \
    X(I32, int32_t, I, s)                                                     \
    X(I64, int64_t, I, s)                                                     \
    X(F16, uint16_t, F, fl__from_f16(s))                                      \
    X(F32, float, F, s)                                                       \
    X(F64, double, D, s)                                                      \
    X(C32, half_pair, CF, ((pair32){fl__from_f16(s.re), fl__from_f16(s.im)})) \
    X(C64, pair32, CF, s)                                                     \
    X(C128, pair64, CD, s)                                                    \
    X(BOOL, uint8_t, U, s != 0)                                               \
    X(BF16, uint16_t, F, fl__from_bf16(s))                                    \
    X(U16, uint16_t, U, s)                                                    \
    X(U32, uint32_t, U, s)                                                    \
    X(U64, uint64_t, U, s)                                                    \
    X(F8E4M3FN, uint8_t, F, fl__from_f8e4m3fn(s))                             \
    X(F8E4M3FNUZ, uint8_t, F, fl__from_f8e4m3fnuz(s))                         \
    X(F8E5M2, uint8_t, F, fl__from_f8e5m2(s))                                 \
    X(F8E5M2FNUZ, uint8_t, F, fl__from_f8e5m2fnuz(s))

#define WIDE_CTYPE(name, ctype) typedef ctype wide_##name;
WIDE_LIST(WIDE_CTYPE)
#undef WIDE_CTYPE

/* memcpy, since views may start at any byte that their dtype's size divides only relative to the
 * storage, and storages come from anywhere. */
#define DEFINE_READ(dtype, storage, kind, value)                                         \
    static void read_##dtype(const char *src, ptrdiff_t step, size_t count, void *out) { \
        wide_##kind *values = out;                                                       \
        for (size_t i = 0; i < count; i++, src += step) {                                \
            storage s;                                                                   \
            memcpy(&s, src, sizeof(s));                                                  \
            values[i] = value;                                                           \
        }                                                                                \
    }
READ_LIST(DEFINE_READ)
#undef DEFINE_READ

typedef struct reader {
    void (*read)(const char *src, ptrdiff_t step, size_t count, void *out);
    wide kind;
} reader;

static const reader readers[FL_DTYPE_COUNT] = {
#define READER(dtype, storage, kind, value) [FL_DTYPE_##dtype] = {read_##dtype, WIDE_##kind},
    READ_LIST(READER)
#undef READER
};

/* --- writers -----------------------------------------------------------------------------------
 */

#define HALVES(c) ((half_pair){fl__to_f16((c).re), fl__to_f16((c).im)})

/* dtype, storage type, stored value of the wide value `v` of type `K` */
#define WRITE_LIST(X, K)                                           \
    X(U8, K, uint8_t, (uint8_t)bits_##K(v))                        \
    X(I8, K, int8_t, (int8_t)(uint8_t)bits_##K(v))                 \
    X(I16, K, int16_t, (int16_t)(uint16_t)bits_##K(v))             \
    X(I32, K, int32_t, (int32_t)(uint32_t)bits_##K(v))             \
    X(I64, K, int64_t, (int64_t)bits_##K(v))                       \
    X(F16, K, uint16_t, fl__to_f16(floats_##K(v).re))              \
    X(F32, K, float, floats_##K(v).re)                             \
    X(F64, K, double, doubles_##K(v).re)                           \
    X(C32, K, half_pair, HALVES(floats_##K(v)))                    \
    X(C64, K, pair32, floats_##K(v))                               \
    X(C128, K, pair64, doubles_##K(v))                             \
    X(BOOL, K, uint8_t, true_##K(v))                               \
    X(BF16, K, uint16_t, fl__to_bf16(floats_##K(v).re))            \
    X(U16, K, uint16_t, (uint16_t)bits_##K(v))                     \
    X(U32, K, uint32_t, (uint32_t)bits_##K(v))                     \
    X(U64, K, uint64_t, bits_##K(v))                               \
    X(F8E4M3FN, K, uint8_t, fl__to_f8e4m3fn(floats_##K(v).re))     \
    X(F8E4M3FNUZ, K, uint8_t, fl__to_f8e4m3fnuz(floats_##K(v).re)) \
    X(F8E5M2, K, uint8_t, fl__to_f8e5m2(floats_##K(v).re))         \
    X(F8E5M2FNUZ, K, uint8_t, fl__to_f8e5m2fnuz(floats_##K(v).re))

#define DEFINE_WRITE(dtype, K, storage, value)                                                 \
    static void write_##dtype##_##K(const void *in, size_t count, char *dst, ptrdiff_t step) { \
        const wide_##K *values = in;                                                           \
        for (size_t i = 0; i < count; i++, dst += step) {                                      \
            wide_##K v = values[i];                                                            \
            storage s = value;                                                                 \
            memcpy(dst, &s, sizeof(s));                                                        \
        }                                                                                      \
    }
#define DEFINE_WRITES(name, ctype) WRITE_LIST(DEFINE_WRITE, name)
WIDE_LIST(DEFINE_WRITES)
#undef DEFINE_WRITES
#undef DEFINE_WRITE

typedef void (*writer)(const void *in, size_t count, char *dst, ptrdiff_t step);

static const writer writers[FL_DTYPE_COUNT][WIDE_COUNT] = {
#define WRITER(dtype, K, storage, value) [FL_DTYPE_##dtype][WIDE_##K] = write_##dtype##_##K,
#define WRITERS(name, ctype) WRITE_LIST(WRITER, name)
    WIDE_LIST(WRITERS)
#undef WRITERS
#undef WRITER
};

/* --- runs --------------------------------------------------------------------------------------
 */

/* What a run of elements along one dimension needs. */
typedef struct job {
    fl_dtype dst_dtype, src_dtype;
    size_t element; /* Bytes where the dtypes agree, else 0: cast. */
} job;

#define DEFINE_MOVE(bytes)                                                                       \
    static void move_##bytes(char *dst, ptrdiff_t dst_step, const char *src, ptrdiff_t src_step, \
                             size_t count) {                                                     \
        for (size_t i = 0; i < count; i++, dst += dst_step, src += src_step) {                   \
            memcpy(dst, src, bytes);                                                             \
        }                                                                                        \
    }
DEFINE_MOVE(1)
DEFINE_MOVE(2)
DEFINE_MOVE(4)
DEFINE_MOVE(8)
DEFINE_MOVE(16)
#undef DEFINE_MOVE

static void move_run(size_t element, char *dst, ptrdiff_t dst_step, const char *src,
                     ptrdiff_t src_step, size_t count) {
    if (dst_step == (ptrdiff_t)element && src_step == (ptrdiff_t)element) {
        /* The same bytes may be copied onto themselves. */
        memmove(dst, src, element * count);
        return;
    }
    switch (element) {
    case 1:
        move_1(dst, dst_step, src, src_step, count);
        break;
    case 2:
        move_2(dst, dst_step, src, src_step, count);
        break;
    case 4:
        move_4(dst, dst_step, src, src_step, count);
        break;
    case 8:
        move_8(dst, dst_step, src, src_step, count);
        break;
    default:
        move_16(dst, dst_step, src, src_step, count);
        break;
    }
}

static void run(const job *work, char *dst, ptrdiff_t dst_step, const char *src, ptrdiff_t src_step,
                size_t count) {
    if (work->element) {
        move_run(work->element, dst, dst_step, src, src_step, count);
        return;
    }
    pair64 buffer[CHUNK]; /* The widest type. */
    const reader *from = &readers[work->src_dtype];
    writer to = writers[work->dst_dtype][from->kind];
    while (count) {
        size_t part = count < CHUNK ? count : CHUNK;
        from->read(src, src_step, part, buffer);
        to(buffer, part, dst, dst_step);
        dst += dst_step * (ptrdiff_t)part;
        src += src_step * (ptrdiff_t)part;
        count -= part;
    }
}

/* --- loops -------------------------------------------------------------------------------------
 */

static ptrdiff_t step_of(const fl_view *view, int32_t dim) {
    return (ptrdiff_t)view->stride[dim] * (ptrdiff_t)fl_dtype_size(view->dtype);
}

/* The dimension before the last with the smallest source stride: walking it together with the last
 * one in tiles keeps a transposed source in the cache. */
static int32_t tiled_dim(const fl_view *src) {
    int32_t last = src->ndim - 1;
    int32_t best = -1;
    int64_t least = src->stride[last] < 0 ? -src->stride[last] : src->stride[last];
    for (int32_t dim = 0; dim < last; dim++) {
        int64_t stride = src->stride[dim] < 0 ? -src->stride[dim] : src->stride[dim];
        if (stride < least) {
            least = stride;
            best = dim;
        }
    }
    return best;
}

enum { TILE = 64 };

static void copy_plane(const job *work, const fl_view *dst, const fl_view *src, int32_t tiled,
                       char *to, const char *from) {
    int32_t last = dst->ndim - 1;
    int64_t count = dst->shape[last];
    ptrdiff_t dst_step = step_of(dst, last), src_step = step_of(src, last);
    if (tiled < 0) {
        run(work, to, dst_step, from, src_step, (size_t)count);
        return;
    }
    int64_t rows = dst->shape[tiled];
    ptrdiff_t dst_row = step_of(dst, tiled), src_row = step_of(src, tiled);
    for (int64_t row = 0; row < rows; row += TILE) {
        int64_t row_end = row + TILE < rows ? row + TILE : rows;
        for (int64_t column = 0; column < count; column += TILE) {
            int64_t part = count - column < TILE ? count - column : TILE;
            for (int64_t r = row; r < row_end; r++) {
                run(work, to + r * dst_row + column * dst_step, dst_step,
                    from + r * src_row + column * src_step, src_step, (size_t)part);
            }
        }
    }
}

/* Step an index over all dimensions but the last and `skipped`; false after the last one. */
static bool next_index(const fl_view *shape, int32_t skipped, int64_t *index, char **to,
                       const char **from, const fl_view *dst, const fl_view *src) {
    for (int32_t dim = shape->ndim - 2; dim >= 0; dim--) {
        if (dim == skipped) {
            continue;
        }
        *to += step_of(dst, dim);
        *from += step_of(src, dim);
        if (++index[dim] < shape->shape[dim]) {
            return true;
        }
        *to -= step_of(dst, dim) * shape->shape[dim];
        *from -= step_of(src, dim) * shape->shape[dim];
        index[dim] = 0;
    }
    return false;
}

void fl_host_copy(const fl_view *dst, const fl_view *src) {
    fl_view views[2] = {*dst, *src};
    if (fl_view_numel(dst) == 0) {
        return;
    }
    fl_views_sort(views, 2);
    fl_views_collapse(views, 2);
    job work = {dst->dtype, src->dtype, dst->dtype == src->dtype ? fl_dtype_size(dst->dtype) : 0};
    char *to = fl_view_first(&views[0]);
    const char *from = fl_view_first(&views[1]);
    if (views[0].ndim == 0) {
        run(&work, to, 0, from, 0, 1);
        return;
    }
    int32_t tiled = tiled_dim(&views[1]);
    int64_t index[FL_VIEW_DIMS_MAX] = {0};
    do {
        copy_plane(&work, &views[0], &views[1], tiled, to, from);
    } while (next_index(&views[0], tiled, index, &to, &from, &views[0], &views[1]));
}

void fl_host_fill(const fl_view *dst, const void *element) {
    fl_view source = *dst;
    unsigned char value[16];
    memcpy(value, element, fl_dtype_size(dst->dtype));
    source.data = value;
    source.offset = 0;
    for (int32_t dim = 0; dim < source.ndim; dim++) {
        source.stride[dim] = 0;
    }
    fl_host_copy(dst, &source);
}

/* --- the table ---------------------------------------------------------------------------------
 */

/* Owned by the host function that runs it. */
typedef struct task {
    fl_view dst, src;
    unsigned char element[16];
} task;

static void run_fill(void *argument) {
    task *work = argument;
    fl_host_fill(&work->dst, work->element);
    free(work);
}

static void run_copy(void *argument) {
    task *work = argument;
    fl_host_copy(&work->dst, &work->src);
    free(work);
}

static fl_status queue(const fl_kernel_services *services, fl_device device,
                       fl_native_stream stream, void (*function)(void *argument),
                       const fl_view *dst, const fl_view *src, const void *element) {
    task *work = malloc(sizeof(*work));
    if (!work) {
        return fl_fail(FL_OUT_OF_MEMORY, "no host memory to queue a kernel");
    }
    work->dst = *dst;
    if (src) {
        work->src = *src;
    }
    if (element) {
        memcpy(work->element, element, fl_dtype_size(dst->dtype));
    }
    fl_status status = services->host_call(services->user, device, stream, function, work);
    if (status) {
        free(work);
    }
    return status;
}

static fl_status table_fill(void *ctx, fl_device device, fl_native_stream stream,
                            const fl_view *dst, const void *element) {
    return queue(ctx, device, stream, run_fill, dst, NULL, element);
}

static fl_status table_copy(void *ctx, fl_device device, fl_native_stream stream,
                            const fl_view *dst, const fl_view *src) {
    return queue(ctx, device, stream, run_copy, dst, src, NULL);
}

fl_status fl_kernels_host(const fl_kernel_services *services, fl_kernels *out) {
    if (!services->host_call) {
        return fl_fail(FL_NOT_SUPPORTED,
                       "host kernels: host functions of this driver do not reach device memory");
    }
    *out = (fl_kernels){
        .struct_size = sizeof(fl_kernels),
        .version = FL_KERNELS_VERSION,
        .name = "host",
        .ctx = (void *)(uintptr_t)services,
        .fill = table_fill,
        .copy = table_copy,
    };
    return FL_OK;
}

static_assert(sizeof(float) == 4 && sizeof(double) == 8, "IEEE formats");
