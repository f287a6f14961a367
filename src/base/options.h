/*
 * options.h: what the other files of base need of the options; everybody else uses fl/debug.h.
 *
 * The table is FL_OPTION_LIST. options.c is the only file that reads the environment.
 */
#ifndef FL_BASE_OPTIONS_H
#define FL_BASE_OPTIONS_H

#include "fl/debug.h"

/* Read the environment once. Cheap afterwards. */
void fl__options_load(void);

#endif
