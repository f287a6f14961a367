/* test_sim.c: memory of the simulated device: who may touch it, and what is refused. */
#include "driver/sim.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "driver/call.h"
#include "fl/debug.h"
#include "harness.h"

static const fl_driver *drv;
static fl_native_stream streams[2];

static void start(void) {
    drv = fl__sim_driver();
    CHECK_OK(fl_driver_check(drv));
    CHECK_OK(fl__drv_init(drv));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(fl__drv_stream_create(drv, i, 0, &streams[i]));
    }
}

static unsigned char *block_of(fl_device device, size_t bytes) {
    void *ptr = NULL;
    CHECK_OK(fl__drv_mem_alloc(drv, device, bytes, &ptr));
    CHECK_INT((uintptr_t)ptr % 256, 0);
    return ptr;
}

static void download(fl_device device, void *dst, const void *src, size_t bytes) {
    CHECK_OK(fl__drv_copy(drv, device, dst, src, bytes, FL_COPY_DEVICE_TO_HOST, streams[device]));
    CHECK_OK(fl__drv_stream_synchronize(drv, device, streams[device]));
}

/* --- who may touch it ------------------------------------------------------------------------- */

static void read_byte(void *argument) {
    volatile unsigned char value = *(volatile unsigned char *)argument;
    (void)value;
}

static void write_byte(void *argument) {
    *(volatile unsigned char *)argument = 1;
}

TEST(sim, the_host_crashes_when_it_touches_device_memory) {
    start();
    unsigned char *block = block_of(0, 4096);
    CHECK_INT(test_crash_of(read_byte, block), SIGSEGV);
    CHECK_INT(test_crash_of(write_byte, block + 4095), SIGSEGV);
    /* And after work has used it. */
    CHECK_OK(fl__drv_fill(drv, 0, block, 7, 4096, streams[0]));
    CHECK_OK(fl__drv_device_synchronize(drv, 0));
    CHECK_INT(test_crash_of(read_byte, block), SIGSEGV);
}

static void add_one_to_all(void *argument) {
    unsigned char *bytes = argument;
    for (int i = 0; i < 4096; i++) {
        bytes[i]++;
    }
}

TEST(sim, a_function_in_stream_order_may_touch_it) {
    start();
    unsigned char *block = block_of(0, 4096), host[4096], wanted[4096];
    CHECK_OK(fl__drv_fill(drv, 0, block, 7, 4096, streams[0]));
    for (int i = 0; i < 10; i++) {
        CHECK_OK(fl__drv_stream_host_call(drv, 0, streams[0], add_one_to_all, block));
    }
    download(0, host, block, 4096);
    memset(wanted, 17, 4096);
    CHECK_BYTES(host, wanted, 4096);
    CHECK_INT(test_crash_of(read_byte, block), SIGSEGV);
}

static unsigned char *other_block;

static void touch_other_device(void *argument) {
    (void)argument;
    other_block[0] = 1;
}

static void touch_other_device_in_order(void *argument) {
    (void)argument;
    start(); /* Threads do not survive a fork, so the whole of it happens in the child. */
    other_block = block_of(1, 256);
    (void)fl__drv_stream_host_call(drv, 0, streams[0], touch_other_device, NULL);
    (void)fl__drv_device_synchronize(drv, 0);
}

TEST(sim, but_not_the_memory_of_another_device) {
    CHECK_INT(test_crash_of(touch_other_device_in_order, NULL), SIGSEGV);
}

static fl_status inner_status;
static char inner_message[200];

static void call_the_driver(void *argument) {
    void *ptr = NULL;
    inner_status = argument ? drv->stream_synchronize(drv->ctx, 0, streams[0])
                            : drv->mem_alloc(drv->ctx, 0, 64, &ptr);
    (void)strncpy(inner_message, fl_last_message(), sizeof(inner_message) - 1);
}

TEST(sim, a_function_in_stream_order_may_not_call_the_driver) {
    start();
    void *choices[] = {NULL, choices};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(fl__drv_stream_host_call(drv, 0, streams[0], call_the_driver, choices[i]));
        CHECK_OK(fl__drv_stream_synchronize(drv, 0, streams[0]));
        CHECK_STATUS(inner_status, FL_WRONG_STATE);
        CHECK_CONTAINS(inner_message, "stream order");
    }
}

