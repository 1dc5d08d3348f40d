"""Which candidate of a record is run, and as what: a CUTLASS or Triton kernel of a product or an attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inductor_plugin.cache import Measured, Record
from inductor_plugin.errors import CacheError
from inductor_plugin.problem.attention import DIRECTIONS
from inductor_plugin.problem.definition import problem_in
from inductor_plugin.problem.target import Target
from tests.emulator.recorded import compiled, compiled_heads, heads, products
from tests.emulator.recorded.call import Call

_KIND = "triton"


def runs(row: Measured) -> bool:
    """Return whether a candidate is of a kind whose PTX can be emulated."""
    return row.kind == _KIND or row.name.startswith((products.PREFIX, heads.PREFIX))


def chosen(record: Record, wanted: str) -> Measured:
    """Return the candidate to run: the one that is wanted, the winner, or the fastest that can be run.

    Args:
        record: The record.
        wanted: Its identity, the start of one, or its name, with or without the template; the fastest of a name. Empty for none.

    Raises:
        CacheError: The record has no such candidate.
    """
    rows = sorted(filter(runs, record.candidates.values()), key=_slowness)
    if not rows:
        kinds = ", ".join(sorted({row.name for row in record.candidates.values()})) or "none"
        raise CacheError(
            f"{record.describe} has no CUTLASS or Triton candidate, and of no other is there PTX; its candidates are: {kinds}"
        )
    if wanted:
        return _named(record, rows, wanted)
    decision = record.valid_decision
    winner = decision.winner if decision else ""
    return next((row for row in rows if row.candidate == winner), rows[0])


def _named(record: Record, rows: list[Measured], wanted: str) -> Measured:
    """Return the first row that a text names."""
    for matches in (_is_identity, _is_name, _begins):
        for row in rows:
            if matches(row, wanted):
                return row
    names = ", ".join(sorted(row.candidate for row in rows))
    if any(wanted in (row.name, row.candidate) for row in record.candidates.values()):
        raise CacheError(
            f"of {wanted!r} there is no PTX, it is a library kernel; there are {names}"
        )
    raise CacheError(f"no candidate {wanted!r}; there are {names}")


def _is_identity(row: Measured, wanted: str) -> bool:
    return row.candidate == wanted


def _is_name(row: Measured, wanted: str) -> bool:
    return row.name in (wanted, products.PREFIX + wanted, heads.PREFIX + wanted)


def _begins(row: Measured, wanted: str) -> bool:
    return row.candidate.startswith(wanted)


def _slowness(row: Measured) -> tuple[bool, float, str]:
    return row.median_ms is None, row.median_ms or 0.0, row.candidate


def call_of(
    record: Record, row: Measured, target: Target, environment: Mapping[str, Any]
) -> Call | str:
    """Return the call of a candidate, or why it cannot be run.

    Args:
        record: The record.
        row: The candidate.
        target: The GPU.
        environment: The fields of the record's environment.
    """
    problem = problem_in(record.problem)
    if problem is None:
        return (
            "its sizes vary, or it is of another version; tune the call with sizes that are known"
        )
    if problem.epilogue:
        what = problem.epilogue.partition("-")[0]
        return (
            f"it has an epilogue, {what}, which is compiled into the kernel; run the record of {problem.op} alone, "
            "or tests/emulator/suite/cases/trees.py, which has such kernels"
        )
    if row.name.startswith(products.PREFIX):
        return products.call_of(problem, row.name, target)
    if row.name.startswith(heads.PREFIX):
        return heads.call_of(problem, row.name, target)
    if problem.op in DIRECTIONS:
        return compiled_heads.call_of(problem, row, target)
    numerics = environment.get("numerics", {})
    return compiled.call_of(problem, row, target, str(numerics.get("float32_matmul_precision", "")))
