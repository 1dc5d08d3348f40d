"""Epilogues that are replayed: the same numbers, and compiled the same epilogue again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from inductor_plugin.ops.epilogue_eval import OPERATIONS, evaluate
from inductor_plugin.ops.epilogue_replay import SIGNS, replay
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import dump, load
from inductor_plugin.problem.epilogue_views import REPLAYED, jumps
from tests.support.graphs.epilogues import CASES, MORE, K, M, N
from tests.support.graphs.with_epilogues import Shape, lowered

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

ALL = {case.name: case for case in (*CASES, *MORE)}
FACTORS = (Shape((M, K), torch.float32), Shape((K, N), torch.float32))


Facts = dict[str, Any]


def operand(shape: Shape) -> Facts:
    stride = shape.stride or torch.empty(shape.size, device="meta").stride()
    return {"size": shape.size, "stride": tuple(stride), "offset": 0}


def function(
    lines: dict[str, str], operands: list[Facts], wide: torch.dtype | None = None
) -> Callable[..., Any]:
    """Return a product with an epilogue, without what else reads the product."""
    after = replay(lines, operands)
    written = len(load(lines).epilogue.writes)
    return lambda a, b, *rest: after(torch.mm(a, b), *rest, wide=wide)[:written]


@functools.cache
def noted(name: str, dtype: torch.dtype) -> tuple[dict[str, str], list[Facts], list[Shape]]:
    """Return a case as its record notes it, its own operands, and the shapes of all."""
    case = ALL[name]
    graph, shapes = case.graph(dtype)
    epilogue, traced = lowered(graph, shapes, case.readers)
    inputs = [node.name for node in traced.graph.nodes if node.op == "placeholder"]
    # The operands of a problem are in the order in which the epilogue reads them.
    read = dict.fromkeys(access.buffer for access in epilogue.reads)
    order = [*shapes[:2], *(shapes[inputs.index(buffer)] for buffer in read)]
    lines = dump(epilogue, [(M, N)] * len(epilogue.writes))
    return lines, [operand(shape) for shape in order[2:]], order


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_a_replayed_epilogue_becomes_the_same_epilogue_again(name: str, dtype: torch.dtype) -> None:
    lines, own, shapes = noted(name, dtype)
    again, _ = lowered(function(lines, own), shapes, ALL[name].readers)
    recorded = load(lines).epilogue
    assert again.steps == recorded.steps
    assert again.signature == recorded.signature


@pytest.mark.parametrize("name", ALL)
def test_it_computes_what_the_epilogue_does(name: str) -> None:
    lines, own, shapes = noted(name, torch.float32)
    epilogue = load(lines).epilogue
    torch.manual_seed(5)
    a, b = torch.randn(M, K) / 8, torch.randn(K, N)
    operands = [torch.randn(shape.size).abs() + 0.5 for shape in shapes[2:]]
    wanted = evaluate(epilogue, a @ b, operands)
    results = function(lines, own)(a, b, *operands)
    assert [result.dtype for result in results] == [result.dtype for result in wanted]
    for result, expected in zip(results, wanted, strict=True):
        torch.testing.assert_close(result.float(), expected.float(), rtol=1e-5, atol=1e-6)
    wide = [tensor.double() for tensor in (a, b, *operands)]
    for result, expected in zip(function(lines, own, torch.float64)(*wide), wanted, strict=True):
        assert result.dtype == torch.float64
        off = (result - expected.double()).abs()
        # What is rounded to whole numbers, or to a few bits, may fall on either side.
        narrow = epilogue.writes[0].dtype.startswith("float8")
        coarse = any(map(jumps, epilogue.steps)) or narrow
        assert off.max() <= (1 if coarse else 2e-4 * result.abs().max())
        assert off.mean() <= 1e-4 * result.abs().max()


def test_exact_results_are_not_rounded_on_the_way() -> None:
    lines, own, shapes = noted("gelu", torch.bfloat16)
    operands = [torch.randn(shape.size, dtype=torch.float64) for shape in shapes]
    (exact,) = function(lines, own, torch.float64)(*operands)
    assert exact.dtype == torch.float64
    assert not torch.equal(exact, exact.bfloat16().double())


def test_a_product_with_other_readers_is_returned_with_a_value_for_each_further_one() -> None:
    after = replay(dump(chain(readers=3), [(M, N)]), [])
    product = torch.randn(M, N)
    written, returned, *others = after(product)
    assert torch.equal(written, product)
    assert returned is product
    assert [value.shape for value in others] == [(1,), (1,)]


def test_whatever_is_computed_elsewhere_can_be_replayed() -> None:
    assert set(OPERATIONS) <= REPLAYED
    assert all(name in SIGNS or name == "to_dtype" or hasattr(torch, name) for name in REPLAYED)


def chain(*steps: Step, **facts: Any) -> Epilogue:
    every = (Step("product"), *steps)
    access = Access("full", "float32", M * N, (N, 1))
    whole = Epilogue((M, N), "float32", (*every, Step("store", (len(steps),), 0)), (), (access,))
    return replace(whole, **facts)


def test_numbers_stand_where_a_call_takes_none() -> None:
    """Python would turn a sum round; a function of two tensors takes no number in front."""
    for op, values in (
        ("add", (1, 0)),
        ("sub", (1, 0)),
        ("truediv", (1, 0)),
        ("maximum", (1, 0)),
        ("minimum", (0, 1)),
        ("lt", (1, 0)),
    ):
        epilogue = chain(Step("constant", (), 0.5), Step(op, values))
        lines = dump(epilogue, [(M, N)])
        a, b = torch.randn(M, K), torch.randn(K, N)
        (result,) = function(lines, [])(a, b)
        (wanted,) = evaluate(epilogue, a @ b, [])
        torch.testing.assert_close(result, wanted)
        again, _ = lowered(function(lines, []), FACTORS)
        done = [step for step in again.steps if step.op not in ("product", "constant", "store")]
        assert (done[0].op == op) or op in ("truediv", "lt")


PRODUCT = (6, 8)


@pytest.mark.parametrize(
    ("size", "stride", "read", "offset"),
    [
        ((8,), (1,), (0, 1), 0),
        ((), (), (0, 0), 0),
        ((6, 8), (16, 1), (16, 1), 0),
        ((6,), (1,), (1, 0), 0),
        ((8, 6), (6, 1), (1, 6), 0),
        ((6, 16), (16, 1), (16, 1), 8),
        ((2, 3, 8), (24, 8, 1), (8, 1), 0),
    ],
)
def test_an_operand_is_read_where_the_epilogue_reads_it(
    size: tuple[int, ...], stride: tuple[int, ...], read: tuple[int, ...], offset: int
) -> None:
    reads = (Access("full", "float32", 48, read, offset, "operand0"),)
    write = Access("full", "float32", 48, (8, 1))
    steps = (Step("product"), Step("load", (), 0), Step("store", (1,), 0))
    lines = dump(Epilogue(PRODUCT, "float32", steps, reads, (write,)), [PRODUCT])
    flat = torch.arange(200, dtype=torch.float32)
    own = torch.as_strided(flat, size, stride)
    after = replay(lines, [{"size": size, "stride": stride, "offset": 0}])
    (result,) = after(torch.zeros(PRODUCT), own)
    wanted = torch.as_strided(flat, PRODUCT, read, offset)
    assert torch.equal(result.expand(PRODUCT), wanted)


@pytest.mark.parametrize(
    ("along", "size"),
    [
        ((8, 1), (6, 8)),
        ((1, 6), (8, 6)),
        ((1, 6), (2, 4, 6)),
        ((8, 1), (2, 3, 8)),
        ((8, 1), (48,)),
    ],
)
def test_a_result_is_stored_as_it_lies(along: tuple[int, ...], size: tuple[int, ...]) -> None:
    lines = dump(chain(size=PRODUCT, writes=(Access("full", "float32", 48, along),)), [size])
    product = torch.arange(48, dtype=torch.float32).view(PRODUCT)
    (stored,) = replay(lines, [])(product)
    assert tuple(stored.shape) == size
    # Where element [m, n] must be: at the strides along the product.
    assert torch.equal(torch.as_strided(stored, PRODUCT, along), product)


def test_a_split_result_has_the_rows_of_its_call() -> None:
    """The recorded size is that of one call; a row count that varies is read from the product."""
    column = Access("full", "float32", 48, (1, 0), 0, "operand0")
    write = Access("full", "float32", 48, (8, 1))
    steps = (Step("product"), Step("load", (), 0), Step("add", (0, 1)), Step("store", (2,), 0))
    lines = dump(Epilogue(PRODUCT, "float32", steps, (column,), (write,)), [(2, 3, 8)])
    after = replay(lines, [{"size": (6, 1), "stride": (1, 1), "offset": 0}])
    product, bias = torch.randn(9, 8), torch.randn(9, 1)
    (stored,) = after(product, bias)
    assert torch.equal(stored, (product + bias).view(3, 3, 8))
