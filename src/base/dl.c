/*
 * dl.c: opens shared libraries; the only file that calls dlopen.
 *
 * Relies on the system's loader. Does not know which libraries exist.
 */
#define _GNU_SOURCE /* dladdr */
#include "base/dl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *loader_words(void) {
    const char *words = dlerror();
    return words ? words : "the loader gives no reason";
}

/* Appends "; words", cutting what does not fit. */
static void append(char *text, size_t size, const char *words) {
    size_t used = strlen(text);
    (void)snprintf(text + used, size - used, "%s%s", used ? "; " : "", words);
}

fl_status fl__dl_open(const char *const *names, size_t count, fl__dl *out_dl) {
    /* Two rounds: a second major version of a runtime beside the first would split its state. */
    for (size_t i = 0; i < count; i++) {
        void *handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        if (handle) {
            *out_dl = (fl__dl){.handle = handle, .name = names[i], .was_loaded = true};
            return FL_OK;
        }
    }
    char reasons[1024] = "";
    for (size_t i = 0; i < count; i++) {
        void *handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (handle) {
            *out_dl = (fl__dl){.handle = handle, .name = names[i], .was_loaded = false};
            return FL_OK;
        }
        append(reasons, sizeof(reasons), loader_words());
    }
    return fl_fail(FL_UNAVAILABLE, "dlopen: %s", count ? reasons : "no library is named");
}

void fl__dl_close(fl__dl *dl) {
    if (dl->handle) {
        (void)dlclose(dl->handle);
    }
    *dl = (fl__dl){.handle = NULL, .name = NULL, .was_loaded = false};
}

void *fl__dl_symbol(const fl__dl *dl, const char *symbol) {
    return dlsym(dl->handle, symbol);
}

fl_status fl__dl_require(const fl__dl *dl, const char *symbol, void **out_address) {
    void *address = dlsym(dl->handle, symbol);
    if (!address) {
        return fl_fail(FL_UNAVAILABLE, "dlsym: %s has no symbol %s", dl->name, symbol);
    }
    *out_address = address;
    return FL_OK;
}

const char *fl__dl_path_of(const void *address) {
    Dl_info info;
    if (dladdr(address, &info) == 0 || !info.dli_fname) {
        return "";
    }
    return info.dli_fname;
}
