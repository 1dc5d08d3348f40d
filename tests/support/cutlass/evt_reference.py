"""Reference of a CUTLASS visitor tree: node by node on CPU tensors, and its C++ on the host."""

# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.kernels.nvcc import Toolkit, command
from inductor_plugin.templates.cutlass.epilogue import ELEMENT_TYPES
from inductor_plugin.templates.cutlass.evt import Evt
from inductor_plugin.templates.cutlass.evt_source import functions

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
}


def _larger(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the result of max.NaN.f32."""
    larger = torch.where(left > right, left, right)
    return torch.where(left.isnan() | right.isnan(), torch.full_like(larger, math.nan), larger)


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + (-x).exp())


FUNCTIONS: dict[str, Any] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "truediv": lambda x, y: x / y,
    "maximum": _larger,
    "minimum": lambda x, y: -_larger(-x, -y),
    "relu": lambda x: _larger(x, torch.zeros_like(x)),
    "neg": lambda x: -x,
    "abs": torch.Tensor.abs,
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "sqrt": torch.Tensor.sqrt,
    "rsqrt": lambda x: 1 / x.sqrt(),
    "exp": torch.Tensor.exp,
    "expm1": torch.Tensor.expm1,
    "log": torch.Tensor.log,
    "log1p": torch.Tensor.log1p,
    "sigmoid": _sigmoid,
    "tanh": torch.Tensor.tanh,
    "erf": torch.Tensor.erf,
    "round": torch.Tensor.round,
    "floor": torch.Tensor.floor,
    "ceil": torch.Tensor.ceil,
    "trunc": torch.Tensor.trunc,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "logical_and": lambda x, y: x & y,
    "logical_or": lambda x, y: x | y,
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "logical_not": lambda x: ~x,
    "where": lambda c, x, y: torch.where(c, x, y),
    "number": lambda c: c.float(),
}
"""Reference of each function of a visitor, on float32."""


def evaluated(
    evt: Evt, product: torch.Tensor, operands: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the outputs of a tree: its auxiliary outputs in order, then D.

    Args:
        evt: The tree.
        product: The sums, float32 [m, n].
        operands: Tensors it reads; each can be expanded to [m, n].
    """
    values: list[torch.Tensor] = []
    for node in evt.nodes:
        if node.op == "sums":
            value = product.float()
        elif node.op == "operand":
            operand = operands[int(node.value)]
            assert DTYPES[evt.operands[int(node.value)].element] == operand.dtype
            value = operand.float()  # Sm90Compute converts what it takes
        elif node.op == "constant":
            value = torch.tensor(node.value, dtype=torch.float32)
        else:
            value = FUNCTIONS[node.op](*(values[child] for child in node.children))
        values.append(value.expand(product.shape))
    return [converted(values[output.node], output.element) for output in evt.outputs]


def converted(value: torch.Tensor, element: str) -> torch.Tensor:
    """Convert as the GPU does: narrow types saturate, values are truncated before int8."""
    most = {"e4m3": 448.0, "e5m2": 57344.0}.get(element)
    if element == "s8":
        return value.trunc().nan_to_num(nan=0.0).clamp(-128, 127).to(torch.int8)
    if most is not None:
        value = torch.where(value.isnan(), value, value.clamp(-most, most))
    return value.to(DTYPES[element])


def host_text(evts: Sequence[Evt]) -> str:
    """Return C++ that computes trees on the host with the same functions as their kernels."""
    parts = [
        "#include <cmath>",
        '#include "cutlass/functional.h"',
        '#include "cutlass/numeric_conversion.h"',
    ]
    for index, evt in enumerate(evts):
        tree_functions = functions(evt, f"tree{index}")
        parts += [function.text for function in tree_functions]
        lines: list[str] = []
        for place, function in enumerate(tree_functions):
            inputs: list[str] = []
            for what, number in function.leaves:
                source = {"sums": "in[0][i]", "operand": f"in[{number + 1}][i]"}.get(
                    what, f"y{number}"
                )
                inputs.append(source)
            element = ELEMENT_TYPES[evt.outputs[place].element]
            lines.append(
                f"    float const y{place} = {function.name}<float>{{}}({', '.join(inputs)});"
            )
            lines.append(
                f"    static_cast<{element}*>(out[{place}])[i] = cutlass::NumericConverter<{element}, "
                f"float, cutlass::FloatRoundStyle::round_to_nearest>{{}}(y{place});"
            )
        body = "\n".join(lines)
        parts.append(
            f'extern "C" void run{index}(long n, float const* const* in, void* const* out) {{\n'
            f"  for (long i = 0; i < n; ++i) {{\n{body}\n  }}\n}}"
        )
    return "\n".join(parts) + "\n"


def host_library(evts: Sequence[Evt], toolkit: Toolkit, folder: Path) -> ctypes.CDLL:
    """Compile trees with the host's compiler, without FMA contraction, which would round once less."""
    path, library = folder / "trees.cpp", folder / "trees.so"
    path.write_text(host_text(evts))
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w", "-fpermissive"]
    compiler = ["g++", *flags, *_includes(toolkit)]
    subprocess.run([*compiler, str(path), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def _includes(toolkit: Toolkit) -> list[str]:
    arguments = command(toolkit, "sm_90a")
    includes = [argument for argument in arguments if argument.startswith("-I")]
    for place, argument in enumerate(arguments):
        if argument in ("-I", "-isystem"):
            includes += [argument, arguments[place + 1]]
    return includes


def on_host(
    library: ctypes.CDLL,
    index: int,
    evt: Evt,
    product: torch.Tensor,
    operands: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Return the outputs of the C++ of tree ``index``, in their order."""
    inputs = [product.float(), *(operand.float().expand(product.shape) for operand in operands)]
    inputs = [tensor.contiguous() for tensor in inputs]
    outputs = [torch.zeros(product.shape, dtype=DTYPES[output.element]) for output in evt.outputs]
    input_pointers: Any = (ctypes.c_void_p * len(inputs))(*(tensor.data_ptr() for tensor in inputs))
    output_pointers: Any = (ctypes.c_void_p * len(outputs))(
        *(tensor.data_ptr() for tensor in outputs)
    )
    getattr(library, f"run{index}")(ctypes.c_long(product.numel()), input_pointers, output_pointers)
    return outputs
