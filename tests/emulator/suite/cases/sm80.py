"""The cases of CUTLASS's products for sm_80, which also run where TMA cannot read an operand: so of every alignment."""

from __future__ import annotations

from dataclasses import replace

from inductor_plugin.templates.cutlass.config import GemmConfig
from tests.emulator.kernels.gemm import Case
from tests.emulator.suite.cases.configs import SM80, Product, f16, int8, named, orders, tf32, turned


def _aligned(config: GemmConfig, a: int, b: int, d: int) -> GemmConfig:
    return replace(config, align_a=a, align_b=b, align_c=d, align_d=d)


def _uneven() -> dict[str, Case]:
    """Return the alignments of A and B that `cp.async` copies, and two that it does not."""
    narrow = replace(_aligned(SM80, 1, 1, 1), stages=2)
    columns, single, whole = turned(SM80, "nn"), tf32(SM80, 16), int8(SM80, 64)
    odd = replace(turned(narrow, "nt"), bias="full", align_c=1)
    rows = replace(turned(SM80, "tt"), bias="full", align_b=4, align_c=4, align_d=4)
    by_fours = replace(_aligned(turned(single, "nt"), 1, 1, 1), bias="row")
    by_eights = replace(_aligned(turned(single, "nn"), 2, 2, 4), bias="full")
    mixed = replace(_aligned(turned(single, "tt"), 2, 4, 4), bias="row")
    return {
        "odd": Case(replace(narrow, layout_b="row"), 67, 35, 41),
        "odd, A by columns": Case(replace(narrow, layout_a="column"), 33, 67, 129, alpha=-0.5),
        "odd, full bias": Case(odd, 65, 67, 41, beta=2.0),
        "4 bytes": Case(_aligned(SM80, 2, 2, 2), 65, 70, 106),
        "A of 4 bytes, B of 16": Case(
            replace(_aligned(columns, 2, 8, 8), bias="row"), 66, 72, 104, beta=-1.0
        ),
        "A of 16 bytes, B of 8": Case(rows, 65, 68, 104, alpha=0.5),
        "tf32, nt, 4 bytes": Case(by_fours, 65, 67, 41),
        "tf32, nn, 8 bytes": Case(by_eights, 66, 68, 42),
        "tf32, tt, A of 8 bytes": Case(mixed, 65, 68, 42, beta=2.0),
        "int8, A of 4 bytes, B of 8": Case(_aligned(whole, 4, 8, 4), 65, 68, 136),
        "int8, A of 8 bytes, B of 4": Case(_aligned(whole, 8, 4, 1), 65, 67, 136),
    }


def _cases() -> dict[str, Product]:
    row = replace(_aligned(f16(SM80), 4, 4, 4), bias="row")
    full = replace(SM80, bias="full")
    whole = replace(int8(SM80, 64), bias="full")
    output = replace(SM80, c="f32", d="f32", align_d=4)
    cases = {
        **{name: Case(config, 72, 136, 104) for name, config in orders(SM80).items()},
        **_uneven(),
        "bias of a row, 8 bytes": Case(row, 65, 68, 44, alpha=0.5, beta=2.0),
        "full bias": Case(full, 65, 72, 72, batch=2, pad=8, alpha=0.5, beta=-1.0),
        "full bias, beta 0": Case(full, 65, 72, 72, beta=0.0),
        "alpha 0": Case(full, 65, 72, 72, alpha=0.0),
        "tf32": Case(replace(tf32(SM80, 16), bias="full", stages=4), 65, 68, 44, alpha=2.0),
        "tf32, no bias": Case(tf32(SM80, 16), 65, 68, 44),
        "int8": Case(whole, 65, 68, 144),
        "f32 output": Case(output, 65, 68, 136),
        "split": Case(output, 65, 68, 520, split=4),
        "one A for all": Case(SM80, 65, 72, 40, batch=3, shared_a=True),
        "a row, a short sum": Case(SM80, 1, 8, 8),
    }
    return named("sm80", "A100", cases)


CASES = _cases()
"""All by name."""
