"""What an attention call may be: biases, windows, packed sequences, and what is left to Inductor, and why."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import json
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor import lowering as inductor_lowering

from inductor_plugin.attention import library
from inductor_plugin.inductor.attention import choices, lowering
from inductor_plugin.inductor.attention.lowering import lengths
from inductor_plugin.inductor.attention.operators import operators
from inductor_plugin.inductor.facts.compat import torch_version
from inductor_plugin.problem.attention import attention_of
from tests.support.attention.graphs import (
    ATEN,
    BF16,
    Graph,
    Shape,
    backward,
    body,
    calls,
    fmha,
    forward,
    lowered,
    outputs,
    packed,
    qkv,
    traced,
    varlen,
)
from tests.support.attention.marks import ON_FAKE_GPU
from tests.support.lowering import Lab

pytestmark = ON_FAKE_GPU

SHAPE = Shape()


@pytest.mark.parametrize("gradient", [False, True])
def test_sequences_of_any_number_and_length_are_for_flash_too(
    gradient: bool, cache_dir: Path
) -> None:
    suffix = "_backward" if gradient else ""
    code, lab = lowered(packed(gradient=gradient), f"attention_flash_varlen{suffix}", cache_dir)
    assert calls(code) == ["_flash_attention_backward" if gradient else "_flash_attention_forward"]
    (call,) = re.findall(r"aten\._flash_attention_\w+\.default\((.*)\)$", body(code), re.MULTILINE)
    # The longest is at most all tokens, a symbol.
    assert re.search(r", (s\d+), \1, 0\.0, True", call)
    (chosen,) = [
        job.candidate.kernel
        for job in lab.screens
        if job.candidate.candidate_id.startswith("attention_flash_varlen")
    ]
    assert dict(getattr(chosen, "kwargs", ()))["max_q"] >= 1000


def test_another_order_in_memory_is_undone_and_measured(cache_dir: Path) -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        results = ATEN._scaled_dot_product_flash_attention.default(q, k, v, 0.0, True, scale=0.125)
        return results[0], results[1]

    graph = traced(
        function,
        lambda env: [torch.empty(2, 8, 256, 64, dtype=BF16, device="cuda") for _ in range(3)],
    )
    code, lab = lowered(graph, "attention_efficient", cache_dir)
    (efficient,) = [
        job.candidate.kernel
        for job in lab.screens
        if job.candidate.candidate_id.startswith("attention_efficient")
    ]
    assert dict(getattr(efficient, "kwargs", ()))["order"] == ((0, 1, 2, 3),)
    # The copy is one kernel behind the call.
    (copy,) = re.findall(r"triton_\w+\.run\((\w+), (\w+),", body(code))
    assert outputs(code)[0] == copy[1]
    (flash,) = [job.candidate.kernel for job in lab.screens if job.library == job.candidate]
    assert "order" not in dict(getattr(flash, "kwargs", ()))


def test_a_bias_goes_where_it_can(cache_dir: Path) -> None:
    code, lab = lowered(
        forward("efficient", SHAPE, causal=False, bias=True), "attention_cudnn", cache_dir
    )
    assert calls(code) == ["_scaled_dot_product_cudnn_attention"]
    (task,) = lab.tasks
    assert dict(task.problem.arguments)["operands"] == "'q,k,v,bias,lse'"
    assert lab.record()["rejected"]["attention_flash"] == "a bias"
    assert "arg3_1, True, 0.0, False" in body(code)


@pytest.mark.parametrize("gradient", [False, True])
def test_packed_sequences_stay_with_torchs_operator_if_it_wins(
    gradient: bool, cache_dir: Path
) -> None:
    suffix = "_backward" if gradient else ""
    graph = varlen(gradient=gradient, longest=(400, 300))
    code, lab = lowered(graph, f"attention_varlen{suffix}", cache_dir)
    assert calls(code) == [f"_varlen_attn{suffix}"]
    assert body(code) == body(graph.stock())
    (task,) = lab.tasks
    a = attention_of(task.problem)
    assert (a.mask.left, a.mask.right, a.mask.bottom_right) == (-1, 0, True)
    stated = dict(task.problem.arguments)
    assert (stated["max_q"], stated["max_k"]) == ("400", "300")


@pytest.mark.skipif(torch_version() != (2, 14), reason="where the operator decides when it runs")
def test_statistics_that_cudnn_may_have_made_are_nobody_elses(cache_dir: Path) -> None:
    code, lab = lowered(varlen(window=(-1, -1)), "triton_attention_varlen", cache_dir)
    assert calls(code) == ["_varlen_attn"]
    assert lab.tasks == []
    assert "cuDNN's statistics" in lab.record()["rejected"]["attention"]
    # Who reads none of them does not care.
    code, lab = lowered(
        varlen(window=(-1, -1), keep=(0,)), "triton_attention_varlen", cache_dir / "out"
    )
    assert "attention" not in lab.record()["rejected"]
    assert calls(code) == []
    assert len(lab.tasks) == 1


def test_measured_sequences_are_as_long_as_the_call_says() -> None:
    class Node:
        def get_size(self) -> list[int]:
            return [5]

        def get_device(self) -> torch.device:
            return torch.device("cpu")

    class Sizes:
        def optimization_hints(self, values: list[int]) -> list[int]:
            return values

    class Graph:
        sizevars = Sizes()

    from torch._inductor.virtualized import V

    stand_in: Any = Graph()
    with V.set_graph_handler(stand_in):
        for tokens, longest, wanted in (
            (1000, 400, [400, 200, 200, 200]),
            (4000, 500, [500, 500, 500, 500]),
            # That none is longer than all together says nothing: they are alike.
            (1000, 1000, [250, 250, 250, 250]),
            (102, 400, [25, 26, 25, 26]),
        ):
            ends = lengths(tokens, longest)(Node())
            assert ends.dtype == torch.int32
            assert ends[0] == 0
            assert ends.diff().tolist() == wanted


@pytest.mark.parametrize("what", ["dropout", "debug mask", "bias gradient"])
def test_what_only_the_operator_can_do_is_left_to_it(what: str, cache_dir: Path) -> None:
    def function(q: Any, k: Any, v: Any, *more: Any) -> Any:
        if what == "bias gradient":
            do, bias, lse, seed = more
            return ATEN._scaled_dot_product_efficient_attention_backward.default(
                do, q, k, v, bias, do, lse, seed, seed, 0.0, [True] * 4, False, scale=0.125
            )
        dropout = 0.1 if what == "dropout" else 0.0
        results = ATEN._scaled_dot_product_flash_attention.default(
            q, k, v, dropout, True, what == "debug mask", scale=0.125
        )
        return results[0], results[1]

    def make(env: Any) -> list[Any]:
        q, k, v = qkv(SHAPE, env)
        if what != "bias gradient":
            return [q, k, v]
        bias = torch.empty(2, 8, 256, 256, dtype=BF16, device="cuda")
        seed = torch.empty((), dtype=torch.int64, device="cuda")
        return [q, k, v, torch.empty_like(q), bias, torch.empty(2, 8, 256, device="cuda"), seed]

    graph = traced(function, make)
    code, lab = lowered(graph, "triton_attention", cache_dir)
    assert body(code) == body(graph.stock())
    assert lab.tasks == []
    reason = lab.record()["rejected"]["attention"]
    assert {"dropout": "dropout of 0.1", "debug mask": "debug mask"}.get(
        what, "gradient of the bias"
    ) in reason


def test_calls_of_the_same_shapes_are_told_apart(cache_dir: Path) -> None:
    # What an operator alone can do shares no record with what was measured, nor with another such call.
    def graph(dropout: float, scale: float, causal: bool) -> Graph:
        def function(q: Any, k: Any, v: Any) -> Any:
            return ATEN._scaled_dot_product_flash_attention.default(
                q, k, v, dropout, causal, False, scale=scale
            )[:1]

        return traced(function, lambda env: qkv(SHAPE, env))

    cases = ((0.0, 1.0, False), (0.1, 1.0, False), (0.1, 0.125, True), (0.3, 0.125, True))
    for case in cases:
        lowered(graph(*case), "triton_attention", cache_dir)
    distinct: set[tuple[float, float, bool]] = set()
    for path in cache_dir.glob("records/*/*/*.json"):
        record = json.loads(path.read_text())
        named = dict(record["problem"]["arguments"])
        dropout = float(named.get("dropout_p", 0.0))
        distinct.add((dropout, float(named["scale"]), named["right"] == "0"))
        reason = f"dropout of {dropout}: its random numbers are the operator's own"
        assert record["rejected"].get("attention") == (reason if dropout else None)
    assert distinct == set(cases)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "unknown"])
def test_our_operator_has_all_of_them(dynamic: bool, cache_dir: Path) -> None:
    shape = Shape(queries=250, keys=300, dynamic=dynamic)
    graph = fmha(shape, window_left=100, window_right=0)
    code, lab = lowered(graph, "attention_flash_window", cache_dir / "window")
    assert calls(code) == ["_flash_attention_forward"]
    assert "window_size_left=100, window_size_right=0" in body(code)
    a = attention_of(lab.tasks[0].problem)
    assert (a.mask.left, a.mask.right, a.mask.bottom_right) == (100, 0, True)
    code, _ = lowered(graph, "attention_fmha", cache_dir / "own")
    assert "torch.ops.inductor_plugin.fmha.default(" in body(code)
    code, _ = lowered(graph, "triton_attention", cache_dir / "triton")
    assert calls(code) == []
    assert "triton_tem_fused" in code
    graph = fmha(shape, gradient=True, window_left=100, window_right=0)
    code, _ = lowered(graph, "attention_flash_window_backward", cache_dir / "gradient")
    assert calls(code) == ["_flash_attention_backward"]
    code, _ = lowered(graph, "triton_attention_backward", cache_dir / "ours")
    assert len(outputs(code)) == 3
    assert calls(code) == []


def test_a_soft_cap_leaves_atens_out(cache_dir: Path) -> None:
    graph = fmha(SHAPE, lse=False, softcap=20.0)
    code, lab = lowered(graph, "triton_attention", cache_dir)
    assert calls(code) == []
    refused = lab.record()["rejected"]
    assert {refused[f"attention_{name}"] for name in ("flash", "efficient", "cudnn")} == {
        "a soft cap"
    }
    assert dict(lab.tasks[0].problem.arguments)["softcap"] == "20.0"


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have FlashAttention 3 where it is looked for."""
    module = ModuleType("flash_attn_interface")
    module.__spec__ = ModuleSpec("flash_attn_interface", None)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)


