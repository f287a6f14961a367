/*
 * device_code.h: device functions on the host, by name.
 */
#ifndef FL_TESTS_DEVICE_CODE_H
#define FL_TESTS_DEVICE_CODE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NULL if there is no such function. */
const void *device_code_find(const char *name);

/* How large that argument is. */
size_t device_code_argument_bytes(const void *function);

/* One call at a time. Runs the blocks one after another. `argument` is the function's one argument.
 */
void device_code_launch(const void *function, uint32_t blocks, void *argument);

#ifdef __cplusplus
}
#endif

#endif
