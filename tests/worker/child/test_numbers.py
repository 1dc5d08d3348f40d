"""Which kernels the benchmark worker accepts: no faulty one, and every honest one.

The jobs run in this process: none of these kernels breaks it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.kernels.call import ExternKernel
from inductor_plugin.worker.child import bench, inductor
from inductor_plugin.worker.child.running import Running
from tests.support.candidates import wrong_numbers
from tests.support.worker.number_jobs import (
    A_SEED,
    B_SEED,
    TYPES,
    K,
    M,
    N,
    jobs,
    screened,
    weighted,
    with_end,
)

pytestmark = pytest.mark.usefixtures("few_objects")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    wrong_numbers.reset()
    bench.release()


@pytest.mark.parametrize("op", ["mm", "addmm"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fault", wrong_numbers.WRONG, ids=lambda fault: fault.__name__)
def test_a_faulty_kernel_is_refused(fault: wrong_numbers.Fault, dtype: str, op: str) -> None:
    outcome = screened(jobs(fault, dtype, op)[0])
    assert outcome.status in ("wrong", "red_zone"), outcome
    assert outcome.reason
    assert not outcome.samples_ms


@pytest.mark.parametrize("op", ["mm", "addmm"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("honest", wrong_numbers.HONEST, ids=lambda fault: fault.__name__)
def test_an_honest_kernel_is_accepted(honest: wrong_numbers.Fault, dtype: str, op: str) -> None:
    screen, final = jobs(honest, dtype, op, pitch=K + 8, out_pitch=N + 8)
    outcome = screened(screen)
    assert outcome.status == "ok", outcome.reason
    assert outcome.error is not None
    outcomes = bench.final(final, lambda _event: None)
    assert [each.status for each in outcomes] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        (wrong_numbers.clamps_operands, "float32"),
        (wrong_numbers.clamps_operands, "bfloat16"),
        (wrong_numbers.float32_for_float64, "float64"),
        (wrong_numbers.reads_int8, "int32"),
        (wrong_numbers.int_in_float32, "int32"),
        (wrong_numbers.int_in_float32, "int64"),
    ],
)
def test_a_kernel_of_a_narrower_type_is_refused(fault: wrong_numbers.Fault, dtype: str) -> None:
    assert screened(jobs(fault, dtype, "mm")[0]).status == "wrong"


@pytest.mark.parametrize("fault", wrong_numbers.OF_FLOAT16, ids=lambda fault: fault.__name__)
def test_a_kernel_that_overflows_otherwise_is_refused(fault: wrong_numbers.Fault) -> None:
    outcome = screened(jobs(fault, "float16", "mm")[0])
    assert outcome.status == "wrong"
    assert "where the library kernel's are infinite" in outcome.reason


@pytest.mark.parametrize("dtype", TYPES)
def test_a_term_that_is_left_out_of_a_long_sum_is_seen(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Of 16,384 it is 0.8 % of the sum, as much as two roundings to bfloat16 may differ."""
    monkeypatch.setattr(sys.modules[__name__], "K", 1 << 14)
    outcome = screened(jobs(wrong_numbers.drops_a_term, dtype, "mm")[0])
    assert outcome.status == "wrong", outcome


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (wrong_numbers.returns_the_same_memory, "the memory of its previous result"),
        (wrong_numbers.returns_transposed, "returns strides (1, 24)"),
    ],
)
def test_a_returned_tensor_has_its_strides_and_memory_of_its_own(
    monkeypatch: pytest.MonkeyPatch, fault: wrong_numbers.Returned, words: str
) -> None:
    screen, _ = jobs(wrong_numbers.exact, "float32", "mm")
    kernel = ExternKernel(fault.__name__, has_out=False)
    stock = inductor.bind_extern

    def bind(kernel: ExternKernel, inputs: Any, out: Any) -> Any:
        if kernel.has_out:
            return stock(kernel, inputs, out)
        return lambda: fault(inputs)

    monkeypatch.setattr(inductor, "bind_extern", bind)
    outcome = screened(replace(screen, candidate=replace(screen.candidate, kernel=kernel)))
    assert outcome.status == "wrong"
    assert words in outcome.reason


def test_a_returned_view_of_an_operand_is_named() -> None:
    screen, _ = jobs(wrong_numbers.exact, "float32", "mm")
    first, operand, result = torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3)
    running = Running(screen.candidate, lambda: None, [first, operand], result, None, {})
    alias = replace(running, result=operand.t())
    assert running.shares(alias) == ""
    assert alias.shares(running) == "it returns the memory of its operand 1"


