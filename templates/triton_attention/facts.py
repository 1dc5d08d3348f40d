"""Facts of a problem for the Triton attention templates: why they cannot run it, and its constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inductor_plugin.cost.tile import BYTES
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.attention import NARROW, Attention, attention_of
from inductor_plugin.templates.triton.product import TMA_ALIGNMENT_BYTES, too_old

DTYPES = ("float16", "bfloat16", "float32")
"""Types of q, k and v, and of a bias; scores and sums are float32."""
CAPABILITY = (8, 0)
"""The first compute capability with the tensor cores Triton uses for bfloat16."""
NARROW_CAPABILITY = (8, 9)
"""The first that converts 8-bit types: they are multiplied as bfloat16, which is exact. Products of 8-bit types
need at least 32 columns, and weights with 3 bits of mantissa."""
LEAST_DIM, MOST_DIM, DIM_STEP = 8, 256, 8
"""Head dims: others are not tuned; rows of a multiple of 8 halves are multiples of 16 bytes."""
NO_LIMIT = 1 << 30
"""A window this wide hides no key: sizes within a sequence are 32-bit."""
LOG2E = 1.4426950408889634
_DOT = 16
"""Least extent of a tensor core's operand."""


@dataclass(frozen=True)
class Pieces:
    """How the head dim of q and k is padded: to a power of two, or to a sum of two if that is less.

    Attributes:
        first: Columns of the first product.
        second: Columns of the second product; 0 for none.
    """

    first: int
    second: int

    @property
    def whole(self) -> int:
        """Columns of both."""
        return self.first + self.second


def why_not(problem: Problem) -> str | None:
    """Return why no Triton attention can run a problem, None if one can."""
    attention = attention_of(problem)
    named = dict(zip(attention.operands, problem.inputs, strict=True))
    reason = _why_not_operands(problem, attention, named) or _why_not_extents(attention)
    return reason or too_old(problem, capability_of(attention))


def capability_of(attention: Attention) -> tuple[int, int]:
    """Return the least compute capability for an attention's type."""
    return NARROW_CAPABILITY if attention.dtype == NARROW else CAPABILITY


def why_not_tma(problem: Problem, names: Sequence[str] = ("q", "k", "v")) -> str | None:
    """Return why operands cannot be read through TMA descriptors, None if they can.

    Each row has to begin at a multiple of 16 bytes, and the step between rows has to be a multiple even if
    there is a single row (CUDA driver API, cuTensorMapEncodeTiled).

    Args:
        problem: The attention, forward or backward.
        names: The operands.
    """
    attention = attention_of(problem)
    item_bytes = BYTES[attention.dtype]
    row = 0 if attention.varlen else 2
    for name in names:
        operand = problem.inputs[attention.operands.index(name)]
        lengths = {"offset": operand.offset_divisor}
        for dim, size in enumerate(operand.size[:-1]):
            if size > 1 or dim == row:
                lengths[f"stride {dim}"] = operand.stride_divisor(dim)
        for what, length in lengths.items():
            if item_bytes * length % TMA_ALIGNMENT_BYTES:
                verb = "is" if not operand.divisors else "is some multiple of"
                return (
                    f"TMA needs multiples of {TMA_ALIGNMENT_BYTES} bytes, {name}'s {what} {verb} "
                    f"{length} elements"
                )
        if operand.size[row] > 1 and operand.stride[row] < operand.size[-1]:
            return f"{name}'s rows overlap: its strides are {operand.stride}"
    return None


def pieces_of(head_dim: int) -> Pieces:
    """Return how a head dim is padded."""
    whole = padded(head_dim)
    first = whole // 2
    if first < _DOT or head_dim == whole:
        return Pieces(whole, 0)
    second = padded(head_dim - first)
    return Pieces(first, second) if first + second < whole else Pieces(whole, 0)


def padded(extent: int) -> int:
    """Return an extent padded to a power of two, as operands of tensor cores."""
    return max(_DOT, 1 << (extent - 1).bit_length())


