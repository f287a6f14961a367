"""Rules of boxing, each with a way to break it: one change of the source that compiles, and that the
named tests must notice."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    rule: str
    file: str
    before: str  # Occurs exactly once in the file.
    after: str
    tests: tuple  # Files of tests/torch; one of them at least must fail.
    threads: bool = False  # May also show as a crash, which counts as noticed.


SHADOW, ROUTER = "src/torch/shadow.cpp", "src/torch/router.cpp"

MUTATIONS = [
    Mutation(
        "shadows belong to one thread",
        SHADOW,
        "state = &holder->state;",
        "static auto *const shared = new Holder; state = &shared->state;",
        ("test_threads.py",),
        threads=True,
    ),
    Mutation(
        "a copy-on-write storage is materialised before it is written",
        SHADOW,
        "written ? source->mutable_data() : const_cast<void *>(source->data())",
        "const_cast<void *>(source->data())",
        ("test_boxing.py", "test_boxing_writes.py", "test_storage.py"),
    ),
    Mutation(
        "the same tensor given twice has one shadow",
        SHADOW,
        "if (shadow.original().unsafeGetTensorImpl() == impl) {",
        "if (false) {",
        ("test_boxing.py", "test_boxing_arguments.py", "test_boxing_writes.py"),
    ),
    Mutation(
        "tensors that share a storage are shown with one storage",
        SHADOW,
        "if (C10_UNLIKELY(storage != nullptr && shadow.original_storage() == storage)) {",
        "if (false) {",
        ("test_boxing.py", "test_boxing_arguments.py", "test_boxing_writes.py"),
    ),
    Mutation(
        "a result that is an operand is the caller's own tensor",
        SHADOW,
        "*results[i] = original;",
        "shared = true;",
        ("test_boxing.py", "test_boxing_writes.py"),
    ),
    Mutation(
        "a view of an operand has autograd's keys",
        SHADOW,
        "c10::DispatchKeySet keys = (base.key_set() - lazy) | (view.key_set() & lazy);",
        "c10::DispatchKeySet keys = to_flagos_keys(view.key_set()); (void)lazy;",
        ("test_boxing.py", "test_boxing_writes.py"),
    ),
    Mutation(
        "only what nobody else holds is relabelled",
        SHADOW,
        "c10::raw::intrusive_ptr::use_count(impl) == holders[impl] &&",
        "true ||",
        ("test_boxing.py", "test_boxing_writes.py"),
    ),
    Mutation(
        "a new size of a written operand reaches the caller's tensor",
        SHADOW,
        "original->set_sizes_and_strides(sizes(), strides(), storage_offset());",
        "(void)original;",
        ("test_boxing.py", "test_boxing_writes.py"),
    ),
    Mutation(
        "names that a kernel gives to a written operand reach the caller's tensor",
        SHADOW,
        "copy_names(*this, *original);",
        "(void)original;",
        ("test_boxing.py", "test_boxing_writes.py"),
    ),
    Mutation(
        "a shadow that the callee keeps owns the caller's memory",
        SHADOW,
        "shown->_mutable_data_ptr_no_checks() = owning_pointer(bound_pointer_, owner, "
        "*device_opt_);",
        "(void)owner;",
        ("test_boxing.py", "test_boxing_writes.py"),
        threads=True,
    ),
    Mutation(
        "shadows are no inference tensors",
        SHADOW,
        "c10::InferenceMode normal_mode(false);",
        "c10::InferenceMode normal_mode(true);",
        ("test_boxing.py", "test_boxing_writes.py"),
    ),
    Mutation(
        "a plain CPU tensor beside flagos ones is refused where CUDA refuses it",
        ROUTER,
        "!operands_belong_together(plan, arguments)",
        "false && operands_belong_together(plan, arguments)",
        ("test_device_rules.py",),
    ),
    Mutation(
        "devices among the arguments are translated, and checked",
        ROUTER,
        "                check_device(value.toDevice());\n",
        "                (void)check_device;\n",
        ("test_boxing.py", "test_boxing_arguments.py", "test_device.py"),
    ),
    Mutation(
        "written operands of a list are written back",
        ROUTER,
        "value = shown_list(frame, held.back(), argument.written);",
        "value = shown_list(frame, held.back(), false);",
        ("test_boxing.py", "test_boxing_arguments.py", "test_boxing_writes.py"),
    ),
    Mutation(
        "an operator's error speaks of flagos",
        ROUTER,
        "rethrow_in_user_words(plan.slot->name);",
        "throw;",
        ("test_errors.py",),
    ),
]
