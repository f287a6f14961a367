/*
 * rig.h: the simulated device as the chosen platform of a test, plain or inside a wrapper.
 */
#ifndef FL_TESTS_RIG_H
#define FL_TESTS_RIG_H

#include "driver/wrap.h"
#include "fl/stream.h"

/* `devices` and `memory` are option values, NULL for the usual ones. Each test is a process of its
 * own and uses one of these once. */
void rig_sim(const char *devices, const char *memory);

/* Every call goes through a table that can be made to fail. */
fl__fault *rig_faulty(const char *devices, const char *memory);

/* Every call is written down. */
fl__call_trace *rig_traced(const char *devices, const char *memory);

/* Without host functions, pitched copies and copies between devices: what the least of vendors
 * offers. */
void rig_bare(const char *devices, const char *memory);

/* With slots that start the device code of the .cu files, on the host and in stream order; without
 * host functions. */
void rig_with_code(const char *devices, const char *memory);

/* Sends a task to the stream that does not end before rig_release; one at a time. */
void rig_block(fl_device device, fl_stream stream);
void rig_release(void);

#endif
