// load.cpp: what happens when the library is loaded, and the `flagos` operators through which
// Python speaks to the adapter: `_C` knows no torch, so whatever has tensors, streams or generators
// among its arguments is an operator.
#include "allocator.h"
#include "autocast.h"
#include "check.h"
#include "ending.h"
#include "generator.h"
#include "guard.h"
#include "hooks.h"
#include "interchange.h"
#include "late_free.h"
#include "launch.h"
#include "pinned.h"
#include "queue.h"
#include "register.h"
#include "twin.h"
#include "twin_driver.h"

#include "fl/driver.h"

#include <torch/library.h>

namespace fl_torch {

namespace {

// Install flagos for the platform that the core has chosen. Once a process.
void load() {
    static std::once_flag once;
    const fl_platform *const platform = fl_platform_chosen();
    TORCH_CHECK(platform != nullptr,
                "flagos: no platform was chosen before the adapter was loaded");
    std::call_once(once, [platform] {
        twin_choose(*platform);
        launch_choose();
        register_allocator();
        register_guard();
        register_pinned_allocator();
        register_hooks();
        register_operators();
        register_autocast();
        queue_choose();
    });
}

} // namespace

} // namespace fl_torch

TORCH_LIBRARY(flagos, library) {
    fl_torch::register_twin_driver(); // Before the core chooses a platform.
    library.def("_load() -> ()", [] { fl_torch::load(); });
    library.def("default_generator(int device) -> Generator?", [](int64_t device) {
        return fl_torch::default_generator(static_cast<c10::DeviceIndex>(device));
    });
    library.def("_watch_twin_memory() -> ()", &fl_torch::watch_twin_memory_anew);
    library.def("_process_is_ending() -> ()", [] {
        fl_torch::queue_shut_down();
        fl_torch::process_is_ending();
    });
    library.def("queue_set(bool on) -> ()", &fl_torch::queue_set);
    library.def("queue_is_on() -> bool", &fl_torch::queue_is_on);
    library.def("queue_drain() -> ()", &fl_torch::settle_queue);
    library.def("memory_is_known(Tensor self) -> ()", [](const at::Tensor &self) {
        fl_torch::memory_is_known(self, fl_torch::Known::kAddress);
    });
    library.def("as_twin(Tensor self, bool freeze=False) -> Tensor", &fl_torch::as_twin);
    library.def("as_flagos(Tensor self) -> Tensor", &fl_torch::as_flagos);
    library.def("move_storage(Tensor self, Tensor source) -> ()", &fl_torch::move_storage);
    // They do something to the process and nothing to a tensor: a trace has no node for them.
    for (const char *const name : {"_load", "_watch_twin_memory", "default_generator", "queue_set",
                                   "queue_is_on", "queue_drain", "memory_is_known"}) {
        library.impl(name, c10::DispatchKey::Tracer, torch::CppFunction::makeFallthrough());
    }
    // Lazy bits are part of what is relabelled, and must not be resolved before.
    for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
        library.impl("as_twin", key, torch::CppFunction::makeFallthrough());
        library.impl("as_flagos", key, torch::CppFunction::makeFallthrough());
    }
}
