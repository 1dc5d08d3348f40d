"""Test cases of attention gradients: their table by groups, their operands, and the exact gradients."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.attention import BACKWARD, Mask, arguments
from inductor_plugin.problem.target import Target, target
from inductor_plugin.template import Candidate
from inductor_plugin.templates.triton_attention.backward import candidate
from inductor_plugin.templates.triton_attention.backward_blocks import BackwardBlocks
from tests.support.attention import reference

H100 = target("H100")
GUARD = 4096
"""Elements of NaN after each operand."""
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Largest error of a gradient, relative to its largest value or 1: rounding of weights and results.

In float32 the last place of a score of 64 is 4e-6, and moves its weight by as much. The interpreter
cuts bfloat16 off where a GPU rounds: twice the error.
"""
SHAPES = (
    BackwardBlocks(32, 32, 32, 32, 1, 4),
    BackwardBlocks(64, 32, 32, 64, 1, 4),
    BackwardBlocks(32, 64, 64, 32, 1, 4),
    BackwardBlocks(64, 64, 64, 64, 1, 4),
)
"""Small enough that a hundred rows and keys make several blocks: interpreted, stages do nothing."""
TMA = BackwardBlocks(32, 64, 64, 32, 1, 4, tma=True)

EVERYTHING, CAUSAL, LAST = Mask(), Mask(right=0), Mask(right=0, bottom_right=True)
MASKS = (
    Mask(), CAUSAL, LAST, Mask(17, -1), Mask(17, -1, True), Mask(-1, 5), Mask(-1, 5, True),
    Mask(17, 5), Mask(17, 5, True), Mask(0, 0), Mask(0, 0, True), Mask(40, 0, True),
    Mask(1 << 40, 1 << 40),
)  # fmt: skip
"""All sides, both corners; the last one hides nothing."""


@dataclass(frozen=True)
class Case:
    """One attention whose gradients are computed.

    Attributes:
        queries: Sq, or the lengths of all sequences.
        keys: Sk, or the same of k and v; as many.
        mask: Which keys a query sees.
        heads: Heads of q.
        kv_heads: Heads of k and v.
        head_dim: D.
        value_dim: Dv; 0 is D.
        batch: Sequences, where all are of one length.
        dtype: Type of q, k and v.
        softcap: See `inductor_plugin.problem.attention`.
        bias: Shape of the bias, each extent full or 1; empty for none.
        by_tokens: Whether tokens are outside heads in memory, as after a projection.
        gap: Elements of NaN after each row.
        scale: Factor of q @ k.T; 0 is 1 / sqrt(D).
        tail: Tokens after the last of several sequences, which belong to none.
        hidden: Whether the bias hides all keys of each third row.
    """

    queries: int | tuple[int, ...]
    keys: int | tuple[int, ...]
    mask: Mask = EVERYTHING
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 64
    value_dim: int = 0
    batch: int = 1
    dtype: torch.dtype = torch.float32
    softcap: float = 0.0
    bias: tuple[int, ...] = ()
    by_tokens: bool = False
    gap: int = 0
    scale: float = 0.0
    tail: int = 0
    hidden: bool = False

    @property
    def varlen(self) -> bool:
        """Whether its sequences have different lengths."""
        return isinstance(self.queries, tuple)

    @property
    def factor(self) -> float:
        """Factor of q @ k.T."""
        return self.scale or self.head_dim**-0.5


@dataclass(frozen=True)
class Trial:
    """One attention, and the blocks by which its gradients are computed.

    Attributes:
        group: The feature it tests.
        case: The attention.
        blocks: Block sizes of the kernel.
    """

    group: str
    case: Case
    blocks: BackwardBlocks = SHAPES[0]

    @property
    def name(self) -> str:
        """A unique name."""
        return f"{self.group}: {self}"


class Operands(NamedTuple):
    """Operands of a case by name, in their order, and the gradients in float64."""

    tensors: dict[str, Tensor]
    expected: reference.Gradients


def trials() -> list[Trial]:
    """Return all trials, with the shapes of blocks in turn."""
    cases = (
        *_masks(), *_heads(), *_dims(), *_sequences(), *_biases(), *_caps(), *_layouts()
    )  # fmt: skip
    plain = [Trial(group, case, shape) for (group, case), shape in zip(cases, cycle(SHAPES))]
    return [*plain, *(Trial("descriptors", case, TMA) for case in _descriptors())]


