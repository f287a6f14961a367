/*
 * copy.cu: fill, strided copy and cast on a card: right first, then fast.
 *
 * One command builds and runs it (from the top folder; any card of compute capability 7.5 or more):
 *
 *   nvcc -O3 -std=c++17 -arch=native -Iinclude -Isrc -Isrc/kernels -o build/bench_copy \
 *       bench/kernels/copy.cu src/kernels/device.c src/kernels/host.c src/kernels/image.c \
 *       src/view/loops.c src/view/overlap.c src/view/view.c src/base/status.c \
 *     && build/bench_copy
 *
 * Each case is launched through the library's own launcher (device.c), on a small shape compared
 * with the host kernel, and on a large one timed: the L2 cache is flushed before each of 20 runs,
 * the median counts. Printed are GB/s with bytes read and bytes written, the share of the memory's
 * peak, and the ratio to the contiguous copy of the driver, which is the yardstick: what the
 * memory gives in practice. Exits with 1 where a value is wrong or a bar is missed.
 */
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/table.cu"

extern "C" {
#include "fl/kernels.h"
#include "kernels/image.h"
}

#define MUST(call)                                                                         \
    do {                                                                                   \
        cudaError_t error = (call);                                                        \
        if (error != cudaSuccess) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#define MUST_FL(call)                                                              \
    do {                                                                           \
        if ((call) != FL_OK) {                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, fl_last_message()); \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

/* --- services over the CUDA runtime: the functions are linked into this program ------------------
 */

struct entry {
    const char *name;
    const void *function;
};

static const entry entries[] = {
#define ELEMENT(bytes, type)                                              \
    {"fl_copy_strided_u" #bytes, (const void *)fl_copy_strided_u##bytes}, \
        {"fl_copy_tile_u" #bytes, (const void *)fl_copy_tile_u##bytes},   \
        {"fl_fill_strided_u" #bytes, (const void *)fl_fill_strided_u##bytes},
    FL__ELEMENT_LIST(ELEMENT)
#define CAST(src, dst) {"fl_cast_" #src "_" #dst, (const void *)fl_cast_##src##_##dst},
        FL__CAST_LIST(CAST){"fl_cast_any", (const void *)fl_cast_any},
    {"fl_fill_u16", (const void *)fl_fill_u16},
};

static const char *last_name = "";

static fl_status load(const void *, fl_device, const void *image, size_t, void **out_module) {
    *out_module = const_cast<void *>(image);
    return FL_OK;
}

static fl_status find(const void *, fl_device, void *, const char *name, void **out_function) {
    for (const entry &each : entries) {
        if (strcmp(each.name, name) == 0) {
            *out_function = const_cast<entry *>(&each);
            return FL_OK;
        }
    }
    return fl_fail(FL_NOT_FOUND, "no function %s", name);
}

static fl_status launch(const void *, fl_device, void *function, const uint32_t grid[3],
                        const uint32_t block[3], uint32_t shared_bytes, fl_native_stream stream,
                        void **arguments) {
    const entry *which = static_cast<const entry *>(function);
    last_name = which->name;
    MUST(cudaLaunchKernel(which->function, dim3(grid[0]), dim3(block[0]), arguments, shared_bytes,
                          static_cast<cudaStream_t>(stream)));
    return FL_OK;
}

static fl_kernel_services services;
static fl_kernels table;

/* --- cases --------------------------------------------------------------------------------------
 */

/* Views of a case at a scale: 1 for validation, larger for timing. Data is filled in later. */
struct views {
    fl_view dst, src;
    bool is_fill;
};

static fl_view dense(fl_dtype dtype, std::vector<int64_t> shape) {
    fl_view view;
    MUST_FL(fl_view_init(&view, nullptr, dtype, (int32_t)shape.size(), shape.data(),
                         FL_FORMAT_CONTIGUOUS));
    return view;
}

static fl_view permuted(fl_view view, std::vector<int32_t> order) {
    MUST_FL(fl_view_permute(&view, order.data(), &view));
    return view;
}

static fl_view sliced(fl_view view, int32_t dim, int64_t end, int64_t step) {
    MUST_FL(fl_view_slice(&view, dim, 0, end, step, &view));
    return view;
}

static fl_view expanded(fl_view view, std::vector<int64_t> shape) {
    MUST_FL(fl_view_expand(&view, (int32_t)shape.size(), shape.data(), &view));
    return view;
}

struct bench_case {
    const char *name;
    bool coalesces;           /* The access pattern allows full speed: the bar of 0.85 applies. */
    views (*make)(int64_t n); /* n x n elements or as many */
};

template <fl_dtype dtype>
views contiguous(int64_t n) {
    return {dense(dtype, {n, n}), dense(dtype, {n, n}), false};
}
template <fl_dtype dtype>
views turned(int64_t n) {
    return {dense(dtype, {n, n}), permuted(dense(dtype, {n, n}), {1, 0}), false};
}
/* (batch, heads, tokens, width) from (batch, tokens, heads, width): attention's permute. */
template <fl_dtype dtype>
views heads(int64_t n) {
    int64_t tokens = n * n / (4 * 16 * 64);
    tokens = tokens ? tokens : 1;
    return {dense(dtype, {4, 16, tokens, 64}),
            permuted(dense(dtype, {4, tokens, 16, 64}), {0, 2, 1, 3}), false};
}
/* Channels last to channels first. */
template <fl_dtype dtype>
views channels(int64_t n) {
    int64_t side = n / 16;
    return {dense(dtype, {4, 64, side, side}),
            permuted(dense(dtype, {4, side, side, 64}), {0, 3, 1, 2}), false};
}
template <fl_dtype dtype>
views rows(int64_t n) {
    return {dense(dtype, {n, n}), sliced(dense(dtype, {n, n + n / 2}), 1, n, 1), false};
}
template <fl_dtype dtype>
views every_second(int64_t n) {
    return {dense(dtype, {n, n / 2}), sliced(dense(dtype, {n, n}), 1, n, 2), false};
}
template <fl_dtype dtype>
views spread(int64_t n) {
    return {dense(dtype, {n, n}), expanded(dense(dtype, {1, n}), {n, n}), false};
}
template <fl_dtype src, fl_dtype dst>
views cast(int64_t n) {
    return {dense(dst, {n, n}), dense(src, {n, n}), false};
}
template <fl_dtype src, fl_dtype dst>
views cast_turned(int64_t n) {
    return {dense(dst, {n, n}), permuted(dense(src, {n, n}), {1, 0}), false};
}
template <fl_dtype dtype>
views fill(int64_t n) {
    return {dense(dtype, {n, n}), dense(dtype, {n, n}), true};
}
template <fl_dtype dtype>
views fill_rows(int64_t n) {
    return {sliced(dense(dtype, {n, n + 32}), 1, n, 1), dense(dtype, {n, n}), true};
}

static const bench_case cases[] = {
    {"copy contiguous f32", true, contiguous<FL_DTYPE_F32>},
    {"copy contiguous bf16", true, contiguous<FL_DTYPE_BF16>},
    {"copy contiguous u8", true, contiguous<FL_DTYPE_U8>},
    {"copy turned f32", true, turned<FL_DTYPE_F32>},
    {"copy turned bf16", true, turned<FL_DTYPE_BF16>},
    {"copy turned u8", false, turned<FL_DTYPE_U8>},
    {"copy turned f64", true, turned<FL_DTYPE_F64>},
    {"copy turned c128", true, turned<FL_DTYPE_C128>},
    {"copy heads bf16", true, heads<FL_DTYPE_BF16>},
    {"copy channels f32", true, channels<FL_DTYPE_F32>},
    {"copy channels bf16", true, channels<FL_DTYPE_BF16>},
    {"copy rows f32", true, rows<FL_DTYPE_F32>},
    {"copy rows bf16", true, rows<FL_DTYPE_BF16>},
    {"copy every second f32", false, every_second<FL_DTYPE_F32>},
    {"copy spread f32", false, spread<FL_DTYPE_F32>},
    {"cast f32 bf16", true, cast<FL_DTYPE_F32, FL_DTYPE_BF16>},
    {"cast bf16 f32", true, cast<FL_DTYPE_BF16, FL_DTYPE_F32>},
    {"cast f32 f16", true, cast<FL_DTYPE_F32, FL_DTYPE_F16>},
    {"cast i64 i32", true, cast<FL_DTYPE_I64, FL_DTYPE_I32>},
    {"cast bool f32", true, cast<FL_DTYPE_BOOL, FL_DTYPE_F32>},
    {"cast u8 f16", true, cast<FL_DTYPE_U8, FL_DTYPE_F16>},
    {"cast u8 bf16", true, cast<FL_DTYPE_U8, FL_DTYPE_BF16>},
    {"cast f32 f8e4m3fn", true, cast<FL_DTYPE_F32, FL_DTYPE_F8E4M3FN>},
    {"cast any: i16 f64", false, cast<FL_DTYPE_I16, FL_DTYPE_F64>},
    {"cast turned f32 bf16", false, cast_turned<FL_DTYPE_F32, FL_DTYPE_BF16>},
    {"fill f32", true, fill<FL_DTYPE_F32>},
    {"fill bf16", true, fill<FL_DTYPE_BF16>},
    {"fill rows f32", true, fill_rows<FL_DTYPE_F32>},
};

/* --- running ------------------------------------------------------------------------------------
 */

static const unsigned char kElement[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

static void run(const views &pair, cudaStream_t stream) {
    if (pair.is_fill) {
        MUST_FL(table.fill(table.ctx, 0, stream, &pair.dst, kElement));
    } else {
        MUST_FL(table.copy(table.ctx, 0, stream, &pair.dst, &pair.src));
    }
}

static size_t storage_of(const fl_view &view) {
    int64_t low, high;
    fl_view_bounds(&view, &low, &high);
    return (size_t)high;
}

/* Bytes that an ideal kernel moves: what is read once, and what is written. */
static double traffic(const views &pair) {
    double bytes = (double)fl_view_nbytes(&pair.dst);
    if (!pair.is_fill) {
        bytes += (double)std::min(fl_view_nbytes(&pair.src), storage_of(pair.src));
    }
    return bytes;
}

static bool validate(const bench_case &each) {
    views pair = each.make(208);
    size_t dst_bytes = storage_of(pair.dst), src_bytes = storage_of(pair.src);
    std::vector<unsigned char> src(src_bytes), wanted(dst_bytes, 0x5A), got(dst_bytes, 0x5A);
    for (size_t i = 0; i < src_bytes; i++) {
        src[i] = (unsigned char)(rand() >> 7);
    }
    if (pair.src.dtype == FL_DTYPE_BOOL) {
        for (unsigned char &byte : src) {
            byte &= 1;
        }
    }
    if (pair.src.dtype == FL_DTYPE_F32 && pair.dst.dtype != FL_DTYPE_F32) {
        for (size_t i = 0; i + 4 <= src_bytes; i += 4) { /* no NaN, whose payload may differ */
            float value = (float)(rand() % 200001 - 100000) * 0.0137f;
            memcpy(&src[i], &value, 4);
        }
    }
    if (pair.src.dtype == FL_DTYPE_BF16 && pair.dst.dtype != FL_DTYPE_BF16) {
        for (size_t i = 1; i < src_bytes; i += 2) {
            src[i] &= 0xBF;
        }
    }
    void *device_dst, *device_src;
    MUST(cudaMalloc(&device_dst, dst_bytes));
    MUST(cudaMalloc(&device_src, src_bytes));
    MUST(cudaMemcpy(device_dst, got.data(), dst_bytes, cudaMemcpyHostToDevice));
    MUST(cudaMemcpy(device_src, src.data(), src_bytes, cudaMemcpyHostToDevice));
    views host = pair;
    host.dst.data = wanted.data();
    host.src.data = src.data();
    if (pair.is_fill) {
        fl_host_fill(&host.dst, kElement);
    } else {
        fl_host_copy(&host.dst, &host.src);
    }
    pair.dst.data = device_dst;
    pair.src.data = device_src;
    run(pair, nullptr);
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(got.data(), device_dst, dst_bytes, cudaMemcpyDeviceToHost));
    MUST(cudaFree(device_dst));
    MUST(cudaFree(device_src));
    return got == wanted;
}

static void *flush_memory;
static const size_t kFlushBytes = (size_t)256 << 20;

/* Median milliseconds of 20 runs with a cold L2. */
template <typename F>
double time_ms(F once) {
    cudaEvent_t start, stop;
    MUST(cudaEventCreate(&start));
    MUST(cudaEventCreate(&stop));
    std::vector<float> times;
    for (int i = 0; i < 23; i++) {
        MUST(cudaMemsetAsync(flush_memory, i, kFlushBytes));
        MUST(cudaEventRecord(start));
        once();
        MUST(cudaEventRecord(stop));
        MUST(cudaEventSynchronize(stop));
        float ms;
        MUST(cudaEventElapsedTime(&ms, start, stop));
        if (i >= 3) {
            times.push_back(ms);
        }
    }
    MUST(cudaEventDestroy(start));
    MUST(cudaEventDestroy(stop));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

int main(int argc, char **argv) {
    int64_t n = argc > 1 ? atoll(argv[1]) : 16384; /* elements on a side */
    cudaDeviceProp properties;
    int clock_khz = 0, bus_bits = 0;
    MUST(cudaGetDeviceProperties(&properties, 0));
    MUST(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, 0));
    MUST(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, 0));
    double peak = 2.0 * clock_khz * 1e3 * bus_bits / 8 / 1e9;
    services.module_load = load;
    services.module_function = find;
    services.launch = launch;
    MUST_FL(fl__kernels_over(&services, "linked", 6, &table));
    MUST(cudaMalloc(&flush_memory, kFlushBytes));

    size_t room = (size_t)n * (size_t)(n + n / 2) * 16;
    size_t free_bytes, total_bytes;
    MUST(cudaMemGetInfo(&free_bytes, &total_bytes));
    room = std::min(room, free_bytes / 5 * 2);
    void *dst, *src;
    MUST(cudaMalloc(&dst, room));
    MUST(cudaMalloc(&src, room));
    MUST(cudaMemset(src, 1, room));
    size_t yard_bytes = std::min(room, (size_t)1 << 30);
    double yard_ms =
        time_ms([&] { MUST(cudaMemcpyAsync(dst, src, yard_bytes, cudaMemcpyDeviceToDevice)); });
    double yard = 2.0 * (double)yard_bytes / yard_ms / 1e6;
    double yard_set_ms = time_ms([&] { MUST(cudaMemsetAsync(dst, 1, yard_bytes)); });
    printf("%s, peak %.0f GB/s; driver's copy of 1 GiB %.0f GB/s, its fill %.0f GB/s\n",
           properties.name, peak, yard, (double)yard_bytes / yard_set_ms / 1e6);
    printf("%-24s %-22s %9s %8s %8s  %s\n", "case", "function", "GB/s", "of peak", "of copy",
           "bar 0.85");

    int wrong = 0, slow = 0;
    for (const bench_case &each : cases) {
        if (!validate(each)) {
            printf("%-24s WRONG VALUES (%s)\n", each.name, last_name);
            wrong++;
            continue;
        }
        int64_t side = n;
        views pair = each.make(side);
        while (std::max(storage_of(pair.dst), storage_of(pair.src)) > room) {
            side /= 2;
            pair = each.make(side);
        }
        pair.dst.data = dst;
        pair.src.data = src;
        double rate = traffic(pair) / time_ms([&] { run(pair, nullptr); }) / 1e6;
        bool is_slow = each.coalesces && rate < 0.85 * yard;
        slow += is_slow;
        printf("%-24s %-22s %9.0f %7.1f%% %8.3f  %s\n", each.name, last_name, rate,
               100 * rate / peak, rate / yard,
               !each.coalesces ? "-"
               : is_slow       ? "BELOW"
                               : "ok");
    }
    printf("%d wrong, %d below the bar\n", wrong, slow);
    return wrong || slow ? 1 : 0;
}
