// errors.cpp: see errors.h and check.h. Rewrites texts only; the class of an exception is kept,
// because people catch by class.
#include "errors.h"

#include "check.h"
#include "twin.h"

#include "fl/device.h"
#include "fl/driver.h"
#include "fl/route.h"

#include <c10/util/Exception.h>

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <sstream>
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

bool contains(const std::string &text, const char *part) {
    return text.find(part) != std::string::npos;
}

// What PyTorch says where it means the device of the caller's tensors. A device name counts when it
// stands alone: "cuda:0", not the "cuda" of "cudaMalloc".
constexpr struct {
    const char *twins, *users;
} kWords[] = {
    {"cuda:", "flagos:"},
    {"device type cuda", "device type flagos"},
    {"'cuda'", "'flagos'"},
    {"torch.cuda.", "torch.flagos."},
    {"on CUDA tensors", "on flagos tensors"},
    {"a CUDA tensor", "a flagos tensor"},
    {"to be CUDA,", "to be on flagos,"},
};

// Operands on two devices: the kernel's own name and an assertion of its source say nothing to
// somebody who called an operator.
bool name_operands(std::string &text, const char *op_name) {
    const char *const method = " in method wrapper_CUDA";
    if (const size_t at = text.find(method); at != std::string::npos) {
        text.replace(at, text.find(')', at) - at, std::string(" of ") + op_name);
        return true;
    }
    const char *const asserted = "expected a CUDA device but found ";
    if (const size_t at = text.find(asserted); at != std::string::npos) {
        text = "Expected all tensors to be on the same device, but an operand of " +
               std::string(op_name) + " is on " + text.substr(at + strlen(asserted)) +
               "; move it with .to()";
        return true;
    }
    if (contains(text, "found at least two devices") && !contains(text, "(when ")) {
        text += std::string(" (when calling ") + op_name + "; move one of them with .to())";
        return true;
    }
    return false;
}

// "CUDAFloatType", which PyTorch's Python side would turn into "torch.cuda.FloatTensor".
bool name_types(std::string &text) {
    const std::string before = "CUDA", after = "Type";
    bool changed = false;
    for (size_t at = text.find(before); at != std::string::npos; at = text.find(before, at + 1)) {
        size_t end = at + before.size();
        while (end < text.size() && std::isalnum(static_cast<unsigned char>(text[end])) != 0 &&
               text.compare(end, after.size(), after) != 0) {
            end++;
        }
        if (end > at + before.size() && text.compare(end, after.size(), after) == 0) {
            const std::string dtype = text.substr(at + before.size(), end - at - before.size());
            text.replace(at, end + after.size() - at, "torch.flagos." + dtype + "Tensor");
            changed = true;
        }
    }
    return changed;
}

bool rename_device(std::string &text, const char *op_name) {
    if (twin.is_host) {
        return false; // "cpu" in a message may well mean the user's own CPU tensor.
    }
    bool changed = name_operands(text, op_name);
    changed |= name_types(text);
    for (const auto &word : kWords) {
        changed |= replace_all(text, word.twins, word.users);
    }
    if (contains(text, "CUDA out of memory")) {
        replace_all(text, "CUDA out of memory", "flagos out of memory");
        changed |= replace_all(text, " GPU ", " flagos:");
    }
    return changed;
}

// The host's allocator fails with a plain error that names itself.
bool is_out_of_host_memory(const std::string &text) {
    return twin.is_host && contains(text, "DefaultCPUAllocator: ") &&
           (contains(text, "allocate memory") || contains(text, "not enough memory"));
}

std::string gibibytes(uint64_t bytes) {
    std::ostringstream text;
    text << std::fixed << std::setprecision(2) << static_cast<double>(bytes) / (1 << 30) << " GiB";
    return text.str();
}

std::string out_of_host_memory(const std::string &text) {
    std::ostringstream words;
    words << "flagos out of memory. Tried to allocate ";
    const char *const before = "you tried to allocate ";
    const size_t at = text.find(before);
    const uint64_t asked = at == std::string::npos
                               ? 0
                               : std::strtoull(text.c_str() + at + strlen(before), nullptr, 10);
    if (asked != 0) {
        words << gibibytes(asked);
    } else {
        words << "memory";
    }
    words << " on flagos:0. ";
    uint64_t free_bytes = 0, total_bytes = 0;
    if (fl_device_memory_info(0, &free_bytes, &total_bytes) == FL_OK) {
        words << "The device has " << gibibytes(total_bytes) << " in total, of which "
              << gibibytes(free_bytes) << " are free. ";
    }
    words << "Its memory is the host's, whose allocator counts neither what is allocated nor what "
             "is reserved; smaller batches or a smaller dtype help.";
    return words.str();
}

// A kernel without the dtype: say which way the operator went, since another one may have it.
bool name_routes(std::string &text, const char *op_name) {
    fl_slot *slot = nullptr;
    if (!contains(text, "not implemented for") || contains(text, "(flagos: ") ||
        fl_slot_get(op_name, &slot) != FL_OK) {
        return false;
    }
    const fl_route *const route = fl_slot_route(slot);
    std::ostringstream words;
    // Not the operator's name: programs compare this text between an operator and its foreach form,
    // and the kernel has been named.
    words << "\n(flagos: the route '" << (route == nullptr ? "cpu" : fl_route_word(route->kind))
          << "' of platform '" << fl_platform_chosen()->name
          << "' has no kernel for this dtype; use another dtype, or another route if "
             "torch_fl.routes.read() shows one)";
    text += words.str();
    return true;
}

} // namespace

void rethrow_in_user_words(const char *op_name) {
    try {
        throw;
    } catch (const c10::Error &error) {
        std::string text = error.msg();
        if (is_out_of_host_memory(text)) {
            raise_as<c10::OutOfMemoryError>(error, out_of_host_memory(text));
        }
        const bool routes = dynamic_cast<const c10::NotImplementedError *>(&error) != nullptr &&
                            name_routes(text, op_name);
        if (!rename_device(text, op_name) && !routes) {
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

void refuse_without_memory(const c10::TensorImpl &tensor) {
    TORCH_CHECK(false, "a tensor of size ", tensor.sizes(), " on ", tensor.device(),
                " has no memory: its storage was resized to 0 bytes. Give it its size back with "
                "untyped_storage().resize_() before the tensor is used");
}

} // namespace fl_torch
