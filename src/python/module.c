/*
 * module.c: torch_fl._C, what Python sees of libflagos.
 *
 * Platforms, devices and options, as plain Python values; routes are in routes.c. Written for
 * CPython's limited API of 3.10, so one build serves every later version. Knows no torch: tensors,
 * streams and memory statistics reach Python through PyTorch's own interfaces and the adapter's
 * operators. Calls that may wait for a driver let go of the interpreter's lock.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl/debug.h"
#include "fl/device.h"
#include "module.h"

/* The classes are those that torch.cuda raises, or their bases, so that existing handlers keep
 * working. */
PyObject *py_raise_status(fl_status status) {
    PyObject *kind = PyExc_RuntimeError;
    if (status == FL_INVALID_ARGUMENT) {
        kind = PyExc_ValueError;
    } else if (status == FL_NOT_FOUND) {
        kind = PyExc_LookupError; /* KeyError would print its message quoted. */
    } else if (status == FL_NOT_SUPPORTED) {
        kind = PyExc_NotImplementedError; /* A RuntimeError too. */
    }
    const char *message = fl_last_message();
    PyErr_Format(kind, "%s", *message ? message : fl_status_name(status));
    return NULL;
}

/* Store `value` (whose reference is taken over, NULL for "an exception is set") under `key`. */
static int put(PyObject *dict, const char *key, PyObject *value) {
    if (!value) {
        return -1;
    }
    int result = PyDict_SetItemString(dict, key, value);
    Py_DECREF(value);
    return result;
}

/* --- platforms ------------------------------------------------------------------------------- */

static const char *twin_word(fl_twin twin) {
    switch (twin) {
    case FL_TWIN_CPU:
        return "cpu";
    case FL_TWIN_CUDA:
        return "cuda";
    case FL_TWIN_NONE:
        break;
    }
    return NULL;
}

static PyObject *platform_dict(const fl_platform *platform) {
    return Py_BuildValue("{s:s,s:z,s:i}", "name", platform->name, "twin", twin_word(platform->twin),
                         "probe_order", platform->probe_order);
}

static PyObject *platform_choose(PyObject *self, PyObject *args) {
    (void)self;
    const char *name = NULL;
    if (!PyArg_ParseTuple(args, "z:platform_choose", &name)) {
        return NULL;
    }
    const fl_platform *platform = NULL;
    fl_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = fl_platform_choose(name, &platform);
    Py_END_ALLOW_THREADS;
    return status ? py_raise_status(status) : platform_dict(platform);
}

static PyObject *platform_chosen(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    const fl_platform *platform = fl_platform_chosen();
    if (!platform) {
        Py_RETURN_NONE;
    }
    return platform_dict(platform);
}

static void visit_platform(void *user, const fl_platform *platform, const char *reason) {
    PyObject *list = user;
    if (PyErr_Occurred()) {
        return; /* An earlier visit failed; its exception is raised when the walk is over. */
    }
    PyObject *entry = platform_dict(platform);
    if (entry && put(entry, "reason", Py_BuildValue("z", reason)) == 0) {
        (void)PyList_Append(list, entry);
    }
    Py_XDECREF(entry);
}

static PyObject *platforms(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    PyObject *list = PyList_New(0);
    if (!list) {
        return NULL;
    }
    fl_platform_each(visit_platform, list);
    if (PyErr_Occurred()) {
        Py_DECREF(list);
        return NULL;
    }
    return list;
}

/* --- devices --------------------------------------------------------------------------------- */

static PyObject *device_init(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    fl_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = fl_device_init();
    Py_END_ALLOW_THREADS;
    if (status) {
        return py_raise_status(status);
    }
    Py_RETURN_NONE;
}

static PyObject *device_is_initialized(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    return PyBool_FromLong(fl_device_is_initialized());
}

static PyObject *device_in_bad_fork(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    return PyBool_FromLong(fl_device_in_bad_fork());
}

static PyObject *device_count(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    int32_t count;
    Py_BEGIN_ALLOW_THREADS;
    count = fl_device_count();
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(count);
}

static PyObject *device_check(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    if (!PyArg_ParseTuple(args, "i:device_check", &device)) {
        return NULL;
    }
    fl_status status = fl_device_check(device);
    if (status) {
        return py_raise_status(status);
    }
    Py_RETURN_NONE;
}

