// shadow_threads.cpp: eight threads that share tensors, under the thread sanitizer. Shadows and the
// router are instrumented, libtorch is not; see tsan.supp. A system that relabels live tensors for
// the length of a call is reported here at once, and gives wrong labels besides.
#include "harness.h"

#include "shadow.h"

#include <atomic>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 8, kRounds = 400;

struct Shared {
    at::Tensor weight = at::randn({16, 16}).to(at::Device("flagos:0"));
    at::Tensor bias = at::randn({16}).to(at::Device("flagos:0"));
    at::Tensor view = weight.select(0, 3);
    at::Tensor deep = at::ones({1, 2, 1, 2, 1, 2, 1}, on_flagos());
    std::vector<at::Tensor> many = std::vector<at::Tensor>(40, weight);
};

// Shadows alone: what frames do, without a kernel.
void bind(const Shared &shared) {
    fl_torch::ShadowFrame frame;
    const at::Tensor &first = *frame.show(shared.weight, false);
    const at::Tensor &second = *frame.show(shared.view, false);
    const at::Tensor &third = *frame.show(shared.deep, false);
    EXPECT(first.storage().is_alias_of(second.storage()) && third.dim() == 7);
    for (const at::Tensor &one : shared.many) {
        EXPECT(frame.show(one, false)->is_same(first));
    }
}

// Operators through the dispatcher: typed, boxed, lists, views, in place, with an error.
void call(const Shared &shared, const at::Tensor &expected, at::Tensor &own) {
    const at::Tensor result = at::addmm(shared.bias, shared.weight, shared.weight);
    EXPECT(result.device().type() == c10::DeviceType::PrivateUse1);
    EXPECT(at::equal(result, expected));
    at::cat(at::TensorList(shared.many).slice(0, 5));
    at::addmv(shared.bias, shared.weight, shared.view); // Boxed.
    at::logsumexp(shared.weight, {0});                  // Boxed.
    at::_foreach_add(shared.many, 1);
    own.add_(shared.bias).mul_(0.5);
    at::add_out(own, shared.bias, shared.view);
    shared.weight.t().unfold(0, 2, 1).sum();
    try {
        at::mm(shared.weight, shared.deep);
        EXPECT(false);
    } catch (const c10::Error &) {
    }
}

} // namespace

int main() {
    load_flagos();
    const Shared shared;
    const at::Tensor expected = at::addmm(shared.bias, shared.weight, shared.weight);
    std::atomic<int> waiting{kThreads}, wrong{0};
    std::vector<std::thread> threads;
    for (int number = 0; number < kThreads; number++) {
        threads.emplace_back([&] {
            waiting--;
            while (waiting != 0) {
                std::this_thread::yield();
            }
            at::Tensor own = at::ones({16}, on_flagos());
            for (int round = 0; round < kRounds; round++) {
                bind(shared);
                call(shared, expected, own);
                wrong += shared.weight.device().type() != c10::DeviceType::PrivateUse1;
                wrong += shared.view.sizes() != shared.bias.sizes();
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    EXPECT(wrong == 0);
    std::puts("ok");
    return 0;
}
