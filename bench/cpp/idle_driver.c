/*
 * idle_driver.c: as much of CUDA's driver and of its compiler at run time as goes with idle_cuda.c.
 * PyTorch opens both by name, so this is built under either.
 */
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

#define SUCCEED(name)      \
    EXPORT int name(void); \
    int name(void) {       \
        return 0;          \
    }

static int make(void **out) {
    static uintptr_t last;
    *out = (void *)++last; // NOLINT: it is a name, not an address.
    return 0;
}

/* The context of the only device is there from the beginning. */
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *out_flags, int *out_active);
int cuDevicePrimaryCtxGetState(int device, unsigned *out_flags, int *out_active) {
    (void)device;
    *out_flags = 0;
    *out_active = 1;
    return 0;
}

EXPORT int cuCtxGetCurrent(void **out);
int cuCtxGetCurrent(void **out) {
    *out = (void *)out; // NOLINT: any name that is not NULL.
    return 0;
}

EXPORT int cuModuleLoadData(void **out, const void *image);
int cuModuleLoadData(void **out, const void *image) {
    (void)image;
    return make(out);
}

EXPORT int cuModuleGetFunction(void **out, void *module, const char *name);
int cuModuleGetFunction(void **out, void *module, const char *name) {
    (void)module, (void)name;
    return make(out);
}

SUCCEED(cuInit)
SUCCEED(cuLaunchKernel)
SUCCEED(cuFuncSetAttribute)
SUCCEED(cuModuleUnload)

/* A program compiles to one byte, and the driver loads any code. */

EXPORT int nvrtcVersion(int *out_major, int *out_minor);
int nvrtcVersion(int *out_major, int *out_minor) {
    *out_major = 13;
    *out_minor = 0;
    return 0;
}

EXPORT int nvrtcCreateProgram(void **out);
int nvrtcCreateProgram(void **out) {
    return make(out);
}

EXPORT int nvrtcGetCUBINSize(void *program, size_t *out);
int nvrtcGetCUBINSize(void *program, size_t *out) {
    (void)program;
    *out = 1;
    return 0;
}

EXPORT int nvrtcGetCUBIN(void *program, char *out);
int nvrtcGetCUBIN(void *program, char *out) {
    (void)program;
    *out = 0;
    return 0;
}

EXPORT int nvrtcGetLoweredName(void *program, const char *name, const char **out);
int nvrtcGetLoweredName(void *program, const char *name, const char **out) {
    (void)program;
    *out = name;
    return 0;
}

SUCCEED(nvrtcAddNameExpression)
SUCCEED(nvrtcCompileProgram)
SUCCEED(nvrtcDestroyProgram)
