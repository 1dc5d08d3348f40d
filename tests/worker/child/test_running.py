"""A candidate that runs: what it returns, and what is done with its operands while it runs on copies of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast
from unittest import mock

import pytest
import torch

from inductor_plugin.kernels.call import ExternKernel, OpKernel, TensorSpec
from inductor_plugin.worker.child import running
from inductor_plugin.worker.child.attention import AttentionVerifier
from inductor_plugin.worker.child.operands import GuardedOutput, build
from inductor_plugin.worker.child.running import Running, bound, echoed, moved
from inductor_plugin.worker.child.state import ProblemState
from inductor_plugin.worker.child.stress import Stress
from inductor_plugin.worker.echo import Echoed
from inductor_plugin.worker.jobs import BenchCandidate, Event
from tests.support.candidates.operands import tensor

A, B = tensor(4, 6, seed=1), tensor(4, 6, seed=2)
RETURNS = BenchCandidate("returns", ExternKernel("mm", has_out=False), (A, B), tensor(4, 6), 5.0)
WRITES = replace(RETURNS, candidate_id="writes", kernel=OpKernel("aten::mm.out"))

Seen = list[tuple[list[torch.Tensor], "torch.Tensor | None"]]


def ignore(_event: Event) -> None:
    """Take an event."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Return the operands and the output of each kernel that is bound; it adds its operands."""
    calls: Seen = []

    def bind(
        _: BenchCandidate, inputs: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> Callable[[], object]:
        calls.append((list(inputs), out))
        return lambda: torch.add(*inputs, out=out)

    monkeypatch.setattr(running, "bind", bind)
    return calls


def first_run(candidate: BenchCandidate = RETURNS) -> Running:
    return bound(candidate, [build(spec) for spec in candidate.inputs], {}, ignore)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "returns returned NoneType, not a tensor"),
        (torch.ones(4, 6).double(), "returns returned torch.float64"),
    ],
)
def test_what_is_no_tensor_of_the_type_is_an_error(
    monkeypatch: pytest.MonkeyPatch, value: object, words: str
) -> None:
    monkeypatch.setattr(running, "bind", lambda *_: lambda: value)  # pyright: ignore
    with pytest.raises(TypeError, match=words):
        first_run()