/* --- copies ----------------------------------------------------------------------------------- */

static void fill_random(unsigned char *bytes, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (unsigned char)test_random(&seed);
    }
}

TEST(sim, copies_of_all_kinds) {
    enum { BYTES = 100000 };
    start();
    unsigned char *a = block_of(0, BYTES), *b = block_of(0, BYTES), *peer = block_of(1, BYTES);
    unsigned char *host = malloc(BYTES), *back = malloc(BYTES), *copy = malloc(BYTES);
    CHECK(host && back && copy);
    fill_random(host, BYTES, 3);
    CHECK_OK(fl__drv_copy(drv, 0, copy, host, BYTES, FL_COPY_HOST_TO_HOST, streams[0]));
    CHECK_OK(fl__drv_copy(drv, 0, a, host, BYTES, FL_COPY_HOST_TO_DEVICE, streams[0]));
    CHECK_OK(fl__drv_copy(drv, 0, b, a, BYTES, FL_COPY_DEVICE_TO_DEVICE, streams[0]));
    CHECK_OK(fl__drv_copy_peer(drv, peer, 1, b, 0, BYTES, streams[0]));
    CHECK_OK(fl__drv_stream_synchronize(drv, 0, streams[0]));
    download(1, back, peer, BYTES);
    CHECK_BYTES(back, host, BYTES);
    CHECK_BYTES(copy, host, BYTES);
    /* Inside of a block, at any byte. */
    memset(back, 0, BYTES);
    download(0, back + 5, a + 3, 77);
    CHECK_BYTES(back + 5, host + 3, 77);
    CHECK_INT(back[4], 0);
    CHECK_INT(back[5 + 77], 0);
    free(host);
    free(back);
    free(copy);
}

TEST(sim, pitched_copies) {
    enum { ROWS = 7, WIDTH = 13, DEVICE_PITCH = 32, HOST_PITCH = 20 };
    start();
    unsigned char *block = block_of(0, ROWS * DEVICE_PITCH), host[ROWS * HOST_PITCH];
    unsigned char back[ROWS * DEVICE_PITCH];
    fill_random(host, sizeof(host), 5);
    CHECK_OK(fl__drv_fill(drv, 0, block, 0xee, ROWS * DEVICE_PITCH, streams[0]));
    CHECK_OK(fl__drv_copy_2d(drv, 0, block, DEVICE_PITCH, host, HOST_PITCH, WIDTH, ROWS,
                             FL_COPY_HOST_TO_DEVICE, streams[0]));
    download(0, back, block, sizeof(back));
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < DEVICE_PITCH; i++) {
            CHECK_INT(back[row * DEVICE_PITCH + i], i < WIDTH ? host[row * HOST_PITCH + i] : 0xee);
        }
    }
    CHECK_STATUS(drv->copy_2d(drv->ctx, 0, block, 4, host, HOST_PITCH, WIDTH, ROWS,
                              FL_COPY_HOST_TO_DEVICE, streams[0]),
                 FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl__drv_copy_2d(drv, 0, block, SIZE_MAX / 2, host, HOST_PITCH, WIDTH, ROWS,
                                 FL_COPY_HOST_TO_DEVICE, streams[0]),
                 FL_INVALID_ARGUMENT);
}

static int gate;

static void wait_for_gate(void *argument) {
    (void)argument;
    while (!__atomic_load_n(&gate, __ATOMIC_ACQUIRE)) {
        test_pause_ms(1);
    }
}

static void open_gate(void) {
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
}

TEST(sim, a_pageable_source_is_read_before_the_call_returns) {
    start();
    unsigned char *block = block_of(0, 64), host[64], back[64], wanted[64];
    memset(host, 1, 64);
    memset(wanted, 1, 64);
    CHECK_OK(fl__drv_stream_host_call(drv, 0, streams[0], wait_for_gate, NULL));
    CHECK_OK(fl__drv_copy(drv, 0, block, host, 64, FL_COPY_HOST_TO_DEVICE, streams[0]));
    memset(host, 2, 64);
    open_gate();
    download(0, back, block, 64);
    CHECK_BYTES(back, wanted, 64);
}

