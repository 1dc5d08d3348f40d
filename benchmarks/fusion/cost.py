"""How long a kernel would take: one model for both arms of `benchmarks.fusion.fusions`, knowing no answer.

A kernel takes a start, and then the longer of what it computes and what it moves:

    product    waves x tile x K on the tensor cores, at 60 % of their peak, less for small tiles;
               bytes of its operands and of what it writes, at 85 % of the memory's
    fused      the same main loop with a little less of its speed (0 to 10 %: the registers), what the
               epilogue reads and writes besides, and its arithmetic; a prologue computes its
               operations again for each tile that reads them
    pointwise  arithmetic and bytes

Every kernel differs from that by a factor of its own, +-15 %, taken from a digest of what it is (not
of its text: both arms write the same kernel a little differently); a product keeps its own with an
epilogue. How a library's product compares is the setting:

    digest     the best of Inductor's tiles at 65 % of the peak, and a factor of its own like everyone
    faster     1.3 times faster than the fastest Triton kernel, always
    slower     1.1 times slower than the fastest Triton kernel, always
    noisy      as ``digest``, but a fused kernel has another factor than the same kernel bare
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inductor_plugin.problem.target import Target

Setting = Literal["digest", "faster", "slower", "noisy"]
SETTINGS: tuple[Setting, ...] = ("digest", "faster", "slower", "noisy")

START_US = 3.0
TRITON, LIBRARY = 0.60, 0.65
MEMORY = 0.85
LANES = 128
CYCLES = {"exp": 8, "tanh": 16, "erf": 16, "rsqrt": 8, "sqrt": 8, "truediv": 8, "sigmoid": 12}
TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))


@dataclass(frozen=True)
class Product:
    """A batch of products [m, k] @ [k, n] of 2-byte elements."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def operand_bytes(self) -> int:
        """Bytes of both operands."""
        return 2 * self.batch * self.k * (self.m + self.n)

    @property
    def written_bytes(self) -> int:
        """Bytes of the result."""
        return 2 * self.batch * self.m * self.n


@dataclass(frozen=True)
class Work:
    """What a generated kernel does.

    Attributes:
        product: Its product; None for a pointwise kernel.
        name: What tells the product's kernel from others.
        tile: (m, n) of that kernel.
        read_bytes: All it reads.
        written_bytes: All it writes.
        cycles: Arithmetic besides the product, in simple operations.
        label: What tells its arithmetic from others.
        alone: Whether it is the product and nothing else.
    """

    product: Product | None
    name: str
    tile: tuple[int, int]
    read_bytes: int
    written_bytes: int
    cycles: float
    label: str
    alone: bool = False

    @property
    def kernel(self) -> str:
        """What it is but for its sizes: kernels of one name take the same registers."""
        return self.name if self.alone else f"{self.name} + {self.label}"


@dataclass(frozen=True)
class Cost:
    """Times on one GPU in one setting, in microseconds."""

    target: Target
    setting: Setting

    def triton(self, product: Product, name: str, tile: tuple[int, int]) -> float:
        """Return the time of a product's Triton kernel alone."""
        computing = self._computing(product, tile, TRITON)
        moving = self._moving(product.operand_bytes + product.written_bytes)
        return START_US + max(computing, moving) * factor(f"{product} {name}")

    def library(self, product: Product, triton_us: Sequence[float]) -> float:
        """Return the time of a product's library kernel.

        Args:
            product: The product.
            triton_us: Times of all its Triton kernels.
        """
        if self.setting == "faster":
            return min(triton_us) / 1.3
        if self.setting == "slower":
            return min(triton_us) * 1.1
        computing = min(self._computing(product, tile, LIBRARY) for tile in TILES)
        moving = self._moving(product.operand_bytes + product.written_bytes)
        return START_US + max(computing, moving) * factor(f"{product} library")

    def generated(self, work: Work) -> float:
        """Return the time of a kernel that Inductor wrote."""
        moving = self._moving(work.read_bytes + work.written_bytes)
        arithmetic = work.cycles / (self.target.multiprocessors * LANES * self.target.clock_mhz)
        if work.product is None:
            return START_US + max(moving, arithmetic) * factor(f"{work.label} {work.read_bytes}")
        same = factor(f"{work.product} {work.name}")
        if self.setting == "noisy" and not work.alone:
            same = factor(f"{work.product} {work.name} {work.label}")
        slowed = 1.0 if work.alone else 1.05 + (factor(f"{work.name} {work.label}") - 1) / 3
        computing = self._computing(work.product, work.tile, TRITON) * slowed
        return START_US + (max(computing, moving) + arithmetic) * same

    def _computing(self, product: Product, tile: tuple[int, int], share: float) -> float:
        m, n = tile
        tiles = math.ceil(product.m / m) * math.ceil(product.n / n) * product.batch
        waves = math.ceil(tiles / self.target.multiprocessors)
        operations = waves * self.target.multiprocessors * 2.0 * m * n * product.k
        peak = (self.target.rate("bfloat16") or 0.0) * share * min(1.0, m * n / 16384) ** 0.25
        return operations / peak * 1e6

    def _moving(self, moved: float) -> float:
        return moved / (self.target.memory_bandwidth * MEMORY) * 1e6


def factor(text: str) -> float:
    """Return 0.85 to 1.15, the same for the same text."""
    digest = hashlib.sha256(text.encode()).digest()
    return 0.85 + 0.30 * int.from_bytes(digest[:4], "big") / 2**32
