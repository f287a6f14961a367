/*
 * test_rows.c: rows of vendors from a text.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "driver/rows.h"
#include "fl/debug.h"
#include "harness.h"

static const fl_platform *taken[16];
static int taken_count;

static fl_status take(const fl_platform *platform) {
    taken[taken_count++] = platform;
    return FL_OK;
}

static fl_status parse(const char *text) {
    taken_count = 0;
    return fl__rows_parse(text, strlen(text), "t.rows", take);
}

TEST(rows, every_key) {
    CHECK_OK(parse("# first\n"
                   "[alpha]  # a name\n"
                   "maker = Alpha Chips Ltd.\r\n"
                   "prefix = al\n"
                   "libraries = libal.so.2 libal.so.1\n"
                   "libraries=libal.so\n"
                   "module_prefix = ad\n"
                   "module_libraries = libad.so\n"
                   "directories = $ALPHA_HOME/lib /opt/alpha\n"
                   "rename = HostAlloc GrabHost\n"
                   "drop = MemsetAsync\n"
                   "error = 0x2717 out of memory\n"
                   "error = -5 not ready\n"
                   "quirk = peer_copy_waits\n"
                   "quirk = host_flags_are_zero\n"
                   "quirk = directories_first\n"
                   "min_version = 3000\n"
                   "properties_total = 288\n"
                   "properties_uuid = 256\n"
                   "attribute_major = 75\n"
                   "attribute_minor = 76\n"
                   "attribute_processors = 16\n"
                   "attribute_warp = 10\n"
                   "attribute_integrated = 18\n"
                   "probe_order = 7\n"
                   "limit = copy.peer there is one device\n"
                   "\n"
                   "[beta-2]\n"
                   "prefix = b\n"
                   "libraries = libb.so"));
    CHECK_INT(taken_count, 2);
    CHECK_STRING(taken[0]->name, "alpha");
    CHECK_INT(taken[0]->probe_order, 7);
    CHECK_INT(taken[0]->twin, FL_TWIN_NONE);
    const fl__cudalike_row *row = taken[0]->data;
    CHECK_STRING(row->maker, "Alpha Chips Ltd.");
    CHECK_STRING(row->prefix, "al");
    CHECK_STRING(row->libraries[0], "libal.so.2");
    CHECK_STRING(row->libraries[2], "libal.so");
    CHECK(row->libraries[3] == NULL);
    CHECK_STRING(row->module_prefix, "ad");
    CHECK_STRING(row->module_libraries[0], "libad.so");
    CHECK_STRING(row->directories[0], "$ALPHA_HOME/lib");
    CHECK_STRING(row->renames[0].usual, "HostAlloc");
    CHECK_STRING(row->renames[0].own, "GrabHost");
    CHECK_STRING(row->renames[1].own, "");
    CHECK_INT(row->errors[0].code, 10007);
    CHECK_INT(row->errors[0].status, FL_OUT_OF_MEMORY);
    CHECK_INT(row->errors[1].code, -5);
    CHECK_UINT(row->quirks, FL__QUIRK_PEER_COPY_WAITS | FL__QUIRK_HOST_FLAGS_ARE_ZERO |
                                FL__QUIRK_DIRECTORIES_FIRST);
    CHECK_INT(row->min_version, 3000);
    CHECK_INT(row->properties_total, 288);
    CHECK_INT(row->properties_uuid, 256);
    CHECK_INT(row->attributes.processors, 16);
    CHECK_INT(row->attributes.integrated, 18);
    CHECK_STRING(row->limits[0].case_name, "copy.peer");
    CHECK_STRING(row->limits[0].reason, "there is one device");
    CHECK(row->limits[1].case_name == NULL);
    row = taken[1]->data;
    CHECK_STRING(row->maker, "beta-2"); /* The name, where nothing better is given. */
    CHECK_INT(row->properties_total, -1);
    CHECK_INT(row->attributes.warp, -1);
}

TEST(rows, an_empty_text_is_no_row) {
    CHECK_OK(parse(""));
    CHECK_OK(parse("\n# nothing\n   \n"));
    CHECK_INT(taken_count, 0);
}

#define LONG "p234567890123456789012345678901234567890123456789"

