"""Model of kernel times, the same for all arms of `benchmarks.fusion.fusions`.

The time of a kernel is a launch, and then the longer of its computation and its memory traffic:

    product    waves x tile x K on the tensor cores, at 60 % of their peak, less for small tiles;
               bytes of its operands and outputs, at 85 % of the memory's peak
    fused      the same main loop, 0 to 10 % slower because of its registers; additional reads and
               writes of the epilogue, and its arithmetic; a prologue repeats its operations in each
               tile that reads them
    pointwise  arithmetic and bytes

Each kernel's time is multiplied by a factor within +-15 %, taken from a digest of its identity (not of
its text: the arms generate the same kernel with small differences); a product has the same factor with
an epilogue. The setting determines the time of the library's product:

    digest     the best of Inductor's tiles at 65 % of the peak, and a factor as for other kernels
    faster     1.3 times faster than the fastest Triton kernel, always
    slower     1.1 times slower than the fastest Triton kernel, always
    noisy      as ``digest``, but a fused kernel has a different factor than the bare kernel
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
    """Work of a generated kernel.

    Attributes:
        product: Its product; None for a pointwise kernel.
        name: Identity of the product's kernel.
        tile: (m, n) of that kernel.
        read_bytes: Bytes read.
        written_bytes: Bytes written.
        cycles: Arithmetic besides the product, in simple operations.
        label: Identity of that arithmetic.
        alone: Whether it is the product without epilogue or prologue.
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
        """Its identity without sizes: kernels of one name have the same registers."""
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
        """Return the time of a kernel that Inductor generated."""
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
    """Return a factor from 0.85 to 1.15, the same for equal texts."""
    digest = hashlib.sha256(text.encode()).digest()
    return 0.85 + 0.30 * int.from_bytes(digest[:4], "big") / 2**32
