"""Epilogues of several nodes of which visitors take some: cut, measured, written, and computed.

What is written runs in Triton's interpreter, where memory nobody has written is NaN; the operator is
its own library product there.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from inductor_plugin.inductor.fusion import visitors, visitors_split
from inductor_plugin.kernels.call import BufferRef, ExternKernel, ModuleKernel, OpKernel
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support.lowering import Arg, Lab
from tests.support.triton import interpreter

pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

M, N, K = 64, 128, 32
A, B, BIAS, WHOLE = Arg((M, K)), Arg((K, N)), Arg((N,)), Arg((M, N))
TABLE, PLACES = Arg((1000,)), Arg((N,), torch.int64)
BACKENDS = {"gemm_backends": "ATEN,TRITON,CUTLASS"}
OPERATOR = "torch.ops.inductor_plugin.cutlass_mm_epilogue.out"
LIBRARY = """
def _library(a, b, operands, *others, out):
    from inductor_plugin.ops import gemm_epilogue
    gemm_epilogue._library(a, b, operands, others[-2], others[-1], out)

"""
Graph = Callable[..., tuple[Any, ...]]


def gathered(a: Any, b: Any, bias: Any, table: Any, places: Any) -> tuple[Any, ...]:
    """Multiply what a visitor computes with what an index takes from memory."""
    sums = functional.relu(a @ b + bias)
    return sums, sums * table[places]


GATHERED = (A, B, BIAS, TABLE, PLACES)


def between(a: Any, b: Any, bias: Any) -> tuple[Any, ...]:
    sums = functional.relu(a @ b + bias)
    return sums, sums.sin(), sums * 2


def behind(a: Any, b: Any, bias: Any, more: Any) -> tuple[Any, ...]:
    sums = functional.relu(a @ b + bias)
    wave = sums.sin()
    return sums, wave, (wave + more) * bias


def products(a: Any, b: Any, bias: Any) -> tuple[Any, ...]:
    sums = functional.relu(torch.addmm(bias, a, b))
    return sums, sums.cos()


def batches(a: Any, b: Any, bias: Any) -> tuple[Any, ...]:
    sums = functional.relu(torch.bmm(a, b) + bias)
    return sums, sums.cos()


def onward(a: Any, b: Any, bias: Any, weight: Any) -> tuple[Any, ...]:
    """Read what the operator writes in a later product, too."""
    sums = functional.relu(a @ b + bias)
    return sums @ weight, sums.sin()


def narrowed(a: Any, b: Any, scale: Any, bias: Any, shift: Any, more: Any) -> tuple[Any, ...]:
    """Pass 16-bit numbers on, which nobody else reads, where the product has 32."""
    sums = functional.relu(torch._int_mm(a, b) * scale + bias - shift + more).to(torch.bfloat16)
    return sums.sin(), sums.cos()


CASES: dict[str, tuple[Graph, tuple[Arg, ...], int]] = {
    "gathered operand": (gathered, GATHERED, 1),
    "between two that are taken": (between, (A, B, BIAS), 1),
    "and what reads it": (behind, (A, B, BIAS, WHOLE), 2),
    "addmm": (products, (A, B, BIAS), 1),
    "read by a later product": (onward, (A, B, BIAS, Arg((N, 256))), 2),
    "read by nobody else": (
        narrowed,
        (Arg((M, K), torch.int8), Arg((K, N), torch.int8, (1, K)), BIAS, BIAS, BIAS, WHOLE),
        2,
    ),
    "batches": (batches, (Arg((3, M, K)), Arg((3, K, N)), Arg((3, 1, N))), 1),
}


def is_cut(candidate: BenchCandidate) -> bool:
    """Return True for an operator with an epilogue and a kernel of Triton behind it."""
    kernels = [type(part.kernel) for part in getattr(candidate.kernel, "parts", ())]
    return kernels == [OpKernel, ModuleKernel]


def cut_first(candidate: BenchCandidate) -> float:
    """Say that what is cut is the fastest, at times a GPU could have."""
    if hasattr(candidate.kernel, "parts"):
        return 0.0090 if is_cut(candidate) else 0.0200
    return 0.0100 if isinstance(candidate.kernel, ExternKernel) else 0.0102


def cut_last(candidate: BenchCandidate) -> float:
    """Say that what is cut is the slowest."""
    return 0.0300 if is_cut(candidate) else cut_first(candidate)


@pytest.fixture
def lab(cache_dir: Path) -> Iterator[Lab]:
    with Lab(cut_first, cache_dir).open() as opened:
        yield opened


def calls(code: str) -> list[str]:
    """Return what the generated code calls, in order: the operator, and kernels of Triton."""
    result = rf"^ *({re.escape(OPERATOR)}|triton_poi|extern_kernels\.\w+)\w*[.(]"
    return re.findall(result, code[code.index("def call(") :], re.M)


def record_of(lab: Lab) -> dict[str, Any]:
    """Return the record of the one product with an epilogue."""
    results = [json.loads(path.read_text()) for path in lab.cache_dir.glob("records/*/*/*.json")]
    (record,) = [result for result in results if result["problem"]["epilogue"]]
    return record


def interpretable(code: str) -> str:
    """Return generated code as the interpreter runs it: with grids, and the operator's library."""
    code = code.replace(OPERATOR, "_library").replace(
        "triton_heuristics.pointwise(", "triton_heuristics.template("
    )
    grid = r"\1, \2, 1024, -(-\2 // 1024), 1, 1\3"
    return LIBRARY + re.sub(r"(triton_poi_\w+\.run\(.*), (\w+)(, stream=\w+\))", grid, code)


