"""What the loops behind a product are told as, on a GPU that is not there."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch.nn import functional

from inductor_plugin.cost.limits import guard
from inductor_plugin.inductor.fusion import decide
from inductor_plugin.inductor.fusion.epilogue import base_of, epilogue_of_bodies
from inductor_plugin.problem.epilogue import Access, Epilogue
from tests.support.lowering import Arg, Lab, library_last

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

F32, I64 = torch.float32, torch.int64
A, B = Arg((256, 128)), Arg((128, 512))
SIZE = 256 * 512
OUT = ("full", (512, 1), 0, "bfloat16", SIZE)

Lower = Callable[..., list[Epilogue]]


def brief(access: Access) -> tuple[object, ...]:
    return access.pattern, access.stride, access.offset, access.dtype, access.elements


def of_buffers(values: list[Epilogue]) -> Callable[[GraphLowering], None]:
    """Return what notes, before there is a scheduler, what each buffer computes from a product."""
    update = GraphLowering._update_scheduler  # pyright: ignore[reportPrivateUsage]

    def updating(graph: Any) -> None:
        buffers: list[ir.Buffer] = graph.buffers
        products = [each for each in buffers if isinstance(each, ir.MultiTemplateBuffer)]
        for buffer in buffers:
            if isinstance(buffer, ir.ComputedBuffer):
                read = {dep.name for dep in buffer.get_read_writes().reads}
                _, body, _ = buffer.get_default_sizes_body()
                values.extend(
                    epilogue_of_bodies(base_of(product), [body], lambda _name: True)
                    for product in products
                    if product.get_name() in read
                )
        update(graph)

    return updating


@pytest.fixture(name="before")
def found_before(cache_dir: Path) -> Lower:
    """Lower, and return the epilogues of all buffers that read a product."""

    def lower(function: Callable[..., Any], *arguments: Arg) -> list[Epilogue]:
        epilogues: list[Epilogue] = []
        with (
            Lab(library_last, cache_dir).open() as lab,
            mock.patch.object(GraphLowering, "_update_scheduler", of_buffers(epilogues)),
        ):
            lab.lower(function, *arguments)
        return epilogues

    return lower


@pytest.fixture(name="asked")
def found_by_the_scheduler(cache_dir: Path) -> Lower:
    """Lower, and return what the scheduler asks about, its loops merged as it merges them."""

    def lower(
        function: Callable[..., Any], *arguments: Arg, dynamic: bool = False
    ) -> list[Epilogue]:
        epilogues: list[Epilogue] = []

        def noting(epilogue: Epilogue, *more: Any, **named: Any) -> str | None:
            epilogues.append(epilogue)
            return guard(epilogue, *more, **named)

        with Lab(library_last, cache_dir).open() as lab, mock.patch.object(decide, "guard", noting):
            (lab.lower_dynamic if dynamic else lab.lower)(function, *arguments)
        return epilogues

    return lower


GELU = (
    "to_dtype(mul(mul(to_dtype(product, float32), 0.5), add(erf(mul(to_dtype(product, float32), "
    "0.7071067811865476)), 1.0)), bfloat16)"
)
CUBE = (
    "mul(mul(to_dtype(product, float32), to_dtype(product, float32)), to_dtype(product, float32))"
)
GELU_TANH = (
    "to_dtype(mul(mul(to_dtype(product, float32), 0.5), add(tanh(mul(add(to_dtype(product, "
    f"float32), mul({CUBE}, 0.044715)), 0.7978845608028654)), 1.0)), bfloat16)"
)


@pytest.mark.parametrize(
    ("function", "extra", "described", "reads", "write"),
    [
        pytest.param(
            lambda a, b, c: (functional.relu(a @ b + c),),
            [Arg((512,))],
            "relu(add(product, row))",
            [("row", (0, 1), 0, "bfloat16", 512)],
            OUT,
            id="bias",
        ),
        pytest.param(
            lambda a, b, c: ((a @ b) * c,),
            [Arg((256, 1), F32)],
            "mul(to_dtype(product, float32), column)",
            [("column", (1, 0), 0, "float32", 256)],
            ("full", (512, 1), 0, "float32", SIZE),
            id="column",
        ),
        pytest.param(
            lambda a, b, c: ((a @ b) * c,),
            [Arg((), F32)],
            "mul(product, to_dtype(scalar, bfloat16))",
            [("scalar", (0, 0), 0, "float32", 1)],
            OUT,
            id="scalar",
        ),
        pytest.param(
            lambda a, b, c: ((a @ b) * 2 + c,),
            [Arg((256, 512))],
            "add(mul(product, 2.0), full)",
            [("full", (512, 1), 0, "bfloat16", SIZE)],
            OUT,
            id="residual",
        ),
        pytest.param(
            lambda a, b, c: ((a @ b) * c,),
            [Arg((256, 512), stride=(1, 256))],
            "mul(product, full)",
            [("full", (1, 256), 0, "bfloat16", SIZE)],
            OUT,
            id="strided",
        ),
        pytest.param(
            lambda a, b, c: ((a @ b) * c[:, 512:],),
            [Arg((256, 1024))],
            "mul(product, full)",
            [("full", (1024, 1), 512, "bfloat16", SIZE)],
            OUT,
            id="part of an operand",
        ),
        pytest.param(
            lambda a, b, c: ((a @ b).t() + c,),
            [Arg((512, 256))],
            "add(product, full)",
            [("full", (1, 256), 0, "bfloat16", SIZE)],
            OUT,
            id="transposed",
        ),
        pytest.param(lambda a, b: (functional.gelu(a @ b),), [], GELU, [], OUT, id="gelu"),
        pytest.param(
            lambda a, b: (functional.gelu(a @ b, approximate="tanh"),),
            [],
            GELU_TANH,
            [],
            OUT,
            id="gelu tanh",
        ),
        pytest.param(
            lambda a, b, c: (functional.silu(a @ b) * c,),
            [Arg((256, 512))],
            "mul(to_dtype(truediv(to_dtype(product, float32), add(exp(neg(to_dtype(product, "
            "float32))), 1.0)), bfloat16), full)",
            [("full", (512, 1), 0, "bfloat16", SIZE)],
            OUT,
            id="gate",
        ),
        pytest.param(
            lambda a, b: ((a @ b).float(),),
            [],
            "to_dtype(product, float32)",
            [],
            ("full", (512, 1), 0, "float32", SIZE),
            id="cast up",
        ),
        pytest.param(
            lambda a, b: ((a @ b).clamp(-448, 448).to(torch.float8_e4m3fn),),
            [],
            "to_dtype(to_dtype(minimum(maximum(to_dtype(product, float32), -448.0), 448.0), "
            "bfloat16), float8_e4m3fn)",
            [],
            ("full", (512, 1), 0, "float8_e4m3fn", SIZE),
            id="cast down",
        ),
    ],
)
def test_pointwise(
    asked: Lower,
    function: Callable[..., Any],
    extra: list[Arg],
    described: str,
    reads: list[object],
    write: object,
) -> None:
    (epilogue,) = asked(function, A, B, *extra)
    assert epilogue.describe() == described
    assert [brief(read) for read in epilogue.reads] == reads
    assert [brief(output) for output in epilogue.writes] == [write]
    assert (epilogue.size, epilogue.dtype, epilogue.product) == ((256, 512), "bfloat16", "full")
    assert (epilogue.readers, epilogue.reduction, epilogue.atomic, epilogue.mutates) == (
        0,
        "",
        False,
        False,
    )
    assert epilogue.position == "epilogue"


def test_the_same_before_and_in_the_scheduler(before: Lower, asked: Lower) -> None:
    """A CUTLASS epilogue is formed before, and judged by what the scheduler's loops are."""

    def gated(a: Any, b: Any, c: Any, d: Any) -> Any:
        return (functional.relu(a @ b + c) * d,)

    operands = A, B, Arg((512,)), Arg((256, 512))
    (early,), (late,) = before(gated, *operands), asked(gated, *operands)
    assert early == late
    assert early.describe() == "mul(relu(add(product, row)), full)"