@pytest.mark.usefixtures("packages")
def test_flash_attention_3_is_a_candidate_where_it_is_installed(cache_dir: Path) -> None:
    code, lab = lowered(forward("cudnn", SHAPE), "attention_flash3", cache_dir)
    assert calls(code) == []
    (call,) = re.findall(
        r"inductor_plugin\.flash_wheel\.default\((.*)\)$", body(code), re.MULTILINE
    )
    assert call.endswith("None, None, 256, 256, 0.125, 0.0, -1, 0, 'flash3'")
    assert outputs(code)[1].endswith("(2, 8, 256, 1), (2048, 256, 1, 1), 0)")
    assert "flash_attn.cute cannot be imported" in lab.record()["rejected"]["attention_flash4"]


def test_flash_attention_3_is_not_asked_for_gradients(cache_dir: Path) -> None:
    _, lab = lowered(backward("flash", SHAPE), "attention_flash_backward", cache_dir)
    assert not any("flash3" in entry.name for entry in lab.tasks[0].entries)


def test_what_was_activated_in_flash_attentions_place_is_part_of_the_candidate(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: "FA3")
    _, lab = lowered(forward("flash", SHAPE), "attention_flash", cache_dir)
    assert dict(lab.tasks[0].problem.arguments)["implementation"] == "'FA3'"


