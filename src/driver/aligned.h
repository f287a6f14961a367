/*
 * aligned.h: device blocks of vendors that promise less than the 256 bytes of fl/driver.h.
 *
 * Such a block is asked for with room to move its start; what the vendor gave is remembered here,
 * because the host cannot write it in front of the block. Only moved blocks are in the list, and
 * the cache above a driver asks for few. Must not know any vendor.
 */
#ifndef FL_SRC_DRIVER_ALIGNED_H
#define FL_SRC_DRIVER_ALIGNED_H

#include "fl/driver.h"

enum { FL__BLOCK_ALIGNMENT = 256 };

static inline bool fl__aligned_is(const void *ptr) {
    return (uintptr_t)ptr % FL__BLOCK_ALIGNMENT == 0;
}

static inline void *fl__aligned_up(void *ptr) {
    uintptr_t address = (uintptr_t)ptr;
    return (char *)ptr +
           (FL__BLOCK_ALIGNMENT - address % FL__BLOCK_ALIGNMENT) % FL__BLOCK_ALIGNMENT;
}

/* Remember that `ptr` lies in the vendor's block `base`. Devices may use the same addresses. */
fl_status fl__aligned_keep(fl_device device, void *ptr, void *base);

/* The vendor's pointer for `ptr`: its base, or itself if it was not moved. */
void *fl__aligned_base(fl_device device, void *ptr);

/* After the base was freed; nothing happens to a block that was not moved. */
void fl__aligned_forget(fl_device device, void *ptr);

#endif
