"""Attentions in Triton's interpreter, against float64."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.codegen.triton import TritonScheduling
from torch.utils import _triton

from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import Mask
from inductor_plugin.template import Candidate
from inductor_plugin.templates.triton_attention.decode import KeySplit
from tests.support import gpu
from tests.support.attention.backward_cases import Case
from tests.support.attention.forward_cases import (
    LSE_TOLERANCE,
    SMALL,
    TMA,
    TOLERANCE,
    Trial,
    candidate_of,
    error_of,
    expected_of,
    fast,
    operands_of,
    trials,
)
from tests.support.attention.forward_graph import code_of
from tests.support.attention.lowering import computed
from tests.support.pairs import covering
from tests.support.triton import interpreter

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

HALF, BRAIN = torch.float16, torch.bfloat16
LAST = Mask(right=0, bottom_right=True)


@pytest.fixture(autouse=True)
def device(inductor_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with gpu.installed():
        # It asks `torch.cuda.is_available`, which is False for a device that is not there.
        monkeypatch.setattr(_triton, "has_triton_tma_device", lambda: True)
        yield


def check(wanted: Sequence[Trial]) -> None:
    for case, (out, lse) in zip(wanted, computed(wanted), strict=True):
        assert out <= TOLERANCE[case.case.dtype], f"out of {case.name}: {out}"
        assert lse <= LSE_TOLERANCE, f"lse of {case.name}: {lse}"


def test_the_table_is_long_and_has_no_case_twice() -> None:
    assert len({trial.name for trial in trials()}) == len(trials()) >= 300
    assert {trial.group for trial in fast()} == {trial.group for trial in trials()}


@pytest.mark.slow
@pytest.mark.claim
def test_some_of_all_attentions_are_right() -> None:
    check(fast())


@pytest.mark.slow
def test_addresses_beyond_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(50, 70, LAST, kv_heads=1, dtype=HALF)
    sequences = replace(case, queries=(5, 45), keys=(33, 37))
    decoded = Trial("decode", replace(case, queries=2), KeySplit(32, 1, 4, 2))
    monkeypatch.setattr(TritonScheduling, "can_use_32bit_indexing", lambda *operands: False)
    check([Trial("dense", case), Trial("dense", case, TMA), Trial("sequences", sequences), decoded])


PRODUCTS = ("decode", "grouped heads", "layouts", "non-finite")


def facts(trial: Trial) -> Iterator[tuple[str, object]]:
    """Yield what a trial is made of; lengths of keys that only tell decodes apart are none."""
    for part in fields(Case):
        if part.name != "keys" or trial.group != "decode":
            yield part.name, getattr(trial.case, part.name)
    for part in fields(Trial):
        if part.name not in ("group", "case"):
            yield part.name, getattr(trial, part.name)


@pytest.mark.slow
@pytest.mark.parametrize("group", sorted({trial.group for trial in trials()}))
def test_all_attentions_are_right(group: str) -> None:
    """Of decoding, layouts, shared heads and NaN, whose tables are products of three factors or more, each two of them meet."""
    mine = [trial for trial in trials() if trial.group == group]
    check(covering(mine, facts) if group in PRODUCTS else mine)


@dataclass(frozen=True)
class Graph:
    """A graph to lower by one kernel, and to run.

    Attributes:
        trial: The attention it is run with, and the kernel.
        unknown: Its sizes that are known only at run time, and those it is lowered with.
        fused: Whether something elementwise follows out.
    """

    trial: Trial
    unknown: Mapping[int, int] = field(default_factory=dict[int, int])
    fused: bool = False


def fused(out: Any) -> Any:
    return (out * 2 + 1).relu()


PAIR = Case(97, 131, LAST, heads=4, kv_heads=2, batch=2, head_dim=40, dtype=HALF)
BOTH = {97: 300, 131: 517}
ALL = BOTH | {3: 8}
DECODE = replace(PAIR, queries=1, keys=259, head_dim=64, heads=8)
RAGGED = Case((5, 0, 70, 33), (70, 3, 0, 61), LAST, heads=6, kv_heads=2, head_dim=32)
TOKENS = {108: 1000, 134: 777}
SOME = (  # one in each kernel, with unknown sizes
    Graph(Trial("dense", replace(PAIR, batch=3)), ALL, fused=True),
    Graph(Trial("dense, TMA", PAIR, TMA), BOTH),
    Graph(Trial("sequences", RAGGED), TOKENS | {5: 9}, fused=True),
    Graph(Trial("decode", DECODE, KeySplit(32, 1, 4, 3)), {259: 4000}, fused=True),
)
MORE = (
    Graph(Trial("known sizes", PAIR), fused=True),
    Graph(Trial("no mask", replace(PAIR, mask=Mask())), BOTH),
    Graph(Trial("first corner", replace(PAIR, mask=Mask(right=0))), BOTH),
    Graph(Trial("window", replace(PAIR, mask=Mask(17, 5))), BOTH),
    Graph(Trial("window, last corner", replace(PAIR, mask=Mask(40, 0, bottom_right=True))), BOTH),
    Graph(Trial("left only", replace(PAIR, mask=Mask(20, -1))), BOTH, fused=True),
    Graph(Trial("many rows hidden", replace(PAIR, keys=50)), {97: 300, 50: 900}),
    Graph(Trial("unknown queries", PAIR), {97: 40}, fused=True),
    Graph(Trial("unknown keys", PAIR), {131: 1000}),
    Graph(Trial("unknown batch", replace(PAIR, batch=3)), {3: 2}),
    Graph(Trial("by tokens", replace(PAIR, by_tokens=True)), BOTH),
    Graph(Trial("by tokens, TMA", replace(PAIR, by_tokens=True, dtype=BRAIN), TMA), BOTH),
    Graph(Trial("wide", replace(PAIR, head_dim=192, value_dim=128, dtype=BRAIN)), BOTH),
    Graph(Trial("soft-cap", replace(PAIR, softcap=3.0, dtype=torch.float32)), BOTH, fused=True),
    Graph(Trial("bias", replace(PAIR, batch=3, bias=(1, 4, 97, 131))), ALL, fused=True),
    Graph(Trial("bias of keys", replace(PAIR, bias=(1, 1, 1, 131))), BOTH),
    Graph(Trial("sequences, TMA", replace(RAGGED, dtype=HALF), TMA), TOKENS),
    Graph(Trial("sequences, window", replace(RAGGED, mask=Mask(9, 3, True))), TOKENS),
    Graph(Trial("unknown count", RAGGED), {5: 9}, fused=True),
    Graph(Trial("decode, no split", replace(DECODE, batch=3), KeySplit(32, 1, 4, 1)), {259: 900, 3: 16}),
    Graph(Trial("decode, known sizes", DECODE, KeySplit(64, 1, 4, 2)), fused=True),
    Graph(Trial("decode, window", replace(DECODE, mask=Mask(90, 0, True)), KeySplit(32, 1, 4, 4)), {259: 700}),
    Graph(Trial("decode, odd heads", replace(DECODE, heads=6, queries=2), KeySplit(32, 1, 4, 3)), {259: 700}),
    Graph(Trial("decode, bias", replace(DECODE, bias=(2, 1, 1, 259)), KeySplit(32, 1, 4, 3)), {259: 700}),
)  # fmt: skip


def check_graphs(graphs: Sequence[Graph]) -> None:
    inputs = [operands_of(graph.trial) for graph in graphs]
    for operand in inputs:
        del operand["lse"]  # the graph's own
    codes = [lowered(graph, operands) for graph, operands in zip(graphs, inputs, strict=True)]
    tensors = [list(tensor.values()) for tensor in inputs]
    results = interpreter.outputs(list(zip(codes, tensors, strict=True)))
    for operand, operands, (out, lse) in zip(graphs, inputs, results, strict=True):
        exact, exact_lse = expected_of(operand.trial, operands)
        dtype = operand.trial.case.dtype
        error = error_of(out, fused(exact) if operand.fused else exact)
        assert error <= TOLERANCE[dtype], f"out of {operand.trial.name}: {error}"
        assert error_of(lse, exact_lse) <= LSE_TOLERANCE, f"lse of {operand.trial.name}"


def lowered(graph: Graph, operands: Mapping[str, torch.Tensor]) -> str:
    """Lower a graph, and check that it is one kernel that does not depend on the unknown sizes."""

    def pick(problem: Problem) -> Candidate:
        places = {(size.operand, size.dim) for size in problem.dynamic}
        assert bool(places) == bool(graph.unknown)
        return candidate_of(graph.trial, problem)

    after = fused if graph.fused else lambda out: out
    code = code_of(graph.trial.case, operands, pick, unknown=graph.unknown, after=after)
    assert code.count(".run(") == 1, graph.trial.name
    return code


@pytest.mark.slow
@pytest.mark.claim
def test_a_kernel_of_each_kind_is_right_with_unknown_sizes() -> None:
    check_graphs(SOME)


@pytest.mark.slow
def test_what_inductor_generates_is_right() -> None:
    assert len([graph for graph in (*SOME, *MORE) if graph.unknown]) >= 20
    check_graphs(MORE)


def test_a_fault_is_seen() -> None:
    """A kernel that forgets the window must not pass: the comparison itself can fail."""
    trial = Trial("masks", Case(64, 64, Mask(3, 3), head_dim=32, heads=1, kv_heads=1), SMALL)
    other = replace(trial, case=replace(trial.case, mask=Mask()))
    out, lse = expected_of(trial, operands_of(trial))
    wrong_out, wrong_lse = expected_of(other, operands_of(other))
    assert error_of(wrong_out, out) > 0.1
    assert error_of(wrong_lse, lse) > 0.1
    assert error_of(torch.full_like(out, torch.nan), out) == float("inf")
