"""The library's attention kernels as functions: forms of lse, FlashAttention's packages, what refuses what."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import inspect
import math
import sys
import weakref
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from inductor_plugin.attention import flash_wheel, library
from inductor_plugin.attention.gates import PACKAGES
from inductor_plugin.attention.library import reformed
from inductor_plugin.attention.tools import MemoizedByVersion, TorchTools
from inductor_plugin.problem.attention import Attention, Mask, arguments
from tests.support.attention import reference
from tests.support.attention.problems import PLAIN


def test_who_is_asked() -> None:
    def names(attention: Attention, traced: str = "fmha") -> list[str]:
        return [kernel.name for kernel in library.rivals(attention, traced)]

    assert names(PLAIN) == ["flash", "efficient", "cudnn", "flash3", "flash4"]
    assert names(replace(PLAIN, mask=Mask(5, 0)))[0] == "flash_window"
    assert names(replace(PLAIN, backward=True)) == ["flash", "efficient", "cudnn"]
    packed = replace(PLAIN, operands=("q", "k", "v", "cu_q", "cu_k"))
    assert names(packed) == ["flash_varlen", "flash3", "flash4"]
    assert names(packed, "varlen") == ["flash3", "flash4"]  # it calls flash_varlen's kernel
    assert names(PLAIN, "cudnn") == ["flash", "efficient", "flash3", "flash4"]
    for kernel in {*names(PLAIN), *names(packed), "flash_window"}:
        assert library.extern_name(kernel, gradient=False) in library.FUNCTIONS


@pytest.mark.parametrize("rows", [64, 50])
@pytest.mark.parametrize("have", ["rows", "column", "padded", "cpu"])
@pytest.mark.parametrize("want", ["rows", "column", "padded", "cpu"])
def test_statistics_change_their_form(have: str, want: str, rows: int) -> None:
    plain = torch.randn(2, 3, rows)
    forms = {
        "rows": plain,
        "column": plain.unsqueeze(-1),
        "padded": torch.constant_pad_nd(plain, [0, -rows % 32], math.inf),
        "cpu": plain.transpose(1, 2).contiguous().transpose(1, 2),
    }
    converted = reformed(TorchTools(), forms[have], have, want, lambda: rows)
    assert torch.equal(converted, forms[want])
    assert converted.stride() == forms[want].stride()


@pytest.mark.parametrize("name", ["cpu", "fmha"])
@pytest.mark.parametrize("biased", [False, True])
def test_results_of_both_directions(name: str, biased: bool) -> None:
    q, k, v, do = (torch.randn(2, 3, 20, 16) for _ in range(4))
    bias = torch.randn(2, 3, 20, 20) if biased else None
    more = [] if bias is None else [bias]
    mask = Mask(-1, 0) if not biased else Mask()
    names = ["q", "k", "v", *(["bias"] if biased else []), "lse"]
    call_arguments = arguments(scale=0.3, mask=mask, operands=tuple(names))
    operands = [q, k, v, *more, torch.empty(2, 3, 20)]
    out, lse = library.results(name, False, operands, {**call_arguments, "form": "rows"})
    right, rows = reference.forward(q, k, v, mask=mask, scale=0.3, bias=bias)
    torch.testing.assert_close(out.double(), right, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), rows, atol=1e-5, rtol=1e-5)
    assert lse.is_contiguous()
    names = ["do", "q", "k", "v", "out", "lse", "delta", *names[3:-1], "dq", "dv"]
    call_arguments = arguments(scale=0.3, mask=mask, operands=tuple(names))
    operands = [do, q, k, v, out, lse, lse, *more, q, v]
    result = library.results(name, True, operands, call_arguments)
    exact = reference.backward(do, q, k, v, mask=mask, scale=0.3, bias=bias)
    for got, wanted in zip(result, exact, strict=False):
        torch.testing.assert_close(got.double(), wanted, atol=1e-4, rtol=1e-4)


def test_padded_rows_are_made_once_and_again_if_they_were_written_to() -> None:
    tensors: list[torch.Tensor] = []

    def pad(lse: torch.Tensor) -> torch.Tensor:
        tensors.append(reformed(TorchTools(), lse, "rows", "padded", lambda: lse.size(2)))
        return tensors[-1]

    once, lse = MemoizedByVersion(pad), torch.randn(2, 3, 50)
    assert once(lse) is once(lse)
    assert len(tensors) == 1
    lse[0].copy_(torch.zeros(3, 50))
    assert not once(lse)[0, :, :50].any()
    assert once(lse).isposinf()[..., 50:].all()
    assert len(tensors) == 2
    fits = torch.randn(2, 3, 64)
    assert once(fits) is fits
    gone = weakref.ref(fits)
    tensors.clear()
    del fits
    assert gone() is None


def test_a_gradient_told_of_padded_rows_is_the_same() -> None:
    q, k, v, do, out = (torch.randn(2, 3, 20, 16) for _ in range(5))
    names = ("do", "q", "k", "v", "out", "lse", "delta", "dq", "dv")
    call_arguments = arguments(scale=0.3, mask=Mask(), operands=names)
    out, lse = reference.forward(q, k, v, mask=Mask(), scale=0.3)
    operands = [do, q, k, v, out.float(), lse.float(), lse, q, v]
    plain = library.results("fmha", True, operands, call_arguments)
    padded = library.results("fmha", True, operands, {**call_arguments, "form": "padded"})
    assert all(map(torch.equal, plain, padded))


def test_a_measured_call_gives_the_output_in_the_wanted_order() -> None:
    q, k, v = (torch.randn(2, 3, 20, 16) for _ in range(3))
    call_arguments = arguments(scale=0.3, mask=Mask(), operands=("q", "k", "v"))
    function = library.FUNCTIONS["attention_cpu"]
    out = function(q, k, v, **call_arguments)
    order = (0, 2, 1, 3)
    moved = function(q, k, v, **call_arguments, order=(order,))
    assert torch.equal(out, moved)
    assert moved.stride() == (20 * 3 * 16, 16, 3 * 16, 1)


class Fake(ModuleType):
    """A package of FlashAttention's, as one of its releases has it."""

    def __init__(self, window: Any, *, gives_lse: bool = True) -> None:
        super().__init__("fake")
        self.asked: dict[str, Any] = {}

        def flash_attn_func(
            q: Any,
            k: Any,
            v: Any,
            softmax_scale: float | None = None,
            causal: bool = False,
            window_size: Any = window,
            softcap: float = 0.0,
            return_attn_probs: bool = False,
        ) -> Any:
            self.asked = {"causal": causal, "window": window_size, "lse": return_attn_probs}
            swapped = (tensor.transpose(1, 2) for tensor in (q, k, v))
            mask = Mask(-1, 0) if causal else Mask()
            out, lse = reference.forward(*swapped, mask=mask, scale=softmax_scale)
            return (out.float().transpose(1, 2), lse.float()) if gives_lse else out

        self.flash_attn_func = flash_attn_func
        self.flash_attn_varlen_func = flash_attn_func


