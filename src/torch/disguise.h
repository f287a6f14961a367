// disguise.h: run a composite of PyTorch's as the twin would run it.
//
// Some composites ask their tensors "are you a CUDA tensor, a CPU tensor, acceptable to cuDNN?" and
// take other kernels for an unknown device: a recurrent network runs oneDNN's layers on the CPU,
// cuDNN's on CUDA, and neither on flagos. Such a composite is given disguised tensors: they say
// that they are the twin's, while each operator that the composite calls still reaches the flagos
// tensors behind them, through autocast, autograd and the router. So every choice is the twin's,
// and the graph that autograd records is, node for node, the twin's too: gradients are summed in
// the same order, and double backward, saved-tensor hooks, checkpoints and graph hooks work as they
// do natively.
//
// The other way would be to record the twin's graph on shadows and hide it behind one node. It was
// not taken: a weight used at every step would have its gradients summed within that node before
// they meet those of other calls, which rounds differently, and PyTorch's engine asserts on the
// streams of a graph on plain CUDA tensors once another device is its accelerator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fl_torch {

// A tensor of which PyTorch's C++ code reads the twin's device, and whose operators are
// `original`'s. An operator called on it outside of a composite gives plain flagos tensors.
at::Tensor disguised(at::Tensor original);

// The tensor behind a disguise; another tensor is given back as it is.
at::Tensor undisguised(const at::Tensor &tensor);

// While one lives, what this thread's operators make of disguised tensors is disguised too, so that
// PyTorch's code goes on reading the twin's device.
class WithinDisguise {
  public:
    WithinDisguise();

  private:
    const c10::impl::IncludeDispatchKeyGuard mode_on_;
};

// Whether a tensor, of any device, may take part in a disguised call.
bool can_be_disguised(const at::Tensor &tensor);

// The keys that reach PyTorch's own recording for autograd from a kernel of ours that is in its
// place, for a file that changes the node it made. The recording is the kernel of every backend
// without one of its own; it is reached through the key of a backend that no tensor has.
inline c10::DispatchKeySet recording(c10::DispatchKeySet keys) {
    return (keys & c10::after_autograd_keyset) |
           c10::DispatchKeySet(c10::DispatchKey::AutogradOther);
}

// Register the composites of disguised_ops.def. Call before the router is registered. Returns how
// many were.
size_t register_disguised();

// Call the twin's kernel of a library's operator on disguised arguments: autograd records what the
// kernel calls, and what it gives as a view is one. What the kernel makes by itself stays the
// twin's. False, and nothing has been done, where an argument cannot take part.
bool call_in_disguise(const c10::OperatorHandle &op, torch::jit::Stack *stack);

// The kernel that runs one composite in disguise.
c10::BoxedKernel disguised_kernel(const c10::OperatorHandle &op);

// A composite in disguise for a file that serves some of its calls otherwise. It counts as our own
// operator, not as one of the table. `prepare` once, before the first call and after
// register_disguised.
template <class Op, class Schema = typename Op::schema>
class LeftToDisguise;

template <class Op, class R, class... A>
class LeftToDisguise<Op, R(A...)> {
  public:
    static void prepare() {
        const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
        handle = new c10::OperatorHandle(op);
        kernel = new c10::BoxedKernel(disguised_kernel(op));
    }
    static R call(A... arguments) {
        return c10::impl::BoxedKernelWrapper<R(A...)>::call(
            *kernel, *handle, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
            std::forward<A>(arguments)...);
    }

  private:
    // Never freed: threads that still run may call when the process ends.
    static inline const c10::OperatorHandle *handle = nullptr;
    static inline const c10::BoxedKernel *kernel = nullptr;
};

} // namespace fl_torch
