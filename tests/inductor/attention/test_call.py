"""The operands of a tuned attention and the memory of its results, from the traced operator's."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.attention.kernel_calls import KernelArguments
from inductor_plugin.inductor.attention import call
from inductor_plugin.inductor.attention.call import AttentionCall
from inductor_plugin.problem.attention import Mask

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
PLAIN = KernelArguments(0.5, Mask())


class SizedTensor:
    """An operand in a graph, which only has a size."""

    def __init__(self, *size: int) -> None:
        self.size = [*size]

    def get_size(self) -> list[int]:
        return self.size


Q, K, V = SizedTensor(2, 3, 20, 16), SizedTensor(2, 3, 24, 16), SizedTensor(2, 3, 24, 8)
PACKED = SizedTensor(40, 3, 16)


def traced_of(**facts: Any) -> Any:
    tensors = facts.pop("tensors", {"q": Q, "k": K, "v": V})
    given = {"name": "flash", "form": "rows", "gradient": False, "device": GPU, "arguments": PLAIN}
    return SimpleNamespace(**{**given, "tensors": tensors, "varlen": "cu_q" in tensors, **facts})


def gradient_of(**facts: Any) -> Any:
    names = ("do", "q", "k", "v", "out", "lse")
    sizes = (SizedTensor(2, 3, 20, 8), Q, K, V, SizedTensor(2, 3, 20, 8), SizedTensor(2, 3, 20))
    tensors = dict(zip(names, sizes, strict=True)) | facts.pop("more", {})
    return traced_of(gradient=True, tensors=tensors, **facts)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory that nobody writes be its size and type, and what is computed be its name."""
    monkeypatch.setattr(call, "empty", lambda size, _stride, dtype, device: (tuple(size), dtype))
    monkeypatch.setattr(call, "extents", tuple)
    monkeypatch.setattr(call, "_delta", lambda _do, _out, varlen: f"delta {varlen}")
    monkeypatch.setattr(call, "equal", lambda a, b: a == b)
    monkeypatch.setattr(call, "number", lambda number: number)
    reformed = lambda _tools, lse, have, want, rows: (lse, have, want, rows())  # noqa: E731
    monkeypatch.setattr(call.library, "reformed", reformed)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_each_gradient_has_memory_of_its_own_size(device: torch.device) -> None:
    """Values may be narrower than heads, and keys more than queries."""
    name, form = ("cpu", "cpu") if device == CPU else ("efficient", "padded")
    traced = gradient_of(device=device, name=name, form=form, more={"bias": SizedTensor(20, 24)})
    results = [torch.empty(operand.size, dtype=torch.bfloat16) for operand in (Q, K, V)]
    operands = call._operands(traced, results)
    assert operands["dq"] == ((2, 3, 20, 16), torch.bfloat16)
    assert operands["dv"] == ((2, 3, 24, 8), torch.bfloat16)
    delta = [] if device == CPU else ["delta"]
    assert [*operands] == ["do", "q", "k", "v", "out", "lse", *delta, "bias", "dq", "dv"]
    assert operands["lse"] == (traced.tensors["lse"], form, "cpu" if device == CPU else "rows", 20)
    assert operands.get("delta", "delta False") == "delta False"


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize(
    ("facts", "rows"),
    [
        ({}, (2, 3, 20)),
        ({"tensors": {"q": PACKED, "k": PACKED, "v": PACKED, "cu_q": 1, "cu_k": 2}}, (3, 40)),
        ({"name": "cpu"}, (2, 20, 3)),  # as the operator returns it
    ],
)
def test_statistics_are_an_operand_where_they_are_wanted(
    facts: dict[str, Any], rows: tuple[int, ...], *, wanted: bool
) -> None:
    traced = traced_of(arguments=KernelArguments(0.5, Mask(), lse=wanted), **facts)
    results = [torch.empty(2, 3, 20, 8), torch.empty(2, 20, 3)]
    operands = call._operands(traced, results)
    packed = ["cu_q", "cu_k"] if traced.varlen else []
    assert [*operands] == ["q", "k", "v", *packed, *(["lse"] if wanted else [])]
    assert not wanted or operands["lse"] == (rows, torch.float32)


