"""When a candidate's results are right: at first, on changed operands, in other memory, and when it is called again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.attention.check.reference import CheckResult
from inductor_plugin.kernels.call import ExternKernel, TensorSpec
from inductor_plugin.worker.child import running as running_module
from inductor_plugin.worker.child import verdict
from inductor_plugin.worker.child.operands import GuardedOutput
from inductor_plugin.worker.child.running import Running
from inductor_plugin.worker.child.state import ProblemState
from inductor_plugin.worker.child.stress import Stress
from inductor_plugin.worker.jobs import BenchCandidate, Event

SIZE = (4, 4)
SPECS = tuple(TensorSpec(SIZE, (4, 1), "float32", "cpu", seed=seed) for seed in (1, 2))
OUTPUT = TensorSpec(SIZE, (4, 1), "float32", "cpu")
RIGHT = 3.0
"""Every element of a right result."""


def ignore(_event: Event) -> None:
    """Take an event."""


@dataclass
class Product:
    """What a product's results are compared with: they are right if they are `RIGHT`.

    Attributes:
        changed: How often the operands are changed.
        wrong_when_changed: Why results on changed operands are wrong, empty if they are right.
        judged: Results on unchanged operands that were compared.
        taken: Results of the library kernel.
    """

    changed: int = 0
    wrong_when_changed: str = ""
    judged: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    taken: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    reference: torch.Tensor = field(default_factory=lambda: torch.full(SIZE, RIGHT))

    def changes(self, _inputs: Sequence[TensorSpec]) -> Sequence[Any]:
        return [SimpleNamespace(stress=Stress())] * self.changed

    def judge(self, result: torch.Tensor, _others: Mapping[str, torch.Tensor]) -> CheckResult:
        self.judged.append(result.clone())
        return CheckResult(0.25, "" if bool((result == RIGHT).all()) else "wrong numbers")

    def judge_changed(self, *_outputs_and_how: Any) -> CheckResult:
        return CheckResult(0.5, self.wrong_when_changed)

    def take(self, result: torch.Tensor, *_others: Any) -> None:
        self.taken.append(result)


@dataclass
class Attention:
    """What an attention's results are compared with."""

    poison: str = ""
    large_scores: str = ""

    def written(self, _candidate: BenchCandidate) -> dict[int, TensorSpec]:
        return {}

    def outputs(self, _candidate: Any, _inputs: Any, result: Any, _written: Any) -> Any:
        return {"out": result}

    def judge(self, outputs: Mapping[str, torch.Tensor]) -> CheckResult:
        return CheckResult(0.1, "" if bool((outputs["out"] == RIGHT).all()) else "wrong rows")

    def take(self, outputs: Mapping[str, torch.Tensor]) -> CheckResult:
        return self.judge(outputs)

    def poisoned(self, _kernel: Any) -> str:
        return self.poison

    def with_large_scores(self, _kernel: Any) -> str:
        return self.large_scores


def state(product: Product | None = None, attention: Attention | None = None) -> ProblemState:
    untyped: Any = ProblemState
    return untyped(product=product, attention=attention)


def candidate(name: str = "a") -> BenchCandidate:
    return BenchCandidate(name, ExternKernel("mm"), SPECS, OUTPUT, 20.0)


def returning(result: torch.Tensor, inputs: Sequence[torch.Tensor] | None = None) -> Running:
    """Return a candidate that returns its output, in memory of its own."""
    operands = [torch.ones(SIZE), torch.ones(SIZE)] if inputs is None else list(inputs)
    return Running(candidate(), lambda: result, operands, result, None, {})


def writing(write: Callable[[torch.Tensor], object]) -> Running:
    """Return a candidate that writes its output, once it has done so."""
    zone = GuardedOutput(OUTPUT)
    running = Running(
        candidate(), lambda: write(zone.tensor), [torch.ones(SIZE)] * 2, zone.tensor, zone, {}
    )
    running.call()
    return running


def right() -> torch.Tensor:
    return torch.full(SIZE, RIGHT)


def moves(monkeypatch: pytest.MonkeyPatch, *elsewhere: Running) -> None:
    """Let the candidate be these when it runs on other operands, one run after the other."""
    runs = iter(elsewhere)

    def moved(*_arguments: Any) -> Running:
        return next(runs)

    monkeypatch.setattr(verdict, "moved", moved)


