// alias.cpp: see alias.h. Models make more views than anything else, and TensorImpl's own way to
// sizes and strides goes over them four times.
//
// Relies on the layout of c10::TensorImpl's protected fields, as shadow.cpp does.
#include "alias.h"

#include <c10/core/StorageImpl.h>

namespace fl_torch {

namespace {

// A window on the protected fields of tensors that are not ours to derive.
struct Fields : c10::TensorImpl {
    // False where their product overflows. The tensor is fresh: its flags are those of a contiguous
    // one without a memory format.
    bool lay_out(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
        const size_t dims = sizes.size();
        sizes_and_strides_.resize(dims);
        int64_t *const own_sizes = sizes_and_strides_.sizes_data();
        int64_t *const own_strides = sizes_and_strides_.strides_data();
        int64_t count = 1;
        bool contiguous = true;
        for (size_t dim = dims; dim-- > 0;) {
            const int64_t size = sizes[dim], stride = strides[dim];
            own_sizes[dim] = size;
            own_strides[dim] = stride;
            contiguous &= size == 1 || stride == count;
            if (C10_UNLIKELY(__builtin_mul_overflow(count, size, &count))) {
                return false;
            }
        }
        numel_ = count;
        storage_offset_ = offset;
        if (!contiguous || dims == 4 || dims == 5) { // Others have no memory format.
            refresh_contiguous();
        }
        return true;
    }
};

} // namespace

at::Tensor alias_of(const at::Tensor &base, at::IntArrayRef sizes, at::IntArrayRef strides,
                    int64_t offset) {
    const c10::TensorImpl &impl = *base.unsafeGetTensorImpl();
    at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(impl.unsafe_storage()), impl.key_set(), impl.dtype());
    auto *const made = static_cast<Fields *>(result.unsafeGetTensorImpl());
    if (C10_UNLIKELY(!made->lay_out(sizes, strides, offset))) {
        made->set_sizes_and_strides(sizes, strides, offset); // It has the words for what is wrong.
    }
    return result;
}

} // namespace fl_torch
