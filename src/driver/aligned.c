/*
 * aligned.c: the list of blocks whose start was moved. Must not know any vendor.
 */
#include "driver/aligned.h"

#include <stdlib.h>

#include "base/thread.h"

typedef struct moved {
    struct moved *next;
    void *ptr, *base;
    fl_device device;
} moved;

static moved *list;
static fl__mutex lock = FL__MUTEX_INIT;

/* Under the lock: where the pointer to the block's node is, or to NULL at the end. */
static moved **find(fl_device device, const void *ptr) {
    moved **at = &list;
    while (*at && ((*at)->ptr != ptr || (*at)->device != device)) {
        at = &(*at)->next;
    }
    return at;
}

fl_status fl__aligned_keep(fl_device device, void *ptr, void *base) {
    moved *node = malloc(sizeof(*node));
    if (!node) {
        return fl_fail(FL_OUT_OF_MEMORY, "no host memory to remember a block by");
    }
    fl__lock(&lock);
    *node = (moved){.next = list, .ptr = ptr, .base = base, .device = device};
    list = node;
    fl__unlock(&lock);
    return FL_OK;
}

void *fl__aligned_base(fl_device device, void *ptr) {
    fl__lock(&lock);
    moved *node = *find(device, ptr);
    void *base = node ? node->base : ptr;
    fl__unlock(&lock);
    return base;
}

void fl__aligned_forget(fl_device device, void *ptr) {
    fl__lock(&lock);
    moved **at = find(device, ptr), *node = *at;
    if (node) {
        *at = node->next;
    }
    fl__unlock(&lock);
    free(node);
}
