"""Facts of a traced attention by which other kernels are chosen and measured."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.attention.kernel_calls import KernelArguments
from inductor_plugin.inductor.attention import choices
from inductor_plugin.inductor.attention.choices import (
    adapted,
    dispatch_context,
    longest_measured,
    order_of,
)
from inductor_plugin.inductor.facts import compat
from inductor_plugin.problem.attention import Mask

pytestmark = pytest.mark.compat


def same_order(size: Any, left: Any, right: Any) -> bool:
    return all(a == b for n, a, b in zip(size, left, right, strict=True) if n > 1)


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sizes are known."""
    proven = SimpleNamespace(statically_known_multiple_of=lambda size, number: size % number == 0)
    monkeypatch.setattr(compat, "hints", lambda values: tuple(int(value) for value in values))
    monkeypatch.setattr(choices, "V", SimpleNamespace(graph=SimpleNamespace(sizevars=proven)))
    monkeypatch.setattr(choices, "equal", lambda a, b: a == b)
    monkeypatch.setattr(choices, "same_order", same_order)


@pytest.mark.parametrize(
    ("size", "stride", "order"),
    [
        ((2, 3, 4), (12, 4, 1), (0, 1, 2)),
        ((2, 3, 4), (1, 2, 6), (2, 1, 0)),
        ((2, 1, 4), (4, 4, 1), (0, 1, 2)),  # of equal strides the longer is further out
        ((1, 2, 4), (4, 4, 1), (1, 0, 2)),
        ((1, 1, 4), (4, 4, 1), (0, 1, 2)),
    ],
)
def test_dimensions_are_ordered_by_their_strides(
    size: tuple[int, ...], stride: tuple[int, ...], order: tuple[int, ...]
) -> None:
    assert order_of(torch.empty_strided(size, stride)) == order


class RunTimeLength(int):
    """A length that is known at run time."""

    free_symbols = frozenset({"s0"})


def test_a_length_of_run_time_is_measured_at_the_end_of_its_class() -> None:
    assert longest_measured(300) == 300
    assert longest_measured(RunTimeLength(300)) == 512


def bias_of(*size: int, stride: tuple[int, ...]) -> Any:
    return SimpleNamespace(
        get_size=lambda: [*size], get_stride=lambda: [*stride], get_dtype=lambda: torch.bfloat16
    )


K = SimpleNamespace(get_size=lambda: [2, 3, 24, 16])
PACKED = SimpleNamespace(get_size=lambda: [40, 3, 16])


@pytest.mark.parametrize(
    ("bias", "aligned", "wide"),
    [
        (None, True, True),
        (bias_of(2, 3, 20, 24, stride=(1440, 480, 24, 1)), True, True),
        (bias_of(2, 3, 20, 24, stride=(1500, 500, 25, 1)), False, True),
        (bias_of(2, 3, 20, 1, stride=(64, 24, 8, 1)), True, False),
        (bias_of(2, 3, 20, 24, stride=(960, 480, 8, 2)), False, True),
    ],
)
def test_rows_of_a_bias_are_aligned_or_the_same_for_all_keys(
    bias: Any, *, aligned: bool, wide: bool
) -> None:
    tensors = {"k": K} | ({} if bias is None else {"bias": bias})
    traced: Any = SimpleNamespace(tensors=tensors, square=True, varlen=False)
    problem: Any = SimpleNamespace(target=SimpleNamespace(capability=(9, 0)), dynamic=())
    context = dispatch_context(traced, problem, ("FLASH",))
    assert (context.aligned_bias, context.wide_bias) == (aligned, wide)
    assert context.bias_dtype == ("" if bias is None else "bfloat16")
    assert (context.capability, context.square, context.dynamic) == ((9, 0), True, False)
    assert context.backends == ("FLASH",)


def test_keys_of_packed_sequences_are_all_their_tokens() -> None:
    bias = bias_of(2, 3, 20, 40, stride=(2400, 800, 40, 1))
    traced: Any = SimpleNamespace(tensors={"k": PACKED, "bias": bias}, square=False, varlen=True)
    problem: Any = SimpleNamespace(target=None, dynamic=("an extent",))
    context = dispatch_context(traced, problem, ())
    assert (context.wide_bias, context.square, context.dynamic) == (True, False, True)
    assert context.capability is None


@pytest.mark.parametrize(
    ("package", "there", "installed"),
    [
        ("flash_attn_interface", ["flash_attn_interface"], True),
        ("flash_attn_interface", [], False),
        ("flash_attn.cute", ["flash_attn", "flash_attn.cute"], True),
        ("flash_attn.cute", ["flash_attn"], False),
        ("flash_attn.cute", ["flash_attn.cute"], False),  # asking for it would import its parent
    ],
)
def test_a_package_is_looked_for_without_its_import(
    monkeypatch: pytest.MonkeyPatch, package: str, there: list[str], *, installed: bool
) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: "a spec" if name in there else None
    )
    assert choices._is_installed(package) is installed


class OtherKernel:
    """A kernel whose results have a type and an order of their own."""

    name = "other"

    def __init__(self, *results: torch.Tensor, error: Exception | None = None) -> None:
        self._results, self._error = results, error

    def run(self, _tools: Any, _tensors: Any, _arguments: Any, *, gradient: bool) -> Any:
        if self._error is not None:
            raise self._error
        return self._results


OUT = torch.empty(2, 3, 20, 16)
TURNED = torch.empty(2, 20, 3, 16).transpose(1, 2)


@pytest.mark.parametrize(
    ("kernel", "gradient", "expected"),
    [
        (OtherKernel(OUT, OUT), False, ()),
        (OtherKernel(TURNED, OUT), False, ((0, 1, 2, 3),)),
        (OtherKernel(OUT, TURNED, OUT), True, ((0, 1, 2, 3),) * 3),
        (OtherKernel(OUT.double(), OUT), False, "its result is of another kind"),
        (OtherKernel(OUT[0], OUT), False, "its result is of another kind"),
        (OtherKernel(OUT, OUT, OUT[0]), True, "its result is of another kind"),
        (
            OtherKernel(error=ValueError("heads of 7\nmore")),
            False,
            "it takes no such operands: heads of 7",
        ),
    ],
)
def test_another_kernel_is_called_so_that_its_results_are_the_traced_ones(
    monkeypatch: pytest.MonkeyPatch, kernel: Any, gradient: bool, expected: Any
) -> None:
    monkeypatch.setattr(choices, "example", lambda _key, run, *operands: run(*operands))
    arguments = KernelArguments(0.5, Mask(), max_q=7, order=((9,),))
    traced: Any = SimpleNamespace(
        arguments=arguments, form="padded", gradient=gradient, tensors={"q": OUT}
    )
    result = adapted(kernel, traced, [OUT, OUT, OUT])
    if isinstance(expected, str):
        assert result == expected
        return
    assert isinstance(result, KernelArguments)
    assert (result.order, result.form, result.max_q) == (expected, "padded", 7)
