// shadow.cpp: binding and write-back. See shadow.h for the rules.
//
// Relies on the layout of c10::TensorImpl's protected fields, which a derived class may read and
// write; nothing else of the adapter does.
#include "shadow.h"

#include "check.h"
#include "queue.h"
#include "shadow_index.h"
#include "special.h"

#include <c10/core/Allocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/MaybeOwned.h>

namespace fl_torch {

namespace {

// The allocator of a shadow's storage: whatever allocator the twin has when the callee resizes, for
// a user may exchange it at any time.
struct TwinAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        return c10::GetAllocator(twin.type)->allocate(bytes);
    }
    c10::DeleterFnPtr raw_deleter() const override {
        return c10::GetAllocator(twin.type)->raw_deleter();
    }
    void copy_data(void *destination, const void *source, size_t bytes) const override {
        c10::GetAllocator(twin.type)->copy_data(destination, source, bytes);
    }
};

TwinAllocator &twin_allocator() {
    static auto *allocator = new TwinAllocator; // Outlives every storage, also at exit.
    return *allocator;
}

c10::DataPtr owning_pointer(void *pointer, const c10::Storage &owner, c10::Device device) {
    auto *keep = new c10::Storage(owner);
    return c10::DataPtr(
        pointer, keep, [](void *context) { delete static_cast<c10::Storage *>(context); }, device);
}

// Point a shadow's storage at memory that it does not own.
C10_ALWAYS_INLINE void point_at(c10::DataPtr &pointer, void *memory, c10::Device device) {
    // Without the move of a DataPtr, which looks for a deleter to call.
    if (C10_UNLIKELY(!pointer.unsafe_reset_data_and_ctx(memory))) {
        pointer = c10::DataPtr(memory, device);
    }
    pointer.unsafe_set_device(device);
}

} // namespace

void copy_names(const c10::TensorImpl &from, c10::TensorImpl &to) {
    const c10::NamedTensorMetaInterface *const names = from.named_tensor_meta();
    if (names != nullptr) {
        to.set_named_tensor_meta(names->clone());
    } else if (to.has_named_tensor_meta()) {
        to.set_named_tensor_meta(nullptr);
    }
}

void copy_lazy_bits(const c10::TensorImpl &from, c10::TensorImpl &to) {
    to._set_conj(from.is_conj());
    to._set_neg(from.is_neg());
}

// --- one shadow -------------------------------------------------------------------------------

Shadow::Shadow(c10::Storage storage)
    : TensorImpl(c10::Storage(storage), twin.keys, caffe2::TypeMeta::Make<float>()),
      own_storage_(std::move(storage)) {}

at::Tensor Shadow::create() {
    // An inference tensor would have no version counter, and in-place operators count versions.
    c10::InferenceMode normal_mode(false);
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), 0,
        c10::DataPtr(nullptr, to_twin(c10::Device(kFlagos, 0))), &twin_allocator(),
        /*resizable=*/true);
    return at::Tensor(c10::make_intrusive<Shadow>(c10::Storage(std::move(storage))));
}

bool Shadow::use_count_is_one() const {
    return c10::raw::intrusive_ptr::use_count(const_cast<Shadow *>(this)) == 1;
}

C10_ALWAYS_INLINE void Shadow::bind_fields(const at::Tensor &tensor, bool written) {
    auto *const source = static_cast<Shadow *>(tensor.unsafeGetTensorImpl());
    original_ = &tensor;
    written_ = written;
    storage_only_ = false;
    sizes_and_strides_ = source->sizes_and_strides_;
    storage_offset_ = source->storage_offset_;
    numel_ = source->numel_;
    data_type_ = source->data_type_;
    device_opt_ = to_twin(*source->device_opt_);
    // All are read before any is written, so that the compiler makes one copy of the eight bits.
    const bool contiguous = source->is_contiguous_;
    const bool last = source->is_channels_last_;
    const bool last_contiguous = source->is_channels_last_contiguous_;
    const bool last_3d = source->is_channels_last_3d_;
    const bool last_3d_contiguous = source->is_channels_last_3d_contiguous_;
    const bool dense = source->is_non_overlapping_and_dense_;
    const bool number = source->is_wrapped_number_;
    is_contiguous_ = contiguous;
    is_channels_last_ = last;
    is_channels_last_contiguous_ = last_contiguous;
    is_channels_last_3d_ = last_3d;
    is_channels_last_3d_contiguous_ = last_3d_contiguous;
    is_non_overlapping_and_dense_ = dense;
    is_wrapped_number_ = number;
    key_set_ = to_shadow_keys(source->key_set_);
    if (C10_UNLIKELY(source->has_named_tensor_meta())) {
        copy_names(*source, *this);
    }
}

