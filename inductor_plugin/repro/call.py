"""How the call of a record is written in Python, operator by operator. Pure.

One row in `CALLS` for each operator that can be rebuilt. What has none keeps its metadata, and says why.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inductor_plugin.repro.operand import Made


@dataclass(frozen=True)
class Call:
    """A call in Python.

    Attributes:
        body: An expression over the operands' names.
        names: The operands' names, in the order of the record.
        exact: The same over operands in float64; empty where ``body`` does it.
        weight: Extents of the weight an opaque operand stands for; None if there is none.
        gradient: Whether what is recorded is the call's gradient.
        lines: What stands behind the call, which gives ``product``; the last line returns.
        exact_lines: The same over operands in float64.
        readers: How many besides these lines read ``product``.
        jumps: Whether a value next to a threshold may fall on either side of it.
        outputs: Dtypes of what the lines write; empty without them.
        dtype: Of ``product``; empty without lines.
    """

    body: str
    names: tuple[str, ...]
    exact: str = ""
    weight: tuple[int, int] | None = None
    gradient: bool = False
    lines: tuple[str, ...] = ()
    exact_lines: tuple[str, ...] = ()
    readers: int = 0
    jumps: bool = False
    outputs: tuple[str, ...] = ()
    dtype: str = ""


_Told = Mapping[str, Any]

_UNARY = {
    "none": "{}",
    "relu": "torch.relu({})",
    "sigmoid": "torch.sigmoid({})",
    "tanh": "torch.tanh({})",
    "swish": "F.silu({})",
    "hardswish": "F.hardswish({})",
    "hardsigmoid": "F.hardsigmoid({})",
}


def call_of(problem: Mapping[str, Any], made: list[Made]) -> Call | str:
    """Return the call of a problem's fields without its epilogue, or why it cannot be written."""
    op = str(problem["op"])
    write = CALLS.get(op)
    if write is None:
        return f"this version cannot rebuild a call of {op}"
    return write({name: _argument(text) for name, text in problem["arguments"]}, made)


def _argument(text: str) -> Any:
    """Return a scalar argument; a dtype stays as it is written."""
    return text if text.startswith("torch.") else ast.literal_eval(text)


def _product(function: str) -> Callable[[_Told, list[Made]], Call | str]:
    def write(told: _Told, made: list[Made]) -> Call | str:
        del made
        wide = told.get("out_dtype")
        plain = f"{function}(a, b)"
        if wide is None:
            return Call(plain, ("a", "b"))
        return Call(f"{function}(a, b, out_dtype={wide})", ("a", "b"), plain)

    return write


def _plain(body: str, *names: str) -> Callable[[_Told, list[Made]], Call | str]:
    def write(told: _Told, made: list[Made]) -> Call | str:
        del told
        if len(made) != len(names):
            return f"it has {len(made)} operands, not {len(names)}"
        return Call(body, names)

    return write


def _scaled(function: str) -> Callable[[_Told, list[Made]], Call | str]:
    def write(told: _Told, made: list[Made]) -> Call | str:
        del made
        alpha, beta = told.get("alpha", 1), told.get("beta", 1)
        return Call(f"{function}(bias, a, b, alpha={alpha}, beta={beta})", ("bias", "a", "b"))

    return write


def _scaled_mm(told: _Told, made: list[Made]) -> Call | str:
    names = ("a", "b", "scale_a", "scale_b", "bias")[: len(made)]
    fast, out = told.get("use_fast_accum", False), told.get("out_dtype")
    bias = "bias" if len(made) > 4 else "None"
    dtype = "OUTPUT" if out is None else str(out)
    body = f"torch._scaled_mm(a, b, scale_a, scale_b, {bias}, None, {dtype}, {fast})"
    exact = "(a * scale_a) @ (b * scale_b)" + (" + bias" if len(made) > 4 else "")
    return Call(body, names, exact)


def _convolution(told: _Told, made: list[Made]) -> Call | str:
    names = ("x", "weight", "bias")[: len(made)]
    wanted = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    if missing := [name for name in wanted if name not in told]:
        return f"its record lacks {', '.join(missing)}"
    rest = ", ".join(repr(told[name]) for name in wanted)
    bias = "bias" if len(made) > 2 else "None"
    return Call(f"torch.convolution(x, weight, {bias}, {rest})", names)


def _packed_linear(told: _Told, made: list[Made]) -> Call | str:
    del told
    if len(made) == 3:
        return Call("F.linear(x, weight)", ("x", "packed", "weight"))
    return Call("F.linear(x, weight, bias)", ("x", "packed", "weight", "bias")[: len(made)])


def _linear_unary(told: _Told, made: list[Made]) -> Call | str:
    after = _UNARY.get(str(told.get("attr")))
    if told.get("attr") == "gelu":
        after = f"F.gelu({{}}, approximate={told.get('algorithm') or 'none'!r})"
    if after is None:
        return f"this version cannot rebuild a linear layer with {told.get('attr')!r} behind it"
    names = ("x", "packed", "bias")[: len(made)]
    linear = f"F.linear(x, packed{', bias' if len(made) > 2 else ''})"
    return Call(after.format(linear), names)


def _linear_binary(told: _Told, made: list[Made]) -> Call | str:
    sign = {"add": "+", "sub": "-", "mul": "*"}.get(str(told.get("attr")))
    if sign is None:
        return f"this version cannot rebuild a linear layer with {told.get('attr')!r} behind it"
    names = ("x", "other", "packed", "bias")[: len(made)]
    return Call(f"F.linear(x, packed{', bias' if len(made) > 3 else ''}) {sign} other", names)


def _attention(told: _Told, made: list[Made]) -> Call | str:
    names = tuple(str(told["operands"]).split(","))
    if "cu_q" in names:
        return "sequences of their own lengths, packed, need ends that a record does not keep"
    if told["softcap"] or told["left"] >= 0 or told["right"] > 0:
        return "scaled_dot_product_attention has neither a window nor a softcap"
    causal = told["right"] == 0
    given = dict(zip(names, made, strict=True))
    if told["bottom_right"] and causal and given["q"].size[2] != given["k"].size[2]:
        return "scaled_dot_product_attention aligns a causal mask with the first key"
    gqa = given["q"].size[1] != given["k"].size[1]
    mask = "bias" if "bias" in names else "None"
    body = (
        f"F.scaled_dot_product_attention(q, k, v, attn_mask={mask}, is_causal={causal}, "
        f"scale={told['scale']!r}, enable_gqa={gqa})"
    )
    return Call(body, names, gradient="do" in names or "lse" in names)


CALLS: dict[str, Callable[[_Told, list[Made]], Call | str]] = {
    "mm": _product("torch.mm"),
    "bmm": _product("torch.bmm"),
    "addmm": _scaled("torch.addmm"),
    "baddbmm": _scaled("torch.baddbmm"),
    "int_mm": _plain("torch._int_mm(a, b)", "a", "b"),
    "mm_plus_mm": _plain("a @ b + c @ d", "a", "b", "c", "d"),
    "scaled_mm": _scaled_mm,
    "convolution": _convolution,
    "packed_linear": _packed_linear,
    "linear_unary": _linear_unary,
    "linear_binary": _linear_binary,
    "attention": _attention,
    "attention_backward": _attention,
}
"""Operators that can be rebuilt, by the name records keep."""
