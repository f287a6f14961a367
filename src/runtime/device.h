/*
 * runtime/device.h: what the core's other parts need of devices; users have fl/device.h.
 */
#ifndef FL_RUNTIME_DEVICE_H
#define FL_RUNTIME_DEVICE_H

#include "fl/device.h"

/* The first line of every function that takes a device: initialise if need be, refuse a forked
 * child, put the calling thread's current device in place of FL_DEVICE_CURRENT, check the range,
 * hand out the driver. After FL_OK `*device` is an index. Costs two loads once initialised. */
fl_status fl__device_enter(fl_device *device, const fl_driver **out_driver);

/* The driver if it was initialised and this process may use it, else NULL: for clean-up paths that
 * must neither fail nor start anything. */
const fl_driver *fl__device_driver(void);

#endif
