"""One CUTLASS attention kernel, as plain facts, from which its text and its name are generated."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

from inductor_plugin.problem.definition import item_bytes
from inductor_plugin.template import Json
from inductor_plugin.templates.cutlass.element import DTYPES

Element = Literal["f16", "bf16", "e4m3"]
Schedule = Literal["cooperative", "pingpong"]

ELEMENTS: dict[str, Element] = {DTYPES[element]: element for element in get_args(Element)}
"""CUTLASS's names of the dtypes of q, k and v."""

BYTES: dict[Element, int] = {element: item_bytes(dtype) for dtype, element in ELEMENTS.items()}
"""Bytes of an element of q, k and v."""

_BARRIER_BYTES = 1024
"""Barriers of the pipelines, with headroom."""


@dataclass(frozen=True)
class FmhaConfig:
    """The compile-time choices of a kernel; masks, scale, sizes and strides are arguments of its calls.

    Attributes:
        backward: Whether it computes gradients.
        rows: Queries of a tile, half of them for each of two warp groups; in the backward both have all.
        columns: Keys of a tile; in the backward half of them for each warp group.
        dim: Largest head; TMA pads smaller ones with zeros.
        element: Type of all operands but lse and delta; ``e4m3`` kernels write bf16.
        schedule: ``cooperative`` starts a block a tile; ``pingpong`` starts one a multiprocessor, which
            continues with the next tile, and loads Q in a separate warp. The backward is cooperative.
        stages: Tiles of K and of V in flight, counted together. The backward always has two of each.
    """

    backward: bool
    rows: int
    columns: int
    dim: int
    element: Element
    schedule: Schedule = "cooperative"
    stages: int = 5

    @property
    def name(self) -> str:
        """The kernel's readable and stable name: its C symbol, which profiles show.

        Example: ``cutlass_fmha_sm90_128x128x128_pingpong_bf16_stages5``.
        """
        family = "cutlass_fmha_backward_sm90" if self.backward else "cutlass_fmha_sm90"
        parts = [family, f"{self.rows}x{self.columns}x{self.dim}"]
        if not self.backward:
            parts.append(self.schedule)
        parts.append(self.element)
        if not self.backward:
            parts.append(f"stages{self.stages}")
        return "_".join(parts)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a forward block: a tile of Q and the stages, none for the output."""
        lines = self.rows + self.stages * self.columns
        return lines * self.dim * BYTES[self.element] + _BARRIER_BYTES

    def to_dict(self) -> dict[str, Json]:
        """Return the configuration as plain JSON values."""
        return dict(asdict(self))
