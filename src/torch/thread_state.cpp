// thread_state.cpp: the stack of shadows of each thread, from the thread's first call to its end.
// Knows nothing of what shadows show.
#include "shadow_index.h"

namespace fl_torch {

__thread ThreadState *t_thread_state = nullptr;

ThreadState::ThreadState() = default;
ThreadState::~ThreadState() = default;

ThreadState &make_thread_state() {
    struct Holder {
        ThreadState state;
        ~Holder() {
            t_thread_state = nullptr;
        }
    };
    static thread_local std::unique_ptr<Holder> holder;
    // Code that runs after this thread's destructors (late Python threads at exit) gets a state
    // that is never freed.
    static thread_local bool ended = false;
    struct Mark {
        ~Mark() {
            ended = true;
        }
    };
    ThreadState *state = nullptr;
    if (ended) {
        state = new ThreadState;
    } else {
        static thread_local Mark mark;
        (void)mark;
        holder = std::make_unique<Holder>();
        state = &holder->state;
    }
    state->tally = fl_tally_self();
    state->grow();
    t_thread_state = state;
    return *state;
}

void ThreadState::grow() {
    auto chunk = std::make_unique<Slot[]>(kChunk);
    for (uint32_t i = 0; i < kChunk; i++) {
        chunk[i] = Shadow::create();
    }
    chunks.push_back(std::move(chunk));
    capacity += kChunk;
}

} // namespace fl_torch