def test_a_result_in_the_memory_of_an_operand_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are right: generated code would write over the operand, or read what it wrote over."""
    operands = [torch.ones(SIZE), right()]
    moves(monkeypatch, returning(operands[1].t(), operands))
    outcome = verdict.judge(returning(right()), state(Product(changed=1)), ignore)
    assert outcome == CheckResult(0.25, "it returns the memory of its operand 1")


def test_a_result_in_the_memory_of_the_one_before_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = right()
    moves(monkeypatch, returning(result.view(16).view(SIZE)))
    outcome = verdict.judge(returning(result), state(Product(changed=1)), ignore)
    assert outcome.reason == "it returns the memory of its previous result"


def test_every_change_of_operands_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    product = Product(changed=2, wrong_when_changed="NaN is missing")
    moves(monkeypatch, returning(right()))
    assert verdict.judge(returning(right()), state(product), ignore).reason == "NaN is missing"
    result = right()
    moves(monkeypatch, returning(right()), returning(result))
    outcome = verdict.judge(returning(result), state(Product(changed=2)), ignore)
    assert outcome.reason == "it returns the memory of its previous result"


def damaged(running: Running) -> Running:
    """Let a candidate have written behind its output."""
    assert running.guarded is not None
    tensor = running.guarded.tensor
    torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + 1024).fill_(1.0)
    return running


def test_what_is_written_behind_the_output_on_changed_operands_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves(monkeypatch, damaged(writing(lambda out: out.fill_(RIGHT))))
    running = writing(lambda out: out.fill_(RIGHT))
    outcome = verdict.judge(running, state(Product(changed=1)), ignore)
    assert "behind" in outcome.reason


def test_an_attention_is_judged_in_other_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[str] = []
    wrong = returning(torch.zeros(SIZE))
    outside = damaged(writing(lambda out: out.fill_(RIGHT)))
    for elsewhere in (wrong, outside, returning(right())):
        moves(monkeypatch, elsewhere)
        outcomes.append(
            verdict.judge(returning(right()), state(attention=Attention()), ignore).reason
        )
    assert outcomes[0] == "wrong rows (with other addresses)"
    assert "behind" in outcomes[1]
    assert outcomes[1].endswith("(with other addresses)")
    assert outcomes[2] == ""


@pytest.mark.parametrize("poison", ["", "NaN leaks"])
@pytest.mark.parametrize("large", ["", "large scores overflow"])
def test_an_attention_is_judged_with_nan_and_with_large_scores(
    monkeypatch: pytest.MonkeyPatch, poison: str, large: str
) -> None:
    expected = "; ".join(filter(None, (poison, large)))
    moves(monkeypatch, returning(right()))
    attention = Attention(poison, large)
    assert verdict.judge(returning(right()), state(attention=attention), ignore).reason == expected
    assert verdict.keep(returning(right()), state(attention=attention), ignore).reason == expected


def test_the_same_numbers_are_compared_once_and_have_the_same_verdict() -> None:
    product = Product()
    problem = state(product)
    for _ in range(2):
        outcome = verdict.judge(returning(right()), problem, ignore)
        assert outcome == CheckResult(0.25, "")
    assert len(product.judged) == 1
    assert verdict.judge(returning(right() + 1), problem, ignore).reason == "wrong numbers"
    assert len(product.judged) == 2


def test_of_large_outputs_no_copy_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "_KEPT_BYTES", 63)
    problem = state(Product())
    assert verdict.judge(returning(right()), problem, ignore).reason == ""
    assert problem.accepted is None
    monkeypatch.setattr(verdict, "_KEPT_BYTES", 64)
    assert verdict.judge(returning(right()), problem, ignore).reason == ""
    assert problem.accepted is not None


def test_what_was_accepted_counts_no_more_after_another_run_of_the_library_kernel() -> None:
    product = Product()
    problem = state(product)
    verdict.judge(returning(right()), problem, ignore)
    problem.sums[SPECS[0]] = 5
    library = returning(right())
    assert verdict.keep(library, problem, ignore) == CheckResult(None)
    assert product.taken == [library.result]
    assert problem.accepted is None
    assert problem.sums == {}  # gaps of operands may have been filled


def test_only_the_library_kernel_keeps_the_alignment_of_torchs_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some of torch's kernels end the process without it (`_weight_int8pack_mm` on a CPU): nothing would be measured."""
    seen: list[set[int]] = []

    def bind(_: Any, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> Callable[[], object]:
        seen.append({operand.data_ptr() % 64 for operand in inputs})
        return lambda: out.fill_(RIGHT)

    def take(*given: Any) -> None:
        given[-1](Stress())

    product = Product(changed=1)
    monkeypatch.setattr(running_module, "bind", bind)
    monkeypatch.setattr(product, "take", take)
    problem = state(product)
    verdict.keep(returning(right()), problem, ignore)
    verdict.judge(returning(right()), problem, ignore)
    assert seen == [{0}, {4}]


@pytest.mark.parametrize("wrong_call", [2, 5, 14])
def test_a_candidate_that_is_wrong_now_and_then_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong_call: int
) -> None:
    monkeypatch.setattr(verdict, "_STEADY_S", 60.0)
    calls = 0

    def write(out: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        out.fill_(RIGHT + (calls == wrong_call))

    problem = state(Product())
    assert verdict.judge(writing(write), problem, ignore).reason == "wrong numbers"
    assert (calls, problem.compared) == (wrong_call, set())


def test_a_steady_candidate_is_called_a_dozen_times_and_compared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdict, "_STEADY_S", 60.0)
    threads: list[int] = []

    def write(out: torch.Tensor) -> None:
        threads.append(threading.get_ident())
        out.fill_(RIGHT)

    product = Product()
    assert verdict.judge(writing(write), state(product), ignore) == CheckResult(0.25, "")
    assert len(threads) == 2 + 12  # at first, once more, and to show that it is steady
    assert len(product.judged) == 1
    here = threading.get_ident()
    # On a CPU, one of them is made by another thread: a compiled model may be called by any.
    assert [thread == here for thread in threads] == [True, True, False, *[True] * 11]


