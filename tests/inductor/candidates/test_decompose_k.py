"""Inductor's decompose-K among the plugin's candidates, on a GPU that is not there."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._inductor import select_algorithm
from torch._inductor.codegen.subgraph import SubgraphChoiceCaller

from inductor_plugin.config import Config
from inductor_plugin.inductor.candidates import decompose_k, offers
from inductor_plugin.inductor.candidates.decompose_k import allowed, parts_of
from inductor_plugin.inductor.candidates.offers import why_not_measurable
from inductor_plugin.inductor.facts.compat import torch_version
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops.decompose_k import OP
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support.lowering import Arg, Lab, library_first, library_last

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

A, B = Arg((64, 8192)), Arg((8192, 64))


def product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a, b),)


def activated(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.relu(torch.mm(a, b)),)


def decomposed(candidate: BenchCandidate) -> bool:
    kernel = candidate.kernel
    return isinstance(kernel, OpKernel) and kernel.op == OP


def decomposed_first(candidate: BenchCandidate) -> float:
    """Say that decompose-K is ten times faster than all others."""
    return 0.1 if decomposed(candidate) else 1.0


@pytest.fixture
def lab(cache_dir: Path) -> Callable[..., Any]:
    return lambda milliseconds=decomposed_first: Lab(milliseconds, cache_dir).open()


def choice(name: str) -> Any:
    """Return a subgraph choice that has a name and nothing else."""
    caller: Any = object.__new__(SubgraphChoiceCaller)
    caller.name = name
    return caller


def test_it_competes_with_all_others(lab: Callable[..., Any]) -> None:
    with lab(library_first) as opened:
        code = opened.lower(product, A, B)
    (task,) = opened.tasks
    cuts = opened.entries("subgraph")
    assert [cut.name for cut in cuts] == ["decompose_k_32", "decompose_k_16", "decompose_k_64"]
    assert [entry.name for entry in task.entries if entry.library] == ["mm"]
    # Before, one such choice made the plugin leave the whole call to Inductor.
    assert {"triton_split_k", "triton_persistent_tma"} <= {
        entry.name for entry in opened.entries("triton")
    }
    assert "extern_kernels.mm(" in code
    assert "decompose" not in code


def test_it_is_measured_by_an_operator_on_the_operands_of_the_call(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        opened.lower(
            lambda a, b: (torch.mm(a[:, 64:8256], b.t()),), Arg((64, 8320)), Arg((48, 8192))
        )
    cuts = [job.candidate for job in opened.screens if decomposed(job.candidate)]
    assert len(cuts) == 3
    for cut in cuts:
        assert isinstance(cut.kernel, OpKernel)
        (parts,) = cut.kernel.args
        assert cut.candidate_id.startswith(f"decompose_k_{parts}-")
        assert cut.kernel.imports == ("inductor_plugin.ops.decompose_k",)
        assert [(i.size, i.stride, i.offset) for i in cut.inputs] == [
            ((64, 8192), (8320, 1), 64),
            ((8192, 48), (1, 8192), 0),
        ]
        assert (cut.output.size, cut.output.dtype) == ((64, 48), "bfloat16")
    (library,) = [job.candidate for job in opened.screens if job.candidate == job.library]
    assert {subgraph.inputs for subgraph in cuts} == {library.inputs}


def test_the_winner_is_inductors_own_subgraph(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        code = opened.lower(activated, A, B)
    winner = opened.record()["decision"]["winner"]
    match = re.match(r"decompose_k_(\d+)-", winner)
    assert match is not None
    (defined,) = re.findall(r"^def (decompose_k_mm_\d+_split_\d+)\(args\)", code, re.MULTILINE)
    assert defined.startswith(f"decompose_k_mm_{match[1]}_split_")
    assert f"(buf0,) = {defined}(" in code
    (batched,) = re.findall(r"extern_kernels\.bmm_dtype\(.*\)", code)
    assert f"({match[1]}, 64, {8192 // int(match[1])})" in batched
    # Inductor makes one kernel of sum and cast, and another of what follows the product.
    assert code.count(".run(") == 2
    assert "extern_kernels.mm(" not in code
    modules = set(re.findall(r"inductor_plugin\.[\w.]*", code))
    assert modules == {"inductor_plugin.ops.ranges", "inductor_plugin.ops.ranges.CallRange"}


def test_what_does_not_win_leaves_the_epilogue_to_triton(lab: Callable[..., Any]) -> None:
    def split_k_first(candidate: BenchCandidate) -> float:
        return 2.0 if decomposed(candidate) else library_last(candidate)

    with lab(split_k_first) as opened:
        code = opened.lower(activated, A, B)
    assert code.count(".run(") == 1
    assert "decompose" not in code


def test_the_next_process_measures_nothing(lab: Callable[..., Any]) -> None:
    with lab() as first:
        code = first.lower(activated, A, B)
    with lab(library_first) as second:
        again = second.lower(activated, A, B)
    assert second.tasks == []
    for text in (code, again):
        assert len(re.findall(r"^def decompose_k_mm_32_split_\d+\(", text, re.MULTILINE)) == 1


@pytest.mark.skipif(
    torch_version() < (2, 13), reason="torch 2.11 makes the size a constant when it offers it"
)
def test_rows_known_at_run_time_keep_it(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = torch._dynamo.mark_dynamic
    # Inductor offers it only where K is long enough for every size.
    monkeypatch.setattr(
        torch._dynamo, "mark_dynamic", lambda tensor, dim: marked(tensor, dim, min=2, max=64)
    )
    with lab() as opened:
        code = opened.lower_dynamic(lambda a, b: torch.relu(torch.mm(a, b)), Arg((33, 8192)), B)
    task, *_fusions = opened.tasks
    assert [(size.low, size.high) for size in task.problem.dynamic] == [(33, 64)]
    cuts = opened.entries("subgraph")
    assert len(cuts) == 3
    assert cuts[0].candidate.inputs[0].size == (33, 8192)
    (batched,) = re.findall(r"extern_kernels\.bmm_dtype\(.*\)", code)
    assert re.search(r"\(\d+, s\d+, \d+\)", batched)


def test_switched_off_it_is_not_offered(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        code = opened.lower(product, A, B, decompose_k="off")
    assert opened.entries("subgraph") == []
    assert opened.entries("triton")
    assert "decompose" not in code
    assert opened.record()["rejected"]["decompose_k"] == "option decompose_k is off"


def test_where_it_does_not_pay_the_reason_is_kept(lab: Callable[..., Any]) -> None:
    with lab() as opened:
        opened.lower(product, Arg((2048, 65536)), Arg((65536, 2048)))
    assert opened.entries("subgraph") == []
    assert re.fullmatch(
        r"K in \d+ parts is expected to take [\d.]+ us, the whole product [\d.]+ us",
        opened.record()["rejected"]["decompose_k"],
    )


def test_switched_off_inductor_does_not_decide_on_it_either(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    selector: Any = select_algorithm.AlgorithmSelectorCache
    original = selector.__call__

    def stock(self: Any, name: str, choices: list[Any], *others: Any, **_options: Any) -> Any:
        seen.append([type(offered).__name__ for offered in choices])
        only = [offered for offered in choices if not isinstance(offered, SubgraphChoiceCaller)]
        return original(self, name, only, *others)

    monkeypatch.setattr(selector, "__call__", stock)
    monkeypatch.setattr(
        "inductor_plugin.inductor.graph.selector.why_not_measurable", lambda choice: "because"
    )
    with lab() as opened:
        opened.lower(product, A, B, decompose_k="off")
    assert seen == [["ExternKernelCaller"]]


def test_another_subgraph_is_left_to_inductor_and_so_is_its_call(
    lab: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []

    selector: Any = select_algorithm.AlgorithmSelectorCache
    original = selector.__call__

    def stock(self: Any, name: str, choices: list[Any], *others: Any, **_options: Any) -> Any:
        seen.append({type(offered).__name__ for offered in choices})
        only = [offered for offered in choices if not isinstance(offered, SubgraphChoiceCaller)]
        return original(self, name, only, *others)

    monkeypatch.setattr(selector, "__call__", stock)
    for module in (offers, decompose_k):
        monkeypatch.setattr(module, "parts_of", lambda choice: None)
    with lab() as opened:
        code = opened.lower(product, A, B)
    assert seen == [{"ExternKernelCaller", "SubgraphChoiceCaller"}]
    assert opened.tasks == []
    assert "extern_kernels.mm(" in code


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("decompose_k_mm_2_split_0", 2),
        ("decompose_k_mm_128_split_17", 128),
        ("contiguous_mm_3", None),
        ("my_op_decompose_k_mm_2_split_0", None),
        ("mm_decompose_k_split_4_5", None),
    ],
)
def test_it_is_told_from_other_subgraphs_by_its_name(name: str, parts: int | None) -> None:
    assert parts_of(choice(name)) == parts
    assert (why_not_measurable(choice(name)) is None) == (parts is not None)


def test_nothing_else_is_a_subgraph_whatever_its_name() -> None:
    other: Any = type("Other", (), {"name": "decompose_k_mm_2_split_0"})()
    assert parts_of(other) is None


def test_it_is_never_offered_on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [choice("decompose_k_mm_2_split_0"), choice("contiguous_mm_1")]
    assert allowed(both, Config()) == (both, {})
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert allowed(both, Config()) == (both[1:], {"decompose_k": "it is not offered on AMD GPUs"})
    assert allowed(both[1:], Config()) == (both[1:], {})


@pytest.mark.parametrize(
    ("choices", "worthwhile", "left", "why"),
    [
        (["a", 2, "b", 4, 8], (8, 2), ["a", 8, 2, "b"], False),
        (["a", 2, 4], (), ["a"], True),
        ([2, "a", 4], (4,), [4, "a"], False),
        ([2, 4], (), [2, 4], False),  # nothing else would be left
        (["a", "b"], (8,), ["a", "b"], False),
    ],
)
def test_the_promising_ones_stand_where_the_first_of_them_stood(
    monkeypatch: pytest.MonkeyPatch,
    choices: list[Any],
    worthwhile: tuple[int, ...],
    left: list[Any],
    *,
    why: bool,
) -> None:
    splits = SimpleNamespace(parts=worthwhile, reason="K is too short")
    parts = lambda choice: choice if isinstance(choice, int) else None  # noqa: E731
    monkeypatch.setattr(decompose_k, "parts_of", parts)
    monkeypatch.setattr(decompose_k, "worthwhile", lambda _problem, _parts: splits)
    untyped: Any = None
    kept, reasons = decompose_k.promising(choices, untyped)
    assert kept == left
    assert reasons == ({"decompose_k": "K is too short"} if why else {})
