"""Which kernels `check_outputs` surrounds with checks in generated code, and with which tensors."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch._inductor import ir
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V
from torch.nn.functional import scaled_dot_product_attention as sdpa

import inductor_plugin
from inductor_plugin.config import Config
from inductor_plugin.errors import OptionError, OutputError
from inductor_plugin.inductor.graph import output_guard
from inductor_plugin.inductor.graph.chosen import Chosen
from inductor_plugin.inductor.graph.output_guard import OutputGuard
from inductor_plugin.inductor.hooks import compile_options
from inductor_plugin.kernels.call import ExternKernel, OpKernel
from inductor_plugin.worker.jobs import BenchCandidate
from tests.support.attention.graphs import only
from tests.support.candidates import wrong_in_process
from tests.support.candidates.providers import offered
from tests.support.checked_outputs import checked
from tests.support.lowering import Arg, Lab, library_first

pytestmark = pytest.mark.compat

_FUSES_UNMEASURED = next(  # torch 2.15 has another name for it
    name
    for name in ("benchmark_template_fusion", "benchmark_epilogue_fusion")
    if name in inductor_config._config
)

HUGE = 1e30
"""Finite in float32, and no product of two is."""

A, B = Arg((256, 128)), Arg((128, 512))


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with inductor_config.patch(fx_graph_cache=False):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_cpp_template_is_looked_at_behind_its_epilogue(cache_dir: Path, dynamic: bool) -> None:
    layer = torch.nn.Linear(256, 320).eval()
    model = torch.nn.Sequential(layer, torch.nn.GELU()).eval()
    x = torch.randn(192, 256)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        run = checked(model, cache_dir, dynamic=dynamic)
        with Lab(only(r"cpp_\w+"), cache_dir).open():
            answer, (code,) = run_and_get_code(run, x)
        assert torch.allclose(answer, model(x), atol=1e-4)
        with pytest.raises(OutputError, match=r"^cpp_\w*Gemm\w* wrote \S+ at \[0, 4\]") as caught:
            run(torch.full((192, 256), 3e38))
    assert "cpp_fused" in code
    assert code.count("output_check.check(") == code.count("output_check.finite(") == 1
    # The product itself is in no memory: what is looked at is what gelu made of it (buf1).
    assert len(re.findall(r"\('buf\d+', ", code)) == 1
    call = code[code.index("output_check.finite(") :]
    kernel = next(line for line in call.splitlines() if "cpp_" in line and "(" in line)
    assert "gelu" in kernel
    assert "every input is finite" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.bmm, [(3, 8, 16), (3, 16, 24)]),
        (torch.addmm, [(24,), (8, 16), (16, 24)]),
        (torch.baddbmm, [(3, 8, 24), (3, 8, 16), (3, 16, 24)]),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_product_is_looked_at(
    cache_dir: Path, function: Callable[..., Any], shapes: list[tuple[int, ...]], dynamic: bool
) -> None:
    inputs = [torch.randn(shape) for shape in shapes]
    with wrong_in_process.offered(), Lab(wrong_in_process.first, cache_dir).open():
        run = checked(function, cache_dir, dynamic=dynamic)
        answer, (code,) = run_and_get_code(run, *inputs)
        assert torch.allclose(answer, function(*inputs), atol=1e-4)
        assert "torch.ops.traitor" in code
        with wrong_in_process.betraying(0, 0), pytest.raises(OutputError, match="traitor::"):
            run(*inputs)


def test_an_input_that_the_epilogue_writes_over_is_looked_at_before(cache_dir: Path) -> None:
    layer = torch.nn.Linear(256, 320, bias=False).eval()

    def update(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return total.add_(layer(x))

    x, total = torch.randn(192, 256), torch.zeros(192, 320)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        run = checked(update, cache_dir)
        with Lab(only(r"cpp_\w+"), cache_dir).open():
            run(x, total)
        total.zero_()
        assert torch.allclose(run(x, total), layer(x), atol=1e-4)
        total[2, 3] = torch.inf
        assert run(x, total).isinf().sum() == 1
        with pytest.raises(OutputError):
            run(torch.full((192, 256), 3e38), torch.zeros(192, 320))


@pytest.mark.parametrize("winner", [r"attention_math\.attention_math", "attention_cpu"])
def test_attention_is_looked_at(cache_dir: Path, winner: str) -> None:
    q, k, v = (torch.randn(1, 2, 64, 32) for _ in range(3))
    with Lab(only(winner), cache_dir).open():
        run = checked(sdpa, cache_dir)
        answer, (code,) = run_and_get_code(run, q, k, v)
    assert ("attention_math" in code.partition("check((")[0]) == ("math" in winner)
    assert torch.allclose(answer, sdpa(q, k, v), atol=1e-4)
    assert code.count("output_check.finite(") == 1
    assert code.count("output_check.check(") >= 1
    with pytest.raises(OutputError, match=winner.rpartition(".")[2]):
        run(q.fill_(HUGE), k.fill_(HUGE), v)
    q[0, 0, 0, 0] = torch.nan
    assert run(q, k, v).isnan().any()


def test_nothing_is_written_where_nothing_was_chosen_or_asked_for(cache_dir: Path) -> None:
    a, b = torch.randn(24, 16), torch.randn(16, 32)
    with offered("good"), Lab(library_first, cache_dir).open():
        _, (code,) = run_and_get_code(checked(torch.mm, cache_dir, check_outputs="off"), a, b)
    assert "output_check" not in code


def test_code_in_cpp_is_refused_by_name(cache_dir: Path) -> None:
    config = Config.load({"cache_dir": str(cache_dir), "check_outputs": "nan"}, {})
    with pytest.raises(OptionError, match=r"check_outputs .* cpp_wrapper"):
        compile_options(None, config, {"cpp_wrapper": True})
    with (
        inductor_config.patch(cpp_wrapper=True),
        offered("good"),
        Lab(library_first, cache_dir).open(),
        pytest.raises(Exception, match=r"check_outputs .* cpp_wrapper"),
    ):
        checked(torch.mm, cache_dir)(torch.randn(8, 8), torch.randn(8, 8))


def test_cuda_graphs_are_off_and_that_is_said(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config.load({"cache_dir": str(cache_dir), "check_outputs": "nan"}, {})
    assert compile_options("max-autotune", config, {})["triton.cudagraphs"] is False
    assert "CUDA graphs" in caplog.text


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
@pytest.mark.parametrize("winner", ["library", "triton", "operator"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_on_a_gpu_the_same_code_runs_with_looks_around_the_kernel(
    cache_dir: Path, winner: str, dynamic: bool
) -> None:
    def milliseconds(candidate: BenchCandidate) -> float:
        kinds: dict[type, str] = {ExternKernel: "library", OpKernel: "operator"}
        return 1.0 if kinds.get(type(candidate.kernel), "triton") == winner else 10.0

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = torch.mm(a, b)
        return (torch.relu(product),) if winner != "operator" else (product, torch.relu(product))

    codes: dict[str, str] = {}
    for mode in ("off", "nan"):
        with (
            inductor_config.patch({_FUSES_UNMEASURED: False}),
            wrong_in_process.offered(),
            Lab(milliseconds, cache_dir / mode).open() as lab,
        ):
            lower = lab.lower_dynamic if dynamic else lab.lower
            codes[mode] = lower(function, A, B, check_outputs=mode)
    looks = [line for line in codes["nan"].splitlines() if "output_check" in line]
    rest = [line for line in codes["nan"].splitlines() if "output_check" not in line]
    assert _calls(rest) == _calls(codes["off"].splitlines())
    assert [line.strip().partition("(")[0] for line in looks] == [
        "import inductor_plugin.ops.output_check",
        "finite_buf0 = inductor_plugin.ops.output_check.finite",
        "inductor_plugin.ops.output_check.check",
    ]
    fused = winner == "triton"  # relu is the epilogue: the product itself is never in memory
    assert f"check((('buf{int(fused)}', buf{int(fused)}), )" in looks[2]
    named = {"library": "mm", "triton": "triton_", "operator": "traitor::mm"}[winner]
    assert re.search(f"kernel=['\"]{named}", looks[2])
    between = codes["nan"].partition(looks[1])[2].partition(looks[2])[0]
    called = {"library": "extern_kernels.mm(", "triton": ".run(", "operator": "torch.ops.traitor"}
    assert called[winner] in between


def _calls(lines: list[str]) -> list[str]:
    """Return the lines that call kernels or move memory, without what differs from graph to graph."""
    results = [
        line.strip()
        for line in lines
        if re.search(r"\.run\(|kernels\.|torch\.ops|empty_|del ", line)
    ]
    return [line for line in results if not line.startswith(("#", "from", "import"))]


def test_a_graph_compiled_to_cpp_has_no_guard() -> None:
    graph: Any = SimpleNamespace(cpp_wrapper=True)
    with pytest.raises(OptionError, match="check_outputs"):
        OutputGuard(graph, "nan")


KERNEL = Chosen("a", "a kernel", "mm(4x8, 8x4)", "key")
DTYPES = {"whole": torch.int64, "wave": torch.complex64}


class WrittenBuffer:
    """A node of the scheduler that writes a buffer named like it, and reads others."""

    def __init__(self, name: str, *reads: str, users: tuple[Any, ...] = ()) -> None:
        self.name, self.users = name, users
        self.node = SimpleNamespace(get_name=lambda: name)
        self.read_writes = SimpleNamespace(reads=[SimpleNamespace(name=read) for read in reads])

    def get_name(self) -> str:
        return f"op of {self.name}"

    def get_outputs(self) -> list[Any]:
        users = [SimpleNamespace(node=user) for user in self.users]
        return [SimpleNamespace(get_name=lambda: self.name, users=users)]


class FusedWritten:
    """Nodes that are fused."""

    def __init__(self, *nodes: WrittenBuffer) -> None:
        self.nodes = nodes

    def get_nodes(self) -> list[WrittenBuffer]:
        return [*self.nodes]


@pytest.fixture(name="lines")
def written_lines() -> Iterator[list[str]]:
    """Return what is written into the code of a graph."""
    lines: list[str] = []
    wrapper = SimpleNamespace(writeline=lines.append, add_import_once=lambda _: None)

    def dtype_of(name: str) -> torch.dtype:
        if name == "token":
            raise NotImplementedError
        return DTYPES.get(name, torch.float32)

    graph: Any = SimpleNamespace(
        wrapper_code=wrapper,
        removed_buffers={"gone"},
        inplaced_to_remove={"replaced"},
        get_dtype=dtype_of,
        cpp_wrapper=False,
    )
    with V.set_graph_handler(graph):
        yield lines


SCHEDULER = SimpleNamespace(mutation_real_name={"later": "x"})


def guard() -> OutputGuard:
    return OutputGuard(V.graph, "nan")


def test_inputs_are_what_comes_from_outside_by_the_names_of_the_code(lines: list[str]) -> None:
    nodes = [
        WrittenBuffer("mm", "a", "later", "gone", "whole"),
        WrittenBuffer("relu", "mm", "b", "token"),
    ]
    guard().before(SCHEDULER, nodes, KERNEL)
    (line,) = lines
    assert line.startswith("finite_mm = ")
    assert line.endswith(".finite(a=a, b=b, x=x)")


def test_results_are_those_that_others_read(lines: list[str]) -> None:
    outside, product = WrittenBuffer("outside"), WrittenBuffer("mm")
    relu = WrittenBuffer("relu", users=(FusedWritten(product, outside),))
    product.users, wave = (relu,), WrittenBuffer("wave", users=(outside,))
    whole, gone = WrittenBuffer("whole", users=(outside,)), WrittenBuffer("gone", users=(outside,))
    behind = guard().before(SCHEDULER, [product, relu, wave, whole, gone], KERNEL)
    behind()
    assert "(('relu', relu), ('wave', wave), ), finite_mm, mode='nan'" in lines[-1]
    assert "kernel='a kernel', problem='mm(4x8, 8x4)', key='key'" in lines[-1]


def test_the_result_of_a_kernel_alone_is_looked_at_whoever_reads_it(lines: list[str]) -> None:
    guard().before(SCHEDULER, [WrittenBuffer("mm")], KERNEL)()
    assert "check((('mm', mm), ), finite_mm" in lines[-1]
    guard().before(SCHEDULER, [WrittenBuffer("whole")], KERNEL)()
    assert len(lines) == 3  # integers are never NaN


def test_results_of_one_call_have_its_inputs(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    monkeypatch.setattr(ir.MultiOutput, "get_name", lambda _: "a result")
    call = SimpleNamespace(get_name=lambda: "attention")
    inner, result = (object.__new__(ir.MultiOutput) for _ in range(2))
    inner.inputs, result.inputs = [call], [inner]  # pyright: ignore
    nodes = WrittenBuffer("out", "q"), WrittenBuffer("lse", "q")
    nodes[0].node, nodes[1].node = result, inner  # pyright: ignore
    checks = guard()
    for node in nodes:
        checks.before(SCHEDULER, [node], KERNEL)()
    assert [line.partition(" = ")[0] for line in lines].count("finite_attention") == 1
    assert [line for line in lines if "finite_attention, mode" in line] == lines[1:]
    assert output_guard._producer(result) == "attention"