TEST(rows, every_mistake_has_its_line) {
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"prefix = a", "t.rows:1: before a [name] there is no place for \"prefix\""},
        {"[a\n", "t.rows:1: expected [name], found [ \"a\""},
        {"[a] b\n", "t.rows:1: expected [name], found [ \"a] b\""},
        {"[]\n", "t.rows:1: a name is made of"},
        {"[A]\n", "t.rows:1: a name is made of small letters, digits, '-' and '_', found \"A\""},
        {"\n[a]\nhello\n", "t.rows:3: expected key = value, found \"hello\""},
        {"[a]\nprefix =\n", "t.rows:2: there is no value for \"prefix\""},
        {"[a]\ncolour = red\n", "t.rows:2: no key is called \"colour\""},
        {"[a]\nquirk = loud\n", "t.rows:2: no quirk is called \"loud\""},
        {"[a]\nmin_version = 3x\n", "t.rows:2: expected a number, found \"3x\""},
        {"[a]\nmin_version = 99999999999\n", "t.rows:2: expected a number"},
        {"[a]\nerror = x out of memory\n", "t.rows:2: expected a number, found \"x\""},
        {"[a]\nerror = 5 bad luck\n", "t.rows:2: no status is called \"bad luck\""},
        {"[a]\nerror = 0 out of memory\n", "t.rows:2: 0 is no error"},
        {"[a]\nrename = HostAlloc\n", "t.rows:2: rename takes two suffixes"},
        {"[a]\nrename = A B C\n", "t.rows:2: rename takes two suffixes"},
        {"[a]\nrename = HostAlok Grab\n", "t.rows:2: no function has the suffix \"HostAlok\""},
        {"[a]\ndrop = Memset\n", "t.rows:2: no function has the suffix \"Memset\""},
        {"[a]\nrename = Free B\ndrop = Free\n", "t.rows:3: renamed or dropped before: \"Free\""},
        {"[a]\nprefix = a\nprefix = b\n", "t.rows:3: given before: \"prefix\""},
        {"[a]\nmaker = A\nmaker = A\n", "t.rows:3: given before: \"maker\""},
        {"[a]\nprobe_order = 1\n\nprobe_order = 1\n", "t.rows:4: given before: \"probe_order\""},
        {"[a]\nquirk = host_flags_are_zero\nquirk = host_flags_are_zero\n",
         "t.rows:3: given before: \"host_flags_are_zero\""},
        {"[a]\nerror = 5 not found\nerror = 0x5 unavailable\n",
         "t.rows:3: the number had a status before \"unavailable\""},
        {"[a]\nlimit = copy.peer x\nlimit = copy.peer y\n",
         "t.rows:3: declared before: \"copy.peer\""},
        {"[a]\nprefix = a b\n", "t.rows:2: prefix takes one word, found another one, \"b\""},
        {"[a]\nprefix = a\nlibraries = l\n[a]\n",
         "t.rows:4: there is a row before that is called \"a\""},
        {"[a]\nlibraries = l\nprefix = " LONG LONG "\n",
         "t.rows:1: prefix and suffix make too long a function's name in \"a\""},
        {"[a]\nlibraries = l\nprefix = p\nrename = Free " LONG LONG "\n", "t.rows:1: prefix and"},
        {"[a]\nprefix = l\nlibraries = l\nproperties_uuid = -7\n",
         "t.rows:1: an offset lies outside"},
        {"[a]\ndrop = A B\n", "t.rows:2: drop takes one suffix"},
        {"[a]\nlimit = copy.peer\n", "t.rows:2: limit takes a case and a reason"},
        {"[a]\nlibraries = 1 2 3 4 5 6 7 8 9\n", "t.rows:2: there is no room for \"9\""},
        {"\n\n[a]\nlibraries = l\n", "t.rows:3: prefix is missing for \"a\""},
        {"[a]\nprefix = l\n[b]\n", "t.rows:1: libraries are missing for \"a\""},
        {"[a]\nprefix = l\nlibraries = l\nproperties_total = 4090\n",
         "t.rows:1: an offset lies outside"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        test_note("%s", rows[i].text);
        CHECK_STATUS(parse(rows[i].text), FL_INVALID_ARGUMENT);
        CHECK_CONTAINS(fl_last_message(), rows[i].message);
        CHECK_INT(taken_count, 0); /* Nothing of a text with a mistake. */
    }
}

TEST(rows, a_zero_byte_is_a_mistake) {
    static const char text[] = "[a]\nprefix = p\0\nlibraries = l\n";
    CHECK_STATUS(fl__rows_parse(text, sizeof(text) - 1, "t.rows", take), FL_INVALID_ARGUMENT);
    CHECK_STRING(fl_last_message(), "t.rows:2: a zero byte in the text");
    CHECK_STATUS(fl__rows_parse("\n\0", 2, "t.rows", take), FL_INVALID_ARGUMENT);
    CHECK_STRING(fl_last_message(), "t.rows:2: a zero byte in the text");
}

TEST(rows, what_is_a_comment) {
    CHECK_OK(parse("[a] # one\n"
                   "maker = Chip#9\t# two\n"
                   "\t# three\n"
                   "prefix = p#\n"
                   "libraries = lib#.so #\n"));
    const fl__cudalike_row *row = taken[0]->data;
    CHECK_STRING(row->maker, "Chip#9");
    CHECK_STRING(row->prefix, "p#");
    CHECK_STRING(row->libraries[0], "lib#.so");
    CHECK(row->libraries[1] == NULL);
}

