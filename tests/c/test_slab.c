/* test_slab.c: nodes of one size. */
#include "base/slab.h"

#include <string.h>

#include "harness.h"

TEST(slab, nodes_are_distinct_aligned_and_zero) {
    static const size_t sizes[] = {1, 8, 17, 64, 200};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        enum { COUNT = 100 };
        fl__slab slab;
        fl__slab_init(&slab, sizes[s], 7);
        unsigned char *nodes[COUNT];
        static const unsigned char zero[200];
        for (int i = 0; i < COUNT; i++) {
            void *node = NULL;
            CHECK_OK(fl__slab_take(&slab, &node));
            CHECK_INT((uintptr_t)node % _Alignof(max_align_t), 0);
            CHECK_BYTES(node, zero, sizes[s]);
            memset(node, i + 1, sizes[s]);
            nodes[i] = node;
        }
        CHECK_INT(slab.live, COUNT);
        for (int i = 0; i < COUNT; i++) {
            for (size_t b = 0; b < sizes[s]; b++) {
                CHECK_INT(nodes[i][b], i + 1);
            }
        }
        fl__slab_deinit(&slab);
        CHECK_INT(slab.live, 0);
    }
}

TEST(slab, given_nodes_are_used_again_and_zeroed) {
    fl__slab slab;
    fl__slab_init(&slab, 48, 4);
    void *nodes[4];
    for (int i = 0; i < 4; i++) {
        CHECK_OK(fl__slab_take(&slab, &nodes[i]));
        memset(nodes[i], 0xee, 48);
    }
    void *chunk = slab.chunks;
    for (int round = 0; round < 100; round++) {
        fl__slab_give(&slab, nodes[round % 4]);
        void *node = NULL;
        CHECK_OK(fl__slab_take(&slab, &node));
        CHECK_POINTER(node, nodes[round % 4]);
        static const unsigned char zero[48];
        CHECK_BYTES(node, zero, 48);
    }
    CHECK_POINTER(slab.chunks, chunk);
    CHECK_INT(slab.live, 4);
    fl__slab_deinit(&slab);
}

TEST(slab, a_chunk_that_cannot_be_had_is_an_error) {
    fl__slab slab;
    fl__slab_init(&slab, SIZE_MAX / 2, 4);
    void *node = &slab;
    CHECK_STATUS(fl__slab_take(&slab, &node), FL_OUT_OF_MEMORY);
    CHECK_POINTER(node, &slab);
    CHECK_INT(slab.live, 0);
    fl__slab_init(&slab, SIZE_MAX / 8, 2);
    CHECK_STATUS(fl__slab_take(&slab, &node), FL_OUT_OF_MEMORY);
    fl__slab_deinit(&slab);
}