def fast() -> list[Trial]:
    """Return a few of each group."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials():
        groups.setdefault(trial.group, []).append(trial)
    return [trial for group in groups.values() for trial in group[:: len(group) // 3 + 1]]


def candidate_of(trial: Trial, problem: Problem) -> Candidate:
    """Return the kernel of a trial."""
    return candidate(problem, trial.blocks)


def operands_of(case: Case, seed: int = 0) -> Operands:
    """Return the operands of a case, and the exact gradients.

    Outputs are NaN, and so is the memory between and after the rows.
    """
    generator = torch.Generator().manual_seed(seed)
    value_dim = case.value_dim or case.head_dim

    def drawn(tokens: int | tuple[int, ...], heads: int, dim: int) -> Tensor:
        tensor = _empty(case, tokens, heads, dim)
        return tensor.copy_(torch.randn(tensor.shape, generator=generator))

    q = drawn(case.queries, case.heads, case.head_dim)
    k = drawn(case.keys, case.kv_heads, case.head_dim)
    v = drawn(case.keys, case.kv_heads, value_dim)
    do = drawn(case.queries, case.heads, value_dim)
    more: dict[str, Tensor] = {}
    if case.bias:
        bias = torch.full((torch.Size(case.bias).numel() + GUARD,), torch.nan, dtype=case.dtype)
        more["bias"] = bias[:-GUARD].view(case.bias)
        more["bias"].copy_(torch.randn(case.bias, generator=generator))
        if case.hidden:
            more["bias"][..., ::3, :] = -torch.inf
    if isinstance(case.queries, tuple) and isinstance(case.keys, tuple):
        more["cu_q"], more["cu_k"] = _ends(case.queries), _ends(case.keys)
    facts: dict[str, Any] = {
        "mask": case.mask, "scale": case.factor, "softcap": case.softcap, **more
    }  # fmt: skip
    exact, lse = reference.forward(q, k, v, **facts)
    out = _empty(case, case.queries, case.heads, value_dim).copy_(exact)
    delta = (out.float() * do.float()).sum(-1)
    operands = {
        "do": do, "q": q, "k": k, "v": v, "out": out, "lse": lse.float(),
        "delta": delta.t().contiguous() if case.varlen else delta, **more,
        "dq": _empty(case, case.queries, case.heads, case.head_dim),
        "dv": _empty(case, case.keys, case.kv_heads, value_dim),
    }  # fmt: skip
    return Operands(operands, reference.backward(do, q, k, v, **facts))


def meta_operands_of(case: Case) -> dict[str, Tensor]:
    """Return operands of a case without memory, for callers that only read their sizes."""
    value_dim = case.value_dim or case.head_dim
    q = _empty(case, case.queries, case.heads, case.head_dim, "meta")
    k = _empty(case, case.keys, case.kv_heads, case.head_dim, "meta")
    v = _empty(case, case.keys, case.kv_heads, value_dim, "meta")
    out = _empty(case, case.queries, case.heads, value_dim, "meta")
    rows = q.shape[1::-1] if case.varlen else q.shape[:-1]
    lse = torch.empty(rows, device="meta")
    more: dict[str, Tensor] = {}
    if case.bias:
        more["bias"] = torch.empty(case.bias, dtype=case.dtype, device="meta")
    if isinstance(case.queries, tuple):
        ends = torch.empty(len(case.queries) + 1, dtype=torch.int32, device="meta")
        more["cu_q"] = more["cu_k"] = ends
    return {
        "do": out, "q": q, "k": k, "v": v, "out": out, "lse": lse, "delta": lse, **more,
        "dq": q, "dv": v,
    }  # fmt: skip


def problem_of(case: Case, operands: dict[str, Tensor], gpu: Target | None = H100) -> Problem:
    """Return the problem of a case whose operands are these."""
    keywords = arguments(
        scale=case.factor, mask=case.mask, softcap=case.softcap, operands=tuple(operands)
    )
    return Problem(
        op=BACKWARD,
        inputs=tuple(_operand(tensor) for tensor in operands.values()),
        output=_operand(torch.empty(operands["k"].shape, dtype=case.dtype, device="meta")),
        arguments=tuple((name, repr(value)) for name, value in sorted(keywords.items())),
        target=gpu,
    )


def errors(results: Sequence[Tensor], expected: reference.Gradients) -> dict[str, float]:
    """Return the largest error of dk, dq and dv, relative to the largest gradient where it is above 1."""
    by_name: dict[str, float] = {}
    for name, result in zip(("dk", "dq", "dv"), results, strict=True):
        exact: Tensor = getattr(expected, name)
        assert result.shape == exact.shape
        error = (result.double() - exact).abs().max() / exact.abs().max().clamp(min=1)
        by_name[name] = float("inf") if torch.isnan(error) else float(error)
    return by_name


def _masks() -> Iterator[tuple[str, Case]]:
    sizes = ((64, 64), (70, 130), (130, 70), (1, 100), (100, 1), (33, 97))
    for mask, (queries, keys) in product(MASKS, sizes):
        yield "masks", Case(queries, keys, mask, head_dim=32, heads=1, kv_heads=1)


def _heads() -> Iterator[tuple[str, Case]]:
    groups = ((8, 2), (6, 1), (3, 3), (10, 5))
    for (heads, kv), mask in product(groups, (Mask(), CAUSAL, Mask(9, 3, True))):
        yield "grouped heads", Case(45, 50, mask, head_dim=32, heads=heads, kv_heads=kv, batch=2)


def _dims() -> Iterator[tuple[str, Case]]:
    dims = (32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256)
    halves = (torch.float16, torch.bfloat16)
    for dim, dtype in product(dims, halves):
        yield "head dims", Case(50, 70, CAUSAL, head_dim=dim, dtype=dtype)
    for dim, value_dim in ((64, 32), (40, 96), (192, 128), (128, 72), (32, 256), (96, 64)):
        yield "head dims", Case(50, 70, LAST, head_dim=dim, value_dim=value_dim)


def _sequences() -> Iterator[tuple[str, Case]]:
    lengths = (
        ((50,), (70,)),
        ((5, 40, 1, 64), (70, 3, 33, 64)),
        ((0, 33, 0, 31), (20, 0, 7, 31)),
        ((32, 32, 32), (32, 32, 32)),
        ((1,) * 9, (40, 1, 0, 33, 64, 65, 2, 3, 31)),
    )
    masks = (Mask(), CAUSAL, LAST, Mask(7, 3), Mask(7, 3, True), Mask(12, 0, True))
    for number, ((queries, keys), mask) in enumerate(product(lengths, masks)):
        case = Case(queries, keys, mask, head_dim=32, heads=4, tail=(0, 3, 70)[number % 3])
        yield "sequences", case


def _biases() -> Iterator[tuple[str, Case]]:
    shapes = [*product((1, 2), (1, 4), (1, 50), (1, 70))]
    for number, shape in enumerate(shapes):
        mask = (Mask(), LAST, Mask(9, 3))[number % 3]
        yield "bias", Case(50, 70, mask, head_dim=32, heads=4, batch=2, bias=shape)
    for mask, cap in product((Mask(), LAST), (0.0, 3.0)):
        case = Case(50, 70, mask, head_dim=32, heads=4, batch=2, bias=(1, 4, 50, 70), softcap=cap)
        yield "bias", replace(case, hidden=True)
        yield "bias", replace(case, dtype=torch.bfloat16)


def _caps() -> Iterator[tuple[str, Case]]:
    for cap, mask in product((0.5, 20.0), (Mask(), LAST, Mask(9, 3))):
        yield "soft-cap and scale", Case(50, 70, mask, softcap=cap)
    for scale, mask in product((-0.3, 2.0, 1e-3), (Mask(), CAUSAL)):
        yield "soft-cap and scale", Case(50, 70, mask, scale=scale)


def _layouts() -> Iterator[tuple[str, Case]]:
    for mask, by_tokens, gap in product((Mask(), LAST), (False, True), (0, 8, 24)):
        case = Case(50, 70, mask, batch=2, by_tokens=by_tokens, gap=gap)
        yield "layouts", replace(case, dtype=torch.float16)


def _descriptors() -> Iterator[Case]:
    for number, mask in enumerate(MASKS):
        case = Case(70, 90, mask, head_dim=40, value_dim=72, heads=4, dtype=torch.float16, batch=2)
        yield replace(case, by_tokens=number % 2 == 0, gap=8 * (number % 3))
    yield Case(64, 64, CAUSAL, heads=3, kv_heads=3, dtype=torch.bfloat16)


def _operand(tensor: Tensor) -> Operand:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Operand(tuple(tensor.shape), tuple(tensor.stride()), dtype, "cuda")


def _ends(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def _empty(
    case: Case, tokens: int | tuple[int, ...], heads: int, dim: int, device: str = "cpu"
) -> Tensor:
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
    elements = torch.Size(size).numel() // dim * row
    whole = torch.full((elements + GUARD,), torch.nan, dtype=case.dtype, device=device)
    return whole.as_strided(size, stride)
