// bind.cpp: what it costs to show tensors to the twin, beside copying and dropping a Tensor handle,
// which is what a call pays natively for an argument that it keeps.
//
//     bench_bind                 nanoseconds, interleaved in one run, medians and spread
//     bench_bind ROUNDS          each case so often, for callgrind to count; see bind.py
//
// A frame is what one operator call opens; its cost is spread over the tensors in it.
#include "../../tests/cpp/harness.h"

#include "shadow.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace {

using fl_torch::ShadowFrame;

// The compiler may neither drop nor hoist what produced the value.
template <class T>
void keep(const T &value) {
    asm volatile("" : : "r"(&value) : "memory");
}

struct Operands {
    at::Tensor a = at::ones({8, 16}, on_flagos());
    at::Tensor b = at::ones({16, 8}, on_flagos());
    at::Tensor c = at::ones({8, 8}, on_flagos());
    at::Tensor deep = at::ones({1, 2, 1, 2, 1, 2, 1, 2}, on_flagos());
    at::Tensor view = a.t();
};

void empty_frame(Operands &) {
    ShadowFrame frame;
    keep(frame);
}
void one_shadow(Operands &o) {
    ShadowFrame frame;
    keep(frame.show(o.a, false));
}
void two_shadows(Operands &o) {
    ShadowFrame frame;
    keep(frame.show(o.a, false));
    keep(frame.show(o.b, false));
}
void three_shadows(Operands &o) {
    ShadowFrame frame;
    keep(frame.show(o.a, false));
    keep(frame.show(o.b, false));
    keep(frame.show(o.c, false));
}
void three_shadows_one_written(Operands &o) {
    ShadowFrame frame;
    keep(frame.show(o.a, false));
    keep(frame.show(o.b, false));
    keep(frame.show(o.c, true));
    frame.commit();
}
void same_tensor_twice(Operands &o) {
    ShadowFrame frame;
    keep(frame.show(o.a, false));
    keep(frame.show(o.a, false));
}
void two_on_one_storage(Operands &o) {
    ShadowFrame frame;
    keep(frame.show(o.a, false));
    keep(frame.show(o.view, false));
}
void eight_dimensions(Operands &o) {
    ShadowFrame frame;
    keep(frame.show(o.deep, false));
}
void handle(Operands &o) {
    const at::Tensor copy = o.a;
    keep(copy);
}
void three_handles(Operands &o) {
    const at::Tensor a = o.a, b = o.b, c = o.c;
    keep(a);
    keep(b);
    keep(c);
}

struct Case {
    const char *name;
    int tensors;
    void (*run)(Operands &);
};

const Case kCases[] = {
    {"empty_frame", 1, empty_frame},
    {"one_shadow", 1, one_shadow},
    {"two_shadows", 2, two_shadows},
    {"three_shadows", 3, three_shadows},
    {"three_shadows_one_written", 3, three_shadows_one_written},
    {"same_tensor_twice", 2, same_tensor_twice},
    {"two_on_one_storage", 2, two_on_one_storage},
    {"eight_dimensions", 1, eight_dimensions},
    {"handle", 1, handle},
    {"three_handles", 3, three_handles},
};
constexpr size_t kCount = sizeof(kCases) / sizeof(kCases[0]);

double nanoseconds(const Case &one, Operands &operands, int rounds) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; i++) {
        one.run(operands);
    }
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    return spent.count() / rounds;
}

void measure(Operands &operands) {
    constexpr int kSamples = 101, kRounds = 20000;
    std::vector<double> samples[kCount];
    for (int sample = 0; sample < kSamples; sample++) {
        for (size_t i = 0; i < kCount; i++) { // Interleaved, so that noise meets all alike.
            samples[i].push_back(nanoseconds(kCases[i], operands, kRounds));
        }
    }
    std::printf("%-28s %10s %10s %10s %14s\n", "case", "ns", "p10", "p90", "ns per tensor");
    for (size_t i = 0; i < kCount; i++) {
        std::sort(samples[i].begin(), samples[i].end());
        const double median = samples[i][kSamples / 2];
        std::printf("%-28s %10.2f %10.2f %10.2f %14.2f\n", kCases[i].name, median,
                    samples[i][kSamples / 10], samples[i][kSamples * 9 / 10],
                    median / kCases[i].tensors);
    }
}

} // namespace

#ifdef COUNT_CALLS
extern "C" void count_begin(void);
extern "C" void count_end(const char *name);
#else
static void count_begin(void) {}
static void count_end(const char *) {}
#endif

int main(int count, char **arguments) {
    load_flagos();
    Operands operands;
    if (count == 1) {
        measure(operands);
        return 0;
    }
    if (count != 2) {
        std::fprintf(stderr, "usage: bench_bind [rounds]\n");
        return 2;
    }
    const int rounds = std::atoi(arguments[1]);
    for (const Case &one : kCases) {
        one.run(operands); // What only the first call does is not counted.
        count_begin();
        for (int i = 0; i < rounds; i++) {
            one.run(operands);
        }
        count_end(one.name);
    }
    return 0;
}
