"""The GPU cases of CUTLASS: operators, schedules, types, orders, alignments, sizes."""

from __future__ import annotations

from typing import Any

import torch

from tests.gpu.cases.graphs import (
    addmm,
    addmm_scaled,
    baddbmm,
    bmm,
    exact,
    grouped,
    int_mm,
    mm,
    scaled,
    scaled_bias,
    scaled_fast,
    ungrouped,
    unscaled,
)
from tests.gpu.cases.product import (
    E4M3,
    E5M2,
    FP16,
    FP32,
    Case,
    Spec,
    by_columns,
    by_rows,
    matrices,
    row_scales,
)

_TENSOR_SCALES = (Spec((), FP32, values="scale"),) * 2
_HOPPER = ("pingpong", "cooperative", "stream_k")


def cutlass_cases() -> list[Case]:
    """Return the cases of CUTLASS: operators, schedules, types, orders, alignments, sizes."""
    t, small = "cutlass", (512, 768, 1024)
    cases = [
        Case("mm", t, "mm", mm, matrices(*small), wanted=_HOPPER, first=16, rows=(1, 64, 1000)),
        Case(
            "mm, few rows and a long sum",
            t,
            "mm",
            mm,
            matrices(64, 256, 16384),
            wanted=(r"stream_k.*_split\d",),
            first=16,
        ),
        Case("mm, 1 row", t, "mm", mm, matrices(1, 4096, 4096), first=4, rows=(2, 8, 33)),
        Case("mm, large", t, "mm", mm, matrices(4096, 4096, 1024), wanted=("swizzle",)),
        *(
            Case(f"mm {order}", t, "mm", mm, matrices(*small, order), wanted=_HOPPER[:2])
            for order in ("tt", "nn", "nt")
        ),
        Case("mm fp16", t, "mm", mm, matrices(*small, "tn", FP16), wanted=_HOPPER[:2]),
        Case(
            "mm tf32", t, "mm", mm, matrices(*small, "tn", FP32), precision="high", tolerance=0.004
        ),
        Case("mm, odd rows", t, "mm", mm, matrices(333, 264, 1000), rows=(7, 129)),
        Case("mm, rows of 8 bytes", t, "mm", mm, matrices(333, 260, 1004), wanted=("multistage",)),
        Case("mm, rows of 2 bytes", t, "mm", mm, matrices(333, 257, 1001), wanted=("multistage",)),
        Case(
            "mm, padded rows",
            t,
            "mm",
            mm,
            (by_rows(256, 512, lead=640), by_columns(512, 384, lead=704)),
            wanted=_HOPPER[:2],
        ),
        Case("int_mm", t, "int_mm", int_mm, _whole(256, 512, 384), reference=exact, first=4),
    ]
    return [
        *cases,
        *_cutlass_biased(),
        *_cutlass_batched(),
        *_cutlass_scaled(),
        *_cutlass_grouped(),
    ]


def _whole(m: int, k: int, n: int) -> tuple[Spec, Spec]:
    a, b = by_rows(m, k, torch.int8), by_columns(k, n, torch.int8)
    return Spec(a.size, a.dtype, a.stride, "small"), Spec(b.size, b.dtype, b.stride, "small")


def _cutlass_biased() -> list[Case]:
    t, (m, n, k) = "cutlass", (512, 768, 1024)
    a, b = matrices(m, n, k)
    cut = _HOPPER[:2]
    return [
        Case("addmm, a row", t, "addmm", addmm_scaled, (Spec((n,)), a, b), wanted=cut, rows=(40,)),
        Case("addmm, a column", t, "addmm", addmm, (Spec((m, 1)), a, b), wanted=cut),
        Case("addmm, all of C", t, "addmm", addmm_scaled, (by_rows(m, n), a, b), wanted=cut),
        Case(
            "addmm, padded C",
            t,
            "addmm",
            addmm,
            (by_rows(m, n, lead=1024), a, b),
            wanted=cut,
        ),
    ]


def _cutlass_batched() -> list[Case]:
    t = "cutlass"
    a, b = Spec((4, 256, 512)), Spec((4, 512, 384))
    shared_a = Spec((4, 256, 512), stride=(0, 512, 1))
    shared_b = Spec((4, 512, 384), stride=(0, 1, 512))
    return [
        Case("bmm", t, "bmm", bmm, (a, b), wanted=_HOPPER[:2], first=4),
        Case("bmm, one A for all", t, "bmm", bmm, (shared_a, b), wanted=_HOPPER[:2]),
        Case("bmm, one B for all", t, "bmm", bmm, (a, shared_b), wanted=_HOPPER[:2]),
        Case("baddbmm", t, "baddbmm", baddbmm, (Spec((4, 256, 384)), a, b), wanted=_HOPPER[:2]),
    ]


def _cutlass_scaled() -> list[Case]:
    t, (m, n, k) = "cutlass", (512, 768, 1024)
    pair = matrices(m, n, k, "tn", E4M3)
    mixed = (by_rows(m, k, E5M2), by_columns(k, n, E4M3))
    rows, cut, op = row_scales(m, n), _HOPPER[:2], "scaled_mm"
    loose = 0.02  # fast sums keep fewer bits
    facts: dict[str, Any] = {"reference": unscaled, "wanted": cut}
    return [
        Case(
            "fp8, a scale each",
            t,
            op,
            scaled_fast,
            (*pair, *_TENSOR_SCALES),
            tolerance=loose,
            **facts,
        ),
        Case("fp8, scales by row", t, op, scaled_fast, (*pair, *rows), tolerance=loose, **facts),
        Case("fp8, slow sums", t, op, scaled, (*pair, *rows), **facts),
        Case(
            "fp8, a bias", t, op, scaled_bias, (*pair, *rows, Spec((n,))), tolerance=loose, **facts
        ),
        Case("fp8 e5m2", t, op, scaled_fast, (*mixed, *rows), tolerance=loose, **facts),
        Case(
            "fp8 e5m2, slow sums, a scale each", t, op, scaled, (*mixed, *_TENSOR_SCALES), **facts
        ),
    ]


def _cutlass_grouped() -> list[Case]:
    t, op = "cutlass", "grouped_mm"
    a = by_rows(512, 256)
    facts: dict[str, Any] = {"reference": ungrouped, "wanted": _HOPPER[:2]}
    b = Spec((4, 256, 384), stride=(256 * 384, 1, 256))
    b_rows = Spec((4, 256, 384))
    ends = {"even": (128, 256, 384, 512), "odd": (3, 200, 457, 512)}
    ends["with empty groups"] = (0, 300, 300, 512)

    def case(name: str, second: Spec, operands: tuple[int, ...]) -> Case:
        groups = Spec((4,), torch.int32, contents=operands)
        return Case(f"grouped, {name}", t, op, grouped, (a, second, groups), **facts)

    return [
        *(case(name, b, end) for name, end in ends.items()),
        case("B by rows", b_rows, ends["odd"]),
    ]
