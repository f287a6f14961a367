/*
 * registry.h: the platforms that are built in, and what they share with those that come from
 * elsewhere; users of platforms have fl/driver.h.
 */
#ifndef FL_DRIVER_REGISTRY_H
#define FL_DRIVER_REGISTRY_H

#include "fl/driver.h"

/* Every built-in platform, in any order (probe_order decides); ends with NULL. Its definition in
 * platforms.c is the one place where a platform is added to the library. */
extern const fl_platform *const fl__platforms_builtin[];

/* What a platform may be called, and the words for one that is called otherwise. */
bool fl__is_platform_name(const char *name);
#define FL__PLATFORM_NAME_RULE "a name is made of small letters, digits, '-' and '_'"

/* The platform's probe. On any status but FL_OK the last message is its reason, or says that it
 * gave none. */
fl_status fl__platform_probe(const fl_platform *platform);

#endif
