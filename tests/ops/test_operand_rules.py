"""Tensors that do not fit each other never reach a kernel, from the operator in Python or from a call site in C++."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from inductor_plugin.errors import CallRefusedError, OperandError
from inductor_plugin.ops import launch, sites
from inductor_plugin.ops.abi import TensorView
from inductor_plugin.ops.gemm_abi import GemmCall
from inductor_plugin.ops.gemm_rules import why_not
from inductor_plugin.ops.kernel_types import KernelTypes, types_of
from inductor_plugin.templates.cutlass.source import INTERFACE as PRODUCTS
from tests.support.native import call_sites, host_kernels
from tests.support.native.echo import ECHO, Echo, echoes
from tests.support.native.site_cases import CASES, KV, LSE, Q, is_bound

__all__ = ["echoes"]
pytestmark = pytest.mark.compat


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    host_kernels.install(monkeypatch, tmp_path / "none")
    with call_sites.on_the_host():
        yield


@dataclass(frozen=True, eq=False)
class Changed:
    """A case of `CASES` with other tensors.

    Attributes:
        name: The case.
        tensors: By their place among the operands; -1 is the output.
        says: A part of the error.
    """

    name: str
    tensors: dict[int, Tensor]
    says: str


def column_major(*size: int) -> Tensor:
    return torch.randn(*size).transpose(-1, -2).contiguous().transpose(-1, -2)


WRONG = {
    "K": Changed("mm", {1: torch.randn(8, 6)}, r"A \(5, 7\) has 7 columns, B \(8, 6\) has 8 rows"),
    "M": Changed("mm", {0: torch.randn(4, 7)}, r"it must be \(4, 6\)"),
    "N": Changed("mm", {1: torch.randn(7, 9)}, r"it must be \(5, 9\)"),
    "more output": Changed("mm", {-1: torch.empty(6, 6)}, r"it must be \(5, 6\)"),
    "output turned": Changed("mm", {-1: torch.empty(6, 5)}, r"is \(6, 5\), it must be \(5, 6\)"),
    "a vector": Changed("mm", {0: torch.randn(7)}, "two matrices or two batches"),
    "batch": Changed("bmm, one B for all", {1: torch.randn(2, 7, 6)}, "of 3, .* of 2"),
    "dtype of B": Changed("mm", {1: torch.randn(7, 6).half()}, "B is torch.float16"),
    "dtype of D": Changed("mm", {-1: torch.empty(5, 6).half()}, "must be torch.float32"),
    "float64": Changed(
        "mm",
        {0: torch.randn(5, 7).double(), 1: torch.randn(7, 6).double(), -1: torch.empty(5, 6)},
        "no kernel multiplies torch.float64",
    ),
    "row": Changed("addmm, row", {0: torch.randn(5)}, r"bias is \(5,\), it must broadcast"),
    "bias": Changed("baddbmm, full", {0: torch.randn(3, 4, 6)}, "it must broadcast"),
    "dims of bias": Changed("addmm, row", {0: torch.randn(1, 1, 6)}, "it must broadcast"),
    "dtype of bias": Changed("addmm, row", {0: torch.randn(6).double()}, "bias is torch.float64"),
    "rows of scale": Changed("scaled", {2: torch.ones(4, 1)}, r"scales have \(4, 6\) elements"),
    "one scale": Changed("scaled", {3: torch.ones(1)}, r"reads \(1, 1\) or \(5, 6\)"),
    "dtype of scale": Changed("scaled", {2: torch.ones(5, 1).double()}, "must be torch.float32"),
    "scaled, bias": Changed("scaled, bias", {4: torch.randn(1)}, r"bias is \(1,\), .* \(6,\)"),
    "groups": Changed("grouped", {2: torch.tensor([2, 9], dtype=torch.int32)}, "offsets are"),
    "dtype of offsets": Changed("grouped", {2: torch.tensor([2, 5, 9])}, "torch.int64"),
    "K of groups": Changed("grouped", {1: torch.randn(3, 8, 6)}, "must be .m, k."),
    "rows of groups": Changed("grouped", {-1: torch.empty(8, 6)}, r"it must be \(9, 6\)"),
    "columns of groups": Changed("grouped", {-1: torch.empty(9, 5)}, r"it must be \(9, 6\)"),
    "read": Changed("epilogue", {2: torch.randn(1, 5)}, "operand 0 of the epilogue"),
    "dtype of read": Changed("epilogue", {2: torch.randn(1, 6).double()}, "float64"),
    "aux": Changed("epilogue", {5: torch.empty(4, 6)}, "24 elements"),
    "dtype of aux": Changed("epilogue", {5: torch.empty(5, 6).half()}, "float16"),
    "fused K": Changed("epilogue", {0: torch.randn(5, 8)}, "has 8 columns"),
    "fused output": Changed("epilogue", {-1: torch.empty(4, 6)}, "24 elements"),
    "dim of k": Changed("attention", {1: torch.randn(2, 2, 7, 4)}, r"k is .* \(2, 2, 7, 8\)"),
    "batch of k": Changed("attention", {1: torch.randn(1, 2, 7, 8)}, "k is"),
    "keys of v": Changed("attention", {2: torch.randn(2, 2, 6, 8)}, "v is"),
    "heads of v": Changed("attention", {2: torch.randn(2, 1, 7, 8)}, "v is"),
    "dims of q": Changed("attention", {0: torch.randn(4, 5, 8)}, "four dimensions"),
    "dtype of k": Changed("attention", {1: KV.half()}, "k is torch.float16"),
    "lse": Changed("attention", {3: torch.randn(2, 4, 4)}, "lse is"),
    "output": Changed("attention", {-1: torch.empty(2, 4, 4, 8)}, "out is"),
    "dtype of output": Changed("attention", {-1: Q.half()}, "out is torch.float16"),
    "output alone": Changed("attention, output", {-1: torch.empty(2, 4, 4, 8)}, "out is"),
    "d_out": Changed("attention, backward", {0: torch.randn(2, 4, 4, 8)}, "d_out is"),
    "lse of backward": Changed("attention, backward", {5: torch.randn(2, 4, 4)}, "lse is"),
    "delta": Changed("attention, backward", {6: torch.randn(2, 4, 4)}, "delta is"),
    "dq": Changed("attention, backward", {7: torch.empty(2, 4, 4, 8)}, "dq is"),
    "dv": Changed("attention, backward", {8: torch.empty(2, 2, 6, 8)}, "dv is"),
    "dk": Changed("attention, backward", {-1: torch.empty(2, 2, 6, 8)}, "dk is"),
    "dtype of dq": Changed("attention, backward", {7: Q.half()}, "dq is torch.float16"),
}
"""Torch's own operators raise as well."""

