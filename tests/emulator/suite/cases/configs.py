"""The kernels that the cases of CUTLASS's products vary, as small as they get, and what changes one: its types, its orders."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inductor_plugin.templates.cutlass.config import Element, GemmConfig, Major
from tests.emulator.kernels.gemm import Case


@dataclass(frozen=True)
class Product:
    """A case and where it runs.

    Attributes:
        case: The kernel and its operands.
        gpu: Name of the GPU.
    """

    case: Case
    gpu: str


SM90 = GemmConfig(
    "sm_90a", (64, 64, 64), (1, 1, 1), "pingpong", "bf16", "bf16", "bf16", "bf16", "f32"
)
"""The smallest kernel of two warp groups: what varies is beside the tile."""
COOPERATIVE = replace(SM90, schedule="cooperative", tile=(128, 64, 64))
STREAM_K = replace(COOPERATIVE, schedule="stream_k")
SM80 = replace(SM90, arch="sm_80", schedule="multistage", tile=(64, 64, 32), stages=3)
SM100 = replace(SM90, arch="sm_100a", schedule="one_sm", tile=(128, 64, 64))
TWO_SM = replace(SM100, schedule="two_sm", tile=(128, 64, 64), cluster=(2, 1, 1))
FOUR = replace(TWO_SM, tile=(256, 256, 64), cluster=(2, 2, 1))
"""Two pairs of blocks in a cluster, side by side along n, as the project offers it."""


def fp8(config: GemmConfig) -> GemmConfig:
    """Return a kernel of 8-bit floats."""
    tile = (*config.tile[:2], 128)
    return replace(config, tile=tile, a="e4m3", b="e4m3", align_a=16, align_b=16)


def int8(config: GemmConfig, depth: int) -> GemmConfig:
    """Return a kernel of 8-bit integers, which loads so many elements of K at once."""
    return replace(
        config,
        tile=(*config.tile[:2], depth),
        a="s8",
        b="s8",
        c="s32",
        d="s32",
        accumulator="s32",
        align_a=16,
        align_b=16,
        align_c=4,
        align_d=4,
    )


def tf32(config: GemmConfig, depth: int) -> GemmConfig:
    """Return a kernel of TF32, which loads so many elements of K at once."""
    tile = (*config.tile[:2], depth)
    wide: Element = "f32"
    return replace(
        config,
        tile=tile,
        a="tf32",
        b="tf32",
        c=wide,
        d=wide,
        align_a=4,
        align_b=4,
        align_c=4,
        align_d=4,
    )


def f16(config: GemmConfig) -> GemmConfig:
    """Return a kernel of halves."""
    return replace(config, a="f16", b="f16", c="f16", d="f16")


def turned(config: GemmConfig, order: str) -> GemmConfig:
    """Return a kernel with the orders of A and B in CUTLASS's letters, as `GemmConfig.order` has them."""
    a: Major = "row" if order[0] == "t" else "column"
    b: Major = "row" if order[1] == "t" else "column"
    return replace(config, layout_a=a, layout_b=b)


def orders(config: GemmConfig) -> dict[str, GemmConfig]:
    """Return the three orders of operands beside ``tn``, one of them with another type."""
    return {
        "nn": turned(config, "nn"),
        "tt": turned(config, "tt"),
        "nt, f16": turned(f16(config), "nt"),
    }


def named(family: str, gpu: str, cases: dict[str, Case]) -> dict[str, Product]:
    """Return cases by their whole names: the first word of a name is the family of kernels."""
    return {f"{family} {name}": Product(case, gpu) for name, case in cases.items()}
