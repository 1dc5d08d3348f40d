"""What the static analysis of fusions saves, by the committed facts; nothing is compiled."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.fusion.pruning import OUT, Case, cases_of, row_of, summaries


@pytest.fixture(name="store", scope="module")
def committed() -> dict[str, Any]:
    return json.loads(OUT.read_text(encoding="utf-8"))


@pytest.fixture(name="cases", scope="module")
def all_cases(store: dict[str, Any]) -> list[Case]:
    return cases_of(store)


def test_the_committed_summary_is_that_of_its_rows(store: dict[str, Any]) -> None:
    assert summaries(store["rows"]) == store["summary"]


def test_the_committed_rows_are_what_is_decided_now(
    store: dict[str, Any], cases: list[Case]
) -> None:
    """A change of the analysis shows here: run the command with ``--compare-only``."""
    assert [row_of(case) for case in cases] == store["rows"]


def test_the_analysis_compiles_less_than_a_plain_count(store: dict[str, Any]) -> None:
    for part in store["summary"].values():
        count, analysis = part["count"], part["analysis"]
        assert analysis["compiled"] < count["compiled"] < part["all"]["compiled"]
        assert analysis["compiled_in_vain"] < count["compiled_in_vain"]
        assert analysis["compiled"] <= part["ranking"]["compiled"]
    everything = store["summary"]["all"]
    assert 2 * everything["analysis"]["compiled"] < everything["count"]["compiled"]
    assert everything["analysis"]["nothing_measured"] <= everything["count"]["nothing_measured"]


def test_verdicts_are_seldom_wrong(store: dict[str, Any]) -> None:
    everything = store["summary"]["all"]
    assert everything["pruned_wrongly"] <= everything["pruned_rightly"] / 8
    wrong = everything["pruned_wrongly"] + everything["kept_wrongly"]
    assert wrong <= 0.07 * everything["pairs"]
    assert everything["analysis"]["slower_than_all"] <= 0.05 * everything["cases"]


def test_what_was_made_to_spill_does(store: dict[str, Any]) -> None:
    stress = store["summary"]["stress"]
    assert stress["pairs"] >= 24
    assert stress["spilling"] > stress["pairs"] / 2
    assert {entry["gpu"] for entry in store["kernels"].values()} == {"A100", "H200"}
    assert any("float32" in name for name in store["epilogues"])


def test_a_wrong_verdict_is_counted(cases: list[Case]) -> None:
    case = next(case for case in cases if case.kind == "stress")
    harmless = [replace(candidate, fused=replace(candidate.fused, registers=32, spilled_bytes=0, shared_bytes=0))
                for candidate in case.candidates]  # fmt: skip
    before, after = row_of(case), row_of(replace(case, candidates=tuple(harmless)))
    assert after["spilling"] == 0
    assert after["pruned_wrongly"] > before["pruned_wrongly"]
