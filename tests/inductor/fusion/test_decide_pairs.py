"""One epilogue and two products, or one product and two epilogues."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._inductor.scheduler import FusionResult
from torch.nn import functional

from inductor_plugin.inductor.facts.compat import torch_version
from inductor_plugin.inductor.fusion import decide, pair
from inductor_plugin.inductor.fusion.nodes import epilogue_of
from inductor_plugin.inductor.fusion.offers import fused_offer
from inductor_plugin.kernels.call import (
    ExternKernel,
    ModuleKernel,
    SequenceKernel,
)
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support.fusion_lab import (
    APART,
    FUSED,
    A,
    B,
    C,
    a_lab,
    activated,
    fusions,
    gated,
    launches,
    parts,
)
from tests.support.lowering import Arg

__all__ = ["a_lab"]  # the fixture
pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


@pytest.mark.skipif(
    torch_version() < (2, 13), reason="torch 2.11 does not ask about what reads a fused node turned"
)
def test_a_second_epilogue_on_top_of_the_first(lab: Callable[..., Any]) -> None:
    """The kernel is settled by the first: the second is measured with that one alone."""

    def stacked(a: Any, b: Any, c: Any, d: Any) -> Any:
        scaled = functional.relu(a @ b + c)
        return scaled, torch.sin(scaled) * d, scaled.t().contiguous()

    operands = A, B, C, Arg((1024, 2048))
    with lab() as opened:
        code = opened.lower(stacked, *operands)
    first, second = fusions(opened)
    assert second.problem.epilogue.endswith("+2")
    settled = {entry.description for entry in first.entries}
    (fused,) = [entry for entry in second.entries if not entry.library]
    assert fused.description in settled
    # Apart, the first of two generated kernels is the product with what is fused already.
    (apart,) = [entry for entry in second.entries if entry.library]
    assert apart.candidate is not None
    kernel: Any = apart.candidate.kernel
    assert [type(part.kernel) for part in kernel.parts] == [ModuleKernel, ModuleKernel]
    assert len(kernel.parts[0].arguments) > len(kernel.parts[1].arguments)
    assert [launch[:16] for launch in launches(code)] == ["triton_tem_fused"]
    with lab() as warm:
        assert warm.lower(stacked, *operands) == code
    assert warm.screens == []


def test_a_second_epilogue_is_left_apart(lab: Callable[..., Any]) -> None:
    """The first stays fused, whatever becomes of the second."""

    def stacked(a: Any, b: Any, c: Any, d: Any) -> Any:
        scaled = functional.relu(a @ b + c)
        return scaled, torch.sin(scaled) * d, scaled.t().contiguous()

    def taken(candidate: BenchCandidate) -> float:
        kernel = candidate.kernel
        assert isinstance(kernel, (SequenceKernel, ExternKernel)) or not parts(candidate)
        if parts(candidate) == 2 and isinstance(kernel, SequenceKernel):
            return 0.005 if isinstance(kernel.parts[0].kernel, ModuleKernel) else 0.020
        return FUSED(candidate)

    with lab(taken) as opened:
        code = opened.lower(stacked, A, B, C, Arg((1024, 2048)))
    assert [launch[:10] for launch in launches(code)] == ["triton_tem", "triton_poi"]


def is_apart(code: str) -> bool:
    """Return whether two products of the library are followed by a kernel for what reads both."""
    kinds = [launch[:14] for launch in launches(code)]
    return kinds == ["extern_kernels", "extern_kernels", "triton_poi_fus"]


def test_two_products_share_an_epilogue(lab: Callable[..., Any]) -> None:
    """One of them takes it, and the other is not asked and stays what was measured alone."""
    with lab() as opened:
        code = opened.lower(gated, A, B, Arg((512, 2048)))
    names = launches(code)
    assert len(names) == 2
    assert names[0] == "extern_kernels.mm"
    assert names[1].startswith("triton_tem_fused")
    assert len(fusions(opened)) == 1


def test_the_second_product_is_asked_where_the_first_lost(lab: Callable[..., Any]) -> None:
    with lab(APART) as opened:
        code = opened.lower(gated, A, B, Arg((512, 2048)))
    assert is_apart(code)
    assert len({task.problem.epilogue for task in fusions(opened)}) == 2


def test_where_the_second_product_fails_two_kernels_run(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handed, offer = list[str](), fused_offer

    def failing(fusion: Any, *rest: Any) -> Any:
        if handed and fusion.product.get_name() not in handed:
            raise ValueError("as the test says")
        handed.append(fusion.product.get_name())
        return offer(fusion, *rest)

    monkeypatch.setattr(decide, "fused_offer", failing)
    with lab(APART) as opened:
        code = opened.lower(gated, A, B, Arg((512, 2048)))
    assert is_apart(code)
    assert "two kernels run" in caplog.text
    assert "as the test says" in caplog.text


def test_an_epilogue_is_read_once_however_often_inductor_asks(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[tuple[str, ...]]()

    def noting(scheduler: Any, product: Any, first: Any, nodes: Sequence[Any]) -> Epilogue:
        read.append((first.get_name(), *(node.get_name() for node in nodes)))
        return epilogue_of(scheduler, product, first, nodes)

    def again(fusion: pair.Fusion) -> Any:
        """Be asked in two rounds."""
        decided(replace(fusion))
        return decided(fusion)

    decided = decide._decided
    monkeypatch.setattr(pair, "epilogue_of", noting)
    monkeypatch.setattr(decide, "_decided", again)
    before = COUNTERS.snapshot()
    with lab() as opened:
        opened.lower(activated, A, B, C)
    assert COUNTERS.snapshot().since(before).fusions == 2
    assert len(read) == 1


def test_a_pair_that_was_submitted_before_another_was_fused_is_not_fused(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []

    def both(fusion: pair.Fusion) -> Any:
        """Submit a pair twice, and ask for both answers."""
        pending = [decided(replace(fusion)).callable_fn, decided(fusion).callable_fn]

        def first() -> bool:
            answers.extend(answer() for answer in pending)
            return answers[0]

        return FusionResult.from_callable(first)

    decided = decide._decided
    monkeypatch.setattr(decide, "_decided", both)
    with lab() as opened:
        opened.lower(activated, A, B, C)
    assert answers == [True, False]
