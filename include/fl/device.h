/*
 * device.h: devices of the chosen platform and the calling thread's current one.
 *
 * Everything may be called from any thread. The first call that needs a device initialises the
 * driver (once, under a lock); in a child forked after that every call answers FL_BAD_FORK.
 */
#ifndef FL_DEVICE_H
#define FL_DEVICE_H

#include "fl/driver.h"

FL_EXTERN_C_BEGIN

/* Initialise the driver. Idempotent. */
FL_API fl_status fl_device_init(void);
FL_API bool fl_device_is_initialized(void);

/* True in a child that was forked after the parent had initialised. */
FL_API bool fl_device_in_bad_fork(void);

/* Number of devices; 0 (never an error) when nothing can be used. Does not make a context. */
FL_API int32_t fl_device_count(void);

/* FL_OK if 0 <= device < count, else FL_OUT_OF_RANGE with a message that says how many there are.
 */
FL_API fl_status fl_device_check(fl_device device);

FL_API fl_device fl_device_current(void);
FL_API fl_status fl_device_set_current(fl_device device);

/* Filled once a device and kept. The struct lives as long as the process. */
FL_API fl_status fl_device_get_properties(fl_device device, const fl_device_properties **out);

FL_API fl_status fl_device_synchronize(fl_device device);
FL_API fl_status fl_device_can_access_peer(fl_device device, fl_device peer, bool *out_can);

/* FL_NOT_SUPPORTED where the driver cannot tell. Bytes. */
FL_API fl_status fl_device_memory_info(fl_device device, uint64_t *out_free, uint64_t *out_total);

FL_EXTERN_C_END
#endif