@pytest.mark.parametrize(
    ("form", "rows", "padded"),
    [("padded", 32, True), ("padded", 20, False), ("rows", 32, False)],
)
def test_rows_are_padded_where_they_may_be_longer_than_the_queries(
    form: str, rows: int, *, padded: bool
) -> None:
    traced = gradient_of(form=form, more={"lse": SizedTensor(2, 3, rows)})
    assert call._is_padded(traced) is padded


def attention_call(traced: Any, results: Any, operands: Any) -> Any:
    untyped: Any = None
    return AttentionCall(traced, results, operands, (), untyped, untyped)


def test_results_of_a_templates_gradient_are_in_the_order_of_the_operator() -> None:
    results = [torch.empty(operand.size) for operand in (Q, K, V)]
    gradients = attention_call(gradient_of(), results, {"dq": "dq", "dv": "dv"})
    assert gradients.returned("dk") == ("dq", "dk", "dv")
    biased = attention_call(gradient_of(), [*results, None], {"dq": "dq", "dv": "dv"})
    assert biased.returned("dk") == ("dq", "dk", "dv", None)


def test_what_a_template_does_not_compute_is_there_all_the_same() -> None:
    """States of random numbers, which nobody reads; statistics that nobody asked for."""
    results = [torch.empty(2, 3, 20, 8), torch.empty(2, 3, 20), None, 7]
    alone = attention_call(traced_of(), results, {})
    assert alone.returned("out") == ("out", ((2, 3, 20), torch.float32), None, 7)
    both = attention_call(traced_of(form="padded"), results[:2], {"lse": "lse"})
    assert both.returned("out") == ("out", ("lse", "rows", "padded", 20))
    packed = {"q": PACKED, "k": PACKED, "v": PACKED, "cu_q": 1, "cu_k": 2}
    flat = attention_call(traced_of(tensors=packed), results[:2], {"lse": "lse"})
    assert flat.returned("out") == ("out", ("lse", "rows", "rows", 40))


@pytest.mark.parametrize(
    ("traced", "arguments", "more"),
    [
        (traced_of(), PLAIN, {}),
        (traced_of(), KernelArguments(0.5, Mask(), lse=True, form="padded"), {"form": "padded"}),
        (traced_of(), KernelArguments(0.5, Mask(), lse=True, form="rows"), {}),
        (traced_of(), KernelArguments(0.5, Mask(), form="padded"), {}),  # there are none
        (
            traced_of(),
            KernelArguments(0.5, Mask(), order=((0, 2, 1, 3),)),
            {"order": ((0, 2, 1, 3),)},
        ),
        (
            gradient_of(form="padded", more={"lse": SizedTensor(2, 3, 32)}),
            PLAIN,
            {"form": "padded"},
        ),
        (gradient_of(form="padded"), KernelArguments(0.5, Mask(), lse=True, form="rows"), {}),
        (
            traced_of(tensors={"q": PACKED, "k": PACKED, "v": PACKED, "cu_q": 1, "cu_k": 2}),
            KernelArguments(0.5, Mask(), max_q=7, max_k=9),
            {"max_q": 7, "max_k": 9},
        ),
    ],
)
def test_a_measured_call_has_what_is_no_default(
    traced: Any, arguments: KernelArguments, more: dict[str, Any]
) -> None:
    gradients = attention_call(traced, [], {"q": 1, "k": 2, "v": 3})
    keywords = gradients._keywords(arguments)
    plain = attention_call(traced_of(), [], {"q": 1, "k": 2, "v": 3})._keywords(PLAIN)
    assert keywords == {**plain, **more}
    assert keywords["operands"] == "q,k,v"
