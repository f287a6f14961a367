/*
 * platforms.c: the built-in platforms, one line each. Adding one to the library is a line here.
 * Order has no meaning; each platform's probe_order has.
 */
#include "driver/host.h"
#include "driver/registry.h"

const fl_platform *const fl__platforms_builtin[] = {
    &fl__platform_cpu,
    NULL,
};
