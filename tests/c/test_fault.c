/*
 * test_fault.c: the drivers that wrap a driver.
 */
#define _GNU_SOURCE
#include <string.h>

#include "driver/sim.h"
#include "driver/wrap.h"
#include "harness.h"
#include "vendor_test.h"

static fl__fault fault;

static const fl_driver *wrapped(void) {
    const fl_driver *sim = fl__sim_driver();
    CHECK_OK(sim->init(sim->ctx));
    fl__fault_wrap(&fault, sim);
    return &fault.table;
}

TEST(fault, passes_on_what_it_is_not_told_to_fail) {
    const fl_driver *d = wrapped();
    CHECK_OK(fl_driver_check(d));
    CHECK(d->module_load == NULL); /* The inner one has none. */
    CHECK_OK(use_every_slot(d, 0));
    CHECK_INT(fault.failures, 0);
}

TEST(fault, strikes_once_at_the_nth_call) {
    const fl_driver *d = wrapped();
    void *ptr[4];
    fl__fault_arm(&fault, FL__SLOT_MEMORY, 3, FL_OUT_OF_MEMORY, false);
    CHECK_OK(d->mem_alloc(d->ctx, 0, 64, &ptr[0]));
    CHECK_OK(d->mem_alloc(d->ctx, 0, 64, &ptr[1]));
    CHECK_STATUS(d->mem_alloc(d->ctx, 0, 64, &ptr[2]), FL_OUT_OF_MEMORY);
    CHECK_STRING(fl_last_message(), "sim: mem_alloc was told to fail");
    CHECK_OK(d->mem_alloc(d->ctx, 0, 64, &ptr[2]));
    CHECK_INT(fault.calls, 4);
    CHECK_INT(fault.failures, 1);
    fl__fault_disarm(&fault);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(d->mem_free(d->ctx, 0, ptr[i]));
    }
}

TEST(fault, stays_when_told_so) {
    const fl_driver *d = wrapped();
    fl__fault_arm(&fault, FL__SLOT_STREAM, 2, FL_DEVICE_LOST, true);
    fl_native_stream stream;
    CHECK_OK(d->stream_create(d->ctx, 0, 0, &stream));
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(d->stream_synchronize(d->ctx, 0, stream), FL_DEVICE_LOST);
    }
    CHECK_INT(fault.failures, 3);
    void *ptr; /* Another class. */
    CHECK_OK(d->mem_alloc(d->ctx, 0, 64, &ptr));
}

TEST(fault, not_ready_is_an_answer) {
    const fl_driver *d = wrapped();
    fl_native_event event;
    CHECK_OK(d->event_create(d->ctx, 0, 0, &event));
    fl__fault_arm(&fault, FL__SLOT_EVENT, 1, FL_NOT_READY, false);
    CHECK_STATUS(fl_fail(FL_INTERNAL, "before"), FL_INTERNAL);
    CHECK_STATUS(d->event_query(d->ctx, 0, event), FL_NOT_READY);
    CHECK_STRING(fl_last_message(), "before");
    CHECK_OK(d->event_query(d->ctx, 0, event));
    CHECK_OK(d->event_destroy(d->ctx, 0, event));
}

/* Raise n until nothing fails any more: each call of the run was failed once. */
TEST(fault, every_call_of_a_run) {
    const fl_driver *d = wrapped();
    int64_t n = 0;
    fl_status status = FL_OK;
    do {
        fl__fault_arm(&fault, FL__SLOT_ANY, ++n, FL_DEVICE_ERROR, false);
        status = use_every_slot(d, 0);
        CHECK(status == FL_OK || status == FL_DEVICE_ERROR);
        CHECK_INT(status == FL_OK, fault.failures == 0);
    } while (status);
    CHECK(n > 30);
}

