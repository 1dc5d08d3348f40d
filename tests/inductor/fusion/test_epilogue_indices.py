"""How the loops behind a product read and write, told from their indices, before there is a scheduler."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from inductor_plugin.problem.epilogue import Access, Epilogue
from tests.support.graphs.with_epilogues import Shape, lowered

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

BF16, F32, I64 = torch.bfloat16, torch.float32, torch.int64
M, N, K = 64, 128, 32
FACTORS = Shape((M, K), BF16), Shape((K, N), BF16)


def epilogue_of(function: Callable[..., Any], *extra: Shape, readers: int = 0) -> Epilogue:
    outputs = lambda *inputs: (function(*inputs),)  # noqa: E731
    return lowered(outputs, [*FACTORS, *extra], readers)[0]


def brief(access: Access) -> tuple[object, ...]:
    return access.pattern, access.stride, access.offset, access.elements


@pytest.mark.parametrize(
    ("function", "extra", "read"),
    [
        pytest.param(
            lambda a, b, c: (a @ b) * c,
            Shape((M, 1), F32),
            ("column", (1, 0), 0, M),
            id="column",
        ),
        pytest.param(
            lambda a, b, c: (a @ b) * c,
            Shape((M, N), BF16, (1, M)),
            ("full", (1, M), 0, M * N),
            id="another order",
        ),
        pytest.param(
            lambda a, b, c: (a @ b) * c[:, N:],
            Shape((M, 2 * N), BF16),
            ("full", (2 * N, 1), N, M * N),
            id="part of an operand",
        ),
        pytest.param(
            lambda a, b, c: (a @ b).t() + c,
            Shape((N, M), BF16),
            ("full", (1, M), 0, M * N),
            id="transposed",
        ),
        pytest.param(
            lambda a, b, c: (a @ b) * c.flip(1),
            Shape((M, N), BF16),
            ("other", (), 0, M * N),
            id="backwards",
        ),
    ],
)
def test_an_operand_has_its_strides_along_the_product(
    function: Callable[..., Any], extra: Shape, read: tuple[object, ...]
) -> None:
    epilogue = epilogue_of(function, extra)
    assert [brief(each) for each in epilogue.reads] == [read]
    assert (epilogue.product, epilogue.reduction, epilogue.atomic) == ("full", "", False)


def test_a_product_that_is_read_in_part_or_elsewhere_is_read_through_a_view() -> None:
    for function in (
        lambda a, b: (a @ b)[:, : N // 2] * 2,
        lambda a, b: (a @ b).flip(0) * 2,
        lambda a, b: functional.pad(a @ b, (0, 8)) * 2,
    ):
        assert epilogue_of(function).product == "other"
    part = epilogue_of(lambda a, b: (a @ b)[:, : N // 2] * 2)
    assert [write.elements for write in part.writes] == [M * N // 2]  # what is read


def test_heads_are_no_order_of_the_product() -> None:
    epilogue = epilogue_of(lambda a, b: (a @ b).view(4, 16, 8, 16).permute(0, 2, 1, 3).contiguous())
    assert [brief(write) for write in epilogue.writes] == [("other", (), 0, M * N)]
    assert epilogue.product == "full"  # each loop runs over a part of one of its dimensions


def test_a_matrix_in_a_batch_of_one_is_whole() -> None:
    """The stride of a dimension of one element means nothing."""
    factors = Shape((1, M, K), BF16), Shape((1, K, N), BF16)
    epilogue, _ = lowered(lambda a, b: (torch.bmm(a, b).relu(),), factors)
    assert (epilogue.product, epilogue.size) == ("full", (1, M, N))


@pytest.mark.parametrize(
    ("size", "read"),
    [
        ((4, 1, N), ("row", (N, 0, 1), 0, 4 * N)),
        ((N,), ("row", (0, 0, 1), 0, N)),
        ((M, N), ("full", (0, N, 1), 0, M * N)),
    ],
)
def test_an_operand_may_be_the_same_for_each_of_a_batch(
    size: tuple[int, ...], read: tuple[object, ...]
) -> None:
    factors = Shape((4, M, K), BF16), Shape((4, K, N), BF16), Shape(size, BF16)
    epilogue, _ = lowered(lambda a, b, c: (torch.bmm(a, b) + c,), factors)
    assert [brief(each) for each in epilogue.reads] == [read]


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_a_reduction_is_named_and_writes_a_column(kind: str) -> None:
    reduce = {"sum": lambda x: x.sum(1), "max": lambda x: x.amax(1)}[kind]
    epilogue = epilogue_of(lambda a, b: reduce(a @ b))
    assert epilogue.reduction == kind
    assert [(write.pattern, write.elements) for write in epilogue.writes] == [("column", M)]


def test_what_values_index_is_in_no_order() -> None:
    gathered = epilogue_of(
        lambda a, b, table, rows: (a @ b) * table[rows], Shape((9, N), BF16), Shape((M,), I64)
    )
    assert sorted(read.pattern for read in gathered.reads) == ["column", "other"]
    (other,) = (read for read in gathered.reads if read.pattern == "other")
    assert other.elements == 9 * N  # any of them may be read
    assert not gathered.atomic


def test_a_plain_store_after_an_atomic_one_leaves_the_epilogue_atomic() -> None:
    def scattered(a: Any, b: Any, rows: Any, table: Any) -> Any:
        product = (a @ b).float()
        return torch.index_put(table, (rows,), product, accumulate=True), product * 2

    epilogue, _ = lowered(scattered, [*FACTORS, Shape((M,), I64), Shape((9, N), F32)])
    assert [write.pattern for write in epilogue.writes] == ["other", "full"]
    assert epilogue.atomic


def test_values_that_are_written_are_those_that_others_read() -> None:
    def both(a: Any, b: Any, c: Any) -> Any:
        scaled = (a @ b) * c
        return scaled, torch.sin(scaled)

    epilogue, _ = lowered(both, [*FACTORS, Shape((N,), BF16)], 2)
    assert [write.pattern for write in epilogue.writes] == ["full", "full"]
    assert epilogue.readers == 2
    # The second loop has the value of the first, not its buffer.
    assert [read.pattern for read in epilogue.reads] == ["row"]