REFUSED = {
    "A by columns": Changed("mm", {0: column_major(5, 7)}, "A has the strides"),
    "every second column of A": Changed("mm", {0: torch.randn(5, 14)[:, ::2]}, "A has the strides"),
    "B by columns": Changed("mm", {1: column_major(7, 6)}, "B has the strides"),
    "B by rows": Changed("mm, transposed, padded", {1: torch.randn(7, 6)}, "B has the strides"),
    "output by columns": Changed("mm", {-1: torch.empty(6, 5).t()}, "the output has the strides"),
    "short row": Changed("addmm, row", {0: torch.randn(1)}, r"bias is \(1,\) .* reads \[6\]"),
    "a number along the row": Changed("addmm, row", {0: torch.randn(1).expand(6)}, "adjacent"),
    "rows that differ": Changed("addmm, row", {0: torch.randn(5, 6)}, r"reads \[6\] \(row\)"),
    "bias by columns": Changed("baddbmm, full", {0: column_major(3, 5, 6)}, "adjacent"),
    "a row for all": Changed("baddbmm, full", {0: torch.randn(3, 1, 6)}, "full"),
    "gaps in scale": Changed("scaled", {2: torch.ones(5, 2)[:, :1]}, "must be dense"),
    "gaps in scaled bias": Changed("scaled, bias", {4: torch.randn(12)[::2]}, "must be dense"),
    "gaps in offsets": Changed(
        "grouped", {2: torch.tensor([2, 0, 5, 0, 9], dtype=torch.int32)[::2]}, "not 1"
    ),
    "groups, A by columns": Changed("grouped", {0: column_major(9, 7)}, "A has the strides"),
    "groups by columns": Changed("grouped", {-1: column_major(9, 6)}, "the output has"),
    "rows of k apart": Changed("attention", {1: column_major(2, 2, 7, 8)}, "must be contiguous"),
    "output of heads": Changed("attention", {-1: column_major(2, 4, 5, 8)}, "must be contiguous"),
    "dtype of lse": Changed("attention", {3: LSE.double()}, "dense float32"),
    "gaps in lse": Changed("attention", {3: torch.empty(2, 4, 10)[..., ::2]}, "dense float32"),
    "gaps in delta": Changed(
        "attention, backward", {6: torch.empty(2, 4, 10)[..., ::2]}, "dense float32"
    ),
    "dq apart": Changed("attention, backward", {7: column_major(2, 4, 5, 8)}, "contiguous"),
}
"""The library computes the same from them."""

CHANGED = [*WRONG.items(), *REFUSED.items()]
IDS = [name for name, _ in CHANGED]


def echo_of(name: str, echoes: dict[str, Echo]) -> Echo:
    echo = echoes["fmha" if CASES[name][0].startswith("fmha") else "mm"]
    echo.answer()
    return echo


