"""Which candidate of a record is run: the one that is wanted, the winner, or the fastest of those with PTX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.cache import Measured, Record
from inductor_plugin.errors import CacheError
from tests.emulator.recorded import heads, products
from tests.emulator.recorded.candidate import call_of, chosen
from tests.support.cache.records import decision, measured, record
from tests.support.emulator.products import H100, PROBLEMS, first

SLOW, FAST = f"{products.PREFIX}slow", f"{products.PREFIX}fast"
HEADS = f"{heads.PREFIX}cutlass_fmha_sm90"


def triton(candidate: str, median_ms: float) -> Measured:
    return measured(candidate, median_ms, name=candidate.partition("-")[0], kind="triton")


def recorded_mm(**fields: Any) -> Record:
    return record(
        measured("mm", 0.5),
        measured(SLOW, 3.0),
        measured(FAST, 2.0),
        measured(f"{products.PREFIX}failed", None),
        triton("triton_mm-12", 5.0),
        triton("triton_mm-34", 4.0),
        measured(HEADS, 6.0),
        **fields,
    )


@pytest.mark.parametrize(
    ("winner", "name"),
    [("", FAST), ("mm", FAST), (SLOW, SLOW), ("triton_mm-12", "triton_mm-12"), (HEADS, HEADS)],
)
def test_it_is_the_winner_or_the_fastest(winner: str, name: str) -> None:
    fields = {"decision": decision(winner)} if winner else {}
    assert chosen(recorded_mm(**fields), "").candidate == name


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("slow", SLOW),
        (SLOW, SLOW),
        ("cutlass_fmha_sm90", HEADS),
        ("triton_mm-12", "triton_mm-12"),
        ("triton_mm", "triton_mm-34"),
        ("triton_mm-1", "triton_mm-12"),
        (f"{products.PREFIX}failed", f"{products.PREFIX}failed"),
    ],
)
def test_a_wanted_one_is_named_by_identity_by_name_or_by_its_start(wanted: str, name: str) -> None:
    assert chosen(recorded_mm(), wanted).candidate == name


def test_one_that_is_not_there_or_has_no_ptx_is_an_error_with_those_that_have() -> None:
    with pytest.raises(CacheError, match=f"no candidate 'fats'; there are .*{FAST}.*triton_mm-12"):
        chosen(recorded_mm(), "fats")
    with pytest.raises(CacheError, match="of 'mm' there is no PTX, it is a library kernel"):
        chosen(recorded_mm(), "mm")
    with pytest.raises(
        CacheError, match=r"no CUTLASS or Triton candidate.*; its candidates are: mm"
    ):
        chosen(record(measured("mm")), "")


def test_sizes_that_vary_and_epilogues_are_refused() -> None:
    plain = PROBLEMS["mm"]
    row = measured(first(plain))
    fused = replace(plain, epilogue="relu-0123")
    assert "its sizes vary" in str(call_of(record(row), row, H100, {}))
    written = replace(record(row), problem=fused.fields())
    assert "it has an epilogue, relu" in str(call_of(written, row, H100, {}))
