"""Gradients of attentions in Triton's interpreter, against float64."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.problem.attention import Mask
from tests.support import gpu
from tests.support.attention.backward_cases import (
    TOLERANCE,
    Case,
    Trial,
    candidate_of,
    errors,
    fast,
    operands_of,
    problem_of,
    trials,
)
from tests.support.attention.backward_graph import code_of
from tests.support.attention.lowering import graph, module_of
from tests.support.triton import interpreter

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


@pytest.fixture(autouse=True)
def device(inductor_cache: Path) -> Iterator[None]:
    with gpu.installed():
        yield


def check(wanted: Sequence[Trial]) -> None:
    """Compute the gradients of all trials in one process, and compare them with float64."""
    modules: list[tuple[str, list[torch.Tensor]]] = []
    exact: list[Any] = []
    with graph():
        for number, case in enumerate(wanted):
            operands, expected = operands_of(case.case, number)
            problem = problem_of(case.case, operands)
            modules.append((module_of(problem, candidate_of(case, problem)), [*operands.values()]))
            exact.append(expected)
    results = interpreter.outputs(modules)
    for case, result, expected in zip(wanted, results, exact, strict=True):
        for name, error in errors(result, expected).items():
            assert error <= TOLERANCE[case.case.dtype], f"{name} of {case.name}: {error}"


def test_the_table_is_long_and_has_no_case_twice() -> None:
    names = {trial.name for trial in trials()}
    assert len(names) == len(trials()) >= 130
    assert {trial.group for trial in fast()} == {trial.group for trial in trials()}


@pytest.mark.slow
@pytest.mark.claim
def test_some_of_all_gradients_are_right() -> None:
    check(fast())


@pytest.mark.slow
@pytest.mark.parametrize("group", sorted({trial.group for trial in trials()}))
def test_all_gradients_are_right(group: str) -> None:
    check([trial for trial in trials() if trial.group == group])


@dataclass(frozen=True)
class Graph:
    """A graph to lower by the first candidate, and to run.

    Attributes:
        case: The attention.
        after: What the graph does with dk, and what float64 then says.
        unknown: Sizes that are known only at run time.
        run: The attention it is run with, of other sizes; None is the same.
    """

    case: Case
    after: Callable[[Any], Any] | None = None
    unknown: tuple[int, ...] = ()
    run: Case | None = None


def fused(dk: Any) -> Any:
    return dk.float() * 2 + 1


HALF, BRAIN = torch.float16, torch.bfloat16
LAST = Mask(right=0, bottom_right=True)
PAIR = Case(70, 130, LAST, heads=4, kv_heads=2, batch=2)
SELF = Case(90, 90, Mask(20, 0), by_tokens=True)
RAGGED = Case((3, 64, 0, 70), (65, 64, 5, 1), LAST, heads=4)
GRAPHS = {
    "causal": Graph(Case(100, 100, Mask(right=0), dtype=HALF)),
    "more keys, fused behind": Graph(PAIR, fused),
    "gaps, fused behind": Graph(replace(PAIR, gap=8, dtype=HALF), fused),
    "sequences": Graph(RAGGED),
    "sequences, fused behind": Graph(replace(RAGGED, tail=9, dtype=BRAIN), fused),
    "bias": Graph(replace(PAIR, bias=(1, 4, 70, 130), dtype=HALF)),
    "bias of keys and a cap": Graph(replace(PAIR, bias=(2, 1, 1, 130), softcap=3.0)),
    "odd dims": Graph(
        Case(60, 50, Mask(9, 3), head_dim=72, value_dim=40, by_tokens=True, dtype=HALF)
    ),
    "long dims": Graph(Case(40, 50, LAST, head_dim=192, value_dim=128, dtype=BRAIN)),
    "unknown lengths": Graph(PAIR, None, (70, 130), replace(PAIR, queries=131, keys=40)),
    "one unknown length": Graph(SELF, None, (90,), replace(SELF, queries=33, keys=33)),
    "unknown batch": Graph(
        replace(PAIR, batch=3), fused, (3, 70, 130), replace(PAIR, batch=2, queries=1)
    ),
    "unknown tokens": Graph(
        RAGGED, None, (137, 135), replace(RAGGED, queries=(1, 70, 5, 2), keys=(9, 9, 64, 65))
    ),
    "unknown sequences": Graph(
        RAGGED, fused, (137, 135, 5), replace(RAGGED, queries=(1, 70, 5), keys=(9, 9, 64))
    ),
}  # fmt: skip


FEW = ("more keys, fused behind", "sequences", "unknown lengths", "unknown sequences")


def check_graphs(wanted: Sequence[str]) -> None:
    """Lower graphs, run what was generated in one process, and compare it with float64."""
    tensors: list[tuple[str, list[torch.Tensor]]] = []
    exact: list[Any] = []
    for drawn_graph in (GRAPHS[name] for name in wanted):
        code = code_of(
            drawn_graph.case,
            operands_of(drawn_graph.case).tensors,
            drawn_graph.after,
            drawn_graph.unknown,
        )
        assert code.count(".run(") == 1
        assert "extern_kernels" not in code.split("async_compile.wait", 1)[1]
        operands, expected = operands_of(drawn_graph.run or drawn_graph.case)
        tensors.append((code, [operands[name] for name in operands if name not in ("dq", "dv")]))
        exact.append(
            expected._replace(dk=drawn_graph.after(expected.dk)) if drawn_graph.after else expected
        )
    results = interpreter.outputs(tensors)
    for name, result, expected in zip(wanted, results, exact, strict=True):
        for which, error in errors(result, expected).items():
            assert error <= TOLERANCE[GRAPHS[name].case.dtype], f"{which} of {name}: {error}"


@pytest.mark.slow
@pytest.mark.claim
def test_some_of_what_inductor_generates_is_right() -> None:
    check_graphs(FEW)


@pytest.mark.slow
def test_what_else_inductor_generates_is_right() -> None:
    check_graphs([name for name in GRAPHS if name not in FEW])