@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_without_large_values_a_kernel_runs_on_moved_and_on_steep_operands(op: str) -> None:
    """As with an epilogue: no fault of addresses or of an exp that overflows gets through."""
    for fault in (
        wrong_numbers.keeps_addresses,
        wrong_numbers.overflows_early,
        wrong_numbers.exact,
    ):
        screen, _ = jobs(fault, "float32", op)
        assert screen.check is not None
        check = replace(screen.check, large_values=False, steep=2)
        outcome = screened(replace(screen, check=check, problem_id=fault.__name__))
        assert (outcome.status == "ok") is (fault is wrong_numbers.exact), fault


def test_nan_is_not_planted_where_kernels_may_multiply_it_by_padding() -> None:
    screen, _ = jobs(wrong_numbers.hides_nan, "float32", "mm")
    assert screen.check is not None
    for seeds, status in (((B_SEED,), "wrong"), ((A_SEED, B_SEED), "ok")):
        check = replace(screen.check, unplanted=frozenset(seeds))
        assert screened(replace(screen, check=check, problem_id=f"{seeds}")).status == status


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_an_honest_kernel_of_another_type_is_accepted(dtype: str) -> None:
    fault = wrong_numbers.exact if dtype == "float64" else wrong_numbers.whole
    outcome = screened(jobs(fault, dtype, "mm")[0])
    assert outcome.status == "ok", outcome.reason


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("fault", [wrong_numbers.hides_nan, wrong_numbers.saturates])
def test_a_faulty_kernel_of_a_row_is_refused(
    monkeypatch: pytest.MonkeyPatch, fault: wrong_numbers.Fault, rows: int
) -> None:
    """A NaN in a single row leaves no number of it."""
    monkeypatch.setattr(sys.modules[__name__], "M", rows)
    assert screened(jobs(fault, "float32", "mm")[0]).status == "wrong"
    assert screened(jobs(wrong_numbers.exact, "float32", "mm")[0]).status == "ok"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fault", wrong_numbers.OF_C, ids=lambda fault: fault.__name__)
def test_a_missing_bias_is_seen_in_every_type(fault: wrong_numbers.Fault, dtype: str) -> None:
    assert screened(jobs(fault, dtype, "addmm")[0]).status == "wrong"


@pytest.mark.parametrize("fault", wrong_numbers.OF_C, ids=lambda fault: fault.__name__)
def test_a_wrong_bias_is_seen_beside_the_longest_sums(
    monkeypatch: pytest.MonkeyPatch, fault: wrong_numbers.Fault
) -> None:
    """With 65,536 terms a bias of the operands' size is 0.4 % of the product, below what bfloat16 is allowed."""
    monkeypatch.setattr(sys.modules[__name__], "K", 1 << 16)
    screen, _ = jobs(fault, "bfloat16", "addmm")
    assert screened(screen).status == "wrong"
    assert (
        screened(
            replace(screen, candidate=jobs(wrong_numbers.exact, "bfloat16", "addmm")[0].candidate)
        ).status
        == "ok"
    )


@pytest.mark.parametrize("fault", wrong_numbers.OF_LAYOUTS, ids=lambda fault: fault.__name__)
def test_what_lies_between_rows_is_neither_read_nor_written(fault: wrong_numbers.Fault) -> None:
    outcome = screened(jobs(fault, "float32", "mm", pitch=K + 8, out_pitch=N + 8)[0])
    assert outcome.status in ("wrong", "red_zone")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fault", wrong_numbers.OF_SIZES, ids=lambda fault: fault.__name__)
def test_what_is_right_at_the_measured_size_alone_is_refused(
    fault: wrong_numbers.Fault, dtype: str
) -> None:
    job = jobs(fault, dtype, "mm")[0]
    assert screened(job).status == "ok"
    outcome = screened(with_end(job, M - 7, dtype))
    assert outcome.status in ("wrong", "red_zone")
    assert outcome.reason.endswith("(at size 17 rows)")
    assert not outcome.samples_ms
    honest = jobs(wrong_numbers.exact, dtype, "mm")[0]
    assert screened(with_end(honest, M - 7, dtype)).status == "ok"


def test_a_size_at_which_the_library_kernel_fails_is_not_compared_and_the_outcome_says_so() -> None:
    job = with_end(jobs(wrong_numbers.exact, "float32", "mm")[0], M - 7, "float32")
    (end,) = job.ends
    assert end.library is not None
    broken = replace(end.library, inputs=end.library.inputs[::-1])
    outcome = screened(replace(job, ends=(replace(end, library=broken),)))
    assert outcome.status == "ok"
    assert outcome.reason.startswith(
        "not compared at size 17 rows: the library kernel raised RuntimeError: mat1 and mat2 shapes"
    )
    assert "\n" not in outcome.reason
    assert screened(job).reason == ""


