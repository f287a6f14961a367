// shadow.h: how a flagos tensor is shown to its twin for the length of one call, and how what comes
// back becomes flagos again. The one place that knows this.
//
// A shadow is a tensor object of the twin's device that borrows a flagos tensor's pointer, sizes,
// strides, offset, dtype and lazy bits. Nothing that a caller can see is ever written to, so that
// any number of threads may use one tensor at once. Shadows live on a stack of the calling thread,
// are rebound for each call, and neither touch a reference count nor the heap in the common case.
//
// Shadows of tensors that share a storage share a storage too, so that the twin's checks for
// overlapping operands see what they would see natively.
#pragma once

#include "twin.h"

#include "fl/route.h"

#include <ATen/core/QuantizerBase.h>
#include <ATen/core/Tensor.h>

#include <memory>
#include <type_traits>
#include <vector>

namespace fl_torch {

class ShadowFrame;

class Shadow final : public c10::TensorImpl {
  public:
    // An unbound shadow. Its owner is the stack's slot.
    static at::Tensor create();

    // Show `tensor`, which must be dense and live until release.
    void bind(const at::Tensor &tensor, bool written);
    // The same, on the storage of `lender`, whose tensor shares its storage with `tensor`.
    void bind_sharing(const at::Tensor &tensor, bool written, Shadow &lender);
    // Show only the memory of `tensor`, which a plain tensor cannot show: whoever asked puts an
    // object of the right kind on this shadow's storage and sees to sizes himself. `lender` may be
    // nullptr.
    void bind_storage(const at::Tensor &tensor, bool written, Shadow *lender);

    // Show `tensor` to a call that another thread makes later, when the tensor may be gone: whoever
    // records sees to it that the memory is not. `lender` shows the same storage, or is nullptr.
    void record(const at::Tensor &tensor, bool written, Shadow *lender);

    // Give back what binding took besides plain fields. Afterwards the shadow may be bound again,
    // unless the callee kept it or a view of it: then `false` says that the slot needs a new one,
    // and the kept one owns the original's storage.
    bool release() {
        // Two holders of the storage are the shadow itself; more, or fewer, is another story.
        // Names, and what else few tensors have, the callee may have given where the original had
        // none.
        if (C10_LIKELY(use_count_is_one() && own_storage_.use_count() == 2 && !extra_meta_ &&
                       !shows_autograd_)) {
            return true;
        }
        return release_slow();
    }

    // Write sizes, strides, offset, names and a replaced storage back to the original. Does nothing
    // where the callee changed none of them. `frame` is the one it is in.
    void write_back(const ShadowFrame &frame);

    // Take the original's keys of autograd too, and count what is written. Without them a shadow
    // looks like an inference tensor, which kernels that run below autograd do not ask.
    void show_autograd();
    // Only count what is written.
    void show_versions();
    // Count for the original what the callee counted since.
    void return_versions();

    const at::Tensor &original() const {
        return *original_;
    }
    c10::StorageImpl *original_storage() const {
        return original_storage_;
    }
    c10::StorageImpl *shown_storage() const {
        return storage_.unsafeGetStorageImpl();
    }
    bool written() const {
        return written_;
    }
    // Written names of dimensions, and what else few tensors have.
    bool has_names() const {
        return written_ && extra_meta_ != nullptr;
    }
    void mark_written();

    explicit Shadow(c10::Storage storage);

  private:
    void bind_fields(const at::Tensor &tensor, bool written);
    void bind_memory(const at::Tensor &tensor, bool written);
    void share_memory(bool written, Shadow &lender);
    bool has_layout_of(const c10::TensorImpl &original) const;
    bool release_slow();
    bool use_count_is_one() const;

