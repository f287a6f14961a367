// ending.cpp: see ending.h. Knows nothing of Python but that it kills threads.
#include "ending.h"

#include <exception>
#include <mutex>
#include <thread>

#include <unistd.h>

namespace fl_torch {

namespace {

std::thread::id ending_thread;
std::terminate_handler previous_handler;

[[noreturn]] void sleep_or_terminate() {
    // A thread that is killed has no exception; whatever else ends here is a real failure.
    if (std::current_exception() == nullptr && std::this_thread::get_id() != ending_thread) {
        for (;;) {
            pause();
        }
    }
    previous_handler();
    std::terminate(); // A handler may not return.
}

} // namespace

void process_is_ending() {
    static std::once_flag once;
    std::call_once(once, [] {
        ending_thread = std::this_thread::get_id();
        previous_handler = std::get_terminate();
        std::set_terminate(&sleep_or_terminate);
    });
}

} // namespace fl_torch
