/*
 * tsingmicro_table.h: what tsingmicro.c (library, devices, memory) and tsingmicro_streams.c share.
 */
#ifndef FL_SRC_DRIVER_TSINGMICRO_TABLE_H
#define FL_SRC_DRIVER_TSINGMICRO_TABLE_H

#include "fl/driver.h"

typedef void fl__tx_host_function(void *argument);

typedef struct fl__tx_calls {
#define FL_TX(field, symbol, result, parameters, need) result(*field) parameters;
#include "driver/tsingmicro.inc"
#undef FL_TX
} fl__tx_calls;

/* Filled once, before any slot can be called. */
extern fl__tx_calls fl__tx;

/* Make the device current; the thread's own is put back by fl__tx_finish. */
fl_status fl__tx_enter(fl_device device, int64_t *out_previous);

/* The end of a slot that entered: the status of the vendor's code, with a message if it failed. */
fl_status fl__tx_finish(int64_t previous, int code, const char *function, const char *what, ...)
    FL_PRINTF(4, 5);

/* Write the slots of streams and events; those whose function is missing become NULL. */
void fl__tx_stream_slots(fl_driver *table);

#endif