def test_nothing_is_left_behind() -> None:
    table: dict[Any, Any] = getattr(
        inductor_lowering, "user_lowerings", inductor_lowering.lowerings
    )
    lowering.uninstall()
    before = {op: table.get(op) for op in operators()}
    lowering.install()
    lowering.install()
    assert all(table[op] is not before[op] for op in operators())
    lowering.uninstall()
    after = {op: table.get(op) for op in operators()}
    # torch 2.11 keeps its own entry for operators it had none for.
    assert all(after[op] is before[op] or before[op] is None for op in operators())


@pytest.mark.parametrize("graph", [forward, backward])
def test_what_inductor_decides_alone_is_said(graph: Any, cache_dir: Path) -> None:
    lowered_graph = graph("flash", SHAPE)
    with inductor_config.patch("deterministic", True):
        code, lab = lowered(lowered_graph, "triton_attention", cache_dir)
        assert body(code) == body(lowered_graph.stock())
    assert lab.tasks == []
    assert "deterministic allows no timing" in lab.record()["rejected"]["attention"]


def test_nothing_is_said_where_nobody_asked(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches = Lab._patches
    off = {"max_autotune": False, "max_autotune_gemm": False}
    monkeypatch.setattr(Lab, "_patches", lambda self, options: patches(self, options) | off)
    code, lab = lowered(forward("flash", SHAPE), "triton_attention", cache_dir)
    assert calls(code) == ["_scaled_dot_product_flash_attention"]
    assert lab.tasks == []
    assert not list(cache_dir.glob("records/*/*/*.json"))


def test_outside_the_plugins_scope_inductor_alone_decides() -> None:
    graph = forward("flash", SHAPE)
    alone = graph.stock()
    lowering.install()
    try:
        assert body(graph.stock()) == body(alone)
    finally:
        lowering.uninstall()


def test_every_function_is_known_to_inductor_by_its_name() -> None:
    from torch._inductor.select_algorithm import extern_kernels

    choices.prepare()
    choices.prepare()
    for name, function in library.FUNCTIONS.items():
        assert getattr(extern_kernels, name) is function
