"""What a template asks of an operand's strides, and what may become of one that does not meet it.

Facts only; `layout` decides. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inductor_plugin.problem.definition import Problem

Order = Literal["row", "column", "dense"]
"""The last dimension is contiguous, or the one before it; or all of them lie without gaps."""

ROLES: dict[str, tuple[str, ...]] = {
    "mm": ("a", "b"),
    "bmm": ("a", "b"),
    "int_mm": ("a", "b"),
    "addmm": ("c", "a", "b"),
    "baddbmm": ("c", "a", "b"),
    "scaled_mm": ("a", "b", "scale_a", "scale_b", "c"),
    "grouped_mm": ("a", "b", "offsets"),
    "weight_int4pack_mm": ("a", "b", "scales"),
}
"""What each input of an operator is, in Inductor's order; the output is ``d``."""

MOST_BYTES = 16
"""The longest load of a thread and the unit of TMA: no kernel asks for more."""


@dataclass(frozen=True)
class Contract:
    """What a template asks of one operand.

    Attributes:
        name: What reasons call it: ``A``, ``the output``.
        orders: Which orders its kernels read; a dimension of one element fits any.
        alignment: Bytes that pointer, strides and contiguous extent must be multiples of.
        preferred: The same of the faster kernels; a copy may pay from here on.
        extent: Whether the contiguous extent counts: not at all (``free``); as it is measured, where
            another check proves it (``measured``); or only if known while compiling (``proven``).
        shared_rows: Whether rows may overlap, or be one row expanded.
        shared_batch: Whether one matrix may stand for a whole batch: batch stride 0.
        broadcast: For a bias: a row or a column for all of D has a kernel of its own.
        offset: Whether it may begin behind the start of its memory.
        unknown: Whether strides may be known only at run time; `alignment` is then held against what
            is proven to divide them.
        exact: Whether even a dimension of one element needs the stride it would have in a longer one.
        copies: Whether a copy may stand in for it; not for what is written.
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
    """The operand is read where it lies.

    Attributes:
        reason: One line for people.
    """

    reason: str


@dataclass(frozen=True)
class Copy:
    """A copy can be read in its place.

    Attributes:
        bytes: Read and written, the padding of rows included.
        reason: Why it cannot be read where it lies.
        stride: Strides of the copy in elements, for the sizes the problem is measured at.
        recipe: How to make it, whatever the sizes are at run time.
    """

    bytes: int
    reason: str
    stride: tuple[int, ...]
    recipe: Recipe


@dataclass(frozen=True)
class Extern:
    """No kernel of the template takes it, copied or not: the library kernel is the way out.

    Attributes:
        reason: One line for people.
    """

    reason: str


OperandVerdict = Accept | Copy | Extern


@dataclass(frozen=True)
class Recipe:
    """How a copy is laid out; plain data, it is written into generated code.

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
        made, step = [0] * len(size), 1
        for dim in walk:
            if dim in self.kept:
                continue
            made[dim] = step
            step *= max(size[dim], 1)
            if dim == inner:
                step = -(-step // unit) * unit
        return tuple(made)


@dataclass(frozen=True)
class LayoutVerdict:
    """What becomes of a problem's operands under a template's contracts.

    Attributes:
        kind: The worst verdict.
        reasons: Why, for each operand that is not accepted; all of them.
        copied_bytes: What all copies together read and write.
        verdicts: For each input and, last, the output; None where there is no contract.
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
        said = "; ".join(self.reasons)
        return said if self.kind == "extern" else f"{said} (a copy moves {self.copied_bytes} bytes)"

    @property
    def copies(self) -> dict[int, Copy]:
        """The copies by input."""
        return {i: one for i, one in enumerate(self.verdicts) if isinstance(one, Copy)}


def roles(problem: Problem) -> tuple[str, ...]:
    """Return what each input and, last, the output is; empty text for what has no name or is not read.

    A bias times zero is not read, whatever it holds, as in torch.
    """
    known = ROLES.get(problem.op, ())
    named = [*known, *[""] * len(problem.inputs)][: len(problem.inputs)]
    if named[:1] == ["c"] and _is_zero(dict(problem.arguments).get("beta", "1")):
        named[0] = ""
    return (*named, "d")


def run_time(problem: Problem, index: int) -> frozenset[int]:
    """Return the dimensions of an operand whose extent is known only at run time.

    Those of the output, whose index is behind the inputs', are the rows of A, the columns of B and
    the batch of either.
    """
    if index < len(problem.inputs):
        return frozenset(one.dim for one in problem.dynamic if one.operand == index)
    named = ROLES.get(problem.op, ())
    if "a" not in named or "b" not in named:
        return frozenset()
    rank = len(problem.output.size)
    a, b = named.index("a"), named.index("b")
    of_a, of_b = (len(problem.inputs[i].size) for i in (a, b))
    found: set[int] = set()
    for one in problem.dynamic:
        if one.operand == a and one.dim != of_a - 1:
            found.add(one.dim - of_a + rank)
        if one.operand == b and one.dim != of_b - 2:
            found.add(one.dim - of_b + rank)
    return frozenset(dim for dim in found if dim >= 0)


def item_bytes(dtype: str) -> int:
    """Return the size of an element: the bits are the first number in a dtype's name."""
    bits = re.search(r"\d+", dtype)
    return max(int(bits[0]) // 8, 1) if bits else 1


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False