TEST(fault, slots_have_names_and_classes) {
    CHECK_STRING(fl__slot_name(FL__SLOT_copy_2d), "copy_2d");
    CHECK_STRING(fl__slot_name(FL__SLOT_COUNT), "no slot");
    CHECK_INT(fl__slot_class_of(FL__SLOT_launch), FL__SLOT_CODE);
    CHECK_INT(fl__slot_class_of(FL__SLOT_host_free), FL__SLOT_MEMORY);
}

/* --- the trace -------------------------------------------------------------------------------- */

TEST(wrap_trace, writes_down_each_call) {
    const fl_driver *sim = fl__sim_driver();
    CHECK_OK(sim->init(sim->ctx));
    fl__call_trace *trace = NULL;
    CHECK_OK(fl__call_trace_create(sim, &trace));
    const fl_driver *d = fl__call_trace_driver(trace);
    void *ptr;
    fl_native_stream stream, other;
    fl_native_event event;
    char in[100] = "";
    CHECK_OK(d->mem_alloc(d->ctx, 1, 100, &ptr));
    CHECK_OK(d->stream_create(d->ctx, 1, 0, &stream));
    CHECK_OK(d->stream_create(d->ctx, 1, 0, &other));
    CHECK_OK(d->event_create(d->ctx, 1, 0, &event));
    fl__call_trace_clear(trace);
    CHECK_OK(d->copy(d->ctx, 1, ptr, in, 100, FL_COPY_HOST_TO_DEVICE, stream));
    CHECK_OK(d->event_record(d->ctx, 1, event, stream));
    CHECK_OK(d->stream_wait_event(d->ctx, 1, other, event));
    CHECK_STATUS(d->copy(d->ctx, 1, in, in, 7, FL_COPY_DEVICE_TO_HOST, other), FL_INVALID_ARGUMENT);
    CHECK_INT(fl__call_trace_count(trace), 4);
    fl__trace_entry copy = fl__call_trace_at(trace, 0);
    CHECK_INT(copy.slot, FL__SLOT_copy);
    CHECK_INT(copy.device, 1);
    CHECK_POINTER(copy.dst, ptr);
    CHECK_POINTER(copy.src, in);
    CHECK_UINT(copy.bytes, 100);
    CHECK_INT(copy.kind, FL_COPY_HOST_TO_DEVICE);
    CHECK_POINTER(copy.stream, stream);
    CHECK_STATUS(copy.status, FL_OK);
    fl__trace_entry wait = fl__call_trace_at(trace, 2);
    CHECK_POINTER(wait.stream, other);
    CHECK_POINTER(wait.event, event);
    CHECK_STATUS(fl__call_trace_at(trace, 3).status, FL_INVALID_ARGUMENT);
    CHECK_INT(fl__call_trace_find(trace, 0, FL__SLOT_event_record), 1);
    CHECK_INT(fl__call_trace_find(trace, 1, FL__SLOT_copy), 3);
    CHECK_INT(fl__call_trace_find(trace, 0, FL__SLOT_fill), 4);
    CHECK_OK(d->event_destroy(d->ctx, 1, event));
    CHECK_OK(use_every_slot(d, 0));
    CHECK(fl__call_trace_count(trace) > 30);
    fl__call_trace_destroy(trace);
    fl__call_trace_destroy(NULL);
}

/* Around a failing driver the trace shows what was asked for and what came of it. */
TEST(wrap_trace, wrappers_stack) {
    fl__call_trace *trace = NULL;
    CHECK_OK(fl__call_trace_create(wrapped(), &trace));
    const fl_driver *d = fl__call_trace_driver(trace);
    fl__fault_arm(&fault, FL__SLOT_DEVICE, 1, FL_DEVICE_ERROR, false);
    CHECK_STATUS(d->device_synchronize(d->ctx, 0), FL_DEVICE_ERROR);
    CHECK_INT(fl__call_trace_count(trace), 1);
    CHECK_STATUS(fl__call_trace_at(trace, 0).status, FL_DEVICE_ERROR);
    fl__call_trace_destroy(trace);
}
