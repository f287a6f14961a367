/*
 * copy.c: what planning a copy costs, and what the host kernels reach beside memcpy.
 *
 * copy [platform]: `cpu` unless one is named. Times are the best of five rounds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "copy/plan.h"
#include "fl/copy.h"
#include "fl/debug.h"
#include "fl/kernels.h"
#include "fl/memory.h"

enum { ROUNDS = 5 };

#define MUST(call)                                                              \
    do {                                                                        \
        fl_status must_status = (call);                                         \
        if (must_status) {                                                      \
            fprintf(stderr, "%s: %s: %s\n", #call, fl_status_name(must_status), \
                    fl_last_message());                                         \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

static double now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static fl_view matrix(void *data, fl_dtype dtype, int64_t rows, int64_t columns) {
    fl_view view;
    int64_t shape[2] = {rows, columns};
    MUST(fl_view_init(&view, data, dtype, 2, shape, FL_FORMAT_CONTIGUOUS));
    return view;
}

static fl_view turned(fl_view view) {
    static const int32_t order[2] = {1, 0};
    MUST(fl_view_permute(&view, order, &view));
    return view;
}

/* --- planning ----------------------------------------------------------------------------------
 */

static double plan_ns(const fl_view *dst, fl_place to, const fl_view *src, fl_place from) {
    fl__copy_means means = {.kernels = true, .rows = true};
    static fl__copy_plan plan;
    double best = 1e300;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();
        for (int i = 0; i < 100000; i++) {
            MUST(fl__copy_plan_make(dst, to, src, from, means, &plan));
        }
        double spent = (now_ns() - start) / 100000;
        best = spent < best ? spent : best;
    }
    return best;
}

static void bench_plans(void) {
    fl_place device = fl_place_device(0, 0), host = fl_place_host();
    fl_view a = matrix((void *)4096, FL_DTYPE_F32, 512, 512);
    fl_view b = matrix((void *)(1 << 24), FL_DTYPE_F32, 512, 512), t = turned(b);
    fl_view h = matrix((void *)(1 << 24), FL_DTYPE_F16, 512, 512);
    printf("planning, ns: contiguous %.0f, turned on device %.0f, cast up %.0f, turned down %.0f\n",
           plan_ns(&a, device, &b, device), plan_ns(&a, device, &t, device),
           plan_ns(&a, device, &h, host), plan_ns(&a, host, &t, device));
}

/* --- whole calls -------------------------------------------------------------------------------
 */

static void bench_calls(void) {
    void *to, *from;
    MUST(fl_memory_alloc(0, 1 << 20, 0, &to));
    MUST(fl_memory_alloc(0, 1 << 20, 0, &from));
    fl_place device = fl_place_device(0, 0);
    fl_view a = matrix(to, FL_DTYPE_F32, 16, 16), b = matrix(from, FL_DTYPE_F32, 16, 16);
    fl_view t = turned(b);
    const fl_view *sources[2] = {&b, &t};
    for (int kind = 0; kind < 2; kind++) {
        double best = 1e300;
        for (int round = 0; round < ROUNDS; round++) {
            double start = now_ns();
            for (int i = 0; i < 2000; i++) {
                MUST(fl_copy_view(&a, device, sources[kind], device, true));
            }
            double spent = (now_ns() - start) / 2000;
            best = spent < best ? spent : best;
            MUST(fl_device_synchronize(0));
        }
        printf("fl_copy_view of 1 KiB on a device, %s: %.0f ns until it returns\n",
               kind ? "turned" : "contiguous", best);
    }
    fl_memory_free(to);
    fl_memory_free(from);
}

/* --- host kernels ------------------------------------------------------------------------------
 */

static void bench_host(const char *name, const fl_view *dst, const fl_view *src) {
    double bytes = (double)(fl_view_nbytes(dst) + fl_view_nbytes(src)), best = 1e300;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();
        fl_host_copy(dst, src);
        double spent = now_ns() - start;
        best = spent < best ? spent : best;
    }
    printf("host kernel, %-22s %6.2f GB/s\n", name, bytes / best);
}

static void bench_hosts(void) {
    enum { SIDE = 2048 };
    void *to = malloc(SIDE * SIDE * 8), *from = malloc(SIDE * SIDE * 8);
    if (!to || !from) {
        exit(1);
    }
    memset(to, 0, SIDE * SIDE * 8);
    memset(from, 0, SIDE * SIDE * 8);
    double best = 1e300;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();
        memcpy(to, from, SIDE * SIDE * 4);
        double spent = now_ns() - start;
        best = spent < best ? spent : best;
    }
    printf("memcpy of 16 MiB: %.2f GB/s, both ways counted\n", 2.0 * SIDE * SIDE * 4 / best);
    fl_view f = matrix(to, FL_DTYPE_F32, SIDE, SIDE), g = matrix(from, FL_DTYPE_F32, SIDE, SIDE);
    fl_view t = turned(g), h = matrix(from, FL_DTYPE_F16, SIDE, SIDE);
    fl_view b = matrix(to, FL_DTYPE_BF16, SIDE, SIDE), i = matrix(from, FL_DTYPE_I64, SIDE, SIDE);
    bench_host("contiguous F32", &f, &g);
    bench_host("turned F32", &f, &t);
    bench_host("F16 to F32", &f, &h);
    bench_host("F32 to BF16", &b, &g);
    bench_host("I64 to F32", &f, &i);
    free(to);
    free(from);
}

int main(int argc, char **argv) {
    const fl_platform *platform;
    MUST(fl_platform_choose(argc > 1 ? argv[1] : "cpu", &platform));
    MUST(fl_device_init());
    printf("platform %s\n", platform->name);
    bench_plans();
    bench_calls();
    bench_hosts();
    return 0;
}
