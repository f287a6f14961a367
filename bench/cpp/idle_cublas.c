/*
 * idle_cublas.c: cuBLAS for the device of idle_cuda.c: products of matrices succeed and do nothing.
 */
#include <stdint.h>
#include <string.h>

#include "idle.h"

SERVE(int, cublasCreate_v2, (void **out)) {
    COUNT(cublasCreate_v2);
    return idle_make(out);
}

/* One mode for all handles: no program that is counted has two. */
static int math_mode, pointer_mode;

SERVE(int, cublasGetMathMode, (void *handle, int *out)) {
    (void)handle;
    COUNT(cublasGetMathMode);
    *out = math_mode;
    return SUCCESS;
}

SERVE(int, cublasSetMathMode, (void *handle, int mode)) {
    (void)handle;
    COUNT(cublasSetMathMode);
    math_mode = mode;
    return SUCCESS;
}

SERVE(int, cublasGetPointerMode_v2, (void *handle, int *out)) {
    (void)handle;
    COUNT(cublasGetPointerMode_v2);
    *out = pointer_mode;
    return SUCCESS;
}

SERVE(int, cublasSetPointerMode_v2, (void *handle, int mode)) {
    (void)handle;
    COUNT(cublasSetPointerMode_v2);
    pointer_mode = mode;
    return SUCCESS;
}

SUCCEED(cublasDestroy_v2)
SUCCEED(cublasSetStream_v2)
SUCCEED(cublasSetWorkspace_v2)
SUCCEED(cublasSgemm_v2)
SUCCEED(cublasDgemm_v2)
SUCCEED(cublasGemmEx)
SUCCEED(cublasSgemmEx)
SUCCEED(cublasGemmStridedBatchedEx)
SUCCEED(cublasSgemmStridedBatched)
SUCCEED(cublasDgemmStridedBatched)
SUCCEED(cublasSgemv_v2)
SUCCEED(cublasSdot_v2)
SUCCEED(cublasDotEx)

SERVE(int, cublasLtMatmulDescCreate, (void **out, int compute, int scale)) {
    (void)compute, (void)scale;
    COUNT(cublasLtMatmulDescCreate);
    return idle_make(out);
}

SERVE(int, cublasLtMatmulPreferenceCreate, (void **out)) {
    COUNT(cublasLtMatmulPreferenceCreate);
    return idle_make(out);
}

SERVE(int, cublasLtMatrixLayoutCreate,
      (void **out, int type, uint64_t rows, uint64_t columns, int64_t stride)) {
    (void)type, (void)rows, (void)columns, (void)stride;
    COUNT(cublasLtMatrixLayoutCreate);
    return idle_make(out);
}

enum { ALGORITHM_BYTES = 96 };

/* There is always one algorithm, which needs no workspace. */
SERVE(int, cublasLtMatmulAlgoGetHeuristic,
      (void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
       int wanted, void *out_algorithms, int *out_found)) {
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
    COUNT(cublasLtMatmulAlgoGetHeuristic);
    *out_found = wanted > 0;
    memset(out_algorithms, 0, wanted > 0 ? ALGORITHM_BYTES : 0);
    return SUCCESS;
}

SUCCEED(cublasLtMatmul)
SUCCEED(cublasLtMatmulDescDestroy)
SUCCEED(cublasLtMatmulDescSetAttribute)
SUCCEED(cublasLtMatmulPreferenceDestroy)
SUCCEED(cublasLtMatmulPreferenceSetAttribute)
SUCCEED(cublasLtMatrixLayoutDestroy)
SUCCEED(cublasLtMatrixLayoutSetAttribute)