static PyObject *device_properties(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    if (!PyArg_ParseTuple(args, "i:device_properties", &device)) {
        return NULL;
    }
    const fl_device_properties *p = NULL;
    fl_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = fl_device_get_properties(device, &p);
    Py_END_ALLOW_THREADS;
    if (status) {
        return py_raise_status(status);
    }
    return Py_BuildValue("{s:s,s:K,s:i,s:i,s:i,s:i,s:O,s:s}", "name", p->name, "total_memory",
                         (unsigned long long)p->total_memory, "major", (int)p->major, "minor",
                         (int)p->minor, "multi_processor_count", (int)p->processor_count,
                         "warp_size", (int)p->warp_size, "is_integrated",
                         p->integrated ? Py_True : Py_False, "uuid", p->uuid);
}

static PyObject *device_can_access_peer(PyObject *self, PyObject *args) {
    (void)self;
    int device, peer;
    if (!PyArg_ParseTuple(args, "ii:device_can_access_peer", &device, &peer)) {
        return NULL;
    }
    bool can = false;
    fl_status status = fl_device_can_access_peer(device, peer, &can);
    return status ? py_raise_status(status) : PyBool_FromLong(can);
}

static PyObject *device_memory_info(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    if (!PyArg_ParseTuple(args, "i:device_memory_info", &device)) {
        return NULL;
    }
    uint64_t free_bytes = 0, total_bytes = 0;
    fl_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = fl_device_memory_info(device, &free_bytes, &total_bytes);
    Py_END_ALLOW_THREADS;
    if (status) {
        return py_raise_status(status);
    }
    return Py_BuildValue("(KK)", (unsigned long long)free_bytes, (unsigned long long)total_bytes);
}

/* --- options --------------------------------------------------------------------------------- */

static const char *option_type_word(fl_option_type type) {
    switch (type) {
    case FL_OPTION_STRING:
        return "text";
    case FL_OPTION_INT:
        return "number";
    case FL_OPTION_BYTES:
        return "bytes";
    case FL_OPTION_BOOL:
        return "switch";
    }
    return NULL;
}

