"""Inputs and constants of a graph, described for the worker that builds them."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from inductor_plugin.inductor.guard.description import (
    CannotDescribeError,
    Described,
    Packing,
    packings,
)
from inductor_plugin.inductor.guard.fx_graph import why_not_run
from inductor_plugin.worker.child.graphs import built
from inductor_plugin.worker.graph_job import MKLDNN_CONVOLUTION, GraphTensor


def traced(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def test_inputs_are_as_those_of_the_compile() -> None:
    with FakeTensorMode():
        fakes = [
            torch.empty(3, 5).t(),
            torch.empty(4, 1).expand(4, 7),
            torch.empty(2, 2, dtype=torch.bfloat16),
            torch.empty(2, dtype=torch.float8_e4m3fn),
            torch.empty(3, dtype=torch.bool),
            torch.empty(3, dtype=torch.int32),
        ]
    graph = traced(lambda x: x + 1, torch.ones(1))
    inputs = [built(each, {}) for each in Described(graph, [*fakes, 5, 2.5, True]).inputs]
    for fake, real in zip(fakes, inputs, strict=False):
        assert (real.size(), real.stride(), real.dtype) == (fake.size(), fake.stride(), fake.dtype)
    assert inputs[6:] == [5, 2.5, True]
    assert 0.01 < inputs[0].std() < 0.5


@pytest.mark.parametrize(
    ("function", "below"),
    [
        (lambda x, i: nn.functional.embedding(i, x), 5),
        (lambda x, i: nn.functional.embedding(i.view(-1).to(torch.int32), x), 5),
        (lambda x, i: x[:, i], 7),
        (lambda x, i: x[i, i], 5),
        (lambda x, i: torch.gather(x, 1, i.view(1, 2)), 7),
        (lambda x, i: torch.index_select(x, 0, i), 5),
        (lambda x, i: torch.ops.aten.embedding_dense_backward(x[:2], i, 6, -1, False), 6),
        (lambda x, i: x[0, 0] * i, 1 << 16),
    ],
)
def test_integers_are_below_what_they_index(function: Callable[..., Any], below: int) -> None:
    x, i = torch.ones(5, 7), torch.zeros(2, dtype=torch.int64)
    described = Described(traced(function, x, i), [x, i])
    (indices,) = [
        each
        for each in described.inputs
        if isinstance(each, GraphTensor) and each.spec.dtype == "int64"
    ]
    assert indices.below == below


def test_constants_that_matter_are_carried_and_the_others_made_up() -> None:
    described = Described(traced(lambda x: x, torch.ones(1)), [])
    positions, weight = torch.arange(6), torch.ones(600, 600)
    constants = dict(described.constants({"p": positions[2:], "w": weight, "same": weight}))
    assert torch.equal(built(constants["p"], {}), positions[2:])
    assert constants["w"] == constants["same"]
    assert constants["w"].data is None


def test_large_weights_of_8_bits_are_made_up() -> None:
    described = Described(traced(lambda x: x, torch.ones(1)), [])
    weight = torch.ones(1200, 1200, dtype=torch.int8)
    ((_, constant),) = described.constants({"w": weight})
    made_up = built(constant, {})
    assert (made_up.shape, made_up.dtype) == (weight.shape, torch.int8)
    assert len(made_up.unique()) > 1


class OnGpu(Tensor):
    """Stands in for a tensor on a GPU: its memory can be read in a copy alone."""

    device = torch.device("cuda", 0)  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    def untyped_storage(self) -> Any:
        memory = super().untyped_storage()

        def cpu() -> torch.UntypedStorage:
            return torch.UntypedStorage(memory.nbytes()).copy_(memory, False)

        return SimpleNamespace(nbytes=memory.nbytes, cpu=cpu)


def test_small_constants_on_a_gpu_are_carried_too() -> None:
    described = Described(traced(lambda x: x, torch.ones(1)), [])
    positions = torch.arange(512)
    value = positions[2:].as_subclass(OnGpu)
    with FakeTensorMode():  # a graph may be compiled within
        constants = dict(described.constants({"p": value}))
    assert constants["p"].spec.device == "cuda:0"
    here = replace(constants["p"], spec=replace(constants["p"].spec, device="cpu"))
    assert torch.equal(built(here, {}), positions[2:])


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "a object"),
        (torch.zeros(1 << 18, dtype=torch.int64), "2097152 bytes of integers"),
        (torch.ones(3, 3).to_mkldnn(), "packed in a way that is not known"),
        (torch.ones(3, 3).to_sparse(), "packed in a way that is not known"),
    ],
)
def test_other_constants_are_not_carried(value: Any, what: str) -> None:
    described = Described(traced(lambda x: x, torch.ones(1)), [])
    with pytest.raises(CannotDescribeError, match=what):
        described.constants({"c": value})


def test_other_inputs_are_not_made_up() -> None:
    graph = traced(lambda x: x, torch.ones(1))
    for value in (object(), torch.ones(3, 3).to_sparse()):
        with pytest.raises(CannotDescribeError, match="cannot be made up"):
            Described(graph, [value])


def test_the_operators_that_read_a_packed_weight_tell_how_it_is_packed() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    x.meta["val"], y.meta["val"] = torch.empty(2, 5, 32), torch.empty(2, 3, 8, 8)
    linear = graph.call_function(
        torch.ops.mkldnn._linear_pointwise.default,
        (x, graph.get_attr("w"), None, "none", [], ""),
    )
    convolution = graph.call_function(
        torch.ops.mkldnn._convolution_pointwise.default,
        (y, graph.get_attr("c"), None, [1, 1], [2, 2], [1, 1], 1, "none", [], ""),
    )
    linear.meta["val"] = torch.empty(2, 5, 16)
    scales = graph.get_attr("plain")
    quantized = graph.call_function(
        torch.ops.onednn.qlinear_pointwise.default,
        (x, 1.0, 0, graph.get_attr("q"), scales, scales, None, 1.0, 0, None, "none", [], ""),
    )
    packed = graph.call_function(
        torch.ops.mkl._mkl_linear,  # as freezing calls it
        (x, graph.get_attr("m"), graph.get_attr("plain"), None, 10),
    )
    graph.output((linear, convolution, packed, quantized))
    constants = {
        "w": torch.ones(16, 32).to_mkldnn(),
        "c": torch.ones(4, 3, 3, 3).to_mkldnn(),
        "m": torch.ones(900, 1).to_mkldnn(),
        "plain": torch.ones(16, 32),
        "q": torch.ops.onednn.qlinear_prepack(torch.ones(16, 32, dtype=torch.int8), (2, 5, 32)),
    }
    module = fx.GraphModule(constants, graph)
    assert why_not_run(module) is None
    assert packings(module) == {
        id(module.w): Packing("mkldnn_linear", (16, 32), (10,)),
        id(module.c): Packing(
            MKLDNN_CONVOLUTION, (4, 3, 3, 3), ((1, 1), (2, 2), (1, 1), 1, (2, 3, 8, 8))
        ),
        id(module.m): Packing("mkl_linear", (16, 32), (10,)),
        id(module.q): Packing("onednn_qlinear", (16, 32), ((2, 5, 32),)),
    }
