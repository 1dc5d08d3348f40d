"""A graph that gives up a product's kernel gives up its epilogue, too, on a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inductor_plugin.cache.graph import held
from inductor_plugin.inductor.graph.trial import Trial, compiling
from inductor_plugin.tuning.counters import COUNTERS
from inductor_plugin.tuning.task import problem_digest
from tests.support.fusion_lab import A, B, C, a_lab, activated, launches, times

__all__ = ["a_lab"]  # the fixture
pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


TRITON_WINS = times(fused=0.011, apart=0.020, triton=0.008)


def test_a_kernel_that_is_given_up_does_not_come_back_with_its_epilogue(
    lab: Callable[..., Any],
) -> None:
    with lab(TRITON_WINS) as cold:
        assert launches(cold.lower(activated, A, B, C))[0].startswith("triton_tem_fused")
    (product,) = {problem_digest(t.problem) for t in cold.tasks if not t.problem.epilogue}
    for is_extra in (True, False):  # the search, and then the compile that runs
        trial, before = Trial("graph", held([product]), is_extra=is_extra), COUNTERS.snapshot()
        with lab(TRITON_WINS) as later, compiling(trial):
            code = later.lower(activated, A, B, C)
        assert launches(code)[0] == "extern_kernels.mm"
        spent = COUNTERS.snapshot().since(before)
        if is_extra:  # which counts nothing
            assert (spent.record_misses, spent.fusions, spent.fusions_pruned) == (0, 0, 0)
        else:
            assert spent.fusions > 0
    given_up = {bool(t.problem.epilogue): t.verdict.given_up for t in trial.tickets if t.verdict}
    assert given_up.keys() == {False, True}
    assert all(given_up.values())
