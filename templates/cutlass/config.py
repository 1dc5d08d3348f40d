"""One CUTLASS GEMM kernel as facts: how it is compiled (`GemmConfig`) and started (`LaunchOptions`).

    D[m, n] = alpha * scale(A[m, k] @ B[k, n]) + beta * C

Sizes, strides and scalars are arguments of the compiled function: a kernel serves all problems of its
types and layouts. D is row-major.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias, cast

from inductor_plugin.problem.definition import item_bytes
from inductor_plugin.templates.cutlass.element import DTYPES, Element
from inductor_plugin.templates.cutlass.evt import Evt

Arch: TypeAlias = Literal["sm_80", "sm_90a", "sm_100a"]
"""The family of kernels; an ``sm_80`` kernel also compiles for and runs on newer devices."""

Major: TypeAlias = Literal["row", "column"]
"""``row``: elements of a row are adjacent."""

Schedule: TypeAlias = Literal[
    "pingpong", "cooperative", "stream_k", "multistage", "one_sm", "two_sm"
]

Bias: TypeAlias = Literal["none", "row", "column", "full"]
"""``row``: C[n], the same in each row of D; ``column``: C[m]; ``full``: C[m, n]."""

Scale: TypeAlias = Literal["none", "tensor", "rowwise"]
"""``tensor``: one float32 for A and one for B; ``rowwise``: scale_a[m] and scale_b[n]."""

Raster: TypeAlias = Literal["heuristic", "along_m", "along_n"]

BITS: dict[str, int] = {element: 8 * item_bytes(dtype) for element, dtype in DTYPES.items()}

OUTPUTS: dict[str, tuple[Element, ...]] = {
    "f16": ("f16", "f32"),
    "bf16": ("bf16", "f32"),
    "tf32": ("f32",),
    "e4m3": ("bf16", "f16", "f32"),
    "e5m2": ("bf16", "f16", "f32"),
    "s8": ("s32",),
}
"""Element types of D by that of A."""

TMA_BYTES = 16
"""TMA reads and writes rows that start at multiples of 16 bytes."""


@dataclass(frozen=True)
class GemmConfig:
    """A compiled kernel. Every field changes the kernel, and the name.

    Attributes:
        arch: The family of kernels.
        tile: Elements of D one block (two blocks for ``two_sm``) computes, and of K it loads at once.
        cluster: Blocks that share loads, along (m, n, k).
        schedule: How warps share the work.
        a: Element type of A.
        b: Element type of B.
        c: Element type of the bias; D's if there is none.
        d: Element type of D.
        accumulator: Element type of the sums.
        layout_a: Order of A[m, k].
        layout_b: Order of B[k, n]; ``column`` means that K is contiguous.
        align_a: Elements: pointer, strides and contiguous extent of A are multiples of it.
        align_b: The same of B.
        align_c: The same of a full C; always 16 bytes where C is not read in full.
        align_d: The same of D.
        bias: Shape of the bias.
        scale: Factors of the sums, besides alpha.
        stages: Tiles of K in flight; 0 for as many as fit.
        fast_accumulation: fp8: leave all sums to the tensor cores, which keep fewer bits.
        grouped: Rows of A belong to groups, each with its own B (``_grouped_mm``).
        epilogue: Operations fused after the product; then there are no alpha, bias and scales.
    """

    arch: Arch
    tile: tuple[int, int, int]
    cluster: tuple[int, int, int]
    schedule: Schedule
    a: Element
    b: Element
    c: Element
    d: Element
    accumulator: Element
    layout_a: Major = "row"
    layout_b: Major = "column"
    align_a: int = 8
    align_b: int = 8
    align_c: int = 8
    align_d: int = 8
    bias: Bias = "none"
    scale: Scale = "none"
    stages: int = 0
    fast_accumulation: bool = True
    grouped: bool = False
    epilogue: Evt | None = None

    def __post_init__(self) -> None:
        # Neither the name nor the kernel depends on a C that is not read: one name, one text.
        if self.bias != "full":
            object.__setattr__(self, "align_c", full_alignment(self.c))

    @property
    def name(self) -> str:
        """The kernel's readable and stable name: its C symbol, which profiles show.

        Example: ``cutlass_sm90_128x128x64_2x1x1_pingpong_bf16_bf16_f32_bf16_tn_align8``.
        """
        family = self.arch.removesuffix("a").replace("_", "")
        parts = [
            f"cutlass_{family}",
            "x".join(map(str, self.tile)),
            "x".join(map(str, self.cluster)),
            f"{self.schedule}_{self.a}_{self.b}_{self.accumulator}_{self.d}_{self.order}",
            self._alignment(),
        ]
        if self.scale != "none":
            parts.append(f"scale_{self.scale}")
        if self.bias != "none":
            parts.append(f"bias_{self.bias}_{self.c}")
        if self.bias == "full" and self.align_c != full_alignment(self.c):
            parts.append(f"aligned{self.align_c}")
        if self.stages:
            parts.append(f"stages{self.stages}")
        if self.is_fp8 and not self.fast_accumulation:
            parts.append("slow")
        if self.grouped:
            parts.append("grouped")
        if self.epilogue is not None:
            parts.append(self.epilogue.name)
        return "_".join(parts)

    @property
    def order(self) -> str:
        """Orders of A and B in CUTLASS's letters: ``t`` for row-major, ``n`` for column-major."""
        return ("t" if self.layout_a == "row" else "n") + ("t" if self.layout_b == "row" else "n")

    @property
    def is_fp8(self) -> bool:
        """Whether A and B are eight-bit floats."""
        return self.a in ("e4m3", "e5m2")

    @property
    def reads_c(self) -> bool:
        """Whether a C as large as D is read."""
        return self.bias == "full" or (
            self.epilogue is not None and self.epilogue.source is not None
        )

    @property
    def transposed_epilogue(self) -> bool:
        """Whether the main loop multiplies the transposed operands, so that its sums are those of D transposed.

        Hopper's main loop for TF32 does so where A and B are row-major: wgmma wants K contiguous, and only the operand that it
        reads from registers can be transposed on its way. Source: `is_swapAB` in CUTLASS's sm90_gmma_builder.inl, and
        `requires_transposed_epilogue` in cutlass_library/sm90_utils.py.
        """
        return self.arch == "sm_90a" and self.a == "tf32" and self.order == "tt"

    @property
    def tma_epilogue(self) -> bool:
        """Whether D (and a full C) move by TMA, which every epilogue beyond alpha and beta needs."""
        if self.transposed_epilogue:
            return False
        whole = [(self.align_d, self.d)]
        if self.bias == "full":
            whole.append((self.align_c, self.c))
        return self.arch != "sm_80" and all(
            align * BITS[element] // 8 >= TMA_BYTES for align, element in whole
        )

    def to_dict(self) -> dict[str, int | str | bool | list[int]]:
        """Return the configuration as plain JSON values."""
        plain: dict[str, int | str | bool | list[int]] = {}
        for field in fields(self):
            if field.name == "epilogue":
                continue
            value = getattr(self, field.name)
            many = isinstance(value, tuple)
            plain[field.name] = list(cast("tuple[int, ...]", value)) if many else value
        if self.epilogue is not None:
            plain["epilogue"] = self.epilogue.describe()
            plain["epilogue_digest"] = self.epilogue.digest
        return plain

    def _alignment(self) -> str:
        if self.align_a == self.align_b and self.align_d == full_alignment(self.d):
            return f"align{self.align_a}"
        return f"align{self.align_a}x{self.align_b}x{self.align_d}"


@dataclass(frozen=True)
class LaunchOptions:
    """How a compiled kernel is started; nothing here needs a compiler.

    Attributes:
        swizzle: Largest number of tiles that neighbouring blocks share a side of (1, 2, 4, 8).
        raster: Direction in which blocks walk over D.
        split_k: Parts of K; 1 for no split. For a stream-K kernel 1 leaves it to CUTLASS.
    """

    swizzle: int = 1
    raster: Raster = "heuristic"
    split_k: int = 1

    @property
    def name(self) -> str:
        """A short suffix for tables; empty for the plain launch."""
        parts = [f"swizzle{self.swizzle}"] if self.swizzle != 1 else []
        if self.raster != "heuristic":
            parts.append(self.raster)
        if self.split_k != 1:
            parts.append(f"split{self.split_k}")
        return "_".join(parts)


def full_alignment(element: Element) -> int:
    """Return how many elements make 16 bytes."""
    return TMA_BYTES * 8 // BITS[element]
