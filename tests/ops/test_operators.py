"""Operators by their names, and the modules that define the plugin's own."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from inductor_plugin.ops import DEFINED_IN, imports_of
from inductor_plugin.ops.copied import MOST_OPERANDS, how
from inductor_plugin.ops.operators import resolve
from inductor_plugin.problem.contract import Recipe

ATEN: Any = torch.ops.aten


def test_an_operator_is_found_by_its_name_and_overload() -> None:
    assert resolve("aten::mm.out") is ATEN.mm.out
    assert resolve("aten::relu") is ATEN.relu.default
    assert (
        resolve("picky::mm", ("tests.support.candidates.row_major_ops",))
        is torch.ops.picky.mm.default
    )


def test_an_operator_that_nothing_defines_is_no_operator() -> None:
    with pytest.raises(AttributeError, match="no_such_operator"):
        resolve("aten::no_such_operator.out")


@pytest.mark.parametrize("op", DEFINED_IN)
def test_the_module_of_an_operator_defines_it(op: str) -> None:
    overload = resolve(op, imports_of(op))
    assert overload._schema.arguments[-1].name == "out"
    assert overload.namespace == "inductor_plugin"


def test_modules_that_a_template_names_are_kept() -> None:
    assert imports_of("mine::op.out", ("a.b",)) == ("a.b",)
    assert imports_of("mine::op.out") == ()


OTHERS = (
    *(
        "inductor_plugin.ops.copied",
        "inductor_plugin.ops.decompose_k",
        "inductor_plugin.attention.math",
    ),
    *("inductor_plugin.attention.flash_wheel", "inductor_plugin.attention.operator"),
)
"""The modules of operators that are not in `DEFINED_IN`."""
CHECKED_ELSEWHERE = {
    *DEFINED_IN,  # in test_sites.py
    *("inductor_plugin::fmha", "inductor_plugin::fmha_backward"),  # in attention/test_operator.py
    "inductor_plugin::flash_wheel",  # in attention/test_library.py
}
Q, K, V, ROWS = (*(torch.randn(2, 4, 5, 8) for _ in range(3)), torch.randn(2, 4, 5))
MASK = (0.5, -1, -1, False)
BIAS = torch.randn(5, 5)
SUM = how("aten::add.out", (), (), {0: Recipe("row", 8)})


def new(like: Tensor) -> Tensor:
    return torch.empty_like(like)


CALLS: dict[str, tuple[tuple[Any, ...], Tensor]] = {
    "decompose_k.out": ((torch.randn(6, 8), torch.randn(8, 5), 2), torch.empty(6, 5)),
    "copied_2.out": ((BIAS.t(), BIAS, "", "aten::add.out", SUM), new(BIAS)),
    "attention_math.out": ((Q, K, V, *MASK), new(Q)),
    "attention_math.bias_out": ((Q, K, V, BIAS, *MASK), new(Q)),
    "attention_math.lse_out": ((Q, K, V, new(ROWS), *MASK), new(Q)),
    "attention_math.bias_lse_out": ((Q, K, V, BIAS, new(ROWS), *MASK), new(Q)),
    "attention_math_backward.out": ((Q, Q, K, V, Q, ROWS, new(Q), new(V), *MASK), new(K)),
    "attention_math_backward.bias_out": (
        (Q, Q, K, V, Q, ROWS, BIAS, new(Q), new(V), *MASK),
        new(K),
    ),
}
"""Arguments and output of each operator, one number of operands for all of those that copy."""


@pytest.mark.compat
@pytest.mark.parametrize("name", CALLS)
def test_torch_finds_nothing_wrong_with_an_operator(name: str) -> None:
    operands, out = CALLS[name]
    checks = torch.library.opcheck(
        resolve(f"inductor_plugin::{name}", OTHERS), operands, {"out": out}
    )
    assert len(checks) == 4
    assert set(checks.values()) == {"SUCCESS"}


def test_no_operator_is_left_unchecked() -> None:
    for module in (*DEFINED_IN.values(), *OTHERS):
        importlib.import_module(module)
    namespace = "inductor_plugin::"
    defined = {n for n in torch._C._dispatch_get_all_op_names() if n.startswith(namespace)}
    alike = {f"{namespace}copied_{count}.out" for count in range(1, MOST_OPERANDS + 1)}
    assert defined == CHECKED_ELSEWHERE | alike | {f"{namespace}{name}" for name in CALLS}
