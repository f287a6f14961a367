/*
 * cudalike_table.h: what cudalike.c (which finds a vendor's functions), cudalike_memory.c and
 * cudalike_streams.c (which call them) share. Must not know any vendor.
 */
#ifndef FL_SRC_DRIVER_CUDALIKE_TABLE_H
#define FL_SRC_DRIVER_CUDALIKE_TABLE_H

#include <stdatomic.h>

#include "base/dl.h"
#include "driver/cudalike.h"

/* Signatures. Error codes and other enums of the vendors are 32 bits wide: int. */
typedef void fl__host_function(void *argument);
typedef void fl__stream_callback(void *stream, int code, void *argument);
typedef int fl__call_void(void);
typedef int fl__call_i(int);
typedef int fl__call_u(unsigned);
typedef int fl__call_pi(int *);
typedef int fl__call_pipi(int *, int *);
typedef int fl__call_piii(int *, int, int);
typedef int fl__call_iu(int, unsigned);
typedef int fl__call_p(void *);
typedef int fl__call_pp(void *, void *);
typedef int fl__call_ppi(void *, int *);
typedef int fl__call_ppu(void *, void *, unsigned);
typedef int fl__call_alloc(void **, size_t);
typedef int fl__call_alloc_flags(void **, size_t, unsigned);
typedef int fl__call_create_flags(void **, unsigned);
typedef int fl__call_create_priority(void **, unsigned, int);
typedef int fl__call_copy(void *, const void *, size_t, int, void *);
typedef int fl__call_copy_peer(void *, int, const void *, int, size_t, void *);
typedef int fl__call_copy_peer_now(void *, int, const void *, int, size_t);
typedef int fl__call_copy_2d(void *, size_t, const void *, size_t, size_t, size_t, int, void *);
typedef int fl__call_fill(void *, int, size_t, void *);
typedef int fl__call_properties(void *, int);
typedef int fl__call_name(char *, int, int);
typedef int fl__call_total(size_t *, int);
typedef int fl__call_attribute(int *, int, int);
typedef int fl__call_mem_info(size_t *, size_t *);
typedef int fl__call_elapsed(float *, void *, void *);
typedef int fl__call_host(void *, fl__host_function *, void *);
typedef int fl__call_callback(void *, fl__stream_callback *, void *, unsigned);
typedef const char *fl__call_text(int);
typedef int fl__call_state(int, unsigned *, int *);
typedef int fl__call_module_load(void **, const void *);
typedef int fl__call_module_function(void **, void *, const char *);
typedef int fl__call_function_attribute(void *, int, int);
typedef int fl__call_launch(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void *, void **, void **);

typedef enum fl__cudalike_symbol {
#define FL_CUDALIKE(field, suffix, signature, need) FL__SYM_##field,
#include "driver/cudalike.inc"
#undef FL_CUDALIKE
    FL__SYM_COUNT
} fl__cudalike_symbol;

typedef struct fl__cudalike {
    struct fl__cudalike *next;
    fl_driver table; /* Its ctx is this struct. */
    const fl__cudalike_row *row;
    fl__dl runtime, modules; /* Never closed: vendors' libraries start threads. */
    struct {
#define FL_CUDALIKE(field, suffix, signature, need) fl__##signature *field;
#include "driver/cudalike.inc"
#undef FL_CUDALIKE
    } call;
    _Atomic uint64_t peers[FL_DEVICE_MAX]; /* Bit d: access from here to d was asked for. */
} fl__cudalike;

/* Write all slots of devices and memory, and of streams and events, into a table; cudalike.c takes
 * out those whose functions are missing. */
void fl__cudalike_memory_slots(fl_driver *table);
void fl__cudalike_stream_slots(fl_driver *table);

/* Make `device` current on the calling thread. Another framework in the process finds its own
 * device again after fl__cudalike_leave, which takes what was written to `out_previous`. */
fl_status fl__cudalike_enter(const fl__cudalike *c, fl_device device, int *out_previous);
void fl__cudalike_leave(const fl__cudalike *c, int previous);

/* The end of a slot that entered: the status of `code`, as fl__cudalike_failed, then leave. */
fl_status fl__cudalike_finish(const fl__cudalike *c, int previous, int code,
                              fl__cudalike_symbol symbol, const char *what, ...) FL_PRINTF(5, 6);

/* Turn a vendor's code that is not 0 into a status with a message, and clear what the runtime has
 * kept of it for the thread, which the next check of another framework would find. `what` and the
 * arguments behind it say what we did. The "not ready" of a query leaves no message; that of any
 * other function is FL_INTERNAL. */
fl_status fl__cudalike_failed(const fl__cudalike *c, int code, fl__cudalike_symbol symbol,
                              const char *what, ...) FL_PRINTF(4, 5);

#endif
