/*
 * host.h: the host as a device, and its platform `cpu`.
 */
#ifndef FL_DRIVER_HOST_H
#define FL_DRIVER_HOST_H

#include "fl/driver.h"

extern const fl_platform fl__platform_cpu;

/* What other drivers on this machine may want to say about it. The brand of the processor, never
 * empty. */
void fl__host_processor_name(char *out_name, size_t size);
/* Bytes, from the kernel; both 0 if it does not say. */
void fl__host_memory(uint64_t *out_free, uint64_t *out_total);

#endif
