/*
 * platforms.c: the built-in platforms, one line each. Adding one to the library is a line here.
 * Order has no meaning; each platform's probe_order has.
 */
#include "driver/host.h"
#include "driver/registry.h"
#include "driver/sim.h"
#include "driver/twins.h"
#include "driver/vendors.h"

const fl_platform *const fl__platforms_builtin[] = {
    &fl__platform_cpu,    &fl__platform_sim,        &fl__platform_cuda,
    &fl__platform_metax,  &fl__platform_ppu,        &fl__platform_dcu,
#define FL_VENDOR(id, ...) &fl__platform_##id,
#include "driver/vendors.inc"
#undef FL_VENDOR
    &fl__platform_ascend, &fl__platform_tsingmicro, NULL,
};
