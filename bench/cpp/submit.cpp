// submit.cpp: what one operator costs a caller in C++. An operator for bench/card/submit.py:
//
//   fl_bench::submit(str operator, Tensor[] operands, int calls) -> int
//
// Picoseconds a call, over a burst of calls that nobody waits for; making and dropping the result
// is part of it. Operands are x, y (square), weight (a row), index (int64) and query (for
// attention). fl_bench::operators() -> str[] are the names.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace {

struct Operands {
    at::Tensor x, y, weight, index, query;
};

template <typename Call>
int64_t time_calls(const Operands &on, int64_t calls, const Call &call) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; i++) {
        const at::Tensor result = call(on);
    }
    const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - start;
    return passed.count() * 1000 / calls;
}

using Timed = int64_t (*)(const Operands &, int64_t);

#define TIMED(name, ...)                                                                     \
    {                                                                                        \
        name, [](const Operands &operands, int64_t calls) {                                  \
            return time_calls(operands, calls,                                               \
                              [](const Operands &on) -> at::Tensor { return __VA_ARGS__; }); \
        }                                                                                    \
    }

const std::map<std::string, Timed> timed = {
    TIMED("add", at::add(on.x, on.y)),
    TIMED("add_", on.x.add_(on.y)),
    TIMED("mul", at::mul(on.x, on.y)),
    TIMED("mul_scalar", at::mul(on.x, 2.0)),
    TIMED("silu", at::silu(on.x)),
    TIMED("mm", at::mm(on.x, on.y)),
    TIMED("cat", at::cat({on.x, on.y})),
    TIMED("softmax", at::softmax(on.x, -1)),
    TIMED("layer_norm", at::layer_norm(on.x, on.weight.sizes(), on.weight, on.weight)),
    TIMED("view", on.x.view(-1)),
    TIMED("slice", on.x.slice(0, 1)),
    TIMED("transpose", on.x.t()),
    TIMED("empty", at::empty(on.x.sizes(), on.x.options())),
    TIMED("copy_", on.x.copy_(on.y)),
    TIMED("to_half", on.x.to(at::kHalf)),
    TIMED("index", at::index(on.x, {on.index})),
    TIMED("sdpa", at::scaled_dot_product_attention(on.query, on.query, on.query)),
    TIMED("lgamma", at::lgamma(on.x)),
    TIMED("frac", at::frac(on.x)),
};

int64_t submit(c10::string_view name, at::TensorList operands, int64_t calls) {
    TORCH_CHECK(operands.size() == 5, "operands are x, y, weight, index and query");
    TORCH_CHECK(calls > 0, "no calls");
    const Timed time_operator = timed.at(std::string(name));
    return time_operator({operands[0], operands[1], operands[2], operands[3], operands[4]}, calls);
}

std::vector<std::string> operators() {
    std::vector<std::string> names;
    for (const auto &entry : timed) {
        names.push_back(entry.first);
    }
    return names;
}

} // namespace

TORCH_LIBRARY(fl_bench, library) {
    library.def("submit(str operator, Tensor[] operands, int calls) -> int");
    library.impl("submit", torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, submit));
    library.def("operators() -> str[]", operators);
}
