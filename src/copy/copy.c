/*
 * copy.c: the two functions that users of copies call.
 *
 * Checks the views, and takes what needs no copy at all: nothing to do, and one value for many
 * elements. Does not know how copies are planned or run.
 */
#include "fl/copy.h"

#include "copy/plan.h"
#include "copy/run.h"
#include "driver/call.h"
#include "fl/debug.h"
#include "fl/kernels.h"
#include "runtime/device.h"

#include <string.h>

enum { ELEMENT_MOST = 16 }; /* Bytes of the largest dtype. */

static bool has_shape_of(const fl_view *view, const fl_view *other) {
    return view->ndim == other->ndim &&
           memcmp(view->shape, other->shape, (size_t)view->ndim * sizeof(view->shape[0])) == 0;
}

/* Whether all bytes of the element are the same, as those of every zero. */
static bool is_one_byte(const unsigned char *element, size_t size) {
    for (size_t i = 1; i < size; i++) {
        if (element[i] != element[0]) {
            return false;
        }
    }
    return true;
}

/* With TORCH_FL_LAUNCH_BLOCKING what was launched has run when the call returns. */
static fl_status wait_if_blocking(fl_place place) {
    if (place.kind == FL_PLACE_HOST || !fl_option_bool(FL_OPT_LAUNCH_BLOCKING)) {
        return FL_OK;
    }
    return fl_stream_synchronize(place.device, place.stream);
}

/* On a device; the view was checked and has elements. */
static fl_status fill_device(const fl_view *dst, fl_place place, const void *element) {
    const fl_driver *driver;
    fl_native_stream native;
    FL_TRY(fl__device_enter(&place.device, &driver));
    FL_TRY(fl_stream_native(place.device, place.stream, &native));
    size_t size = fl_dtype_size(dst->dtype);
    if (is_one_byte(element, size) && fl_view_is_dense(dst)) {
        return fl__drv_fill(driver, place.device, fl_view_first(dst), *(const uint8_t *)element,
                            fl_view_nbytes(dst), native);
    }
    const fl_kernels *kernels;
    if (fl_kernels_get(&kernels) == FL_OK) {
        return kernels->fill(kernels->ctx, place.device, native, dst, element);
    }
    unsigned char value[ELEMENT_MOST];
    memcpy(value, element, size);
    fl_view scalar = {.data = value, .dtype = dst->dtype};
    fl_view spread;
    FL_TRY(fl_view_expand(&scalar, dst->ndim, dst->shape, &spread));
    return fl__copy_run(dst, place, &spread, fl_place_host(), true);
}

fl_status fl_fill_view(const fl_view *dst, fl_place place, const void *element) {
    FL_TRY(fl_view_check(dst));
    if (fl_view_numel(dst) == 0) {
        return FL_OK;
    }
    FL_TRY(fl__copy_check_target(dst));
    if (place.kind == FL_PLACE_DEVICE) {
        FL_TRY(fill_device(dst, place, element));
        return wait_if_blocking(place);
    }
    fl_host_fill(dst, element);
    return FL_OK;
}

fl_status fl_copy_view(const fl_view *dst, fl_place dst_place, const fl_view *src,
                       fl_place src_place, bool non_blocking) {
    FL_TRY(fl_view_check(dst));
    FL_TRY(fl_view_check(src));
    fl_view spread;
    const fl_view *shaped = src;
    if (!has_shape_of(src, dst)) {
        FL_TRY(fl_view_expand(src, dst->ndim, dst->shape, &spread));
        shaped = &spread;
    }
    if (fl_view_numel(dst) == 0) {
        return FL_OK;
    }
    if (src_place.kind == FL_PLACE_HOST && dst_place.kind == FL_PLACE_DEVICE &&
        fl_view_numel(src) == 1) {
        /* The value travels with the launch: there is no transfer to wait for. */
        unsigned char value[ELEMENT_MOST];
        fl_view one = {.data = fl_view_first(src), .dtype = src->dtype};
        fl_view cast = {.data = value, .dtype = dst->dtype};
        fl_host_copy(&cast, &one);
        FL_TRY(fl__copy_check_target(dst));
        FL_TRY(fill_device(dst, dst_place, value));
        return wait_if_blocking(dst_place);
    }
    FL_TRY(fl__copy_run(dst, dst_place, shaped, src_place, non_blocking));
    FL_TRY(wait_if_blocking(dst_place));
    return wait_if_blocking(src_place);
}
