"""Templates in the place of an attention operator: outputs, strides, what is written, how it is measured."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inductor_plugin.inductor.candidates.request import DeltaRequest, View
from inductor_plugin.kernels.call import OpKernel, RequestKernel
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import BACKWARD, FORWARD, attention_of
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate, TritonSource
from tests.support.attention.graphs import (
    Shape,
    allocated,
    backward,
    body,
    calls,
    forward,
    lowered,
    outputs,
    varlen,
)
from tests.support.attention.marks import ODD, ON_FAKE_GPU, UNKNOWN

pytestmark = ON_FAKE_GPU


_TEXT = """
{{def_kernel(*NAMES.strip('"').split(','))}}
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    idx_z = rows // BLOCK_M
    idx_h = rows * 0
    idx_m = rows[:, None] * 0
    idx_d = tl.arange(0, 64)[None, :]
    zeros = tl.zeros([BLOCK_M, 64], tl.float32)
    mask = idx_m < 0
    {{store_output(("idx_z", "idx_h", "idx_m", "idx_d"), "zeros", "mask", val_shape=("BLOCK_M", "64"))}}
"""


class Small:
    """A Triton text that takes all operands and computes nothing."""

    name = "small"
    ops = (FORWARD, BACKWARD)

    def reject(self, problem: Problem) -> str | None:
        return "packed sequences" if attention_of(problem).varlen else None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        a = attention_of(problem)
        written = [a.index(key) for key in (("dq", "dv") if a.backward else ("lse",))]
        source = TritonSource(
            name="small_attention",
            text=_TEXT,
            grid="rows",
            constants=(
                (
                    "NAMES",
                    repr(",".join(operand.upper() for operand in a.operands)).replace("'", '"'),
                ),
                ("BLOCK_M", 64),
                ("SPLITS", 1),
            ),
            num_stages=1,
            num_warps=4,
            mutated=tuple(text for text in written if text is not None),
            extents=((0, 0), (0, 1), (0, 2)),
        )
        return [Candidate(self.name, "small_attention", {}, source)]


class Operator:
    """A torch operator that says in its schema what it writes."""

    name = "operator"
    ops = (FORWARD, BACKWARD)

    def reject(self, problem: Problem) -> str | None:
        return None if "lse" in attention_of(problem).operands else "no lse"

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        name = "backward" if problem.op == BACKWARD else "forward"
        kernel = OpKernel(f"attention_template_test::{name}.out", (0.5,))
        return [Candidate(self.name, f"an_operator_{name}", {}, kernel)]


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    own_library = torch.library.Library("attention_template_test", "FRAGMENT")
    own_library.define(
        "forward.out(Tensor q, Tensor k, Tensor v, Tensor(b!) lse, float scale, "
        "*, Tensor(a!) out) -> Tensor(a!)"
    )
    own_library.define(
        "backward.out(Tensor d, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor delta, "
        "Tensor(b!) dq, Tensor(c!) dv, float scale, *, Tensor(a!) out) -> Tensor(a!)"
    )
    yield own_library
    own_library._destroy()


@pytest.fixture
def registered(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = default_registry()
    monkeypatch.setattr(registry, "_templates", {}, raising=True)
    registry.register(Small())
    registry.register(Operator())


def launch(code: str, name: str) -> tuple[int, list[str]]:
    """Return in which line a template's kernel is launched, and its buffers."""
    lines = body(code).splitlines()
    (line,) = [i for i, row in enumerate(lines) if re.search(rf"{name}[\w.]*\(", row)]
    return line, re.findall(r"arg\d+_1|buf\d+", lines[line].partition("(")[2])


@pytest.mark.parametrize("shape", [ODD, UNKNOWN], ids=["static", "unknown"])
@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize(
    ("winner", "called"),
    [
        ("triton_small_attention", "triton_tem_fused_0"),
        ("operator.an_operator", "test.forward.out"),
    ],
    ids=["triton", "operator"],
)
@pytest.mark.usefixtures("registered")
def test_a_template_gives_back_what_was_traced(
    kind: str, winner: str, called: str, shape: Shape, cache_dir: Path
) -> None:
    code, lab = lowered(forward(kind, shape), f"{winner}(_forward)?", cache_dir)
    assert calls(code) == []
    line, buffers = launch(code, called)
    *_, lse, out = buffers
    assert buffers[:3] == ["arg0_1", "arg1_1", "arg2_1"]
    results = outputs(code)
    assert results[0] == out
    rows = "250" if shape is ODD else r"s\d+"
    assert re.match(rf"\(2, 8, {rows}\), .*torch.float32", allocated(code, lse))
    strides = r"\(128000, 64, 512, 1\)" if shape is ODD else r"\(512\*s\d+, 64, 512, 1\)"
    assert re.match(rf"\(2, 8, {rows}, 64\), {strides}, torch.bfloat16", allocated(code, out))
    if kind == "flash":
        assert results[1] == lse
    elif kind == "cudnn":
        assert results[1].startswith(f"reinterpret_tensor({lse}, (2, 8, ")
        assert results[1].endswith(", 1, 1), 0)")
    else:  # filled up to a multiple of 32 by a kernel that comes after
        copied = [
            i for i, row in enumerate(body(code).splitlines()) if f".run({lse}, {results[1]}" in row
        ]
        assert len(copied) == 1
        assert copied[0] > line
        assert shape is UNKNOWN or allocated(code, results[1]).startswith("(2, 8, 256)")
    assert lab.record()["decision"]["winner"].startswith(winner)