TEST(sim, a_pinned_source_is_read_when_its_turn_comes) {
    start();
    void *pinned = NULL;
    CHECK_OK(fl__drv_host_alloc(drv, 64, &pinned));
    CHECK(fl__sim_is_pinned((char *)pinned + 63));
    unsigned char *block = block_of(0, 64), back[64], wanted[64];
    memset(pinned, 1, 64);
    memset(wanted, 2, 64);
    CHECK_OK(fl__drv_stream_host_call(drv, 0, streams[0], wait_for_gate, NULL));
    CHECK_OK(fl__drv_copy(drv, 0, block, pinned, 64, FL_COPY_HOST_TO_DEVICE, streams[0]));
    memset(pinned, 2, 64); /* Too early, and it shows. */
    CHECK_STATUS(fl__drv_host_free(drv, pinned), FL_WRONG_STATE);
    open_gate();
    download(0, back, block, 64);
    CHECK_BYTES(back, wanted, 64);
    CHECK_OK(fl__drv_host_free(drv, pinned));
    CHECK(!fl__sim_is_pinned(pinned));
    CHECK_STATUS(fl__drv_host_free(drv, pinned), FL_INVALID_ARGUMENT);
}

/* --- what is refused -------------------------------------------------------------------------- */

TEST(sim, pointers_of_another_place) {
    start();
    unsigned char *block = block_of(0, 512), *peer = block_of(1, 512), host[512];
    static const char *const reasons[] = {"destination", "source", "device 1", "of the host",
                                          "reaches outside"};
    fl_native_stream stream = streams[0];
    CHECK_STATUS(fl__drv_copy(drv, 0, host, host, 8, FL_COPY_HOST_TO_DEVICE, stream),
                 FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), reasons[0]);
    CHECK_STATUS(fl__drv_copy(drv, 0, host, host + 8, 8, FL_COPY_DEVICE_TO_HOST, stream),
                 FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), reasons[1]);
    CHECK_STATUS(fl__drv_copy(drv, 0, host, peer, 8, FL_COPY_DEVICE_TO_HOST, stream),
                 FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), reasons[2]);
    CHECK_STATUS(fl__drv_copy(drv, 0, block, block + 8, 8, FL_COPY_HOST_TO_DEVICE, stream),
                 FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), reasons[3]);
    CHECK_STATUS(fl__drv_copy(drv, 0, host, block + 510, 8, FL_COPY_DEVICE_TO_HOST, stream),
                 FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), reasons[4]);
    CHECK_STATUS(fl__drv_copy(drv, 0, block + 4, block, 8, FL_COPY_DEVICE_TO_DEVICE, stream),
                 FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "overlap");
    CHECK_STATUS(fl__drv_fill(drv, 0, block, 0, 513, stream), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl__drv_fill(drv, 0, host, 0, 8, stream), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl__drv_copy(drv, 0, host, block, 8, FL_COPY_DEVICE_TO_HOST, streams[1]),
                 FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "no stream of device 0");
    CHECK_STATUS(fl__drv_copy_peer(drv, peer, 0, block, 1, 8, streams[1]), FL_INVALID_ARGUMENT);
    CHECK_OK(fl__drv_stream_query(drv, 0, stream)); /* Nothing was queued. */
    CHECK_INT(fl__sim_device_of(block + 511), 0);
    CHECK_INT(fl__sim_device_of(peer), 1);
    CHECK_INT(fl__sim_device_of(block + 512), -1);
    CHECK_INT(fl__sim_device_of(host), -1);
}

TEST(sim, frees) {
    start();
    unsigned char *block = block_of(0, 512), host[512];
    CHECK_STATUS(fl__drv_mem_free(drv, 0, block + 256), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl__drv_mem_free(drv, 1, block), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl__drv_mem_free(drv, 0, host), FL_INVALID_ARGUMENT);
    CHECK_OK(fl__drv_mem_free(drv, 0, NULL));
    CHECK_OK(fl__drv_stream_host_call(drv, 0, streams[0], wait_for_gate, NULL));
    CHECK_OK(fl__drv_copy(drv, 0, host, block, 512, FL_COPY_DEVICE_TO_HOST, streams[0]));
    CHECK_STATUS(fl__drv_mem_free(drv, 0, block), FL_WRONG_STATE);
    CHECK_CONTAINS(fl_last_message(), "still uses");
    open_gate();
    CHECK_OK(fl__drv_stream_synchronize(drv, 0, streams[0]));
    CHECK_OK(fl__drv_mem_free(drv, 0, block));
    CHECK_STATUS(fl__drv_mem_free(drv, 0, block), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl__drv_fill(drv, 0, block, 0, 8, streams[0]), FL_INVALID_ARGUMENT);
}

