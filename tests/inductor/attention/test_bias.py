"""Biases of fewer extents, dimensions or bits than the scores: who is offered, and what they are handed."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from inductor_plugin.attention import library
from inductor_plugin.attention.tools import TorchTools, whole_bias
from inductor_plugin.problem.attention import Mask, arguments
from tests.support.attention.graphs import (
    ATEN,
    BF16,
    FMHA,
    Graph,
    Shape,
    body,
    calls,
    lowered,
    qkv,
    traced,
)
from tests.support.attention.marks import ON_FAKE_GPU

pytestmark = ON_FAKE_GPU

SHAPE = Shape()
WHOLE = "(2, 8, 256, 256), ({}), 0)"


def cudnn(size: tuple[int, ...], dtype: torch.dtype = BF16) -> Graph:
    """Return the graph of cuDNN's operator, which takes biases that `efficient` does not."""

    def function(q: Any, k: Any, v: Any, bias: Any) -> Any:
        results = ATEN._scaled_dot_product_cudnn_attention.default(
            q, k, v, bias, False, 0.0, False, False, scale=0.125
        )
        return results[:1]

    return traced(
        function, lambda env: [*qkv(SHAPE, env), torch.empty(size, dtype=dtype, device="cuda")]
    )


def fmha(size: tuple[int, ...], *, gradient: bool) -> Graph:
    """Return the graph of the plugin's own operator with a bias."""
    library.KERNELS["fmha"].load()

    def function(q: Any, k: Any, v: Any, bias: Any, *more: Any) -> Any:
        if gradient:
            do, out, lse = more
            return FMHA.fmha_backward.default(do, q, k, v, out, lse, None, bias)[:3]
        return FMHA.fmha.default(q, k, v, bias, return_lse=False)[:1]

    def make(env: Any) -> list[Any]:
        q, k, v = qkv(SHAPE, env)
        lse = torch.empty(2, 8, 256, device="cuda")
        more = [torch.empty_like(q), torch.empty_like(q), lse] if gradient else []
        return [q, k, v, torch.empty(size, dtype=BF16, device="cuda"), *more]

    return traced(function, make)


@pytest.mark.parametrize(
    ("size", "strides"),
    [
        ((2, 1, 256, 256), "65536, 0, 256, 1"),
        ((1, 1, 256, 256), "0, 0, 256, 1"),
        ((2, 1, 1, 256), "256, 0, 0, 1"),
        ((2, 8, 256, 256), ""),
    ],
    ids=str,
)
def test_efficient_is_handed_the_whole_bias(
    size: tuple[int, ...], strides: str, cache_dir: Path
) -> None:
    code, _ = lowered(cudnn(size), "attention_efficient", cache_dir)
    assert calls(code) == ["_scaled_dot_product_efficient_attention"]
    (call,) = re.findall(r"efficient_attention\.default\((.*)\)$", body(code), re.MULTILINE)
    assert (WHOLE.format(strides) in call) if strides else ("v_1, bias_1, False, 0.0" in call)


@pytest.mark.parametrize(
    ("size", "dtype", "reason"),
    [
        ((2, 1, 256, 256), torch.float32, "a float32 bias of bfloat16 operands"),
        ((2, 8, 256, 1), BF16, "the same for all keys"),
    ],
    ids=str,
)
def test_efficient_is_not_offered_a_bias_it_refuses(
    size: tuple[int, ...], dtype: torch.dtype, reason: str, cache_dir: Path
) -> None:
    _, lab = lowered(cudnn(size, dtype), "attention_cudnn", cache_dir)
    assert reason in lab.record()["rejected"]["attention_efficient"]
    (task,) = lab.tasks
    assert "attention_efficient" not in {entry.name for entry in task.entries}


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("size", [(256, 256), (8, 1, 256), (256,)], ids=str)
def test_a_bias_of_fewer_dimensions_is_for_triton_too(
    size: tuple[int, ...], gradient: bool, cache_dir: Path
) -> None:
    name = "triton_attention_backward" if gradient else "triton_attention"
    code, lab = lowered(fmha(size, gradient=gradient), name, cache_dir)
    assert calls(code) == []
    (task,) = lab.tasks
    names = dict(task.problem.arguments)["operands"].strip("'").split(",")
    bias = task.problem.inputs[names.index("bias")]
    assert bias.size == (1,) * (4 - len(size)) + size


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "backward"])
def test_the_plugins_own_operator_keeps_its_bias(gradient: bool, cache_dir: Path) -> None:
    graph = fmha((256, 256), gradient=gradient)
    suffix = "_backward" if gradient else ""
    code, _ = lowered(graph, f"attention_fmha{suffix}", cache_dir)
    assert body(code) == body(graph.stock())


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "backward"])
def test_a_worker_measures_efficient_with_the_whole_bias(
    gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[torch.Size] = []

    def expand(self: TorchTools, x: torch.Tensor, size: Any) -> torch.Tensor:
        handed.append(x.expand(*size).size())
        return x.expand(*size)

    monkeypatch.setattr(TorchTools, "expand", expand)
    names = ("q", "k", "v", "bias")
    if gradient:
        names = ("do", "q", "k", "v", "out", "lse", "delta", "bias", "dq", "dv")
    call_arguments = arguments(scale=0.125, mask=Mask(), operands=names)
    with FakeTensorMode():
        x = torch.empty(2, 4, 64, 32, dtype=BF16, device="cuda")
        rows = torch.empty(2, 4, 64, device="cuda")
        bias = torch.empty(1, 1, 64, 64, dtype=BF16, device="cuda")
        values = [{"bias": bias, "lse": rows, "delta": rows}.get(name, x) for name in names]
        library.results("efficient", gradient, values, call_arguments)
    assert handed == [(2, 4, 64, 64)]


def test_a_whole_bias_has_the_extents_of_the_scores() -> None:
    q, k = torch.empty(2, 3, 5, 8), torch.empty(2, 3, 7, 8)
    bias = torch.randn(1, 3, 1, 7)
    expanded = whole_bias(TorchTools(), {"q": q, "k": k, "bias": bias})
    torch.testing.assert_close(expanded, bias.expand(2, 3, 5, 7))
    assert expanded.data_ptr() == bias.data_ptr()
    assert whole_bias(TorchTools(), {"q": q, "k": k}) is None
