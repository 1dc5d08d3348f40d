"""The cases of CUTLASS's products for Blackwell: one multiprocessor for a tile and two, clusters, biases, scales, orders."""

from __future__ import annotations

from dataclasses import replace

from tests.emulator.kernels.gemm import Case
from tests.emulator.suite.cases.configs import (
    FOUR,
    SM100,
    TWO_SM,
    Product,
    fp8,
    named,
    orders,
    tf32,
    turned,
)


def _biased() -> dict[str, Case]:
    row, full = replace(SM100, bias="row"), replace(SM100, bias="full")
    column, column_tt = replace(TWO_SM, bias="column"), replace(SM100, bias="column")
    row_tt, full_nt = replace(TWO_SM, bias="row"), replace(TWO_SM, bias="full")
    return {
        "bias of a row": Case(row, 131, 72, 72, alpha=0.5, beta=2.0),
        "bias of a row, two SMs": Case(turned(row_tt, "tt"), 259, 72, 72, beta=-1.0),
        "bias of a row, two pairs of SMs": Case(
            turned(replace(FOUR, bias="row"), "nn"), 264, 392, 104, beta=2.0
        ),
        "bias of a column": Case(turned(column_tt, "tt"), 131, 72, 72, beta=-1.0),
        "bias of a column, nt": Case(turned(column_tt, "nt"), 136, 72, 72, batch=2, alpha=0.5),
        "bias of a column, two SMs": Case(column, 259, 72, 72, alpha=0.5, beta=2.0),
        "full bias": Case(full, 131, 72, 72, batch=2, pad=8, beta=-1.0),
        "full bias, beta 0": Case(full, 131, 72, 72, beta=0.0),
        "full bias, two SMs": Case(turned(full_nt, "nt"), 264, 72, 72, batch=2, pad=8, alpha=0.5),
        "alpha 0": Case(turned(full, "nn"), 136, 72, 72, alpha=0.0),
    }


def _tf32() -> dict[str, Case]:
    row = turned(replace(tf32(SM100, 32), bias="row"), "nt")
    column = turned(replace(tf32(TWO_SM, 32), bias="column"), "nn")
    full = turned(replace(tf32(SM100, 32), bias="full"), "tt")
    pairs = turned(replace(tf32(FOUR, 32), tile=(256, 128, 32)), "nt")
    return {
        "tf32": Case(tf32(SM100, 32), 131, 68, 72),
        "tf32, nt, bias of a row": Case(row, 132, 68, 72, beta=2.0),
        "tf32, nn, bias of a column, two SMs": Case(column, 260, 68, 72, alpha=0.5),
        "tf32, tt, full bias": Case(full, 131, 68, 72, beta=-1.0),
        "tf32, nt, two pairs of SMs": Case(pairs, 516, 264, 72),
    }


def _narrow() -> dict[str, Case]:
    single, two = fp8(SM100), fp8(TWO_SM)
    row, column, full, alone = (
        replace(single, scale=scale, bias=bias)
        for scale, bias in (
            ("rowwise", "row"),
            ("rowwise", "column"),
            ("tensor", "full"),
            ("rowwise", "none"),
        )
    )
    plain = replace(single, d="f32", c="f32", align_d=4)
    return {
        "scales by row, bias": Case(row, 131, 72, 272),
        "scales by row, bias of a column": Case(column, 131, 72, 144),
        "scales by row, no bias": Case(alone, 131, 72, 144),
        "scales by row, full bias, two SMs": Case(
            replace(two, scale="rowwise", bias="full"), 259, 72, 144
        ),
        "a scale each, bias of a row": Case(
            replace(single, scale="tensor", bias="row", a="e5m2"), 131, 72, 144
        ),
        "a scale each, full bias": Case(full, 131, 72, 144),
        "a scale each, two SMs": Case(replace(two, scale="tensor", b="e5m2"), 131, 72, 144),
        "a scale each, bias of a column, two SMs": Case(
            replace(two, scale="tensor", bias="column"), 259, 72, 144
        ),
        "f32 output": Case(plain, 131, 68, 144),
    }


def _cases() -> dict[str, Product]:
    tall = replace(SM100, tile=(64, 64, 64))
    output = replace(TWO_SM, tile=(256, 128, 64), c="f32", d="f32", align_d=4)
    cases = {
        **{name: Case(config, 136, 136, 104) for name, config in orders(SM100).items()},
        "64 rows": Case(tall, 65, 72, 136, batch=2, shared_b=True),
        "f32 output, two SMs": Case(output, 259, 136, 136),
        **_biased(),
        **_tf32(),
        **{f"fp8, {name}": case for name, case in _narrow().items()},
    }
    return named("sm100", "B200", cases)


CASES = _cases()
"""All by name."""
