"""Configurations of Inductor's FlexAttention kernels, and their spills. Pure, no torch.

Registers and spills are those of torch 2.14's templates compiled by Triton 3.8 and ptxas 13 with a
causal mask and no score_mod, for sm_80 and sm_90a; tests/inductor/test_flex.py compiles some again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "backward", "decode"]


@dataclass(frozen=True)
class Tile:
    """One configuration.

    Attributes:
        blocks: Rows of the query and of the keys in one block: (M, N) forward, (M1, N1, M2, N2)
            backward, where the first two are of the loop for dK and dV and the others of that for dQ,
            and (N,) in decoding.
        stages: Loads in flight.
        warps: Warps of a program.
        tma: True if operands are read through tensor descriptors.
    """

    blocks: tuple[int, ...]
    stages: int
    warps: int
    tma: bool = False

    def __str__(self) -> str:
        """Return the configuration as text: ``128x64, 3 stages, 4 warps``."""
        blocks = "x".join(map(str, self.blocks))
        return f"{blocks}, {self.stages} stages, {self.warps} warps{', TMA' if self.tma else ''}"


def _forward(*rows: tuple[int, int, int, int]) -> tuple[Tile, ...]:
    return tuple(Tile((m, n), stages, warps) for m, n, stages, warps in rows)


def _backward(*rows: tuple[int, int, int, int]) -> tuple[Tile, ...]:
    return tuple(Tile((m, n, n, m), stages, warps) for m, n, stages, warps in rows)


DECODE = tuple(Tile((n,), stages, warps) for n, stages, warps in ((128, 2, 4), (64, 2, 4)))
"""Configurations for decoding that Inductor's list lacks."""

MORE: dict[tuple[Direction, int, int], tuple[Tile, ...]] = {
    ("forward", 64, 2): _forward((128, 64, 3, 8), (128, 64, 2, 4), (64, 64, 2, 4)),
    ("forward", 128, 2): _forward(
        (128, 64, 3, 8), (128, 64, 2, 8), (64, 64, 2, 4), (128, 32, 3, 8)
    ),
    ("forward", 256, 2): _forward(
        (128, 64, 2, 8), (64, 64, 2, 8), (128, 32, 2, 8), (64, 32, 3, 4), (32, 64, 2, 4)
    ),
    ("forward", 512, 2): _forward((64, 32, 2, 8), (32, 32, 2, 4), (64, 16, 2, 8)),
    ("forward", 64, 4): _forward((128, 32, 3, 4), (64, 32, 2, 4)),
    ("forward", 128, 4): _forward((64, 32, 2, 4), (32, 32, 3, 4)),
    ("forward", 256, 4): _forward((32, 32, 2, 4), (32, 16, 3, 4), (32, 16, 2, 4)),
    ("backward", 64, 2): _backward((64, 128, 2, 8), (64, 64, 2, 8), (32, 128, 2, 8)),
    ("backward", 128, 2): _backward(
        (64, 128, 2, 8), (64, 64, 3, 8), (64, 64, 2, 8), (32, 64, 2, 4)
    ),
    ("backward", 256, 2): _backward((32, 32, 2, 8), (16, 32, 2, 8)),
    ("backward", 64, 4): _backward((32, 32, 2, 4), (16, 32, 1, 4)),
    ("backward", 128, 4): _backward((32, 32, 1, 8), (16, 32, 1, 4)),
}
"""Configurations that Inductor's list lacks, by (direction, head dimension up to, bytes of an element)."""

EXACT: dict[tuple[Direction, int], tuple[Tile, ...]] = {
    ("forward", 64): _forward((64, 32, 2, 8), (32, 32, 1, 4)),
    ("forward", 128): _forward((32, 32, 2, 8), (16, 32, 2, 8)),
    ("forward", 256): _forward((32, 16, 1, 8), (16, 16, 2, 8)),
    ("backward", 64): _backward((32, 32, 1, 8)),
    ("backward", 128): _backward((16, 16, 1, 8)),
    ("backward", 256): _backward((16, 16, 1, 8)),
}
"""The same without tensor cores, where a thread holds one element of many products."""

TMA: dict[tuple[Direction, int], tuple[Tile, ...]] = {
    ("forward", 64): _forward((128, 128, 2, 8), (128, 64, 3, 4)),
    ("forward", 128): _forward((128, 128, 2, 8), (128, 64, 3, 8), (64, 64, 3, 4)),
    ("forward", 256): _forward((128, 64, 2, 8), (64, 64, 2, 4), (64, 32, 3, 4)),
    ("backward", 64): _backward((64, 128, 2, 8), (64, 64, 3, 8)),
    ("backward", 128): _backward((64, 64, 3, 8), (64, 128, 2, 8), (32, 64, 2, 4)),
}
"""Configurations that read operands through TMA descriptors, for two-byte elements."""

SMALL: dict[Direction, tuple[Tile, ...]] = {
    "forward": _forward((64, 32, 1, 4), (32, 32, 1, 4), (32, 16, 1, 4), (16, 16, 1, 4)),
    "backward": _backward((32, 32, 1, 4), (16, 16, 1, 4), (16, 16, 1, 8)),
    "decode": tuple(Tile((n,), 1, 2) for n in (64, 32, 16)),
}
"""Last resorts, the largest first."""

SPILLS: dict[tuple[int, Direction, int, tuple[int, ...], int], int] = {
    (8, "forward", 64, (128, 128), 4): 1156,
    (8, "forward", 128, (128, 64), 4): 24672,
    (8, "forward", 128, (128, 128), 4): 47824,
    (8, "forward", 256, (128, 64), 4): 44196,
    (8, "forward", 256, (64, 128), 4): 524,
    (8, "forward", 256, (128, 128), 4): 82032,
    (8, "forward", 256, (128, 128), 8): 752,
    (8, "backward", 128, (64, 128, 128, 64), 8): 2044,
    (8, "backward", 128, (64, 64, 64, 64), 4): 552,
    (8, "backward", 256, (64, 64, 64, 64), 4): 5232,
    (8, "backward", 256, (64, 64, 64, 64), 8): 1732,
    (8, "backward", 256, (32, 64, 64, 32), 4): 3128,
    (9, "forward", 128, (128, 128), 4): 1004,
    (9, "forward", 256, (128, 64), 4): 4172,
    (9, "forward", 256, (64, 128), 4): 616,
    (9, "forward", 256, (128, 128), 4): 4596,
    (9, "backward", 256, (64, 64, 64, 64), 4): 4272,
    (9, "backward", 256, (64, 64, 64, 64), 8): 2160,
    (9, "backward", 256, (32, 64, 64, 32), 4): 3632,
}
"""Bytes a thread spills with two-byte elements, the least over 1 to 5 stages, by (major compute
capability, direction, head dimension, blocks, warps)."""
