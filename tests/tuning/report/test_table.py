"""The AUTOTUNE table and the line below it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inductor_plugin.cache import Measured
from inductor_plugin.tuning.counters import Stats
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.report.table import spent_on, summary, table
from inductor_plugin.tuning.ticket import TuningTicket
from tests.support.fakes.tasks import entry, problem, task


def measured(name: str, median_ms: float | None, status: str = "ok") -> Measured:
    reason = "" if status == "ok" else "segmentation fault"
    return Measured(
        f"{name}-1", name, "template", "BLOCK_M=64", status, reason,
        (), median_ms, None, None, None, None, 0.0, {},
    )  # fmt: skip


def ticket(*known: Measured, winner: str | None = None, hit: bool = False) -> TuningTicket:
    verdict = Verdict(winner, None, "fastest") if winner else None
    by_id = {known_name.candidate: known_name for known_name in known}
    selection: Any = None
    return TuningTicket(selection, problem(), "digest", (), by_id, {}, verdict=verdict, hit=hit)


def test_candidates_are_listed_fastest_first_as_inductor_lists_them() -> None:
    text = table(ticket(measured("slow", 0.5), measured("fast", 0.25)))
    assert text.splitlines() == [
        "AUTOTUNE mm(64x32, 32x48)",
        "strides: [32, 1], [48, 1]",
        "dtypes: torch.float32, torch.float32",
        "  fast 0.2500 ms 100.0% BLOCK_M=64",
        "  slow 0.5000 ms 50.0% BLOCK_M=64",
    ]


def test_a_noisy_timing_is_marked() -> None:
    noisy = replace(measured("fast", 0.25), spread_ms=0.3)
    assert table(ticket(noisy)).splitlines()[-1] == (
        "  fast 0.2500 ms 100.0% BLOCK_M=64 (noisy: the samples vary by more than their median)"
    )


def test_failures_are_listed_with_their_reason() -> None:
    text = table(ticket(measured("fast", 0.25), measured("bad", None, "crashed")))
    assert text.splitlines()[-1] == "  bad crashed: segmentation fault"


def test_the_verdict_says_whether_it_was_known() -> None:
    submitted = ticket(measured("fast", 0.25), winner="fast-1", hit=True)
    assert table(submitted).splitlines()[-1] == "  -> fast-1 (known): fastest"
    submitted.hit = False
    assert table(submitted).splitlines()[-1] == "  -> fast-1 (measured): fastest"


def test_a_long_list_is_cut() -> None:
    many = [measured(f"c{i}", 1.0 + i) for i in range(20)]
    assert len(table(ticket(*many)).splitlines()) == 3 + 10
    assert len(table(ticket(*many), shown=3).splitlines()) == 3 + 3


def test_a_problem_without_timings_has_a_table() -> None:
    assert len(table(ticket()).splitlines()) == 3


def test_the_summary_says_what_was_left_out() -> None:
    rows = (measured("bad", None, "crashed"), measured("late", None, "skipped"))
    line = summary([ticket(*rows)], Stats(compiled=1, benchmarked=1))
    assert line.startswith(
        "inductor-plugin: 1 problem, 0 known; 1 kernel compiled, 1 candidate measured, 0 failed, "
        "1 in quarantine, 1 not reached; "
    )
    submitted = ticket(*rows)
    submitted.task = task([entry("bad"), entry("late")])
    submitted.task.entries[0].identity = replace(
        submitted.task.entries[0].identity, candidate_id="bad-1"
    )
    assert "in quarantine" not in summary([submitted], Stats())  # it failed now
    submitted.task.measured = False  # nothing is to be reached
    assert "not reached" not in summary([submitted], Stats())


def test_the_summary_counts_what_was_counted_for_its_problems() -> None:
    first, second = ticket(), ticket()
    assert spent_on([first, second]) == Stats()
    first.task, second.task = task([]), task([])
    first.task.spent.add(compiled=2, compile_s=1.5, failed=1)
    second.task.spent.add(compiled=1, benchmarked=3)
    spent = spent_on([first, second])
    assert spent == Stats(compiled=3, benchmarked=3, failed=1, compile_s=1.5)


def test_the_summary_counts_what_was_known_and_done() -> None:
    spent = Stats(compiled=3, benchmarked=4, failed=1, compile_s=1.5, benchmark_s=0.25, wall_s=2)
    line = summary([ticket(hit=True), ticket()], spent)
    assert line == (
        "inductor-plugin: 2 problems, 1 known; 3 kernels compiled, 4 candidates measured, "
        "1 failed; 1.50 s compiling, 0.25 s measuring, 2.00 s waited for"
    )


def test_what_is_out_for_its_resources_is_in_no_quarantine() -> None:
    line = summary([ticket(measured("wide", None, "pruned"), measured("fast", 0.25))], Stats())
    assert "in quarantine" not in line
    assert "not reached" not in line


def test_without_a_winner_there_is_no_line_about_it() -> None:
    submitted = ticket(measured("bad", None, "crashed"))
    submitted.verdict = Verdict(None, None, "nothing was measured")
    assert "->" not in table(submitted)
