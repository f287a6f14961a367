/*
 * conform_main.c: runs the conformance suite on a platform from the command line.
 *
 *   fl_conform NAME [PREFIX]   cases whose name begins with PREFIX; exit status 0 if all is well
 *   fl_conform -l              lists the cases
 *
 * Relies on the library for platforms and on libfl_conformance for the cases. Must not know any
 * vendor.
 */
#include <stdio.h>
#include <string.h>

#include "fl/conformance.h"

static void print(void *user, const char *name, fl_conformance_result result, const char *text) {
    int *counts = user;
    counts[result]++;
    printf("%-32s %s%s%s\n", name, fl_conformance_word(result), *text ? ": " : "", text);
    (void)fflush(stdout); /* A driver that hangs should show in which case. */
}

static int list_cases(void) {
    for (size_t i = 0; fl_conformance_case(i); i++) {
        puts(fl_conformance_case(i));
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "-l") == 0) {
        return list_cases();
    }
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: %s NAME [PREFIX], or -l\n", argv[0]);
        return 2;
    }
    if (fl_platform_choose(argv[1], NULL)) {
        fprintf(stderr, "%s\n", fl_last_message());
        return 2;
    }
    int counts[FL_CONFORMANCE_UNEXPECTED + 1] = {0};
    const fl_driver *driver = fl_platform_driver();
    int failures = fl_conformance_run(driver, argc == 3 ? argv[2] : NULL, print, counts);
    fl_device_properties properties;
    memset(&properties, 0, sizeof(properties));
    if (failures >= 0 && driver->device_properties(driver->ctx, 0, &properties) == FL_OK) {
        printf("device 0 is %s\n", properties.name);
    }
    printf("%d passed, %d failed, %d skipped, %d cannot, %d unexpected\n",
           counts[FL_CONFORMANCE_PASSED], counts[FL_CONFORMANCE_FAILED],
           counts[FL_CONFORMANCE_SKIPPED], counts[FL_CONFORMANCE_CANNOT],
           counts[FL_CONFORMANCE_UNEXPECTED]);
    return failures != 0;
}
