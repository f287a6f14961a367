/*
 * call.h: one function a slot of the driver table; nobody else calls through the table.
 *
 * Each function asserts what the slot's contract asks of its caller, answers what never reaches a
 * slot (sizes of 0, a NULL pointer to free), supplies the default of an optional slot that is NULL,
 * traces (category `call`) and refuses a status that is none. Arguments and results are those of
 * the slot of the same name in fl/driver.h, with the table in place of its ctx. Does not know which
 * vendor answers; keeps no state, so that a test may use several tables at once.
 */
#ifndef FL_DRIVER_CALL_H
#define FL_DRIVER_CALL_H

#include "fl/driver.h"

/* --- questions without a call ------------------------------------------------------------------
 */

static inline bool fl__drv_has(const fl_driver *drv, fl_driver_capability capability) {
    return (drv->capabilities & (uint32_t)capability) != 0;
}

static inline bool fl__drv_has_copy_peer(const fl_driver *drv) {
    return drv->copy_peer != NULL;
}

static inline bool fl__drv_has_copy_2d(const fl_driver *drv) {
    return drv->copy_2d != NULL;
}

static inline bool fl__drv_has_host_call(const fl_driver *drv) {
    return drv->stream_host_call != NULL;
}

static inline bool fl__drv_has_launch(const fl_driver *drv) {
    return drv->module_load && drv->module_function && drv->launch;
}

/* --- devices -----------------------------------------------------------------------------------
 */

fl_status fl__drv_init(const fl_driver *drv);
/* Never negative and at most FL_DEVICE_MAX: more devices than that are not shown. */
fl_status fl__drv_device_count(const fl_driver *drv, int32_t *out_count);
/* The struct is zeroed before the driver fills it; the name is never empty afterwards. */
fl_status fl__drv_device_properties(const fl_driver *drv, fl_device device,
                                    fl_device_properties *out);
fl_status fl__drv_device_synchronize(const fl_driver *drv, fl_device device);

/* --- memory ------------------------------------------------------------------------------------
 */

/* 0 bytes: NULL and FL_OK. */
fl_status fl__drv_mem_alloc(const fl_driver *drv, fl_device device, size_t bytes, void **out_ptr);
fl_status fl__drv_mem_free(const fl_driver *drv, fl_device device, void *ptr);
fl_status fl__drv_host_alloc(const fl_driver *drv, size_t bytes, void **out_ptr);
fl_status fl__drv_host_free(const fl_driver *drv, void *ptr);
/* FL_NOT_SUPPORTED where the driver has no such slot. */
fl_status fl__drv_mem_info(const fl_driver *drv, fl_device device, uint64_t *out_free,
                           uint64_t *out_total);

fl_status fl__drv_copy(const fl_driver *drv, fl_device device, void *dst, const void *src,
                       size_t bytes, fl_copy_kind kind, fl_native_stream stream);
fl_status fl__drv_fill(const fl_driver *drv, fl_device device, void *dst, uint8_t value,
                       size_t bytes, fl_native_stream stream);
/* FL_NOT_SUPPORTED where the driver has no such slot: the caller goes through the host. */
fl_status fl__drv_copy_peer(const fl_driver *drv, void *dst, fl_device dst_device, const void *src,
                            fl_device src_device, size_t bytes, fl_native_stream stream);
/* Where the driver has no such slot: one copy when both sides are contiguous, else a copy a row. */
fl_status fl__drv_copy_2d(const fl_driver *drv, fl_device device, void *dst, size_t dst_pitch,
                          const void *src, size_t src_pitch, size_t width, size_t rows,
                          fl_copy_kind kind, fl_native_stream stream);
/* true without a call for a device and itself; false where the driver has no such slot. */
fl_status fl__drv_peer_can_access(const fl_driver *drv, fl_device device, fl_device peer,
                                  bool *out_can);

/* --- streams -----------------------------------------------------------------------------------
 */

fl_status fl__drv_stream_create(const fl_driver *drv, fl_device device, int32_t priority,
                                fl_native_stream *out_stream);
fl_status fl__drv_stream_destroy(const fl_driver *drv, fl_device device, fl_native_stream stream);
fl_status fl__drv_stream_query(const fl_driver *drv, fl_device device, fl_native_stream stream);
fl_status fl__drv_stream_synchronize(const fl_driver *drv, fl_device device,
                                     fl_native_stream stream);
fl_status fl__drv_stream_wait_event(const fl_driver *drv, fl_device device, fl_native_stream stream,
                                    fl_native_event event);
/* 0, 0 where the driver has no such slot. */
fl_status fl__drv_stream_priority_range(const fl_driver *drv, fl_device device, int32_t *out_least,
                                        int32_t *out_greatest);
/* FL_NOT_SUPPORTED where the driver has no such slot. */
fl_status fl__drv_stream_host_call(const fl_driver *drv, fl_device device, fl_native_stream stream,
                                   void (*function)(void *argument), void *argument);
/* false where the driver has no such slot. */
fl_status fl__drv_stream_is_capturing(const fl_driver *drv, fl_device device,
                                      fl_native_stream stream, bool *out_capturing);

/* --- events ------------------------------------------------------------------------------------
 */

fl_status fl__drv_event_create(const fl_driver *drv, fl_device device, uint32_t flags,
                               fl_native_event *out_event);
fl_status fl__drv_event_destroy(const fl_driver *drv, fl_device device, fl_native_event event);
fl_status fl__drv_event_record(const fl_driver *drv, fl_device device, fl_native_event event,
                               fl_native_stream stream);
fl_status fl__drv_event_query(const fl_driver *drv, fl_device device, fl_native_event event);
fl_status fl__drv_event_synchronize(const fl_driver *drv, fl_device device, fl_native_event event);
/* FL_NOT_SUPPORTED where the driver has no such slot. */
fl_status fl__drv_event_elapsed_ms(const fl_driver *drv, fl_device device, fl_native_event start,
                                   fl_native_event end, double *out_ms);

/* --- code --------------------------------------------------------------------------------------
 */

/* FL_NOT_SUPPORTED where the driver has no such slots. */
fl_status fl__drv_module_load(const fl_driver *drv, fl_device device, const void *image,
                              size_t bytes, void **out_module);
fl_status fl__drv_module_function(const fl_driver *drv, fl_device device, void *module,
                                  const char *name, void **out_function);
/* A grid with a 0 in it is FL_OK without a call. */
fl_status fl__drv_launch(const fl_driver *drv, fl_device device, void *function,
                         const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
                         fl_native_stream stream, void **arguments);

#endif
