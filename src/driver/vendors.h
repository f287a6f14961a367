/*
 * vendors.h: the platforms of vendors' runtimes, each without a twin.
 */
#ifndef FL_SRC_DRIVER_VENDORS_H
#define FL_SRC_DRIVER_VENDORS_H

#include "fl/driver.h"

#define FL_VENDOR(id, ...) extern const fl_platform fl__platform_##id;
#include "driver/vendors.inc"
#undef FL_VENDOR

extern const fl_platform fl__platform_ascend;
extern const fl_platform fl__platform_tsingmicro;

#endif