@pytest.mark.parametrize("shape", [ODD, UNKNOWN], ids=["static", "unknown"])
@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize(
    ("winner", "called"),
    [
        ("triton_small_attention", "triton_tem_fused_"),
        ("operator.an_operator", "test.backward.out"),
    ],
    ids=["triton", "operator"],
)
@pytest.mark.usefixtures("registered")
def test_a_templates_gradients_are_those_of_the_operator(
    kind: str, winner: str, called: str, shape: Shape, cache_dir: Path
) -> None:
    code, _ = lowered(backward(kind, shape), f"{winner}(_backward)?", cache_dir)
    assert calls(code) == []
    line, buffers = launch(code, called)
    do, q, k, v, forward_out, lse, delta, dq, dv, dk = buffers
    assert [do, q, k, v, forward_out] == [f"arg{i}_1" for i in range(5)]
    assert outputs(code) == [dq, dk, dv]
    layout = r"\(128000, 64, 512, 1\)" if shape is ODD else r"\(512\*s\d+, 64, 512, 1\)"
    for tensor in (dq, dk, dv):
        assert re.search(layout, allocated(code, tensor))
    lines = body(code).splitlines()
    (before,) = [i for i, row in enumerate(lines) if f".run({do}, {forward_out}, {delta}," in row]
    assert before < line
    assert "torch.float32" in allocated(code, delta)
    assert (lse == "arg5_1") == (kind != "efficient")  # padded rows are not where they should be


@pytest.mark.usefixtures("registered")
def test_nobody_reads_lse_so_nobody_writes_it(cache_dir: Path) -> None:
    code, lab = lowered(forward("flash", ODD, keep=(0,)), "triton_small_attention", cache_dir)
    (task,) = lab.tasks
    assert dict(task.problem.arguments)["operands"] == "'q,k,v'"
    assert "float32" not in body(code)
    assert launch(code, "triton_tem_fused_0")[1] == ["arg0_1", "arg1_1", "arg2_1", "buf0"]
    # Whose schema writes it says no.
    assert lab.record()["rejected"]["operator"] == "no lse"


@pytest.mark.usefixtures("registered")
def test_the_two_directions_are_decided_apart(cache_dir: Path) -> None:
    code, _ = lowered(forward("cudnn", ODD), "triton_small_attention", cache_dir / "forward")
    assert "triton_tem" in code
    code, _ = lowered(backward("cudnn", ODD), "attention_flash_backward", cache_dir / "backward")
    assert calls(code) == ["_scaled_dot_product_flash_attention_backward"]


@pytest.mark.parametrize("gradient", [False, True])
def test_packed_sequences(gradient: bool, cache_dir: Path) -> None:
    graph = varlen(gradient=gradient, window=(100, 0))
    code, lab = lowered(
        graph, f"triton_attention_varlen{'_backward' if gradient else ''}", cache_dir
    )
    (task,) = lab.tasks
    a = attention_of(task.problem)
    assert (a.varlen, a.batch, a.queries) == (True, 4, 1000)
    assert (a.mask.left, a.mask.right, a.mask.bottom_right) == (100, 0, True)
    _, buffers = launch(code, "triton_tem_fused_")
    if gradient:
        assert outputs(code) == [buffers[-3], buffers[-1], buffers[-2]]
        assert allocated(code, buffers[6]).startswith("(8, 1000), (1000, 1), torch.float32")
    else:
        assert outputs(code) == [buffers[-1], buffers[-2]]
        assert allocated(code, buffers[-2]).startswith("(8, 1000), (1000, 1), torch.float32")
    # Where sequences begin is measured with numbers that make sense.
    ends = [spec for job in lab.screens for spec in job.candidate.inputs if spec.size == (5,)]
    assert ends
    assert all(end.file is not None for end in ends)


@pytest.mark.parametrize("gradient", [False, True])
def test_where_sequences_begin_is_copied_if_it_has_gaps(gradient: bool, cache_dir: Path) -> None:
    winner = f"triton_attention_varlen{'_backward' if gradient else ''}"
    code, _ = lowered(varlen(gradient=gradient, step=2), winner, cache_dir)
    _, buffers = launch(code, "triton_tem_fused_")
    assert "arg0_1" in buffers
    assert "arg3_1" not in buffers


