"""Writes the call of a record in Python, without an epilogue. Pure.

`FORMS` has one row for each product that can be rebuilt; scripts of other operators have metadata only. A record
may be someone else's, from an archive or a bug report: of its texts, only what `code` returns becomes code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inductor_plugin.problem.attention import operands_of
from inductor_plugin.repro.operand import OperandText


class NotReproducible(Exception):  # noqa: N818 - it is no fault
    """A call cannot be rebuilt; the message says why."""


@dataclass(frozen=True)
class CallText:
    """A call in Python.

    Attributes:
        names: The operands' names, in the order of the record.
        body: An expression over them.
        exact: The same over operands in float64.
        gradient: Whether the record is of the call's gradient.
    """

    names: tuple[str, ...]
    body: str
    exact: str
    gradient: bool = False


_CONVOLUTION = "{stride}, {padding}, {dilation}, {transposed}, {output_padding}, {groups}"
FORMS: dict[str, tuple[str, str | dict[str, str], str]] = {
    "mm": ("a b", "torch.mm(a, b{wide})", "torch.mm(a, b)"),
    "bmm": ("a b", "torch.bmm(a, b{wide})", "torch.bmm(a, b)"),
    "addmm": ("bias a b", "torch.addmm(bias, a, b, alpha={alpha}, beta={beta})", ""),
    "baddbmm": ("bias a b", "torch.baddbmm(bias, a, b, alpha={alpha}, beta={beta})", ""),
    "int_mm": ("a b", "torch._int_mm(a, b)", "a @ b"),
    "mm_plus_mm": ("a b c d", "a @ b + c @ d", ""),
    "scaled_mm": (
        "a b scale_a scale_b bias",
        "torch._scaled_mm(a, b, scale_a, scale_b, {bias}, None, {out_dtype}, {use_fast_accum})",
        "(a * scale_a) @ (b * scale_b){plus_bias}",
    ),
    "convolution": ("x weight bias", f"torch.convolution(x, weight, {{bias}}, {_CONVOLUTION})", ""),
    "packed_linear": ("x packed weight bias", "F.linear(x, weight, {bias})", ""),
    "linear_unary": (
        "x packed bias",
        {
            "none": "{linear}",
            "relu": "torch.relu({linear})",
            "sigmoid": "torch.sigmoid({linear})",
            "tanh": "torch.tanh({linear})",
            "swish": "F.silu({linear})",
            "hardswish": "F.hardswish({linear})",
            "hardsigmoid": "F.hardsigmoid({linear})",
            "gelu": "F.gelu({linear})",
            "gelu tanh": "F.gelu({linear}, approximate='tanh')",
        },
        "",
    ),
    "linear_binary": (
        "x other packed bias",
        {"add": "{linear} + other", "sub": "{linear} - other", "mul": "{linear} * other"},
        "",
    ),
}
"""Names of the operands, of which a last bias may be missing; the call, by the operation that follows the product if that is an
argument; the exact call where it is another."""

ATTENTIONS = ("attention", "attention_backward")
_SCALARS = (
    *("alpha", "beta", "use_fast_accum", "out_dtype"),
    *("stride", "padding", "dilation", "transposed", "output_padding", "groups"),
)
_DEFAULTS = {"alpha": "1", "beta": "1", "use_fast_accum": "False", "out_dtype": "None"}
_ATTENTION_OPERANDS = frozenset(
    ("q", "k", "v", "bias", "cu_q", "cu_k", "lse", "do", "out", "delta", "dq", "dk", "dv")
)


def call_of(problem: Mapping[str, Any], operands: Sequence[OperandText]) -> CallText:
    """Return the call of a problem's fields without its epilogue.

    Raises:
        NotReproducible: It cannot be written.
        KeyError: The record lacks an argument.
        ValueError: An argument is not one that may become code (`code`).
        SyntaxError: An argument is no Python.
    """
    op, arguments = str(problem["op"]), {**_DEFAULTS, **dict[str, str](problem["arguments"])}
    if op in ATTENTIONS:
        attention = dict[str, str](problem["arguments"])
        return _attention({name: ast.literal_eval(t) for name, t in attention.items()}, operands)
    if op not in FORMS:
        raise NotReproducible(f"this version cannot rebuild a call of {op}")
    every, body, exact = FORMS[op]
    names = tuple(every.split())
    if len(operands) not in (len(names), len(names) - (names[-1] == "bias")):
        raise NotReproducible(f"it has {len(operands)} operands, not {len(names)}")
    names = names[: len(operands)]
    if op == "scaled_mm" and arguments["out_dtype"] == "None":
        arguments["out_dtype"] = f"torch.{problem['output']['dtype']}"
    if isinstance(body, dict):
        attr = str(ast.literal_eval(arguments.get("attr", "None")))
        attr += " tanh" if arguments.get("algorithm") == "'tanh'" else ""
        if attr not in body:
            raise NotReproducible(
                f"this version cannot rebuild a linear layer with {attr!r} behind it"
            )
        body = body[attr]
    bias = "bias" if "bias" in names else "None"
    words = {name: code(arguments[name]) for name in _SCALARS if name in arguments}
    words |= {
        "bias": bias,
        "plus_bias": " + bias" if "bias" in names else "",
        "linear": f"F.linear(x, packed, {bias})",
        "wide": f", out_dtype={words['out_dtype']}" if words["out_dtype"] != "None" else "",
    }
    return CallText(names, body.format_map(words), (exact or body).format_map(words))


def code(argument: str) -> str:
    """Return a scalar argument of a record as code.

    Raises:
        ValueError: It is neither a dtype, a finite number, a switch, None, nor a list of these.
        SyntaxError: It is no Python.
    """
    if re.fullmatch(r"torch\.\w{1,32}", argument, re.ASCII):
        return argument
    text = repr(ast.literal_eval(argument))
    if not re.fullmatch(r"(True|False|None|[\d.,e()\[\] +-])*", text):
        raise ValueError(f"{argument!r} is no number")
    return text


def _attention(arguments: Mapping[str, Any], operands: Sequence[OperandText]) -> CallText:
    names = operands_of(arguments)
    if not _ATTENTION_OPERANDS.issuperset(names):
        raise NotReproducible(f"an attention has no operands {names}")
    if "cu_q" in names:
        raise NotReproducible(
            "sequences of their own lengths, packed, need ends that a record does not keep"
        )
    if arguments["softcap"] or arguments["left"] >= 0 or arguments["right"] > 0:
        raise NotReproducible("scaled_dot_product_attention has neither a window nor a softcap")
    causal = arguments["right"] == 0
    shapes = {name: operand.size for name, operand in zip(names, operands, strict=True)}
    if arguments["bottom_right"] and causal and shapes["q"][2] != shapes["k"][2]:
        raise NotReproducible(
            "scaled_dot_product_attention aligns a causal mask with the first key"
        )
    body = (
        f"F.scaled_dot_product_attention(q, k, v, attn_mask={'bias' if 'bias' in names else 'None'}, "
        f"is_causal={causal}, scale={code(str(arguments['scale']))}, "
        f"enable_gqa={shapes['q'][1] != shapes['k'][1]})"
    )
    return CallText(names, body, body, gradient="do" in names or "lse" in names)
