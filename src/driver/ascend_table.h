/*
 * ascend_table.h: what ascend.c (library, devices), ascend_memory.c and ascend_streams.c
 * share.
 */
#ifndef FL_SRC_DRIVER_ASCEND_TABLE_H
#define FL_SRC_DRIVER_ASCEND_TABLE_H

#include "fl/driver.h"

typedef void fl__acl_host_function(void *argument);

typedef struct fl__acl_calls {
#define FL_ACL(field, symbol, result, parameters, need) result(*field) parameters;
#include "driver/ascend.inc"
#undef FL_ACL
} fl__acl_calls;

/* Filled once, before any slot can be called. */
extern fl__acl_calls fl__acl;

/* Make the device current: AscendCL needs that on each thread before anything else. The device
 * that the thread had is put back by fl__acl_finish; a thread that had none keeps this one. */
fl_status fl__acl_enter(fl_device device, int32_t *out_previous);
void fl__acl_leave(int32_t previous);

enum { FL__ACL_NO_DEVICE = -1 };

/* Turn a code that is not 0 into a status and a message, taking the vendor's words, which are kept
 * for the thread until somebody fetches them. */
fl_status fl__acl_failed(int code, const char *function, const char *what, ...) FL_PRINTF(3, 4);

/* Take what the runtime has kept of a failure, so that nobody finds it later. Never NULL. */
const char *fl__acl_take_words(void);

/* The end of a slot that entered. */
fl_status fl__acl_finish(int32_t previous, int code, const char *function, const char *what, ...)
    FL_PRINTF(4, 5);

/* Write the slots of memory, of streams and events; those whose function is missing become NULL. */
void fl__acl_memory_slots(fl_driver *table);
void fl__acl_stream_slots(fl_driver *table);

#endif
