"""What the benchmark worker asks of the numbers of an attention, without a worker."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from inductor_plugin.worker.child import bench
from inductor_plugin.worker.child.attention import AttentionVerifier, Rerun, verifier_of
from inductor_plugin.worker.child.operands import build
from inductor_plugin.worker.child.state import ProblemState
from inductor_plugin.worker.jobs import ScreenJob
from tests.support.attention import reference
from tests.support.attention.screening import CAUSAL, CHECK, QUICK, aten, candidate, facts_of

FORWARD, BACKWARD = (facts_of(CAUSAL, "float32", backward=each) for each in (False, True))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of so few numbers they would wait for each other
    yield
    torch.set_num_threads(threads)


class Kernel:
    """A forward kernel that reads its operands when it is called, and the verifier of its problem.

    Attributes:
        inputs: The operands.
        largest: The largest numbers of q and of v in each call.
        factor: What its outputs are multiplied by.
        hides_nan: Whether it writes zeros for NaN.
    """

    def __init__(self) -> None:
        self.candidate = candidate(FORWARD, "")
        self.inputs = [build(spec) for spec in self.candidate.inputs]
        self.verifier = AttentionVerifier(FORWARD, self.candidate.inputs, build)
        self.largest: list[tuple[float, float]] = []
        self.factor, self.hides_nan = 1.0, False

    def outputs(self) -> dict[str, torch.Tensor]:
        q, k, v = self.inputs[:3]
        self.largest.append((float(q.abs().max()), float(v.abs().max())))
        results = reference.forward(q, k, v, mask=CAUSAL, scale=FORWARD.scale)
        out, lse = (self.factor * each.float() for each in results)
        return {
            n: t.nan_to_num(0.0) if self.hides_nan else t for n, t in (("out", out), ("lse", lse))
        }

    def rerun(self, *, library: bool = False) -> Rerun:
        kernel = aten(FORWARD) if library else self.candidate
        return Rerun(kernel, self.inputs, self.outputs, library)


@pytest.mark.parametrize("is_library", [True, False], ids=["library", "ours"])
def test_only_a_library_kernel_may_keep_its_lse_a_number_where_an_operand_is_nan(
    is_library: bool,
) -> None:
    """As torch's FlashAttention 2 does; as a rival, too, where another library kernel was traced."""
    facts = facts_of(CAUSAL, "float32")
    kernel = aten(facts) if is_library else candidate(facts, "")
    inputs = [build(spec) for spec in kernel.inputs]
    q, k, v = inputs[:3]

    def run() -> dict[str, torch.Tensor]:
        out, lse = reference.forward(q, k, v, mask=CAUSAL, scale=facts.scale)
        return {"out": out, "lse": lse.nan_to_num(0.0)}

    verifier = AttentionVerifier(facts, kernel.inputs, build)
    reason = verifier.poisoned(Rerun(kernel, inputs, run, library=False))
    assert ("lse is a number where an operand is NaN" in reason) is not is_library
    assert not q.isnan().any()


def test_outputs_of_a_kernel_have_their_names_whatever_their_order() -> None:
    kernel, gradient = candidate(FORWARD, ""), candidate(BACKWARD, "")
    verifier = AttentionVerifier(FORWARD, kernel.inputs, build)
    out, lse = torch.zeros(1), torch.zeros(1)
    assert verifier.written(kernel) == {3: kernel.inputs[3]}
    assert verifier.outputs(kernel, [], out, {3: lse}) == {"out": out, "lse": lse}
    turned = replace(gradient, inputs=gradient.inputs[::-1])
    verifier = AttentionVerifier(BACKWARD, gradient.inputs, build)
    dq, dv = gradient.inputs[7:]
    assert verifier.written(turned) == {1: dq, 0: dv}
    written = verifier.outputs(turned, [], out, {0: lse, 1: torch.ones(1)})
    assert {name: int(tensor.sum()) for name, tensor in written.items()} == {
        "dk": 0,
        "dv": 0,
        "dq": 1,
    }
    assert verifier.judge({"dk": torch.zeros(3)}).reason == (
        "dk has the shape (3,), not (1, 2, 100, 32)"
    )


