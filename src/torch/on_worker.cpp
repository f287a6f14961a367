// on_worker.cpp: see on_worker.h. Knows operators by name alone.
#include "on_worker.h"

#include "deferred.h"
#include "queue.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <vector>

namespace fl_torch {

namespace {

std::vector<std::string_view> words(std::string_view text) {
    std::vector<std::string_view> list;
    while (!text.empty()) {
        const size_t end = std::min(text.find(' '), text.size());
        list.push_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return list;
}

} // namespace

bool calls_libraries(std::string_view name) {
    constexpr std::string_view kNamespace = "aten::";
    if (name.substr(0, kNamespace.size()) != kNamespace) {
        return false; // A kernel of somebody's that may be Python, which stays with its caller.
    }
    name = name.substr(kNamespace.size(), name.find('.') - kNamespace.size());
    static const std::vector<std::string_view> parts =
        words("addmm bmm _mm addmv matmul convolution conv_ conv2d conv3d attention dot_product "
              "multi_head transformer_encoder cudnn rnn lstm gru_ batch_norm cdist ctc_loss linalg "
              "cholesky grid_sampler");
    static const std::vector<std::string_view> wholes =
        words("mm mv dot vdot linear linear_backward bilinear _trilinear addr ger lu_solve "
              "_lu_with_info triangular_solve geqrf ormqr orgqr");
    const auto is_part = [&](auto part) { return name.find(part) != std::string_view::npos; };
    return std::any_of(parts.begin(), parts.end(), is_part) ||
           std::find(wholes.begin(), wholes.end(), name) != wholes.end();
}

namespace {

// Warnings belong to the thread that runs Python.
struct KeepWarnings final : c10::WarningHandler {
    std::vector<c10::Warning> kept;
    void process(const c10::Warning &warning) override {
        kept.push_back(warning);
    }
};

struct Waited {
    c10::function_ref<void()> call;
    std::exception_ptr raised;
    KeepWarnings warnings;
};

void make_call(DeferredTask &task) {
    const TaskArguments<Waited *> arguments(task);
    Waited &waited = *arguments.value;
    const c10::WarningUtils::WarningHandlerGuard guard(&waited.warnings);
    try {
        waited.call();
    } catch (...) {
        waited.raised = std::current_exception();
    }
}

} // namespace

bool call_on_worker(const char *name, c10::DeviceIndex device, c10::function_ref<void()> call) {
    if (!queue_is_on() || fl_queue_on_worker()) {
        return false;
    }
    Capture nothing;
    nothing.set_device(device);
    Waited waited{call, nullptr, {}};
    Waited *argument = &waited;
    if (!queue_task(kind_named(name), std::move(nothing), std::move(argument), &make_call, 0)) {
        return false;
    }
    drain_in_use(); // Also raises what failed before, as every call that waits.
    for (const c10::Warning &warning : waited.warnings.kept) {
        c10::warn(warning);
    }
    if (waited.raised) {
        std::rethrow_exception(waited.raised);
    }
    return true;
}

} // namespace fl_torch
