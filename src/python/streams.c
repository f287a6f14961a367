/*
 * streams.c: what torch.Stream lacks: priorities, streams of other libraries, and a stream that
 * sleeps. Streams are the core's 64-bit values.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <time.h>

#include "fl/stream.h"
#include "module.h"

PyObject *stream_priority_range(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    if (!PyArg_ParseTuple(args, "i:stream_priority_range", &device)) {
        return NULL;
    }
    int32_t least = 0, greatest = 0;
    fl_status status = fl_stream_priority_range(device, &least, &greatest);
    return status ? py_raise_status(status) : Py_BuildValue("(ii)", (int)least, (int)greatest);
}

PyObject *stream_priority(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    long long stream;
    if (!PyArg_ParseTuple(args, "iL:stream_priority", &device, &stream)) {
        return NULL;
    }
    int32_t priority = 0;
    fl_status status = fl_stream_priority(device, (fl_stream)stream, &priority);
    return status ? py_raise_status(status) : PyLong_FromLong(priority);
}

PyObject *stream_wrap(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    PyObject *number;
    if (!PyArg_ParseTuple(args, "iO:stream_wrap", &device, &number)) {
        return NULL;
    }
    void *native = PyLong_AsVoidPtr(number);
    if (PyErr_Occurred()) {
        return NULL;
    }
    fl_stream stream = FL_STREAM_DEFAULT;
    fl_status status = fl_stream_wrap(device, native, &stream);
    return status ? py_raise_status(status) : PyLong_FromLongLong((long long)stream);
}

/* Runs on a thread of the driver and owns its argument. */
static void sleep_now(void *argument) {
    struct timespec left = *(struct timespec *)argument;
    free(argument);
    while (nanosleep(&left, &left) != 0) {
        /* A signal cut the sleep short; `left` holds what remains. */
    }
}

PyObject *stream_sleep(PyObject *self, PyObject *args) {
    (void)self;
    int device;
    long long stream, nanoseconds;
    if (!PyArg_ParseTuple(args, "iLL:stream_sleep", &device, &stream, &nanoseconds)) {
        return NULL;
    }
    if (nanoseconds < 0) {
        PyErr_SetString(PyExc_ValueError, "a stream cannot sleep for less than 0 cycles");
        return NULL;
    }
    struct timespec *time = malloc(sizeof(*time));
    if (!time) {
        return PyErr_NoMemory();
    }
    time->tv_sec = (time_t)(nanoseconds / 1000000000);
    time->tv_nsec = (long)(nanoseconds % 1000000000);
    fl_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = fl_stream_host_call(device, (fl_stream)stream, sleep_now, time);
    Py_END_ALLOW_THREADS;
    if (status) {
        free(time);
        return py_raise_status(status);
    }
    Py_RETURN_NONE;
}