def values(arguments: Sequence[Arg]) -> list[torch.Tensor]:
    """Return tensors of a graph on the CPU.

    They are small, because the sine of a rounded number is wrong by as much as that number was.
    """
    torch.manual_seed(0)
    return [
        torch.randn(argument.size).mul(0.3).to(argument.dtype)
        if argument.dtype.is_floating_point
        else torch.randint(0, 4, argument.size[::-1]).to(argument.dtype).t()
        if argument.stride
        else torch.randint(0, 4, argument.size).to(argument.dtype)
        for argument in arguments
    ]


@pytest.mark.slow
@pytest.mark.claim
def test_what_is_written_computes_the_graph(cache_dir: Path) -> None:
    written: list[tuple[str, list[torch.Tensor]]] = []
    for number, (function, arguments, _) in enumerate(CASES.values()):
        with Lab(cut_first, cache_dir / str(number)).open() as lab:
            code = lab.lower(function, *arguments, **BACKENDS)
        assert calls(code)[:2] == [OPERATOR, "triton_poi"], list(CASES)[number]
        written.append((interpretable(code), values(arguments)))
    with Lab(cut_first, cache_dir / "dynamic").open() as lab:
        code = lab.lower_dynamic(gathered, *GATHERED, **BACKENDS)
    assert calls(code) == [OPERATOR, "triton_poi"]
    longer = [torch.randn(M + 8, K).mul(0.3).to(A.dtype), *values(GATHERED)[1:]]
    written.append((interpretable(code), longer))
    graphs = [*(case for case, *_ in CASES.values()), gathered]
    results = interpreter.outputs(written)
    for graph, (_, tensors), outputs in zip(graphs, written, results, strict=True):
        wanted = graph(
            *(tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors)
        )
        assert len(outputs) == len(wanted)
        for got, right in zip(outputs, wanted, strict=True):
            error = (got.float() - right).abs().max() / right.abs().max()
            assert error < 2e-2, f"{graph.__name__}: {error:.2e}"