def constants_of(problem: Problem) -> dict[str, bool | int | str]:
    """Return the constants of a kernel's source that do not depend on the tile."""
    attention = attention_of(problem)
    pieces = pieces_of(attention.head_dim)
    left, right = (
        -1 if side < 0 or side >= NO_LIMIT else side
        for side in (attention.mask.left, attention.mask.right)
    )
    ieee = attention.dtype == "float32" and not problem.tf32
    constants: dict[str, bool | int | str] = {
        "VARLEN": attention.varlen,
        "NARROW": attention.dtype == NARROW,
        "BIASED": attention.biased,
        "WRITE_LSE": "lse" in attention.operands,
        "SOFTCAP": attention.softcap > 0,
        # A scale that is not positive would reverse the order of the scores.
        "BENT": attention.softcap > 0 or attention.biased or attention.scale <= 0,
        "LEFT": left,
        "RIGHT": right,
        "BOTTOM_RIGHT": attention.mask.bottom_right,
        "HEAD_DIM": attention.head_dim,
        "VALUE_DIM": attention.value_dim,
        "BLOCK_D": pieces.first,
        "BLOCK_D2": pieces.second,
        "BLOCK_DV": padded(attention.value_dim),
        "EVEN_D": pieces.whole == attention.head_dim,
        "EVEN_DV": padded(attention.value_dim) == attention.value_dim,
        "SCALE_LOG2": repr(attention.scale * LOG2E),
        "PRECISION": repr("ieee" if ieee else "tf32"),
    }
    if attention.softcap > 0:
        constants["CAP_LOG2"] = repr(attention.softcap * LOG2E)
        constants["SCALE_CAP"] = repr(attention.scale / attention.softcap * 2 * LOG2E)
    if attention.biased:
        bias = problem.inputs[attention.operands.index("bias")]
        for dim, name in enumerate(("BIAS_B", "BIAS_H", "BIAS_M", "BIAS_N")):
            constants[name] = bias.size[dim] > 1 and bias.stride[dim] != 0
    return constants


def even(problem: Problem, operand: int, dim: int, block: int) -> bool:
    """Return True if an extent is a multiple of ``block`` in every run of the kernel."""
    static = all((extent.operand, extent.dim) != (operand, dim) for extent in problem.dynamic)
    return static and problem.inputs[operand].size[dim] % block == 0


def _why_not_operands(
    problem: Problem, attention: Attention, named: dict[str, Operand]
) -> str | None:
    q, k, v = (named[name] for name in "qkv")
    operands = (*problem.inputs, problem.output)
    bias = named.get("bias")
    types = DTYPES if attention.backward else (*DTYPES, NARROW)
    reasons = {
        "its operands are not all on a CUDA device": any(x.device != "cuda" for x in operands),
        "an operand has an opaque layout": any(x.layout != "strided" for x in operands),
        f"q, k and v must have one of the types {', '.join(types)}, they have {q.dtype}, {k.dtype}"
        f" and {v.dtype}": q.dtype not in types or {k.dtype, v.dtype} != {q.dtype},
        f"it writes {attention.written}, this asks for {problem.output.dtype}": (
            problem.output.dtype != attention.written
        ),
        f"rows of q, k and v need a unit stride, the strides are {q.stride}, {k.stride} and "
        f"{v.stride}": any(x.stride[-1] != 1 for x in (q, k, v)),
        "a bias with varlen is not supported": attention.varlen and attention.biased,
        f"a bias needs four dimensions, this has {len(bias.size) if bias else 0}": (
            bias is not None and len(bias.size) != 4
        ),
        f"the bias must be a float, it is {bias.dtype if bias else None}": (
            bias is not None and bias.dtype not in DTYPES
        ),
        "cu_q and cu_k must be dense int32": any(
            named[name].dtype != "int32" or named[name].stride != (1,)
            for name in ("cu_q", "cu_k")
            if name in named
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _why_not_extents(attention: Attention) -> str | None:
    for name, dim in (("head dim", attention.head_dim), ("value dim", attention.value_dim)):
        if not LEAST_DIM <= dim <= MOST_DIM or dim % DIM_STEP:
            return (
                f"the {name} must be a multiple of {DIM_STEP} from {LEAST_DIM} to {MOST_DIM}, it is "
                f"{dim}"
            )
    if attention.kv_heads == 0 or attention.heads % attention.kv_heads:
        return f"{attention.heads} heads of q cannot share {attention.kv_heads} of k and v evenly"
    if 0 in (attention.batch, attention.heads, attention.queries, attention.keys):
        return "a dimension is empty"
    return None
