/*
 * fuzz_rows.c: any text as a file of rows: platforms that can be used, or a refusal that names the
 * line and adds nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/cudalike.h"
#include "driver/rows.h"

static int taken;

static fl_status take(const fl_platform *platform) {
    const fl__cudalike_row *row = platform->data;
    if (!platform->name[0] || platform->name != row->name || !row->maker || !row->prefix ||
        !row->libraries[0] || !platform->probe || !platform->open ||
        row->limits[FL__ROW_LIMITS - 1].case_name) {
        abort();
    }
    taken++;
    return FL_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    taken = 0;
    fl_status status = fl__rows_parse((const char *)data, size, "rows", take);
    if (status && (status != FL_INVALID_ARGUMENT || taken != 0 ||
                   strncmp(fl_last_message(), "rows:", 5) != 0)) {
        fprintf(stderr, "fuzz_rows: %d: %s\n", (int)status, fl_last_message());
        abort();
    }
    return 0;
}