C10_ALWAYS_INLINE void Shadow::bind(const at::Tensor &tensor, bool written) {
    bind_fields(tensor, written);
    bind_memory(tensor, written);
    if (C10_UNLIKELY(bound_nbytes_ == 0)) {
        require_memory(*tensor.unsafeGetTensorImpl());
    }
}

void Shadow::bind_sharing(const at::Tensor &tensor, bool written, Shadow &lender) {
    require_memory(*tensor.unsafeGetTensorImpl());
    bind_fields(tensor, written);
    share_memory(written, lender);
}

void Shadow::bind_storage(const at::Tensor &tensor, bool written, Shadow *lender) {
    original_ = &tensor;
    written_ = written;
    storage_only_ = true;
    device_opt_ = to_twin(tensor.device());
    if (lender == nullptr) {
        bind_memory(tensor, written);
    } else {
        share_memory(written, *lender);
    }
}

void Shadow::record(const at::Tensor &tensor, bool written, Shadow *lender) {
    require_memory(*tensor.unsafeGetTensorImpl());
    bind_fields(tensor, written);
    if (lender == nullptr) {
        bind_memory(tensor, /*written=*/false); // No copy-on-write storage comes here.
    } else {
        share_memory(/*written=*/false, *lender);
    }
    original_ = nullptr;
    original_storage_ = nullptr;
}

C10_ALWAYS_INLINE void Shadow::bind_memory(const at::Tensor &tensor, bool written) {
    original_storage_ = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    c10::StorageImpl *const shown = own_storage_.unsafeGetStorageImpl();
    c10::StorageImpl *const source = original_storage_;
    if (C10_UNLIKELY(source == nullptr)) {
        bound_pointer_ = nullptr;
        bound_nbytes_ = 0;
    } else {
        // mutable_data materialises a copy-on-write storage, so that the callee writes to its own.
        bound_pointer_ = written ? source->mutable_data() : const_cast<void *>(source->data());
        bound_nbytes_ = source->nbytes();
        if (C10_UNLIKELY(shown->resizable() != source->resizable())) {
            shown->set_resizable(source->resizable());
        }
    }
    point_at(shown->_mutable_data_ptr_no_checks(), bound_pointer_, *device_opt_);
    shown->unsafe_set_nbytes(bound_nbytes_);
}

void Shadow::share_memory(bool written, Shadow &lender) {
    lender_ = lender.lender_;
    original_storage_ = lender_->original_storage_;
    storage_ = lender_->own_storage_;
    if (written) {
        lender_->mark_written();
        written_ = true;
    }
}

void Shadow::mark_written() {
    written_ = true;
    Shadow &lender = *lender_;
    if (lender.original_storage_ == nullptr) {
        return;
    }
    void *pointer = lender.original_storage_->mutable_data();
    if (pointer != lender.bound_pointer_) {
        lender.bound_pointer_ = pointer;
        lender.shown_storage()->_mutable_data_ptr_no_checks() =
            c10::DataPtr(pointer, *lender.device_opt_);
    }
}

// By hand: tensors have few dimensions, and a call for each list costs more than comparing it.
C10_ALWAYS_INLINE bool Shadow::has_layout_of(const c10::TensorImpl &original) const {
    const auto &other = static_cast<const Shadow &>(original);
    const c10::impl::SizesAndStrides &ours = sizes_and_strides_, &theirs = other.sizes_and_strides_;
    const size_t dims = ours.size();
    if (dims != theirs.size() || storage_offset_ != other.storage_offset_) {
        return false;
    }
    const int64_t *const our_sizes = ours.sizes_data(), *const our_strides = ours.strides_data();
    const int64_t *const sizes = theirs.sizes_data(), *const strides = theirs.strides_data();
    int64_t differs = 0;
    for (size_t dim = 0; dim < dims; dim++) {
        differs |= (our_sizes[dim] ^ sizes[dim]) | (our_strides[dim] ^ strides[dim]);
    }
    return differs == 0;
}