@pytest.mark.usefixtures("registered")
def test_a_gradient_is_measured_with_its_delta(cache_dir: Path) -> None:
    _, lab = lowered(backward("flash", ODD), "triton_small_attention", cache_dir)
    (kernel,) = {
        job.candidate.kernel
        for job in lab.screens
        if isinstance(job.candidate.kernel, RequestKernel)
    }
    request = pickle.loads(kernel.payload)
    assert isinstance(request, DeltaRequest)
    do, out, delta = request.delta_views
    assert (do.index, out.index, delta.index) == (0, 4, 6)
    assert do == View(0, (2, 8, 250, 64), (128000, 64, 512, 1), 0)
    assert delta.size == (2, 8, 250)
    assert request.padded_rows == ()


@pytest.mark.parametrize(
    ("shape", "rows"), [(ODD, (2, 8, 250)), (Shape(), ())], ids=["padded", "as long"]
)
def test_a_gradient_is_measured_with_the_rows_it_takes_out_of_padded_ones(
    shape: Shape, rows: tuple[int, ...], cache_dir: Path
) -> None:
    _, lab = lowered(backward("efficient", shape), "triton_attention_backward", cache_dir)
    payloads = {
        job.candidate.kernel.payload
        for job in lab.screens
        if isinstance(job.candidate.kernel, RequestKernel)
    }
    assert payloads
    assert {pickle.loads(payload).padded_rows for payload in payloads} == {rows}


def test_delta_is_written_before_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.autotune_process import TritonGPUBenchmarkRequest

    seen: list[torch.Tensor] = []

    def make_run_fn(self: Any, *tensors: torch.Tensor, out: torch.Tensor) -> Any:
        return lambda: seen.append(tensors[2].clone())

    monkeypatch.setattr(TritonGPUBenchmarkRequest, "make_run_fn", make_run_fn)
    request: Any = object.__new__(DeltaRequest)
    request.workspace_size = None
    for size, rows in (((2, 3, 5, 8), (2, 3, 5)), ((5, 3, 8), (3, 5))):
        do, out, delta = torch.randn(size), torch.randn(size), torch.zeros(rows)
        request.delta_views = tuple(
            View(i, tuple(tensor.shape), tuple(tensor.stride()), 0)
            for i, tensor in enumerate((do, out, delta))
        )
        run = request.make_run_fn(do, out, delta, out=torch.empty(1))
        assert not delta.any()
        for factor in (1, 2):
            do.mul_(factor)
            run()
            wanted = (do * out).sum(-1)
            torch.testing.assert_close(seen.pop(), wanted if do.dim() == 4 else wanted.t())


def test_padded_rows_are_copied_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.autotune_process import TritonGPUBenchmarkRequest

    monkeypatch.setattr(TritonGPUBenchmarkRequest, "make_run_fn", lambda *_, **__: lambda: None)
    request: Any = object.__new__(DeltaRequest)
    request.workspace_size = None
    do, out, delta = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.zeros(2, 3, 5)
    request.delta_views = tuple(
        View(i, tuple(tensor.shape), tuple(tensor.stride()), 0)
        for i, tensor in enumerate((do, out, delta))
    )
    copied: dict[tuple[int, ...], list[tuple[Any, ...]]] = {}
    for rows in ((), (2, 3, 5)):
        request.padded_rows = rows
        run = request.make_run_fn(do, out, delta, out=torch.empty(1))
        with Copies() as log:
            run()
        copied[rows] = log.strides
    # The first is delta's own.
    assert copied[()] == [(15, 5, 1)]
    assert copied[2, 3, 5] == [(15, 5, 1), (96, 32, 1)]


class Copies(TorchDispatchMode):
    """Keeps the strides of what is copied from one float32 tensor to another."""

    def __init__(self) -> None:
        super().__init__()
        self.strides: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.strides.append(args[1].stride())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize("shape", [ODD, UNKNOWN], ids=["static", "unknown"])
@pytest.mark.parametrize(
    ("graph", "name"),
    [(forward, "triton_attention"), (backward, "triton_attention_backward")],
    ids=["forward", "backward"],
)
def test_our_triton_kernels_are_among_them(
    kind: str, graph: Any, name: str, shape: Shape, cache_dir: Path
) -> None:
    code, lab = lowered(graph(kind, shape), name, cache_dir)
    assert calls(code) == []
    assert len(re.findall(r"triton_tem_fused_\w*\.run\(", body(code))) == 1
    assert len(outputs(code)) == (3 if graph is backward else 2)
    assert lab.record()["decision"]["winner"].startswith(name)
