/*
 * slab.h: nodes of one size without malloc on the hot path.
 *
 * Nodes come from chunks and go back to a free list; chunks are given back only when the whole slab
 * is. A node's address never changes. The owner locks. Does not know what nodes hold.
 */
#ifndef FL_BASE_SLAB_H
#define FL_BASE_SLAB_H

#include "fl/status.h"

typedef struct fl__slab {
    size_t node_bytes;      /* Rounded up to the alignment of any type. */
    uint32_t nodes_a_chunk; /* At least 1. */
    uint32_t live;          /* Nodes taken and not given back. */
    void *free;             /* Free nodes, linked through their first word. */
    void *chunks;           /* All chunks, linked through their first word. */
} fl__slab;

void fl__slab_init(fl__slab *slab, size_t node_bytes, uint32_t nodes_a_chunk);

/* Gives back all memory, live nodes included. */
void fl__slab_deinit(fl__slab *slab);

/* FL_OUT_OF_MEMORY if a chunk is needed and cannot be had. The node's bytes are zero. */
fl_status fl__slab_take(fl__slab *slab, void **out_node);

/* Cannot fail. */
void fl__slab_give(fl__slab *slab, void *node);

#endif