def test_operands_are_nan_while_a_kernel_runs_on_equal_copies_and_restored_whatever_it_does(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that reads an address of its first call shows by that."""
    first = first_run()
    before = [operand.clone() for operand in first.inputs]
    while_it_ran: list[bool] = []
    call = running.bind

    def watched(*arguments: Any) -> Any:
        while_it_ran.append(all(bool(operand.isnan().all()) for operand in first.inputs))
        return call(*arguments)

    monkeypatch.setattr(running, "bind", watched)
    elsewhere = moved(first, Stress(), ignore)
    assert torch.equal(elsewhere.result, first.result)
    moved(first, Stress(exponent=2), ignore)
    assert while_it_ran == [True, False]  # other numbers show it, too
    assert all(map(torch.equal, first.inputs, before))

    def fails(*_: Any) -> Any:
        raise RuntimeError("it fails")

    monkeypatch.setattr(running, "bind", fails)
    with pytest.raises(RuntimeError, match="it fails"):
        moved(first, Stress(), ignore)
    assert all(map(torch.equal, first.inputs, before))


def test_copies_are_elsewhere_unaligned_and_the_same_memory_in_a_later_run(seen: Seen) -> None:
    first, memory = first_run(WRITES), dict[TensorSpec, torch.Tensor]()
    for exponent in (0, 2):
        moved(first, Stress(exponent), ignore, memory)
    (_, out), *runs = seen
    assert out is not None
    addresses = [[operand.data_ptr() for operand in operands] for operands, _ in runs]
    assert addresses[0] == addresses[1]
    assert not set(addresses[0]) & {operand.data_ptr() for operand in first.inputs}
    assert {address % 64 for address in addresses[0]} == {4}  # of a float32
    outputs = [output.data_ptr() for _, output in runs if output is not None]
    assert len({*outputs, out.data_ptr()}) > 1
    moved(first, Stress(), ignore)
    assert seen[-1][0][0].data_ptr() not in addresses[0]


def test_copies_are_aligned_as_torchs_memory_where_that_is_asked_for(seen: Seen) -> None:
    moved(first_run(), Stress(), ignore, aligned=True)
    assert {operand.data_ptr() % 64 for operand in seen[-1][0]} == {0}


def test_an_echo_has_operands_of_its_own_with_the_same_numbers_and_the_same_output(
    seen: Seen,
) -> None:
    problem, events = ProblemState(), list[Event]()
    before = bound(WRITES, [problem.operand(spec) for spec in WRITES.inputs], {}, ignore)
    timed = echoed(before, problem, events.append, cold=True).timed
    assert isinstance(timed, Echoed)
    assert timed.call is before.call
    (own, output), (others, other_output) = seen
    assert all(map(torch.equal, own, others))
    assert output is other_output  # in the caches, as new memory that an echo has freed
    assert output is not None
    assert len({each.data_ptr() for each in (*own, *others, output)}) == 5
    before.result.zero_()
    timed()
    assert torch.equal(before.result, own[0] + own[1])
    assert [event.what for event in events] == ["build", "start", "start"]  # limits count anew
    again = echoed(before, problem, ignore, cold=True)
    assert [each.data_ptr() for each in seen[-1][0]] == [each.data_ptr() for each in others]
    problem.forget_operands()  # a candidate may have damaged them
    assert not problem.echoes
    assert again.call is before.call


def test_kernels_of_an_attention_allocate_their_results_while_they_are_timed() -> None:
    problem = ProblemState(attention=cast("AttentionVerifier", mock.Mock()))
    adds = replace(WRITES, kernel=OpKernel("aten::add.out"))
    before = bound(adds, [build(spec) for spec in adds.inputs], {}, ignore)
    with mock.patch.object(running, "behind_others") as behind:
        timed = echoed(before, problem, ignore, cold=True).timed
    assert isinstance(timed, Echoed)
    assert timed.echo is behind.return_value
    before.result.zero_()
    timed()
    assert not before.result.any()
    product = echoed(before, ProblemState(), ignore, cold=True).timed
    assert isinstance(product, Echoed)
    assert product.call is before.call


def test_an_echo_writes_what_a_candidate_writes_besides_its_output_to_other_memory(
    seen: Seen,
) -> None:
    problem = ProblemState()
    zone = GuardedOutput(B)
    inputs = [problem.operand(A), zone.tensor.zero_()]
    before = bound(WRITES, inputs, {1: zone}, ignore)
    assert echoed(before, problem, ignore, cold=True).echo is not None
    assert seen[-1][0][1].data_ptr() != zone.tensor.data_ptr()
    assert not problem.echoes.keys() & {B}


def test_a_packed_operand_is_packed_once_more_for_an_echo() -> None:
    packed = replace(tensor(8, 6, seed=3), packing="mkl_linear", packing_batch=4)
    problem = ProblemState()
    assert problem.echo(packed) is not problem.operand(packed)
    assert problem.echo(packed) is problem.echo(packed)


@pytest.mark.parametrize(
    ("cold", "device", "most"),
    [(False, "cpu", 288), (True, "cuda:0", 288), (True, "cpu", 287)],
)
def test_there_is_no_echo_where_caches_stay_on_a_gpu_and_of_large_operands(
    cold: bool, device: str, most: int, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_ECHOED_BYTES", most)
    events: list[Event] = []
    before = first_run(WRITES)
    output = replace(WRITES.output, device=device)
    before = replace(before, candidate=replace(WRITES, output=output))
    problem = ProblemState()
    after = echoed(before, problem, events.append, cold=cold)
    assert (after.echo, after.timed) == (None, before.call)
    assert [event.what for event in events] == ["start"]
    assert len(seen) == 1
    assert problem.is_small == (most == 288)
    monkeypatch.setattr(running, "_ECHOED_BYTES", 0)  # as the first candidate, so all
    on_host = replace(before, candidate=WRITES)
    assert (echoed(on_host, problem, ignore, cold=True).echo is not None) == problem.is_small


def test_the_memory_of_an_echo_lives_as_long_as_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled kernel has addresses alone: of memory that was given back it would write to another candidate's."""
    used: list[weakref.ref[torch.Tensor]] = []

    def bind(
        _: BenchCandidate, inputs: Sequence[torch.Tensor], out: torch.Tensor
    ) -> Callable[[], object]:
        used[:] = map(weakref.ref, (*inputs, out))
        return lambda: None

    monkeypatch.setattr(running, "bind", bind)
    problem = ProblemState()
    before = bound(WRITES, [problem.operand(spec) for spec in WRITES.inputs], {}, ignore)
    timed = echoed(before, problem, ignore, cold=True).timed
    del before
    problem.forget_operands()
    assert len(used) == 3
    assert all(each() is not None for each in used)
    del timed
    assert all(each() is None for each in used)


def test_what_an_echo_writes_outside_of_its_outputs_is_seen(seen: Seen) -> None:
    problem = ProblemState()
    zone = GuardedOutput(B)
    before = bound(WRITES, [problem.operand(A), zone.tensor.zero_()], {1: zone}, ignore)
    after = echoed(before, problem, ignore, cold=True)
    assert (after.overrun(), after.damage(problem)) == ("", "")
    output = seen[-1][0][1]
    output.as_strided((1,), (1,), output.storage_offset() - 1).zero_()
    assert "before its output" in after.overrun()
    assert not before.overrun()


@pytest.mark.parametrize(
    ("size", "own", "library", "reason"),
    [
        ((4, 6), (6, 1), (1, 4), ""),
        ((4, 6), (1, 4), (1, 4), ""),  # as the library kernel's
        ((4, 6), (1, 4), (6, 1), "it returns strides (1, 4), asked for are (6, 1)"),
        ((1, 6), (9, 1), (6, 1), ""),  # of one row
        ((4, 1), (1, 7), (1, 1), ""),
    ],
)
def test_strides_are_those_asked_for_or_the_library_kernels(
    size: tuple[int, int], own: tuple[int, int], library: tuple[int, int], reason: str
) -> None:
    output = tensor(*size)
    result, theirs = (torch.empty(100).as_strided(size, stride) for stride in (own, library))
    candidate = replace(RETURNS, output=output)
    assert Running(candidate, print, [], result, None, {}).rearranged(theirs) == reason