static PyObject *options(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < FL_OPTION_COUNT; i++) {
        const fl_option_info *info = fl_option_describe((fl_option)i);
        PyObject *row =
            Py_BuildValue("{s:s,s:z,s:z,s:L,s:L,s:s,s:s,s:z,s:O}", "variable", info->variable,
                          "type", option_type_word(info->type), "default", info->standard, "least",
                          (long long)info->least, "most", (long long)info->most, "unit", info->unit,
                          "meaning", info->meaning, "value", fl_option_string((fl_option)i),
                          "is_set", fl_option_is_set((fl_option)i) ? Py_True : Py_False);
        if (!row || PyList_Append(list, row) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *options_check(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    fl_status status = fl_options_check();
    if (status) {
        return py_raise_status(status);
    }
    Py_RETURN_NONE;
}

static void visit_unknown(void *user, const char *variable) {
    PyObject *name = PyErr_Occurred() ? NULL : PyUnicode_FromString(variable);
    if (name) {
        (void)PyList_Append(user, name);
        Py_DECREF(name);
    }
}

static PyObject *options_unknown(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    PyObject *names = PyList_New(0);
    if (names) {
        fl_options_each_unknown(visit_unknown, names);
        if (PyErr_Occurred()) {
            Py_CLEAR(names);
        }
    }
    return names;
}

static PyObject *trace_words(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    PyObject *words = PyDict_New();
    for (int i = 0; words && i < FL_TRACE_COUNT; i++) {
        fl_trace_category category = (fl_trace_category)i;
        if (put(words, fl_trace_word(category), PyUnicode_FromString(fl_trace_meaning(category))) !=
            0) {
            Py_CLEAR(words);
        }
    }
    return words;
}

/* --- the module ------------------------------------------------------------------------------ */

static PyMethodDef methods[] = {
    {"platform_choose", platform_choose, METH_VARARGS,
     "platform_choose(name or None) -> {name, twin, probe_order}. Once a process."},
    {"platform_chosen", platform_chosen, METH_NOARGS, "The chosen platform, None before that."},
    {"platforms", platforms, METH_NOARGS,
     "Every known platform in probe order; `reason` says why one cannot be used."},
    {"device_init", device_init, METH_NOARGS, "Initialise the driver; idempotent."},
    {"device_is_initialized", device_is_initialized, METH_NOARGS, "Whether device_init ran."},
    {"device_in_bad_fork", device_in_bad_fork, METH_NOARGS,
     "Whether this process was forked after its parent had initialised."},
    {"device_count", device_count, METH_NOARGS, "Number of devices; 0 rather than an error."},
    {"device_check", device_check, METH_VARARGS, "Raise unless the index names a device."},
    {"device_properties", device_properties, METH_VARARGS, "Properties of a device as a dict."},
    {"device_can_access_peer", device_can_access_peer, METH_VARARGS,
     "Whether a device reads another one's memory without the host."},
    {"device_memory_info", device_memory_info, METH_VARARGS, "(free, total) in bytes."},
    {"stream_priority_range", stream_priority_range, METH_VARARGS, "(least, greatest) urgency."},
    {"stream_priority", stream_priority, METH_VARARGS, "Urgency of stream (device, stream)."},
    {"stream_wrap", stream_wrap, METH_VARARGS,
     "stream_wrap(device, handle) -> the stream of another library's handle."},
    {"stream_sleep", stream_sleep, METH_VARARGS,
     "stream_sleep(device, stream, nanoseconds): later work of the stream waits."},
    {"memory_alloc", memory_alloc, METH_VARARGS, "memory_alloc(device, bytes, stream) -> address."},
    {"memory_free", memory_free, METH_VARARGS, "Free a block of memory_alloc."},
    {"memory_set_fraction", memory_set_fraction, METH_VARARGS,
     "memory_set_fraction(device, share of its memory)."},
    {"memory_get_fraction", memory_get_fraction, METH_VARARGS, "The limit of a device, a share."},
    {"memory_configure", memory_configure, METH_VARARGS,
     "Put settings in force; answers the keys that nothing here serves."},
    {"memory_segments", memory_segments, METH_VARARGS,
     "Segments with their blocks, of one device or of all (-1)."},
    {"memory_events", memory_events, METH_VARARGS,
     "(action, device, stream, address, size, time in ns), oldest first."},
    {"memory_history_enable", memory_history_enable, METH_VARARGS,
     "Keep so many events a device from now on; 0 stops."},
    {"pinned_stats", pinned_stats, METH_NOARGS, "Statistics of pinned memory as nested dicts."},
    {"pinned_reset_peak", pinned_reset_peak, METH_NOARGS, "Let peaks start again."},
    {"pinned_reset_accumulated", pinned_reset_accumulated, METH_NOARGS, "Set sums to 0."},
    {"route_words", route_words, METH_NOARGS, "The words for routes, in the order of counters."},
    {"route_names", route_names, METH_NOARGS, "Every operator that has a slot."},
    {"route_get", route_get, METH_VARARGS,
     "(name, chosen, initial, possible bits, calls, cpu bytes, cpu ns) of one operator."},
    {"route_table", route_table, METH_NOARGS, "route_get of every operator."},
    {"route_choose", route_choose, METH_VARARGS, "route_choose(operator, word)."},
    {"route_reset", route_reset, METH_VARARGS, "Go back to an operator's first route."},
    {"route_counts_reset", route_counts_reset, METH_NOARGS, "Set every counter to 0."},
    {"route_set_strict", route_set_strict, METH_VARARGS, "Raise instead of taking route `cpu`."},
    {"route_is_strict", route_is_strict, METH_NOARGS, "Whether strict mode is on."},
    {"queue_record", queue_record, METH_VARARGS,
     "(number, name, stream, state, running ns) of a device's last tasks, oldest first."},
    {"queue_stats", queue_stats, METH_VARARGS, "Counters of a device's launch queue."},
    {"queue_fail_nth", queue_fail_nth, METH_VARARGS,
     "For tests: the nth task from now fails instead of running."},
    {"options", options, METH_NOARGS, "Every option: variable, type, default, range, value."},
    {"options_check", options_check, METH_NOARGS,
     "Raise for a value that the environment gives and that cannot be used."},
    {"options_unknown", options_unknown, METH_NOARGS,
     "Variables that begin with TORCH_FL_ and are no option."},
    {"trace_words", trace_words, METH_NOARGS, "Categories of TORCH_FL_TRACE with their meaning."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) {
    /* The library's state belongs to the process; a second interpreter would share it unknowingly.
     */
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError,
                        "torch_fl works in the main Python interpreter of a process only");
        return -1;
    }
    queue_tell_lines();
    return PyModule_AddStringConstant(module, "version", TORCH_FL_VERSION);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "torch_fl._C",
    .m_doc = "What Python sees of libflagos.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__C(void);

PyMODINIT_FUNC PyInit__C(void) {
    return PyModuleDef_Init(&definition);
}
