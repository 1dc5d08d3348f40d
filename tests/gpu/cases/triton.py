"""The GPU cases of the Triton templates; every tile a template offers runs in one of them."""

from __future__ import annotations

from typing import Any

import torch

from tests.gpu.cases.graphs import (
    addmm,
    addmm_scaled,
    baddbmm,
    bmm,
    int4,
    int4_unpacked,
    mm,
    scaled,
    scaled_bias,
    scaled_fast,
    unscaled,
)
from tests.gpu.cases.product import (
    BF16,
    E4M3,
    FP16,
    FP32,
    Case,
    Spec,
    by_rows,
    matrices,
    row_scales,
)


def triton_cases() -> list[Case]:
    """Return the cases of the Triton templates; every tile a template offers runs in one of them."""
    tma, decode, split = "triton_persistent_tma", "triton_decode", "triton_split_k"
    many = 12
    cases = [
        Case(
            "mm",
            tma,
            "mm",
            mm,
            matrices(512, 768, 1024),
            wanted=("WARP_SPECIALIZE=True",),
            first=many,
        ),
        Case("mm, large", tma, "mm", mm, matrices(4096, 4096, 1024), first=many),
        *(
            Case(f"mm {order}", tma, "mm", mm, matrices(512, 768, 1024, order))
            for order in ("tt", "nn", "nt")
        ),
        Case("mm, odd rows", tma, "mm", mm, matrices(333, 264, 1000), first=many),
        Case("mm fp16", tma, "mm", mm, matrices(512, 768, 1024, "tt", FP16)),
        Case("addmm", tma, "addmm", addmm_scaled, (Spec((768,)), *matrices(512, 768, 1024))),
        Case("mm, 1 row", decode, "mm", mm, matrices(1, 4096, 4096), first=many),
        Case("mm, 2 rows, B by rows", decode, "mm", mm, matrices(2, 4096, 4096, "tt"), first=many),
        Case("mm, 16 rows", decode, "mm", mm, matrices(16, 4096, 4096), first=many),
        Case("mm, 32 rows, odd sizes", decode, "mm", mm, matrices(31, 1003, 1111), first=many),
        Case("mm fp16, 7 rows", decode, "mm", mm, matrices(7, 512, 2048, "tt", FP16)),
        Case("addmm, 4 rows", decode, "addmm", addmm, (Spec((4096,)), *matrices(4, 4096, 4096))),
        Case("mm, long sum", split, "mm", mm, matrices(64, 512, 8192), first=many),
        Case("mm, one row", split, "mm", mm, matrices(1, 512, 8192), first=many),
        Case("mm, odd sizes", split, "mm", mm, matrices(33, 259, 4105), first=many),
        Case("mm, few columns", split, "mm", mm, matrices(512, 24, 4096, "tt"), first=many),
        Case("addmm", split, "addmm", addmm_scaled, (Spec((512,)), *matrices(128, 512, 8192))),
    ]
    sizes = ((tma, 256, 384, 512), (decode, 8, 512, 1024), (split, 32, 128, 4096))
    batched = [
        Case(f"bmm, {what}", name, "bmm", bmm, (Spec((4, m, k), stride=(step, k, 1)), b))
        for name, m, n, k in sizes
        for b in (Spec((4, k, n)),)
        # The TMA template leaves a batch that shares a matrix to CUTLASS: see its reason.
        for what, step in (("a batch", m * k), ("one A for all", 0))
        if step or name != tma
    ]
    biased = [
        Case(
            "baddbmm",
            name,
            "baddbmm",
            baddbmm,
            (Spec((4, m, n)), Spec((4, m, k)), Spec((4, k, n), stride=(k * n, 1, k))),
        )
        for name, m, n, k in sizes
    ]
    return [*cases, *batched, *biased, *_triton_scaled(), *_triton_int4()]


def _triton_scaled() -> list[Case]:
    t, op, (m, n, k) = "triton_fp8", "scaled_mm", (512, 768, 1024)
    pair = matrices(m, n, k, "tn", E4M3)
    blocks = k // 128
    # torch._scaled_mm wants the scales of blocks with the long side contiguous.
    by_block = (
        Spec((m, blocks), FP32, (1, m), "scale"),
        Spec((blocks, n // 128), FP32, (1, blocks), "scale"),
    )
    facts: dict[str, Any] = {"reference": unscaled, "first": 12}
    odd = matrices(333, 272, 1040, "tn", E4M3)
    return [
        Case("by row", t, op, scaled_fast, (*pair, *row_scales(m, n)), tolerance=0.02, **facts),
        Case("by row, slow sums", t, op, scaled, (*pair, *row_scales(m, n)), **facts),
        Case("by row, odd sizes", t, op, scaled, (*odd, *row_scales(333, 272)), **facts),
        Case("by block", t, op, scaled, (*pair, *by_block), **facts),
        Case(
            "a bias",
            t,
            op,
            scaled_bias,
            (*pair, *row_scales(m, n), Spec((n,))),
            tolerance=0.02,
            **facts,
        ),
    ]


def _triton_int4() -> list[Case]:
    def case(name: str, m: int, n: int, k: int) -> Case:
        weight = Spec((n // 8, k // 128, 32, 4), torch.int32, values="int4")
        scales = Spec((k // 64, n, 2), BF16, values="scale")
        operands = (by_rows(m, k), weight, scales)
        op = "weight_int4pack_mm"
        facts: dict[str, Any] = {"reference": int4_unpacked, "first": 12, "tolerance": 0.02}
        return Case(name, "triton_int4", op, int4, operands, **facts)

    return [
        case("1 row", 1, 2048, 2048),
        case("16 rows", 16, 1024, 2048),
        case("63 rows", 63, 512, 1152),
    ]
