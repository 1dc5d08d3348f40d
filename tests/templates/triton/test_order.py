"""Which tiles of the Triton templates are tried, in which order, and how many for one problem."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from inductor_plugin.cost import nvidia
from inductor_plugin.cost.gemm import ranked
from inductor_plugin.cost.tile import GemmShape
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import Target, target
from inductor_plugin.template import Template
from inductor_plugin.templates import BUILTIN
from inductor_plugin.templates.triton.order import (
    ALIKE,
    LEAST_SHARED_BYTES,
    LIMIT,
    TritonTile,
    ordered,
    room_of,
)

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

SHAPE = GemmShape(4096, 4096, 4096)
TILES = (
    TritonTile(64, 64, 64, 3, 4),
    TritonTile(128, 256, 64, 3, 8),
    TritonTile(128, 256, 64, 4, 8),
    TritonTile(128, 256, 64, 2, 8),
    TritonTile(256, 256, 64, 2, 8),
)


def test_the_order_is_the_models_where_the_gpu_is_known() -> None:
    ranked_tiles = ordered(target("H100"), SHAPE, TILES, 12)
    assert ranked_tiles[0].shape == "128x256x64"
    assert ranked_tiles[-1] == TILES[0]


def test_what_does_not_fit_is_never_offered() -> None:
    # 144 KiB of stages fit a block of an A100 (163 KiB), not one of an L40S (99 KiB); 256x256 spills.
    assert {config.stages for config in ordered(target("A100"), SHAPE, TILES, 12)} == {2, 3}
    assert ordered(target("L40S"), SHAPE, TILES[:3], 12) == [TILES[0]]
    beside = [replace(tile, beside=100 << 10) for tile in TILES]
    assert {config.shape for config in ordered(target("H100"), SHAPE, beside, 12)} == {
        "64x64x64", "128x256x64",
    }  # fmt: skip
    assert TILES[4] not in ordered(target("H100"), SHAPE, TILES, 12)


def test_for_an_unknown_gpu_the_order_given_stands_and_all_fit_the_smallest() -> None:
    assert ordered(None, SHAPE, TILES, 12) == [TILES[0], TILES[3]]
    assert room_of(None) == LEAST_SHARED_BYTES
    assert min(target(name).shared_per_block for name in ("L40S", "RTX 4090")) == room_of(None)


def test_nobody_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def suggestions(*asked: object) -> str:
        raise AssertionError(asked)

    monkeypatch.setattr(nvidia, "suggestions", suggestions)
    ranked_tiles = ordered(target("H100"), SHAPE, TILES, 12)
    best = ranked(target("H100"), SHAPE, [tile.config for tile in TILES])
    assert [tile.config for tile in ranked_tiles] == [
        offer.config for offer in best if offer.config.stages != 2
    ]


def test_alike_tiles_leave_room_for_others() -> None:
    alike = [replace(TILES[0], stages=stages) for stages in (3, 4, 5)]
    ranked_tiles = ordered(target("H100"), SHAPE, [*alike, TILES[1]], 3)
    assert [tile.shape for tile in ranked_tiles].count("64x64x64") == ALIKE
    assert len(ranked_tiles) == 3


ROWS = (1, 2, 16, 32, 48, 64, 256, 1024, 4096, 8192)
WEIGHTS = {
    "8B, q": (4096, 4096), "8B, kv": (1024, 4096), "8B, up": (28672, 4096),
    "8B, down": (4096, 14336), "8B, head": (128256, 4096),
    "70B, qkv": (10240, 8192), "70B, up": (57344, 8192), "70B, down": (8192, 28672),
}  # fmt: skip
"""(N, K) of the matrices of Llama 3."""
TARGETS = ("H100", "H200", "A100", "L40S", "RTX 4090", "B200", None)
TRITON: tuple[Template, ...] = tuple(
    template for template in BUILTIN if template.name.startswith("triton_")
)


def cuda(size: tuple[int, ...], stride: tuple[int, ...], dtype: str) -> Operand:
    return Operand(size, stride, dtype, "cuda")


def linear(m: int, n: int, k: int, dtype: str, known: Target | None) -> Problem:
    """Return the product of a linear layer."""
    a, b = cuda((m, k), (k, 1), dtype), cuda((k, n), (1, k), dtype)
    if not dtype.startswith("float8"):
        return Problem("mm", (a, b), cuda((m, n), (n, 1), dtype), target=known)
    scales = (cuda((m, 1), (1, 1), "float32"), cuda((1, n), (1, 1), "float32"))
    fast = (("use_fast_accum", "True"),)
    out = cuda((m, n), (n, 1), "bfloat16")
    return Problem("scaled_mm", (a, b, *scales), out, fast, target=known)


def packed(m: int, n: int, k: int, known: Target | None) -> Problem:
    """Return a product with 4-bit weights."""
    b = cuda((n // 8, k // 128, 32, 4), (k // 128 * 128, 128, 4, 1), "int32")
    scales = cuda((k // 64, n, 2), (2 * n, 2, 1), "bfloat16")
    inputs = (cuda((m, k), (k, 1), "bfloat16"), b, scales)
    out = cuda((m, n), (n, 1), "bfloat16")
    return Problem("weight_int4pack_mm", inputs, out, (("group", "64"),), target=known)


def heads(b: int, m: int, n: int, k: int, known: Target | None) -> Problem:
    """Return the products of a batch."""
    inputs = tuple(
        cuda((b, rows, columns), (rows * columns, columns, 1), "float16")
        for rows, columns in ((m, k), (k, n))
    )
    return Problem("bmm", inputs, cuda((b, m, n), (m * n, n, 1), "float16"), target=known)


def problems(known: Target | None) -> Iterator[Problem]:
    for m, (n, k) in itertools.product(ROWS, WEIGHTS.values()):
        for dtype in ("bfloat16", "float16", "float8_e4m3fn"):
            yield linear(m, n, k, dtype, known)
        yield packed(m, n, k, known)
    for m, (n, k) in itertools.product(ROWS, ((128, 2048), (2048, 128), (4096, 4096))):
        yield heads(32, m, n, k, known)


@pytest.mark.parametrize("name", TARGETS)
def test_each_problem_has_a_few_candidates_or_the_reason_of_each_template(
    name: str | None,
) -> None:
    known = target(name) if name else None
    seconds: list[float] = []
    without: set[tuple[str, str]] = set()
    for problem in problems(known):
        templates = [template for template in TRITON if problem.op in template.ops]
        assert templates, problem.op
        begun = time.perf_counter()
        reasons = {template.name: template.reject(problem) for template in templates}
        offered = [
            candidate
            for template in templates
            if reasons[template.name] is None
            for candidate in template.candidates(problem)
        ]
        seconds.append(time.perf_counter() - begun)
        assert len(offered) <= LIMIT, problem.describe()
        assert len({(offer.template, offer.name) for offer in offered}) == len(offered)
        if not offered:
            assert all(reasons.values()), problem.describe()
            without |= {(problem.op, reasons[template.name] or "") for template in templates}
    # The median: the machine may be busy with something else for a moment.
    assert statistics.median(seconds) < 5e-3
    if name in ("H100", "H200", "B200", None):
        assert {op for op, _ in without} <= {"weight_int4pack_mm"}
    for op, reason in without:
        assert op != "weight_int4pack_mm" or reason.startswith("it is for at most 64 rows")


def test_a_template_says_that_a_device_is_too_old_only_where_it_is() -> None:
    old, new = (linear(4096, 4096, 4096, "bfloat16", target(name)) for name in ("A100", "H100"))
    said = {
        template.name: (template.reject(old), template.reject(new))
        for template in TRITON
        if "mm" in template.ops
    }
    before, now = said["triton_persistent_tma"]
    assert before == "it needs compute capability 9.0, the device has 8.0"
    assert now is None