    c10::Storage own_storage_; // What storage_ goes back to after sharing or replacement.
    const at::Tensor *original_ = nullptr; // Borrowed for the call.
    c10::StorageImpl *original_storage_ = nullptr;
    void *bound_pointer_ = nullptr; // To see whether the callee replaced the memory.
    size_t bound_nbytes_ = 0;
    Shadow *lender_ = this;      // Whose storage is shown: this shadow's own, unless bound sharing.
    uint32_t bound_version_ = 0; // This shadow's own count when it began to count for its original.
    bool written_ = false;
    bool storage_only_ = false;
    bool shows_autograd_ = false; // The callee may have given it a gradient or made it want one.
};

class ShadowIndex;
class SpecialShadows;

// Per-thread state of the adapter, reached through one initial-exec TLS load: of __thread, because
// whoever reads a thread_local of another file looks first whether it wants to be initialised.
struct ThreadState {
    // Engaged optionals, so that a slot serves as `const Tensor&`, `Tensor&` and
    // `const std::optional<Tensor>&` without copying a handle.
    using Slot = std::optional<at::Tensor>;
    static constexpr uint32_t kChunk = 64;

    ThreadState();
    ~ThreadState();

    std::vector<std::unique_ptr<Slot[]>> chunks;
    uint32_t top = 0;
    uint32_t capacity = 0; // Slots in all chunks.
    fl_tally *tally = nullptr;
    std::unique_ptr<ShadowIndex> index; // Null while a frame of this thread uses it.

    Slot &slot(uint32_t index) {
        return chunks[index / kChunk][index % kChunk];
    }
    Shadow &shadow(uint32_t index) {
        return *static_cast<Shadow *>(slot(index)->unsafeGetTensorImpl());
    }
    void grow();
};

extern __attribute__((tls_model("initial-exec"))) __thread ThreadState *t_thread_state;
ThreadState &make_thread_state();

inline ThreadState &thread_state() {
    ThreadState *state = t_thread_state;
    return C10_LIKELY(state != nullptr) ? *state : make_thread_state();
}

// The shadows of one call. Frames nest; each releases its own shadows when it ends, also after an
// exception, and every operand is then as it was before.
class ShadowFrame {
  public:
    ShadowFrame() : state_(thread_state()), base_(state_.top) {}
    ShadowFrame(const ShadowFrame &) = delete;
    ShadowFrame &operator=(const ShadowFrame &) = delete;
    ~ShadowFrame() {
        if (state_.top != base_ || C10_UNLIKELY(special_ != nullptr)) {
            release();
        }
    }

    // What to pass to the twin in place of `tensor`: its shadow, or itself when it is no flagos
    // tensor. A temporary is refused at compile time: the frame keeps a pointer to it.
    template <class T>
    ThreadState::Slot &show(T &&tensor, bool written) {
        static_assert(std::is_lvalue_reference_v<T>,
                      "a shadow borrows its tensor until the frame ends: bind a variable, not a "
                      "temporary");
        return show_lvalue(tensor, written);
    }

    // The same for a list, which is to live as long: `out`, with room for as many, gets handles
    // that hold no reference and need no destructor.
    void show_list(at::TensorList tensors, bool written, at::Tensor *out);

    // The twin's storage on the memory of `tensor`, for tensors that a plain shadow cannot show.
    template <class T>
    const c10::Storage &show_storage(T &&tensor, bool written) {
        static_assert(std::is_lvalue_reference_v<T>, "bind a variable, not a temporary");
        return show_plain<true>(tensor, written)->unsafeGetTensorImpl()->unsafe_storage();
    }

    // Whether `tensor` needs a shadow at all.
    static bool needs_shadow(const at::Tensor &tensor) {
        return tensor.defined() &&
               tensor.unsafeGetTensorImpl()->device_type() == kFlagos; // device_type reads one byte
    }

    // Show what has been shown as it is above autograd, to a callee that may call any operator on
    // it as a user would; after the call, return_versions.
    void show_autograd();
    // Show it to a callee that counts the versions of what it writes, and of nothing else, itself
    // or by the operators that it calls; likewise.
    void show_versions();
    // Without it, because the callee raised, only what it may write is counted: of other operands
    // it has changed no more than the shadow.
    void return_versions();

    // Write back what the callee changed of written operands. Call once, after the call returned.
    void commit() {
        write_back_if([](const Shadow &) { return true; });
    }
    // The same after a callee that changes no more than values and names (writes_values_only).
    void commit_values() {
        write_back_if([](const Shadow &shadow) { return C10_UNLIKELY(shadow.has_names()); });
    }

