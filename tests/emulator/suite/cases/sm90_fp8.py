"""The cases of CUTLASS's products of 8-bit floats for Hopper: scales, biases, slow sums."""

from __future__ import annotations

from dataclasses import replace

from tests.emulator.kernels.gemm import Case
from tests.emulator.suite.cases.configs import COOPERATIVE, SM90, STREAM_K, Product, fp8, named


def _cases() -> dict[str, Product]:
    rows = replace(fp8(SM90), scale="rowwise", bias="row")
    rows_alone = replace(fp8(COOPERATIVE), scale="rowwise", b="e5m2")
    whole = replace(fp8(SM90), scale="tensor", a="e5m2")
    slow = replace(fp8(COOPERATIVE), scale="tensor", b="e5m2", bias="full", fast_accumulation=False)
    slow_rows = replace(fp8(SM90), scale="rowwise", fast_accumulation=False, d="f16", c="f16")
    plain = replace(fp8(SM90), d="f32", c="f32", align_d=4)
    odd = replace(fp8(SM90), align_d=1)
    column = replace(fp8(COOPERATIVE), scale="tensor", bias="column")
    full = replace(fp8(SM90), scale="rowwise", bias="full")
    streamed = fp8(STREAM_K)
    by_row = replace(streamed, scale="tensor", bias="row")
    by_column = replace(streamed, scale="rowwise", bias="column")
    cases = {
        "scales by row, bias": Case(rows, 65, 72, 272),
        "scales by row, e4m3 x e5m2": Case(rows_alone, 129, 72, 144),
        "a scale each, e5m2 x e4m3": Case(whole, 65, 72, 144, batch=0),
        "slow sums, full bias": Case(slow, 129, 72, 272),
        "slow sums, f16": Case(slow_rows, 65, 72, 528),
        "f32 output": Case(plain, 65, 68, 144),
        "odd rows of D": Case(odd, 65, 67, 144),
        "a scale each, bias of a column": Case(column, 129, 72, 144),
        "scales by row, full bias": Case(full, 65, 72, 144),
        "stream-K, a scale each, bias of a row": Case(by_row, 130, 72, 784, multiprocessors=3),
        "stream-K, scales by row, bias of a column": Case(
            by_column, 130, 72, 784, multiprocessors=3
        ),
    }
    return named("sm90 fp8", "H100", cases)


CASES = _cases()
"""All by name."""
