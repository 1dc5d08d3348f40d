"""Ranks compare what they run: each in a thread, on one store."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from inductor_plugin.errors import RankError
from inductor_plugin.tuning.decision import Verdict
from inductor_plugin.tuning.ranks import verify as verify_module
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.ledger import Ledger
from inductor_plugin.tuning.ranks.terms import Terms
from inductor_plugin.tuning.ranks.verify import RankReport, compare, verify_ranks
from tests.support.ranks.simulated import MemoryStore, Rank

CODE = "a = 1\nextern_kernels.mm(x, y, out=buf0)\n"


def compiled(rank: int, world: int, change: Callable[[int, Ledger], None]) -> Ledger:
    """Return the ledger of a rank that has compiled a graph with one product, and what a test adds."""
    ledger, ticket = Ledger(), Rank(rank, world, MemoryStore()).ticket("problem")
    ticket.verdict = Verdict("fast", "library", "it is")
    ledger.add_decisions([("group", ticket)])
    ledger.add_code(["problem"], f"# rank {rank}\n{CODE}")
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
            ledger.add_winners({"group/mm/problem": "slow"})

    (report, *others) = reports(3, change)
    assert others == [report] * 2
    assert "mm(64x32, 32x48)" in report.difference
    assert report.difference.endswith("rank 2 runs slow, rank 0 runs fast")
    assert not report.agree


def test_a_problem_may_have_another_kernel_under_other_options() -> None:
    def change(rank: int, ledger: Ledger) -> None:
        ticket = Rank(rank, 2, MemoryStore()).ticket("problem")
        for group in ("a", "b") if rank else ("b", "a"):  # compiled in another order
            ticket.verdict = Verdict(f"kernel of {group}", "library", "it is")
            ledger.add_decisions([(group, ticket)])

    assert reports(2, change) == [RankReport(2)] * 2


def test_other_code_is_named_with_its_first_line() -> None:
    def change(rank: int, ledger: Ledger) -> None:
        ledger.add_code(["second"], CODE if rank != 1 else CODE.replace("mm", "bmm"))

    assert {report.difference for report in reports(2, change)} == {
        "graph 1 of rank 1 has other code than rank 0: line 2: 'extern_kernels.bmm(x, y, out=buf0)' instead of "
        "'extern_kernels.mm(x, y, out=buf0)'"
    }


def test_graphs_in_another_order_and_graphs_of_one_rank_are_no_difference() -> None:
    def change(rank: int, ledger: Ledger) -> None:
        graphs = [("second", CODE + "b = 2"), ("third", CODE + "c = 3")]
        for problems, code in graphs[:: 1 if rank else -1]:
            ledger.add_code([problems], code)
        if rank == 1:
            ledger.add_code(["of its own"], CODE + "d = 4")

    assert reports(2, change) == [RankReport(2, alone=1)] * 2


def pipeline(rank: int, ledger: Ledger, change: str) -> None:
    """Two stages, each on two ranks: 0 and 1, 2 and 3. Rank 3 differs."""
    stage, is_odd = rank // 2, rank == 3
    winner = "slow" if is_odd and change == "kernel" else "fast"
    group = "group 3" if is_odd and change == "options" else "group"
    margin = "1.3" if is_odd and change == "options" else "1.0"
    decided(ledger, winner, terms(group, **{"option margin": margin}), f"stage {stage}")
    code = f"{CODE}stage = {stage}\n"
    is_other = is_odd and change == "code"
    ledger.add_code([f"stage {stage}"], code.replace("mm", "bmm") if is_other else code)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("kernel", "mm(64x32, 32x48) fp32: rank 3 runs slow, rank 2 runs fast"),
        (
            "options",
            "mm(64x32, 32x48) fp32: rank 3 and rank 2 decide apart: option margin is '1.3' on rank 3, '1.0' on rank 2",
        ),
        (
            "code",
            "graph 1 of rank 3 has other code than rank 2: line 2: 'extern_kernels.bmm(x, y, out=buf0)' instead of "
            "'extern_kernels.mm(x, y, out=buf0)'",
        ),
    ],
)
def test_ranks_of_a_later_stage_are_compared_with_each_other(change: str, difference: str) -> None:
    results = reports(4, lambda rank, ledger: pipeline(rank, ledger, change))
    assert {report.difference for report in results} == {difference}
    agreeing = reports(4, lambda rank, ledger: pipeline(rank, ledger, ""))
    assert agreeing == [RankReport(4)] * 4


def test_what_only_one_rank_has_is_counted_and_compared_with_nobody() -> None:
    def change(rank: int, ledger: Ledger) -> None:
        decided(ledger, f"kernel {rank}", terms("group"), f"stage {rank}")
        ledger.add_code([f"stage {rank}"], f"{CODE}stage = {rank}\n")

    assert reports(3, change) == [RankReport(3, alone=6)] * 3


def test_stages_with_the_same_products_and_other_inputs_are_not_compared() -> None:
    """The first stage of a language model has the blocks of the second one, and an embedding before them."""
    hidden = "assert_size_stride(arg0_1, (16, 64), (64, 1))\n"
    embedded = hidden.replace("(16, 64), (64, 1)", "(16,), (1,)") + "cpp_fused_embedding_0(x)\n"

    def stages(rank: int, ledger: Ledger) -> None:
        ledger.add_code(["block", "block"], (embedded, hidden)[rank % 2] + CODE)

    assert reports(2, stages) == [RankReport(2, alone=2)] * 2
    assert reports(4, stages) == [RankReport(4)] * 4

    def differ(rank: int, ledger: Ledger) -> None:
        ledger.add_code(["block", "block"], hidden + (CODE.replace("mm", "bmm") if rank else CODE))

    assert "graph 1 of rank 1 has other code than rank 0" in reports(2, differ)[0].difference


def test_graphs_without_problems_are_the_same_by_inputs_and_operators() -> None:
    sizes = "assert_size_stride(arg0_1, (16, 32), (32, 1))\n"

    def stages(rank: int, ledger: Ledger) -> None:  # of a pipeline
        ledger.add_code([], sizes + ("cpp_fused_relu_0(x)", "cpp_fused_gelu_0(x)")[rank])
        ledger.add_code([], sizes.replace("32", ("32", "48")[rank]) + "cpp_fused_add_0(x)")

    assert reports(2, stages) == [RankReport(2, alone=4)] * 2

    def fused(rank: int, ledger: Ledger) -> None:
        kernels = ("cpp_fused_add_mul_0(x)", "cpp_fused_add_0(x)\ncpp_fused_mul_1(x)")
        ledger.add_code([], sizes + kernels[rank])

    assert "has other code than rank 0" in reports(2, fused)[0].difference


@pytest.mark.parametrize(("present", "missing"), [(range(2), (2,)), (range(1, 3), (0,))])
def test_a_rank_that_does_not_come_is_named(present: range, missing: tuple[int, ...]) -> None:
    results = reports(3, nothing, present)
    assert {report.missing for report in results} == {missing}
    assert not any(report.agree for report in results)


def test_code_is_in_the_store_once_however_often_ranks_compare() -> None:
    store = MemoryStore()
    for _ in range(3):
        compare(Job(0, 1, store), compiled(0, 1, nothing), 1.0)
    for kind in ("code", "statement"):
        keys = [key for key in store.values if f"/{kind}/" in key]
        assert len([key for key in keys if not key.endswith("/there")]) == 1


def test_a_process_group_without_a_store_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "has_no_store", lambda: True)
    with pytest.raises(RankError, match="needs a process group with a store: use gloo or nccl"):
        verify_ranks()


def test_without_a_job_there_is_nothing_to_compare() -> None:
    with pytest.raises(RankError, match="init_process_group"):
        verify_ranks()


def terms(group: str, policy: str = "tune", **facts: str) -> Terms:
    device = {"environment.device.type": "cpu", "environment.device.name": "CPU"}
    return Terms(group, "device", {**device, **facts}, policy)


def decided(ledger: Ledger, winner: str, own: Terms, digest: str = "other") -> None:
    """Decide one more problem."""
    ticket = Rank(0, 2, MemoryStore()).ticket(digest)
    ticket.verdict = Verdict(winner, "library", "it is")
    ledger.add_decisions([(own.group, ticket)], [own])


def test_ranks_that_decide_apart_are_a_difference_whatever_they_run() -> None:
    def change(rank: int, ledger: Ledger) -> None:
        decided(ledger, "fast", terms(f"group {rank}", **{"option margin": f"1.{rank}"}))

    text = "rank 1 and rank 0 decide apart: option margin is '1.1' on rank 1, '1.0' on rank 0"
    assert {report.difference for report in reports(2, change)} == {
        f"mm(64x32, 32x48) fp32: {text}"
    }


def test_ranks_with_another_gpu_and_more_options_on_one_rank_are_no_difference() -> None:
    def gpus(rank: int, ledger: Ledger) -> None:
        facts = {"environment.device.name": f"GPU {rank}"}
        decided(ledger, f"kernel {rank}", Terms(f"group {rank}", str(rank), facts, "tune"))

    assert reports(2, gpus) == [RankReport(2, alone=2)] * 2

    def more(rank: int, ledger: Ledger) -> None:
        for group in ("group 0", "group 1")[: 2 - rank]:
            decided(ledger, "fast", terms(group, **{"option margin": group}))

    assert reports(2, more) == [RankReport(2, alone=1)] * 2


@pytest.mark.parametrize("codes", [("", ""), ("launch c1", "launch c2")])
def test_a_problem_that_is_decided_apart_is_named_whatever_else_the_ranks_have_decided_together(
    codes: tuple[str, str],
) -> None:
    def change(rank: int, ledger: Ledger) -> None:
        decided(ledger, "fast", terms("B", **{"option margin": "B"}), "shared")
        own = "AB"[rank]
        decided(ledger, ("fast", "slow")[rank], terms(own, **{"option margin": own}))
        if codes[rank]:
            ledger.add_code(["other"], codes[rank])

    text = "rank 1 and rank 0 decide apart: option margin is 'B' on rank 1, 'A' on rank 0"
    assert {report.difference for report in reports(2, change)} == {
        f"mm(64x32, 32x48) fp32: {text}"
    }


def test_ranks_that_share_terms_and_run_the_same_agree() -> None:
    """Of one problem each has compiled another graph, under another set of options."""

    def change(rank: int, ledger: Ledger) -> None:
        decided(ledger, "fast", terms("B", **{"option margin": "B"}), "shared")
        own = "AB"[rank]
        decided(ledger, "fast", terms(own, **{"option margin": own}))

    assert reports(2, change) == [RankReport(2, alone=2)] * 2


def test_another_policy_is_named_with_another_decision() -> None:
    def change(rank: int, ledger: Ledger) -> None:
        decided(ledger, ("fast", "slow")[rank], terms("group", ("tune", "pinned by x")[rank]))

    (report, _) = reports(2, change)
    text = (
        "rank 1 runs slow, rank 0 runs fast (policy is 'pinned by x' on rank 1, 'tune' on rank 0)"
    )
    assert report.difference.endswith(text)


def test_a_rank_that_has_missed_a_comparison_comes_to_the_next_one() -> None:
    store, ledgers = MemoryStore(), [compiled(rank, 2, nothing) for rank in range(2)]
    missed = compare(Job(0, 2, store), ledgers[0], 0.1)
    assert missed.missing == (1,)
    gathered = dict[int, RankReport]()

    def meet(rank: int) -> None:
        gathered[rank] = compare(Job(rank, 2, store), ledgers[rank], 10.0)

    for _ in range(2):
        gathered.clear()
        threads = [threading.Thread(target=meet, args=(rank,)) for rank in (1, 0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
        assert gathered == dict.fromkeys(range(2), RankReport(2))


@pytest.mark.parametrize(("world", "most"), [(2, 150), (10_000, 30)])
def test_a_rank_that_waits_for_a_comparison_asks_seldom(
    world: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock = MemoryStore(), [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    fake = SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)
    monkeypatch.setattr(verify_module, "time", fake)
    report = compare(Job(1, world, store), Ledger(), 60.0)
    assert report.missing == (0,)
    assert clock[0] == 60.0
    assert store.calls.total() < most


def test_what_this_process_has_compiled_is_compared_in_its_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def change(rank: int, ledger: Ledger) -> None:
        ledger.add_winners({"group/mm/problem": ("fast", "slow")[rank]})

    store, ledgers = MemoryStore(), [compiled(rank, 2, change) for rank in range(2)]
    monkeypatch.setattr(verify_module, "joined", lambda: Job(0, 2, store))
    monkeypatch.setattr(verify_module, "LEDGER", ledgers[0])
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(compare, Job(1, 2, store), ledgers[1], 10.0)
        report = verify_ranks(timeout_s=10.0)
    assert report == other.result()
    assert (report.ranks, report.missing) == (2, ())
    assert report.difference.endswith("rank 1 runs slow, rank 0 runs fast")


def test_a_lost_store_is_an_error_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(0, 2, MemoryStore(lost="no answer"))
    monkeypatch.setattr(verify_module, "joined", lambda: job)
    with pytest.raises(RankError, match=r"the job's store is lost \(no answer\)"):
        verify_ranks()


def test_of_graphs_with_the_same_problems_the_one_with_other_code_is_named() -> None:
    def change(rank: int, ledger: Ledger) -> None:
        for text in ("the same", f"code {rank}"):
            ledger.add_code(["second"], f"{CODE}\n{text}")

    (report, _) = reports(2, change)
    assert report.difference.startswith("graph 2 of rank 1 has other code than rank 0: ")
    assert report.difference.endswith("'code 1' instead of 'code 0'")