void Shadow::write_back(const ShadowFrame &frame) {
    c10::TensorImpl *const original = original_->unsafeGetTensorImpl();
    c10::StorageImpl *const shown = storage_.unsafeGetStorageImpl();
    Shadow &lender = *lender_;
    if (C10_UNLIKELY(shown != lender.own_storage_.unsafeGetStorageImpl())) {
        // The callee gave the operand another storage (set_ and its like). One that somebody else
        // holds keeps its label; the operand gets a storage that owns it.
        if (storage_.use_count() == 1) {
            shown->_mutable_data_ptr_no_checks().unsafe_set_device(original->device());
            shown->set_allocator(c10::GetAllocator(kFlagos));
            original->set_storage_keep_dtype(storage_);
        } else if (const c10::Storage *const moved = frame.moved_before(*this, shown)) {
            original->set_storage_keep_dtype(*moved); // Operands that share it go on sharing.
        } else {
            original->set_storage_keep_dtype(owning_storage(storage_, original->device()));
        }
    } else if (C10_UNLIKELY(shown->data() != lender.bound_pointer_ ||
                            shown->nbytes() != lender.bound_nbytes_)) {
        c10::DataPtr &slot = shown->_mutable_data_ptr_no_checks();
        c10::DataPtr moved = std::move(slot);
        lender.bound_pointer_ = moved.get();
        lender.bound_nbytes_ = shown->nbytes();
        slot = c10::DataPtr(lender.bound_pointer_, *device_opt_);
        moved.unsafe_set_device(original->device());
        original_storage_->set_data_ptr_noswap(std::move(moved));
        original_storage_->set_nbytes(lender.bound_nbytes_);
    }
    if (C10_UNLIKELY(!storage_only_ && !has_layout_of(*original))) {
        original->set_sizes_and_strides(sizes(), strides(), storage_offset());
    }
    constexpr c10::DispatchKeySet lazy{c10::DispatchKey::Conjugate, c10::DispatchKey::Negative};
    if (C10_UNLIKELY(!storage_only_ && !((key_set_ ^ original->key_set()) & lazy).empty())) {
        copy_lazy_bits(*this, *original); // linalg_lu_solve leaves a conjugate in out=.
    }
    if (C10_UNLIKELY(extra_meta_ != nullptr && !storage_only_)) {
        copy_names(*this, *original);
    }
}

void Shadow::show_autograd() {
    shows_autograd_ = true;
    bound_version_ = static_cast<uint32_t>(version_counter().current_version());
    if (!storage_only_ && !original_->is_inference()) {
        key_set_ = key_set_ | c10::getAutogradRelatedKeySetFromBackend(twin.backend);
    }
}

void Shadow::show_versions() {
    bound_version_ = static_cast<uint32_t>(version_counter().current_version());
    if (!storage_only_ && !original_->is_inference()) {
        key_set_ = key_set_ | c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
    }
}

void Shadow::return_versions() {
    const auto version = static_cast<uint32_t>(version_counter().current_version());
    for (; bound_version_ != version && !original_->is_inference(); bound_version_++) {
        original_->unsafeGetTensorImpl()->bump_version();
    }
}

bool Shadow::release_slow() {
    const bool alone = use_count_is_one();
    if (alone && !storage_.is_alias_of(own_storage_)) {
        storage_ = own_storage_;
    }
    lender_ = this;
    if (alone && own_storage_.use_count() == 2) {
        extra_meta_ = nullptr;
        if (shows_autograd_) {
            set_autograd_meta(nullptr);
            shows_autograd_ = false;
        }
        return true;
    }
    c10::StorageImpl *const shown = own_storage_.unsafeGetStorageImpl();
    if (original_storage_ != nullptr && shown->data() == bound_pointer_) {
        const c10::Storage &owner = original_->unsafeGetTensorImpl()->unsafe_storage();
        shown->_mutable_data_ptr_no_checks() = owning_pointer(bound_pointer_, owner, *device_opt_);
        note_known(owner, Known::kShared); // Whoever keeps the shadow does not wait for the queue.
    }
    return false;
}

at::Tensor wanting_gradient(const at::Tensor &shadow) {
    at::Tensor stand_in(shadow.unsafeGetTensorImpl()->shallow_copy_and_detach(
        c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
    // Not by Tensor::set_requires_grad, which takes a tensor without autograd's keys for one of
    // inference mode.
    auto meta = c10::impl::GetAutogradMetaFactory()->make();
    meta->set_requires_grad(true, stand_in.unsafeGetTensorImpl());
    stand_in.unsafeGetTensorImpl()->set_autograd_meta(std::move(meta));
    return stand_in;
}

c10::Storage owning_storage(const c10::Storage &inner, c10::Device device) {
    auto *const source = inner.unsafeGetStorageImpl();
    return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), source->nbytes(),
        owning_pointer(const_cast<void *>(source->data()), inner, device),
        c10::GetAllocator(device.type()), /*resizable=*/true));
}

// --- the shadows of one call ------------------------------------------------------------------

SpecialShadows &ShadowFrame::special() {
    if (special_ == nullptr) {
        special_ = new SpecialShadows;
    }
    return *special_;
}

