/*
 * fuzz_options.c: any text as the value of any option: a value within its range, or a refusal that
 * names the variable and changes nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fl/debug.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = {data, data + size};
    fl_option option = (fl_option)(input_byte(&in) % FL_OPTION_COUNT);
    size_t length = (size_t)(in.end - in.at);
    char *text = malloc(length + 1);
    if (!text) {
        return 0;
    }
    if (length) {
        memcpy(text, in.at, length);
    }
    text[length] = '\0';
    const fl_option_info *info = fl_option_describe(option);
    int64_t before = fl_option_int(option);
    const char *was = fl_option_string(option);
    fl_status status = fl_option_set(option, text);
    int64_t now = fl_option_int(option);
    const char *is = fl_option_string(option);
    bool sane;
    if (status) {
        sane = status == FL_INVALID_ARGUMENT && now == before && is == was &&
               strncmp(fl_last_message(), info->variable, strlen(info->variable)) == 0;
    } else if (!*text) {
        sane = !fl_option_is_set(option);
    } else {
        sane = fl_option_is_set(option) && strcmp(is, text) == 0 &&
               (info->type == FL_OPTION_STRING || (now >= info->least && now <= info->most));
    }
    if (!sane) {
        fprintf(stderr, "fuzz_options: %s=\"%s\"\n", info->variable, text);
        abort();
    }
    (void)fl_option_set(option, NULL);
    free(text);
    return 0;
}