@pytest.mark.parametrize("name", CASES)
def test_each_buffer_is_allocated_once_and_none_for_the_product(name: str, lab: Lab) -> None:
    function, arguments, behind = CASES[name]
    code = lab.lower(function, *arguments, **BACKENDS)
    live, allocated = set[str](), list[str]()
    after = 0
    called = False
    for line in code[code.index("def call(") :].splitlines():
        used = set(re.findall(r"\bbuf\d+", line))
        if match := re.match(r" *(buf\d+) = empty_strided_cuda", line):
            allocated.append(match[1])
            live.add(match[1])
            after += called
        elif match := re.match(r" *del (buf\d+)$", line):
            live.remove(match[1])
        else:
            assert used <= live, line
        called |= OPERATOR in line
    assert len(allocated) == len(set(allocated))
    assert "buf0" not in allocated
    assert after == behind, "what the second kernel writes is not there before it runs"


def test_both_kernels_are_one_candidate_on_the_same_tensors(lab: Lab) -> None:
    lab.lower(gathered, *GATHERED, **BACKENDS)
    screened_kernel = next(job.candidate for job in lab.screens if is_cut(job.candidate))
    kernel: Any = screened_kernel.kernel
    operator, module = kernel.parts
    assert [len(screened_kernel.inputs), len(kernel.scratch)] == [5, 1]
    assert (kernel.scratch[0].size, screened_kernel.output.size) == ((M, N), (M, N))
    assert operator.arguments[:3] == (
        BufferRef(0),
        BufferRef(1),
        (BufferRef(2, (1, N), (0, 1), 0),),
    )
    assert (operator.arguments[-1], operator.out) == ((), BufferRef(5)), (
        "what is passed on is scratch"
    )
    assert isinstance(operator.arguments[3], str), "the kernel's name is no buffer"
    # Of what it reads, in the order of its own pointers, and the candidate's output.
    assert set(module.arguments[:4]) == {BufferRef(3), BufferRef(4), BufferRef(5), BufferRef(6)}
    assert module.arguments[4:] == (M * N,)
    unfused: Any = next(t for t in lab.tasks if t.problem.epilogue).entries[0]
    assert unfused.library


def test_the_last_write_is_compared_whichever_kernel_writes_it(lab: Lab) -> None:
    lab.lower(between, A, B, BIAS, **BACKENDS)
    screened_kernel = next(job.candidate for job in lab.screens if is_cut(job.candidate))
    kernel: Any = screened_kernel.kernel
    operator, module = kernel.parts
    output = BufferRef(len(screened_kernel.inputs) + len(kernel.scratch))
    assert operator.out == output
    assert output not in module.arguments


def test_a_slower_one_changes_nothing(cache_dir: Path) -> None:
    codes: list[str] = []
    for backends in ("ATEN,TRITON,CUTLASS", "ATEN,TRITON"):
        with Lab(cut_last, cache_dir / backends).open() as lab:
            codes.append(lab.lower(gathered, *GATHERED, gemm_backends=backends))
            assert any(is_cut(job.candidate) for job in lab.screens) == ("CUTLASS" in backends)
    assert codes[0] == codes[1]


def test_why_it_is_cut_is_told(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, visitors.__name__):
        lab.lower(behind, A, B, BIAS, WHOLE, **BACKENDS)
    reason = record_of(lab)["rejected"]["visitors"]
    assert reason == "split off buf2, buf3: cutlass: no visitor computes sin"
    assert f"buf0: visitors: {reason}" in caplog.text
    (task,) = [pending for pending in lab.tasks if pending.problem.epilogue]
    described = [entry.description for entry in task.entries if "cutlass" in entry.name]
    assert described
    assert all(text.endswith("then a kernel for 2 of 3 nodes") for text in described)
    assert "+rest-" in record_of(lab)["decision"]["winner"]


