"""The one table of differences from the twin that are right, each with its reason.

A row speaks of an operator, of variants, dtypes and of the kind of the difference (the kinds are
those of outcome.FIELDS, and value, unsteady, count, raises, accepts, exception). A difference without a row
fails its test. So does a row that explains nothing in a case that it speaks of: the row is then to be
removed, or `sometimes` says why it need not show in every run.
"""

import fnmatch
from dataclasses import dataclass

from .sides import twin_name


@dataclass(frozen=True)
class Row:
    reason: str
    ops: tuple  # Names or patterns of operators.
    kinds: tuple
    variants: tuple = ("*",)
    dtypes: tuple = ("*",)
    sometimes: str = ""  # Why the difference may be absent; empty where it must be seen.
    twins: tuple = ("cpu", "cuda")  # Those that it holds for; "none" for platforms without.

    def speaks_of(self, op, dtype):
        return (
            matches(op, self.ops)
            and matches(dtype, self.dtypes)
            and twin_name() in self.twins
        )

    def explains(self, op, dtype, variant, kind):
        return (
            self.speaks_of(op, dtype) and kind in self.kinds and matches(variant, self.variants)
        )


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


UNINITIALISED = "The result's memory is uninitialised: its values say nothing."
CHANCE = "Uninitialised memory may be equal by chance."

RESIZED = (
    "PyTorch resizes an out= tensor of the CPU without the dispatcher, which counts a version on "
    "every other device."
)
HOST_FILL = "PyTorch fills a number on the CPU without the dispatcher, which counts a version."
RANGE_OF_Q = "PyTorch looks whether q lies within 0 and 1 on the CPU only, so that CUDA does not wait."
ONE_HOT = "PyTorch looks whether classes are in range on the CPU only, so that no device has to wait."
CUDA_ONLY = "The operator is a CUDA kernel that the host twin does not have."
HOST_OUT = "CUDA has no out= form of this operator; the host twin has."
SLOW_CONV3D = "CUDA names a kernel that it does not have; both are refused as a RuntimeError."
SAMPLE = "The CPU refuses the sample itself, which CUDA takes."

UNSTEADY = "LAPACK on the CPU does not repeat itself: its sums depend on where memory begins."
NOT_REPEATED = (
    "The twin does not repeat itself: its threads add up, or write to one place, in no fixed order, or "
    "leave memory unwritten."
)
JITERATOR = "PyTorch's Python hands a jiterated function CUDA tensors alone."
VMAP_NORM = (
    "PyTorch's vmap takes a norm of batches apart before a device is asked, and into cuDNN's form for "
    "`cuda` alone."
)
SEEDS = "The seeds are memory that nothing is written to where nothing is dropped."
NO_DEVICE = "The sample names no device: such a factory makes a host tensor."

AS_BEFORE = "After an exception flagos's operands are as before; the twin's kernel has begun on out."
OWN_POOL = "PyTorch has a kernel for max_pool1d without gradients on the CPU alone; it makes no view."
OWN_POOL_BITS = "PyTorch's kernel for max_pool1d of the CPU alone does not see a negative bit."
REFERENCE = "PyTorch's reference names the CPU, and rounds there as nowhere else."
STEPS = "The optimiser keeps its counters on the host for a device, where the host twin has all."

# Composites that make their result and then copy it into a resized out.
RESIZED_OPS = (
    "inner",
    "kron",
    "linalg.cond",
    "linalg.matrix_norm",
    "linalg.matrix_power",
    "linalg.matrix_rank",
    "linalg.matrix_rank.hermitian",
    "linalg.multi_dot",
    "linalg.norm",
    "linalg.norm.subgradients_at_zero",
    "linalg.tensorinv",
    "linalg.tensorsolve",
    "linalg.vecdot",
    "nanquantile",
    "norm.nuc",
    "quantile",
    "special.ndtr",
    "tensordot",
)

