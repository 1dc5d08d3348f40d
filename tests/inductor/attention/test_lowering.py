"""Attention as a choice of Inductor: each of ATen's operators in the place of each other, without a GPU."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inductor_plugin.attention import library
from inductor_plugin.kernels.call import ExternKernel
from tests.support.attention.graphs import (
    Shape,
    allocated,
    backward,
    body,
    calls,
    forward,
    lowered,
    outputs,
    qkv,
    traced,
)
from tests.support.attention.marks import ODD, ON_FAKE_GPU, UNKNOWN

pytestmark = ON_FAKE_GPU

KINDS = ("flash", "efficient", "cudnn")
OTHERS = [(kind, other) for kind in KINDS for other in ("flash", "efficient") if kind != other]
OPERATORS = {kind: f"_scaled_dot_product_{kind}_attention" for kind in KINDS}


@pytest.mark.parametrize("shape", [ODD, UNKNOWN], ids=["static", "unknown"])
@pytest.mark.parametrize("graph", [forward, backward])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_traced_is_called_as_inductor_calls_it(
    kind: str, graph: Any, shape: Shape, cache_dir: Path
) -> None:
    lowered_graph = graph(kind, shape)
    suffix = "_backward" if graph is backward else ""
    code, lab = lowered(lowered_graph, f"attention_{kind}{suffix}", cache_dir)
    assert body(code) == body(lowered_graph.stock())
    assert calls(code) == [OPERATORS[kind] + suffix]
    (task,) = lab.tasks
    assert task.problem.op == f"attention{suffix}"
    # The operator that was traced is the yardstick; the others have to be faster to be taken.
    assert [entry.name for entry in task.entries if entry.library] == [f"attention_{kind}{suffix}"]
    assert len(task.entries) > 2


@pytest.mark.parametrize("shape", [ODD, UNKNOWN], ids=["static", "unknown"])
@pytest.mark.parametrize(("kind", "other"), OTHERS)
def test_another_forward_gives_back_what_was_traced(
    kind: str, other: str, shape: Shape, cache_dir: Path
) -> None:
    code, _ = lowered(forward(kind, shape), f"attention_{other}", cache_dir)
    assert calls(code) == [OPERATORS[other]]
    _, lse = outputs(code)
    rows = "250" if shape is ODD else r"s\d+"
    if kind == "cudnn":
        assert re.match(rf"reinterpret_tensor\(\w+, \(2, 8, {rows}, 1\), \(.*, 1, 1\), 0\)", lse)
    else:
        extents = "2, 8, 256" if kind == "efficient" else "2, 8, 250"
        if other == "efficient" or kind == "efficient":  # a copy that is as long as it has to be
            tensors = allocated(code, lse)
            assert "torch.float32" in tensors
            assert shape is UNKNOWN or tensors.startswith(f"({extents})")


@pytest.mark.parametrize("shape", [ODD, UNKNOWN], ids=["static", "unknown"])
@pytest.mark.parametrize(("kind", "other"), OTHERS)
def test_another_gradient_is_given_lse_in_its_own_form(
    kind: str, other: str, shape: Shape, cache_dir: Path
) -> None:
    code, lab = lowered(backward(kind, shape), f"attention_{other}_backward", cache_dir)
    assert calls(code) == [f"{OPERATORS[other]}_backward"]
    assert len(outputs(code)) == 3
    (task,) = lab.tasks
    names = ["do", "q", "k", "v", "out", "lse", "delta", "dq", "dv"]
    assert dict(task.problem.arguments)["operands"] == repr(",".join(names))
    assert task.problem.inputs[5].size == (2, 8, 250)
    assert task.problem.inputs[5].stride == (2000, 250, 1)
    # Neither delta nor memory for dq and dv is left in the code: the library needs none.
    assert len(re.findall(r"\.run\(", body(code))) <= 1


class Operators(TorchDispatchMode):
    """Keeps the names of what computes or copies."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name not in ("permute", "slice", "empty", "unsqueeze"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shape", [ODD, UNKNOWN], ids=["static", "unknown"])
@pytest.mark.parametrize(("other", "before"), [("efficient", []), ("flash", ["clone"])])
def test_a_gradient_is_measured_on_the_rows_that_were_traced(
    other: str, before: list[str], shape: Shape, cache_dir: Path
) -> None:
    name = f"attention_{other}_backward"
    code, lab = lowered(backward("efficient", shape), name, cache_dir)
    assert len(re.findall(r"\.run\(", body(code))) == len(before)
    (kernel,) = {
        job.candidate.kernel
        for job in lab.screens
        if isinstance(job.candidate.kernel, ExternKernel) and job.candidate.kernel.name == name
    }
    named = dict(kernel.kwargs)
    assert named["form"] == "padded"
    x = torch.empty(2, 250, 8, 64, dtype=torch.bfloat16, device="meta").transpose(1, 2)
    rows = torch.empty(2, 8, 250, device="meta")
    operands = [rows if part in ("lse", "delta") else x for part in named["operands"].split(",")]
    function = library.FUNCTIONS[name]
    function(*operands, **named)  # a worker's first call, which nobody measures
    with Operators() as log:
        function(*operands, **named)
    assert log.names == [*before, f"{OPERATORS[other]}_backward"]


@pytest.mark.parametrize(
    ("kind", "shape"), [("efficient", Shape()), ("flash", ODD), ("cudnn", ODD)]
)
def test_rows_of_one_form_are_one_problem(kind: str, shape: Shape, cache_dir: Path) -> None:
    _, lab = lowered(backward(kind, shape), f"attention_{kind}_backward", cache_dir)
    assert "form" not in dict(lab.tasks[0].problem.arguments)


def test_cudnn_is_offered_where_all_sizes_are_known(cache_dir: Path) -> None:
    code, _ = lowered(forward("flash", ODD), "attention_cudnn", cache_dir)
    assert calls(code) == [OPERATORS["cudnn"]]
    assert outputs(code)[1].endswith("(2, 8, 250), (2000, 250, 1), 0)")


def test_a_size_known_at_run_time_leaves_cudnn_out_and_says_so(cache_dir: Path) -> None:
    _, lab = lowered(forward("flash", UNKNOWN), "attention_flash", cache_dir)
    assert "a plan for each" in lab.record()["rejected"]["attention_cudnn"]
    assert "attention_cudnn" not in [entry.name for entry in lab.tasks[0].entries]


def test_layers_of_one_shape_compute_their_fake_results_once(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    run = library.LibraryKernel.run

    def counted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(kernel.name)
        return run(kernel, *args, **kwargs)

    monkeypatch.setattr(library.LibraryKernel, "run", counted)
    attention = torch.ops.aten._scaled_dot_product_flash_attention.default

    def function(q: Any, k: Any, v: Any) -> Any:
        for causal in (True, True, False):
            q = attention(q, k, v, 0.0, causal, scale=0.125)[0]
        return (q,)

    graph = traced(function, lambda env: qkv(Shape(), env))
    code, _ = lowered(graph, "attention_flash", cache_dir)
    assert calls(code) == [OPERATORS["flash"]] * 3
    assert sorted(asked) == ["cudnn", "cudnn", "efficient", "efficient"]  # with a mask, and without
