// router.h: one boxed function that serves any operator, in place of a generated wrapper each.
#pragma once

#include "device_check.h"
#include "layout.h"

#include "fl/route.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string_view>
#include <vector>

namespace fl_torch {

// Tensors of one kind (plain, sparse, quantized, nested): the dispatch key of flagos's, of the
// twin's and of the host's.
struct KindKeys {
    c10::DispatchKey flagos, twin, host;
};

// The only operator that PyTorch's tracer leaves to its parts, besides composites, which are taken
// apart anyway.
constexpr std::string_view kTracedInParts = "aten::convolution";

// What the router must know of an operator, read once from its schema.
struct OperatorPlan {
    struct Argument {
        uint16_t index;
        bool written;
        bool out; // The operator may resize it.
        bool generator;
    };

    OperatorPlan(const c10::OperatorHandle &op, fl_slot *slot);
    OperatorPlan(const c10::OperatorHandle &op, fl_slot *slot, const KindKeys &keys);

    fl_slot *slot; // Owned by the core, lives as long as the process.
    KindKeys keys;
    // The operator only takes apart or puts together objects that hold tensors: PyTorch's function
    // for it works on flagos tensors as they are.
    bool structural = false;
    // A library's operator, whose kernel may be Python or a composite of PyTorch's operators.
    bool custom = false;
    // PyTorch counts the versions of what the operator writes to (lists of tensors) in its kernel.
    bool counts_versions = false;
    // PyTorch's tracer records what the operator calls in place of it.
    bool traced_in_parts = false;
    // The kernel does other work when an operand wants a gradient.
    bool asks_gradient = false;
    DeviceRule device_rule;
    bool writes = false;          // Some argument is written to.
    bool draws = false;           // Some argument is a generator.
    bool calls_libraries = false; // Those that keep something for each thread; on_worker.h.
    bool returns_view = false;    // Some result aliases an argument that is not written to.
    bool returns_object =
        false; // Some result is a library's object, which no gradient goes through.
    uint16_t arguments = 0, returns = 0;
    uint32_t host_results = 0;         // Bit i: result i lies on the host by its meaning.
    std::vector<Argument> relevant;    // Those that may hold tensors, devices or generators.
    std::vector<WantedLayout> layouts; // Layouts to prepare before anything is shown.
};

// Whether the parts of this operator have to be seen: torch.jit.trace records this thread's calls.
inline bool is_traced(const OperatorPlan &plan) {
    return plan.traced_in_parts &&
           c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer);
}

// The kernel of one operator. Lives in the dispatcher.
class RoutedOperator final : public c10::OperatorKernel {
  public:
    explicit RoutedOperator(OperatorPlan plan) : plan_(std::move(plan)) {}
    void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys,
                    torch::jit::Stack *stack);

  private:
    const OperatorPlan plan_;
};

// Serve one call by the route that the slot has chosen. Also what typed operators fall back to when
// their route is not the typed one.
void route_call(const OperatorPlan &plan, const c10::OperatorHandle &op, torch::jit::Stack *stack);

// The same, and wait for it where each launch is to be waited for.
void serve_call(const OperatorPlan &plan, const c10::OperatorHandle &op, torch::jit::Stack *stack);

} // namespace fl_torch
