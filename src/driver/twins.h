/*
 * twins.h: platforms that PyTorch itself drives; see fl_twin_register in fl/driver.h.
 */
#ifndef FL_SRC_DRIVER_TWINS_H
#define FL_SRC_DRIVER_TWINS_H

#include "fl/driver.h"

extern const fl_platform fl__platform_cuda, fl__platform_metax, fl__platform_ppu, fl__platform_dcu;

#endif
