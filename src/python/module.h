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

#endif
