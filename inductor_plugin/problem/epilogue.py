"""The epilogue that Inductor would fuse with a matrix product: reads, operations, writes. No torch.

    relu(a @ b + bias) * gate, in order:

    0 product            D[m, n] as the kernel has it in its registers
    1 load      reads[0] bias, a row
    2 add       (0, 1)
    3 relu      (2,)
    4 load      reads[1] gate, as large as D
    5 mul       (3, 4)
    6 store     writes[0] (5,)

Operations have the names of Inductor's ``ops`` (torch/_inductor/ops_handler.py).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

from inductor_plugin.problem.definition import item_bytes, stride_order

Pattern: TypeAlias = Literal["full", "row", "column", "scalar", "other"]
"""How an operand is broadcast to D[..., m, n]: ``full`` one element for each of D, at any strides;
``row`` one for each n, the same in all rows; ``column`` one for each m; ``scalar`` one number.
``other`` is everything else: a gather, a transposed or shifted view, a pad."""

STRUCTURE = frozenset({"product", "load", "store", "constant"})
"""Steps that compute nothing."""


@dataclass(frozen=True)
class Access:
    """One tensor that is read or written, besides the product.

    Attributes:
        pattern: How it is broadcast to D.
        dtype: Name without the ``torch.`` prefix.
        elements: Number of different elements that are accessed.
        stride: Strides in elements along the dimensions of D; empty for ``other``.
        offset: Offset of its first element, in elements.
        buffer: Its name in the graph; not part of the epilogue's identity.
        dynamic: Whether strides or offset are known only at run time; then these are hints.
    """

    pattern: Pattern
    dtype: str
    elements: int
    stride: tuple[int, ...] = ()
    offset: int = 0
    buffer: str = ""
    dynamic: bool = False

    @property
    def bytes(self) -> int:
        """Bytes that are accessed; an element of an unknown dtype counts four."""
        return self.elements * item_bytes(self.dtype)


@dataclass(frozen=True)
class Step:
    """One operation on one element of D.

    Attributes:
        op: ``product``, ``load``, ``store``, ``constant``, ``to_dtype``, or an operation of ``ops``.
        arguments: Indices of the steps it works on.
        value: Of ``load`` and ``store`` the index in reads or writes, of ``constant`` the number, of
            ``to_dtype`` the dtype. ``to_dtype_rounded`` rounds although values stay in float32.
    """

    op: str
    arguments: tuple[int, ...] = ()
    value: int | float | str | bool | None = None


@dataclass(frozen=True)
class Epilogue:
    """Pointwise operations to fuse with one product.

    Attributes:
        size: Size of D: (m, n) or (batch, m, n); a dynamic extent at the size it is measured at.
        dtype: Dtype of D where it is stored unfused; the values of ``product`` are rounded to it.
        steps: Operations in order; each works on earlier ones.
        reads: Tensors of the ``load`` steps.
        writes: Tensors of the ``store`` steps.
        readers: Number of other readers of D: with one or more, D is written also when fused.
        reduction: Kind of a reduction (``sum``, ``welford_reduce``); empty for a pointwise epilogue.
        product: How D itself is read; ``other`` through a view in another order.
        atomic: Whether a store adds atomically.
        mutates: Whether a store modifies an existing tensor in place.
        position: ``prologue`` if it computes an operand of the product: then ``size`` is the
            operand's, no step is ``product``, and each tile that reads the operand computes it again.
    """

    size: tuple[int, ...]
    dtype: str
    steps: tuple[Step, ...]
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    readers: int = 0
    reduction: str = ""
    product: Pattern = "full"
    atomic: bool = False
    mutates: bool = False
    position: Literal["epilogue", "prologue"] = "epilogue"

    @property
    def operations(self) -> tuple[str, ...]:
        """The steps that compute something, by name, in order."""
        return tuple(step.op for step in self.steps if step.op not in STRUCTURE)

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the tensors it reads, each once: the operands that follow the product's own."""
        return tuple(dict.fromkeys(read.buffer for read in self.reads))

    @property
    def elements(self) -> int:
        """Elements of D."""
        return math.prod(self.size)

    @property
    def product_bytes(self) -> int:
        """Bytes of D where it is stored."""
        return self.elements * item_bytes(self.dtype)

    @cached_property
    def merged(self) -> Epilogue:
        """This epilogue after common subexpression elimination, as compilers see it."""
        steps: list[Step] = []
        place: dict[int, int] = {}
        places: dict[Step, int] = {}
        for at, step in enumerate(self.steps):
            moved = replace(step, arguments=tuple(place[argument] for argument in step.arguments))
            if moved.op == "to_dtype" and moved.value == "float32":
                place[at] = moved.arguments[0]  # values are computed with in float32 anyway
            elif moved in places and moved.op != "store":
                place[at] = places[moved]
            else:
                places[moved] = place[at] = len(steps)
                steps.append(moved)
        return replace(self, steps=tuple(steps))

    @cached_property
    def signature(self) -> str:
        """The epilogue's identity, apart from sizes and names: text and a digest.

        Example: ``mul(relu(product+row),full)`` is ``add.relu.mul-1f2e3d4c5b6a``.
        """
        names = [name for name in self.operations if not name.startswith("to_dtype")]
        text = json.dumps(self._facts(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        head = ".".join(names[:8]) or "copy"
        return f"{head}-{digest}"

    def _facts(self) -> dict[str, object]:
        plain = asdict(self)
        del plain["size"]
        for access in (*plain["reads"], *plain["writes"]):
            for field in ("buffer", "elements", "stride", "offset"):
                del access[field]
        plain["aligned"] = [_alignment(access) for access in (*self.reads, *self.writes)]
        plain["order"] = [stride_order(access.stride) for access in (*self.reads, *self.writes)]
        return plain

    def describe(self) -> str:
        """Return the expression as text: ``mul(relu(add(product, row)), full)``."""
        stores = [step for step in self.steps if step.op == "store"]
        last = stores[0].arguments[0] if stores else len(self.steps) - 1
        return self._expression(last, depth=12)

    def _expression(self, index: int, depth: int) -> str:
        step = self.steps[index]
        if step.op == "load" and isinstance(step.value, int):
            return self.reads[step.value].pattern
        if step.op == "constant":
            return str(step.value)
        if step.op == "product":
            return "product"
        if depth == 0:
            return "..."
        inner = [self._expression(argument, depth - 1) for argument in step.arguments]
        if step.op.startswith("to_dtype"):
            inner.append(str(step.value))
        return f"{step.op}({', '.join(inner)})"


def pattern_of(stride: Sequence[int], size: Sequence[int]) -> Pattern:
    """Return how an operand with these strides along D's dimensions is broadcast to D.

    A stride counts as zero where D has one element. A stride along the batch does not change the
    pattern: a bias for each batch is still a row.

    Args:
        stride: In elements, along (m, n) or (batch, m, n).
        size: Of D, as long.
    """
    along = [0 if extent == 1 else step for step, extent in zip(stride, size, strict=True)]
    if len(along) < 2:
        return "other"
    along_m, along_n = along[-2:]
    if along_m and along_n:
        return "full"
    if along_n:
        return "row"
    if along_m:
        return "column"
    return "other" if any(along) else "scalar"


def _alignment(access: Access) -> int:
    """Return the largest power of two up to 16 that divides all strides but the unit one, and the offset."""
    numbers = [step for step in access.stride if step not in (0, 1)]
    return math.gcd(16, access.offset, *numbers)