TEST(sim, fresh_blocks_are_full_of_nan) {
    start();
    float host[64];
    unsigned char *block = block_of(0, sizeof(host));
    download(0, host, block, sizeof(host));
    for (int i = 0; i < 64; i++) {
        CHECK(host[i] != host[i]);
    }
}

TEST(sim, memory_runs_out_and_comes_back) {
    enum { MIB = 1 << 20 };
    CHECK_OK(fl_option_set(FL_OPT_SIM_MEMORY, "8M"));
    start();
    uint64_t free_bytes = 0, total = 0;
    unsigned char *blocks[8];
    void *ptr = NULL;
    for (int i = 0; i < 8; i++) {
        blocks[i] = block_of(0, MIB);
    }
    CHECK_OK(fl__drv_mem_info(drv, 0, &free_bytes, &total));
    CHECK_UINT(free_bytes, 0);
    CHECK_UINT(total, 8 * MIB);
    CHECK_STATUS(fl__drv_mem_alloc(drv, 0, 1, &ptr), FL_OUT_OF_MEMORY);
    CHECK_CONTAINS(fl_last_message(), "8388608 of 8388608 are in use");
    CHECK(fl_last_vendor_code() != 0);
    CHECK_POINTER(ptr, NULL);
    CHECK(block_of(1, 8 * MIB) != NULL); /* The other device has its own. */
    for (int i = 0; i < 8; i++) {
        CHECK_OK(fl__drv_mem_free(drv, 0, blocks[i]));
    }
    CHECK(block_of(0, 8 * MIB) != NULL);
}

TEST(sim, gaps_are_used_again) {
    enum { MIB = 1 << 20 };
    CHECK_OK(fl_option_set(FL_OPT_SIM_MEMORY, "8M"));
    start();
    unsigned char *blocks[8];
    void *ptr = NULL;
    for (int i = 0; i < 8; i++) {
        blocks[i] = block_of(0, MIB);
    }
    CHECK_OK(fl__drv_mem_free(drv, 0, blocks[2]));
    CHECK_OK(fl__drv_mem_free(drv, 0, blocks[5]));
    CHECK_STATUS(fl__drv_mem_alloc(drv, 0, 2 * MIB, &ptr), FL_OUT_OF_MEMORY);
    CHECK_CONTAINS(fl_last_message(), "no gap");
    CHECK_POINTER(block_of(0, MIB), blocks[2]);
    CHECK_OK(fl__drv_mem_free(drv, 0, blocks[6]));
    CHECK_POINTER(block_of(0, 2 * MIB), blocks[5]);
    CHECK_STATUS(fl__drv_mem_alloc(drv, 0, SIZE_MAX - 100, &ptr), FL_OUT_OF_MEMORY);
}

TEST(sim, random_blocks_keep_their_bytes) {
    enum { COUNT = 40, ROUNDS = 3000 };
    start();
    unsigned char *blocks[COUNT] = {NULL}, marks[COUNT], host[5000], wanted[5000];
    size_t sizes[COUNT];
    uint64_t seed = 8;
    for (int round = 0; round < ROUNDS; round++) {
        int i = (int)(test_random(&seed) % COUNT);
        if (blocks[i]) {
            download(0, host, blocks[i], sizes[i]);
            memset(wanted, marks[i], sizes[i]);
            CHECK_BYTES(host, wanted, sizes[i]);
            CHECK_OK(fl__drv_mem_free(drv, 0, blocks[i]));
            blocks[i] = NULL;
        } else {
            sizes[i] = 1 + test_random(&seed) % sizeof(host);
            marks[i] = (unsigned char)test_random(&seed);
            blocks[i] = block_of(0, sizes[i]);
            CHECK_OK(fl__drv_fill(drv, 0, blocks[i], marks[i], sizes[i], streams[0]));
        }
    }
}
