/*
 * device.c: the table over device code: picks a function for a pair of views, packs its argument
 * and starts it through the services.
 *
 * The code object was compiled from the .cu files beside this one and is part of the library; no
 * vendor's runtime is linked. Each device loads it at first use. Does not know what the functions
 * do inside.
 */
#include "fl/kernels.h"

#include "kernels/args.h"
#include "kernels/image.h"
#include "kernels/names.h"

#include <assert.h>
#include <string.h>

typedef enum kernel {
#define LINEAR(bytes, type) COPY_STRIDED_##bytes, COPY_TILE_##bytes, FILL_STRIDED_##bytes,
    FL__ELEMENT_LIST(LINEAR)
#undef LINEAR
#define CAST(src, dst) CAST_##src##_##dst,
        FL__CAST_LIST(CAST)
#undef CAST
            CAST_ANY,
    FILL_VECTORS,
    KERNEL_COUNT,
} kernel;

static const char *const names[KERNEL_COUNT] = {
#define LINEAR(bytes, type)                              \
    [COPY_STRIDED_##bytes] = "fl_copy_strided_u" #bytes, \
    [COPY_TILE_##bytes] = "fl_copy_tile_u" #bytes,       \
    [FILL_STRIDED_##bytes] = "fl_fill_strided_u" #bytes,
    FL__ELEMENT_LIST(LINEAR)
#undef LINEAR
#define CAST(src, dst) [CAST_##src##_##dst] = "fl_cast_" #src "_" #dst,
        FL__CAST_LIST(CAST)
#undef CAST
            [CAST_ANY] = "fl_cast_any",
    [FILL_VECTORS] = "fl_fill_u16",
};

static_assert(sizeof(fl__tile_args) <= 1024, "well below the 4 KiB that a launch may pass");

/* --- code --------------------------------------------------------------------------------------
 */

/* Modules and functions are found once a device; two threads may do so at once and find the same.
 */
static struct {
    const void *image; /* Written before the table is handed out. */
    size_t bytes;
    void *modules[FL_DEVICE_MAX];
    void *functions[FL_DEVICE_MAX][KERNEL_COUNT];
} code;

static fl_status find_function(const fl_kernel_services *services, fl_device device, kernel which,
                               void **out_function) {
    void *function = __atomic_load_n(&code.functions[device][which], __ATOMIC_ACQUIRE);
    if (!function) {
        void *module = __atomic_load_n(&code.modules[device], __ATOMIC_ACQUIRE);
        if (!module) {
            FL_TRY(services->module_load(services->user, device, code.image, code.bytes, &module));
            __atomic_store_n(&code.modules[device], module, __ATOMIC_RELEASE);
        }
        FL_TRY(services->module_function(services->user, device, module, names[which], &function));
        __atomic_store_n(&code.functions[device][which], function, __ATOMIC_RELEASE);
    }
    *out_function = function;
    return FL_OK;
}

static fl_status start(const fl_kernel_services *services, fl_device device,
                       fl_native_stream stream, kernel which, uint32_t blocks, void *argument) {
    void *function;
    FL_TRY(find_function(services, device, which, &function));
    const uint32_t grid[3] = {blocks, 1, 1};
    const uint32_t block[3] = {FL__BLOCK_THREADS, 1, 1};
    void *arguments[1] = {argument};
    return services->launch(services->user, device, function, grid, block, 0, stream, arguments);
}

static uint32_t blocks_for(uint32_t count, uint32_t thread_items) {
    const uint32_t items = FL__BLOCK_THREADS * thread_items;
    return count / items + (count % items != 0);
}

/* --- arguments ---------------------------------------------------------------------------------
 */

/* Granlund and Montgomery's rounding up: exact for n and divisor below 2^31. */
static fl__divider divider_of(uint32_t divisor) {
    uint32_t shift = divisor > 1 ? 32u - (uint32_t)__builtin_clz(divisor - 1) : 0;
    uint64_t multiplier = ((UINT64_C(1) << 32) * ((UINT64_C(1) << shift) - divisor)) / divisor + 1;
    return (fl__divider){divisor, (uint32_t)multiplier, shift};
}

/* The parts that a launch cannot take at once: too many dimensions or elements. */
static bool fits_launch(const fl_view *view) {
    return view->ndim <= FL__ARGS_DIMS && fl_view_numel(view) < (INT64_C(1) << 31);
}

/* What is left of a cut along the outermost dimension: its first half, and the rest. */
static void cut(const fl_view *whole, fl_view parts[2]) {
    int64_t half = whole->shape[0] / 2;
    parts[0] = *whole;
    parts[1] = *whole;
    parts[0].shape[0] = half;
    parts[1].shape[0] -= half;
    parts[1].offset += half * whole->stride[0];
}

/* Where neighbouring elements of a run can be moved as one larger element: the largest power of two
 * that divides every address and every run. 0 dimensions count as a run of one. */
static size_t widest(const fl_view *views, int32_t count) {
    size_t element = fl_dtype_size(views[0].dtype);
    int32_t last = views[0].ndim - 1;
    uint64_t bits = 16;
    if (last < 0) {
        return element;
    }
    for (int32_t v = 0; v < count; v++) {
        if (views[v].stride[last] != 1) {
            return element;
        }
        bits |= (uint64_t)(uintptr_t)fl_view_first(&views[v]);
        bits |= (uint64_t)views[v].shape[last] * element;
        for (int32_t dim = 0; dim < last; dim++) {
            bits |= (uint64_t)(views[v].stride[dim] * (int64_t)element);
        }
    }
    size_t unit = (size_t)(bits & (~bits + 1));
    return unit > element ? unit : element;
}

/* Fill the shared part of the arguments; `unit` bytes make one element. */
static void pack_shape(const fl_view *view, size_t unit, fl__divider *shape, int64_t *strides,
                       uint32_t *out_count) {
    size_t element = fl_dtype_size(view->dtype);
    uint32_t count = 1;
    for (int32_t dim = 0; dim < view->ndim; dim++) {
        int32_t from = view->ndim - 1 - dim;
        uint64_t size = (uint64_t)view->shape[from];
        int64_t stride = view->stride[from] * (int64_t)element;
        if (dim == 0 && unit != element) {
            size = size * element / unit;
            stride = (int64_t)unit;
        }
        shape[dim] = divider_of((uint32_t)size);
        strides[dim] = stride;
        count *= (uint32_t)size;
    }
    *out_count = count;
}

static void pack_copy(const fl_view views[2], size_t unit, fl__copy_args *out) {
    memset(out, 0, sizeof(*out));
    out->dst = fl_view_first(&views[0]);
    out->src = fl_view_first(&views[1]);
    out->ndim = views[0].ndim;
    out->dst_dtype = (int32_t)views[0].dtype;
    out->src_dtype = (int32_t)views[1].dtype;
    pack_shape(&views[0], unit, out->shape, out->dst_stride, &out->count);
    if (unit == fl_dtype_size(views[0].dtype)) {
        unit = fl_dtype_size(views[1].dtype);
    }
    pack_shape(&views[1], unit, out->shape, out->src_stride, &out->count);
}

static kernel by_size(size_t bytes, kernel first) {
    kernel each = COPY_STRIDED_2 - COPY_STRIDED_1;
    return first + each * (kernel)__builtin_ctzll(bytes);
}

/* --- copy --------------------------------------------------------------------------------------
 */

/* The dimension along which the source is dense while the destination is not; 0 or less: none that
 * is worth turning. Counted from the inside. */
static int32_t turned_dim(const fl__copy_args *args, size_t element) {
    if (args->ndim < 2 || args->dst_stride[0] != (int64_t)element ||
        args->src_stride[0] == (int64_t)element || args->shape[0].divisor < 16) {
        return 0;
    }
    for (int32_t dim = 1; dim < args->ndim; dim++) {
        if (args->src_stride[dim] == (int64_t)element && args->shape[dim].divisor >= 16) {
            return dim;
        }
    }
    return 0;
}

static void swap_dims(fl__copy_args *args, int32_t a, int32_t b) {
    fl__divider shape = args->shape[a];
    int64_t dst = args->dst_stride[a], src = args->src_stride[a];
    args->shape[a] = args->shape[b];
    args->dst_stride[a] = args->dst_stride[b];
    args->src_stride[a] = args->src_stride[b];
    args->shape[b] = shape;
    args->dst_stride[b] = dst;
    args->src_stride[b] = src;
}

static fl_status start_tiles(const fl_kernel_services *services, fl_device device,
                             fl_native_stream stream, const fl__copy_args *args, int32_t turned,
                             size_t element) {
    fl__tile_args tiles = {.copy = *args};
    swap_dims(&tiles.copy, 1, turned);
    const fl__divider *shape = tiles.copy.shape;
    const uint32_t to = FL__TILE_TO(element), from = FL__TILE_FROM(element);
    tiles.tiles_0 = (shape[0].divisor + to - 1) / to;
    tiles.tiles_1 = (shape[1].divisor + from - 1) / from;
    uint32_t planes = args->count / shape[0].divisor / shape[1].divisor;
    return start(services, device, stream, by_size(element, COPY_TILE_1),
                 planes * tiles.tiles_0 * tiles.tiles_1, &tiles);
}

static kernel cast_kernel(fl_dtype src, fl_dtype dst) {
#define CAST(from, to)                                    \
    if (src == FL_DTYPE_##from && dst == FL_DTYPE_##to) { \
        return CAST_##from##_##to;                        \
    }
    FL__CAST_LIST(CAST)
#undef CAST
    return CAST_ANY;
}

static fl_status copy_part(const fl_kernel_services *services, fl_device device,
                           fl_native_stream stream, const fl_view views[2]) {
    if (!fits_launch(&views[0])) {
        fl_view dst[2], src[2];
        cut(&views[0], dst);
        cut(&views[1], src);
        for (int part = 0; part < 2; part++) {
            fl_view halves[2] = {dst[part], src[part]};
            fl_views_collapse(halves, 2);
            FL_TRY(copy_part(services, device, stream, halves));
        }
        return FL_OK;
    }
    fl__copy_args args;
    size_t element = fl_dtype_size(views[0].dtype);
    if (views[0].dtype != views[1].dtype) {
        pack_copy(views, element, &args);
        const kernel which = cast_kernel(views[1].dtype, views[0].dtype);
        const uint32_t items = which == CAST_ANY
                                   ? FL__THREAD_ITEMS
                                   : FL__CAST_ITEMS(fl_dtype_size(views[1].dtype), element);
        return start(services, device, stream, which, blocks_for(args.count, items), &args);
    }
    size_t unit = widest(views, 2);
    pack_copy(views, unit, &args);
    int32_t turned = unit == element ? turned_dim(&args, element) : 0;
    if (turned > 0) {
        return start_tiles(services, device, stream, &args, turned, element);
    }
    return start(services, device, stream, by_size(unit, COPY_STRIDED_1),
                 blocks_for(args.count, FL__THREAD_ITEMS), &args);
}

static fl_status table_copy(void *ctx, fl_device device, fl_native_stream stream,
                            const fl_view *dst, const fl_view *src) {
    fl_view views[2] = {*dst, *src};
    if (fl_view_self_overlap(dst) == FL_OVERLAP_NO) {
        fl_views_sort(views, 2);
    }
    fl_views_collapse(views, 2);
    return copy_part(ctx, device, stream, views);
}

/* --- fill --------------------------------------------------------------------------------------
 */

static fl_status fill_part(const fl_kernel_services *services, fl_device device,
                           fl_native_stream stream, const fl_view *dst, const void *element) {
    if (!fits_launch(dst)) {
        fl_view parts[2];
        cut(dst, parts);
        for (int part = 0; part < 2; part++) {
            fl_views_collapse(&parts[part], 1);
            FL_TRY(fill_part(services, device, stream, &parts[part], element));
        }
        return FL_OK;
    }
    fl__fill_args args;
    memset(&args, 0, sizeof(args));
    size_t size = fl_dtype_size(dst->dtype);
    size_t unit = widest(dst, 1);
    for (size_t at = 0; at < sizeof(args.element); at += size) {
        memcpy((char *)args.element + at, element, size);
    }
    args.dst = fl_view_first(dst);
    args.ndim = dst->ndim;
    pack_shape(dst, unit, args.shape, args.dst_stride, &args.count);
    kernel which = by_size(unit, FILL_STRIDED_1);
    if (unit == 16 && args.ndim == 1 && args.dst_stride[0] == 16) {
        which = FILL_VECTORS;
    }
    return start(services, device, stream, which, blocks_for(args.count, FL__THREAD_ITEMS), &args);
}

static fl_status table_fill(void *ctx, fl_device device, fl_native_stream stream,
                            const fl_view *dst, const void *element) {
    fl_view view = *dst;
    if (fl_view_self_overlap(dst) == FL_OVERLAP_NO) {
        fl_views_sort(&view, 1);
    }
    fl_views_collapse(&view, 1);
    return fill_part(ctx, device, stream, &view, element);
}

/* --- the table ---------------------------------------------------------------------------------
 */

fl_status fl__kernels_over(const fl_kernel_services *services, const void *image, size_t bytes,
                           fl_kernels *out) {
    if (!services->launch) {
        return fl_fail(FL_NOT_SUPPORTED, "device kernels: this driver cannot start code objects");
    }
    code.image = image;
    code.bytes = bytes;
    /* A chip that does not take our code says so here, and not in the middle of a copy. */
    void *function;
    FL_TRY(find_function(services, 0, CAST_ANY, &function));
    *out = (fl_kernels){
        .struct_size = sizeof(fl_kernels),
        .version = FL_KERNELS_VERSION,
        .name = "device",
        .ctx = (void *)(uintptr_t)services,
        .fill = table_fill,
        .copy = table_copy,
    };
    return FL_OK;
}

fl_status fl_kernels_device(const fl_kernel_services *services, fl_kernels *out) {
    size_t bytes = (size_t)((uintptr_t)fl__device_image_end - (uintptr_t)fl__device_image);
    if (bytes == 0) {
        return fl_fail(FL_NOT_SUPPORTED,
                       "device kernels: this library was built without a compiler for them");
    }
    return fl__kernels_over(services, fl__device_image, bytes, out);
}
