"""What the project offers of CUTLASS's kernels, by enumeration: what its cases have to be.

Products have too many combinations for a case of each. What two facts of a kernel do to each other is covered: each pair of a
schedule, a kind of numbers, a bias, scales, orders of A and B, groups, and rows of D that TMA does not write is in some case. Clusters
and alignments have pairs of their own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from inductor_plugin.problem.attention import Mask
from inductor_plugin.problem.target import target
from inductor_plugin.templates.cutlass.choices import ALL, choices
from inductor_plugin.templates.cutlass.config import (
    BITS,
    OUTPUTS,
    TMA_BYTES,
    Arch,
    Bias,
    Element,
    GemmConfig,
    Major,
    Scale,
    full_alignment,
)
from inductor_plugin.templates.cutlass.problem import GemmFacts
from inductor_plugin.templates.cutlass_attention import fmha
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from inductor_plugin.templates.cutlass_attention.problem import facts_of
from tests.support.attention.problems import attention

ARCHS: tuple[Arch, ...] = get_args(Arch)
NUMBERS: dict[Element, str] = {
    "bf16": "16 bits",
    "f16": "16 bits",
    "tf32": "tf32",
    "e4m3": "8-bit floats",
    "e5m2": "8-bit floats",
    "s8": "int8",
}
"""What tensor cores multiply, by the type of A."""
_TYPES: tuple[Element, ...] = ("bf16", "tf32", "e4m3", "s8")
_WIDE = 512
"""Rows, columns and K of the products that are asked for: whole tiles of every kernel."""
Fact = tuple[str, str | bool]


@functools.cache
def products(arch: Arch) -> frozenset[GemmConfig]:
    """Return the kernels that are offered of a family, of operands that begin at multiples of 16 bytes and of fewer."""
    return frozenset(
        choice.config
        for facts in _asked()
        if not isinstance(offered := choices(facts, arch, ALL), str)
        for choice in offered
        if choice.config.arch == arch
    )


def _asked() -> Iterator[GemmFacts]:
    """Yield the products that are asked for."""
    for a in _TYPES:
        for d, layout_a, layout_b, bias, scale, grouped in itertools.product(
            OUTPUTS[a],
            get_args(Major),
            get_args(Major),
            get_args(Bias),
            get_args(Scale),
            (False, True),
        ):
            full = full_alignment(a)
            facts = GemmFacts(
                *(_WIDE, _WIDE, _WIDE, 4 if grouped else 1, a, a, d, d, layout_a, layout_b),
                *(full, full, full_alignment(d), full_alignment(d)),
                bias=bias,
                scale=scale,
                grouped=grouped,
            )
            yield facts
            yield replace(facts, align_c=1, align_d=1)
    yield from _narrower()


def _narrower() -> Iterator[GemmFacts]:
    """Yield plain products whose A and B begin at multiples of fewer bytes than 16."""
    for a in _TYPES:
        d, steps = OUTPUTS[a][0], [1 << power for power in range(full_alignment(a).bit_length())]
        for alignments_of_both in itertools.product(steps, steps):
            yield GemmFacts(
                *(_WIDE, _WIDE, _WIDE, 1, a, a, d, d, "row", "column"),
                *(*alignments_of_both, full_alignment(d), full_alignment(d)),
            )


def facts_in(config: GemmConfig) -> dict[str, str | bool]:
    """Return the facts of a kernel that may meet in a mistake."""
    return {
        "schedule": config.schedule,
        "numbers": NUMBERS[config.a],
        "bias": config.bias,
        "scale": config.scale,
        "order": config.order,
        "grouped": config.grouped,
        "narrow rows of D": config.align_d * BITS[config.d] < TMA_BYTES * 8,
    }


def pairs(config: GemmConfig) -> set[tuple[Fact, Fact]]:
    """Return each two facts of a kernel."""
    return set(itertools.combinations(facts_in(config).items(), 2))


def clusters(config: GemmConfig) -> tuple[str, tuple[int, int, int]]:
    """Return a kernel's schedule and cluster."""
    return config.schedule, config.cluster


def alignments(config: GemmConfig) -> set[tuple[str, str, int | bool]]:
    """Return the alignments of a kernel's A and B in elements, and whether they are the same."""
    kind = NUMBERS[config.a]
    same = config.align_a * BITS[config.a] == config.align_b * BITS[config.b]
    return {(kind, "A", config.align_a), (kind, "B", config.align_b), (kind, "A as B", same)}


def heads() -> set[FmhaConfig]:
    """Return the attention kernels that are offered; those of halves are those of bfloat16."""
    gpu = target("H100")
    result: set[FmhaConfig] = set()
    for dim, dtype, backward in itertools.product(
        range(8, 264, 8), ("bfloat16", "float16", "float8_e4m3fn"), (False, True)
    ):
        facts = facts_of(attention(dim=dim, dtype=dtype, backward=backward, mask=Mask()))
        if not isinstance(facts, str):
            result |= {shape_of(config) for config in fmha.configs(facts, gpu)}
    return result


def shape_of(config: FmhaConfig) -> FmhaConfig:
    """Return a kernel of bfloat16 in place of the same one of halves."""
    return replace(config, element="bf16") if config.element == "f16" else config
