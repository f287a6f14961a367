// errors.cpp: see errors.h and check.h. Rewrites texts only; the class of an exception is kept,
// because people catch by class.
#include "errors.h"

#include "check.h"
#include "twin.h"

#include <c10/util/Exception.h>

#include <string>

namespace fl_torch {

namespace {

// Classes that PyTorch's Python side tells apart, most derived first where they derive from each
// other.
#define FL_ERROR_CLASSES(X)          \
    X(c10::OutOfMemoryError)         \
    X(c10::LinAlgError)              \
    X(c10::IndexError)               \
    X(c10::ValueError)               \
    X(c10::TypeError)                \
    X(c10::NotImplementedError)      \
    X(c10::EnforceFiniteError)       \
    X(c10::OnnxfiBackendSystemError) \
    X(c10::DistBackendError)

template <class E>
[[noreturn]] void raise_as(const c10::Error &error, std::string text) {
    throw E(std::move(text), error.backtrace(), error.caller());
}

bool replace_all(std::string &text, const std::string &from, const std::string &to) {
    bool changed = false;
    for (size_t at = text.find(from); at != std::string::npos;
         at = text.find(from, at + to.size())) {
        text.replace(at, from.size(), to);
        changed = true;
    }
    return changed;
}

// A device name counts when it stands alone: "cuda:0", not the "cuda" of "cudaMalloc".
bool rewrite(std::string &text) {
    if (twin.is_host) {
        return false; // "cpu" in a message may well mean the user's own CPU tensor.
    }
    bool changed = replace_all(text, "cuda:", "flagos:");
    changed |= replace_all(text, "device type cuda", "device type flagos");
    changed |= replace_all(text, "'cuda'", "'flagos'");
    return changed;
}

} // namespace

void rethrow_in_user_words(const char *op_name) {
    (void)op_name;
    try {
        throw;
    } catch (const c10::Error &error) {
        std::string text = error.msg();
        if (!rewrite(text)) {
            throw;
        }
#define FL_TRY_CLASS(E)                               \
    if (dynamic_cast<const E *>(&error) != nullptr) { \
        raise_as<E>(error, std::move(text));          \
    }
        FL_ERROR_CLASSES(FL_TRY_CLASS)
#undef FL_TRY_CLASS
        if (typeid(error) != typeid(c10::Error)) {
            throw; // A class that carries more than a text keeps its own words.
        }
        raise_as<c10::Error>(error, std::move(text));
    }
}

void raise_status(fl_status status) {
    const char *text = fl_last_message();
    switch (status) {
    case FL_OUT_OF_MEMORY:
        TORCH_CHECK_WITH(OutOfMemoryError, false, text);
        break;
    case FL_OUT_OF_RANGE:
        TORCH_CHECK(false, text);
        break;
    case FL_NOT_SUPPORTED:
        TORCH_CHECK_NOT_IMPLEMENTED(false, text);
        break;
    case FL_INVALID_ARGUMENT:
        TORCH_CHECK_VALUE(false, text);
        break;
    default:
        break;
    }
    TORCH_CHECK(false, text);
}

} // namespace fl_torch
