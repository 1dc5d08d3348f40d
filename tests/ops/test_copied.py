"""Operators behind copies of some operands."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from inductor_plugin.ops import copied
from inductor_plugin.problem.contract import Recipe
from tests.support.candidates.row_major_ops import CALLS

pytestmark = pytest.mark.compat


@pytest.mark.parametrize(
    ("tensor", "recipe", "stride"),
    [
        (torch.randn(33, 64).t(), Recipe("row"), (33, 1)),
        (torch.randn(33, 64).t(), Recipe("row", 16), (36, 1)),
        (torch.randn(64, 33), Recipe("column", 16), (1, 64)),
        (torch.randn(2, 5, 7), Recipe("column", 16), (56, 1, 8)),
        (torch.randn(100)[1:97].view(12, 8), Recipe("row", 16), (8, 1)),
        (torch.randn(1, 5, 7).expand(3, -1, -1), Recipe("row", 16, (0,)), (0, 8, 1)),
        (torch.randn(()).expand(4, 6), Recipe("row", 1, (0,)), (0, 1)),
        (torch.randn(4, 1).expand(4, 6), Recipe("row"), (6, 1)),
        (torch.randn(0, 6), Recipe("row", 16), (8, 1)),
    ],
)
def test_a_copy_has_the_values_and_the_recipes_strides(
    tensor: torch.Tensor, recipe: Recipe, stride: tuple[int, ...]
) -> None:
    copy = copied.copied(tensor, recipe)
    assert torch.equal(copy, tensor)
    assert copy.stride() == stride
    assert copy.storage_offset() == 0
    assert copy.data_ptr() % 16 == 0


def test_what_is_not_expanded_when_it_runs_is_copied_whole() -> None:
    tensor = torch.randn(3, 5, 8)
    copy = copied.copied(tensor, Recipe("row", 16, (0,)))
    assert torch.equal(copy, tensor)


def test_an_operator_gets_the_copies_and_its_own_arguments() -> None:
    a, b = torch.randn(8, 13)[:, :12], torch.randn(16, 12).t()
    out = torch.empty(8, 16)
    text = copied.how(
        "picky::mm",
        (),
        ("tests.support.candidates.row_major_ops",),
        {0: Recipe("row", 16), 1: Recipe("row", 16)},
    )
    operators: Any = torch.ops.inductor_plugin
    CALLS.clear()
    operators.copied_2.out(a, b, "", "picky::mm", text, out=out)
    torch.testing.assert_close(out, a @ b)
    assert CALLS == [("mm", ((12, 1), (16, 1)))]


def test_a_kernels_name_comes_before_the_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def operator(*operands: Any, out: torch.Tensor) -> torch.Tensor:
        seen.append(operands)
        return out

    plan: Any = copied._How(operator, ("tt", 1.0), {1: Recipe("row")})  # pyright: ignore[reportPrivateUsage]

    def parsed(op: str, text: str) -> Any:
        return plan

    monkeypatch.setattr(copied, "_parsed", parsed)
    a, b, out = torch.ones(2, 2), torch.arange(4.0).view(2, 2).t(), torch.empty(2, 2)
    copied.call(a, b, "kernel@digest", "any::op.out", "", out=out)
    ((first, second, *rest),) = seen
    assert first is a
    assert second.stride() == (2, 1)
    assert rest == ["kernel@digest", "tt", 1.0]


def test_the_text_says_it_all_and_keeps_whole_numbers_whole() -> None:
    text = copied.how("a::b.out", ("tt", 1, 0.5, 1.0), ("a.b",), {2: Recipe("column", 16, (0,))})
    assert json.loads(text) == {
        "arguments": ["tt", 1, 0.5, 1.0],
        "imports": ["a.b"],
        "copies": {"2": ["column", 16, [0]]},
    }
    result = [type(argument) for argument in json.loads(text)["arguments"]]
    assert result == [str, int, float, float]


def test_where_an_operator_of_the_plugins_own_is_defined_is_no_part_of_the_text() -> None:
    """Candidates measured by earlier versions are known by the text they had then."""
    text = copied.how("inductor_plugin::cutlass_mm.out", ("tt",), (), {0: Recipe("row", 16)})
    assert text == (
        '{"arguments": ["tt"], "copies": {"0": ["row", 16, []]}, "imports": ["inductor_plugin.gemm_op"]}'
    )
    plan: Any = copied._parsed("inductor_plugin::cutlass_mm.out", text)  # pyright: ignore[reportPrivateUsage]
    assert plan.function is torch.ops.inductor_plugin.cutlass_mm.out


def test_there_is_an_operator_for_each_number_of_operands() -> None:
    for count in range(1, copied.MOST_OPERANDS + 1):
        namespace, _, name = copied.name_of(count).partition("::")
        packet = getattr(getattr(torch.ops, namespace), name.partition(".")[0])
        assert len(packet.out._schema.arguments) == count + 4
