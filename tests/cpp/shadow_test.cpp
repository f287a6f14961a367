// shadow_test.cpp: what a shadow costs and leaves behind, counted: references, heap, slots.
#include "harness.h"

#include "shadow.h"

#include <c10/core/InferenceMode.h>

#include <atomic>
#include <new>
#include <stdexcept>
#include <thread>

namespace {
std::atomic<size_t> allocations{0};
} // namespace

// Counts what this program and the adapter's objects in it allocate. Not inlined, or the compiler
// takes the pair for a mismatch.
__attribute__((noinline)) void *operator new(size_t bytes) {
    allocations++;
    void *const pointer = std::malloc(bytes == 0 ? 1 : bytes);
    if (pointer == nullptr) {
        throw std::bad_alloc();
    }
    return pointer;
}
__attribute__((noinline)) void operator delete(void *pointer) noexcept {
    std::free(pointer);
}
__attribute__((noinline)) void operator delete(void *pointer, size_t) noexcept {
    std::free(pointer);
}

namespace {

using fl_torch::ShadowFrame;

at::Tensor tensor(at::IntArrayRef sizes) {
    return at::ones(sizes, on_flagos());
}

void binding_touches_no_reference_count() {
    const at::Tensor x = tensor({2, 3});
    const auto tensors = x.use_count();
    const auto storages = x.storage().use_count();
    {
        ShadowFrame frame;
        const at::Tensor &shown = *frame.show(x, false);
        EXPECT(x.use_count() == tensors);
        EXPECT(x.unsafeGetTensorImpl()->unsafe_storage().use_count() == storages);
        EXPECT(shown.device().is_cpu() && shown.sizes() == x.sizes());
        EXPECT(shown.const_data_ptr() == x.const_data_ptr());
        EXPECT(x.device() == at::Device("flagos:0"));
    }
    EXPECT(x.use_count() == tensors && x.storage().use_count() == storages);
}

void binding_touches_no_heap() {
    const at::Tensor x = tensor({2, 3, 4, 5, 6}), y = tensor({7});
    at::Tensor written = tensor({3});
    const at::Tensor view = x.select(0, 1); // Shares the storage of x.
    for (int i = 0; i < 2; i++) {           // The first round makes the thread's state.
        allocations = 0;
        ShadowFrame frame;
        frame.show(x, false);
        frame.show(y, false);
        frame.show(x, false);
        frame.show(view, false);
        frame.show(written, true);
        frame.commit();
    }
    EXPECT(allocations == 0);
}

void many_dimensions_are_shown_too() {
    std::vector<int64_t> sizes(24, 1);
    sizes[20] = 5;
    const at::Tensor big = tensor(sizes), small = tensor({2});
    for (int i = 0; i < 3; i++) {
        ShadowFrame frame;
        EXPECT(frame.show(big, false)->sizes() == at::IntArrayRef(sizes));
        EXPECT(frame.show(small, false)->sizes() == small.sizes());
    }
    ShadowFrame frame;
    EXPECT(frame.show(small, false)->dim() == 1);
}

void wrapped_numbers_stay_numbers() {
    const at::Tensor number = at::ones({}, on_flagos().dtype(at::kDouble));
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    {
        ShadowFrame frame;
        EXPECT(frame.show(number, false)->unsafeGetTensorImpl()->is_wrapped_number());
    }
    const at::Tensor half = at::ones({2}, on_flagos().dtype(at::kHalf));
    EXPECT((half * number).scalar_type() == at::kHalf);
    const at::Tensor plain = at::ones({}, on_flagos());
    ShadowFrame frame; // The slot that showed a number shows a tensor next.
    EXPECT(!frame.show(plain, false)->unsafeGetTensorImpl()->is_wrapped_number());
}

void one_tensor_has_one_shadow() {
    const at::Tensor x = tensor({4});
    at::Tensor again = x;
    const at::Tensor view = x.slice(0, 1);
    ShadowFrame frame;
    const auto &first = *frame.show(x, false);
    EXPECT(first.is_same(*frame.show(again, true)));
    const auto &shared = *frame.show(view, false);
    EXPECT(!shared.is_same(first) && shared.storage().is_alias_of(first.storage()));
    EXPECT(shared.storage_offset() == 1);
}

void frames_nest_and_give_their_slots_back() {
    const at::Tensor x = tensor({4}), y = tensor({5});
    auto &state = fl_torch::thread_state();
    const uint32_t before = state.top;
    {
        ShadowFrame outer;
        const at::Tensor &shown = *outer.show(x, false);
        const at::TensorImpl *const slot = shown.unsafeGetTensorImpl();
        for (int i = 0; i < 3; i++) {
            ShadowFrame inner;
            std::vector<at::Tensor> many;
            for (int k = 0; k < 200; k++) {
                many.push_back(tensor({k + 1}));
            }
            for (const at::Tensor &one : many) {
                inner.show(one, false);
            }
            EXPECT(inner.show(x, false)->unsafeGetTensorImpl() != slot);
        }
        EXPECT(shown.unsafeGetTensorImpl() == slot && shown.sizes() == x.sizes());
        EXPECT(shown.const_data_ptr() == x.const_data_ptr());
        EXPECT(outer.show(y, false)->sizes() == y.sizes());
    }
    EXPECT(state.top == before);
}

void an_exception_gives_the_slots_back() {
    at::Tensor x = tensor({2, 3});
    const void *const pointer = x.const_data_ptr();
    auto &state = fl_torch::thread_state();
    const uint32_t before = state.top;
    for (int i = 0; i < 3; i++) {
        try {
            ShadowFrame frame;
            at::Tensor &shown = *frame.show(x, true);
            shown.resize_({100});
            shown.fill_(7);
            throw std::runtime_error("on purpose");
        } catch (const std::runtime_error &) {
        }
        EXPECT(state.top == before);
        EXPECT(x.sizes() == at::IntArrayRef({2, 3}) && x.const_data_ptr() == pointer);
        EXPECT(x.storage().nbytes() == 24 && x.device() == at::Device("flagos:0"));
    }
}

void an_escaped_shadow_owns_what_it_shows() {
    at::Tensor kept, kept_view;
    {
        const at::Tensor x = at::arange(1000, at::kFloat).to(at::Device("flagos:0"));
        ShadowFrame frame;
        kept = *frame.show(x, false);
        kept_view = frame.show(x, false)->slice(0, 500);
    }
    std::vector<at::Tensor> others;
    for (int i = 0; i < 50; i++) {
        others.push_back(tensor({1000}) * -1);
    }
    EXPECT(at::equal(kept, at::arange(1000, at::kFloat)));
    EXPECT(at::equal(kept_view, at::arange(500, 1000, at::kFloat)));
    const at::Tensor y = tensor({3});
    ShadowFrame frame;
    EXPECT(!frame.show(y, false)->is_same(kept));
}

void results_are_adopted() {
    const at::Tensor x = at::arange(6, at::kFloat).to(at::Device("flagos:0"));
    const at::Tensor held = at::ones({3});
    ShadowFrame frame;
    const at::Tensor &shown = *frame.show(x, false);
    at::Tensor fresh = shown + 1, view = shown.slice(0, 2), same = shown, foreign = held;
    const void *const pointer = fresh.const_data_ptr();
    at::Tensor *const results[] = {&fresh, &view, &same, &foreign};
    frame.adopt(results, 4);
    for (const at::Tensor *result : results) {
        EXPECT(result->device() == at::Device("flagos:0"));
        EXPECT(result->storage().device() == at::Device("flagos:0"));
    }
    EXPECT(fresh.const_data_ptr() == pointer && same.is_same(x));
    EXPECT(view.storage().is_alias_of(x.storage()) && view.key_set() == x.key_set());
    EXPECT(held.device().is_cpu() && held.storage().device().is_cpu());
    EXPECT(foreign.const_data_ptr() == held.const_data_ptr());
}

void shadows_made_in_inference_mode_count_versions() {
    std::exception_ptr error;
    std::thread([&] {
        try {
            const c10::InferenceMode mode(true);
            const at::Tensor x = tensor({3});
            ShadowFrame frame;
            EXPECT(frame.show(x, true)->unsafeGetTensorImpl()->version_counter().enabled());
        } catch (...) {
            error = std::current_exception();
        }
    }).join();
    EXPECT(error == nullptr);
}

} // namespace

int main() {
    load_flagos();
    binding_touches_no_reference_count();
    binding_touches_no_heap();
    many_dimensions_are_shown_too();
    wrapped_numbers_stay_numbers();
    one_tensor_has_one_shadow();
    frames_nest_and_give_their_slots_back();
    an_exception_gives_the_slots_back();
    an_escaped_shadow_owns_what_it_shows();
    results_are_adopted();
    shadows_made_in_inference_mode_count_versions();
    std::puts("ok");
    return 0;
}
