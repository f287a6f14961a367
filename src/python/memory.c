/*
 * memory.c: device memory, its history and pinned memory of the core, as plain Python values.
 *
 * Serves platforms whose memory is the core's. Keys and words of segments, blocks and pinned
 * statistics are those of torch.cuda's snapshots and statistics, so that its tools read them. The
 * lists are built after the core let go of its locks.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl/memory.h"
#include "fl/pinned.h"
#include "module.h"

/* A result of a call that gives nothing back. */
static PyObject *none_or_raise(fl_status status) {
    if (status) {
        return py_raise_status(status);
    }
    Py_RETURN_NONE;
}

/* --- blocks ---------------------------------------------------------------------------------- */

PyObject *memory_alloc(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    Py_ssize_t bytes;
    long long stream;
    if (!PyArg_ParseTuple(args, "inL:memory_alloc", &device, &bytes, &stream)) {
        return NULL;
    }
    if (bytes < 0) {
        PyErr_Format(PyExc_ValueError, "a block cannot have %zd bytes", bytes);
        return NULL;
    }
    void *pointer = NULL;
    fl_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = fl_memory_alloc(device, (size_t)bytes, (fl_stream)stream, &pointer);
    Py_END_ALLOW_THREADS;
    if (status == FL_OUT_OF_MEMORY) {
        PyErr_SetString(PyExc_MemoryError, fl_last_message());
        return NULL;
    }
    return status ? py_raise_status(status) : PyLong_FromVoidPtr(pointer);
}

PyObject *memory_free(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *number;
    if (!PyArg_ParseTuple(args, "O:memory_free", &number)) {
        return NULL;
    }
    void *pointer = PyLong_AsVoidPtr(number);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (pointer) {
        fl_pointer_info info;
        fl_pointer_lookup(pointer, &info);
        if (info.kind != FL_POINTER_DEVICE || info.base != pointer) {
            PyErr_Format(PyExc_ValueError, "%p is not the start of a live block of device memory",
                         pointer);
            return NULL;
        }
        fl_memory_free(pointer);
    }
    Py_RETURN_NONE;
}

PyObject *memory_set_fraction(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    double fraction;
    if (!PyArg_ParseTuple(args, "id:memory_set_fraction", &device, &fraction)) {
        return NULL;
    }
    return none_or_raise(fl_memory_set_fraction(device, fraction));
}

PyObject *memory_get_fraction(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    if (!PyArg_ParseTuple(args, "i:memory_get_fraction", &device)) {
        return NULL;
    }
    double fraction = 0;
    fl_status status = fl_memory_get_fraction(device, &fraction);
    return status ? py_raise_status(status) : PyFloat_FromDouble(fraction);
}

PyObject *memory_configure(PyObject *self, PyObject *args) {
    (void)self;
    const char *settings;
    if (!PyArg_ParseTuple(args, "s:memory_configure", &settings)) {
        return NULL;
    }
    fl_status status = fl_memory_configure(settings);
    if (status) {
        return py_raise_status(status);
    }
    fl_memory_settings in_force;
    fl_memory_get_settings(&in_force);
    return PyUnicode_FromString(in_force.ignored);
}

/* --- what is where --------------------------------------------------------------------------- */

static const char *state_word(fl_block_state state) {
    switch (state) {
    case FL_BLOCK_FREE:
        return "inactive";
    case FL_BLOCK_IN_USE:
        return "active_allocated";
    case FL_BLOCK_WAITING:
        return "active_awaiting_free";
    }
    return "unknown";
}

static unsigned long long address_of(const void *pointer) {
    return (unsigned long long)(uintptr_t)pointer;
}

/* Append `item`, whose reference is taken over; NULL stands for "an exception is set". */
static void append(PyObject *list, PyObject *item) {
    if (item) {
        (void)PyList_Append(list, item);
        Py_DECREF(item);
    }
}

static PyObject *blocks_of(const fl_segment_info *segment) {
    PyObject *blocks = PyList_New(0);
    for (uint32_t i = 0; blocks && i < segment->block_count; i++) {
        const fl_block_info *block = &segment->blocks[i];
        append(blocks, Py_BuildValue("{s:K,s:n,s:n,s:s,s:[]}", "address",
                                     address_of(block->address), "size", (Py_ssize_t)block->size,
                                     "requested_size", (Py_ssize_t)block->requested_size, "state",
                                     state_word(block->state), "frames"));
        if (PyErr_Occurred()) {
            Py_CLEAR(blocks);
        }
    }
    return blocks;
}

