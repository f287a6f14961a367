/*
 * options.h: what other files of the core need of the environment; everybody else uses fl/debug.h.
 *
 * The table is FL_OPTION_LIST. options.c is the only file that reads the environment.
 */
#ifndef FL_BASE_OPTIONS_H
#define FL_BASE_OPTIONS_H

#include "fl/debug.h"

/* Read the environment once. Cheap afterwards. */
void fl__options_load(void);

/* Whether a vendor's variable for the devices that a process may see, such as CUDA_VISIBLE_DEVICES,
 * is set and names none: it is empty, or begins with -1. */
bool fl__environment_hides_devices(const char *variable);

#endif
