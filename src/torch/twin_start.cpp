// twin_start.cpp: see twin_start.h. What knows CUDA's headers is a library of its own, since this
// one serves builds of PyTorch without CUDA too.
#include "twin_start.h"

#include "late_free.h"
#include "twin.h"

#include "fl/debug.h"

#include <ATen/Context.h>

#include <dlfcn.h>

#include <mutex>
#include <string>

namespace fl_torch {

namespace {

void put_fastbins() {
    Dl_info self;
    if (!fl_option_bool(FL_OPT_TWIN_FASTBINS) ||
        dladdr(reinterpret_cast<void *>(&put_fastbins), &self) == 0) {
        return;
    }
    std::string path(self.dli_fname);
    path.replace(path.rfind('/') + 1, std::string::npos, "libtorch_fl_cuda.so");
    void *const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        fl_trace(FL_TRACE_MEMORY, "no fast bins: %s", dlerror());
        return;
    }
    const auto install = reinterpret_cast<int (*)()>(dlsym(library, "fl_cuda_fastbins_install"));
    const bool there = install != nullptr && install() != 0;
    if (there) {
        watch_twin_memory_anew();
    }
    fl_trace(FL_TRACE_MEMORY, "fast bins before PyTorch's CUDA allocator: %s",
             there ? "yes" : "no");
}

} // namespace

void initialise_twin() {
    at::globalContext().lazyInitDevice(twin.type);
    if (twin.type == c10::DeviceType::CUDA) {
        static std::once_flag once;
        std::call_once(once, put_fastbins);
    }
}

} // namespace fl_torch
