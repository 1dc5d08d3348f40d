"""Which operands a kernel is given, by sizes, strides and dtypes alone. With call sites and kernels: `test_operand_rules`."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast, get_args

import pytest
import torch

from inductor_plugin.ops.abi import TensorView
from inductor_plugin.ops.gemm_abi import SLOTS
from inductor_plugin.ops.gemm_rules import _OUTPUTS, Misfit, why_not
from inductor_plugin.ops.kernel_types import KernelTypes, types_of
from inductor_plugin.templates.cutlass.config import OUTPUTS, GemmConfig
from inductor_plugin.templates.cutlass.element import DTYPES, Element
from inductor_plugin.templates.cutlass_attention import config as attention

M, N, K = 5, 6, 7
LAUNCH = ("tt", 1, 0, 1)


def view(
    *size: int, stride: tuple[int, ...] = (), dtype: torch.dtype = torch.float32
) -> TensorView:
    """Return a tensor on the CPU, dense unless its strides are stated."""
    dense = tuple(math.prod(size[place + 1 :]) for place in range(len(size)))
    return TensorView(size, stride or dense, 0, dtype, torch.device("cpu"))


def misfit_of(
    name: str, operands: Sequence[TensorView], *arguments: Any, out: TensorView | None = None
) -> Misfit | None:
    whole = view(M, N) if out is None else out
    return why_not(f"cutlass_{name}", operands, (*LAUNCH, *arguments), whole, KernelTypes())


@pytest.mark.parametrize(
    ("bias", "c", "fits"),
    [
        ("column", view(M, 1), True),
        ("column", view(M, N, stride=(1, 0)), True),
        ("column", view(M, N), False),  # its columns differ
        ("column", view(M, N, stride=(1, M)), False),
        ("column", view(M, 1, stride=(2, 1)), False),  # gaps between its elements
        ("column", view(1, 1), False),
        ("column", view(N), False),
        ("row", view(N), True),
        ("row", view(1, N), True),
        ("row", view(M, N, stride=(0, 1)), True),
        ("row", view(M, N), False),  # its rows differ
        ("row", view(M, 1), False),
        ("row", view(1, N, stride=(N, 2)), False),
        ("full", view(M, N), True),
        ("full", view(M, N, stride=(N + 3, 1)), True),
        ("full", view(M, N, stride=(1, M)), False),
        ("full", view(1, N), False),
        ("none", view(1), True),  # it is not read
    ],
)
def test_a_bias_is_what_its_kernel_reads_in_memory(bias: str, c: TensorView, *, fits: bool) -> None:
    misfit = misfit_of("addmm", (c, view(M, K), view(K, N)), bias, 1.0, 1.0)
    assert (misfit is None) is fits
    assert misfit is None or not misfit.wrong  # torch takes it


def test_what_has_one_element_along_a_dimension_may_have_any_stride_there() -> None:
    one_term = (view(M, 1, stride=(1, M)), view(1, N, stride=(1, 1)))
    assert misfit_of("mm", one_term) is None
    assert misfit_of("mm", (view(M, K, stride=(1, M)), view(K, N))) is not None
    column = (view(M, K), view(K, 1, stride=(1, 9)))
    assert misfit_of("mm", column, out=view(M, 1, stride=(1, 9))) is None


def test_both_formats_of_8_bits_may_be_multiplied_and_no_others() -> None:
    out = view(M, N, dtype=torch.bfloat16)
    e4m3, e5m2, wider = torch.float8_e4m3fn, torch.float8_e5m2, torch.float16
    for a, b, fits in ((e4m3, e5m2, True), (e5m2, e4m3, True), (e4m3, wider, False)):
        operands = (view(M, K, dtype=a), view(K, N, dtype=b))
        misfit = misfit_of("mm", operands, out=out)
        assert (misfit is None) is fits
        assert misfit is None or misfit.wrong


@pytest.mark.parametrize(
    ("slots", "written", "reason"),
    [
        ((view(1, N), view(M, N)), 1, ""),
        ((view(M, N, stride=(1, M)), view(M, N)), 1, ""),  # what is read may lie anyhow
        ((view(1, N), view(M, N, stride=(1, M))), 1, "rows of output 1 have the strides (1, 5)"),
        ((view(1, N), view(M, N, stride=(1, M))), 0, ""),
        ((view(1, N), view(1, N)), 1, "output 1 of the epilogue is (1, 6), not (5, 6)"),
        ((view(N),), 0, "each extent must be 1 or that of (5, 6)"),
        ((view(2, N),), 0, "each extent must be 1 or that of (5, 6)"),
        ((view(1, N),) * SLOTS, 0, ""),
        ((view(1, N),) * (SLOTS + 1), 0, f"{SLOTS + 1} tensors, at most {SLOTS}"),
    ],
)
def test_tensors_of_an_epilogue_are_read_anyhow_and_written_by_rows(
    slots: tuple[TensorView, ...], written: int, reason: str
) -> None:
    misfit = misfit_of("mm_epilogue", (view(M, K), view(K, N), *slots), written)
    assert (misfit is None) is not bool(reason)
    assert misfit is None or reason in misfit.reason
    # What lies otherwise, or is more than a kernel takes, torch computes.
    is_wrong = bool(reason) and not reason.startswith(("rows", f"{SLOTS + 1}"))
    assert misfit is None or misfit.wrong is is_wrong


def test_a_batch_of_one_output_column_is_written_whatever_its_stride() -> None:
    written = view(M, 1, stride=(4, 4))
    operands = (view(M, K), view(K, 1), written)
    assert misfit_of("mm_epilogue", operands, 1, out=view(M, 1)) is None


def dtype_of(element: str) -> torch.dtype:
    return getattr(torch, DTYPES[cast("Element", element)])


@pytest.mark.parametrize("element", get_args(Element))
def test_the_dtype_of_every_element_is_read_from_a_symbol(element: Element) -> None:
    """Without it a kernel's operands are not compared with what it was compiled for."""
    types = (element, element, element, element, element)
    kernel = GemmConfig("sm_90a", (64, 64, 64), (1, 1, 1), "pingpong", *types, bias="row")
    dtype = dtype_of(element)
    assert types_of(kernel.name) == KernelTypes(dtype, dtype, dtype, dtype)


@pytest.mark.parametrize("element", get_args(attention.Element))
def test_the_dtype_of_every_element_of_attention_is_read(element: attention.Element) -> None:
    kernel = attention.FmhaConfig(backward=False, rows=128, columns=128, dim=128, element=element)
    assert types_of(kernel.name).a == dtype_of(element)


def test_outputs_are_of_the_dtypes_that_kernels_write() -> None:
    written = {dtype_of(a): tuple(map(dtype_of, outputs)) for a, outputs in OUTPUTS.items()}
    assert written == _OUTPUTS
