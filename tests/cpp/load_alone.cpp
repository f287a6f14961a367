// load_alone.cpp: the adapter in a program that has libc10, libtorch_cpu, libflagos and libtorch_fl
// and nothing else: no Python, no library of a vendor. It computes, and says which libraries the
// process has that nobody asked for.
#include "fl/driver.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <dlfcn.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <string>

namespace {

int failures = 0;

void expect(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "failed: %s\n", what);
        failures++;
    }
}

// The files of shared objects that the process has mapped.
std::set<std::string> libraries() {
    std::set<std::string> found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        const size_t start = line.find('/');
        if (start != std::string::npos && line.find(".so", start) != std::string::npos) {
            found.insert(line.substr(start));
        }
    }
    return found;
}

// PyTorch's own build decides what libtorch_cpu brings along; the adapter may add itself only.
void check_libraries(const std::set<std::string> &before) {
    for (const std::string &library : libraries()) {
        const bool is_adapter = library.find("/libtorch_fl.so") != std::string::npos;
        if (before.count(library) == 0 && !is_adapter) {
            std::fprintf(stderr, "failed: %s came with the adapter\n", library.c_str());
            failures++;
        }
        for (const char *stranger : {"libpython", "libtorch_python", "libtorch_cuda"}) {
            if (library.find(stranger) != std::string::npos) {
                std::fprintf(stderr, "failed: the process has %s\n", library.c_str());
                failures++;
            }
        }
    }
}

void compute() {
    const at::Device device("flagos:0");
    const at::Tensor x = at::arange(6, at::kFloat).to(device).view({2, 3});
    const at::Tensor y = at::mm(x, x.t()) + 1;
    expect(y.device() == device, "a result lies on the device");
    expect(at::equal(y.cpu(), at::mm(x.cpu(), x.cpu().t()) + 1), "values are the CPU's");
    expect(x.t()[0].storage().is_alias_of(x.storage()), "a view lies on the same storage");

    at::Tensor leaf = at::ones({3}, at::TensorOptions().device(device)).requires_grad_();
    (leaf * leaf).sum().backward();
    expect(at::equal(leaf.grad().cpu(), at::full({3}, 2.0)), "gradients are right");

    bool raised = false;
    try {
        at::add(x, at::ones({7}));
    } catch (const c10::Error &) {
        raised = true;
    }
    expect(raised, "a wrong call raises");
}

} // namespace

int main(int count, char **arguments) {
    if (count != 2) {
        std::fprintf(stderr, "usage: load_alone libtorch_fl.so\n");
        return 2;
    }
    const fl_platform *platform = nullptr;
    if (fl_platform_choose("cpu", &platform) != FL_OK) {
        std::fprintf(stderr, "%s\n", fl_last_message());
        return 1;
    }
    const std::set<std::string> before = libraries();
    if (dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    c10::register_privateuse1_backend("flagos");
    c10::Dispatcher::singleton().findSchemaOrThrow("flagos::_load", "").typed<void()>().call();
    compute();
    check_libraries(before);
    return failures == 0 ? 0 : 1;
}
