/*
 * library.c: finds and opens a vendor's runtime. Relies on base/dl.h for the opening and on
 * fl/debug.h for the environment; must not know which vendors exist.
 */
#define _GNU_SOURCE /* strdup */
#include "driver/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "fl/debug.h"

enum { MAX_CANDIDATES = 128, MAX_PATH = 1024 };

/* Names are copies; the one that was opened is kept, because the handle refers to it. */
typedef struct candidates {
    const char *names[MAX_CANDIDATES];
    size_t count;
} candidates;

/* What does not fit is not tried: that many places are a mistake of the caller's. */
static void add(candidates *list, const char *name) {
    char *copy = list->count < MAX_CANDIDATES ? strdup(name) : NULL;
    if (copy) {
        list->names[list->count++] = copy;
    }
}

/* Adds "directory/inner/name", without `inner` where that is "", if there is such a file. */
static void add_path(candidates *list, const char *directory, size_t length, const char *inner,
                     const char *name) {
    char path[MAX_PATH];
    int bytes = snprintf(path, sizeof(path), "%.*s/%s%s%s", (int)length, directory, inner,
                         *inner ? "/" : "", name);
    if (bytes < (int)sizeof(path) && access(path, F_OK) == 0) {
        add(list, path);
    }
}

/* --- directories that begin with an environment variable -------------------------------------- */

typedef struct root {
    char value[512];
} root;

static void keep_root(void *user, const char *rest, const char *value) {
    root *out = user;
    if (*rest == '\0') { /* Longer names that begin alike are others. */
        (void)snprintf(out->value, sizeof(out->value), "%s", value);
    }
}

/* "$NAME/lib" to "/opt/name/lib"; false where the variable is not set. */
static bool expand(const char *directory, char *out, size_t size) {
    if (*directory != '$') {
        return snprintf(out, size, "%s", directory) < (int)size;
    }
    size_t length = strcspn(directory, "/");
    char variable[64];
    if (length > sizeof(variable)) {
        return false;
    }
    memcpy(variable, directory + 1, length - 1);
    variable[length - 1] = '\0';
    root found = {.value = ""};
    fl_options_each_with_prefix(variable, keep_root, &found);
    return found.value[0] != '\0' &&
           snprintf(out, size, "%s%s", found.value, directory + length) < (int)size;
}

/* --- the search ------------------------------------------------------------------------------- */

static void add_vendor_path(candidates *list, const fl__library_search *search) {
    const char *path = fl_option_string(FL_OPT_VENDOR_PATH);
    while (path && *path) {
        size_t length = strcspn(path, ":");
        for (size_t i = 0; length && i < search->max_names && search->names[i]; i++) {
            add_path(list, path, length, "", search->names[i]);
            add_path(list, path, length, search->platform, search->names[i]);
        }
        path += length + (path[length] == ':');
    }
}

static void add_names(candidates *list, const fl__library_search *search) {
    for (size_t i = 0; i < search->max_names && search->names[i]; i++) {
        add(list, search->names[i]);
    }
}

static void add_directories(candidates *list, const fl__library_search *search) {
    for (size_t d = 0; d < search->max_directories && search->directories[d]; d++) {
        char directory[MAX_PATH];
        if (!expand(search->directories[d], directory, sizeof(directory))) {
            continue;
        }
        for (size_t i = 0; i < search->max_names && search->names[i]; i++) {
            add_path(list, directory, strlen(directory), "", search->names[i]);
        }
    }
}

/* The usual case deserves a short sentence: nothing of the vendor's is installed. What the loader
 * says about a library that is there, and cannot be loaded, is passed on. */
static fl_status fail(const fl__library_search *search, const candidates *list) {
    char words[1024], names[512] = "", missing[MAX_PATH + 64];
    (void)snprintf(words, sizeof(words), "%s", fl_last_message());
    size_t used = 0;
    for (size_t i = 0; i < list->count; i++) {
        (void)snprintf(missing, sizeof(missing), "%s: cannot open shared object file: No such file",
                       list->names[i]);
        if (!strstr(words, missing)) {
            return fl_fail(FL_UNAVAILABLE, "%s: %s", search->maker, words);
        }
        if (used < sizeof(names)) {
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "",
                                     list->names[i]);
        }
    }
    return fl_fail(FL_UNAVAILABLE, "%s: none of its libraries was found (%s)", search->maker,
                   names);
}

/* Names of opened libraries, which handles refer to; kept as long as the process, one copy each. */
typedef struct opened {
    struct opened *next;
    const char *name;
} opened;

static opened *all_opened;
static fl__mutex lock = FL__MUTEX_INIT;

/* Takes the copy over. NULL on exhaustion of memory. */
static const char *keep_name(const char *name) {
    fl__lock(&lock);
    opened *node = all_opened;
    while (node && strcmp(node->name, name) != 0) {
        node = node->next;
    }
    if (!node) {
        node = malloc(sizeof(*node));
        if (node) {
            *node = (opened){.next = all_opened, .name = name};
            all_opened = node;
        }
    }
    fl__unlock(&lock);
    return node ? node->name : NULL;
}

fl_status fl__library_open(const fl__library_search *search, fl__dl *out_dl) {
    candidates list = {.count = 0};
    add_vendor_path(&list, search);
    if (list.count == 0 && search->directories_first) {
        add_directories(&list, search);
        add_names(&list, search);
    } else if (list.count == 0) {
        add_names(&list, search);
        add_directories(&list, search);
    }
    const char *kept = NULL;
    fl_status status = fl__dl_open(list.names, list.count, out_dl);
    if (status == FL_OK) {
        kept = keep_name(out_dl->name);
        status = kept ? FL_OK : fl_fail(FL_OUT_OF_MEMORY, "%s: no memory", search->maker);
    } else {
        status = fail(search, &list);
    }
    for (size_t i = 0; i < list.count; i++) {
        if (list.names[i] != kept) {
            free((void *)(uintptr_t)list.names[i]);
        }
    }
    if (status == FL_OK) {
        out_dl->name = kept;
        fl_trace(FL_TRACE_DRIVER, "%s: %s%s", search->platform, out_dl->name,
                 out_dl->was_loaded ? " (loaded before, shared)" : "");
    }
    return status;
}
