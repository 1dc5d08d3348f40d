"""The operands of a record, for the script that rebuilds them. Pure.

A record of a dynamic problem has size classes, and the order of the strides that depend on them; the
measured sizes are only in its one-line description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from inductor_plugin.problem.strides import storage_elements

ODD = (
    *(KeyError, ValueError, TypeError, AttributeError),
    *(IndexError, SyntaxError, RecursionError, OverflowError),
)
"""Errors of reading fields that are not those of the operator: a record can hold anything."""
_MOST = 2**63
"""What no extent, stride or offset of a tensor reaches."""


@dataclass(frozen=True)
class OperandText:
    """An operand to rebuild.

    Attributes:
        size: Elements along each dimension, as measured; empty for a scalar.
        stride: Strides in elements.
        offset: Offset of the first element in its storage, in elements.
        dtype: Name without ``torch.``.
        device: ``cpu`` or ``cuda``.
        constant: Whether it is a frozen weight.
        opaque: Name of an opaque layout, whose extents are unknown; empty for a plain tensor.
        stands_for: Sizes for which the measurement is used: ``33..64x16``.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str
    device: str
    constant: bool
    opaque: str
    stands_for: str = ""

    def fields(self, name: str, seed: int) -> dict[str, Any]:
        """Return what the script needs to make it; ``elements`` are those of its storage."""
        elements = storage_elements(self.size, self.stride, self.offset)
        return {"name": name, **asdict(self), "elements": elements, "seed": seed}


def operands(problem: Mapping[str, Any], describe: str) -> list[OperandText]:
    """Return the operands of a problem.

    Args:
        problem: The result of `Problem.fields`.
        describe: The result of `Problem.describe`, with the measured sizes.

    Raises:
        ValueError: The two do not belong together, or an extent, stride or offset is 2^63 or more.
    """
    shapes = measured_shapes(describe)
    if len(shapes) != len(problem["inputs"]):
        raise ValueError(f"{describe!r} does not name {len(problem['inputs'])} operands")
    read = [
        OperandText(
            size=shape,
            stride=concrete(fields["stride"], shape),
            offset=int(fields["offset"]),
            dtype=fields["dtype"],
            device=fields["device"],
            constant=bool(fields["constant"]),
            opaque="" if fields["layout"] == "strided" else fields["layout"],
            stands_for="x".join(str(n) for n in fields["size"]),
        )
        for fields, shape in zip(problem["inputs"], shapes, strict=True)
    ]
    for operand in read:
        _check((*operand.stride, operand.offset))
    return read


def measured_shapes(describe: str) -> list[tuple[int, ...]]:
    """Return the extents in ``mm(512x512, 512x2048)``; those of a packed operand are empty.

    Raises:
        ValueError: An extent is 2^63 or more.
    """
    inside = describe.partition("(")[2].rpartition(")")[0]
    shapes = [
        () if text in ("packed", "scalar") else tuple(int(n) for n in text.split("x"))
        for text in inside.split(", ")
        if text
    ]
    _check([extent for shape in shapes for extent in shape])
    return shapes


def _check(amounts: Sequence[int]) -> None:
    if max(amounts, default=0) >= _MOST:
        raise ValueError("it has an extent, stride or offset of 2^63 or more, which no tensor has")


def concrete(stride: Sequence[int | str], size: Sequence[int]) -> tuple[int, ...]:
    """Return strides in elements; one that is known by its rank becomes that of a dense tensor.

    Args:
        stride: Numbers where they are known; otherwise ``0``, ``1`` and ``rank0`` ... as text.
        size: The extents.
    """
    if not size:
        return ()
    strides = [0] * len(size)
    inner = 1
    ranks = _ranks(stride)
    for dim in sorted(range(len(size)), key=lambda d: ranks[d]):
        step = stride[dim]
        if isinstance(step, int):
            strides[dim] = step
            inner = max(inner, step * size[dim])
        elif step != "0":
            strides[dim] = inner
            inner *= size[dim]
    return tuple(strides)


def _ranks(stride: Sequence[int | str]) -> list[int]:
    """Return the rank of each stride by size, -1 for strides 0 and 1. A text ``rankN`` has rank N; numbers share out the other ranks."""
    named = {
        dim: int(step.removeprefix("rank"))
        for dim, step in enumerate(stride)
        if isinstance(step, str) and step.startswith("rank")
    }
    free = (rank for rank in range(2 * len(stride)) if rank not in named.values())
    known = sorted({step for step in stride if isinstance(step, int) and step > 1})
    numbers = dict(zip(known, free, strict=False))
    return [
        named.get(dim, numbers.get(step, -1) if isinstance(step, int) else -1)
        for dim, step in enumerate(stride)
    ]
