/*
 * routes.c: operators, what serves them, and their counters, as plain Python values.
 *
 * Knows the core's slots and no torch. Names of operators are those of PyTorch's schemas.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fl/route.h"
#include "module.h"

/* A slot that must exist; answers NULL with an exception set. */
static fl_slot *slot_named(const char *name) {
    fl_slot *slot = fl_slot_find(name);
    if (!slot) {
        PyErr_Format(PyExc_LookupError,
                     "no operator '%s' runs on this device; operators are named with namespace and "
                     "overload, as in 'aten::add.Tensor' (see torch_fl.routes.operators())",
                     name);
    }
    return slot;
}

PyObject *route_words(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    PyObject *words = PyTuple_New(FL_ROUTE_COUNT);
    for (int kind = 0; words && kind < FL_ROUTE_COUNT; kind++) {
        PyObject *word = PyUnicode_FromString(fl_route_word((fl_route_kind)kind));
        if (!word || PyTuple_SetItem(words, kind, word) != 0) {
            Py_CLEAR(words);
        }
    }
    return words;
}

PyObject *route_names(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    uint32_t count = fl_slot_count();
    PyObject *names = PyList_New(0);
    for (uint32_t i = 0; names && i < count; i++) {
        PyObject *name = PyUnicode_FromString(fl_slot_at(i)->name);
        if (!name || PyList_Append(names, name) != 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    return names;
}

static const char *chosen_word(const fl_route *route) {
    return route ? fl_route_word(route->kind) : NULL;
}

/* (name, chosen word or None, initial word or None, bits of the possible kinds, calls by kind,
 * bytes and nanoseconds of the `cpu` route). */
static PyObject *slot_tuple(const fl_slot *slot) {
    fl_route_counts counts;
    fl_slot_counts(slot, &counts);
    PyObject *calls = PyTuple_New(FL_ROUTE_COUNT);
    unsigned possible = 0;
    for (int kind = 0; calls && kind < FL_ROUTE_COUNT; kind++) {
        possible |= slot->routes[kind] ? 1u << kind : 0u;
        PyObject *number = PyLong_FromUnsignedLongLong(counts.calls[kind]);
        if (!number || PyTuple_SetItem(calls, kind, number) != 0) {
            Py_CLEAR(calls);
        }
    }
    if (!calls) {
        return NULL;
    }
    return Py_BuildValue("(szzINKK)", slot->name, chosen_word(fl_slot_route(slot)),
                         chosen_word(slot->initial), possible, calls,
                         (unsigned long long)counts.cpu_bytes, (unsigned long long)counts.cpu_ns);
}

PyObject *route_get(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    if (!PyArg_ParseTuple(args, "s:route_get", &name)) {
        return NULL;
    }
    fl_slot *slot = slot_named(name);
    return slot ? slot_tuple(slot) : NULL;
}

PyObject *route_table(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    uint32_t count = fl_slot_count();
    PyObject *table = PyList_New(0);
    for (uint32_t i = 0; table && i < count; i++) {
        PyObject *row = slot_tuple(fl_slot_at(i));
        if (!row || PyList_Append(table, row) != 0) {
            Py_CLEAR(table);
        }
        Py_XDECREF(row);
    }
    return table;
}

PyObject *route_choose(PyObject *self, PyObject *args) {
    (void)self;
    const char *name, *word;
    if (!PyArg_ParseTuple(args, "ss:route_choose", &name, &word)) {
        return NULL;
    }
    fl_slot *slot = slot_named(name);
    if (!slot) {
        return NULL;
    }
    fl_route_kind kind;
    if (fl_route_from_word(word, &kind)) {
        PyErr_SetString(PyExc_ValueError, fl_last_message());
        return NULL;
    }
    fl_status status = fl_slot_choose(slot, kind);
    if (status) {
        return py_raise_status(status);
    }
    Py_RETURN_NONE;
}

PyObject *route_reset(PyObject *self, PyObject *args) {
    (void)self;
    const char *name;
    if (!PyArg_ParseTuple(args, "s:route_reset", &name)) {
        return NULL;
    }
    fl_slot *slot = slot_named(name);
    if (!slot) {
        return NULL;
    }
    fl_slot_reset(slot);
    Py_RETURN_NONE;
}

PyObject *route_counts_reset(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    fl_route_counts_reset();
    Py_RETURN_NONE;
}

PyObject *route_set_strict(PyObject *self, PyObject *args) {
    (void)self;
    int strict;
    if (!PyArg_ParseTuple(args, "p:route_set_strict", &strict)) {
        return NULL;
    }
    fl_route_set_strict(strict != 0);
    Py_RETURN_NONE;
}

PyObject *route_is_strict(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    return PyBool_FromLong(fl_route_is_strict());
}
