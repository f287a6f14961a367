// errors.h: the one place where an exception of the twin is put into the user's words.
#pragma once

namespace fl_torch {

// Call in a catch block. An error of PyTorch that speaks of the twin's device is raised again, as
// the same class, speaking of flagos; every other exception is raised again as it is.
[[noreturn]] void rethrow_in_user_words(const char *op_name);

} // namespace fl_torch