// Enter what is shown in the index, with which all that follows is looked for.
void ShadowFrame::make_index(size_t more) {
    index_ = state_.index ? state_.index.release() : new ShadowIndex;
    index_->begin(state_.top - base_ + more);
    for (uint32_t i = base_; i < state_.top; i++) {
        const Shadow &shadow = state_.shadow(i);
        index_->enter(shadow.original().unsafeGetTensorImpl(), shadow.original_storage(), i,
                      state_);
    }
    seen_ = ~uint64_t{0};
}

// What is shown already is written after all.
void ShadowFrame::mark_written(uint32_t slot) {
    written_end_ = std::max(written_end_, slot + 1);
    if (!state_.shadow(slot).written()) {
        state_.shadow(slot).mark_written();
    }
}

C10_ALWAYS_INLINE ThreadState::Slot *ShadowFrame::find_indexed(const at::Tensor &tensor,
                                                               bool written, Shadow *&lender) {
    const c10::TensorImpl *const impl = tensor.unsafeGetTensorImpl();
    const c10::StorageImpl *const storage = impl->unsafe_storage().unsafeGetStorageImpl();
    const ShadowIndex::Found found = index_->enter(impl, storage, state_.top, state_);
    if (C10_LIKELY(found.same == ShadowIndex::kNone && found.sharing == ShadowIndex::kNone)) {
        return nullptr;
    }
    if (found.same == ShadowIndex::kNone) {
        lender = &state_.shadow(found.sharing);
        return nullptr;
    }
    if (written) {
        mark_written(found.same);
    }
    return &state_.slot(found.same);
}

// The shadow of a tensor that was shown before, or nullptr; then `lender` shows its storage, or is
// nullptr too.
ThreadState::Slot *ShadowFrame::find_shown(const at::Tensor &tensor, bool written,
                                           Shadow *&lender) {
    if (C10_UNLIKELY(index_ == nullptr && state_.top - base_ >= ShadowIndex::kFew)) {
        make_index(1);
    }
    if (C10_UNLIKELY(index_ != nullptr)) {
        return find_indexed(tensor, written, lender);
    }
    const c10::TensorImpl *const impl = tensor.unsafeGetTensorImpl();
    const c10::StorageImpl *const storage = impl->unsafe_storage().unsafeGetStorageImpl();
    for (uint32_t i = base_; i < state_.top; i++) {
        Shadow &shadow = state_.shadow(i);
        if (shadow.original().unsafeGetTensorImpl() == impl) {
            if (written) {
                mark_written(i);
            }
            return &state_.slot(i);
        }
        if (C10_UNLIKELY(storage != nullptr && shadow.original_storage() == storage)) {
            lender = &shadow;
        }
    }
    return nullptr;
}

C10_ALWAYS_INLINE void ShadowFrame::make_room() {
    if (C10_UNLIKELY(state_.top == state_.capacity)) {
        state_.grow();
    }
}

C10_ALWAYS_INLINE ThreadState::Slot &ShadowFrame::bind_next(const at::Tensor &tensor, bool written,
                                                            Shadow *lender) {
    make_room();
    ThreadState::Slot &slot = state_.slot(state_.top);
    Shadow &shadow = *static_cast<Shadow *>(slot->unsafeGetTensorImpl());
    if (C10_LIKELY(lender == nullptr)) {
        shadow.bind(tensor, written);
    } else {
        shadow.bind_sharing(tensor, written, *lender);
    }
    state_.top++;
    written_end_ = written ? state_.top : written_end_;
    return slot;
}

template <bool kStorageOnly>
C10_ALWAYS_INLINE ThreadState::Slot &ShadowFrame::show_plain(const at::Tensor &tensor,
                                                             bool written) {
    if constexpr (kStorageOnly) {
        drain_queue();
    }
    const c10::TensorImpl *const impl = tensor.unsafeGetTensorImpl();
    const uint64_t bit = ShadowIndex::bit_of(impl, impl->unsafe_storage().unsafeGetStorageImpl());
    Shadow *lender = nullptr;
    if (C10_LIKELY((seen_ & bit) == 0 && state_.top - base_ < ShadowIndex::kFew)) {
        seen_ |= bit;
    } else if (ThreadState::Slot *const found = find_shown(tensor, written, lender)) {
        return *found;
    }
    if constexpr (kStorageOnly) {
        make_room();
        state_.shadow(state_.top).bind_storage(tensor, written, lender);
        state_.top++;
        written_end_ = written ? state_.top : written_end_;
        return state_.slot(state_.top - 1);
    } else {
        return bind_next(tensor, written, lender);
    }
}

