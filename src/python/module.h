/*
 * module.h: what the files of torch_fl._C share.
 */
#ifndef FL_PYTHON_MODULE_H
#define FL_PYTHON_MODULE_H

#include <Python.h>

#include "fl/status.h"

/* Raise for `status` with the library's own sentence; always answers NULL. */
PyObject *py_raise_status(fl_status status);

/* Methods of routes.c; what each does is said in the method table of module.c. */
PyObject *route_words(PyObject *self, PyObject *unused);
PyObject *route_names(PyObject *self, PyObject *unused);
PyObject *route_get(PyObject *self, PyObject *args);
PyObject *route_table(PyObject *self, PyObject *unused);
PyObject *route_choose(PyObject *self, PyObject *args);
PyObject *route_reset(PyObject *self, PyObject *args);
PyObject *route_counts_reset(PyObject *self, PyObject *unused);
PyObject *route_set_strict(PyObject *self, PyObject *args);
PyObject *route_is_strict(PyObject *self, PyObject *unused);

/* Methods of memory.c. */
PyObject *memory_alloc(PyObject *self, PyObject *args);
PyObject *memory_free(PyObject *self, PyObject *args);
PyObject *memory_set_fraction(PyObject *self, PyObject *args);
PyObject *memory_get_fraction(PyObject *self, PyObject *args);
PyObject *memory_configure(PyObject *self, PyObject *args);
PyObject *memory_segments(PyObject *self, PyObject *args);
PyObject *memory_events(PyObject *self, PyObject *args);
PyObject *memory_history_enable(PyObject *self, PyObject *args);
PyObject *pinned_stats(PyObject *self, PyObject *unused);
PyObject *pinned_reset_peak(PyObject *self, PyObject *unused);
PyObject *pinned_reset_accumulated(PyObject *self, PyObject *unused);

/* Methods of queue.c. */
PyObject *queue_record(PyObject *self, PyObject *args);
PyObject *queue_stats(PyObject *self, PyObject *args);
PyObject *queue_fail_nth(PyObject *self, PyObject *args);
/* From now on tasks know the Python line that queued them, if that was asked for. */
void queue_tell_lines(void);

/* Methods of streams.c. */
PyObject *stream_priority_range(PyObject *self, PyObject *args);
PyObject *stream_priority(PyObject *self, PyObject *args);
PyObject *stream_wrap(PyObject *self, PyObject *args);
PyObject *stream_sleep(PyObject *self, PyObject *args);

#endif
