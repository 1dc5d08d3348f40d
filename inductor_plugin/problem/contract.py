"""Requirements of a template on an operand's strides, and the possible verdicts on an operand.

Facts only; `layout` decides. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inductor_plugin.problem.definition import Problem
from inductor_plugin.problem.product import factors, own_roles

Order = Literal["row", "column", "dense"]
"""The last dimension is contiguous; the one before it is; or the tensor has no gaps at all."""

MOST_BYTES = 16
"""The longest load of a thread and the unit of TMA: no kernel requires more."""


@dataclass(frozen=True)
class Contract:
    """Requirements of a template on one operand.

    Attributes:
        name: Name of the operand in reasons: ``A``, ``the output``.
        orders: Which orders its kernels read; a dimension of one element fits any.
        alignment: Bytes that pointer, strides and contiguous extent must be multiples of.
        preferred: Alignment of the faster kernels; a copy may pay from here on.
        extent: Whether the contiguous extent is checked: not at all (``free``); at its measured size,
            where another check proves it (``measured``); or only if known while compiling (``proven``).
        shared_rows: Whether rows may overlap, or be one row expanded.
        shared_batch: Whether one matrix may serve a whole batch: batch stride 0.
        broadcast: For a bias: whether kernels exist for a row or a column that is broadcast over D.
        offset: Whether it may have a storage offset.
        unknown: Whether strides may be known only at run time; `alignment` is then compared with their
            proven divisors.
        exact: Whether even a dimension of one element needs the stride it would have in a longer one.
        copies: Whether a copy may replace it; never for the output.
    """

    name: str
    orders: tuple[Order, ...] = ("row", "column")
    alignment: int = 1
    preferred: int = 1
    extent: Literal["free", "measured", "proven"] = "proven"
    shared_rows: bool = False
    shared_batch: bool = True
    broadcast: bool = False
    offset: bool = True
    unknown: bool = True
    exact: bool = False
    copies: bool = True


@dataclass(frozen=True)
class Accept:
    """The operand is read in place.

    Attributes:
        reason: One line for people.
    """

    reason: str


@dataclass(frozen=True)
class Copy:
    """The operand cannot be read in place, but a copy of it can.

    Attributes:
        bytes: Bytes read and written, the padding of rows included.
        reason: Why the operand cannot be read in place.
        stride: Strides of the copy in elements, for the sizes the problem is measured at.
        recipe: Layout of the copy, for any sizes at run time.
    """

    bytes: int
    reason: str
    stride: tuple[int, ...]
    recipe: Recipe


@dataclass(frozen=True)
class Extern:
    """No kernel of the template can read the operand, copied or not; the library kernel can.

    Attributes:
        reason: One line for people.
    """

    reason: str


OperandVerdict = Accept | Copy | Extern


@dataclass(frozen=True)
class Recipe:
    """Layout of a copy; plain data, because it is written into generated code.

    Attributes:
        order: ``row`` or ``column``.
        alignment: Bytes that its rows (columns) start at multiples of.
        kept: Dimensions that stay expanded: their stride is 0.
    """

    order: Literal["row", "column"]
    alignment: int = 1
    kept: tuple[int, ...] = ()

    def strides(self, size: Sequence[int], item_bytes: int) -> tuple[int, ...]:
        """Return the strides of a copy of a size, in elements."""
        inner = len(size) - 1
        walk = list(range(inner, -1, -1))
        if self.order == "column" and inner:
            inner -= 1
            walk[0], walk[1] = walk[1], walk[0]
        unit = max(self.alignment // item_bytes, 1)
        strides, step = [0] * len(size), 1
        for dim in walk:
            if dim in self.kept:
                continue
            strides[dim] = step
            step *= max(size[dim], 1)
            if dim == inner:
                step = -(-step // unit) * unit
        return tuple(strides)


@dataclass(frozen=True)
class LayoutVerdict:
    """Verdicts on a problem's operands under a template's contracts.

    Attributes:
        kind: The worst verdict.
        reasons: Reasons of all operands that are not accepted.
        copied_bytes: Bytes that all copies together read and write.
        verdicts: One for each input and, last, the output; None where there is no contract.
    """

    kind: Literal["accept", "copy", "extern"]
    reasons: tuple[str, ...]
    copied_bytes: int
    verdicts: tuple[OperandVerdict | None, ...]

    @property
    def refusal(self) -> str | None:
        """Why kernels that cannot copy refuse the problem; None if they take it."""
        if self.kind == "accept":
            return None
        reasons = "; ".join(self.reasons)
        return (
            reasons
            if self.kind == "extern"
            else f"{reasons} (a copy moves {self.copied_bytes} bytes)"
        )

    @property
    def copies(self) -> dict[int, Copy]:
        """The copies by input."""
        return {i: verdict for i, verdict in enumerate(self.verdicts) if isinstance(verdict, Copy)}


def roles(problem: Problem) -> tuple[str, ...]:
    """Return the role of each input and, last, of the output; empty if it has none or is not read.

    A bias times zero is not read, even if it holds NaN, as in torch.
    """
    named = [*own_roles(problem), *[""] * len(problem.inputs)][: len(problem.inputs)]
    if named[:1] == ["c"] and _is_zero(dict(problem.arguments).get("beta", "1")):
        named[0] = ""
    return (*named, "d")


def run_time(problem: Problem, index: int) -> frozenset[int]:
    """Return the dimensions of an operand whose extent is known only at run time.

    Those of the output, whose index is that after the inputs, are the rows of A, the columns of B and
    the batch of either.
    """
    if index < len(problem.inputs):
        return frozenset(entry.dim for entry in problem.dynamic if entry.operand == index)
    pair = factors(problem.op)
    if pair is None:
        return frozenset()
    rank = len(problem.output.size)
    a, b = pair
    of_a, of_b = (len(problem.inputs[i].size) for i in (a, b))
    dims: set[int] = set()
    for entry in problem.dynamic:
        if entry.operand == a and entry.dim != of_a - 1:
            dims.add(entry.dim - of_a + rank)
        if entry.operand == b and entry.dim != of_b - 2:
            dims.add(entry.dim - of_b + rank)
    return frozenset(dim for dim in dims if dim >= 0)


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False
