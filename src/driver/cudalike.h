/*
 * cudalike.h: one driver for every vendor whose runtime has CUDA's shape.
 *
 * A vendor is a row: its prefix, its libraries and what it does differently. Rows come from
 * vendors.inc, from a rows file (rows.c) or from a test. Must not know any vendor.
 */
#ifndef FL_SRC_DRIVER_CUDALIKE_H
#define FL_SRC_DRIVER_CUDALIKE_H

#include "fl/driver.h"

enum {
    FL__ROW_LIBRARIES = 8,
    FL__ROW_DIRECTORIES = 12,
    FL__ROW_RENAMES = 12,
    FL__ROW_ERRORS = 8,
    FL__ROW_LIMITS = 8,
    FL__ROW_NAME_MAX = 96, /* Bytes of a function's name, end mark included. */
};

typedef enum fl__cudalike_quirk {
    /* Copies between devices have no ordered form that can be trusted: wait for the stream, then
     * use the synchronous one with the source's device current. */
    FL__QUIRK_PEER_COPY_WAITS = 1 << 0,
    /* The flags of page-locked memory have unknown numbers; memory is portable without any. */
    FL__QUIRK_HOST_FLAGS_ARE_ZERO = 1 << 1,
    /* The runtime's name is another vendor's too: what lies in the row's directories is meant,
     * rather than what the loader would find. */
    FL__QUIRK_DIRECTORIES_FIRST = 1 << 2,
} fl__cudalike_quirk;

/* Numbers of the vendor's attribute enum; -1 where unknown. */
typedef struct fl__cudalike_attributes {
    int32_t major, minor, processors, warp, integrated;
} fl__cudalike_attributes;

typedef struct fl__cudalike_row {
    const char *name;   /* Of the platform and of the driver. */
    const char *maker;  /* For people, and as a device name where the vendor gives none. */
    const char *prefix; /* Of the runtime's functions: "cuda". */
    /* Names to try in order, newest first. */
    const char *libraries[FL__ROW_LIBRARIES];
    /* Where code objects are loaded, when that is not the runtime itself: "cu", "libcuda.so.1". */
    const char *module_prefix;
    const char *module_libraries[FL__ROW_LIBRARIES];
    /* Searched last; "$NAME/lib" begins with an environment variable that holds the SDK's root. */
    const char *directories[FL__ROW_DIRECTORIES];
    /* Pairs of the usual suffix and the vendor's; "" drops a function that cannot be trusted. */
    struct {
        const char *usual, *own;
    } renames[FL__ROW_RENAMES];
    uint32_t quirks;
    int32_t min_version; /* As RuntimeGetVersion answers; 0: any. */
    /* Offsets in the properties struct; -1: not known, the name and total functions are used. */
    int32_t properties_total, properties_uuid;
    fl__cudalike_attributes attributes;
    /* Numbers of the vendor's own beside CUDA's. */
    struct {
        int32_t code;
        fl_status status;
    } errors[FL__ROW_ERRORS];
    /* Conformance cases that cannot pass, ended by a NULL name. */
    fl_driver_limit limits[FL__ROW_LIMITS];
} fl__cudalike_row;

/* Open the vendor's library and look its functions up; once that worked, later calls for the row
 * give the same table. FL_UNAVAILABLE says which library, or which function, is missing. The row
 * must live as long as the process. */
fl_status fl__cudalike_load(const fl__cudalike_row *row, const fl_driver **out_driver);

/* Whether there is a function of this usual suffix, which a row may rename or drop. */
bool fl__cudalike_has_function(const char *suffix);
/* Whether the names of all functions of a row have room. */
bool fl__cudalike_names_fit(const fl__cudalike_row *row);

/* For fl_platform, whose data is a row. */
fl_status fl__cudalike_probe(const fl_platform *platform);
fl_status fl__cudalike_open(const fl_platform *platform, const fl_driver **out_driver);

#endif
