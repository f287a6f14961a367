/*
 * external_driver.c: a driver as somebody else would ship it, in a shared object of its own; and
 * the same with one thing wrong, chosen at compile time.
 */
#include "driver/host.h"

#ifndef EXTERNAL_NO_QUERY

FL_API const fl_driver *fl_driver_query(uint32_t version);

#if defined(EXTERNAL_NO_DEVICE)
static fl_status count_none(void *ctx, int32_t *out_count) {
    (void)ctx;
    *out_count = 0;
    return FL_OK;
}
#elif defined(EXTERNAL_NO_INIT)
static fl_status fail_init(void *ctx) {
    (void)ctx;
    return FL_UNAVAILABLE; /* And does not say why. */
}
#endif

FL_API const fl_driver *fl_driver_query(uint32_t version) {
    static fl_driver table;
    const fl_driver *host = NULL;
    if (version < 1 || fl__platform_cpu.open(&fl__platform_cpu, &host)) {
        return NULL;
    }
    table = *host;
    table.name = "external";
#if defined(EXTERNAL_OLD_VERSION)
    table.version = 77;
#elif defined(EXTERNAL_SHORT_TABLE)
    table.struct_size = 96;
#elif defined(EXTERNAL_MISSING_SLOTS)
    table.copy = NULL;
    table.event_query = NULL;
#elif defined(EXTERNAL_REFUSES)
    (void)fl_fail(FL_UNAVAILABLE, "the card is asleep");
    return NULL;
#elif defined(EXTERNAL_SILENT)
    return NULL;
#elif defined(EXTERNAL_NO_DEVICE)
    table.device_count = count_none;
#elif defined(EXTERNAL_NO_INIT)
    table.init = fail_init;
#elif defined(EXTERNAL_TAKEN_NAME)
    table.name = "sim";
#elif defined(EXTERNAL_BAD_NAME)
    table.name = "My Chip";
#endif
    return &table;
}

#endif
