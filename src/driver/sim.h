/*
 * sim.h: the simulated device, and what tests and fakes may ask of it.
 *
 * The platform `sim` is a driver like any other: streams are threads, device memory cannot be read
 * or written by the host outside of a function that runs in stream order (the slot
 * stream_host_call), and it is never chosen unless it is asked for by name. It refuses what real
 * devices answer with silent corruption: pointers of another place, ranges outside of a block,
 * frees of blocks that queued work still uses.
 */
#ifndef FL_DRIVER_SIM_H
#define FL_DRIVER_SIM_H

#include "fl/driver.h"

extern const fl_platform fl__platform_sim;

/* The table itself, for fakes of vendors' runtimes that are built on it. */
const fl_driver *fl__sim_driver(void);

/* The device of a pointer into a live block, -1 for any other pointer. Vendors' pointer queries. */
fl_device fl__sim_device_of(const void *ptr);

/* Whether a pointer lies in a live block of the slot host_alloc. */
bool fl__sim_is_pinned(const void *ptr);

#endif
