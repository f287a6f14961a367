// layout.cpp: see layout.h.
#include "layout.h"

#include "shadow.h"
#include "twin.h"

#include <ATen/ATen.h>

#include <cstring>

namespace fl_torch {

std::vector<WantedLayout> wanted_layouts(const char *op_name, const c10::FunctionSchema &schema) {
    constexpr bool kAnyTwin = true;
    (void)kAnyTwin;
    const bool kAcceleratorTwin = twin.present && !twin.is_host;
    const struct {
        const char *op;
        const char *argument;
        at::MemoryFormat format;
        bool wanted;
    } rows[] = {
#define FL_LAYOUT(op, argument, layout, twins) {op, argument, at::MemoryFormat::layout, twins},
#include "layout_ops.def"
#undef FL_LAYOUT
    };
    std::vector<WantedLayout> wanted;
    for (const auto &row : rows) {
        if (row.wanted && std::strcmp(row.op, op_name) == 0) {
            const auto index = schema.argumentIndexWithName(row.argument);
            TORCH_CHECK(index.has_value(), "flagos: ", op_name, " has no argument '", row.argument,
                        "'");
            wanted.push_back({static_cast<uint16_t>(*index), row.format});
        }
    }
    return wanted;
}

void prepare_layouts(const std::vector<WantedLayout> &wanted, c10::IValue *arguments) {
    for (const WantedLayout &row : wanted) {
        c10::IValue &value = arguments[row.argument];
        if (value.isTensor() && ShadowFrame::needs_shadow(value.toTensor()) &&
            !value.toTensor().is_contiguous(row.format)) {
            value = c10::IValue(value.toTensor().contiguous(row.format));
        }
    }
}

} // namespace fl_torch
