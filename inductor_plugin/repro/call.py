"""Writes the call of a record in Python. Pure.

`CALLS` has one row for each operator that can be rebuilt; scripts of other operators have metadata only.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inductor_plugin.repro import gate
from inductor_plugin.repro.operand import OperandText


@dataclass(frozen=True)
class CallText:
    """A call in Python.

    Attributes:
        body: An expression over the operands' names.
        names: The operands' names, in the order of the record.
        exact: The same over operands in float64; empty if ``body`` is exact.
        gradient: Whether the record is of the call's gradient.
        lines: Lines after the call, whose result is ``product``; the last line returns.
        exact_lines: The same over operands in float64.
        readers: Number of other readers of ``product``.
        jumps: Whether a value next to a threshold may fall on either side of it.
        outputs: Dtypes of the values the lines write; empty without lines.
        dtype: Dtype of ``product``; empty without lines.
    """

    body: str
    names: tuple[str, ...]
    exact: str = ""
    gradient: bool = False
    lines: tuple[str, ...] = ()
    exact_lines: tuple[str, ...] = ()
    readers: int = 0
    jumps: bool = False
    outputs: tuple[str, ...] = ()
    dtype: str = ""


_Arguments = Mapping[str, Any]

_ATTENTION_OPERANDS = frozenset(
    ("q", "k", "v", "bias", "cu_q", "cu_k", "lse", "do", "out", "delta", "dq", "dk", "dv")
)

_UNARY = {
    "none": "{}",
    "relu": "torch.relu({})",
    "sigmoid": "torch.sigmoid({})",
    "tanh": "torch.tanh({})",
    "swish": "F.silu({})",
    "hardswish": "F.hardswish({})",
    "hardsigmoid": "F.hardsigmoid({})",
}


def call_of(problem: Mapping[str, Any], operands: list[OperandText]) -> CallText | str:
    """Return the call of a problem's fields without its epilogue, or why it cannot be written.

    Raises:
        ValueError: An argument is not one that may become code (`gate`).
        SyntaxError: An argument is no Python.
    """
    op = str(problem["op"])
    write = CALLS.get(op)
    if write is None:
        return f"this version cannot rebuild a call of {op}"
    return write({name: _argument(text) for name, text in problem["arguments"]}, operands)


def _argument(text: str) -> Any:
    """Return a scalar argument; a dtype becomes its name in Python.

    Raises:
        ValueError: It is neither.
        SyntaxError: It is no Python.
    """
    if text.startswith("torch."):
        return _Code(f"torch.{gate.dtype(text.removeprefix('torch.'))}")
    return ast.literal_eval(text)


class _Code(str):
    """A text that passed the gate and is written as it is."""

    __slots__ = ()


def _text(value: Any) -> str:
    """Return an argument in Python.

    Raises:
        ValueError: It is neither a dtype nor a number.
    """
    return str(value) if isinstance(value, _Code) else gate.literal(value)


def _product(function: str) -> Callable[[_Arguments, list[OperandText]], CallText | str]:
    def write(arguments: _Arguments, operands: list[OperandText]) -> CallText | str:
        del operands
        wide = arguments.get("out_dtype")
        plain = f"{function}(a, b)"
        if wide is None:
            return CallText(plain, ("a", "b"))
        return CallText(f"{function}(a, b, out_dtype={_text(wide)})", ("a", "b"), plain)

    return write


def _plain(body: str, *names: str) -> Callable[[_Arguments, list[OperandText]], CallText | str]:
    def write(arguments: _Arguments, operands: list[OperandText]) -> CallText | str:
        del arguments
        if len(operands) != len(names):
            return f"it has {len(operands)} operands, not {len(names)}"
        return CallText(body, names)

    return write


def _scaled(function: str) -> Callable[[_Arguments, list[OperandText]], CallText | str]:
    def write(arguments: _Arguments, operands: list[OperandText]) -> CallText | str:
        del operands
        alpha, beta = (_text(arguments.get(name, 1)) for name in ("alpha", "beta"))
        return CallText(f"{function}(bias, a, b, alpha={alpha}, beta={beta})", ("bias", "a", "b"))

    return write


def _scaled_mm(arguments: _Arguments, operands: list[OperandText]) -> CallText | str:
    names = ("a", "b", "scale_a", "scale_b", "bias")[: len(operands)]
    fast, out = _text(arguments.get("use_fast_accum", False)), arguments.get("out_dtype")
    bias = "bias" if len(operands) > 4 else "None"
    dtype = "OUTPUT" if out is None else _text(out)
    body = f"torch._scaled_mm(a, b, scale_a, scale_b, {bias}, None, {dtype}, {fast})"
    exact = "(a * scale_a) @ (b * scale_b)" + (" + bias" if len(operands) > 4 else "")
    return CallText(body, names, exact)


def _convolution(arguments: _Arguments, operands: list[OperandText]) -> CallText | str:
    names = ("x", "weight", "bias")[: len(operands)]
    keywords = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    if missing := [name for name in keywords if name not in arguments]:
        return f"its record lacks {', '.join(missing)}"
    rest = ", ".join(_text(arguments[name]) for name in keywords)
    bias = "bias" if len(operands) > 2 else "None"
    return CallText(f"torch.convolution(x, weight, {bias}, {rest})", names)


def _packed_linear(arguments: _Arguments, operands: list[OperandText]) -> CallText | str:
    del arguments
    if len(operands) == 3:
        return CallText("F.linear(x, weight)", ("x", "packed", "weight"))
    return CallText("F.linear(x, weight, bias)", ("x", "packed", "weight", "bias")[: len(operands)])


def _linear_unary(arguments: _Arguments, operands: list[OperandText]) -> CallText | str:
    after = _UNARY.get(str(arguments.get("attr")))
    if arguments.get("attr") == "gelu":
        after = f"F.gelu({{}}, approximate={arguments.get('algorithm') or 'none'!r})"
    if after is None:
        return (
            f"this version cannot rebuild a linear layer with {arguments.get('attr')!r} behind it"
        )
    names = ("x", "packed", "bias")[: len(operands)]
    linear = f"F.linear(x, packed{', bias' if len(operands) > 2 else ''})"
    return CallText(after.format(linear), names)


def _linear_binary(arguments: _Arguments, operands: list[OperandText]) -> CallText | str:
    sign = {"add": "+", "sub": "-", "mul": "*"}.get(str(arguments.get("attr")))
    if sign is None:
        return (
            f"this version cannot rebuild a linear layer with {arguments.get('attr')!r} behind it"
        )
    names = ("x", "other", "packed", "bias")[: len(operands)]
    return CallText(
        f"F.linear(x, packed{', bias' if len(operands) > 3 else ''}) {sign} other", names
    )


def _attention(arguments: _Arguments, operands: list[OperandText]) -> CallText | str:
    names = tuple(
        gate.word(name, _ATTENTION_OPERANDS, "operand of an attention")
        for name in str(arguments["operands"]).split(",")
    )
    if "cu_q" in names:
        return "sequences of their own lengths, packed, need ends that a record does not keep"
    if arguments["softcap"] or arguments["left"] >= 0 or arguments["right"] > 0:
        return "scaled_dot_product_attention has neither a window nor a softcap"
    causal = arguments["right"] == 0
    named = dict(zip(names, operands, strict=True))
    if arguments["bottom_right"] and causal and named["q"].size[2] != named["k"].size[2]:
        return "scaled_dot_product_attention aligns a causal mask with the first key"
    gqa = named["q"].size[1] != named["k"].size[1]
    mask = "bias" if "bias" in names else "None"
    body = (
        f"F.scaled_dot_product_attention(q, k, v, attn_mask={mask}, is_causal={causal}, "
        f"scale={_text(arguments['scale'])}, enable_gqa={gqa})"
    )
    return CallText(body, names, gradient="do" in names or "lse" in names)


CALLS: dict[str, Callable[[_Arguments, list[OperandText]], CallText | str]] = {
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