def site_of(name: str, kernel: str) -> Any:
    op, arguments, counts, _, _ = CASES[name]
    return sites.site(f"inductor_plugin::cutlass_{op}.out", (kernel, *arguments), *counts)


def tensors_of(changed: Changed) -> tuple[list[Tensor], Tensor]:
    *_, operands, out = CASES[changed.name]
    others = list[Tensor](operands)
    for place, tensor in changed.tensors.items():
        if place >= 0:
            others[place] = tensor
    return others, changed.tensors.get(-1, out)


def expected(changed: Changed) -> type[Exception]:
    return CallRefusedError if changed in REFUSED.values() else OperandError


@pytest.mark.parametrize("in_cpp", [True, False], ids=["a call site", "the operator"])
@pytest.mark.parametrize("changed", [changed for _, changed in CHANGED], ids=IDS)
def test_tensors_that_do_not_fit_are_an_error_before_anything_starts(
    changed: Changed, in_cpp: bool, echoes: dict[str, Echo]
) -> None:
    """The kernel would read or write past their ends; its library is named by a path, so there is no fallback."""
    echo = echo_of(changed.name, echoes)
    library = call_sites.sites() if in_cpp else None
    with mock.patch.object(sites.library, "sites", return_value=library):
        call = site_of(changed.name, echo.kernel)
    *_, operands, out = CASES[changed.name]
    call(*operands, None, out=out)  # now a site is bound
    runs, (others, output) = echo.runs, tensors_of(changed)
    for _ in range(2):
        with pytest.raises(expected(changed), match=changed.says):
            call(*others, None, out=output)
    assert echo.runs == runs
    call(*operands, None, out=out)
    assert echo.runs == runs + 1
    if in_cpp:  # the bound site leaves them to the operator
        assert is_bound(call, *operands, out=out)
        runs = echo.runs
        assert not is_bound(call, *others, out=output)
        assert echo.runs == runs


FITS = {
    "expanded row": Changed("addmm, row", {0: torch.randn(6).expand(5, 6)}, ""),
    "row of a matrix": Changed("addmm, row", {0: torch.randn(1, 6)}, ""),
    "shared matrix": Changed("baddbmm, full", {0: torch.randn(5, 6)}, ""),
    "batch of one": Changed("baddbmm, full", {0: torch.randn(1, 5, 6)}, ""),
    "padded bias": Changed("baddbmm, full", {0: torch.randn(3, 5, 9)[..., :6]}, ""),
    "one scale each": Changed("scaled", {2: torch.ones(1), 3: torch.ones(1, 1)}, ""),
}


@pytest.mark.parametrize("changed", FITS.values(), ids=FITS)
def test_tensors_that_fit_still_reach_it(changed: Changed, echoes: dict[str, Echo]) -> None:
    echo = echo_of(changed.name, echoes)
    call, (others, output) = site_of(changed.name, echo.kernel), tensors_of(changed)
    runs = echo.runs
    call(*others, None, out=output)
    by_operator = echo.call
    assert is_bound(call, *others, out=output)
    assert echo.runs == runs + 2
    assert echo.call == by_operator


def test_a_batch_of_one_bias_is_read_for_all(echoes: dict[str, Echo]) -> None:
    changed = FITS["batch of one"]
    echo = echo_of(changed.name, echoes)
    others, output = tensors_of(changed)
    site_of(changed.name, echo.kernel)(*others, None, out=output)
    assert echo.call["batch_c"] == 0


NAMED = {
    "cutlass_sm90_128x128x64_2x1x1_pingpong_bf16_bf16_f32_f32_tn_align8@0": KernelTypes(
        torch.bfloat16, torch.bfloat16, None, torch.float32
    ),
    "cutlass_sm90_64x64x128_1x1x1_pingpong_e4m3_e5m2_f32_bf16_tn_align16x16x8_scale_rowwise_bias_row_f16_slow": KernelTypes(
        torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, "rowwise"
    ),
    "cutlass_fmha_sm90_128x128x128_pingpong_f16_stages5_0123456789abcdef": KernelTypes(
        torch.float16, torch.float16, None, torch.float16
    ),
    "cutlass_fmha_backward_sm90_128x64x128_bf16@0": KernelTypes(
        torch.bfloat16, torch.bfloat16, None, torch.bfloat16
    ),
    "echo@/bf16_bf16_f32_bf16_tn_align8": KernelTypes(),
}


@pytest.mark.parametrize(("kernel", "types"), NAMED.items())
def test_a_symbol_says_what_its_kernel_reads(kernel: str, types: KernelTypes) -> None:
    assert types_of(kernel) == types