ANY_TWIN = ("cpu", "cuda", "none")
WITHOUT_TWIN = "Without a twin a result is a copy of the host's: it has its own memory and history."
VIEWED = "PyTorch answers with a part of a larger tensor; a copy of the host's result has no gaps."
GAPS = "A copy to the host has no gaps between its elements: such operands have other strides there."
ORDER = "A sum in another order, in a decomposition or derivative that makes its difference larger."
SINGULAR = (
    "The gradient at a singular matrix divides by what rounding left, and LAPACK rounds a copy without "
    "gaps in another order."
)
MACHINE = "The order depends on the host's vectors."

ROWS = [
    Row(
        WITHOUT_TWIN,
        ("*",),
        ("nbytes", "version", "view", "autograd"),
        twins=("none",),
        sometimes="Most operators behave alike.",
    ),
    Row(
        UNINITIALISED,
        tuple(
            prefix + name
            for prefix in ("", "_refs.")
            for name in (
                "empty",
                "empty_like",
                "empty_permuted",
                "empty_strided",
                "new_empty",
                "new_empty_strided",
            )
        ),
        ("value",),
        sometimes=CHANCE,
        twins=ANY_TWIN,
    ),
    Row(
        UNSTEADY,
        ("linalg.lstsq", "linalg.lstsq.*"),
        ("value",),
        twins=("cpu",),
        sometimes="Memory may begin alike.",
    ),
    Row(
        NOT_REPEATED,
        ("*",),
        ("unsteady",),
        twins=ANY_TWIN,
        sometimes="Few kernels do, and not every time.",
    ),
    Row(
        NOT_REPEATED,
        ("nn.functional.max_unpool*",),
        ("value",),
        ("forward_mode",),
        twins=ANY_TWIN,
        sometimes="Two threads seldom write to one place at the same time.",
    ),
    Row(
        NOT_REPEATED,
        ("cummax", "cummin"),  # Their gradients are added up so.
        ("value",),
        ("*backward", "autocast", "func_vjp"),
        twins=("cuda",),
        sometimes="Sums in another order are often the same.",
    ),
    Row(
        NOT_REPEATED,
        ("nn.functional.conv_transpose2d",),  # Two runs differ in different variants.
        ("value",),
        dtypes=("complex128",),
        twins=("cuda",),
        sometimes="Sums in another order are often the same.",
    ),
    Row(
        VMAP_NORM,
        ("nn.functional.batch_norm*", "nn.functional.instance_norm"),
        ("value",),
        ("vmapped",),
        twins=("cuda",),
        sometimes="Only in training.",
    ),
    Row(
        SEEDS,
        ("torch.ops.aten._flash_attention_forward",),
        ("value",),
        twins=("cuda",),
        sometimes=CHANCE,
    ),
    Row(
        JITERATOR,
        ("jiterator_*",),
        ("raises", "exception", "count"),  # Under autocast native CUDA's own call goes astray.
        twins=("cuda",),
        sometimes="A wrong call raises before that.",
    ),
    Row(
        NO_DEVICE,
        tuple(p + name for p in ("", "_refs.") for name in ("arange", "linspace*", "logspace*")),
        ("device", "value"),  # Fake tensors tell their device as a value.
        twins=ANY_TWIN,
        sometimes="Most samples name a device.",
    ),
    Row(RESIZED, RESIZED_OPS, ("version",), ("out_empty", "out_wrong_shape"), twins=("cpu",)),
    Row(
        RESIZED,
        ("linalg.pinv", "matmul"),
        ("version",),
        ("out_empty", "out_wrong_shape"),
        twins=("cpu",),
        sometimes="Only some samples take this way.",
    ),
    Row(HOST_FILL, ("scalar_tensor",), ("version",), ("traced",), twins=("cpu",)),
    Row(RANGE_OF_Q, ("quantile", "nanquantile"), ("accepts",), ("traced", "fake"), twins=("cpu",)),
    Row(
        ONE_HOT,
        ("nn.functional.one_hot",),
        ("accepts",),
        ("traced", "fake"),
        twins=("cpu", "none"),
        sometimes="Only with a number of classes.",
    ),
    Row(
        CUDA_ONLY,
        ("jiterator_*", "torch.ops.aten._efficient_attention_forward"),
        ("exception",),
        ("host_*",),
        twins=("cpu",),
    ),
    Row(
        SLOW_CONV3D,
        ("nn.functional.conv3d",),
        ("exception",),
        ("host_full",),
        sometimes="With cuDNN CUDA has another kernel.",
    ),
    Row(HOST_OUT, ("narrow_copy",), ("exception",), ("host_out",), twins=("cpu",)),
    Row(
        AS_BEFORE,
        ("linalg.solve_triangular",),
        ("shape", "stride", "value"),
        ("out_wrong_dtype", "out_wider"),
        sometimes="Where the dtypes fit together nothing is refused.",
        twins=ANY_TWIN,
    ),
    Row(
        AS_BEFORE,
        ("addbmm", "mean"),
        ("value",),
        ("out_wrong_dtype", "out_wider"),
        sometimes="Where the dtypes fit together nothing is refused.",
        twins=("none",),
    ),
    Row(
        AS_BEFORE,
        ("native_batch_norm", "_native_batch_norm_legit"),
        ("shape", "stride", "nbytes", "version"),
        ("out_wrong_shape",),
        twins=("cpu", "none"),
        sometimes="Only outside training is it refused.",
    ),
    Row(AS_BEFORE, ("cat",), ("shape", "stride", "nbytes"), ("errors",), twins=ANY_TWIN),
    Row(
        AS_BEFORE,
        ("gather",),
        ("shape", "stride", "nbytes"),
        ("errors",),
        twins=("cpu", "none"),
    ),
    Row(
        GAPS,
        ("linalg.solve_triangular",),
        ("stride",),
        ("noncontiguous_backward",),
        dtypes=("complex64", "complex128"),
        twins=("none",),
    ),
    Row(
        ORDER,
        ("linalg.householder_product", "pca_lowrank", "svd_lowrank"),
        ("value",),
        ("*backward", "forward_mode", "noncontiguous"),
        dtypes=("complex64", "float32"),
        twins=("none",),
        sometimes=MACHINE,
    ),
    Row(
        SINGULAR,
        ("linalg.det", "linalg.slogdet", "logdet"),
        ("value",),
        ("noncontiguous_backward",),
        dtypes=("float32", "float64"),
        twins=("none",),
        sometimes=MACHINE,
    ),
    Row(
        VIEWED,
        ("linalg.lstsq", "linalg.lstsq.grad_oriented"),
        ("stride",),
        twins=("none",),
        sometimes="Only where there are more equations than unknowns.",
    ),
    Row(
        OWN_POOL_BITS,
        ("nn.functional.max_pool1d",),
        ("value",),
        ("negative",),
        twins=("cpu", "none"),
        sometimes="Only samples of the CPU's own kernel.",
    ),
    Row(
        OWN_POOL,
        ("nn.functional.max_pool1d", "nn.MaxPool1d"),
        ("view", "version"),
        ("forward", "method", "noncontiguous", "negative", "inference", "eval"),
        twins=("cpu",),
        sometimes="Only samples of the CPU's own kernel.",
    ),
    Row(
        REFERENCE,
        ("_refs.native_layer_norm",),
        ("dtype", "nbytes"),
        dtypes=("bfloat16", "float16"),
        twins=("cpu", "none"),
    ),
    Row(
        REFERENCE,
        ("_refs.arange",),
        ("value",),
        dtypes=("float32",),
        twins=("cpu", "none"),
        sometimes="Only where rounding shows.",
    ),
    Row(
        STEPS,
        ("torch.optim.*",),
        ("device",),
        twins=("cpu",),
        sometimes="Fused optimisers and those without counters keep everything on the device.",
    ),
    Row(SAMPLE, ("lu_unpack",), ("exception",), ("host_scalar",), twins=("cpu",)),
]


class Explained:
    """Which rows of the table one case used."""

    def __init__(self, op, dtype):
        self.op, self.dtype = op, dtype
        self.used = {}

    def row(self, variant, kind):
        for row in ROWS:
            if row.explains(self.op, self.dtype, variant, kind):
                self.used[row] = self.used.get(row, 0) + 1
                return row
        return None

    def idle(self, variants):
        """Rows that should have explained something in `variants` and did not."""
        return [
            row
            for row in ROWS
            if row.speaks_of(self.op, self.dtype)
            and not row.sometimes
            and row not in self.used
            and any(matches(variant, row.variants) for variant in variants)
        ]
