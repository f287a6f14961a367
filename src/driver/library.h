/*
 * library.h: where a vendor's runtime is looked for.
 *
 * Order: the directories of TORCH_FL_VENDOR_PATH (where a name that exists is final), a library
 * that the process has already loaded under one of the names, the loader's own search, then the
 * directories given. Must not know which vendors exist.
 */
#ifndef FL_SRC_DRIVER_LIBRARY_H
#define FL_SRC_DRIVER_LIBRARY_H

#include "base/dl.h"

typedef struct fl__library_search {
    const char *maker;    /* For people: whose library it is. */
    const char *platform; /* Name of a directory that may lie inside one of TORCH_FL_VENDOR_PATH. */
    const char *const *names; /* End with NULL or at max_names. */
    size_t max_names;
    const char *const *directories; /* Likewise; "$NAME/lib" begins with a variable's value. */
    size_t max_directories;
    bool directories_first; /* Before the loader's own search instead of after it. */
} fl__library_search;

/* FL_UNAVAILABLE holds the reason for people. */
fl_status fl__library_open(const fl__library_search *search, fl__dl *out_dl);

#endif
