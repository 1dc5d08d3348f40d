"""Records as a GPU would have written them: sizes, spreads and refusals of the kinds that occur. None was measured."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from inductor_plugin.cache import Decision, Measured, Record, digest_of
from inductor_plugin.problem.definition import Operand, Problem
from inductor_plugin.problem.target import target
from inductor_plugin.tuning.report.page.work import work_of

H100: dict[str, Any] = {
    "device": {
        "type": "cuda",
        "name": "NVIDIA H100 80GB HBM3",
        "capability": "9.0",
        "multiprocessors": 132,
        "memory_bytes": 85_029_158_912,
    },
    "software": {"torch": "2.14.1+cu130", "cuda": "13.0", "triton": "3.8.0"},
    "numerics": {"float32_matmul_precision": "highest", "deterministic": False},
}
_EXTENTS = (1, 8, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_CONSTANT = {
    "triton_int4": "B is not packed int4",
    "cutlass_grouped": "the product has no groups",
    "cutlass_blockwise": "scales by block are for compute capability 10.0",
    "cutlass_rowwise": "the product has no scales",
    "cutlass_mixed": "A and B have the same type",
    "triton_split_k": "k is not much larger than m and n",
    "triton_shared_batch": "the product has no batch",
    "triton_fp8": "A is no 8-bit float",
}
"""Reasons of every record, as real ones are."""
_REFUSALS = {
    "triton_decode": "A has more than 16 rows; the decode kernel is for few",
    "cutlass_fp8": "A is bfloat16, not an 8-bit float",
}


def gpu_records(count: int, candidates: int = 20, samples: int = 12) -> Iterator[Record]:
    """Yield records of an H100, always the same ones."""
    draw = random.Random(20)
    peak = target("H100")
    for index in range(count):
        m, n, k = (draw.choice(_EXTENTS[floor:]) for floor in (0, 3, 3))
        problem = _product(m + index * 8, n, k, draw.choice(("bfloat16", "float16")))
        record = Record(
            environment=digest_of(H100),
            op=problem.op,
            digest=digest_of(problem.fields()),
            problem=problem.fields(),
            describe=problem.describe(),
            candidates={},
            rejected=_CONSTANT | dict(draw.sample(sorted(_REFUSALS.items()), draw.randint(0, 2))),
            created=1.79e9,
            updated=1.79e9 + index * 60,
        )
        work = work_of(record.problem, record.describe)
        assert work is not None
        least_ms = 1e3 * max(work.flops / 989e12, work.bytes / peak.memory_bandwidth) + 0.003
        yield _measured(record, least_ms, candidates, samples, draw)


def _product(m: int, n: int, k: int, dtype: str) -> Problem:
    def matrix(rows: int, columns: int) -> Operand:
        return Operand((rows, columns), (columns, 1), dtype, "cuda")

    return Problem("mm", (matrix(m, k), matrix(k, n)), matrix(m, n))


def _measured(
    record: Record, least_ms: float, candidates: int, samples: int, draw: random.Random
) -> Record:
    rows = [_library(least_ms * draw.uniform(1.3, 2.2), samples, draw)]
    for index in range(1, candidates):
        kind = "cutlass" if index % 3 == 0 else "triton"
        rows.append(_candidate(kind, index, least_ms * draw.uniform(1.2, 4.5), samples, draw, 0.03))
    ok = [row for row in rows if row.status == "ok"]
    fastest = min(ok, key=lambda row: row.median_ms or 0.0)
    library = rows[0]
    assert library.median_ms is not None
    assert fastest.median_ms is not None
    speedup = library.median_ms / fastest.median_ms
    winner = fastest if speedup >= 1.02 else library
    reason = f"{winner.candidate} is {speedup:.3f}x the library kernel"
    return replace(
        record,
        candidates={row.candidate: row for row in rows},
        decision=Decision(
            winner.candidate, library.candidate, reason, 1.02, speedup, 1.79e9, len(rows)
        ),
    )


def _library(median_ms: float, samples: int, draw: random.Random) -> Measured:
    return replace(
        _candidate("extern", 0, median_ms, samples, draw),
        candidate="extern::mm",
        name="mm",
        kind="extern",
        description="",
    )


def _candidate(
    kind: str, index: int, median_ms: float, samples: int, draw: random.Random, failing: float = 0.0
) -> Measured:
    tile = f"{draw.choice((64, 128, 256))}x{draw.choice((64, 128, 256))}x{draw.choice((32, 64))}"
    name = f"{kind}_mm_{tile}_{index}"
    fails = draw.random() < failing
    times = tuple(median_ms * (1 + abs(draw.gauss(0, 0.02))) for _ in range(samples))
    middle = sorted(times)[samples // 2]
    return Measured(
        candidate=f"{name}-{index:06x}",
        name=name,
        kind=kind,
        description=f"tile {tile}, {draw.choice((3, 4))} stages, {draw.choice((4, 8))} warps",
        status="pruned" if fails else "ok",
        reason="it spills 64 bytes a thread" if fails else "",
        samples_ms=() if fails else times,
        median_ms=None if fails else middle,
        spread_ms=None if fails else middle * 0.02,
        error=1e-6,
        compile_s=round(draw.uniform(0.8, 6.0), 2),
        kernel=None,
        measured_at=1.79e9,
        provenance={"host": "h100"},
    )