@pytest.fixture
def fresh() -> None:
    flash_wheel._function.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("package", "unlimited"), [("flash3", -1), ("flash4", None)])
def test_flash_attentions_own_packages(
    package: str, unlimited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Fake((unlimited, unlimited))
    monkeypatch.setitem(sys.modules, PACKAGES[package], module)
    if package == "flash4":
        monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    q, k, v = (torch.randn(2, 3, 20, 16) for _ in range(3))
    call_arguments = arguments(scale=0.3, mask=Mask(-1, 0), operands=("q", "k", "v", "lse"))
    out, lse = library.results(package, False, [q, k, v, q], call_arguments)
    right, rows = reference.forward(q, k, v, mask=Mask(-1, 0), scale=0.3)
    torch.testing.assert_close(out.double(), right, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), rows, atol=1e-5, rtol=1e-5)
    assert module.asked == {"causal": True, "window": (unlimited, unlimited), "lse": True}
    call_arguments = arguments(
        scale=0.3, mask=Mask(7, -1, bottom_right=True), operands=("q", "k", "v")
    )
    library.results(package, False, [q, k, v], call_arguments)
    assert module.asked["window"] == (7, unlimited)
    assert module.asked["causal"] is False


@pytest.mark.usefixtures("fresh")
def test_torch_finds_nothing_wrong_with_their_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES["flash3"], Fake((-1, -1)))
    q, k, v = (torch.randn(2, 20, 3, 16) for _ in range(3))
    call_arguments = (q, k, v, None, None, 20, 20, 0.3, 0.0, -1, 0, "flash3")
    checks = torch.library.opcheck(torch.ops.inductor_plugin.flash_wheel.default, call_arguments)
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.usefixtures("fresh")
def test_a_package_that_gives_no_lse_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Fake((-1, -1), gives_lse=False)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    q = torch.randn(2, 3, 20, 16)
    call_arguments = arguments(scale=0.3, mask=Mask(), operands=("q", "k", "v"))
    with pytest.raises(RuntimeError, match="gives no lse"):
        library.results("flash3", False, [q, q, q], call_arguments)


@pytest.mark.parametrize("name", ["attention_cpu", "attention_flash_window_backward"])
def test_the_identity_of_a_kernel_is_that_of_earlier_records(name: str) -> None:
    """Inductor's `ExternKernelChoice.hash_key` is over module and text of the function (torch 2.11 to 2.15)."""
    function = library.FUNCTIONS[name]
    assert (function.__module__, function.__name__) == ("inductor_plugin.attention_library", name)
    assert inspect.getsource(function) == (
        "    def attention(*tensors: torch.Tensor, **kwargs: Any) -> torch.Tensor:\n"
        "        return results(name, gradient, tensors, kwargs)[int(gradient)]\n"
    )
