"""A recorded problem in one line that distinguishes it from every other: sizes, dtypes, layout, flags. Pure.

linear_unary(2049..4096x64, packed, 32) fp32 relu
attention(1x2x64x32, 1x2x64x32, 1x2x64x32) bf16 causal
mm(64x256, 256x512.T) fp16 -> fp32
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from inductor_plugin.problem.attention import operands_of

_SHORT = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}
_USUAL: Mapping[str, tuple[str, ...]] = {
    "alpha": ("1", "1.0"),
    "beta": ("1", "1.0"),
    "groups": ("1",),
    "dilation": ("[1]", "[1, 1]", "[1, 1, 1]", "(1,)", "(1, 1)", "(1, 1, 1)"),
    "stride": ("[1]", "[1, 1]", "[1, 1, 1]", "(1,)", "(1, 1)", "(1, 1, 1)"),
}
"""Arguments that say nothing, besides those of `_NOTHING`."""
_ELSEWHERE = frozenset(("out_dtype", "batch_size"))
"""Arguments that the operands and the output have anyway."""
_NOTHING = frozenset(
    ("None", "False", "''", "'none'", "[]", "()", "[0]", "[0, 0]", "[0, 0, 0]", "(0,)", "(0, 0)")
)
_ODD = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


def described(problem: Mapping[str, Any], text: str) -> str:
    """Return a problem in one line.

    Args:
        problem: Its fields in a record; they may be of an older version, or anything.
        text: What is returned if the fields cannot be read: the record's own description.
    """
    try:
        inputs: Sequence[Mapping[str, Any]] = problem["inputs"]
        shapes = ", ".join(map(_operand, inputs))
        call = f"{problem['op']}({shapes})"
        words = [call, _dtypes(inputs, problem["output"]), *_flags(problem)]
        if epilogue := str(problem.get("epilogue") or ""):
            words.append(f"+ {epilogue.partition('-')[0]}")
        return " ".join(words) if inputs else text
    except _ODD:
        return text


def _operand(operand: Mapping[str, Any]) -> str:
    """Return an operand's extents, with what of its layout is not the usual."""
    if operand["layout"] != "strided":
        return "packed"
    size, stride = list(operand["size"]), list(operand["stride"])
    text = "x".join(map(str, size)) or "scalar"
    offset = f"+{operand['offset']}" if operand["offset"] else ""
    return f"{text}{_layout(size, stride)}{offset}"


def _layout(size: Sequence[Any], stride: Sequence[Any]) -> str:
    """Return ``.T`` for a transposed matrix, ``/STRIDES`` for other strides, nothing for dense ones."""
    if [str(step) for step in stride] == _dense(size, stride):
        return ""
    if len(size) > 1:
        turned = [*size[:-2], size[-1], size[-2]], [*stride[:-2], stride[-1], stride[-2]]
        if [str(step) for step in turned[1]] == _dense(*turned):
            return ".T"
    return f"/{','.join(map(str, stride))}"


def _dense(size: Sequence[Any], stride: Sequence[Any]) -> list[str]:
    """Return the strides of a dense tensor in the form of ``stride``; where the extent is 1, its own."""
    if stride and all(
        isinstance(step, str) for step in stride
    ):  # of a version that kept no numbers
        ranks = sum(str(step).startswith("rank") for step in stride)
        orders = [*(f"rank{rank}" for rank in reversed(range(ranks))), "1"]
        return orders if len(orders) == len(stride) else []
    inner = [_step(size[place + 1 :], stride[place + 1 :]) for place in range(len(size))]
    return [
        str(own if extent == 1 else step)
        for extent, step, own in zip(size, inner, stride, strict=True)
    ]


def _step(size: Sequence[Any], stride: Sequence[Any]) -> int | str:
    """Return the stride of a dense dimension from the dimensions inside it; its rank if one is dynamic."""
    if any(isinstance(extent, str) for extent in size):
        return f"rank{len({str(step) for step in stride} - {'0', '1'})}"
    return math.prod(size)


def _dtypes(inputs: Sequence[Mapping[str, Any]], output: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(_short(operand["dtype"]) for operand in inputs))
    out = _short(output["dtype"])
    return ", ".join(names) + ("" if out == names[0] else f" -> {out}")


def _short(dtype: object) -> str:
    return _SHORT.get(str(dtype), str(dtype))


def _flags(problem: Mapping[str, Any]) -> list[str]:
    """Return the arguments that are not the usual ones."""
    arguments = {str(name): str(text) for name, text in problem["arguments"]}
    if "operands" in arguments:
        return _attention_flags(arguments, problem)
    named = cast("list[str]", [])
    for name, text in arguments.items():
        if text in _NOTHING or text in _USUAL.get(name, ()) or name in _ELSEWHERE:
            continue
        value = text.strip("'").removeprefix("torch.")
        if name in ("attr", "algorithm"):
            named.append(value)
        else:
            named.append(name if text == "True" else f"{name}={value}")
    return named


def _attention_flags(arguments: Mapping[str, str], problem: Mapping[str, Any]) -> list[str]:
    left, right = int(arguments["left"]), int(arguments["right"])
    flags = ["causal"] if left < 0 and right == 0 else []
    if left >= 0 or right > 0:
        flags.append(f"window={left},{right}")
    if arguments["bottom_right"] == "True" and (left >= 0 or right >= 0):
        flags.append("bottom-right")
    if float(arguments["softcap"]):
        flags.append(f"softcap={arguments['softcap']}")
    names = operands_of(arguments)
    depth = problem["inputs"][names.index("q")]["size"][-1]
    scale = float(arguments["scale"])
    if not isinstance(depth, int) or not math.isclose(scale, depth**-0.5, rel_tol=1e-4):
        flags.append(f"scale={scale:.4g}")
    return flags + [name for name in ("bias", "cu_q", "lse") if name in names]
