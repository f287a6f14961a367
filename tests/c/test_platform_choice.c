/*
 * test_platform_choice.c: which vendor's platform is taken, and what people are told about the
 * others: several vendors on one machine, and software that is half installed.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/host.h"
#include "fl/debug.h"
#include "harness.h"
#include "vendor_test.h"

static const char *chosen_by_probe(void) {
    const fl_platform *platform = NULL;
    CHECK_OK(fl_platform_choose(NULL, &platform));
    return platform->name;
}

static const char *wanted;
static char reason_of_wanted[512];

static void find_reason(void *user, const fl_platform *platform, const char *reason) {
    (void)user;
    if (strcmp(platform->name, wanted) == 0) {
        (void)snprintf(reason_of_wanted, sizeof(reason_of_wanted), "%s",
                       reason ? reason : "it works");
    }
}

/* Why a platform cannot be used, as `python -m torch_fl info` says it. */
static const char *reason_for(const char *name) {
    wanted = name;
    (void)snprintf(reason_of_wanted, sizeof(reason_of_wanted), "not in the list");
    fl_platform_each(find_reason, NULL);
    return reason_of_wanted;
}

/* --- order ------------------------------------------------------------------------------------ */

TEST(platform_choice, nothing_installed) {
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_PATH, "/nonexistent"));
    CHECK_STRING(reason_for("musa"), "Moore Threads MUSA: none of its libraries was found "
                                     "(libmusart.so.5, libmusart.so.4, libmusart.so.1, "
                                     "libmusart.so)");
    CHECK_CONTAINS(reason_for("ascend"), "libascendcl.so");
    CHECK_STRING(chosen_by_probe(), "cpu");
}

TEST(platform_choice, all_installed) {
    use_fakes("");
    CHECK_STRING(reason_for("gcu"), "it works");
    CHECK_STRING(reason_for("tsingmicro"), "it works");
    CHECK_STRING(chosen_by_probe(), "ascend");
}

TEST(platform_choice, the_first_with_a_device) {
    use_fakes("musa");
    CHECK_STRING(chosen_by_probe(), "musa");
}

TEST(platform_choice, several_directories) {
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_PATH, ":/nonexistent:" FAKES "/gcu:" FAKES "/tsingmicro"));
    CHECK_STRING(chosen_by_probe(), "gcu");
}

TEST(platform_choice, by_option) {
    use_fakes("");
    CHECK_OK(fl_option_set(FL_OPT_PLATFORM, "gcu"));
    CHECK_STRING(chosen_by_probe(), "gcu");
}

/* Chips whose PyTorch answers to the CUDA key are left to their twins. */
TEST(platform_choice, direct_platforms_only_by_name) {
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_PATH,
                           FAKES "/metax-direct:" FAKES "/dcu-direct:" FAKES "/cuda-direct"));
    CHECK_STRING(reason_for("metax-direct"), "it works");
    CHECK_STRING(chosen_by_probe(), "cpu");
}

TEST(platform_choice, a_direct_platform_by_name) {
    use_fakes("");
    (void)open_platform("dcu-direct");
    CHECK_STRING(fl_platform_chosen()->name, "dcu-direct");
    CHECK_INT(fl_platform_chosen()->twin, FL_TWIN_NONE);
}

TEST(platform_choice, an_sdk_root_in_the_environment) {
    CHECK_INT(setenv("KUIPER_ROOT", FAKES "/sdk", 1), 0);
    CHECK_STRING(chosen_by_probe(), "tsingmicro");
}

/* Probing makes no context anywhere. */
TEST(platform_choice, probing_makes_no_context) {
    use_fakes("");
    CHECK_STRING(reason_for("musa"), "it works");
    void *fake = fake_of("musa/libmusart.so.5");
    CHECK_INT(fake_calls(fake, "musaSetDevice"), 0);
    CHECK_INT(fake_calls(fake, "musaMalloc"), 0);
    CHECK_INT(fake_calls(fake_of("ascend/libascendcl.so"), "aclrtSetDevice"), 0);
    CHECK_INT(fake_calls(fake_of("tsingmicro/libhpgr.so"), "txSetDevice"), 0);
    CHECK_INT(fake_calls(fake_of("gcu/libtopsrt.so"), "topsSetDevice"), 0);
}

/* --- platforms with a twin, whose driver comes from whoever knows PyTorch ----------------------
 */

static const fl_driver *runtime_below;

static fl_status open_as_twin(const fl_platform *platform, const fl_driver *runtime,
                              const fl_driver **out_driver) {
    CHECK_INT(platform->twin, FL_TWIN_CUDA);
    runtime_below = runtime;
    return fl__platform_cpu.open(&fl__platform_cpu, out_driver);
}

TEST(platform_choice, a_twin_needs_a_pytorch_for_it) {
    CHECK_CONTAINS(reason_for("ppu"), "this PyTorch was built without CUDA");
    CHECK_STATUS(choose_fails("ppu"), FL_UNAVAILABLE);
    CHECK_CONTAINS(fl_last_message(), "this PyTorch was built without CUDA");
    CHECK_STATUS(fl_twin_register(FL_TWIN_CPU, open_as_twin), FL_INVALID_ARGUMENT);
    CHECK_STATUS(fl_twin_register(FL_TWIN_CUDA, NULL), FL_INVALID_ARGUMENT);
}

TEST(platform_choice, a_twin_needs_a_card) {
    CHECK_OK(fl_twin_register(FL_TWIN_CUDA, open_as_twin));
    bool has_card = access("/dev/kfd", F_OK) == 0;
    CHECK_STRING(reason_for("dcu"), has_card ? "it works" : "there is no device file /dev/kfd");
}

