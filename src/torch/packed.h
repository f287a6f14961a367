// packed.h: prepacked weights of quantized layers. A twin's prepacking operator answers an object
// that holds the twin's tensors and hands them out later, when no router stands between.
#pragma once

#include <ATen/core/ivalue.h>

namespace fl_torch {

// If `value` is an object of prepacked weights that the twin just made from flagos tensors, put
// behind it one that unpacks to flagos tensors. Other objects stay as they are.
void adopt_packed(c10::IValue &value);

} // namespace fl_torch
