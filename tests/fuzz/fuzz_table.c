/*
 * fuzz_table.c: any bytes as the table that a driver's file offers: one that can be used, or a
 * refusal. The table ends where it says, so that a read beyond it is seen.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fl/driver.h"
#include "input.h"

static fl_status slot(void) {
    return FL_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { HEAD = offsetof(fl_driver, name) };
    input in = {data, data + size};
    uint8_t kind = input_byte(&in);
    uint32_t version = kind & 1 ? FL_DRIVER_VERSION : (uint32_t)input_word(&in);
    uint32_t bytes = sizeof(fl_driver);
    if (kind & 2) {
        bytes = (uint32_t)input_word(&in) % (2 * sizeof(fl_driver));
    }
    char name[16] = "", *table = calloc(1, bytes < HEAD ? HEAD : bytes);
    if (!table) {
        return 0;
    }
    size_t length = input_byte(&in) % sizeof(name);
    for (size_t i = 0; i < length; i++) {
        name[i] = (char)input_byte(&in);
    }
    memcpy(table + offsetof(fl_driver, struct_size), &bytes, sizeof(bytes));
    memcpy(table + offsetof(fl_driver, version), &version, sizeof(version));
    const char *pointer = name;
    void (*function)(void) = (void (*)(void))slot;
    if (bytes >= HEAD + sizeof(pointer)) {
        memcpy(table + HEAD, &pointer, sizeof(pointer));
    }
    bool has_all = true;
    for (size_t at = offsetof(fl_driver, init); at + sizeof(function) <= bytes;
         at += sizeof(function)) {
        bool present = (kind & 4) || input_byte(&in) % 32 != 1;
        if (present) {
            memcpy(table + at, &function, sizeof(function));
        } else if (at < offsetof(fl_driver, mem_info)) {
            has_all = false;
        }
    }
    bool usable = version == FL_DRIVER_VERSION && bytes >= sizeof(fl_driver) && name[0] && has_all;
    if ((fl_driver_check((const fl_driver *)table) == FL_OK) != usable) {
        fprintf(stderr, "fuzz_table: usable %d: %s\n", usable, fl_last_message());
        abort();
    }
    free(table);
    return 0;
}
