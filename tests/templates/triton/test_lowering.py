"""Generated code calls the winning Triton kernel with its pointers, strides and grid, in Python and C++."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import codecache
from torch._inductor import config as inductor_config
from torch._inductor.codegen import cpp_wrapper_gpu

from inductor_plugin.template import Template
from inductor_plugin.templates.triton.decode import TritonDecode
from inductor_plugin.templates.triton.fp8 import TritonFp8
from inductor_plugin.templates.triton.int4 import TritonInt4
from inductor_plugin.templates.triton.persistent_tma import TritonPersistentTma
from inductor_plugin.templates.triton.split_k import TritonSplitK
from tests.support.lowering import BF16, Arg
from tests.support.triton.lowering import F16, NEEDS_CUDA_BUILD, Lowered, bmm, lowered, mm

pytestmark = NEEDS_CUDA_BUILD

F32, FP8 = torch.float32, torch.float8_e4m3fn
MULTIPROCESSORS = 132


@dataclass(frozen=True)
class Call:
    """A graph whose one kernel is a template's.

    Attributes:
        template: The template that wins.
        function: What is lowered.
        arguments: Its arguments, called a, b, c ... there.
        operands: Those the kernel is given, in its order.
        result: Extents of the result: (batch, rows, columns).
        text: What the kernel's source says of strides.
    """

    template: Template
    function: Callable[..., Any]
    arguments: tuple[Arg, ...]
    operands: tuple[str, ...]
    result: tuple[int, int, int]
    text: tuple[str, ...]

    @property
    def grid(self) -> Callable[[dict[str, int]], tuple[int, int, int]]:
        """What returns the grid for a candidate's constants."""

        def of(constants: dict[str, int]) -> tuple[int, int, int]:
            batch, rows, columns = self.result
            tiles = batch * -(-rows // constants["BLOCK_M"]) * -(-columns // constants["BLOCK_N"])
            if "NUM_SMS" in constants:
                assert constants["NUM_SMS"] == MULTIPROCESSORS
                return min(tiles, MULTIPROCESSORS), 1, 1
            return tiles, constants.get("SPLIT_K", 1), 1

        return of


def linear(c: Any, a: Any, b: Any) -> tuple[torch.Tensor]:
    return (torch.relu(torch.addmm(c, a, b.t())),)


def scaled(a: Any, b: Any, s: Any, t: Any) -> tuple[torch.Tensor]:
    return (torch._scaled_mm(a, b, s, t, out_dtype=BF16),)


def int4(a: Any, b: Any, s: Any) -> tuple[torch.Tensor]:
    return (torch.ops.aten._weight_int4pack_mm(a, b, 64, s),)


AB, CAB = ("a_1", "b_1"), ("a_1", "b_1", "c_1")
CALLS: dict[str, Call] = {
    "decode": Call(
        TritonDecode(), mm, (Arg((5, 512), F16, (520, 1)), Arg((512, 272), F16, (1, 528))),
        AB, (1, 5, 272), ("520*idx_m", "528*idx_n"),
    ),
    "decode, a linear layer": Call(
        TritonDecode(), linear, (Arg((272,), F16), Arg((5, 512), F16), Arg((272, 512), F16)),
        CAB, (1, 5, 272), ("512*idx_m", "512*idx_n"),
    ),
    "decode, a batch": Call(
        TritonDecode(), bmm, (Arg((3, 5, 512), F16, (2600, 520, 1)), Arg((3, 512, 272), F16)),
        AB, (3, 5, 272), ("520*idx_m", "2600*idx_q", "139264*idx_q"),
    ),
    "split-K": Call(
        TritonSplitK(), mm, (Arg((48, 4096), F16, (4104, 1)), Arg((4096, 272), F16)),
        AB, (1, 48, 272), ("4104*idx_m", "272*idx_k"),
    ),
    "split-K, a batch": Call(
        TritonSplitK(), bmm, (Arg((3, 48, 4096), F16), Arg((3, 4096, 272), F16)),
        AB, (3, 48, 272), ("196608*idx_q", "1114112*idx_q"),
    ),
    "persistent": Call(
        TritonPersistentTma(), linear,
        (Arg((2112,), F16), Arg((2048, 512), F16, (520, 1)), Arg((2112, 512), F16)),
        CAB, (1, 2048, 2112), ("[520, 1]", "[512, 1]", "[N, K]"),
    ),
    "persistent, a batch": Call(
        TritonPersistentTma(), bmm, (Arg((3, 72, 512), F16), Arg((3, 512, 272), F16)),
        AB, (3, 72, 272), ("[36864, 512, 1]", "[139264, 272, 1]", "[BATCH, K, N]"),
    ),
    "8-bit floats": Call(
        TritonFp8(), scaled,
        (Arg((128, 512), FP8, (528, 1)), Arg((512, 272), FP8, (1, 512)), Arg((128, 1), F32),
         Arg((1, 272), F32)),
        ("a_1", "b_1", "s_1", "t_1"), (1, 128, 272), ("[528, 1]", "[512, 1]"),
    ),
    "4-bit weights": Call(
        TritonInt4(), int4,
        (Arg((5, 512), BF16), Arg((34, 4, 32, 4), torch.int32), Arg((8, 272, 2), BF16)),
        ("a_1", "b_1", "s_1"), (1, 5, 272), ("512*idx_m", "N = 272"),
    ),
}  # fmt: skip


POINTERS = {
    "arg_A": "a_1",
    "arg_B": "b_1",
    "arg_A_scale": "s_1",
    "arg_B_scale": "t_1",
    "arg_B_scales": "s_1",
}
"""What a kernel's parameters stand for."""


def assert_pointers(taken: dict[str, str]) -> None:
    """Check that a call hands over the operands under the parameters that stand for them."""
    assert {"arg_A", "arg_B"} <= set(taken)
    for parameter, operand in POINTERS.items():
        assert taken.get(parameter, operand) == operand


def of_call(name: str) -> tuple[Call, Lowered, dict[str, int]]:
    """Return a graph lowered, and the constants of the kernel that won."""
    call = CALLS[name]
    graph = lowered(call.template, call.template.name, call.function, call.arguments)
    pairs = re.findall(r"(\w+)=(\d+)", graph.entries[0].description)
    return call, graph, {key: int(value) for key, value in pairs}


@pytest.mark.parametrize("name", CALLS)
def test_python_calls_the_kernel_with_its_operands_grid_and_stream(name: str) -> None:
    call, generated, constants = of_call(name)
    ((kernel, launched),) = re.findall(r"(\w+)\.run\((.*)\)", generated.code)
    *arguments, x, y, z, stream = launched.split(", ")
    assert tuple(sorted(arguments[: len(call.operands)])) == tuple(sorted(call.operands))
    assert re.fullmatch(r"buf\d+", arguments[len(call.operands)])
    scratch = arguments[len(call.operands) + 1 :]
    assert len(scratch) == (1 if "SPLIT_K" in constants else 0)
    assert (int(x), int(y), int(z)) == call.grid(constants)
    assert re.fullmatch(r"stream=(raw_)?stream0", stream)
    assert re.search(r"(raw_)?stream0 = get_raw_stream\(0\)", generated.code)
    (source,) = re.findall(
        rf"{kernel} = async_compile\.triton\(.*?'''(.*?)'''", generated.code, re.S
    )
    for fragment in call.text:
        assert fragment in source, fragment
    parameters = re.search(r"def triton_\w+\((.*)\):", source)
    assert parameters is not None
    taken = dict(zip(parameters[1].split(", "), arguments, strict=False))
    assert_pointers(taken)


def shared(a: Any, b: Any) -> torch.Tensor:
    return torch.relu(torch.bmm(a, b.expand(a.shape[0], 512, 256)))


def rows(a: Any, b: Any) -> torch.Tensor:
    return torch.relu(torch.mm(a, b))


DYNAMIC = {
    "matrices of a batch": (TritonDecode(), shared, (6, 4, 512), r"8\*s\d+, 1, 1"),
    "rows": (
        TritonPersistentTma(),
        rows,
        (300, 512),
        r"min\(132, 4\*\(\(63 \+ s\d+\) // 64\)\), 1, 1",
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_dynamic_number_enters_the_grid(name: str) -> None:
    template, function, size, grid = DYNAMIC[name]
    arguments = (Arg(size, F16), Arg((512, 256), F16))
    # Padding is decided by a measurement on the device.
    with inductor_config.patch(shape_padding=False):
        graph = lowered(template, template.name, function, arguments, dynamic=True)
    (launched,) = re.findall(r"\.run\((.*), stream=", graph.code)
    assert re.search(rf"buf\d, (s\d+, )?{grid}$", launched), launched


def lazily() -> ExitStack:
    """Generate C++, and compile none of it: that takes headers of CUDA."""
    stack = ExitStack()
    settings = {"cpp_wrapper": True, "triton.autotune_at_compile_time": False}
    stack.enter_context(inductor_config.patch(settings))
    stack.enter_context(
        mock.patch.object(codecache.CppWrapperCodeCache, "load_pybinding", mock.Mock())
    )
    return stack


@pytest.mark.parametrize("name", CALLS)
def test_the_cpp_wrapper_launches_the_kernel_with_its_operands_grid_and_stream(name: str) -> None:
    wrapper: Any = cpp_wrapper_gpu.DeferredTritonCallWrapper
    if not hasattr(wrapper, "generate_lazy"):
        # Its shared memory, warps and cubin come from CachingAutotuner, which launches it first.
        pytest.skip("torch 2.11 writes the C++ of a Triton kernel after it has run on a device")
    with lazily():
        call, generated, constants = of_call(name)
    ((kernel, launched),) = re.findall(r"\n\s+call_(triton_\w+)\((.*)\);", generated.code)
    *arguments, x, y, z, _, stream = launched.split(", ")
    assert sorted(arguments[: len(call.operands)]) == sorted(call.operands)
    assert re.fullmatch(r"buf\d+", arguments[len(call.operands)])
    assert len(arguments) == len(call.operands) + 1 + ("SPLIT_K" in constants)
    assert tuple(int(tensor.rstrip("L")) for tensor in (x, y, z)) == call.grid(constants)
    (taken,) = re.findall(rf"void call_{kernel}\(\n(.*?)\n\s+int64_t _grid_0", generated.code, re.S)
    parameters = re.findall(r"const (\w+)_type_& \w+,", taken)
    assert_pointers(dict(zip(parameters, arguments, strict=True)))
    # torch 2.15 adds whether the launch depends on the one before.
    launch = (
        rf"launchKernel\({kernel}, grid_0, grid_1, grid_2,.* kernel_args_, stream_(, false)?\);"
    )
    assert re.search(launch, generated.code)
    assert f"aoti_torch_get_current_cuda_stream(0, (void**)&{stream})" in generated.code
