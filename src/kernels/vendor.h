/*
 * vendor.h: what compilers of device code spell differently.
 *
 * The .cu files use only names that HIP's and MUSA's compilers share with CUDA's; what is left is
 * here. The one file of src/kernels that names vendors.
 */
#ifndef FL_KERNELS_VENDOR_H
#define FL_KERNELS_VENDOR_H

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#elif defined(__MUSA__)
#include <musa_runtime.h>
#endif

/* An argument that stays in constant memory, so that indexing into it makes no local copy. */
#if defined(__CUDACC__) && !defined(__HIP__)
#define FL__ARGUMENT(type) const __grid_constant__ type
#else
#define FL__ARGUMENT(type) const type
#endif

/* A function that the host finds by its name. */
#define FL__KERNEL extern "C" __global__ void __launch_bounds__(FL__BLOCK_THREADS)

#endif
