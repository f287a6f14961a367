// autocast.cpp: which operators are cast to which precision. CUDA's lists are PyTorch's public
// macros, expanded to unboxed kernels. The CPU's are not public: which operators are in them is
// read from the dispatcher, and which policy each has is the short table below; the rest compute in
// float32.
#include "autocast.h"

#include "schema.h"
#include "twin.h"
#include "values.h"

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <unordered_set>

namespace fl_torch {

namespace {

using c10::DispatchKey;
using c10::IValue;
using torch::jit::Stack;

// --- the CPU's lists
// -------------------------------------------------------------------------------

enum class Policy { kLower, kFloat32, kPromote };

Policy policy_of(const std::string &name) {
    static const std::unordered_set<std::string> lower = {
        "aten::conv1d",
        "aten::conv1d.padding",
        "aten::conv2d",
        "aten::conv2d.padding",
        "aten::conv3d",
        "aten::conv3d.padding",
        "aten::conv_transpose1d",
        "aten::conv_transpose2d.input",
        "aten::conv_transpose3d.input",
        "aten::conv_tbc",
        "aten::_convolution.deprecated",
        "aten::mm",
        "aten::bmm",
        "aten::addmm",
        "aten::_addmm_activation",
        "aten::baddbmm",
        "aten::addbmm",
        "aten::matmul",
        "aten::linear",
        "aten::linalg_vecdot",
        "aten::prelu",
        "aten::mkldnn_rnn_layer",
        "aten::scaled_dot_product_attention",
        "aten::_native_multi_head_attention",
    };
    static const std::unordered_set<std::string> promote = {
        "aten::stack", "aten::cat", "aten::index_copy", "aten::index_copy.dimname"};
    if (lower.count(name) != 0) {
        return Policy::kLower;
    }
    return promote.count(name) != 0 ? Policy::kPromote : Policy::kFloat32;
}

template <class Visit>
void each_tensor(IValue *first, IValue *last, const Visit &visit) {
    for (IValue *value = first; value != last; value++) {
        fl_torch::each_tensor(*value, visit);
    }
}

class CpuPolicy final : public c10::OperatorKernel {
  public:
    explicit CpuPolicy(Policy policy) : policy_(policy) {}

    void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet, Stack *stack) {
        const c10::impl::ExcludeDispatchKeyGuard off(DispatchKey::AutocastPrivateUse1);
        IValue *const last = stack->data() + stack->size();
        IValue *const first = last - op.schema().arguments().size();
        at::ScalarType type = at::kFloat;
        if (policy_ != Policy::kFloat32) {
            type = at::autocast::get_lower_precision_fp_from_device_type(kFlagos);
        }
        if (policy_ == Policy::kPromote) {
            each_tensor(first, last, [&type](const at::Tensor &tensor) {
                type = at::autocast::prioritize(type, tensor, kFlagos);
            });
        }
        for (IValue *value = first; value != last; value++) {
            cast(*value, type);
        }
        op.callBoxed(*stack);
    }

  private:
    static void cast(IValue &value, at::ScalarType type) {
        if (value.isTensor()) {
            value = IValue(at::autocast::cached_cast(type, value.toTensor(), kFlagos));
        } else if (value.isTensorList()) {
            c10::List<at::Tensor> list;
            list.reserve(value.toListRef().size());
            for (const IValue &element : value.toListRef()) {
                list.push_back(at::autocast::cached_cast(type, element.toTensor(), kFlagos));
            }
            value = IValue(std::move(list));
        }
    }

    const Policy policy_;
};

void register_cpu_lists() {
    auto &dispatcher = c10::Dispatcher::singleton();
    // Never destroyed: deregistering at exit would race with threads that still run.
    static auto *const handles = new std::vector<c10::RegistrationHandleRAII>;
    for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
        const auto op = dispatcher.findOp(name);
        if (!op.has_value() || !op->hasSchema() ||
            !op->hasKernelForDispatchKey(DispatchKey::AutocastCPU) ||
            op->hasKernelForDispatchKey(DispatchKey::AutocastPrivateUse1)) {
            continue;
        }
        handles->push_back(
            dispatcher.registerImpl(name, DispatchKey::AutocastPrivateUse1,
                                    c10::KernelFunction::makeFromBoxedFunctor(
                                        std::make_unique<CpuPolicy>(policy_of(name_of(name)))),
                                    std::nullopt, nullptr, "flagos autocast"));
    }
}

// --- CUDA's lists
// ----------------------------------------------------------------------------------

at::Tensor refuse_binary_cross_entropy(const at::Tensor &, const at::Tensor &,
                                       const std::optional<at::Tensor> &, int64_t) {
    TORCH_CHECK(false,
                "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
                "autocast. Use binary_cross_entropy_with_logits or BCEWithLogitsLoss, or compute "
                "the loss outside of the autocast region.");
}

} // namespace

} // namespace fl_torch

// The macros name PyTorch's own namespace.
namespace at::autocast {

static void register_public_lists(torch::Library &m) {
#define FL_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FL_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FL_FLOAT32_OPTION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define FL_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
    AT_FORALL_LOWER_PRECISION_FP(FL_LOWER)
    AT_FORALL_FP32(FL_FLOAT32)
    AT_FORALL_FP32_SET_OPT_DTYPE(FL_FLOAT32_OPTION)
    AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
    AT_FORALL_PROMOTE(FL_PROMOTE)
#undef FL_LOWER
#undef FL_FLOAT32
#undef FL_FLOAT32_OPTION
#undef FL_PROMOTE
}

} // namespace at::autocast

namespace fl_torch {

void register_autocast() {
    static auto *const all = new torch::Library(
        torch::Library::IMPL, "_", DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
    all->fallback(torch::CppFunction::makeFallthrough());
    if (twin.is_host) {
        // The lists are the CPU's. The dtype stays PyTorch's float16, also CUDA's: it is kept per
        // thread, and setting it here would change one thread alone.
        register_cpu_lists();
        return;
    }
    static auto *const aten = new torch::Library(
        torch::Library::IMPL, "aten", DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
    at::autocast::register_public_lists(*aten);
    aten->impl("binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));
}

} // namespace fl_torch