ThreadState::Slot &ShadowFrame::show_lvalue(const at::Tensor &tensor, bool written) {
    drain_queue(); // What is shown is about to be read or written by somebody who does not queue.
    if (C10_UNLIKELY(is_special(tensor.unsafeGetTensorImpl()->key_set()))) {
        return special().show(*this, tensor, written);
    }
    return show_plain<false>(tensor, written);
}

template ThreadState::Slot &ShadowFrame::show_plain<true>(const at::Tensor &, bool);

void ShadowFrame::show_list(at::TensorList tensors, bool written, at::Tensor *out) {
    using Borrowed = c10::MaybeOwnedTraits<at::Tensor>;
    drain_queue();
    if (index_ == nullptr && state_.top - base_ + tensors.size() > ShadowIndex::kFew) {
        make_index(tensors.size());
    }
    const bool few = index_ == nullptr;
    for (const at::Tensor &tensor : tensors) {
        const at::Tensor *shown = &tensor;
        if (C10_LIKELY(needs_shadow(tensor))) {
            Shadow *lender = nullptr;
            if (C10_UNLIKELY(few || is_special(tensor.unsafeGetTensorImpl()->key_set()))) {
                shown = &*show_lvalue(tensor, written);
            } else if (ThreadState::Slot *const found = find_indexed(tensor, written, lender)) {
                shown = &**found;
            } else {
                shown = &*bind_next(tensor, written, lender);
            }
        }
        new (out++) at::Tensor(Borrowed::createBorrow(*shown));
    }
}

void ShadowFrame::show_autograd() {
    counts_ = Counts::kAll;
    for (uint32_t i = base_; i < state_.top; i++) {
        state_.shadow(i).show_autograd();
    }
}

void ShadowFrame::show_versions() {
    counts_ = Counts::kWritten;
    each_written([](Shadow &shadow) { shadow.show_versions(); });
}

void ShadowFrame::return_versions() {
    if (counts_ == Counts::kAll) {
        for (uint32_t i = base_; i < state_.top; i++) {
            state_.shadow(i).return_versions();
        }
    } else {
        return_versions_of_written();
    }
    counts_ = Counts::kNothing;
}

void ShadowFrame::return_versions_of_written() {
    each_written([](Shadow &shadow) { shadow.return_versions(); });
}

void ShadowFrame::commit_special() {
    special_->write_back(*this);
}

void ShadowFrame::release() {
    if (C10_UNLIKELY(counts_ != Counts::kNothing)) {
        return_versions_of_written();
    }
    if (C10_UNLIKELY(special_ != nullptr)) {
        special_->drop();
    }
    // From the top down, so that a shadow that shares gives its storage back before the lender
    // looks who else holds it.
    while (state_.top != base_) {
        state_.top--;
        if (C10_UNLIKELY(!state_.shadow(state_.top).release())) {
            state_.slot(state_.top) = Shadow::create();
        }
    }
    if (C10_UNLIKELY(index_ != nullptr)) {
        state_.index.reset(index_);
        index_ = nullptr;
    }
    if (C10_UNLIKELY(special_ != nullptr)) {
        delete special_;
        special_ = nullptr;
    }
}

const at::Tensor &ShadowFrame::original_of(const at::Tensor &result) const {
    for (uint32_t i = base_; i < state_.top; i++) {
        if (&state_.shadow(i) == result.unsafeGetTensorImpl()) {
            return state_.shadow(i).original();
        }
    }
    if (special_ != nullptr) {
        if (const at::Tensor *original = special_->original_of(result)) {
            return *original;
        }
    }
    return result;
}

const at::Tensor *ShadowFrame::lender_of(const c10::StorageImpl *storage) const {
    for (uint32_t i = base_; storage != nullptr && i < state_.top; i++) {
        if (state_.shadow(i).shown_storage() == storage) {
            return &state_.shadow(i).original();
        }
    }
    return nullptr;
}

const c10::Storage *ShadowFrame::moved_before(const Shadow &shadow,
                                              const c10::StorageImpl *storage) const {
    for (uint32_t i = base_; i < state_.top && &state_.shadow(i) != &shadow; i++) {
        const Shadow &other = state_.shadow(i);
        if (other.written() && other.storage().unsafeGetStorageImpl() == storage) {
            return &other.original().unsafeGetTensorImpl()->unsafe_storage();
        }
    }
    return nullptr;
}

at::QuantizerPtr ShadowFrame::quantizer_behind(const at::QuantizerPtr &shown) const {
    return special_ == nullptr ? nullptr : special_->quantizer_behind(shown);
}

} // namespace fl_torch
