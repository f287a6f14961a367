/*
 * twins.c: chips whose PyTorch build answers to the CUDA key. Each is a row: a name, the device
 * nodes that show a card without touching it, the variable that hides cards, and the row of
 * vendors.inc whose runtime lies below. The driver itself comes from whoever knows PyTorch
 * (fl_twin_register).
 */
#include "driver/twins.h"

#include <glob.h>

#include "base/options.h"
#include "driver/vendors.h"

typedef struct twin_row {
    const char *nodes;         /* Pattern of device files, one of which must be there. */
    const char *hides;         /* The runtime's environment variable that hides devices. */
    const fl_platform *direct; /* The platform of the same runtime without a twin. */
} twin_row;

/* Written once, before the choice of a platform, by the thread that loads the adapter. */
static fl_twin_open_function twin_open;

fl_status fl_twin_register(fl_twin twin, fl_twin_open_function open) {
    if (twin != FL_TWIN_CUDA || open == NULL) {
        return fl_fail(FL_INVALID_ARGUMENT,
                       "fl_twin_register: only the CUDA key has a twin driver");
    }
    if (fl_platform_chosen() != NULL) {
        return fl_fail(FL_WRONG_STATE, "fl_twin_register: platform '%s' is already chosen",
                       fl_platform_chosen()->name);
    }
    twin_open = open;
    return FL_OK;
}

static fl_status probe(const fl_platform *platform) {
    const twin_row *row = platform->data;
    if (twin_open == NULL) {
        return fl_fail(FL_UNAVAILABLE, "this PyTorch was built without CUDA");
    }
    if (fl__environment_hides_devices(row->hides)) {
        return fl_fail(FL_UNAVAILABLE, "%s hides every device", row->hides);
    }
    glob_t found;
    int missing = glob(row->nodes, 0, NULL, &found);
    if (missing == 0) {
        globfree(&found);
        return FL_OK;
    }
    return fl_fail(FL_UNAVAILABLE, "there is no device file %s", row->nodes);
}

static fl_status open_twin(const fl_platform *platform, const fl_driver **out_driver) {
    const twin_row *row = platform->data;
    if (twin_open == NULL) {
        return fl_fail(FL_UNAVAILABLE, "platform '%s': this PyTorch was built without CUDA",
                       platform->name);
    }
    /* Where the runtime cannot be opened, what only it can tell (properties) stays unknown. */
    const fl_driver *runtime = NULL;
    (void)row->direct->open(row->direct, &runtime);
    return twin_open(platform, runtime, out_driver);
}

#define FL_TWIN_PLATFORM(id, order, node_pattern, variable) \
    static const twin_row row_##id = {                      \
        .nodes = node_pattern,                              \
        .hides = variable,                                  \
        .direct = &fl__platform_##id##_direct,              \
    };                                                      \
    const fl_platform fl__platform_##id = {                 \
        .name = #id,                                        \
        .twin = FL_TWIN_CUDA,                               \
        .probe_order = order,                               \
        .probe = probe,                                     \
        .open = open_twin,                                  \
        .data = &row_##id,                                  \
    };

FL_TWIN_PLATFORM(cuda, 10, "/dev/nvidia[0-9]*", "CUDA_VISIBLE_DEVICES")
FL_TWIN_PLATFORM(metax, 11, "/dev/mxcd", "MACA_VISIBLE_DEVICES")
FL_TWIN_PLATFORM(ppu, 12, "/dev/alixpu[0-9]*", "CUDA_VISIBLE_DEVICES")
FL_TWIN_PLATFORM(dcu, 13, "/dev/kfd", "HIP_VISIBLE_DEVICES")