/* One value more than there is room for. */
static void check_full(const char *key, const char *const *values, int room) {
    char text[4096] = "[a]\nprefix = p\nlibraries = l\n";
    size_t used = strlen(text);
    for (int i = 0; i <= room; i++) {
        if (i == room) {
            CHECK_OK(parse(text));
        }
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s = %s\n", key, values[i]);
    }
    CHECK_STATUS(parse(text), FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "there is no room for");
}

TEST(rows, lists_that_are_full) {
    static const char *const renames[] = {
        "Init B",        "SetDevice B",    "GetDevice B",     "Malloc B",      "Free B",
        "HostAlloc B",   "FreeHost B",     "EventQuery B",    "MemcpyAsync B", "StreamQuery B",
        "EventRecord B", "EventDestroy B", "StreamDestroy B",
    };
    static const char *const errors[] = {"1 not found", "2 not found", "3 not found",
                                         "4 not found", "5 not found", "6 not found",
                                         "7 not found", "8 not found", "9 not found"};
    static const char *const limits[] = {"a x", "b x", "c x", "d x", "e x", "f x", "g x", "h x"};
    static const char *const directories[] = {"a", "b", "c", "d", "e", "f", "g",
                                              "h", "i", "j", "k", "l", "m"};
    check_full("rename", renames, FL__ROW_RENAMES);
    check_full("error", errors, FL__ROW_ERRORS);
    check_full("limit", limits, FL__ROW_LIMITS - 1);
    check_full("directories", directories, FL__ROW_DIRECTORIES);
}

static fl_status refuse(const fl_platform *platform) {
    return fl_fail(FL_WRONG_STATE, "%s is not wanted", platform->name);
}

TEST(rows, who_takes_may_refuse) {
    static const char text[] = "[a]\nprefix = p\nlibraries = l\n";
    CHECK_STATUS(fl__rows_parse(text, sizeof(text) - 1, "t", refuse), FL_WRONG_STATE);
}

/* --- the option ------------------------------------------------------------------------------- */

TEST(rows, the_file_of_the_option) {
    CHECK_OK(fl__rows_load(take));
    CHECK_INT(taken_count, 0); /* Not set. */
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_ROWS, "/nonexistent.rows"));
    CHECK_STATUS(fl__rows_load(take), FL_UNAVAILABLE);
    CHECK_CONTAINS(fl_last_message(), "TORCH_FL_VENDOR_ROWS: /nonexistent.rows: No such file");
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_ROWS, FAKE_SOURCES "/zephyr.rows"));
    CHECK_OK(fl__rows_load(take));
    CHECK_INT(taken_count, 1);
    CHECK_OK(fl__rows_load(take));
    CHECK_INT(taken_count, 2);
    CHECK_POINTER(taken[0], taken[1]);
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_ROWS, "/"));
    CHECK_STATUS(fl__rows_load(take), FL_UNAVAILABLE);
}

TEST(rows, too_many_rows_and_too_long_a_file) {
    const char *const path = "too_many.rows"; /* In the working folder, which is the build's. */
    FILE *out = fopen(path, "w");
    CHECK(out != NULL);
    for (int i = 0; i < 17; i++) {
        fprintf(out, "[r%d]\nprefix = p\nlibraries = l\n", i);
    }
    fclose(out);
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_ROWS, path));
    fl_status status = fl__rows_load(take);
    CHECK_STATUS(status, FL_OUT_OF_RANGE);
    CHECK_CONTAINS(fl_last_message(), "more than 16 rows");
    out = fopen(path, "w");
    for (int i = 0; i < 1 << 16; i++) {
        fputs("# sixteen bytes\n", out);
    }
    fclose(out);
    status = fl__rows_load(take);
    CHECK_STATUS(status, FL_INVALID_ARGUMENT);
    CHECK_CONTAINS(fl_last_message(), "longer than 1048576 bytes");
    remove(path);
}

TEST(rows, a_bad_file_stops_the_choice) {
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_ROWS, "/nonexistent.rows"));
    CHECK_STATUS(fl_platform_choose("cpu", NULL), FL_UNAVAILABLE);
    CHECK_CONTAINS(fl_last_message(), "TORCH_FL_VENDOR_ROWS");
}

/* A row does not stand in for a platform of ours. */
TEST(rows, a_name_that_is_taken) {
    const char *const path = "taken_name.rows"; /* In the working folder, which is the build's. */
    FILE *out = fopen(path, "w");
    CHECK(out != NULL);
    fputs("[new]\nprefix = p\nlibraries = l\n\n[musa]\nprefix = p\nlibraries = l\n", out);
    fclose(out);
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_ROWS, path));
    CHECK_STATUS(fl_platform_choose("cpu", NULL), FL_WRONG_STATE);
    char wanted[200];
    (void)snprintf(wanted, sizeof(wanted),
                   "TORCH_FL_VENDOR_ROWS: %s:5: platform musa: the name is taken", path);
    CHECK_STRING(fl_last_message(), wanted);
    remove(path);
}
