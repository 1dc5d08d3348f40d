"""``inductor_plugin::copied_N.out``: an operator of N operands after copies of some of them, as one call.

    copied_2.out(a, b, kernel, op, how, out=)      how: JSON of the other arguments, imports and copies

The candidate where a kernel's contract rejects an operand's strides but accepts those of a copy. The
call makes the copies, so that they are measured with the kernel and cost no other candidate anything.
Their memory comes from torch's allocator on the stream the kernel runs on.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from inductor_plugin.ops import DEFINED_IN, imports_of
from inductor_plugin.ops.operators import define_kernels, resolve
from inductor_plugin.problem.contract import Recipe

MOST_OPERANDS = 6

_RECORDED = ("inductor_plugin.gemm_op",)
"""The module that the text of `how` names for the plugin's own operators; never imported. Records name
candidates by that text, so it stays when modules move."""


@dataclass(frozen=True)
class _How:
    function: Any
    arguments: tuple[Any, ...]
    copies: Mapping[int, Recipe]


def name_of(operands: int) -> str:
    """Return the operator for a number of operands."""
    return f"inductor_plugin::copied_{operands}.out"


def how(
    op: str, arguments: tuple[Any, ...], imports: tuple[str, ...], copies: Mapping[int, Recipe]
) -> str:
    """Return the text that describes a call of an operator with copies of its operands.

    Args:
        op: The operator.
        arguments: Arguments after the operands and the kernel's name, if there is one.
        imports: Modules that define the operator; not those of `DEFINED_IN`.
        copies: The layout of each copy, by the operand's index.
    """
    recipes = {str(i): [copy.order, copy.alignment, list(copy.kept)] for i, copy in copies.items()}
    recorded = _RECORDED if op in DEFINED_IN else imports
    plain = {"arguments": arguments, "imports": recorded, "copies": recipes}
    return json.dumps(plain, sort_keys=True)


def copied(tensor: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """Return a copy of a tensor, laid out by a recipe."""
    kept = tuple(dim for dim in recipe.kept if tensor.stride(dim) == 0)
    plain = Recipe(recipe.order, recipe.alignment, kept)
    stride = plain.strides(tensor.shape, tensor.element_size())
    copy = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    written, read = copy, tensor
    for dim in kept:
        written, read = written.narrow(dim, 0, 1), read.narrow(dim, 0, 1)
    written.copy_(read)
    return copy


def call(*arguments: Any, out: torch.Tensor) -> None:
    """Call an operator with copies of some operands; it writes to ``out``.

    Args:
        arguments: The operands; then the kernel's name, empty if the operator takes none; the operator,
            ``namespace::name.overload``; and `how`.
        out: The output.
    """
    *operands, kernel, op, text = arguments
    plan = _parsed(op, text)
    tensors = [
        copied(operand, plan.copies[i]) if i in plan.copies else operand
        for i, operand in enumerate(operands)
    ]
    named = (kernel,) if kernel else ()
    plan.function(*tensors, *named, *plan.arguments, out=out)


@functools.lru_cache(maxsize=1024)
def _parsed(op: str, text: str) -> _How:
    plain = json.loads(text)
    imports = imports_of(op) or plain["imports"]
    copies = {
        int(index): Recipe(order, alignment, tuple(kept))
        for index, (order, alignment, kept) in plain["copies"].items()
    }
    return _How(resolve(op, imports), tuple(plain["arguments"]), copies)


def _schema(operands: int) -> str:
    tensors = ", ".join(f"Tensor t{i}" for i in range(operands))
    return f"({tensors}, str kernel, str op, str how, *, Tensor(a!) out)"


_SCHEMAS = {f"copied_{count}.out": _schema(count) for count in range(1, MOST_OPERANDS + 1)}
_OPERATORS: Any = define_kernels(
    _SCHEMAS, dict.fromkeys(_SCHEMAS, call), key="CompositeExplicitAutograd"
)
