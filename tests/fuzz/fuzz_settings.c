/*
 * fuzz_settings.c: any text as PYTORCH_ALLOC_CONF: settings within their ranges, or a refusal that
 * changes nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fl/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const size_t mib = (size_t)1 << 20;
    char *text = malloc(size + 1);
    if (!text) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    static fl_memory_settings before, after;
    fl_memory_get_settings(&before);
    fl_status status = fl_memory_configure(text);
    fl_memory_get_settings(&after);
    bool sane;
    if (status) {
        sane = status == FL_INVALID_ARGUMENT && memcmp(&before, &after, sizeof(before)) == 0;
    } else {
        sane = after.max_split_size > 20 * mib && after.max_non_split_rounding >= 20 * mib &&
               after.large_segment_size >= 20 * mib && after.garbage_collection_threshold >= 0 &&
               after.garbage_collection_threshold < 1 && after.per_process_memory_fraction >= 0 &&
               after.per_process_memory_fraction <= 1 &&
               memchr(after.ignored, '\0', sizeof(after.ignored)) != NULL;
        for (int i = 0; i < FL_MEMORY_ROUNDUP_INTERVALS; i++) {
            uint32_t divisions = after.roundup_power2_divisions[i];
            sane = sane && (divisions & (divisions - 1)) == 0;
        }
    }
    if (!sane) {
        fprintf(stderr, "fuzz_settings: \"%s\"\n", text);
        abort();
    }
    free(text);
    return 0;
}
