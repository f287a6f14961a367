/*
 * vendor_test.h: what the tests of vendors' drivers share: a fake is put on the path, opened
 * through its platform, and told to fail. FAKES is the folder they were built into.
 */
#ifndef FL_TESTS_VENDOR_TEST_H
#define FL_TESTS_VENDOR_TEST_H

#include "fl/driver.h"

/* Make `folder` of FAKES the only place where vendors' libraries are looked for. */
void use_fakes(const char *folder);

/* Choose the platform and return its driver, initialised. The fakes must be on the path. */
const fl_driver *open_platform(const char *name);

/* The fake that was loaded: `file` is the path within FAKES. Its functions follow. */
void *fake_of(const char *file);
/* dlsym that fails the test. */
void *fake_symbol(void *fake, const char *name);
void fake_fail(void *fake, const char *function, int nth, int code);
int fake_calls(void *fake, const char *function);

/* Choose a platform that must fail; the status, with its message left in place. */
fl_status choose_fails(const char *name);

/* Call every slot that the driver has once, in an order that works, with `stream` and two events.
 * Returns the first failure; everything made is released also then. */
fl_status use_every_slot(const fl_driver *driver, fl_device device);

/* For every function of the fake that use_every_slot reaches, and every n: fail its n-th call with
 * `code` and see that the failure is reported (but for functions in `tolerated`, ended by NULL,
 * whose failure costs nothing but speed), that no memory is lost (but by `may_lose`, whose failure
 * leaves a block that nobody else knows), and what `check` looks for. */
void fail_every_call(const fl_driver *driver, void *fake, int code, const char *const *tolerated,
                     const char *may_lose, void (*check)(void *fake));

#endif
