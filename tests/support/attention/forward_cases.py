"""Test cases of attention forward: their table by groups, their operands, and the exact results.

Those of gradients are in `tests.support.attention.backward_cases`, whose `Case` is used here.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product

import torch
from torch import Tensor

from inductor_plugin.attention import blockwise
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.attention import FORWARD, Mask, arguments
from inductor_plugin.problem.target import Target, target
from inductor_plugin.template import Candidate
from inductor_plugin.templates.triton_attention import decode, forward
from inductor_plugin.templates.triton_attention.block import ForwardBlock
from inductor_plugin.templates.triton_attention.decode import KeySplit
from tests.support.attention import reference
from tests.support.attention.backward_cases import Case

H100 = target("H100")
GUARD = 8192
"""Elements of NaN after each operand, more than any step reads without a mask."""
NARROW = torch.float8_e4m3fn
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2, NARROW: 1.6e-2}
"""Largest error of out, relative to 1 + its value: rounding of the weights and of the result, which of
operands of 8 bits are in bfloat16."""
LSE_TOLERANCE = 4e-6
SMALL = ForwardBlock(32, 32, 1, 4)
"""Small enough that a hundred rows and keys make many blocks: interpreted, stages do nothing."""
TMA = ForwardBlock(32, 32, 1, 4, tma=True)
SPECIALIZED = ForwardBlock(32, 32, 1, 4, tma=True, specialize=True)

CAUSAL, LAST = Mask(right=0), Mask(right=0, bottom_right=True)
MASKS = (
    Mask(),
    CAUSAL,
    LAST,
    Mask(17, -1),
    Mask(17, -1, bottom_right=True),
    Mask(-1, 5),
    Mask(-1, 5, bottom_right=True),
    Mask(17, 5),
    Mask(17, 5, bottom_right=True),
    Mask(0, 0),
    Mask(0, 0, bottom_right=True),
    Mask(40, 0, bottom_right=True),
    Mask(1 << 40, 1 << 40),
)
"""All sides, both corners; the last one hides nothing."""


@dataclass(frozen=True)
class Trial:
    """One attention, and the kernel that computes it.

    Attributes:
        group: The feature it tests.
        case: The attention.
        kernel: The block of `triton_attention`, or the share of its decode.
        lse: Whether lse is computed.
        poison: Value of one element of q, k or v, as (name, value) pairs; empty for none.
        hidden: Whether the bias hides all keys of each third row.
        broadcast: How the bias is broadcast: extents of 1 as they are, or by strides of 0.
    """

    group: str
    case: Case
    kernel: ForwardBlock | KeySplit = SMALL
    lse: bool = True
    poison: tuple[tuple[str, float], ...] = ()
    hidden: bool = False
    broadcast: bool = False

    @property
    def name(self) -> str:
        """A unique name."""
        return f"{self.group}: {self}"


def trials() -> list[Trial]:
    """Return all trials."""
    return [
        *_masks(), *_heads(), *_dims(), *_varlen(), *_biases(), *_caps(), *_decodes(), *_layouts(),
        *_non_finite(), *_narrow(),
    ]  # fmt: skip


def fast() -> list[Trial]:
    """Return two of each group."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials():
        groups.setdefault(trial.group, []).append(trial)
    return [trial for group in groups.values() for trial in (group[len(group) // 3], group[-1])]


def candidate_of(trial: Trial, problem: Problem) -> Candidate:
    """Return the kernel of a trial."""
    if isinstance(trial.kernel, KeySplit):
        return decode.candidate(problem, trial.kernel)
    return forward.candidate(problem, trial.kernel)


def operands_of(trial: Trial, seed: int = 0) -> dict[str, Tensor]:
    """Return the operands of a trial by name, in their order.

    Outputs are NaN, and so is the memory between and after the rows.
    """
    case = trial.case
    generator = torch.Generator().manual_seed(seed)
    facts = (
        ("q", case.queries, case.heads, case.head_dim),
        ("k", case.keys, case.kv_heads, case.head_dim),
        ("v", case.keys, case.kv_heads, case.value_dim or case.head_dim),
    )
    operands: dict[str, Tensor] = {}
    for name, tokens, heads, dim in facts:
        operands[name] = _empty(case, tokens, heads, dim)
        operands[name].copy_(torch.randn(operands[name].shape, generator=generator))
    for name, value in trial.poison:
        operands[name][..., operands[name].size(-2) // 2, 3] = value
    if case.bias:
        operands["bias"] = _bias(trial, generator)
    if isinstance(case.queries, tuple) and isinstance(case.keys, tuple):
        operands["cu_q"], operands["cu_k"] = _ends(case.queries), _ends(case.keys)
    if trial.lse:
        q = operands["q"]
        shape = (q.size(1), q.size(0)) if case.varlen else q.shape[:-1]
        operands["lse"] = torch.full(shape, torch.nan)
    return operands


def meta_operands_of(case: Case) -> dict[str, Tensor]:
    """Return the operands of a case without memory, for callers that only read their facts."""

    def empty(tokens: int | tuple[int, ...], heads: int, dim: int) -> Tensor:
        many = isinstance(tokens, tuple)
        size = (sum(tokens), heads, dim) if many else (case.batch, heads, tokens, dim)
        return torch.empty(size, dtype=case.dtype, device="meta")

    q = empty(case.queries, case.heads, case.head_dim)
    k = empty(case.keys, case.kv_heads, case.head_dim)
    v = empty(case.keys, case.kv_heads, case.value_dim or case.head_dim)
    if not isinstance(case.queries, tuple):
        return {"q": q, "k": k, "v": v, "lse": torch.empty(q.shape[:-1], device="meta")}
    ends = torch.empty(len(case.queries) + 1, dtype=torch.int32, device="meta")
    lse = torch.empty(case.heads, sum(case.queries), device="meta")
    return {"q": q, "k": k, "v": v, "cu_q": ends, "cu_k": ends, "lse": lse}


def problem_of(case: Case, operands: dict[str, Tensor], gpu: Target | None = H100) -> Problem:
    """Return the problem of a case with these operands; the output has the layout of q."""
    keywords = arguments(
        scale=case.factor, mask=case.mask, softcap=case.softcap, operands=tuple(operands)
    )
    q, v = operands["q"], operands["v"]
    size = (*q.shape[:-1], v.size(-1))
    out = torch.empty(size, dtype=blockwise.result(q.dtype), device="meta")
    if case.by_tokens and not case.varlen:
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
    return Problem(
        op=FORWARD,
        inputs=tuple(operand_of(tensor) for tensor in operands.values()),
        output=operand_of(out),
        arguments=tuple((name, repr(value)) for name, value in sorted(keywords.items())),
        target=gpu,
    )


def operand_of(tensor: Tensor) -> Operand:
    """Return a tensor as an operand on a GPU."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Operand(tuple(tensor.shape), tuple(tensor.stride()), dtype, "cuda")


def expected_of(trial: Trial, operands: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return out and lse in float64."""
    case = trial.case
    q, k, v = (operands[name] for name in "qkv")
    out, lse = reference.forward(
        q, k, v, mask=case.mask, scale=case.factor, softcap=case.softcap,
        bias=operands.get("bias"), cu_q=operands.get("cu_q"), cu_k=operands.get("cu_k"),
    )  # fmt: skip
    if trial.poison:
        # A score of +inf: its softmax is NaN; torch.logsumexp says inf, which here means no key.
        lse = lse.masked_fill(out.isnan().any(-1), math.nan)
    return out, lse


def error_of(result: Tensor, expected: Tensor) -> float:
    """Return the largest error relative to 1 + the value; infinite where NaN or inf differ."""
    assert result.shape == expected.shape
    exact = result.double()
    finite = torch.isfinite(expected)
    alike = torch.equal(exact.isnan(), expected.isnan())
    same = torch.equal(exact.masked_fill(finite, 0).nan_to_num(7, 1, -1),
                       expected.masked_fill(finite, 0).nan_to_num(7, 1, -1))  # fmt: skip
    if not alike or not same or not torch.isfinite(exact[finite]).all():
        return math.inf
    if not finite.any():
        return 0.0
    return float(((exact - expected).abs() / (1 + expected.abs()))[finite].max())


def _case(
    queries: int | tuple[int, ...], keys: int | tuple[int, ...], mask: Mask, **facts: object
) -> Case:
    return replace(Case(queries, keys, mask), **facts)  # pyright: ignore[reportArgumentType]


def _masks() -> Iterator[Trial]:
    sizes = ((64, 64), (70, 130), (130, 70), (1, 100), (100, 1), (33, 97))
    for mask, (queries, keys) in product(MASKS, sizes):
        yield Trial("masks", _case(queries, keys, mask, head_dim=32, heads=1, kv_heads=1))


def _heads() -> Iterator[Trial]:
    groups = ((8, 2), (6, 1), (3, 3), (10, 5))
    for (heads, kv), mask, batch in product(groups, (Mask(), CAUSAL, Mask(9, 3, True)), (1, 2)):
        case = _case(45, 50, mask, head_dim=32, heads=heads, kv_heads=kv, batch=batch)
        yield Trial("grouped heads", case)


def _dims() -> Iterator[Trial]:
    dims = (8, 16, 24, 32, 40, 48, 64, 72, 80, 96, 104, 112, 128, 160, 192, 224, 256)
    types = (torch.float16, torch.bfloat16, torch.float32)
    for number, dim in enumerate(dims):
        for dtype in (types[number % 3], types[(number + 1) % 3]):
            yield Trial("head dims", _case(50, 70, CAUSAL, head_dim=dim, dtype=dtype))
    for dim, value_dim in ((64, 32), (40, 96), (192, 128), (128, 72), (32, 256), (96, 64)):
        for dtype in types[:2]:
            case = _case(50, 70, CAUSAL, head_dim=dim, value_dim=value_dim, dtype=dtype)
            yield Trial("head dims", case)


def _varlen() -> Iterator[Trial]:
    lengths = (
        ((50,), (70,)),
        ((5, 40, 1, 64), (70, 3, 33, 64)),
        ((0, 33, 0, 31), (20, 0, 7, 31)),
        ((32, 32, 32), (32, 32, 32)),
        ((1,) * 9, (40, 1, 0, 33, 64, 65, 2, 3, 31)),
    )
    masks = (Mask(), CAUSAL, LAST, Mask(7, 3), Mask(7, 3, True), Mask(12, 0, True))
    for (queries, keys), mask in product(lengths, masks):
        case = _case(queries, keys, mask, head_dim=32, heads=4, kv_heads=2, tail=3)
        yield Trial("sequences", case)
    for mask in masks:
        case = _case((70, 9), (33, 60), mask, dtype=torch.float16, kv_heads=1)
        yield Trial("sequences", case, TMA)
        yield Trial("sequences", case, lse=False)


def _biases() -> Iterator[Trial]:
    for mask in (Mask(), LAST, Mask(9, 3)):
        for shape in product((1, 2), (1, 4), (1, 50), (1, 70)):
            case = _case(50, 70, mask, head_dim=32, heads=4, batch=2, bias=shape)
            yield Trial("bias", case, broadcast=sum(shape) % 2 == 0)
        case = _case(50, 70, mask, head_dim=32, heads=4, batch=2, bias=(2, 4, 50, 70))
        yield Trial("bias", case, hidden=True)
        yield Trial("bias", replace(case, dtype=torch.bfloat16, softcap=3.0))


def _caps() -> Iterator[Trial]:
    for cap, mask in product((0.5, 20.0), (Mask(), LAST, Mask(9, 3))):
        yield Trial("soft-cap and scale", _case(50, 70, mask, softcap=cap))
    for scale in (-0.3, 2.0, 1e-3):
        for mask in (Mask(), CAUSAL):
            yield Trial("soft-cap and scale", _case(50, 70, mask, scale=scale))


def _decodes() -> Iterator[Trial]:
    groups = ((8, 2), (3, 1), (4, 4))
    masks = (Mask(), LAST, Mask(60, 0, True), Mask(5, -1))
    for number, (queries, (heads, kv), mask) in enumerate(product((1, 3, 16), groups, masks)):
        case = _case(queries, 230 + number, mask, head_dim=64, heads=heads, kv_heads=kv, batch=2)
        share = KeySplit(32, 1, 4, (1, 3, 4, 8)[number % 4])
        yield Trial(
            "decode", replace(case, dtype=(torch.float32, torch.float16)[number % 2]), share
        )
    for dim in (40, 96, 128, 192, 256):
        case = _case(2, 200, LAST, head_dim=dim, value_dim=64 if dim == 192 else 0, heads=4)
        yield Trial("decode", replace(case, dtype=torch.bfloat16), KeySplit(64, 1, 4, 2))
    for shape in ((1, 4, 1, 150), (2, 4, 3, 150), (2, 1, 3, 1)):
        case = _case(3, 150, LAST, heads=4, kv_heads=2, batch=2, bias=shape)
        yield Trial("decode", case, KeySplit(32, 1, 4, 3), broadcast=shape[1] == 1)
        yield Trial("decode", case, KeySplit(32, 1, 4, 1), lse=False)
    yield Trial("decode", _case(3, 150, LAST, softcap=2.0, by_tokens=True), KeySplit(32, 1, 4, 5))
    yield Trial("decode", _case(9, 4, LAST, by_tokens=True), KeySplit(16, 1, 4, 2))


def _layouts() -> Iterator[Trial]:
    for mask, by_tokens, gap in product((Mask(), LAST), (False, True), (0, 8, 24)):
        case = _case(50, 70, mask, batch=2, by_tokens=by_tokens, gap=gap, dtype=torch.float16)
        yield Trial("layouts", case)
        yield Trial("layouts", case, TMA)
    for mask in MASKS[:-1]:
        case = _case(70, 90, mask, head_dim=40, dtype=torch.bfloat16, kv_heads=1)
        yield Trial("layouts", case, TMA)
        yield Trial("layouts", replace(case, head_dim=64), SPECIALIZED, lse=False)


def _non_finite() -> Iterator[Trial]:
    for name, value in product("qk", (math.nan, math.inf, -math.inf)):
        for kernel in (SMALL, TMA, KeySplit(32, 1, 4, 3)):
            poison = ((name, value),)
            yield Trial("non-finite", _case(9, 60, LAST), kernel, poison=poison)
            yield Trial("non-finite", _case(9, 60, Mask(5, 5)), kernel, poison=poison)


def _narrow() -> Iterator[Trial]:
    # Without NaN: Triton's interpreter (3.8) reads that of 8 bits as 480.
    for dim, mask in product((8, 16, 40, 64, 72, 96, 128, 192, 256), (CAUSAL, Mask(17, 5, True))):
        case = _case(50, 70, mask, head_dim=dim, dtype=NARROW, heads=4, kv_heads=2)
        yield Trial("8 bits", replace(case, by_tokens=dim % 16 == 0, gap=8 * (dim % 3)))
    for queries, keys in (((5, 40, 1, 64), (70, 3, 33, 64)), ((0, 33, 0), (20, 0, 7))):
        case = _case(queries, keys, LAST, head_dim=64, dtype=NARROW, kv_heads=1, tail=3)
        yield Trial("8 bits", case)
    for bias in ((1, 4, 50, 70), (2, 1, 1, 70)):
        case = _case(50, 70, CAUSAL, dtype=NARROW, heads=4, batch=2, bias=bias, softcap=3.0)
        yield Trial("8 bits", case)
    for splits, dim in ((1, 40), (3, 64), (4, 128), (2, 256)):
        case = _case(3, 230, LAST, head_dim=dim, dtype=NARROW, heads=8, kv_heads=2, batch=2)
        yield Trial("8 bits", case, KeySplit(32, 1, 4, splits))


def _bias(trial: Trial, generator: torch.Generator) -> Tensor:
    case = trial.case
    elements = math.prod(case.bias)
    dtype = blockwise.result(case.dtype)
    whole = torch.full((elements + GUARD,), torch.nan, dtype=dtype)
    bias = whole[:elements].view(case.bias)
    bias.copy_(torch.randn(case.bias, generator=generator))
    if trial.hidden:
        bias[..., ::3, :] = -math.inf
    if not trial.broadcast:
        return bias
    assert isinstance(case.queries, int)
    assert isinstance(case.keys, int)
    return bias.expand(case.batch, case.heads, case.queries, case.keys)


def _ends(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def _empty(case: Case, tokens: int | tuple[int, ...], heads: int, dim: int) -> Tensor:
    """Return an operand full of NaN, in the layout of the case."""
    row = dim + case.gap
    if isinstance(tokens, tuple):
        count = sum(tokens) + case.tail
        size, stride = (count, heads, dim), (heads * row, row, 1)
    elif case.by_tokens:
        size = (case.batch, heads, tokens, dim)
        stride = (tokens * heads * row, row, heads * row, 1)
    else:
        size = (case.batch, heads, tokens, dim)
        stride = (heads * tokens * row, tokens * row, row, 1)
    elements = math.prod(size) // dim * row
    return torch.full((elements + GUARD,), torch.nan, dtype=case.dtype).as_strided(size, stride)
