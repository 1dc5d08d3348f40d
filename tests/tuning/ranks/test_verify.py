"""Ranks compare what they run: each in a thread, on one store."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from inductor_plugin.errors import RankError
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.ledger import Ledger
from inductor_plugin.tuning.ranks.verify import RankReport, compare, verify_ranks
from tests.support.ranks.simulated import MemoryStore, Rank

CODE = "a = 1\nextern_kernels.mm(x, y, out=buf0)\n"


def compiled(rank: int, world: int, change: Callable[[int, Ledger], None]) -> Ledger:
    """Return the ledger of a rank that has compiled a graph with one product, and what a test adds."""
    ledger, ticket = Ledger(), Rank(rank, world, MemoryStore()).ticket("problem")
    ticket.verdict = Verdict("fast", "library", "it is")
    ledger.add_decisions([ticket])
    ledger.add_code("problem", f"# rank {rank}\n{CODE}")
    change(rank, ledger)
    return ledger


def reports(
    world: int, change: Callable[[int, Ledger], None], present: range | None = None
) -> list[RankReport]:
    store, gathered = MemoryStore(), dict[int, RankReport]()
    ledgers = [compiled(rank, world, change) for rank in range(world)]

    def meet(rank: int) -> None:
        gathered[rank] = compare(Job(rank, world, store), ledgers[rank], 1.0)

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in present or range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    return [gathered[rank] for rank in sorted(gathered)]


def nothing(_rank: int, _ledger: Ledger) -> None:
    pass


def test_ranks_that_run_the_same_agree() -> None:
    assert reports(3, nothing) == [RankReport(3)] * 3
    assert RankReport(3).agree


def test_another_decision_is_named_with_problem_rank_and_kernels() -> None:
    def change(rank: int, ledger: Ledger) -> None:
        if rank == 2:
            ledger.add_winners({"mm/problem": "slow"})

    (report, *others) = reports(3, change)
    assert others == [report] * 2
    assert "mm(64x32, 32x48)" in report.difference
    assert report.difference.endswith("rank 2 runs slow, rank 0 runs fast")
    assert not report.agree


def test_other_code_is_named_with_its_first_line() -> None:
    def change(rank: int, ledger: Ledger) -> None:
        ledger.add_code("second", CODE if rank != 1 else CODE.replace("mm", "bmm"))

    assert {report.difference for report in reports(2, change)} == {
        "graph 1 of rank 1 has other code than rank 0: line 2: 'extern_kernels.bmm(x, y, out=buf0)' instead of "
        "'extern_kernels.mm(x, y, out=buf0)'"
    }


def test_graphs_in_another_order_and_graphs_of_one_rank_are_no_difference() -> None:
    def change(rank: int, ledger: Ledger) -> None:
        graphs = [("second", CODE + "b = 2"), ("third", CODE + "c = 3")]
        for problems, code in graphs[:: 1 if rank else -1]:
            ledger.add_code(problems, code)
        if rank == 1:
            ledger.add_code("of its own", CODE + "d = 4")

    assert reports(2, change) == [RankReport(2)] * 2


@pytest.mark.parametrize(("present", "missing"), [(range(2), (2,)), (range(1, 3), (0,))])
def test_a_rank_that_does_not_come_is_named(present: range, missing: tuple[int, ...]) -> None:
    results = reports(3, nothing, present)
    assert {report.missing for report in results} == {missing}
    assert not any(report.agree for report in results)


def test_without_a_job_there_is_nothing_to_compare() -> None:
    with pytest.raises(RankError, match="init_process_group"):
        verify_ranks()