def test_a_candidate_that_allocates_its_output_is_called_once_more() -> None:
    """Its result is in new memory each time, so that there is nothing to compare bit by bit."""
    calls: list[None] = []
    running = returning(right())
    running = replace(running, call=lambda: calls.append(None) or running.result)
    assert verdict.judge(running, state(Product()), ignore).reason == ""
    assert len(calls) == 1


def test_who_cannot_win_is_compared_once() -> None:
    calls: list[None] = []

    def write(out: torch.Tensor) -> None:
        calls.append(None)
        out.fill_(RIGHT)

    product, running = Product(), writing(write)
    problem, asked = state(product), list[Running]()

    def may_win(candidate: Running) -> bool:
        asked.append(candidate)
        return False

    assert verdict.judge(running, problem, ignore, may_win) == CheckResult(0.25, "")
    assert (len(calls), len(product.judged), asked) == (1, 1, [running])
    assert problem.compared == set()
    wrong = writing(lambda out: out.fill_(RIGHT + 1))
    assert verdict.judge(wrong, problem, ignore, may_win).reason == "wrong numbers"
    assert asked == [running]  # who is wrong is out, however fast
    assert verdict.judge(running, problem, ignore).reason == ""
    assert problem.compared == {running.candidate.candidate_id}


def test_after_the_samples_the_first_verdict_stays_unless_the_numbers_are_wrong() -> None:
    first = CheckResult(0.125, "")
    problem = state(Product())
    running = writing(lambda out: out.fill_(RIGHT))
    assert verdict.judge_again(running, problem, first, ignore) == first
    not_compared = CheckResult(None)
    assert verdict.judge_again(running, problem, not_compared, ignore) == CheckResult(0.25, "")
    wrong = writing(lambda out: out.fill_(RIGHT + 1))
    assert verdict.judge_again(wrong, problem, first, ignore).reason == (
        "wrong numbers (right at first, wrong when called again)"
    )


def test_after_the_last_call_a_thread_that_still_writes_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It writes a millisecond after the call has returned."""
    running = writing(lambda out: out.fill_(RIGHT))

    def sleep(seconds: float) -> None:
        if seconds >= 0.001:
            running.result.fill_(RIGHT + 1)

    monkeypatch.setattr(verdict.time, "sleep", sleep)
    outcome = verdict.judge_again(running, state(Product()), CheckResult(0.125, ""), ignore)
    assert "wrong when called again" in outcome.reason
