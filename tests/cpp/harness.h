// harness.h: what the C++ tests share: flagos on the host's platform, and checks that print.
#pragma once

#include "fl/driver.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdio>
#include <cstdlib>

// Chooses platform `cpu` and registers flagos, as `import torch_fl` does.
inline void load_flagos() {
    const fl_platform *platform = nullptr;
    if (fl_platform_choose("cpu", &platform) != FL_OK) {
        std::fprintf(stderr, "%s\n", fl_last_message());
        std::exit(1);
    }
    c10::register_privateuse1_backend("flagos");
    c10::Dispatcher::singleton().findSchemaOrThrow("flagos::_load", "").typed<void()>().call();
    at::set_num_threads(1);
}

inline at::TensorOptions on_flagos() {
    return at::TensorOptions().device(at::Device("flagos:0"));
}

// Ends the process: the first failure is the one worth reading.
#define EXPECT(condition)                                                                \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                                \
        }                                                                                \
    } while (0)
