"""Different epilogues have different signatures, and all they read is among their reads."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.epilogue_text import decode, dump, encode, load
from tests.support.graphs.with_epilogues import Shape, lowered

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

BF16 = torch.bfloat16
M, N = 64, 128
FACTORS = Shape((M, 32), BF16), Shape((32, N), BF16)


def epilogue_of(function: Callable[..., Any], *extra: Shape) -> Epilogue:
    return lowered(lambda *inputs: (function(*inputs),), [*FACTORS, *extra])[0]


def numbered(count: int) -> torch.Tensor:
    return torch.arange(count, device="cuda:0")


def scaled(a: Any, b: Any) -> Any:
    return (a @ b) * numbered(N)


def shifted(a: Any, b: Any) -> Any:
    return (a @ b) * (numbered(N) * 7 + 3)


def with_rows_and_columns(a: Any, b: Any) -> Any:
    return (a @ b) * numbered(N) + numbered(M)[:, None]


def padded(by: tuple[int, int], value: float = 0.0) -> Callable[..., Any]:
    return lambda a, b, c: a @ b + functional.pad(c, by, value=value)


def test_an_index_is_part_of_the_signature() -> None:
    first, second = epilogue_of(scaled), epilogue_of(shifted)
    assert first.operations == second.operations
    assert first.signature != second.signature
    assert first.signature == epilogue_of(scaled).signature


def test_a_row_index_and_a_column_index_are_two_values() -> None:
    steps = epilogue_of(with_rows_and_columns).merged.steps
    assert len({step.value for step in steps if step.op == "index_expr"}) == 2
    assert sum(step.op == "index_expr" for step in steps) == 2


@pytest.mark.parametrize("function", [padded((0, 8)), padded((8, 0))], ids=["right", "left"])
def test_what_a_masked_part_loads_is_read(function: Callable[..., Any]) -> None:
    epilogue = epilogue_of(function, Shape((M, N - 8), BF16))
    (read,) = epilogue.reads
    assert (read.pattern, read.dtype, read.elements) == ("other", "bfloat16", M * (N - 8))
    assert epilogue.product == "full"


def test_what_a_masked_part_computes_is_part_of_the_signature() -> None:
    narrow = Shape((M, N - 8), BF16)
    functions = [
        padded((0, 8)),
        padded((8, 0)),
        padded((4, 4)),
        lambda a, b, c: a @ b + functional.pad(c * 2, (0, 8)),
        lambda a, b, c: a @ b + functional.pad(functional.pad(c.relu(), (0, 4)), (0, 4)),
    ]
    signatures = [epilogue_of(function, narrow).signature for function in functions]
    assert len(set(signatures)) == len(functions)
    assert epilogue_of(padded((0, 8)), narrow).signature == signatures[0]


def test_a_text_keeps_indices_and_masked_parts() -> None:
    epilogue = epilogue_of(
        lambda a, b, c: padded((0, 8))(a, b, c) * numbered(N), Shape((M, N - 8), BF16)
    )
    assert decode(encode(epilogue)).steps == epilogue.steps
    assert load(dump(epilogue, [(M, N)])).epilogue.steps == epilogue.steps
