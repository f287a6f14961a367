/*
 * kernels.h: seam C, a table of kernel launchers.
 *
 * A table belongs to one driver. The host table (src/kernels/host.c) is the reference and serves
 * drivers whose host functions may touch device memory; the device table (src/kernels/device.c)
 * starts code objects that were compiled from the CUDA C files beside it. Entries are asynchronous
 * in the sense of fl/driver.h. Views are read before an entry returns. Streams are opaque.
 *
 * Names of device functions follow a grammar, told in docs/kernels.md:
 *     fl_<family>_<what>[_<element or dtypes>][_v<elements a thread moves at once>]
 */
#ifndef FL_KERNELS_H
#define FL_KERNELS_H

#include "fl/driver.h"
#include "fl/view.h"

FL_EXTERN_C_BEGIN

/* Raised when an entry is added (append only, never reordered). */
#define FL_KERNELS_VERSION 1u

typedef struct fl_kernels {
    /* --- version 1 ------------------------------------------------------------------------- */
    uint32_t struct_size; /* sizeof(fl_kernels) where the table was compiled. */
    uint32_t version;     /* FL_KERNELS_VERSION where the table was compiled. */
    const char *name;     /* "host" or "device". Static. */
    void *ctx;            /* The table's own; passed back unread. */

    /* Every entry expects views that satisfy fl_view_check, with elements, on `device`. */

    /* dst[i] = the element, which has dst's dtype. */
    fl_status (*fill)(void *ctx, fl_device device, fl_native_stream stream, const fl_view *dst,
                      const void *element);
    /* dst[i] = src[i], cast; same shape. The views share no byte, or are the same elements in the
     * same order with dtypes of the same size. */
    fl_status (*copy)(void *ctx, fl_device device, fl_native_stream stream, const fl_view *dst,
                      const fl_view *src);
    /* --- end of version 1 ------------------------------------------------------------------- */
} fl_kernels;

/* What a table may ask of its driver. Errors are those of the driver's slots. */
typedef struct fl_kernel_services {
    const void *user; /* Passed back to each. */
    /* In stream order, on a thread of the driver; NULL where host functions must not touch device
     * memory. */
    fl_status (*host_call)(const void *user, fl_device device, fl_native_stream stream,
                           void (*function)(void *argument), void *argument);
    /* NULL, all three, where the driver cannot start code objects. */
    fl_status (*module_load)(const void *user, fl_device device, const void *image, size_t bytes,
                             void **out_module);
    fl_status (*module_function)(const void *user, fl_device device, void *module, const char *name,
                                 void **out_function);
    fl_status (*launch)(const void *user, fl_device device, void *function, const uint32_t grid[3],
                        const uint32_t block[3], uint32_t shared_bytes, fl_native_stream stream,
                        void **arguments);
} fl_kernel_services;

/* The two tables: fill `out`, whose ctx refers to `services`, which must live as long. NULL is no
 * answer: FL_NOT_SUPPORTED where the services do not suffice, or where the library was built
 * without a compiler for device code. */
FL_API fl_status fl_kernels_host(const fl_kernel_services *services, fl_kernels *out);
FL_API fl_status fl_kernels_device(const fl_kernel_services *services, fl_kernels *out);

/* The table of the chosen driver: the device's if it can start our code objects, else the host's if
 * its host functions reach device memory, else FL_NOT_SUPPORTED (kept, and without a message after
 * the first time). Thread-safe; cheap after the first call. */
FL_API fl_status fl_kernels_get(const fl_kernels **out_kernels);

/* --- the reference, at once and on host memory --------------------------------------------------
 */

/* Same contracts as the entries of the table; cannot fail. */
FL_API void fl_host_fill(const fl_view *dst, const void *element);
FL_API void fl_host_copy(const fl_view *dst, const fl_view *src);

FL_EXTERN_C_END
#endif