static void visit_segment(void *user, const fl_segment_info *segment) {
    PyObject *blocks = PyErr_Occurred() ? NULL : blocks_of(segment);
    if (!blocks) {
        return; /* The exception is raised when the walk is over. */
    }
    append(user,
           Py_BuildValue("{s:i,s:K,s:n,s:n,s:n,s:n,s:L,s:s,s:(ii),s:O,s:[],s:N}", "device",
                         (int)segment->device, "address", address_of(segment->address),
                         "total_size", (Py_ssize_t)segment->total_size, "allocated_size",
                         (Py_ssize_t)segment->allocated_size, "active_size",
                         (Py_ssize_t)segment->active_size, "requested_size",
                         (Py_ssize_t)segment->requested_size, "stream", (long long)segment->stream,
                         "segment_type", segment->is_large ? "large" : "small", "segment_pool_id",
                         0, 0, "is_expandable", Py_False, "frames", "blocks", blocks));
}

static void visit_event(void *user, const fl_memory_event *event) {
    if (!PyErr_Occurred()) {
        append(user,
               Py_BuildValue("(siLKKK)", fl_memory_action_word(event->action), (int)event->device,
                             (long long)event->stream, (unsigned long long)event->address,
                             (unsigned long long)event->size, (unsigned long long)event->time_ns));
    }
}

/* What a walk of the core has put into `list`, or the exception that it ended with. */
static PyObject *finish(PyObject *list, fl_status status) {
    if (status && !PyErr_Occurred()) {
        (void)py_raise_status(status);
    }
    if (PyErr_Occurred()) {
        Py_DECREF(list);
        return NULL;
    }
    return list;
}

PyObject *memory_segments(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    if (!PyArg_ParseTuple(args, "i:memory_segments", &device)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    return list ? finish(list, fl_memory_snapshot(device, visit_segment, list)) : NULL;
}

PyObject *memory_events(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    if (!PyArg_ParseTuple(args, "i:memory_events", &device)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    return list ? finish(list, fl_memory_history(device, visit_event, list)) : NULL;
}

PyObject *memory_history_enable(PyObject *self, PyObject *args) {
    (void)self;
    Py_ssize_t max_entries;
    if (!PyArg_ParseTuple(args, "n:memory_history_enable", &max_entries)) {
        return NULL;
    }
    if (max_entries < 0) {
        PyErr_Format(PyExc_ValueError, "a history cannot have %zd entries", max_entries);
        return NULL;
    }
    return none_or_raise(fl_memory_history_enable((size_t)max_entries));
}

/* --- pinned memory --------------------------------------------------------------------------- */

static PyObject *stat_dict(const fl_stat *stat) {
    return Py_BuildValue("{s:L,s:L,s:L,s:L}", "current", (long long)stat->current, "peak",
                         (long long)stat->peak, "allocated", (long long)stat->allocated, "freed",
                         (long long)stat->freed);
}

static PyObject *duration_dict(const fl_duration_stat *stat) {
    double average = stat->count ? (double)stat->total / (double)stat->count : 0.0;
    return Py_BuildValue("{s:L,s:L,s:L,s:L,s:d}", "total", (long long)stat->total, "max",
                         (long long)stat->max, "min", (long long)stat->min, "count",
                         (long long)stat->count, "avg", average);
}

PyObject *pinned_stats(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    fl_pinned_stats stats;
    fl_pinned_get_stats(&stats);
    return Py_BuildValue(
        "{s:N,s:N,s:N,s:N,s:N,s:N,s:L,s:L}", "allocations", stat_dict(&stats.allocations),
        "allocated_bytes", stat_dict(&stats.allocated_bytes), "active_requests",
        stat_dict(&stats.active_requests), "active_bytes", stat_dict(&stats.active_bytes),
        "host_alloc_time", duration_dict(&stats.host_alloc_time), "host_free_time",
        duration_dict(&stats.host_free_time), "num_host_alloc", (long long)stats.num_host_alloc,
        "num_host_free", (long long)stats.num_host_free);
}

PyObject *pinned_reset_peak(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    fl_pinned_reset_peak_stats();
    Py_RETURN_NONE;
}

PyObject *pinned_reset_accumulated(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    fl_pinned_reset_accumulated_stats();
    Py_RETURN_NONE;
}
