/*
 * slab.c: nodes of one size, cut from chunks.
 *
 * Relies on malloc for chunks only. Does not know what nodes hold and takes no lock.
 */
#include "base/slab.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

/* A chunk begins with the link to the next one, padded so that nodes keep their alignment. */
enum { ALIGNMENT = _Alignof(max_align_t) };

static_assert(ALIGNMENT >= sizeof(void *), "a chunk's link fits in front of its first node");

static size_t round_up(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void *load_link(const void *node) {
    void *next;
    memcpy(&next, node, sizeof(next));
    return next;
}

static void store_link(void *node, void *next) {
    memcpy(node, &next, sizeof(next));
}

void fl__slab_init(fl__slab *slab, size_t node_bytes, uint32_t nodes_a_chunk) {
    FL_ASSERT(node_bytes > 0 && nodes_a_chunk > 0);
    *slab = (fl__slab){
        .node_bytes = round_up(node_bytes < sizeof(void *) ? sizeof(void *) : node_bytes),
        .nodes_a_chunk = nodes_a_chunk,
        .live = 0,
        .free = NULL,
        .chunks = NULL,
    };
}

void fl__slab_deinit(fl__slab *slab) {
    while (slab->chunks) {
        void *next = load_link(slab->chunks);
        free(slab->chunks);
        slab->chunks = next;
    }
    slab->free = NULL;
    slab->live = 0;
}

static fl_status add_chunk(fl__slab *slab) {
    size_t bytes;
    if (__builtin_mul_overflow(slab->node_bytes, (size_t)slab->nodes_a_chunk, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)ALIGNMENT, &bytes)) {
        return fl_fail(FL_OUT_OF_MEMORY, "slab: a chunk of %u nodes of %zu bytes is too large",
                       slab->nodes_a_chunk, slab->node_bytes);
    }
    char *chunk = malloc(bytes);
    if (!chunk) {
        return fl_fail(FL_OUT_OF_MEMORY, "slab: no host memory for a chunk of %zu bytes", bytes);
    }
    store_link(chunk, slab->chunks);
    slab->chunks = chunk;
    /* Backwards, so that nodes are handed out in the order of their addresses. */
    for (uint32_t i = slab->nodes_a_chunk; i > 0; i--) {
        char *node = chunk + ALIGNMENT + (size_t)(i - 1) * slab->node_bytes;
        store_link(node, slab->free);
        slab->free = node;
    }
    return FL_OK;
}

fl_status fl__slab_take(fl__slab *slab, void **out_node) {
    if (!slab->free) {
        FL_TRY(add_chunk(slab));
    }
    void *node = slab->free;
    slab->free = load_link(node);
    slab->live++;
    memset(node, 0, slab->node_bytes);
    *out_node = node;
    return FL_OK;
}

void fl__slab_give(fl__slab *slab, void *node) {
    FL_ASSERT(node && slab->live > 0);
    store_link(node, slab->free);
    slab->free = node;
    slab->live--;
}
