/*
 * host.c: every entry of the kernel table in plain C: the reference for device code, and what
 * drivers run whose host functions may touch device memory.
 *
 * A cast goes through a small buffer of one of the six wide types of cast.h, so that 20 readers and
 * 120 writers serve all 400 pairs of dtypes. Stays in stream order through the service `host_call`.
 * Does not know vendors.
 */
#include "fl/kernels.h"

#include "kernels/cast.h"

#include <assert.h>
#include <stdlib.h>

/* --- readers and writers ------------------------------------------------------------------------
 */

typedef enum wide {
#define WIDE_ENUM(name, ctype) WIDE_##name,
    FL__WIDE_LIST(WIDE_ENUM)
#undef WIDE_ENUM
        WIDE_COUNT
} wide;

enum { CHUNK = 256 }; /* Elements converted at a time: the buffer stays in the first cache. */

/* memcpy, since storages come from anywhere and may start at any byte. */
#define DEFINE_READ(dtype, storage, kind, value)                                         \
    static void read_##dtype(const char *src, ptrdiff_t step, size_t count, void *out) { \
        fl__wide_##kind *values = out;                                                   \
        for (size_t i = 0; i < count; i++, src += step) {                                \
            storage s;                                                                   \
            memcpy(&s, src, sizeof(s));                                                  \
            values[i] = value;                                                           \
        }                                                                                \
    }
FL__READ_LIST(DEFINE_READ)
#undef DEFINE_READ

typedef struct reader {
    void (*read)(const char *src, ptrdiff_t step, size_t count, void *out);
    wide kind;
} reader;

static const reader readers[FL_DTYPE_COUNT] = {
#define READER(dtype, storage, kind, value) [FL_DTYPE_##dtype] = {read_##dtype, WIDE_##kind},
    FL__READ_LIST(READER)
#undef READER
};

#define DEFINE_WRITE(dtype, K, storage, value)                                                 \
    static void write_##dtype##_##K(const void *in, size_t count, char *dst, ptrdiff_t step) { \
        const fl__wide_##K *values = in;                                                       \
        for (size_t i = 0; i < count; i++, dst += step) {                                      \
            fl__wide_##K v = values[i];                                                        \
            storage s = value;                                                                 \
            memcpy(dst, &s, sizeof(s));                                                        \
        }                                                                                      \
    }
#define DEFINE_WRITES(name, ctype) FL__WRITE_LIST(DEFINE_WRITE, name)
FL__WIDE_LIST(DEFINE_WRITES)
#undef DEFINE_WRITES
#undef DEFINE_WRITE

typedef void (*writer)(const void *in, size_t count, char *dst, ptrdiff_t step);

static const writer writers[FL_DTYPE_COUNT][WIDE_COUNT] = {
#define WRITER(dtype, K, storage, value) [FL_DTYPE_##dtype][WIDE_##K] = write_##dtype##_##K,
#define WRITERS(name, ctype) FL__WRITE_LIST(WRITER, name)
    FL__WIDE_LIST(WRITERS)
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
    fl__pair64 buffer[CHUNK]; /* The widest type. */
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
