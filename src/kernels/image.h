/*
 * image.h: the device code that the library was built with, and the table over any such code;
 * private to src/kernels and its tests.
 */
#ifndef FL_KERNELS_IMAGE_H
#define FL_KERNELS_IMAGE_H

#include "fl/kernels.h"

/* Start and end; equal where the build found no compiler for device code. */
extern const unsigned char fl__device_image[];
extern const unsigned char fl__device_image_end[];

/* fl_kernels_device over a code object of the caller's, which lives as long as the table. A process
 * has one such table: functions are kept by device. */
fl_status fl__kernels_over(const fl_kernel_services *services, const void *image, size_t bytes,
                           fl_kernels *out);

#endif