def test_results_of_the_forward_are_written_where_the_gradients_read_them() -> None:
    specs = dict(zip(BACKWARD.operands, candidate(BACKWARD, "").inputs, strict=True))
    verifier = AttentionVerifier(BACKWARD, list(specs.values()), build)
    tensors = {name: build(spec) for name, spec in specs.items()}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, spec in specs.items():
        verifier.fill(spec, tensors[name])
    q, k, v = (tensors[name] for name in "qkv")
    out, lse = reference.forward(q, k, v, mask=CAUSAL, scale=BACKWARD.scale)
    torch.testing.assert_close(tensors["out"], out.float())
    torch.testing.assert_close(tensors["lse"], lse.float())
    delta = (tensors["do"].double() * out).sum(-1).float()
    torch.testing.assert_close(tensors["delta"], delta, rtol=1e-4, atol=1e-5)
    for name in ("do", "q", "k", "v", "dq", "dv"):
        assert torch.equal(tensors[name], before[name])


def test_with_large_scores_a_kernel_is_compared_with_the_library_kernel_and_its_operands_stay() -> (
    None
):
    kernel = Kernel()
    verifier, before = kernel.verifier, [tensor.clone() for tensor in kernel.inputs]
    assert verifier.with_large_scores(kernel.rerun()) == ""
    assert kernel.largest == []  # there is nothing to compare it with
    assert verifier.take(kernel.outputs()).reason == ""
    assert verifier.with_large_scores(kernel.rerun(library=True)) == ""
    (q, v), (large_q, small_v) = kernel.largest
    assert large_q > q
    assert small_v < v
    assert verifier.with_large_scores(kernel.rerun()) == ""
    kernel.factor = 2.0
    assert verifier.with_large_scores(kernel.rerun()) != ""
    assert all(map(torch.equal, kernel.inputs, before))


def test_what_the_library_kernel_hides_is_not_asked_of_others() -> None:
    kernel = Kernel()
    kernel.hides_nan = True
    assert kernel.verifier.poisoned(kernel.rerun()) != ""
    assert kernel.verifier.poisoned(kernel.rerun(library=True)) != ""
    assert kernel.verifier.poisoned(kernel.rerun()) == ""
    assert not any(tensor.isnan().any() for tensor in kernel.inputs[:3])


def test_results_are_checked_where_facts_tolerance_and_all_operands_are_known() -> None:
    own, library = candidate(FORWARD, ""), aten(FORWARD)
    fewer = replace(own, inputs=own.inputs[:3])
    job = ScreenJob("problem", library, fewer, QUICK, CHECK, FORWARD)
    verifier = verifier_of(job, fewer, build)
    assert verifier is not None
    assert verifier.written(library) == {3: library.inputs[3]}  # by the library kernel's operands
    assert verifier_of(replace(job, library=None), own, build) is not None
    for other in (
        replace(job, library=None),
        replace(job, check=None),
        replace(job, attention=None),
    ):
        assert verifier_of(other, fewer, build) is None


def test_operands_and_echoes_that_were_there_before_get_the_numbers_of_the_attention() -> None:
    """A gradient reads the outputs of the forward call, which are no random numbers."""
    library, problem = aten(BACKWARD), ProblemState()
    before = {spec: problem.operand(spec).clone() for spec in library.inputs}
    assert all(torch.equal(problem.echo(spec), before[spec]) for spec in library.inputs)
    job = ScreenJob("problem", library, library, QUICK, CHECK, BACKWARD)
    bench._prepare(job, problem, library, lambda _: None)  # pyright: ignore[reportPrivateUsage]
    after = {spec: problem.operand(spec) for spec in library.inputs}
    assert any(not torch.equal(before[spec], after[spec]) for spec in library.inputs)
    assert all(torch.equal(problem.echo(spec), after[spec]) for spec in library.inputs)
