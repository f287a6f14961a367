/*
 * sim.c: the table of the simulated device, and its platform.
 *
 * Relies on sim_memory.c, sim_stream.c and sim_work.c for what the slots do, and on options for how
 * many devices there are and how large. Does not know what tests expect of it.
 */
#include "driver/sim.h"

#include <stdio.h>

#include "driver/sim_state.h"
#include "fl/debug.h"

static fl_status sim_init(void *ctx) {
    (void)ctx;
    fl__lock(&fl__sim.lock);
    if (!fl__sim.is_started) {
        fl__sim.is_started = true;
        fl__sim.device_count = (int32_t)fl_option_int(FL_OPT_SIM_DEVICES);
        fl__sim.delay_us = fl_option_int(FL_OPT_SIM_DELAY_US);
        size_t bytes = (size_t)fl_option_int(FL_OPT_SIM_MEMORY);
        for (int32_t i = 0; i < fl__sim.device_count; i++) {
            fl__sim.devices[i].bytes =
                bytes / 65536 * 65536; /* Whole pages, whatever their size. */
            fl__list_init(&fl__sim.devices[i].streams);
        }
    }
    fl__unlock(&fl__sim.lock);
    return FL_OK;
}

static fl_status sim_device_count(void *ctx, int32_t *out_count) {
    (void)ctx;
    *out_count = fl__sim.device_count;
    return FL_OK;
}

static fl_status sim_device_properties(void *ctx, fl_device device, fl_device_properties *out) {
    (void)ctx;
    (void)snprintf(out->name, sizeof(out->name), "Simulated device");
    (void)snprintf(out->uuid, sizeof(out->uuid), "sim-%d", device);
    out->total_memory = fl__sim.devices[device].bytes;
    out->processor_count = 1;
    return FL_OK;
}

static fl_status sim_priority_range(void *ctx, fl_device device, int32_t *out_least,
                                    int32_t *out_greatest) {
    (void)ctx;
    (void)device;
    *out_least = 0;
    *out_greatest = SIM_PRIORITY_GREATEST;
    return FL_OK;
}

static fl_status sim_peer_can_access(void *ctx, fl_device device, fl_device peer, bool *out_can) {
    (void)ctx;
    (void)device;
    (void)peer;
    *out_can = true;
    return FL_OK;
}

static fl_status sim_is_capturing(void *ctx, fl_device device, fl_native_stream stream,
                                  bool *out_capturing) {
    (void)ctx;
    (void)device;
    (void)stream;
    *out_capturing = false;
    return FL_OK;
}

static const fl_driver sim_driver = {
    .struct_size = sizeof(fl_driver),
    .version = FL_DRIVER_VERSION,
    .name = "sim",
    .ctx = NULL,
    .capabilities = FL_CAP_HOST_FUNCTIONS,
    .init = sim_init,
    .device_count = sim_device_count,
    .device_properties = sim_device_properties,
    .device_synchronize = fl__sim_device_synchronize,
    .mem_alloc = fl__sim_mem_alloc,
    .mem_free = fl__sim_mem_free,
    .host_alloc = fl__sim_host_alloc,
    .host_free = fl__sim_host_free,
    .copy = fl__sim_copy,
    .fill = fl__sim_fill,
    .stream_create = fl__sim_stream_create,
    .stream_destroy = fl__sim_stream_destroy,
    .stream_query = fl__sim_stream_query,
    .stream_synchronize = fl__sim_stream_synchronize,
    .event_create = fl__sim_event_create,
    .event_destroy = fl__sim_event_destroy,
    .event_record = fl__sim_event_record,
    .event_query = fl__sim_event_query,
    .event_synchronize = fl__sim_event_synchronize,
    .stream_wait_event = fl__sim_stream_wait_event,
    .mem_info = fl__sim_mem_info,
    .stream_priority_range = sim_priority_range,
    .event_elapsed_ms = fl__sim_event_elapsed_ms,
    .peer_can_access = sim_peer_can_access,
    .copy_peer = fl__sim_copy_peer,
    .copy_2d = fl__sim_copy_2d,
    .stream_host_call = fl__sim_stream_host_call,
    .stream_is_capturing = sim_is_capturing,
    .module_load = NULL, /* Kernels for it are functions of the host. */
    .module_function = NULL,
    .launch = NULL,
    .limits = NULL,
};

const fl_driver *fl__sim_driver(void) {
    return &sim_driver;
}

static fl_status sim_probe(const fl_platform *platform) {
    (void)platform;
    return FL_OK;
}

static fl_status sim_open(const fl_platform *platform, const fl_driver **out_driver) {
    (void)platform;
    *out_driver = &sim_driver;
    return FL_OK;
}

const fl_platform fl__platform_sim = {
    .name = "sim",
    .twin = FL_TWIN_NONE,
    .probe_order = -1, /* Only when it is asked for. */
    .probe = sim_probe,
    .open = sim_open,
    .data = NULL,
};
