/*
 * dl.h: shared libraries that are opened at run time.
 *
 * dl.c is the only file that calls dlopen. A library that the process has already loaded is shared
 * rather than opened a second time under another name or version. Does not know which libraries
 * exist.
 */
#ifndef FL_BASE_DL_H
#define FL_BASE_DL_H

#include "fl/status.h"

typedef struct fl__dl {
    void *handle;
    const char *name; /* The name it was opened by; the caller's string. */
    bool was_loaded;  /* The process had it before we asked. */
} fl__dl;

/* Open the first of `count` names that works: one that is loaded already is preferred over any that
 * is not, whatever their order. FL_UNAVAILABLE holds the loader's words for each name. `out_dl` is
 * the caller's. */
fl_status fl__dl_open(const char *const *names, size_t count, fl__dl *out_dl);

/* Drop our reference; the code stays if others hold one. A library that has started threads or
 * keeps thread-local data must not be closed. */
void fl__dl_close(fl__dl *dl);

/* NULL if the library has no such symbol; no message is recorded. */
void *fl__dl_symbol(const fl__dl *dl, const char *symbol);

/* The same, with FL_UNAVAILABLE that names library and symbol. */
fl_status fl__dl_require(const fl__dl *dl, const char *symbol, void **out_address);

/* The file that an address comes from, "" if unknown; valid as long as the library is loaded. */
const char *fl__dl_path_of(const void *address);

#endif
