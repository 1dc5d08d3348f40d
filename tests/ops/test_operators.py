"""Operators by their names, and the modules that define the plugin's own."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import pytest
import torch

from inductor_plugin.ops import DEFINED_IN, imports_of
from inductor_plugin.ops.operators import resolve

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
