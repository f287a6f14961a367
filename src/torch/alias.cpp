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
    // Elements that the storage must have at least; negative where that cannot be told. The tensor
    // is fresh: its flags are those of a contiguous one without a memory format.
    C10_ALWAYS_INLINE int64_t lay_out(at::IntArrayRef sizes, at::IntArrayRef strides,
                                      int64_t offset) {
        const size_t dims = sizes.size();
        sizes_and_strides_.resize(dims);
        int64_t *const own_sizes = sizes_and_strides_.sizes_data();
        int64_t *const own_strides = sizes_and_strides_.strides_data();
        int64_t count = 1, last = offset, elements = 0, negative = offset;
        bool contiguous = true, overflows = false;
        for (size_t dim = dims; dim-- > 0;) {
            const int64_t size = sizes[dim], stride = strides[dim];
            int64_t reach = 0;
            own_sizes[dim] = size;
            own_strides[dim] = stride;
            contiguous &= size == 1 || stride == count;
            negative |= size | stride;
            overflows |= __builtin_mul_overflow(count, size, &count);
            overflows |= __builtin_mul_overflow(size - 1, stride, &reach);
            overflows |= __builtin_add_overflow(last, reach, &last);
        }
        overflows |= __builtin_add_overflow(last, 1, &elements);
        numel_ = count;
        storage_offset_ = offset;
        if (C10_UNLIKELY(overflows || negative < 0)) {
            return -1;
        }
        if (!contiguous || dims == 4 || dims == 5) { // Others have no memory format.
            refresh_contiguous();
        }
        return count == 0 ? 0 : elements;
    }
};

at::Tensor on_storage_of(const c10::TensorImpl &base) {
    return at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(base.unsafe_storage()), base.key_set(), base.dtype());
}

} // namespace

at::Tensor alias_of(const at::Tensor &base, at::IntArrayRef sizes, at::IntArrayRef strides,
                    int64_t offset) {
    at::Tensor result = on_storage_of(*base.unsafeGetTensorImpl());
    (void)static_cast<Fields *>(result.unsafeGetTensorImpl())->lay_out(sizes, strides, offset);
    return result;
}

at::Tensor alias_within(const at::Tensor &base, at::IntArrayRef sizes, at::IntArrayRef strides,
                        int64_t offset) {
    const c10::TensorImpl &impl = *base.unsafeGetTensorImpl();
    at::Tensor result = on_storage_of(impl);
    const int64_t elements =
        static_cast<Fields *>(result.unsafeGetTensorImpl())->lay_out(sizes, strides, offset);
    size_t bytes = 0;
    if (C10_UNLIKELY(elements < 0 || __builtin_mul_overflow(elements, impl.itemsize(), &bytes) ||
                     bytes > impl.unsafe_storage().nbytes())) {
        return {};
    }
    return result;
}

} // namespace fl_torch