def test_of_several_that_may_have_changed_an_operand_none_is_condemned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that did it once, and never again, cannot be told from the others."""
    _, final = jobs(wrong_numbers.exact, "float32", "mm")
    state = bench.ProblemState
    changes = iter(["it changed its operand 0"])
    monkeypatch.setattr(state, "changed", lambda self, specs: next(changes, ""))  # pyright: ignore
    library, exact = bench.final(final, lambda _event: None)
    assert (library.status, exact.status) == ("ok", "skipped")


@pytest.mark.parametrize("fault", [wrong_numbers.every_10th_call, wrong_numbers.second_call])
def test_the_finals_compare_again(fault: wrong_numbers.Fault) -> None:
    _, final = jobs(fault, "float32", "mm")
    library, faulty = bench.final(final, lambda _event: None)
    assert (library.status, faulty.status) == ("ok", "wrong")
    assert "called again" in faulty.reason


def test_the_finals_name_the_candidate_that_writes_its_operand() -> None:
    _, final = jobs(wrong_numbers.writes_a, "float32", "mm")
    honest = jobs(wrong_numbers.exact, "float32", "mm")[0].candidate
    final = replace(final, candidates=(*final.candidates, honest))
    library, writes, innocent = bench.final(final, lambda _event: None)
    assert (library.status, writes.status, innocent.status) == ("ok", "red_zone", "ok")
    assert writes.reason == "it changed its operand 0"


def test_what_a_thread_writes_after_the_call_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.time, "sleep", wrong_numbers.wait_for_threads)
    outcome = screened(jobs(wrong_numbers.finishes_later, "float32", "mm")[0])
    assert outcome.status == "wrong"


def test_the_time_of_the_check_is_part_of_the_outcome() -> None:
    screen, final = jobs(wrong_numbers.exact, "float32", "mm")
    screened_once: Any = bench.run(screen, lambda _event: None)
    assert 0 < screened_once.check_s < screened_once.elapsed_s
    finalists: Any = bench.run(final, lambda _event: None)
    assert [outcome.check_s > 0 for outcome in finalists] == [True, False]


def test_without_a_reference_nothing_is_measured() -> None:
    job = replace(jobs(wrong_numbers.exact, "float32", "mm")[0], library=None)
    outcome = screened(job)
    assert outcome.status == "skipped"
    assert "no library kernel" in outcome.reason
    assert screened(replace(job, check=None, problem_id="unchecked")).status == "ok"


def test_a_library_kernel_that_ignores_beta_0_decides_what_may_be_read() -> None:
    screen, _ = jobs(wrong_numbers.forgets_c, "float32", "addmm")
    assert screen.library is not None
    library = replace(screen.library, kernel=ExternKernel("addmm", (("beta", 0.0),)))
    unread = replace(screen, library=library, problem_id="beta 0")
    assert screened(unread).status == "ok"
    times_0 = jobs(wrong_numbers.times_0, "float32", "addmm")[0].candidate
    outcome = screened(replace(unread, candidate=times_0))
    assert outcome.status == "wrong"
    assert "NaN" in outcome.reason


@pytest.mark.parametrize("value", [0.0, 1e-44, float("nan"), float("inf")])
@pytest.mark.parametrize("fault", [wrong_numbers.too_large, wrong_numbers.exact])
def test_a_weight_of_which_nothing_can_be_seen_lets_nobody_win(
    tmp_path: Path, fault: wrong_numbers.Fault, value: float
) -> None:
    """Frozen weights are the user's own: zeros before they are trained."""
    screen = weighted(fault, torch.full((K, N), value), tmp_path / "0.bin")
    outcome = screened(screen)
    assert outcome.status == "skipped"
    assert "no numbers to compare" in outcome.reason
    assert screen.library is not None
    assert screened(replace(screen, candidate=screen.library)).status == "ok"


def test_weights_that_some_threads_take_for_zeros_let_nobody_win(tmp_path: Path) -> None:
    """Those that have loaded a library linked with -ffast-math, and those that they start, flush subnormal numbers."""
    screen = weighted(wrong_numbers.float32_sums, 1e-37 * torch.randn(K, N), tmp_path / "0.bin")
    torch.set_flush_denormal(True)  # of this thread, which calls the library kernel
    try:
        outcome = screened(screen)
    finally:
        torch.set_flush_denormal(False)
    assert outcome.status == "skipped"
    assert "subnormal numbers, which some threads take for zeros" in outcome.reason


@pytest.mark.parametrize("size", [1e-30, 1e-25, 1e25])
def test_very_small_and_very_large_weights_are_compared(tmp_path: Path, size: float) -> None:
    """Their squares are no numbers of float32; none of them is subnormal."""
    weight = size * torch.randn(K, N)
    wrong = screened(weighted(wrong_numbers.too_large, weight, tmp_path / "0.bin"))
    assert wrong.status == "wrong"
    honest = screened(weighted(wrong_numbers.float32_sums, weight, tmp_path / "1.bin"))
    assert honest.status == "ok", honest.reason
