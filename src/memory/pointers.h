/*
 * pointers.h: the one registry of address ranges that the library knows; private to src/memory.
 *
 * A range is a segment of a device cache or a pinned block, as the driver gave it. Changing the
 * registry and looking something up exclude one another; the owner of a range removes it before it
 * frees what the range points at.
 */
#ifndef FL_MEMORY_POINTERS_H
#define FL_MEMORY_POINTERS_H

#include "fl/memory.h"

typedef struct fl__range {
    uintptr_t base, end; /* End excluded. */
    fl_pointer_kind kind;
    fl_device device;
    void *owner; /* fl__segment or fl__pinned_block */
} fl__range;

/* FL_OUT_OF_MEMORY leaves the registry as it was. */
fl_status fl__pointers_add(const fl__range *range);
/* The room that the range took stays, so that adding one again cannot fail. */
void fl__pointers_remove(uintptr_t base);

/* The range that holds an address, NULL if none does; the registry is locked for reading until
 * fl__pointers_leave, whatever the answer. */
const fl__range *fl__pointers_enter(const void *ptr);
void fl__pointers_leave(void);

/* The live block around an address of a pinned range; false where there is none. For lookups. */
bool fl__pinned_describe(void *owner, fl_pointer_info *out_info);

#endif