def test_merged_loops_are_the_dimensions_of_the_product(asked: Lower) -> None:
    """All that is contiguous goes over one loop; a bias splits it again."""

    def square(a: Any, b: Any, c: Any) -> Any:
        return (torch.sin(a @ b) * c,)

    (whole,) = asked(square, A, B, Arg((256, 512)))
    assert [read.stride for read in (*whole.reads, *whole.writes)] == [(512, 1), (512, 1)]
    (split,) = asked(square, A, B, Arg((512,)))
    assert [read.stride for read in (*split.reads, *split.writes)] == [(0, 1), (512, 1)]


def test_batches(asked: Lower) -> None:
    def biased(a: Any, b: Any, c: Any) -> Any:
        return (torch.bmm(a, b) + c,)

    a, b = Arg((4, 256, 128)), Arg((4, 128, 512))
    (each,) = asked(biased, a, b, Arg((4, 1, 512)))
    assert each.size == (4, 256, 512)
    assert [brief(read) for read in each.reads] == [("row", (512, 0, 1), 0, "bfloat16", 4 * 512)]
    (same,) = asked(biased, a, b, Arg((512,)))
    assert [brief(read) for read in same.reads] == [("row", (0, 0, 1), 0, "bfloat16", 512)]
    assert each.size == same.size
    (full,) = asked(biased, a, b, Arg((256, 512)))
    assert [brief(read) for read in full.reads] == [("full", (0, 512, 1), 0, "bfloat16", SIZE)]


def test_a_dynamic_size_is_its_hint(asked: Lower) -> None:
    def biased(a: Any, b: Any, c: Any) -> Any:
        return functional.relu(a @ b + c)

    (epilogue,) = asked(biased, A, B, Arg((512,)), dynamic=True)
    assert epilogue.size == (256, 512)
    assert epilogue.describe() == "relu(add(product, row))"
    assert [read.stride for read in (*epilogue.reads, *epilogue.writes)] == [(0, 1), (512, 1)]


