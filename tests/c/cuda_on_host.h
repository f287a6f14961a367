/*
 * cuda_on_host.h: just enough of CUDA's language to run the .cu files on the host.
 *
 * A block's threads run one after another, each to the first __syncthreads; then all run again from
 * their start to the second one, and so on, until all have ended. That gives the right values where
 * a thread does the same each time, that is, where a kernel does not read what it writes to global
 * memory. Nothing about speed or races can be learned from it; index arithmetic, bounds and values
 * can, under sanitizers too.
 */
#ifndef FL_TESTS_CUDA_ON_HOST_H
#define FL_TESTS_CUDA_ON_HOST_H

#include <cstdint>
#include <cstring>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)

struct host_dim3 {
    uint32_t x, y, z;
};

extern host_dim3 threadIdx, blockIdx;

void host_syncthreads();
#define __syncthreads host_syncthreads

static inline uint32_t __umulhi(uint32_t a, uint32_t b) {
    return (uint32_t)(((uint64_t)a * b) >> 32);
}

#endif
