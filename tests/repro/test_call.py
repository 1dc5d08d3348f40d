"""What the scripts of bare products and convolutions compute, on tensors, against their exact results."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.cache import open_store
from inductor_plugin.repro.call import NotReproducible, call_of
from inductor_plugin.repro.operand import OperandText
from inductor_plugin.repro.script import script
from tests.support.lowering import Arg, Lab, library_first

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

BF16, F32, F8, I8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8
A, B = Arg((64, 128), F8), Arg((128, 256), F8, (1, 128))
SCALE = Arg((), F32)


def convolution(*options: Any) -> Callable[..., Any]:
    return lambda x, w: (torch.convolution(x, w, None, *options),)


def scaled(out: torch.dtype, *, fast: bool = False) -> Callable[..., Any]:
    def call(a: Any, b: Any, sa: Any, sb: Any, *bias: Any) -> Any:
        options = {"out_dtype": out, "use_fast_accum": fast}
        return (torch._scaled_mm(a, b, sa, sb, *bias, **options),)

    return call


CALLS: dict[str, tuple[Callable[..., Any], tuple[Arg, ...], str]] = {
    "int_mm": (
        lambda a, b: (torch._int_mm(a, b),),
        (Arg((64, 128), I8), Arg((128, 256), I8)),
        "torch._int_mm(a, b)",
    ),
    "mm_wide": (
        lambda a, b: (torch.mm(a, b, out_dtype=F32),),
        (Arg((64, 128)), Arg((128, 256))),
        "torch.mm(a, b, out_dtype=torch.float32)",
    ),
    "scaled": (
        scaled(BF16, fast=True),
        (A, B, SCALE, SCALE),
        "torch._scaled_mm(a, b, scale_a, scale_b, None, None, torch.bfloat16, True)",
    ),
    "scaled_wide": (
        scaled(F32),
        (A, B, SCALE, SCALE),
        "torch._scaled_mm(a, b, scale_a, scale_b, None, None, torch.float32, False)",
    ),
    "scaled_rows": (
        scaled(BF16),
        (A, B, Arg((64, 1), F32), Arg((1, 256), F32)),
        "torch._scaled_mm(a, b, scale_a, scale_b, None, None, torch.bfloat16, False)",
    ),
    "scaled_bias": (
        scaled(BF16),
        (A, B, SCALE, SCALE, Arg((256,), BF16)),
        "torch._scaled_mm(a, b, scale_a, scale_b, bias, None, torch.bfloat16, False)",
    ),
    "convolution": (
        convolution([1, 2], [1, 0], [1, 1], False, [0, 0], 1),
        (Arg((2, 8, 16, 16)), Arg((16, 8, 3, 3))),
        "torch.convolution(x, weight, None, (1, 2), (1, 0), (1, 1), False, (0, 0), 1)",
    ),
    "convolution_groups": (
        convolution([1, 1], [1, 1], [1, 1], False, [0, 0], 2),
        (Arg((2, 8, 16, 16)), Arg((16, 4, 3, 3))),
        "torch.convolution(x, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 2)",
    ),
}
GPU = {"mm_wide", "scaled_rows", "scaled_bias"}
"""What a CPU may not compute: there, the script's names and arguments are tried without numbers."""


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_written_as_it_was_made(name: str, cache_dir: Path) -> None:
    call, arguments, body = CALLS[name]
    with Lab(library_first, cache_dir).open() as lab:
        lab.lower(call, *arguments)
    (record,) = open_store(cache_dir).iter_records()
    written = script(record, {}, str(cache_dir))
    assert written.refused == ""
    assert f"    return {body}\n" in written.text
    names: dict[str, Any] = {"__name__": "script"}
    exec(written.text.replace("'device': 'cuda'", "'device': 'cpu'"), names)
    values = [names["inside"](operand, names["outside"](operand)) for operand in names["OPERANDS"]]
    assert [(tuple(value.shape), value.dtype) for value in values] == [
        (argument.size, argument.dtype) for argument in arguments
    ]
    widened = [value.double() for value in values]
    exact = names["exact"](*widened)
    assert str(exact.dtype) == "torch.float64"
    assert list(exact.shape) == record.problem["output"]["size"]
    try:
        result = names["call"](*values)
    except (NotImplementedError, RuntimeError):
        if name not in GPU:
            raise
        result = names["call"](*(value.to("meta") for value in values))
        assert (result.dtype, result.shape) == (
            getattr(torch, record.problem["output"]["dtype"]),
            exact.shape,
        )
        return
    assert result.dtype == getattr(torch, record.problem["output"]["dtype"])
    assert names["error"]([result], [exact]) <= names["TOLERANCE"]
    assert names["error"]([result + result.abs().max()], [exact]) > names["TOLERANCE"]


@pytest.mark.parametrize("op", ["addmm", "baddbmm"])
def test_a_product_with_a_bias_keeps_its_factors(op: str) -> None:
    factor = OperandText((2, 2), (2, 1), 0, "float32", "cpu", constant=False, opaque="")
    call = call_of({"op": op, "arguments": [("alpha", "2.0"), ("beta", "0.5")]}, [factor] * 3)
    assert call.body == f"torch.{op}(bias, a, b, alpha=2.0, beta=0.5)"


def linear(op: str, count: int, **arguments: str) -> str:
    """Return the call of a linear layer on a CPU."""
    operand = OperandText((2, 2), (2, 1), 0, "float32", "cpu", constant=False, opaque="")
    return call_of({"op": op, "arguments": [*arguments.items()]}, [operand] * count).body


def test_a_linear_layer_keeps_what_is_behind_it() -> None:
    plain, biased = "F.linear(x, packed, None)", "F.linear(x, packed, bias)"
    assert linear("linear_unary", 2, attr="'none'") == plain
    assert linear("linear_unary", 3, attr="'swish'") == f"F.silu({biased})"
    assert linear("linear_unary", 3, attr="'gelu'", algorithm="'none'") == f"F.gelu({biased})"
    tanh = linear("linear_unary", 2, attr="'gelu'", algorithm="'tanh'")
    assert tanh == f"F.gelu({plain}, approximate='tanh')"
    assert linear("linear_binary", 3, attr="'sub'") == f"{plain} - other"
    assert linear("linear_binary", 4, attr="'mul'") == f"{biased} * other"


@pytest.mark.parametrize(
    ("op", "arguments", "named"),
    [
        ("linear_unary", {"attr": "'elu'"}, "'elu'"),
        ("linear_unary", {}, "'None'"),
        ("linear_binary", {"attr": "'div'"}, "'div'"),
        ("linear_binary", {"attr": "'relu'"}, "'relu'"),  # a unary operation
    ],
)
def test_a_linear_layer_with_something_unknown_behind_it_is_refused_by_name(
    op: str, arguments: dict[str, str], named: str
) -> None:
    with pytest.raises(NotReproducible, match=f"rebuild a linear layer with {named} behind it"):
        linear(op, 3, **arguments)