def _product(types: str, folder: Path) -> Echo:
    """Return a kernel whose symbol says what it reads."""
    symbol = f"cutlass_sm90_64x64x64_1x1x1_pingpong_{types}"
    text = ECHO.format(header=PRODUCTS.read_text(), call="GemmCall").replace(
        " echo(", f" {symbol}("
    )
    echo = Echo(host_kernels.library(folder, text), GemmCall)
    echo.kernel = echo.kernel.replace("echo@", f"{symbol}@", 1)
    return echo


@pytest.mark.parametrize(
    ("scale", "right", "wrong"), [("tensor", (1, 1), (5, 6)), ("rowwise", (5, 6), (1, 1))]
)
def test_a_kernel_gets_as_many_scales_as_it_reads(
    scale: str, right: tuple[int, int], wrong: tuple[int, int], tmp_path: Path
) -> None:
    echo = _product(f"f32_f32_f32_f32_tt_align4_scale_{scale}", tmp_path)
    call, (a, b) = site_of("scaled", echo.kernel), CASES["scaled"][3][:2]
    out = torch.empty(5, 6)
    good, bad = ([torch.ones(length) for length in lengths] for lengths in (right, wrong))
    call(a, b, *good, None, out=out)
    assert is_bound(call, a, b, *good, out=out)
    runs = echo.runs
    assert not is_bound(call, a, b, *bad, out=out)
    with pytest.raises(OperandError, match="this kernel reads"):
        call(a, b, *bad, None, out=out)
    assert echo.runs == runs


def test_a_kernel_gets_the_dtypes_it_was_compiled_for(tmp_path: Path) -> None:
    echo = _product("bf16_bf16_f32_bf16_tt_align8", tmp_path)
    call, (a, b) = site_of("mm", echo.kernel), CASES["mm"][3]
    for dtype in (torch.float16, torch.float32):
        with pytest.raises(OperandError, match=r"reads torch.bfloat16"):
            call(a.to(dtype), b.to(dtype), None, out=torch.empty(5, 6, dtype=dtype))
    right = a.bfloat16(), b.bfloat16()
    call(*right, None, out=torch.empty(5, 6).bfloat16())
    assert is_bound(call, *right, out=torch.empty(5, 6).bfloat16())
    assert not is_bound(call, a.half(), b.half(), out=torch.empty(5, 6).half())
    with pytest.raises(OperandError, match=r"must be torch.bfloat16"):
        call(*right, None, out=torch.empty(5, 6))
    assert echo.runs == 2


def test_what_a_kernel_cannot_read_is_computed_by_the_library(
    echoes: dict[str, Echo], tmp_path: Path
) -> None:
    """A column-major A is no error in torch."""
    echo = echo_of("mm", echoes)
    cache, library = tmp_path / "cache", Path(echo.kernel.partition("@")[2])
    kernel = host_kernels.stored(cache, library, "echo")
    launch.add_kernel_folder(cache)
    a, out = column_major(5, 7), torch.empty(6, 5).t()
    call, b = site_of("mm", kernel), CASES["mm"][3][1]
    with pytest.warns(RuntimeWarning, match="A has the strides .* the library product is computed"):
        call(a, b, None, out=out)
    assert torch.equal(out, a @ b)
    with pytest.raises(OperandError, match="must be"):  # but no fallback where torch raises, too
        call(a, b[:, :5], None, out=torch.empty(5, 6))


@pytest.mark.parametrize("place", range(2))
def test_an_operand_of_another_device_is_an_error(place: int) -> None:
    cpu, other = torch.device("cpu"), torch.device("meta")
    devices = [other if at == place else cpu for at in range(2)]
    a, b = (
        TensorView(size, (size[1], 1), 0, torch.float32, device)
        for size, device in zip(((5, 7), (7, 6)), devices, strict=True)
    )
    out = TensorView((5, 6), (6, 1), 0, torch.float32, cpu)
    error = why_not("cutlass_mm", (a, b), ("tt", 1, 0, 1), out, KernelTypes())
    assert error == (f"operand {place} is on meta, the output on cpu", True)


@pytest.mark.parametrize(("name", "alignment"), [("mm", 64), ("attention, output", 128)])
def test_a_workspace_begins_where_the_kernel_reads_it(
    name: str, alignment: int, echoes: dict[str, Echo]
) -> None:
    echo = echo_of(name, echoes)
    call, (operands, out) = site_of(name, echo.kernel), tensors_of(Changed(name, {}, ""))
    storage = torch.empty(1024, dtype=torch.uint8)
    begin = -storage.data_ptr() % alignment
    call(*operands, storage[begin : begin + 256], out=out)
    runs = echo.runs
    for offset in (1, alignment // 2, alignment):  # where it does not, another one is allocated
        call(*operands, storage[begin + offset : begin + offset + 256], out=out)
    assert echo.runs == runs + 3
