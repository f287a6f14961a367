// late_free.h: memory that the caller frees while queued operators may still want it.
//
// An operator in the launch queue has the address of its operands. If the caller frees one, its
// memory must not go back to the allocator before the operator has been launched: an operator that
// was queued earlier could get it as its workspace and overwrite what the later one is to read.
// A reference to each storage in the slot would do, and would show: autograd adds up gradients in
// place only where nobody else holds their storage. So the memory's deleter waits instead.
//
// What waits may be the memory of a result that is queued after it was freed, for the same stream:
// in the worker as on the stream, the operator that writes it comes behind all that used it before.
// So results are mostly made without the twin's allocator, and a caller that runs ahead takes no
// more memory than one that does not.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace fl_torch {

// Look which deleter the twin's allocator has. Call before anything else here.
void watch_twin_memory();
// The same after something was put in front of that allocator, before it made anything for us.
void watch_twin_memory_anew();

// From now on `pointer`, which the twin's allocator made for this device, is freed late. A pointer
// with another deleter stays as it is.
void free_late(c10::DataPtr &pointer, c10::DeviceIndex device, size_t bytes);

// Whether it is: then an operator may be queued with its address alone.
bool is_freed_late(const c10::DataPtr &pointer, c10::DeviceIndex device);

// Whether it will be, or the twin's allocator made it before that: memory that nobody else has.
bool is_twin_made(const c10::DataPtr &pointer, c10::DeviceIndex device);

// Such a pointer with the deleter by which the twin's allocator knows its own. Owns nothing.
class AsTwinMade {
  public:
    AsTwinMade(const c10::DataPtr &pointer, c10::Device device);
    ~AsTwinMade() {
        (void)pointer_.release_context();
    }
    const c10::DataPtr &get() const {
        return pointer_;
    }

  private:
    c10::DataPtr pointer_;
};

// Memory that is freed late. Only what is written by an operator that is about to be queued may be
// what waits. `inner` is the twin's allocator.
enum class MemoryFor { kAnything, kQueuedResult };
c10::DataPtr take_memory(size_t bytes, c10::Allocator &inner, MemoryFor what);

// From now on this memory is not for other results: other streams than its own may use it.
void keep_from_results(const c10::DataPtr &pointer, c10::DeviceIndex device);

// Free what no queued operator wants any more, but for a small share that results may have. Runs no
// Python, as all of these.
void free_what_is_late() noexcept;
// Free all of it. After a drain nothing is left.
void give_back_all() noexcept;

// For the worker, of a result of the task that it runs: whether the caller freed it before it
// queued anything else, so that nobody can read it.
bool was_freed_at_once(const void *pointer, c10::DeviceIndex device);

// Call before `wanted` bytes are taken, where the queue is in use. Lets the worker catch up while
// what waits to be freed is more than a small share of what is in use, so that the peak of memory
// stays within that share of the peak without the queue.
void make_room(size_t wanted) noexcept;

} // namespace fl_torch