def test_the_product_has_other_readers(asked: Lower) -> None:
    def both(a: Any, b: Any) -> Any:
        product = a @ b
        return product, functional.relu(product)

    (epilogue,) = asked(both, A, B)
    assert epilogue.readers == 1
    assert epilogue.describe() == "relu(product)"


def test_two_outputs(asked: Lower) -> None:
    def both(a: Any, b: Any, c: Any) -> Any:
        scaled = (a @ b) * c
        return scaled, torch.sin(scaled)

    result = asked(both, A, B, Arg((512,)))[0]
    assert [write.pattern for write in result.writes] == ["full", "full"]
    assert result.readers == 0
    assert [write.bytes for write in result.writes] == [result.product_bytes] * 2


def test_heads_are_no_order_of_the_product(before: Lower) -> None:
    def heads(a: Any, b: Any) -> Any:
        return ((a @ b).view(4, 64, 8, 64).permute(0, 2, 1, 3).contiguous(),)

    (epilogue,) = before(heads, A, B)
    assert [brief(write) for write in epilogue.writes] == [("other", (), 0, "bfloat16", SIZE)]
    assert epilogue.product == "full"


def test_part_of_the_product(before: Lower) -> None:
    def part(a: Any, b: Any) -> Any:
        return ((a @ b)[:, :256] * 2,)

    (epilogue,) = before(part, A, B)
    assert epilogue.product == "other"
    # What is not read is not counted.
    assert [write.elements for write in epilogue.writes] == [256 * 256]


def test_two_parts_of_one_product(before: Lower) -> None:
    def gated(a: Any, b: Any) -> Any:
        product = a @ b
        return (functional.silu(product[:, :256]) * product[:, 256:],)

    (epilogue,) = before(gated, A, B)
    assert epilogue.product == "other"
    assert epilogue.reads == ()


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        pytest.param(lambda a, b: ((a @ b).sum(1),), "sum", id="sum"),
        pytest.param(lambda a, b: ((a @ b).amax(1),), "max", id="max"),
    ],
)
def test_reductions(before: Lower, function: Callable[..., Any], kind: str) -> None:
    (epilogue,) = before(function, A, B)
    assert epilogue.reduction == kind
    assert [(write.pattern, write.elements) for write in epilogue.writes] == [("column", 256)]


def test_rows_in_no_order_are_added_atomically(before: Lower) -> None:
    def scattered(a: Any, b: Any, rows: Any, table: Any) -> Any:
        return (torch.index_put(table, (rows,), (a @ b).float(), accumulate=True),)

    result = next(
        chain
        for chain in before(scattered, A, B, Arg((256,), I64), Arg((64, 512), F32))
        if chain.atomic
    )
    # The row is read from memory: no stride says where it goes.
    assert [(write.pattern, write.stride) for write in result.writes] == [("other", ())]
    assert [brief(read) for read in result.reads] == [("column", (1, 0), 0, "int64", 256)]


def test_a_gathered_operand(asked: Lower) -> None:
    def gathered(a: Any, b: Any, table: Any, rows: Any) -> Any:
        return ((a @ b) * table[rows],)

    (epilogue,) = asked(gathered, A, B, Arg((64, 512)), Arg((256,), I64))
    patterns = {read.buffer: read.pattern for read in epilogue.reads}
    assert sorted(patterns.values()) == ["column", "other"]
    assert patterns["rows_1"] == "column"


def test_a_mask_hides_what_is_inside(before: Lower) -> None:
    """Padded by a mask, the product is read at places of its own, not element by element."""

    def padded(a: Any, b: Any, c: Any) -> Any:
        return (functional.pad(a @ b, (0, 8)) * c,)

    (epilogue,) = before(padded, A, B, Arg((256, 520)))
    assert epilogue.product == "other"
    assert any(step.op == "masked_subblock" for step in epilogue.steps)


def test_a_part_of_a_larger_output(before: Lower) -> None:
    def joined(a: Any, b: Any, c: Any) -> Any:
        return (torch.cat([a @ b, c], 1),)

    result = before(joined, A, B, Arg((256, 64)))[0]
    assert [brief(write) for write in result.writes] == [("full", (576, 1), 0, "bfloat16", SIZE)]


def test_what_stands_before_a_product(asked: Lower) -> None:
    def cast(a: Any, b: Any) -> Any:
        return (a.to(torch.bfloat16) @ b,)

    (epilogue,) = asked(cast, Arg((256, 128), torch.float8_e4m3fn), B)
    assert epilogue.position == "prologue"
    assert epilogue.size == (256, 128)
    assert not any(step.op == "product" for step in epilogue.steps)
    assert epilogue.describe() == "to_dtype(full, bfloat16)"
    assert [read.dtype for read in (*epilogue.reads, *epilogue.writes)] == [
        "float8_e4m3fn",
        "bfloat16",
    ]