def test_a_warm_process_writes_the_same(cache_dir: Path) -> None:
    with Lab(cut_first, cache_dir).open() as cold:
        first = cold.lower(gathered, *GATHERED, **BACKENDS)
    with Lab(cut_last, cache_dir).open() as warm:  # the record decides
        assert warm.lower(gathered, *GATHERED, **BACKENDS) == first
    assert calls(first) == [OPERATOR, "triton_poi"]
    assert (warm.screens, warm.finals, warm.units) == ([], [], [])


def test_a_rest_that_cannot_be_written_costs_the_cut_kernel_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise ValueError("as the test says")

    monkeypatch.setattr(visitors, "generated", failing)
    code = lab.lower(gathered, *GATHERED, **BACKENDS)
    assert OPERATOR not in code
    (task,) = [pending for pending in lab.tasks if pending.problem.epilogue]
    cut = [entry.outcome for entry in task.entries if "+rest" in entry.name]
    assert cut
    for screen in cut:
        assert screen is not None
        assert screen.status == "compile_failed"
        assert "as the test says" in screen.reason
    assert any(entry.alive for entry in task.entries if entry.name.startswith("fused.triton"))


def test_a_look_at_the_outputs_comes_behind_both_kernels(lab: Lab) -> None:
    code = lab.lower(gathered, *GATHERED, check_outputs="nan", **BACKENDS)
    looked, launched = code.index("output_check.check("), code.index("triton_poi_fused_0.run(")
    assert launched < looked
    assert "('buf1', buf1), ('buf2', buf2)" in code[looked:]


@pytest.mark.parametrize(
    ("graph", "arguments"),
    [
        pytest.param(lambda a, b: (a @ b, (a @ b).sin()), (A, B), id="one node"),
        pytest.param(
            lambda a, b, c: (functional.relu(torch.mm(a, b) + c).sin(),),
            (A, B, BIAS),
            id="inside a node",
        ),
    ],
)
def test_a_node_is_not_cut(graph: Graph, arguments: tuple[Arg, ...], lab: Lab) -> None:
    assert OPERATOR not in lab.lower(graph, *arguments, **BACKENDS)
    assert not any(
        is_cut(job.candidate) and "evt" in job.candidate.candidate_id for job in lab.screens
    )


def test_what_would_move_as_many_bytes_is_not_cut(lab: Lab) -> None:
    def graph(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = torch.mm(a, b)
        return functional.relu(product), product.sin()

    assert OPERATOR not in lab.lower(graph, A, B, **BACKENDS)
    reason = record_of(lab)["rejected"]["visitors"]
    assert "split off buf2" in reason
    assert "no visitor computes sin; so cut, as many bytes are moved as by two kernels" in reason


@dataclass(frozen=True)
class Stub:
    """A scheduler node."""

    name: str
    ancestors: frozenset[str] = frozenset()

    def get_name(self) -> str:
        return self.name


def test_what_can_be_computed_but_not_stored_is_taken_with_its_reader() -> None:
    truth, reader, other = Stub("op1"), Stub("op2", frozenset({"op1"})), Stub("op3")

    def refused(nodes: Sequence[Any]) -> str | None:
        if other in nodes:
            return "no visitor computes it"
        return "it stores truth values" if truth in nodes and reader not in nodes else None

    taken, reasons = visitors_split._absorbed([truth, other, reader], refused)
    assert taken == [truth, reader]
    assert reasons == ["no visitor computes it"]
    taken, reasons = visitors_split._absorbed([other, truth], refused)
    assert taken == []
    assert reasons == ["no visitor computes it", "it stores truth values"]


def test_nodes_far_behind_are_left_untried() -> None:
    nodes = [Stub(f"op{place}") for place in range(visitors_split.MOST + 2)]
    tried: list[int] = []

    def refused(some: Sequence[Any]) -> str | None:
        tried.append(len(some))
        return None

    taken, reasons = visitors_split._absorbed(nodes, refused)
    assert taken == nodes[: visitors_split.MOST]
    assert len(tried) == visitors_split.MOST
    assert reasons == ["it is behind the first 8 nodes"] * 2