    // Make results flagos tensors: a shadow becomes its original, a view of a shadow a view of the
    // original, a fresh tensor is relabelled, a tensor that somebody else holds is wrapped. Tensors
    // of other devices than the twin's stay as they are. `results` points to handles that the
    // caller owns.
    void adopt(at::Tensor *const *results, size_t count);
    void adopt(at::Tensor &result);

    // The caller's tensor behind a reference that the callee returned.
    const at::Tensor &original_of(const at::Tensor &result) const;

    // The caller's tensor whose memory was shown to the callee as `storage`; nullptr if none was.
    const at::Tensor *lender_of(const c10::StorageImpl *storage) const;

    // The storage of the operand before `shadow` that the callee moved to `storage` as well;
    // nullptr if there is none.
    const c10::Storage *moved_before(const Shadow &shadow, const c10::StorageImpl *storage) const;

    // The quantizer of the operand that was shown with `shown`, or null.
    at::QuantizerPtr quantizer_behind(const at::QuantizerPtr &shown) const;

    ThreadState &state() {
        return state_;
    }

  private:
    ThreadState::Slot &show_lvalue(const at::Tensor &tensor, bool written);
    template <bool kStorageOnly>
    ThreadState::Slot &show_plain(const at::Tensor &tensor, bool written);
    ThreadState::Slot *find_shown(const at::Tensor &tensor, bool written, Shadow *&lender);
    ThreadState::Slot *find_indexed(const at::Tensor &tensor, bool written, Shadow *&lender);
    ThreadState::Slot &bind_next(const at::Tensor &tensor, bool written, Shadow *lender);
    void make_room();
    void make_index(size_t more);
    SpecialShadows &special();

    template <class Visit>
    void each_written(const Visit &visit) {
        for (uint32_t i = base_; i < written_end_; i++) {
            Shadow &shadow = state_.shadow(i);
            if (shadow.written()) {
                visit(shadow);
            }
        }
    }
    template <class Predicate>
    void write_back_if(const Predicate &is_such) {
        each_written([&](Shadow &shadow) {
            if (is_such(shadow)) {
                shadow.write_back(*this);
            }
        });
        if (C10_UNLIKELY(special_ != nullptr)) {
            commit_special();
        }
    }
    // Adopts what nobody else holds and what was shown; false for anything else.
    bool adopt_alone(at::Tensor &result);
    void adopt_shared(at::Tensor *const *results, size_t count);
    void commit_special();
    void release();

    enum class Counts : uint8_t { kNothing, kWritten, kAll }; // Versions, of which shadows.
    void return_versions_of_written();
    void mark_written(uint32_t slot);

    ThreadState &state_;
    const uint32_t base_;
    uint32_t written_end_ = 0; // No slot from here on is shown as written.
    Counts counts_ = Counts::kNothing;
    uint64_t seen_ = 0; // A bit of each storage that is shown; many have the same.
    // What few calls need. The index over many shadows (lists of parameters), the thread's; and the
    // shadows of tensors that hold other tensors (sparse, quantized, nested), owned by the frame.
    ShadowIndex *index_ = nullptr;
    SpecialShadows *special_ = nullptr;
};

// Names of dimensions, or that there are none: kernels read them from operands and write them to
// results.
void copy_names(const c10::TensorImpl &from, c10::TensorImpl &to);

// Whether memory holds the conjugate or the negative: a kernel may leave either in out= and say so.
void copy_lazy_bits(const c10::TensorImpl &from, c10::TensorImpl &to);

// Give a tensor that only this call holds the flagos label: tensor, storage and keys.
void relabel(c10::TensorImpl *impl);

// Give a tensor that nobody else holds yet these keys and this device.
void set_label(c10::TensorImpl *impl, c10::DispatchKeySet keys, c10::Device device);

// A stand-in for a shadow, of any kind, that says that it wants a gradient, as its original does;
// for kernels that ask. Dispatch below autograd does not care.
at::Tensor wanting_gradient(const at::Tensor &shadow);

// A storage on the memory of `inner`, which it keeps alive, labelled `device`.
c10::Storage owning_storage(const c10::Storage &inner, c10::Device device);

} // namespace fl_torch