TEST(platform_choice, devices_that_are_hidden_are_no_card) {
    CHECK_OK(fl_twin_register(FL_TWIN_CUDA, open_as_twin));
    static const char *const hiding[] = {"", "  ", "-1", "-1,0"};
    for (size_t i = 0; i < sizeof(hiding) / sizeof(hiding[0]); i++) {
        CHECK(setenv("HIP_VISIBLE_DEVICES", hiding[i], 1) == 0);
        CHECK_STRING(reason_for("dcu"), "HIP_VISIBLE_DEVICES hides every device");
    }
    CHECK(setenv("HIP_VISIBLE_DEVICES", "0", 1) == 0);
    CHECK(strstr(reason_for("dcu"), "hides") == NULL);
}

TEST(platform_choice, a_twin_is_given_the_runtime_below_it) {
    use_fakes("");
    CHECK_OK(fl_twin_register(FL_TWIN_CUDA, open_as_twin));
    const fl_platform *platform = NULL;
    CHECK_OK(fl_platform_choose("metax", &platform));
    CHECK(runtime_below);
    CHECK_STRING(runtime_below->name, "metax-direct");
    CHECK_STATUS(fl_twin_register(FL_TWIN_CUDA, open_as_twin), FL_WRONG_STATE);
}

TEST(platform_choice, a_twin_does_without_the_runtime_below_it) {
    use_fakes("nothing");
    CHECK_OK(fl_twin_register(FL_TWIN_CUDA, open_as_twin));
    CHECK_OK(fl_platform_choose("metax", NULL));
    CHECK_POINTER(runtime_below, NULL);
}

/* --- half installed --------------------------------------------------------------------------- */

typedef struct defect {
    const char *platform, *folder, *reason;
} defect;

static void check_defect(const defect *d) {
    test_note("%s", d->folder);
    use_fakes(d->folder);
    CHECK_CONTAINS(reason_for(d->platform), d->reason);
    /* What is broken is passed over. */
    CHECK_STRING(chosen_by_probe(), "cpu");
}

#define DEFECT(id, platform, folder, reason)   \
    TEST(platform_choice, id) {                \
        defect d = {platform, folder, reason}; \
        check_defect(&d);                      \
    }

DEFECT(musa_without_a_symbol, "musa", "broken/musa-symbol", "has no symbol musaStreamQuery")
DEFECT(musa_too_new_for_its_driver, "musa", "broken/musa-version",
       "musaGetDeviceCount: driver version is insufficient for the runtime version")
DEFECT(musa_without_a_device, "musa", "broken/musa-no-device",
       "the runtime of Moore Threads MUSA is there, but it sees no device")
DEFECT(ascend_without_a_symbol, "ascend", "broken/ascend-symbol",
       "has no symbol aclrtSynchronizeStream")
DEFECT(ascend_link_stub, "ascend", "broken/ascend-version",
       "aclInit: EZ9999: [fake] aclInit failed")
DEFECT(ascend_without_a_device, "ascend", "broken/ascend-no-device",
       "AscendCL is there, but it sees no device")
DEFECT(tsingmicro_without_a_symbol, "tsingmicro", "broken/tsingmicro-symbol",
       "has no symbol txEventCreate")
DEFECT(tsingmicro_driver_manager, "tsingmicro", "broken/tsingmicro-version", "0x44000002")
DEFECT(tsingmicro_without_a_device, "tsingmicro", "broken/tsingmicro-no-device",
       "the TX runtime is there, but it sees no device")

/* A device that is counted and cannot allocate is found out at first use, in the vendor's words. */
static void check_no_memory(const char *platform, const char *folder, const char *words) {
    use_fakes(folder);
    CHECK_STRING(reason_for(platform), "it works");
    const fl_driver *d = open_platform(platform);
    void *ptr = NULL;
    CHECK_STATUS(d->mem_alloc(d->ctx, 0, 1024, &ptr), FL_OUT_OF_MEMORY);
    CHECK_CONTAINS(fl_last_message(), words);
    int32_t count = 0;
    CHECK_OK(d->device_count(d->ctx, &count));
    CHECK_INT(count, 2);
}

TEST(platform_choice, musa_without_memory) {
    check_no_memory("musa", "broken/musa-memory", "musaMalloc: out of memory");
}

TEST(platform_choice, ascend_without_memory) {
    check_no_memory("ascend", "broken/ascend-memory", "aclrtMalloc");
}

TEST(platform_choice, tsingmicro_without_memory) {
    check_no_memory("tsingmicro", "broken/tsingmicro-memory", "TX_ERROR_OUT_OF_MEMORY");
}

TEST(platform_choice, a_broken_vendor_beside_a_working_one) {
    CHECK_OK(fl_option_set(FL_OPT_VENDOR_PATH, FAKES "/broken/ascend-no-device:" FAKES
                                                     "/broken/musa-symbol:" FAKES "/gcu"));
    CHECK_STRING(chosen_by_probe(), "gcu");
}

TEST(platform_choice, asked_for_by_name_it_is_not_replaced) {
    use_fakes("broken/musa-symbol");
    CHECK_STATUS(choose_fails("musa"), FL_UNAVAILABLE);
    CHECK_CONTAINS(fl_last_message(), "musaStreamQuery");
}

/* The library of a newer release in the wrong place is no library at all. */
TEST(platform_choice, a_file_that_is_no_library) {
    use_fakes("broken/text");
    CHECK_CONTAINS(reason_for("gcu"), "libtopsrt.so");
    CHECK_CONTAINS(reason_for("gcu"), "file too short");
}
