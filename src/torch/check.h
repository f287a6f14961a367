// check.h: turns an fl_status of the core into the exception that PyTorch expects.
#pragma once

#include "fl/status.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

namespace fl_torch {

// Raises for anything but FL_OK: out of memory as torch.OutOfMemoryError, a bad index as
// IndexError's C++ twin, what a platform cannot do as NotImplementedError, the rest as
// RuntimeError. The text is the core's last message.
[[noreturn]] void raise_status(fl_status status);

inline void check(fl_status status) {
    if (C10_UNLIKELY(status != FL_OK)) {
        raise_status(status);
    }
}

[[noreturn]] void refuse_without_memory(const c10::TensorImpl &tensor);

// A tensor whose storage was resized to nothing must not reach a kernel, which would read at NULL.
inline void require_memory(const c10::TensorImpl &tensor) {
    const c10::Storage &storage = tensor.unsafe_storage();
    if (C10_UNLIKELY(storage && storage.nbytes() == 0 && tensor.numel() != 0 &&
                     !tensor.key_set().has(c10::DispatchKey::ZeroTensor))) {
        refuse_without_memory(tensor);
    }
}

} // namespace fl_torch
