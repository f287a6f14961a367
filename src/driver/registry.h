/*
 * registry.h: the platforms that are built in; users of platforms have fl/driver.h.
 */
#ifndef FL_DRIVER_REGISTRY_H
#define FL_DRIVER_REGISTRY_H

#include "fl/driver.h"

/* Every built-in platform, in any order (probe_order decides); ends with NULL. Its definition in
 * platforms.c is the one place where a platform is added to the library. */
extern const fl_platform *const fl__platforms_builtin[];

#endif
