/*
 * vendors.c: makes a platform of each row of vendors.inc. Relies on cudalike.h for probe and open.
 */
#include "driver/vendors.h"

#include "driver/cudalike.h"

#define FL_VENDOR(id, row_name, order, ...)                                   \
    static const fl__cudalike_row row_##id = {.name = row_name, __VA_ARGS__}; \
    const fl_platform fl__platform_##id = {                                   \
        .name = row_name,                                                     \
        .twin = FL_TWIN_NONE,                                                 \
        .probe_order = order,                                                 \
        .probe = fl__cudalike_probe,                                          \
        .open = fl__cudalike_open,                                            \
        .data = &row_##id,                                                    \
    };
#include "driver/vendors.inc"
#undef FL_VENDOR
