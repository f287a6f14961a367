/*
 * queue.c: what the launch queue can tell, as plain Python values.
 *
 * Knows the core's queues and no torch: operators are queued by the adapter.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>

#include "fl/queue.h"

#include <stdio.h>
#include <string.h>
#include "module.h"

PyObject *queue_record(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    if (!PyArg_ParseTuple(args, "i:queue_record", &device)) {
        return NULL;
    }
    fl_queue_entry *entries = calloc(FL_QUEUE_SLOTS, sizeof(*entries));
    if (!entries) {
        return PyErr_NoMemory();
    }
    size_t count = fl_queue_record(device, entries, FL_QUEUE_SLOTS);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < count; i++) {
        const fl_queue_entry *entry = &entries[i];
        PyObject *row = Py_BuildValue("(KsLsK)", (unsigned long long)entry->number, entry->name,
                                      (long long)entry->stream, fl_task_state_word(entry->state),
                                      (unsigned long long)entry->running_ns);
        if (!row || PyList_Append(list, row) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    free(entries);
    return list;
}

PyObject *queue_stats(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    if (!PyArg_ParseTuple(args, "i:queue_stats", &device)) {
        return NULL;
    }
    fl_queue_stats stats;
    fl_queue_get_stats(device, &stats);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K}", "queued", (unsigned long long)stats.queued,
                         "run", (unsigned long long)stats.run, "drains",
                         (unsigned long long)stats.drains, "full", (unsigned long long)stats.full,
                         "sleeps", (unsigned long long)stats.sleeps, "held_bytes",
                         (unsigned long long)stats.held_bytes);
}

PyObject *queue_fail_nth(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long n;
    if (!PyArg_ParseTuple(args, "K:queue_fail_nth", &n)) {
        return NULL;
    }
    fl_queue_fail_nth(n);
    Py_RETURN_NONE;
}

/* --- where a call comes from ------------------------------------------------------------------ */

/* "file:line" of a frame into `out`; false for one of torch itself, or where it cannot be told. */
static bool write_line(PyObject *frame, char *out, size_t size) {
    PyObject *code = PyObject_GetAttrString(frame, "f_code");
    PyObject *file = code ? PyObject_GetAttrString(code, "co_filename") : NULL;
    const char *name = file ? PyUnicode_AsUTF8AndSize(file, NULL) : NULL;
    bool is_users = name && !strstr(name, "/torch/");
    if (is_users) {
        (void)snprintf(out, size, "%s:%d", name, PyFrame_GetLineNumber((PyFrameObject *)frame));
    }
    Py_XDECREF(file);
    Py_XDECREF(code);
    return is_users;
}

static void where_in_python(char *out, size_t size) {
    if (!Py_IsInitialized()) {
        return;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame && frame != Py_None && !write_line(frame, out, size)) {
        PyObject *back = PyObject_GetAttrString(frame, "f_back");
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(state);
}

void queue_tell_lines(void) {
    fl_queue_set_where(&where_in_python);
}
